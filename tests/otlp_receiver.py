"""A receiver of `POST /v1/traces` for tests: keeps what came, and answers as it is told."""

import contextlib
import json
import queue
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Received:
    """What came: `bodies` in order; `statuses` are answered first, then 200 for ever."""

    def __init__(self):
        self.bodies = queue.Queue()
        self.statuses = []
        self.headers = []
        self.url = ""

    def next(self):
        return self.bodies.get(timeout=20)

    @staticmethod
    def spans_of(body):
        return [
            span
            for resource in body["resourceSpans"]
            for scope in resource["scopeSpans"]
            for span in scope["spans"]
        ]


@contextlib.contextmanager
def otlp_receiver(*statuses):
    """Serves on a port of its own until the block ends."""
    received = Received()
    received.statuses = list(statuses)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["content-length"]))
            status = received.statuses.pop(0) if received.statuses else 200
            received.headers.append(dict(self.headers))
            received.bodies.put((status, json.loads(body)))
            self.send_response(status)
            self.send_header("content-length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    received.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield received
    finally:
        server.shutdown()
        server.server_close()
