"""What the keeper does for the workers beside records: it looks after adapters that are loaded at run time.

A service is there when the configuration has something for it, follows it from generation to generation, and is told when a worker is lost.

Rules: a service's questions and reports are its own bytes and structs; they pass through here unread.

Deliberately absent: how they travel (app.up.link), and what they mean (gateway.adapters).
"""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sits.core.fleet import Fleet
from sits.core.ports import World
from sits.gateway.metrics import Vitals

if TYPE_CHECKING:
    from sits.gateway.adapters.service import Service as AdapterService

Tell = Callable[[int, str, Any], object]
"""Reaches one worker: its number, the kind of message, its body."""


class Services:
    """All of them."""

    def __init__(self, world: World, store: Path, tell: Tell) -> None:
        self._world = world
        self._store = store
        self._tell = tell
        self._adapters: AdapterService | None = None

    def adopt(self, fleet: Fleet) -> None:
        """Serve this configuration from now on.

        Raises:
            ConfigError: what a service keeps cannot be had.

        """
        if self._adapters is not None:
            self._adapters.swap(fleet)
        elif fleet.runtime_adapters.adapters:
            from sits.gateway.adapters.service import Service  # noqa: PLC0415

            self._adapters = Service(fleet, self._world, self._store, self._reply)
            self._adapters.start()

    def hear_adapters(self, worker: int, body: Any) -> None:
        """A worker's report on adapters; it is repeated, so one that comes too early is not missed."""
        if self._adapters is not None:
            self._adapters.hear(worker, body)

    def lost(self, worker: int) -> None:
        """A worker is no more; what it asked for is not asked for any more."""
        if self._adapters is not None:
            self._adapters.lost(worker)

    def vitals(self) -> Vitals:
        """What they count."""
        return {} if self._adapters is None else self._adapters.keeper.vitals()

    async def close(self) -> None:
        """Write down what is to be kept."""
        if self._adapters is not None:
            await self._adapters.close()

    def _reply(self, worker: int, reply: Any) -> None:
        self._tell(worker, "adapters", reply)
