"""ASGI middleware: each request that a service of yours answers becomes a span, in the trace of whoever asked.

Rules: plain ASGI, so the body streams through untouched and context variables reach the application.  A span is named by method and route where the
framework tells its route (`scope["route"]`), else by the method alone, because paths are of too many kinds; it is an error from status 500 on and
when the application raises.  It ends with the last byte of the answer; when that is a stream, its first byte is an event.  What
waits to be sent is sent when the server says that it ends: a server that ends by its signal runs no `atexit`.

Source: OpenTelemetry's semantic conventions for HTTP servers (`http.request.method`, `http.route`, `http.response.status_code`, ...).

Deliberately absent: query strings and headers, which have secrets in them.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

from sits.telemetry.tracing import extract, flush, span

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
About = Callable[[Scope], Mapping[str, Any]]

WORST = 500
BROKE = 1011
"""The code with which a server closes a WebSocket that it could not go on with (RFC 6455)."""


class SpanMiddleware:
    """Wraps an ASGI application: `app = sits.SpanMiddleware(app, attributes=lambda scope: {...})`.

    Args:
        app: the application.
        attributes: what business attributes a request's span gets, from its scope; what it raises costs the attributes.
        skip: paths without a span, like health checks.

    """

    def __init__(self, app: App, *, attributes: About | None = None, skip: tuple[str, ...] = ()) -> None:
        self.app = app
        self._about = attributes
        self._skip = skip

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or whatever else the server asks."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, _flushing(send))
            return
        if scope["type"] not in ("http", "websocket") or scope.get("path") in self._skip:
            await self.app(scope, receive, send)
            return
        method = str(scope.get("method", "WEBSOCKET"))
        begun = span(
            method,
            kind="server",
            parent=extract(dict(scope.get("headers", ()))),
            **{"http.request.method": method, "url.path": scope.get("path", "")},
        )
        if self._about is not None:
            try:
                begun.set(**self._about(scope))
            except Exception as error:  # noqa: BLE001  # attributes are never worth a request
                begun.event("attributes failed", error=repr(error))
        started = False

        async def told(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                status = int(message["status"])
                begun.set(**{"http.response.status_code": status})
                if status >= WORST:
                    begun.fail(f"status {status}")
            elif message["type"] == "websocket.close" and message.get("code", 1000) == BROKE:
                begun.fail(f"closed with {BROKE}")
            elif message["type"] == "http.response.body" and not started:
                started = True
                if message.get("more_body"):
                    begun.event("first byte")
            await send(message)

        async with begun:
            try:
                await self.app(scope, receive, told)
            finally:
                route = getattr(scope.get("route"), "path", None)
                if isinstance(route, str):
                    begun.name = f"{method} {route}"
                    begun.set(**{"http.route": route})


def _flushing(send: Send) -> Send:
    async def told(message: Message) -> None:
        if message["type"].startswith("lifespan.shutdown."):
            await asyncio.to_thread(flush)
        await send(message)

    return told
