"""What the keeper does for the workers beside records: it lends quota, and looks after adapters that are loaded at run time.

Each service is there when the configuration has something for it, follows it from generation to generation, is told when a worker is lost,
and may be asked (an answer comes back) or told (nothing need).

Rules: a service's questions and reports are its own bytes and structs; they pass through here unread.

Deliberately absent: how they travel (app.up.link), and what they mean (gateway.ledger, gateway.adapters).
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sits.core.errors import CapacityError
from sits.core.fleet import Fleet
from sits.core.ports import World
from sits.gateway.metrics import Vitals, added

if TYPE_CHECKING:
    from sits.gateway.adapters.service import Service as AdapterService
    from sits.gateway.ledger.service import LedgerService

Tell = Callable[[int, str, Any], object]
"""Reaches one worker: its number, the kind of message, its body."""


class Services:
    """All of them."""

    def __init__(self, world: World, store: Path, tell: Tell) -> None:
        self._world = world
        self._store = store
        self._tell = tell
        self._ledger: LedgerService | None = None
        self._adapters: AdapterService | None = None
        self._tasks: set[asyncio.Task[Any]] = set()

    def adopt(self, fleet: Fleet) -> None:
        """Serve this configuration from now on.

        Raises:
            ConfigError: what a service keeps cannot be had.

        """
        if self._ledger is not None:
            self._ledger.swap(fleet)
        elif fleet.quotas:
            from sits.gateway.ledger.service import LedgerService  # noqa: PLC0415  (only where it is needed)

            self._ledger = LedgerService(fleet, self._world, self._store)
        if self._adapters is not None:
            self._adapters.swap(fleet)
        elif fleet.runtime_adapters.adapters:
            from sits.gateway.adapters.service import Service  # noqa: PLC0415

            self._adapters = Service(fleet, self._world, self._store, self._reply)
            self._adapters.start()

    async def lend(self, worker: int, body: bytes) -> bytes:
        """A worker's question to the ledger."""
        if self._ledger is None:  # a worker of the next generation asks before the keeper has it
            raise CapacityError("there is no ledger yet", code="quota_ledger_unavailable")
        return await self._ledger.answer(worker, body)

    def hear_adapters(self, worker: int, body: Any) -> None:
        """A worker's report on adapters; it is repeated, so one that comes too early is not missed."""
        if self._adapters is not None:
            self._adapters.hear(worker, body)

    def lost(self, worker: int) -> None:
        """A worker is no more; what it held is given back."""
        if self._adapters is not None:
            self._adapters.lost(worker)
        if self._ledger is not None:
            task = asyncio.get_running_loop().create_task(self._ledger.lost(worker))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def vitals(self) -> Vitals:
        """What they count."""
        ledger = {} if self._ledger is None else self._ledger.vitals()
        adapters = {} if self._adapters is None else self._adapters.keeper.vitals()
        return added((ledger, adapters))

    def adapter_loads(self) -> dict[str, tuple[int, int]]:
        """Loads of runtime adapters that have ended, and that failed, by adapter."""
        found: dict[str, tuple[int, int]] = {}
        if self._adapters is None:
            return found
        counts = self._adapters.keeper.counts
        for (_, adapter), n in counts.succeeded.items():
            found[adapter] = (found.get(adapter, (0, 0))[0] + n, found.get(adapter, (0, 0))[1])
        for (_, adapter, _), n in counts.failed.items():
            ended, failed = found.get(adapter, (0, 0))
            found[adapter] = (ended + n, failed + n)
        return found

    async def close(self) -> None:
        """Write down what is to be kept."""
        for service in (self._adapters, self._ledger):
            if service is not None:
                await service.close()

    def _reply(self, worker: int, reply: Any) -> None:
        self._tell(worker, "adapters", reply)
