"""The keeper of runtime adapters: what is asked for, what each engine's tender knows, and what the desks are told.

There is one keeper in a gateway, however many workers it has: it alone loads and unloads, so that concurrent demand for an adapter
loads it once.

Rules:
- An adapter that is asked for and not ready stays asked for until it is, or `DEMAND_NS` after the last request for it.  One that was
  ready and was lost is wanted for that, however long its engine is away.
- Nothing is unloaded before every desk goes by a view without it and has nothing of it in flight.
- Under a new configuration, what is the same in both stays proven.

Deliberately absent: engines (gateway.adapters.tender), requests (gateway.adapters.desk), transport (gateway.adapters.service).
"""

import asyncio
from collections.abc import Callable, Mapping

from sits.core.fleet_adapters import AdapterEngine, RuntimeAdapter, RuntimeAdapters
from sits.core.ports import World
from sits.core.units import SECOND
from sits.gateway.adapters.counts import Counts, labels
from sits.gateway.adapters.files import Files
from sits.gateway.adapters.memory import Memory
from sits.gateway.adapters.proof import LoraPort
from sits.gateway.adapters.telling import view_of
from sits.gateway.adapters.tender import Tender
from sits.gateway.adapters.view import Denied, Report, View
from sits.policy.adapters import LEAVING, READY, UNKNOWN, Berth, Seat

DEMAND_NS = 30 * SECOND

Connect = Callable[[AdapterEngine], LoraPort]


