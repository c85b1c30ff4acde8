"""Figures as they come, to any number of browsers: one stream of server-sent events each.

```
look ──make──> Feed (one for all who look at the same) ──newest──> Client ──> text/event-stream
```
Rules:
- An event is whole figures, never a difference, so that a stream which resumes needs nothing but the newest, and a client that is slow misses
  what is old and not what is true: of each kind one event waits for it at most.
- Who looks at the same shares the work; a feed nobody looks at any more makes nothing.
- At most `CLIENTS_MAX` streams; one that does not take an event within `STALL_S` is dropped.  A stream that has nothing to say says so every
  `QUIET_S`, so that a dead connection is noticed at both ends.

Deliberately absent: what is made.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING

import msgspec

from sits.core.errors import SitsError

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

CLIENTS_MAX = 64
STALL_S = 15.0
QUIET_S = 10.0
RETRY_MS = 2_000

Make = Callable[[], Awaitable[bytes]]


class Client:
    """One browser: of each kind of event the newest, until it is taken."""

    def __init__(self) -> None:
        self._waiting: dict[str, bytes] = {}
        self._woken = asyncio.Event()
        self.ended = False

    def put(self, kind: str, event: bytes) -> None:
        """Another event of a kind; it replaces one that still waits."""
        self._waiting[kind] = event
        self._woken.set()

    def end(self) -> None:
        """Say no more."""
        self.ended = True
        self._woken.set()

    async def taken(self) -> AsyncIterator[bytes]:
        """What there is, as it comes; a comment when there is nothing for a while."""
        while not self.ended:
            try:
                await asyncio.wait_for(self._woken.wait(), QUIET_S)
            except TimeoutError:
                yield b": still here\n\n"
                continue
            self._woken.clear()
            waiting, self._waiting = self._waiting, {}
            for event in waiting.values():
                yield event


class Feed:
    """One kind of event, made every `period_s` while somebody listens."""

    def __init__(self, kind: str, make: Make, period_s: float) -> None:
        self.kind = kind
        self._make = make
        self._period_s = period_s
        self._clients: set[Client] = set()
        self._task: asyncio.Task[None] | None = None
        self._newest = b""
        self._number = 0

    @property
    def idle(self) -> bool:
        """Whether nobody listens."""
        return not self._clients

    def join(self, client: Client) -> None:
        """Tell a client what is newest, and all that follows."""
        self._clients.add(client)
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        elif self._newest:
            client.put(self.kind, self._newest)

    def leave(self, client: Client) -> None:
        """Tell it no more."""
        self._clients.discard(client)
        if not self._clients and self._task is not None:
            self._task.cancel()
            self._task, self._newest = None, b""

    async def _run(self) -> None:
        while True:
            try:
                kind, data = self.kind, await self._make()
            except SitsError as error:
                kind, data = (
                    "trouble",
                    msgspec.json.encode({"of": self.kind, "message": error.message, "hint": error.hint}),
                )
            self._number += 1
            event = b"event: %s\nid: %s-%d\ndata: %s\n\n" % (
                kind.encode(),
                self.kind.encode(),
                self._number,
                data,
            )
            self._newest = event if kind == self.kind else self._newest
            for client in list(self._clients):
                client.put(kind, event)
            await asyncio.sleep(self._period_s)


class Streams:
    """All streams of a process."""

    def __init__(self) -> None:
        self.clients: set[Client] = set()
        self.opened = self.refused = self.dropped = 0

    @property
    def full(self) -> bool:
        """Whether there is room for no other."""
        return len(self.clients) >= CLIENTS_MAX

    def end(self) -> None:
        """End them all."""
        for client in self.clients:
            client.end()

    def place(self) -> Client:
        """Room for one more, taken at once; whoever asks looks first whether they are `full`."""
        client = Client()
        self.clients.add(client)
        self.opened += 1
        return client

    def vitals(self) -> dict[str, dict[str, float]]:
        """Streams there are, and by what became of them, as the metrics page has it."""
        how = {"opened": self.opened, "refused": self.refused, "dropped": self.dropped}
        return {
            "sits_board_streams": {"": len(self.clients)},
            "sits_board_streams_total": {f'result="{name}"': count for name, count in how.items()},
        }

    async def serve(self, client: Client, feeds: list[Feed], send: "Send") -> None:
        """One stream, until it ends."""
        try:
            await send(
                {
                    "type": "http.response.start",
                    "status": 200,
                    "headers": [
                        (b"content-type", b"text/event-stream; charset=utf-8"),
                        (b"x-accel-buffering", b"no"),
                    ],
                }
            )
            await _put(send, b"retry: %d\n\n" % RETRY_MS)
            for feed in feeds:
                feed.join(client)
            async for event in client.taken():
                await _put(send, event)
            await send({"type": "http.response.body", "body": b""})
        except TimeoutError:
            self.dropped += 1
        finally:
            for feed in feeds:
                feed.leave(client)


async def _put(send: "Send", data: bytes) -> None:
    """Raises TimeoutError: nobody takes it."""
    await asyncio.wait_for(send({"type": "http.response.body", "body": data, "more_body": True}), STALL_S)


class Streaming:
    """The answer to a request for a stream, as Starlette wants it."""

    def __init__(self, streams: Streams, feeds: list[Feed]) -> None:
        self._streams = streams
        self._feeds = feeds
        self._client = streams.place()

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        """Serve it until it ends or the browser leaves."""
        serving = asyncio.create_task(self._streams.serve(self._client, self._feeds, send))
        leaving = asyncio.create_task(_left(receive))
        try:
            await asyncio.wait((serving, leaving), return_when=asyncio.FIRST_COMPLETED)
        finally:
            leaving.cancel()
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)
            self._streams.clients.discard(self._client)


async def _left(receive: "Receive") -> None:
    while (await receive())["type"] != "http.disconnect":
        continue
