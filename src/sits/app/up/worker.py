"""A worker: one process that serves, with a row of its own in the table all share.

```
supervisor ──generation──> worker ──rows, vitals, questions──> keeper ──states of engines──> worker
```
Rules:
- It loads nothing but the data plane (and what pretends to be an engine, where the fleet has one).
- A new generation is a new `Gateway`; engines whose configuration is the same are taken over with their connections, the others are
  closed when the last request of the old generation has ended.
- SIGTERM drains, a second one cancels what still runs; SIGINT is for the supervisor, who shares the terminal with us.
- Without the supervisor there is nobody to start us again or to stop us: then we drain and leave.

Deliberately absent: files, and the decision to stop.
"""

import asyncio
import functools
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from sits.app.up.attempts import Attempts
from sits.app.up.effort import Effort
from sits.app.up.generation import Generation, unpack
from sits.app.up.link import Link
from sits.app.up.outbox import FLUSH_S, Outbox
from sits.app.up.pauses import Pauses
from sits.app.up.profiling import worker_profiler
from sits.app.up.wires import WireWatch
from sits.core.errors import SitsError
from sits.core.fleet import AnyEngine, Fleet
from sits.core.ports import Engine, World
from sits.core.units import SECOND
from sits.gateway.metrics import Vitals
from sits.gateway.pipeline import Gateway
from sits.gateway.places import Place
from sits.gateway.server import Page, Pages, Server
from sits.gateway.shared import Shared
from sits.telemetry.logs import Log
from sits.wire import build_engine

VITALS_TICKS = 10
"""Vitals are told with every so many flushes: once a second."""


class Post(msgspec.Struct, frozen=True):
    """Where a worker stands: its number, its listening sockets, its ends of the links, the shared table."""

    index: int
    listeners: tuple[socket.socket, ...]
    keeper: socket.socket
    supervisor: socket.socket
    shared: Shared