class Keeper:
    """All runtime adapters of a gateway.

    Args:
        world: clock and dice.
        control: the configuration; models: of each engine it names.
        connect: makes the port to an engine.
        memory, files: what was recorded, and what lies on the disk.
        publish: is given each new view.

    """

    def __init__(
        self,
        world: World,
        control: RuntimeAdapters,
        models: Mapping[str, tuple[str, ...]],
        connect: Connect,
        *,
        memory: Memory,
        files: Files,
        publish: Callable[[View], None],
    ) -> None:
        self.world = world
        self.control = control
        self.by_name: dict[str, RuntimeAdapter] = {}
        self.counts = Counts()
        self.memory = memory
        self.files = files
        self.view = View(world.nonce())
        self._connect = connect
        self._publish = publish
        self._tenders: dict[str, Tender] = {}
        self._reports: dict[int, Report] = {}
        self._since_ns: dict[str, int] = {}
        self._until_ns: dict[str, int] = {}
        self._left: dict[tuple[str, str], int] = {}
        self._running = False
        self._stopped: list[asyncio.Task[None]] = []
        self._arrange(control, models)

    def start(self) -> None:
        """Begin to look after the engines."""
        self._running = True
        for tender in self._tenders.values():
            tender.start()
        self.changed()

    async def close(self) -> None:
        """Stop; what engines have loaded stays loaded."""
        self._running = False
        tasks = [task for tender in self._tenders.values() for task in tender.stop()]
        await asyncio.gather(*tasks, *self._stopped, return_exceptions=True)

    def reconfigure(self, control: RuntimeAdapters, models: Mapping[str, tuple[str, ...]]) -> None:
        """Go on under another configuration."""
        for tender in self._arrange(control, models):
            self._stopped += tender.stop()
        if self._running:
            for tender in self._tenders.values():
                tender.start()
        self.changed()
        self._wake_all()

    def heard(self, desk: int, report: Report) -> None:
        """Take in what a desk reports."""
        self._reports[desk] = report
        for name in report.wanted:
            self.want(name)
        for denied in report.denied:
            self._denied(denied)
        for engine in report.doubted:
            if (tender := self._tenders.get(engine)) is not None:
                tender.doubt()
        self._count_uses()

    def gone(self, desk: int) -> None:
        """A desk is no more, and nothing of it is in flight."""
        if self._reports.pop(desk, None) is not None:
            self._count_uses()

    def seats(self) -> list[Seat]:
        """Every seat, for people and boards."""
        return [seat for tender in self._tenders.values() for seat in tender.seats.values()]

    def vitals(self) -> dict[str, dict[str, float]]:
        """Counters, and which adapter is ready where."""
        gauge = {labels(seat.engine, seat.adapter, seat.reason, seat.state): 1.0 for seat in self.seats()}
        return {**self.counts.vitals(), "sits_adapter_state": gauge}

    # -- for the tenders ----------------------------------------------------------------------------------------

    def want(self, adapter: str) -> None:
        """It is asked for."""
        if adapter not in self.by_name:
            return
        now_ns = self.world.now_ns()
        self._until_ns[adapter] = now_ns + DEMAND_NS
        if self._since_ns.setdefault(adapter, now_ns) == now_ns:
            self._wake_all()

    def is_ready(self, adapter: str) -> None:
        """It is READY somewhere: what was lost of it is made up for."""
        for tender in self._tenders.values():
            if (seat := tender.seats.get(adapter)) is not None:
                seat.lost = False

    def demand(self, now_ns: int) -> Mapping[str, int]:
        """What is asked for, and since when."""
        for name in list(self._since_ns):
            ready = any(
                (seat := tender.seats.get(name)) is not None and seat.state == READY
                for tender in self._tenders.values()
            )
            if ready or name not in self.by_name or self._until_ns[name] <= now_ns:
                del self._since_ns[name], self._until_ns[name]
        return self._since_ns

    def others(self) -> tuple[list[Berth], Mapping[str, Mapping[str, Seat]]]:
        """All engines, and all seats by engine."""
        tenders = self._tenders.values()
        return [t.berth for t in tenders], {t.berth.engine: t.seats for t in tenders}

    def has_left(self, seat: Seat) -> bool:
        """Whether every desk goes by a view in which this LEAVING seat is not ready."""
        since = self._left.get((seat.engine, seat.adapter), self.view.generation + 1)
        return all(
            report.life == self.view.life and report.generation >= since for report in self._reports.values()
        )

    def changed(self) -> None:
        """Publish what is new, if anything is."""
        unknown = {t.berth.engine: t.why_unknown for t in self._tenders.values() if not t.berth.known}
        seats = self.others()[1]
        view = view_of(seats, self.by_name, unknown, self.view)
        if view is self.view:
            return
        self.view = view
        leaving = {(engine, name) for engine, names in view.leaving.items() for name in names}
        self._left = {key: self._left.get(key, view.generation) for key in leaving}
        self._publish(view)
        self._wake_all()

    # -- inside -------------------------------------------------------------------------------------------------

    def _arrange(self, control: RuntimeAdapters, models: Mapping[str, tuple[str, ...]]) -> list[Tender]:
        """Make tenders and seats for a configuration; returns the tenders that are no longer needed."""
        before, old = self.control, self._tenders
        entries = {entry.engine: entry for entry in before.engines}
        known = self.by_name if before.probe == control.probe else {}
        self.control = control
        self.by_name = {adapter.name: adapter for adapter in control.adapters}
        self._tenders = {}
        for entry in control.engines:
            name = entry.engine
            tender = old.get(name)
            if tender is None or entries.get(name) != entry or tender.berth.models != models[name]:
                berth = Berth(engine=name, models=models[name], slots=entry.slots)
                tender = Tender(self, berth, self._connect(entry))
            self._tenders[name] = tender
            self._seat(tender, known)
        return [tender for name, tender in old.items() if self._tenders.get(name) is not tender]

    def _seat(self, tender: Tender, known: Mapping[str, RuntimeAdapter]) -> None:
        """Give a tender the seats of the configuration; what is not as it was must be proven again."""
        seats, engine = {}, tender.berth.engine
        for adapter in self.control.adapters:
            if adapter.model in tender.berth.models:
                seat = tender.seats.get(adapter.name)
                if seat is None:
                    seat = Seat(engine=engine, adapter=adapter.name, since_ns=self.world.now_ns())
                elif known.get(adapter.name) != adapter:
                    seat.lost = seat.lost or seat.state == READY
                    seat.failures = seat.retry_ns = 0
                    tender.move(seat, UNKNOWN, "starting")
                seats[adapter.name] = seat
        tender.seats = seats

    def _denied(self, denied: Denied) -> None:
        """A request found that an engine has not what it is READY for: nothing is known of the seat until a list tells."""
        tender = self._tenders.get(denied.engine)
        seat = tender.seats.get(denied.adapter) if tender is not None else None
        if tender is None or seat is None or seat.state not in (READY, LEAVING):
            return
        seat.lost = seat.lost or seat.state == READY
        tender.move(seat, UNKNOWN, denied.reason, denied.detail)
        self.changed()
        tender.wake()

    def _count_uses(self) -> None:
        """Add up what the desks have in flight, and tell tenders that may wait for the end of it."""
        for seat in self.seats():
            seat.inflight = 0
        for report in self._reports.values():
            for use in report.uses:
                tender = self._tenders.get(use.engine)
                used = tender.seats.get(use.adapter) if tender is not None else None
                if used is not None:
                    used.inflight += use.inflight
                    used.used_ns = max(used.used_ns, use.used_ns)
        if self._since_ns or any(seat.state == LEAVING for seat in self.seats()):
            self._wake_all()

    def _wake_all(self) -> None:
        for tender in self._tenders.values():
            tender.wake()
