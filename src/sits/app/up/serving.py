"""The web server of the admin process: uvicorn, which lets connections stay for ever, with an end to each way of staying.

```
accepted ─head within HEAD_S─> body within BODY_S ─> answered: the reader takes it, or is let go after STALL_S ─> next head
```
Rules:
- Whoever sends no request, half of one, or does not read the answer is let go in time: a socket costs memory here, and a place.
- There are `CONNECTIONS_MAX` places.  When all are taken the oldest connection that has not asked for anything makes room, so that sockets
  which only sit there cannot keep out somebody who asks; where all of them ask, the new one is told so (503) and closed.
- A peer that is gone without a word, or does not read what we have written, is noticed by the kernel: `TCP`.
- h11 reads the heads, because it is the one of the two parsers that ends a head which does not end (`HEAD_BYTES`).

What a hostile socket does is counted nowhere and said nowhere: a line for each would be its way into our log.

Deliberately absent: what is served, and who may see it.
"""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from sits.app.up.refusal import AGAIN_S, UNAVAILABLE

if TYPE_CHECKING:
    from starlette.types import ASGIApp

HEAD_BYTES = 64 * 1024
HEAD_S = 10.0
BODY_S = 60.0
STALL_S = 20.0
"""How long nothing may be taken of what is to be read."""

CONNECTIONS_MAX = 512
SWEEP_TICKS = 10
"""Of uvicorn's tenths of a second."""

TCP = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 15),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(STALL_S * 1000)),
    (socket.SOL_SOCKET, socket.SO_SNDBUF, 128 * 1024),
)
"""Of a listening socket, and so of all it accepts: a peer without a word is probed; one that takes nothing for `STALL_S`, or is gone with our words
on their way, is let go; and what waits in the kernel for a slow one is bounded as well (the kernel doubles the figure)."""

FULL = msgspec.json.encode(
    {
        "error": {
            "message": f"{CONNECTIONS_MAX} connections are open, and each asks for something",
            "type": "overloaded_error",
            "code": "too_many_connections",
            "hint": "close some, or ask again in some seconds",
        }
    }
)
LATE = b'{"error":{"message":"the request took too long to arrive","type":"invalid_request_error","code":"timeout","hint":"send it at once"}}'


class Waits(H11Protocol):
    """One connection, which knows since when it has been waiting, and for what."""

    waiting = "head"
    since_s = 0.0
    stalled = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Another one; it may be the one too many."""
        self.since_s = self.loop.time()
        super().connection_made(transport)
        if len(self.connections) > CONNECTIONS_MAX and not self._make_room():
            self._last_words(UNAVAILABLE, FULL)

    def pause_writing(self) -> None:
        """It does not read as fast as we tell."""
        self.stalled, self.since_s = True, self.loop.time()
        super().pause_writing()

    def resume_writing(self) -> None:
        """It reads again."""
        self.stalled = False
        super().resume_writing()

    def on_response_complete(self) -> None:
        """One more is answered, so the patience with what follows begins anew."""
        self.since_s = self.loop.time()
        super().on_response_complete()

    def look(self, now_s: float) -> None:
        """End it if it has waited too long for what it waits for."""
        waiting = self.waits_for
        if waiting != self.waiting:
            self.waiting, self.since_s = waiting, now_s
            return
        waited_s = now_s - self.since_s
        if waiting in ("reader", "end") and waited_s > STALL_S:
            self.transport.abort()  # closing waits for the last byte to be read, for ever if need be
        elif waiting == "head" and waited_s > HEAD_S:
            self._last_words(408, LATE)
        elif waiting == "body" and waited_s > BODY_S:
            self.transport.abort()

    @property
    def waits_for(self) -> str:
        """`head`, `body`, our `answer`, a `reader` of it, or its `end`."""
        if self.transport.is_closing():
            return "end"
        if self.stalled:
            return "reader"
        if self.cycle is None or self.cycle.response_complete:
            return "head"
        return "body" if self.cycle.more_body else "answer"

    def _make_room(self) -> bool:
        """Whether the oldest that asks for nothing could be let go."""
        others = [one for one in self.connections if isinstance(one, Waits) and one is not self]
        idle = [one for one in others if one.waits_for == "head"]
        if idle:
            min(idle, key=lambda one: one.since_s).transport.abort()
        return bool(idle)

    def _last_words(self, status: int, body: bytes) -> None:
        """Say why, if nothing was said yet, and close."""
        if not self.cycle:
            head = f"HTTP/1.1 {status} -\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\nconnection: close\r\n"
            again = f"retry-after: {AGAIN_S:.0f}\r\n" if status == UNAVAILABLE else ""
            self.transport.write(f"{head}{again}\r\n".encode() + body)
        self.transport.close()


class Served(uvicorn.Server):
    """uvicorn on the loop that runs: signals are ours, the start is told, and connections end."""

    def __init__(self, app: "ASGIApp", ready: Callable[[], Any]) -> None:
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # its warnings are a stranger's to cause
        config = uvicorn.Config(
            app,
            http=Waits,
            log_config=None,
            access_log=False,
            lifespan="off",
            ws="none",
            server_header=False,
            timeout_graceful_shutdown=1,
            h11_max_incomplete_event_size=HEAD_BYTES,
        )
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve on sockets that listen already, and say so."""
        _patient(sockets or ())
        await super().startup(sockets)
        self._ready()

    async def on_tick(self, counter: int) -> bool:
        """Look after the connections once a second."""
        if counter % SWEEP_TICKS == 0:
            now_s = asyncio.get_running_loop().time()
            for one in list(self.server_state.connections):
                if isinstance(one, Waits):
                    one.look(now_s)
        return await super().on_tick(counter)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Take none: they are the process's."""
        yield


def _patient(listeners: Sequence[socket.socket]) -> None:
    """Whoever is accepted there is treated as `TCP` says."""
    for one in listeners:
        for level, option, value in TCP:
            one.setsockopt(level, option, value)
