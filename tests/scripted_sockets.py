"""Servers that answer as a script says, down to the single byte: what no well-behaved server library would do."""

import contextlib
import socket
import threading


@contextlib.contextmanager
def scripted(*scripts):
    """Serves connection n by `scripts[n](connection, over)`, the last one for ever, until the block ends: then `over` is set.

    Yields its port and the list of connections that came.
    """
    over, came, threads = threading.Event(), [], []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def accept():
            while not over.is_set():
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                if over.is_set():
                    connection.close()
                    return
                script = scripts[min(len(came), len(scripts) - 1)]
                came.append(connection)
                thread = threading.Thread(target=serve, args=(script, connection))
                threads.append(thread)
                thread.start()

        def serve(script, connection):
            with connection, contextlib.suppress(OSError):
                script(connection, over)

        acceptor = threading.Thread(target=accept)
        acceptor.start()
        port = server.getsockname()[1]
        try:
            yield port, came
        finally:
            over.set()
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                pass
            acceptor.join()
            for connection in came:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
            for thread in threads:
                thread.join()


def says(text):
    """Reads a request to its end and answers this."""

    def script(connection, _):
        read_request(connection)
        connection.sendall(text.encode())

    return script


def read_request(connection):
    """Head and body of one request."""
    said = b""
    while b"\r\n\r\n" not in said:
        said += connection.recv(65536)
    head, _, body = said.partition(b"\r\n\r\n")
    length = next(
        int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")
    )
    while len(body) < length:
        body += connection.recv(65536)
    return head, body


def hangs(connection, over):
    """Takes the connection, and that is all."""
    over.wait()


def drips(first, byte=b"a", pause_s=0.01):
    """Says `first`, then a byte now and then for ever, without having read anything."""

    def script(connection, over):
        connection.sendall(first)
        while not over.wait(pause_s):
            connection.sendall(byte)

    return script
