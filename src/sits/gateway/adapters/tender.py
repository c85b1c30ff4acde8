"""One engine's tender: it lists what the engine has, keeps the seats true to it, and does one thing after another there.

```
list --> reconcile --> next step (policy.adapters), as a task of its own --> wait for a wake, a time, or the next list
```
Rules:
- The list goes on while something slow is done, every `watch`: that keeps the line open, and the line tells of a restart.
- Every loss of the line and every failed connection begins a new *boot*: all seats are UNKNOWN, nothing there is routable, and
  what was begun under an earlier boot counts for nothing.
- A list says nothing about a seat at which something was done since the list was asked for.

Deliberately absent: what the steps do (gateway.adapters.acts), and other engines (gateway.adapters.keeper).
"""

import asyncio
from collections.abc import Mapping
from typing import Protocol

from sits.core.fleet_adapters import RuntimeAdapter, RuntimeAdapters
from sits.core.ports import World
from sits.core.units import MS, SECOND
from sits.engine.lora import LoraError
from sits.gateway.adapters import acts
from sits.gateway.adapters.counts import Counts
from sits.gateway.adapters.files import Files, Signature
from sits.gateway.adapters.memory import Memory
from sits.gateway.adapters.proof import LoraPort
from sits.policy.adapters import (
    ABSENT,
    LEAVING,
    LOADED,
    READY,
    UNKNOWN,
    Berth,
    Seat,
    State,
    next_change_ns,
    next_step,
)

SILENT_MAX = 3
"""Lists in a row that may fail before an engine's adapters are unknown."""

SOON_NS = 50 * MS
"""The least pause between two lists, so that nothing can spin."""


class House(Protocol):
    """What tenders share: the keeper."""

    world: World
    control: RuntimeAdapters
    counts: Counts
    memory: Memory
    files: Files

    @property
    def by_name(self) -> Mapping[str, RuntimeAdapter]:
        """The configured adapters."""

    def is_ready(self, adapter: str) -> None:
        """It is READY somewhere: what was lost of it is made up for."""

    def demand(self, now_ns: int) -> Mapping[str, int]:
        """What is asked for, and since when."""

    def others(self) -> tuple[list[Berth], Mapping[str, Mapping[str, Seat]]]:
        """All engines and seats, this one's among them."""

    def has_left(self, seat: Seat) -> bool:
        """Whether no desk routes to a LEAVING seat any longer."""

    def changed(self) -> None:
        """A seat changed: tell who must know."""


