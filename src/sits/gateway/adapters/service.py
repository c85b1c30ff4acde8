"""Putting desk and keeper together: in one process directly, among workers by messages.

```
one process     desk <-----------------> keeper
workers         desk --Report--> Service --> keeper       at once when it matters, and every `BEAT_S`
                desk <--Reply--- Service <-- keeper       an answer to each report, and at each new view
```
Both are whole states: a message that is lost is made up for by the next.

Rules: a new configuration's `Adapters` takes over desk and keeper of the one before it when it is started, not when it is made:
making one touches nothing.  What needs the engines is only imported where the keeper lives.

Deliberately absent: how messages travel.
"""

import asyncio
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from sits.core.fleet import Fleet, OpenAIEngine
from sits.core.ports import World
from sits.core.replica import Replica
from sits.core.request import Request
from sits.gateway.adapters.desk import Desk
from sits.gateway.adapters.view import Reply, Report, View

if TYPE_CHECKING:
    from sits.core.fleet_adapters import AdapterEngine
    from sits.gateway.adapters.keeper import Keeper
    from sits.gateway.adapters.proof import LoraPort

BEAT_S = 1.0

MEMORY = "adapters.json"
"""The file in the store that keeps what was recorded."""


class Adapters:
    """The runtime adapters as a `Gateway` has them.

    Args:
        fleet, world: the configuration and the clock.
        replicas: whose `adapters` are kept up to date; changed: called when they are others.
        tell: gives a report to the keeper's process; None when this is the only one.
        before: of the configuration before this one, in the same process.

    `desk` is for requests; `keeper` is there in one process only.

    """

    def __init__(
        self,
        fleet: Fleet,
        world: World,
        replicas: Iterable[Replica],
        *,
        changed: Callable[[], object] = bool,
        tell: Callable[[Report], object] | None = None,
        before: "Adapters | None" = None,
    ) -> None:
        self.keeper: Keeper | None = None
        self.desk = Desk(world, fleet.runtime_adapters, self._send)
        self._fleet = fleet
        self._world = world
        self._replicas = list(replicas)
        self._changed = changed
        self._tell = tell
        self._before = before
        self._beat: asyncio.TimerHandle | None = None
        self._handed_on = False
        self._renamed = {entry.engine for entry in fleet.runtime_adapters.engines if entry.api == "sglang"}
        self.signed = {
            adapter.name: b'"model":"%b"' % adapter.name.encode()
            for adapter in fleet.runtime_adapters.adapters
        }
        self.desk.bind(fleet.runtime_adapters, self._replicas, changed)

    def start(self) -> None:
        """Begin; from here on the desk is the one of the configuration before, if there was one."""
        control, before = self._fleet.runtime_adapters, self._before
        self._before = None
        if before is not None:
            self.desk, self.keeper = before.hand_on()
            self.desk.send = self._send
            self.desk.bind(control, self._replicas, self._changed)
        if self._tell is not None:
            self._beats()
        elif self.keeper is not None:
            self.keeper.reconfigure(control, models_of(self._fleet))
        else:
            self.keeper = keeper_of(
                self._fleet, self._world, Path(self._fleet.gateway.store), self._published
            )
            self.keeper.start()

    def hand_on(self) -> "tuple[Desk, Keeper | None]":
        """Leave desk and keeper to the next configuration."""
        self._handed_on = True
        if self._beat is not None:
            self._beat.cancel()
        return self.desk, self.keeper

    async def close(self) -> None:
        """Stop, unless another goes on; what engines have loaded stays loaded."""
        if self._handed_on:
            return
        if self._beat is not None:
            self._beat.cancel()
        if self.keeper is not None:
            await self.keeper.close()

    def hear(self, body: Any) -> None:
        """Take in what the keeper's process says."""
        reply = msgspec.convert(body, Reply)
        if self.desk.apply(reply.view, reply.heard):
            self._send()

    def as_asked(self, request: Request, engine: str) -> Request:
        """The request as this engine must be asked for its adapter."""
        if engine not in self._renamed or request.adapter not in self.signed:
            return request
        from sits.gateway.openai_api import with_model  # noqa: PLC0415  (one dialect in two needs it)

        name = f"{request.model}:{request.adapter}"
        return msgspec.structs.replace(request, body=with_model(request.body, name))

    def signs(self, engine: str) -> bool:
        """Whether the engine's answers carry the name of what really answered."""
        return engine not in self._renamed

    def vitals(self) -> dict[str, dict[str, float]]:
        """What is counted here."""
        mine = {"sits_adapter_refused_total": {"": float(self.desk.refused)}}
        return mine if self.keeper is None else mine | self.keeper.vitals()

    def _published(self, view: View) -> None:
        if self.desk.apply(view, self.desk.number):
            self._send()

    def _send(self) -> None:
        if self.keeper is not None:
            self.keeper.heard(0, self.desk.report())
        elif self._tell is not None:
            self._tell(self.desk.report())

    def _beats(self) -> None:
        self._send()
        self._beat = asyncio.get_running_loop().call_later(BEAT_S, self._beats)


class Service:
    """The keeper's side, for workers.  `send(worker, reply)` reaches one of them."""

    def __init__(self, fleet: Fleet, world: World, store: Path, send: Callable[[int, Reply], object]) -> None:
        self.keeper = keeper_of(fleet, world, store, self._published)
        self._send = send
        self._heard: dict[int, int] = {}

    def start(self) -> None:
        """Begin to look after the engines."""
        self.keeper.start()

    def hear(self, worker: int, body: Any) -> None:
        """Take in a worker's report, and answer it."""
        report = msgspec.convert(body, Report)
        self._heard[worker] = report.number
        self.keeper.heard(worker, report)
        self._send(worker, Reply(self.keeper.view, report.number))

    def swap(self, fleet: Fleet) -> None:
        """Go on under another configuration."""
        self.keeper.reconfigure(fleet.runtime_adapters, models_of(fleet))

    def lost(self, worker: int) -> None:
        """A worker is no more."""
        self._heard.pop(worker, None)
        self.keeper.gone(worker)

    async def close(self) -> None:
        """Stop; what engines have loaded stays loaded."""
        await self.keeper.close()

    def _published(self, view: View) -> None:
        for worker, number in self._heard.items():
            self._send(worker, Reply(view, number))


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
