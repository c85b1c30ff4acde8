"""Putting desk and keeper together: in one process directly, among workers by questions and answers.

```
one process     desk <--> keeper
workers         desk --Report--> ask("adapters") --> Service --> keeper
                desk <--Reply--- answered when the view is newer than the desk's, or after `BEAT_NS`
```
A worker always has one question open, so a new view reaches it at once; a report that cannot wait is a second question, which
ends the first.

Rules: a new configuration's `Adapters` takes over desk and keeper of the one before it when it is started, not when it is made:
making one touches nothing.  What needs the engines is only imported where the keeper lives.

Deliberately absent: how questions travel.
"""

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from sits.core.errors import SitsError
from sits.core.fleet import Fleet, OpenAIEngine
from sits.core.ports import World
from sits.core.replica import Replica
from sits.core.units import SECOND
from sits.gateway.adapters.desk import Desk
from sits.gateway.adapters.view import Reply, Report, View

if TYPE_CHECKING:
    from sits.core.fleet_adapters import AdapterEngine
    from sits.gateway.adapters.keeper import Keeper
    from sits.gateway.adapters.proof import LoraPort

KIND = "adapters"
BEAT_NS = SECOND
AWAY_S = 0.2
"""Pause before a question is repeated that nobody answered."""

MEMORY = "adapters.json"
"""The file in the store that keeps what was recorded."""

Ask = Callable[[str, bytes], Awaitable[bytes]]

_REPORT = msgspec.msgpack.Decoder(Report)
_REPLY = msgspec.msgpack.Decoder(Reply)


class Adapters:
    """The runtime adapters as a `Gateway` has them.

    Args:
        fleet, world: the configuration and the clock.
        replicas: whose `adapters` are kept up to date.
        ask: the way to the keeper's process; None when this is the only one.
        before: of the configuration before this one, in the same process.

    `desk` is for requests; `keeper` is there in one process only.

    """

    def __init__(
        self,
        fleet: Fleet,
        world: World,
        replicas: Iterable[Replica],
        *,
        ask: Ask | None = None,
        before: "Adapters | None" = None,
    ) -> None:
        self.keeper: Keeper | None = None
        self.desk = Desk(world, fleet.runtime_adapters, self._send)
        self._fleet = fleet
        self._world = world
        self._replicas = list(replicas)
        self._ask = ask
        self._before = before
        self._asking: set[asyncio.Task[None]] = set()
        self._loop: asyncio.Task[None] | None = None
        self.desk.bind(fleet.runtime_adapters, self._replicas)

    async def start(self) -> None:
        """Begin; from here on the desk is the one of the configuration before, if there was one."""
        before, self._before = self._before, None
        if before is not None:
            before.stop_asking()
            self.desk, self.keeper = before.desk, before.keeper
            self.desk.send = self._send
            self.desk.bind(self._fleet.runtime_adapters, self._replicas)
        if self._ask is not None:
            self._loop = asyncio.ensure_future(self._questions())
        elif self.keeper is not None:
            await self.keeper.reconfigure(self._fleet.runtime_adapters, models_of(self._fleet))
        else:
            self.keeper = keeper_of(
                self._fleet, self._world, Path(self._fleet.gateway.store), self._published
            )
            await self.keeper.start()

    async def close(self) -> None:
        """Stop; what engines have loaded stays loaded."""
        self.stop_asking()
        if self.keeper is not None:
            await self.keeper.close()

    def stop_asking(self) -> None:
        """Leave the keeper to another."""
        for task in (self._loop, *self._asking):
            if task is not None:
                task.cancel()

    def _published(self, view: View) -> None:
        desk = self.desk
        desk.apply(view, desk.number)
        self._send()

    def _send(self) -> None:
        if self.keeper is not None:
            self.keeper.heard(0, self.desk.report())
        elif self._loop is not None:
            task = asyncio.ensure_future(self._question())
            self._asking.add(task)
            task.add_done_callback(self._asking.discard)

    async def _questions(self) -> None:
        while True:
            await self._question()

    async def _question(self) -> None:
        assert self._ask is not None
        try:
            told = await self._ask(KIND, msgspec.msgpack.encode(self.desk.report()))
        except SitsError:
            await asyncio.sleep(AWAY_S)
            return
        reply = _REPLY.decode(told)
        self.desk.apply(reply.view, reply.heard)


class Service:
    """The keeper's side, for workers: one answer to each question."""

    def __init__(self, fleet: Fleet, world: World, store: Path) -> None:
        self.keeper = keeper_of(fleet, world, store, self._published)
        self._open: dict[int, asyncio.Event] = {}

    async def start(self) -> None:
        """Begin to look after the engines."""
        await self.keeper.start()

    async def answer(self, worker: int, body: bytes) -> bytes:
        """The answer to a worker's report: at once when there is news, else when there is, or after a beat."""
        report = _REPORT.decode(body)
        if (earlier := self._open.pop(worker, None)) is not None:
            earlier.set()
        news = self._open[worker] = asyncio.Event()
        self.keeper.heard(worker, report)
        if (self.keeper.view.life, self.keeper.view.generation) == (report.life, report.generation):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(BEAT_NS / SECOND):
                    await news.wait()
        if self._open.get(worker) is news:
            del self._open[worker]
        return msgspec.msgpack.encode(Reply(self.keeper.view, report.number))

    async def swap(self, fleet: Fleet) -> None:
        """Go on under another configuration."""
        await self.keeper.reconfigure(fleet.runtime_adapters, models_of(fleet))

    def lost(self, worker: int) -> None:
        """A worker is no more."""
        self.keeper.gone(worker)

    async def close(self) -> None:
        """Stop."""
        await self.keeper.close()

    def _published(self, _view: View) -> None:
        for news in self._open.values():
            news.set()


def models_of(fleet: Fleet) -> dict[str, tuple[str, ...]]:
    """The models of each engine that adapters are loaded into."""
    engines = {engine.name: engine for engine in fleet.engines}
    found = {}
    for entry in fleet.runtime_adapters.engines:
        engine = engines[entry.engine]
        assert isinstance(engine, OpenAIEngine)
        found[entry.engine] = engine.models
    return found


def keeper_of(fleet: Fleet, world: World, store: Path, publish: Callable[[View], None]) -> "Keeper":
    """The keeper of a fleet, with its records in the store."""
    from sits.gateway.adapters.files import Files  # noqa: PLC0415  (only where the keeper lives)
    from sits.gateway.adapters.keeper import Keeper  # noqa: PLC0415
    from sits.gateway.adapters.memory import Memory  # noqa: PLC0415

    def connect(entry: "AdapterEngine") -> "LoraPort":
        return lora_of(fleet, entry, world)

    return Keeper(
        world,
        fleet.runtime_adapters,
        models_of(fleet),
        connect,
        memory=Memory(store / MEMORY),
        files=Files(),
        publish=publish,
    )


def lora_of(fleet: Fleet, entry: "AdapterEngine", world: World) -> "LoraPort":
    """The port to one engine's adapters."""
    from sits.engine.lora import Lora  # noqa: PLC0415
    from sits.engine.openai import OpenAIEngine as Engine  # noqa: PLC0415

    control = fleet.runtime_adapters
    config = next(engine for engine in fleet.engines if engine.name == entry.engine)
    assert isinstance(config, OpenAIEngine)
    engine = Engine(
        config.name,
        config.url,
        world=world,
        api_key=os.environ.get(config.api_key_env, "") if config.api_key_env else "",
        connect_timeout=config.connect_timeout,
    )
    return Lora(engine, entry.api, load_ns=control.load_timeout, probe_ns=control.probe.timeout, world=world)