class Tender:
    """Looks after one engine.  `seats` are its seats by adapter; `boot` counts its lives as far as we could see."""

    def __init__(self, house: House, berth: Berth, lora: LoraPort) -> None:
        self.house = house
        self.berth = berth
        self.lora = lora
        self.seats: dict[str, Seat] = {}
        self.boot = 1
        self.why_unknown = ("starting", "")
        self.listed: dict[str, str] = {}
        self.digests: dict[str, str] = {}
        self.signatures: dict[str, Signature] = {}
        self._touched: dict[str, int] = {}
        self._round = 0
        self._silent = 0
        self._listed_ns = 0
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._act: asyncio.Task[None] | None = None
        lora.watch(self._line_lost)

    def start(self) -> None:
        """Begin, unless begun."""
        if self._task is None:
            self._task = asyncio.ensure_future(self._rounds())
            self._task.set_name(f"adapters of {self.berth.engine}")

    def stop(self) -> list[asyncio.Task[None]]:
        """Stop; what the engine has loaded stays loaded.  Returns what is to be waited for."""
        tasks = [task for task in (self._task, self._act) if task is not None]
        for task in tasks:
            task.cancel()
        self.lora.close()
        return tasks

    def wake(self) -> None:
        """Look again, now."""
        self._wake.set()

    def doubt(self) -> None:
        """A request found the engine failing: list before anything else."""
        self._listed_ns = 0
        self.wake()

    def move(self, seat: Seat, state: State, reason: str = "", detail: str = "") -> None:
        """The one place where a seat changes its state."""
        if seat.state == READY and state != READY:
            self.house.counts.withdrawn[seat.engine, seat.adapter, reason or state] += 1
        if seat.state != state:
            seat.since_ns = self.house.world.now_ns()
        seat.state, seat.reason, seat.detail = state, reason, detail
        self._round += 1
        self._touched[seat.adapter] = self._round

    def still(self, seat: Seat, boot: int, state: State) -> bool:
        """Whether all is as it was before we waited: the same boot, the same seat, the same state."""
        return self.boot == boot and self.seats.get(seat.adapter) is seat and seat.state == state

    def rebooted(self, reason: str, detail: str = "") -> None:
        """Nothing that was known of the engine holds any longer."""
        self.boot += 1
        self.berth.known = False
        self.why_unknown = (reason, detail)
        self.listed, self.digests, self.signatures = {}, {}, {}
        for seat in self.seats.values():
            seat.lost = seat.lost or seat.state == READY
            self.move(seat, UNKNOWN, reason, detail)
        self.house.changed()
        self.wake()

    def _line_lost(self) -> None:
        self._listed_ns = 0
        self.rebooted("engine_restarted")

    async def _rounds(self) -> None:
        while True:
            self._wake.clear()
            if self._list_is_due():
                await self._list()
            if self._act is None:
                self._begin_step()
            await self._rest()

    def _list_is_due(self) -> bool:
        age_ns = self.house.world.now_ns() - self._listed_ns
        if not self._listed_ns or age_ns >= self.house.control.watch:
            return True
        return self._unsure() and age_ns >= min(SOON_NS, self.house.control.watch)

    def _unsure(self) -> bool:
        """Whether there is a seat that only a list can tell more of."""
        return self.berth.known and any(seat.state == UNKNOWN for seat in self.seats.values())

    async def _rest(self) -> None:
        """Until something is to be done."""
        house = self.house
        now_ns = house.world.now_ns()
        until_ns = self._listed_ns + house.control.watch
        if self._unsure():
            until_ns = min(until_ns, self._listed_ns + SOON_NS)
        change_ns = next_change_ns(self.seats.values(), house.control.probe.every)
        if change_ns > now_ns:
            until_ns = min(until_ns, change_ns)
        try:
            async with asyncio.timeout(max(MS, until_ns - now_ns) / SECOND):
                await self._wake.wait()
        except TimeoutError:
            return

    # -- what it has --------------------------------------------------------------------------------------------

    async def _list(self) -> None:
        boot, at = self.boot, self._round
        try:
            listed = await self.lora.listed()
        except LoraError as error:
            self._listed_ns = self.house.world.now_ns()
            self._silent += 1
            if error.reason == "engine_unreachable" or self._silent >= SILENT_MAX:
                unreachable = error.reason == "engine_unreachable"
                self.rebooted("engine_unreachable" if unreachable else "engine_silent", error.detail)
            return
        self._listed_ns = self.house.world.now_ns()
        if self.boot != boot:
            return
        self._silent = 0
        self.listed = listed
        ours = self.house.by_name
        self.berth.known = True
        self.berth.foreign = sum(name not in ours and name not in self.berth.models for name in listed)
        for seat in self.seats.values():
            if self._touched.get(seat.adapter, 0) <= at:
                self._reconcile(seat)
        await self._look_at_files()
        self.house.changed()

    def _reconcile(self, seat: Seat) -> None:
        """What a list says about a seat nothing was done at since it was asked for."""
        present = seat.adapter in self.listed
        if present and seat.state in (UNKNOWN, ABSENT):
            self.move(seat, LOADED, "", "")
        elif not present and seat.state in (READY, LEAVING):
            seat.lost = seat.lost or seat.state == READY
            self.move(seat, ABSENT, "vanished")
        elif not present and seat.state in (LOADED, UNKNOWN):
            told = seat.failures or seat.reason in ("denied", "names_base", "evicted")
            self.move(seat, ABSENT, seat.reason if told else "not_loaded", seat.detail if told else "")

    async def _look_at_files(self) -> None:
        """Withdraw what is READY and whose files are no longer those that were proven."""
        for seat in list(self.seats.values()):
            adapter = self.house.by_name.get(seat.adapter)
            if adapter is None or seat.state != READY or seat.adapter not in self.signatures:
                continue
            where = adapter.files or adapter.path
            now = await self.house.files.signature(where)
            if seat.state == READY and now != self.signatures[seat.adapter]:
                acts.against(self, seat, "files_missing" if now is None else "files_changed", where)

    # -- what to do ---------------------------------------------------------------------------------------------

    def _begin_step(self) -> None:
        """Begin the next thing to do here, if there is one."""
        step = self._next()
        if step is not None:
            self._act = asyncio.ensure_future(step)
            self._act.add_done_callback(self._acted)

    def _acted(self, act: "asyncio.Task[None]") -> None:
        self._act = None
        if not act.cancelled() and act.exception() is not None:
            act.get_loop().call_exception_handler(
                {"message": f"bug while tending {self.berth.engine}", "exception": act.exception()}
            )
        self.wake()

    def _next(self) -> "acts.Act | None":
        house = self.house
        for seat in self.seats.values():
            if seat.state == LEAVING and not seat.inflight and house.has_left(seat):
                return acts.unload(self, seat, seat.reason, seat.detail)
        now_ns = house.world.now_ns()
        berths, seats = house.others()
        decision = next_step(self.berth, berths, seats, house.control, house.demand(now_ns), now_ns)
        chosen = self.seats.get(decision.choice)
        if chosen is None:
            return None
        if decision.outcome == "load":
            return acts.load(self, chosen)
        if decision.outcome == "prove":
            return acts.prove_loaded(self, chosen)
        if decision.outcome == "prove_again":
            return acts.prove_again(self, chosen)
        if decision.outcome == "evict":
            house.counts.evicted[chosen.engine, chosen.adapter] += 1
            self.move(chosen, LEAVING, "evicted")
        elif decision.outcome == "no_room" and chosen.reason != "no_room":
            self.move(chosen, ABSENT, "no_room")
        house.changed()
        return None