class Worker:
    """Serves from `run` until it is told to stop."""

    def __init__(self, post: Post, world: World, log: Log | None = None) -> None:
        self.post = post
        self.world = world
        self._log = log
        self._attempts = None if log is None else Attempts(world, log)
        self._ticks = 0
        self._runs: dict[Gateway, str] = {}
        self._pauses = Pauses(world)
        self._wires = WireWatch(world)
        self._effort = Effort(world, f"worker-{post.index}", round(FLUSH_S * SECOND))
        self._pretence: Callable[[AnyEngine], Mapping[str, Any]] = lambda _: {}

    async def run(self, first: Generation) -> None:
        """Serve.

        Raises:
            SitsError: the fleet cannot be served.

        """
        loop, stop = asyncio.get_running_loop(), asyncio.Event()
        self._keeper = Link(
            self.post.keeper,
            {
                "state": self._observe,
                "adapters": self._hear_adapters,
                "profile": self._order_profile,
            },
            first=self.world.nonce() >> 16,
        )
        self._profiler = worker_profiler(self.world, self._keeper)
        supervisor = Link(
            self.post.supervisor,
            {
                "generation": self._swap,
                "keeper-gone": lambda _: self._keeper.drop_questions("the keeper died"),
            },
            ended=stop.set,
        )
        self._supervisor = supervisor
        self._outbox = outbox = Outbox(self._keeper, self.world, self._tell_vitals)
        if self._log is not None:
            self._log.keep = lambda row: outbox.newest.add("logs", row)
        if first.emulated:
            from sits.app.up import emulated  # noqa: PLC0415  # numpy and a compiled kernel

            self._pretence = emulated.prepare(self.world, self._outbox)
        pages: Pages = {b"/board/shift": self._board, b"/board/shift.json": self._board_state}
        self._server = server = Server(self._gateway(first, None), first.fleet, self._page, pages)

        def told() -> None:
            if stop.is_set():
                server.cancel_all()
            stop.set()

        loop.add_signal_handler(signal.SIGTERM, told)
        await server.start(self.post.listeners)
        watch = loop.create_task(emulated.watch(server, self._outbox)) if first.emulated else None
        self._outbox.start()
        self._pauses.begin()
        self._profiler.adopt(first.fleet.telemetry.profile)
        supervisor.send("ready")
        try:
            await stop.wait()
        finally:
            await server.drain()
            if watch is not None:
                watch.cancel()
            self._profiler.close()
            if self._attempts is not None:
                self._attempts.close()
            await self._outbox.stop()

    def _gateway(self, new: Generation, before: Gateway | None) -> Gateway:
        run = self._outbox.run(new.run_id)
        gateway = Gateway(
            self.world,
            new.fleet,
            self._engines(new.fleet, before),
            run.recorder,
            generation=new.name,
            before=before,
            place=Place(self.post.shared, self.post.index, new.slots),
            record=run.add,
            tell_adapters=functools.partial(self._keeper.send, "adapters"),
            ask=self._keeper.ask,
            tell_attempt=self._attempts,
        )
        self._runs[gateway] = new.run_id
        return gateway

    def _engines(self, fleet: Fleet, before: Gateway | None) -> dict[str, Engine]:
        """An engine for each of the fleet's: the one that is there where it is configured the same, or a new one."""
        old = {} if before is None else {engine.name: engine for engine in before.fleet.engines}
        same = (
            before is not None and before.fleet.gateway.first_byte_timeout == fleet.gateway.first_byte_timeout
        )
        return {
            engine.name: before.engines[engine.name]
            if before is not None and same and old.get(engine.name) == engine
            else build_engine(fleet, engine, self.world, **self._pretence(engine))
            for engine in fleet.engines
        }

    def _swap(self, packed: bytes) -> None:
        """Serve the next generation from the next request on, or say why not and go on as before."""
        new = unpack(packed)
        try:
            self._server.swap(self._gateway(new, self._server.gateway))
        except SitsError as error:
            self._supervisor.send("refused", (new.number, str(error)))
        else:
            self._profiler.adopt(new.fleet.telemetry.profile)
            self._supervisor.send("serving", new.number)

    def _observe(self, seen: Sequence[Any]) -> None:
        """An engine's state, as the keeper scraped it."""
        name, now_ns, running, waiting, kv_usage, capacity_tokens = seen
        places = self._server.gateway.places
        if name in places.by_id:
            places.observe(
                name,
                running=running,
                waiting=waiting,
                kv_usage=kv_usage,
                now_ns=now_ns,
                capacity_tokens=capacity_tokens,
            )

    def _order_profile(self, body: Any) -> None:
        self._profiler.order(body)

    def _hear_adapters(self, body: Any) -> None:
        adapters = self._server.gateway.adapters
        if adapters is not None:
            adapters.hear(body)

    async def _page(self) -> bytes:
        """The metrics page of the whole gateway, with all that this worker knows by now."""
        self._outbox.flush()
        self._keeper.send("vitals", self._vitals())
        page: bytes = await self._keeper.ask("page")
        return page

    def _board(self) -> Page:
        from sits.app.shift.board import page  # noqa: PLC0415  (when somebody looks)

        return 200, b"text/html; charset=utf-8", page()

    async def _board_state(self) -> Page:
        return 200, b"application/json", await self._keeper.ask("board")

    def _tell_vitals(self) -> None:
        self._ticks += 1
        self._profiler.tick()
        self._effort.tick(self._outbox.newest.add)
        gateway = self._server.gateway
        if gateway.fleet.telemetry.signals.tcp == "auto":
            self._wires.tick(gateway.engines, self._outbox.newest.add)
        if self._ticks % VITALS_TICKS == 0 or self._server.draining:
            self._keeper.send("vitals", self._vitals())
            if self._attempts is not None:
                self._attempts.look()
            self._runs = {one: run_id for one, run_id in self._runs.items() if one in self._server.gateways}
            self._outbox.keep(set(self._runs.values()))

    def _vitals(self) -> Vitals:
        vitals = self._server.vitals()
        vitals["sits_rows_dropped_total"] = {"": self._outbox.dropped}
        self._pauses.histogram.put(vitals, "sits_gc_pause_seconds")
        return vitals
