"""The admin process: pages for people and receivers for machines, beside the gateway and never in its way.

```
supervisor ──generation──> admin: door ─> rooms (app.up.rooms)        keeper ──answers──> admin        store ──Parquet──> admin
```
One server (Starlette on uvicorn) has the paths of all rooms.  It may die: requests and records do not pass here, and the next one begins
where the store stands.

Rules: its loop answers people, so what takes long (the store) is done in threads.  It ends last, after the keeper, so that a room which sends
rows on sees the last of them; rooms have `CLOSE_S` for that.  Without the supervisor it leaves.

Deliberately absent: what is shown, and who may see it.
"""

import asyncio
import contextlib
import functools
import signal
import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from sits.app.up.door import Door, with_headers
from sits.app.up.generation import Generation, unpack
from sits.app.up.link import Link
from sits.app.up.rooms import House, Room, rooms_of
from sits.app.up.serving import Served
from sits.core.errors import SitsError
from sits.core.ports import World
from sits.gateway.metrics import added
from sits.gateway.shared import Shared
from sits.telemetry.logs import Log

if TYPE_CHECKING:
    from starlette.types import ASGIApp

TELL_S = 2.0
"""How often the keeper, who has the metrics page, is told what the rooms count."""

CLOSE_S = 3.0
"""How long rooms may take to close, all together; then the process ends without them."""


class Post(msgspec.Struct, frozen=True):
    """Where the admin process stands: its listening sockets, its ends of the links, the shared table, both addresses."""

    listeners: tuple[socket.socket, ...]
    keeper: socket.socket
    supervisor: socket.socket
    shared: Shared
    gateway: str
    address: str


class Admin:
    """Serves from `run` until it is told to stop."""

    def __init__(self, post: Post, world: World, say: Log) -> None:
        self.post = post
        self.world = world
        self.say = say

    async def run(self, first: Generation) -> None:
        """Serve.

        Raises:
            SitsError: the configuration's keys cannot be used.

        """
        stop = asyncio.Event()
        supervisor = Link(self.post.supervisor, {"generation": self._adopt}, ended=stop.set)
        keeper = Link(self.post.keeper, first=self.world.nonce() >> 16)
        loop = asyncio.get_running_loop()
        self.say.keep = functools.partial(_keep_line, loop, keeper)
        loop.add_signal_handler(signal.SIGTERM, stop.set)
        addresses = self.post.gateway, self.post.address
        self._house = House(first, self.world, self.post.shared, keeper, addresses, self.say)
        self._door = Door(self.post.address, self.world)
        self._door.adopt(first)
        self._rooms = await self._started(rooms_of(self._house))
        server = Served(self._application(), lambda: supervisor.send("ready"))
        serving = asyncio.create_task(server.serve(list(self.post.listeners)))
        stopped = asyncio.create_task(stop.wait())
        telling = asyncio.create_task(self._tell())
        await asyncio.wait((serving, stopped), return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        telling.cancel()
        server.should_exit = True
        await self._close(serving)

    async def _started(self, rooms: Sequence[Room]) -> list[Room]:
        if problem := self._door.problem():
            self.say(f"admin: {problem}")
        there = []
        for room in rooms:
            try:
                await room.start()
            except SitsError as error:
                self.say(f"admin: without {room.name}: {error}")
            else:
                there.append(room)
        return there

    async def _close(self, serving: "asyncio.Task[None]") -> None:
        closing = [asyncio.create_task(room.close()) for room in self._rooms]
        done, late = await asyncio.wait((serving, *closing), timeout=CLOSE_S)
        for one in done:
            if not one.cancelled() and (error := one.exception()) is not None:
                self.say(f"admin: while ending: {error}")
        for one in late:
            one.cancel()
        self._door.close()

    async def _tell(self) -> None:
        while True:
            self._house.tell(added(room.vitals() for room in self._rooms))
            await asyncio.sleep(TELL_S)

    def _adopt(self, packed: bytes) -> None:
        """Another configuration; what of it cannot be taken stays as it was."""
        new = unpack(packed)
        try:
            self._door.adopt(new)
        except SitsError as error:
            self.say(f"admin: generation {new.number} cannot be taken: {error}")
            return
        self._house.generation = new
        for room in self._rooms:
            try:
                room.adopt(new)
            except SitsError as error:
                self.say(f"admin: {room.name}: {error}")

    def _application(self) -> "ASGIApp":
        routes: list[BaseRoute] = [Route("/healthz", self._health), Route("/", _home), *self._door.routes()]
        for room in self._rooms:
            for route in room.routes():
                if room.guarded:
                    assert isinstance(route, Route)
                    route.app = self._door.guard(route.app)
                routes.append(route)
        return with_headers(Starlette(routes=routes))

    async def _health(self, _: Request) -> Response:
        generation = self._house.generation
        return JSONResponse(
            {
                "status": "ok",
                "generation": generation.number,
                "name": generation.name,
                "rooms": [room.name for room in self._rooms],
            }
        )


def _keep_line(loop: asyncio.AbstractEventLoop, keeper: Link, row: tuple[Any, ...]) -> None:
    """A line goes to the keeper, who has the store's log; threads say things too."""
    with contextlib.suppress(
        RuntimeError
    ):  # the loop has ended, and the keeper before it; stderr has the line
        loop.call_soon_threadsafe(keeper.send, "log", row)


async def _home(_: Request) -> Response:
    return RedirectResponse("/board/", 307)
