"""Our receivers on ports of their own, in a thread, for tests that send to them."""

import asyncio
import threading
from contextlib import contextmanager

import uvicorn
from starlette.applications import Starlette

from sits.app.otlp.receiving_grpc import GrpcReceiver
from sits.app.otlp.receiving_http import HttpReceiver
from sits.telemetry.otlp.inbox import Inbox


class Receivers:
    """`url` of HTTP, `grpc` host:port, and the `inbox` of both."""

    def __init__(self, inbox, token):
        self.inbox, self._token = inbox, token
        self._ready = threading.Event()

    async def run(self):
        self.stopping, self.loop = asyncio.Event(), asyncio.get_running_loop()
        grpc = GrpcReceiver(self.inbox, "127.0.0.1:0", self._token)
        await grpc.start()
        app = Starlette(routes=list(HttpReceiver(self.inbox, self._token).routes()))
        config = uvicorn.Config(app, port=0, log_config=None, lifespan="off", timeout_graceful_shutdown=1)
        server = uvicorn.Server(config)
        server.config.load()
        server.lifespan = config.lifespan_class(config)
        await server.startup()
        port = server.servers[0].sockets[0].getsockname()[1]
        self.url, self.grpc = f"http://127.0.0.1:{port}", f"127.0.0.1:{grpc.port}"
        self._ready.set()
        await self.stopping.wait()
        await grpc.stop()
        await server.shutdown()

    def stored(self):
        """What waits for the store, by table."""
        return {table: source.drain() for table, source in self.inbox.sources.items()}


@contextmanager
def receivers(token="", **bounds):
    made = Receivers(Inbox("run-1", **bounds), token)
    thread = threading.Thread(target=lambda: asyncio.run(made.run()), daemon=True)
    thread.start()
    assert made._ready.wait(20)
    try:
        yield made
    finally:
        made.loop.call_soon_threadsafe(made.stopping.set)
        thread.join(20)
