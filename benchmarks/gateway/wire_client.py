"""A client of raw sockets that sees what libraries hide: how an answer ended, byte by byte.

`end` of a reply: `proper` = by its length or its last chunk; `cut` = the connection ended before that; `silent` = nothing
more came in time; `refused` = no connection.
"""

import contextlib
import json
import socket
import time
from dataclasses import dataclass

from gateway.peers import KEY


@dataclass
class Reply:
    """What came back."""

    status: int = 0
    head: bytes = b""
    body: bytes = b""
    end: str = "silent"
    seconds: float = 0.0

    @property
    def shaped(self) -> bool:
        """Whether it is OpenAI's error object."""
        with contextlib.suppress(ValueError, TypeError, KeyError):
            return isinstance(json.loads(self.body)["error"]["message"], str)
        return False

    def header(self, name: str) -> str:
        """A field's value, or nothing."""
        for line in self.head.split(b"\r\n")[1:]:
            key, _, value = line.partition(b":")
            if key.lower() == name.encode():
                return value.strip().decode("latin-1")
        return ""


def request(
    port: int, body: bytes, path: str, *fields: str, key: str = KEY, length: int | None = None
) -> bytes:
    """A POST as bytes."""
    head = [
        f"POST {path} HTTP/1.1",
        f"Host: 127.0.0.1:{port}",
        "Content-Type: application/json",
        *([f"Authorization: Bearer {key}"] if key else []),
        *([f"Content-Length: {len(body) if length is None else length}"] if length != -1 else []),
        *fields,
    ]
    return ("\r\n".join(head) + "\r\n\r\n").encode() + body


def connect(port: int, receive_buffer: int = 0) -> socket.socket:
    """A connection; a small receive buffer makes a client that takes little."""
    link = socket.socket()
    if receive_buffer:
        link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    link.settimeout(5)
    link.connect(("127.0.0.1", port))
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return link


def read_reply(link: socket.socket, seconds: float, rest: bytes = b"") -> tuple[Reply, bytes]:
    """One answer, and what came after it."""
    reply, began, data = Reply(), time.monotonic(), rest
    more = True
    while True:
        if (end := data.find(b"\r\n\r\n")) >= 0:
            reply.head, reply.status = data[: end + 4], int(data[9:12]) if data[9:12].isdigit() else 0
            if reply.status == 100:
                data = data[end + 4 :]
                continue
            reply.body, size = _body(reply, data[end + 4 :], closed=not more)
            if size is not None:
                reply.end = "proper"
                data = data[end + 4 + size :]
                break
        if not more:
            reply.end = "cut"
            break
        left = began + seconds - time.monotonic()
        if left <= 0:
            break
        link.settimeout(left)
        try:
            piece = link.recv(2**20)
        except TimeoutError:
            break
        except OSError:
            piece = b""
        more = bool(piece)
        data += piece
    reply.seconds = time.monotonic() - began
    return reply, data


def _body(reply: Reply, data: bytes, *, closed: bool) -> tuple[bytes, int | None]:
    """The payload so far, and how many bytes of `data` the whole one took (None = not whole)."""
    if reply.header("transfer-encoding").lower() == "chunked":
        return _chunked(data)
    if length := reply.header("content-length"):
        size = int(length)
        return data[:size], size if len(data) >= size else None
    if reply.status in {204, 304}:
        return b"", 0
    return data, len(data) if closed else None


def _chunked(data: bytes) -> tuple[bytes, int | None]:
    at, payload = 0, b""
    while (end := data.find(b"\r\n", at)) >= 0:
        size = int(data[at:end].split(b";")[0] or b"0", 16)
        if size == 0:
            last = data.find(b"\r\n", end + 2)
            return payload, last + 2 if last >= 0 else None
        payload += data[end + 2 : end + 2 + size]
        at = end + 2 + size + 2
        if at > len(data):
            break
    return payload, None


def ask(port: int, body: bytes, path: str, *fields: str, seconds: float = 8.0, key: str = KEY) -> Reply:
    """One request on a connection of its own."""
    began = time.monotonic()
    try:
        with connect(port) as link:
            link.sendall(request(port, body, path, *fields, key=key))
            reply, _ = read_reply(link, seconds)
    except OSError as error:
        reply = Reply(end="refused" if isinstance(error, ConnectionRefusedError) else "cut")
    reply.seconds = time.monotonic() - began
    return reply
