"""The controller of a shift: watches the finished requests, obeys orders, and says when the weights change.

Lives in the process where all rows arrive.  `tick` is called about once a second with the rows finished since; it returns the
fleet to be served from now on when the weights changed, else None.  It decides nothing itself: `policy.shift` does.

Rules: time counts while it is watched; a pause (a restart, a stuck machine) of more than `GAP_NS` counts as `GAP_NS`.
A book whose plan the file no longer has is closed (`superseded`).  A store that cannot be written stops no shift: it is told, and
the next tick tries again.

Deliberately absent: signals and processes; who calls makes the new generation.
"""

from collections.abc import Callable, Iterable
from pathlib import Path

from sits.app.shift.book import (
    Book,
    Event,
    Order,
    overlaid,
    plan_name,
    read_book,
    read_order,
    share_now,
    write,
)
from sits.app.shift.rows import rows_of
from sits.core.errors import ConfigError
from sits.core.fleet import Fleet
from sits.core.ports import World
from sits.core.units import SECOND
from sits.policy.shift import Plan, State, advanced, decide, observe, plan_of
from sits.policy.tally import Counts, tally
from sits.telemetry.packing import Packed

GAP_NS = 5 * SECOND

Loads = Iterable[tuple[str, int, int]]
"""Adapter, loads begun and loads failed since the last tick."""


class ShiftController:
    """Carries out the shift of one store's gateway.

    Args:
        fleet: as its file has it, without what a shift makes of it.
        store: where the book lies.
        say: told what could not be done.

    """

    def __init__(self, fleet: Fleet, store: Path, world: World, say: Callable[[str], None]) -> None:
        self._store = store
        self._world = world
        self._say = say
        self._last_ns: int | None = None
        self._told = ""
        self.book = read_book(store)
        self._obeyed = self.book.obeyed if self.book else 0
        self.adopt(fleet)

    def adopt(self, fleet: Fleet) -> None:
        """A new file is served: its plan is the one that counts."""
        self.base = fleet
        self.plan: Plan | None = plan_of(fleet)
        book = self.book
        if book is not None and book.plan != plan_name(fleet) and book.state.status == "running":
            book.state.status = "superseded"
            self._note(book, "superseded", "the file has another plan")
            self._keep(book)

    @property
    def fleet(self) -> Fleet:
        """What is to be served now."""
        return overlaid(self.base, self.book)

    def tick(self, parts: Iterable[Packed], now_ns: int, loads: Loads = ()) -> Fleet | None:
        """Watch what has finished since the last tick; the fleet to serve from now on, when that is another one."""
        before = self.fleet
        self._obey()
        book, plan = self.book, self.plan
        watched_ns = 0 if self._last_ns is None else min(GAP_NS, max(0, now_ns - self._last_ns))
        self._last_ns = now_ns
        if book is not None and plan is not None and book.state.status == "running":
            batch = tally(rows_of(parts, self.base, plan), plan.objective_ns)
            self._count_loads(batch, plan, loads)
            book.state = observe(plan, book.state, batch, watched_ns)
            book.watched_ns += watched_ns
            book.seen_wall_ns = self._world.wall_ns()
            self._judge(book, plan)
            self._keep(book)
        after = self.fleet
        return after if after != before else None

    def _judge(self, book: Book, plan: Plan) -> None:
        decision = decide(plan, book.state)
        found = decision.reasons["evidence"]
        book.draw(
            (round(book.watched_ns / SECOND, 1), book.state.step, *(round(v, 3) for v in found.values()))
        )
        book.state.why = decision.choice
        if decision.outcome == "advance":
            book.state = advanced(book.state)
            self._note(book, "advanced", decision.choice)
        elif decision.outcome == "complete":
            book.state.status = "complete"
            self._note(book, "completed", decision.choice)
        elif decision.outcome == "halt":
            taken_back = plan.shift.rollback == "auto"
            book.state.status = "rolled_back" if taken_back else "halted"
            self._note(book, "rolled back" if taken_back else "halted", decision.choice)

    def _count_loads(self, batch: dict[str, Counts], plan: Plan, loads: Loads) -> None:
        """Loads of an adapter are those of the arms that ask engines for it."""
        for adapter, begun, failed in loads:
            for arm in arms_asking(self.base, plan, adapter):
                counts = batch.setdefault(arm, Counts(buckets={}))
                counts.loads += begun
                counts.loads_failed += failed

    def _obey(self) -> None:
        try:
            order = read_order(self._store)
        except ConfigError as error:
            self._tell(str(error))
            return
        if order is None or order.number <= self._obeyed:
            return
        self._obeyed = order.number
        why = self._why_not(order)
        if why:
            self.book = self.book or Book(plan="", state=State(status="superseded"), history=[], curve=[])
            self._note(self.book, f"{order.verb} refused", why)
        elif order.verb == "start":
            self.book = Book(plan=plan_name(self.base), state=State(), history=[], curve=[])
            self._note(self.book, "started", "by order")
        else:
            assert self.book is not None
            self.book.state.status = "halted" if order.verb == "halt" else "rolled_back"
            self.book.state.why = "order"
            self._note(self.book, "halted" if order.verb == "halt" else "rolled back", "by order")
        assert self.book is not None
        self.book.obeyed = order.number
        self._keep(self.book)

    def _why_not(self, order: Order) -> str:
        """Why an order is not obeyed; empty when it is."""
        mine = self.book is not None and self.book.plan == plan_name(self.base)
        status = self.book.state.status if self.book is not None and mine else ""
        if order.verb == "start":
            if self.plan is None:
                return "the file has no shift, or its arm has that share already"
            return "it is running" if status == "running" else ""
        if order.verb == "halt":
            return "" if status == "running" else "none is running"
        return "" if status in ("running", "halted", "complete") else "there is nothing to take back"

    def _note(self, book: Book, what: str, why: str) -> None:
        if self.plan is not None and book.state.status != "superseded":
            share = share_now(self.plan, book.state)
        else:
            share = 0.0
        book.note(Event(wall_ns=self._world.wall_ns(), what=what, share=share, why=why))

    def _keep(self, book: Book) -> None:
        try:
            write(self._store, book)
        except OSError as error:
            self._tell(f"the book of the shift cannot be written: {error.strerror or error}")
        else:
            self._told = ""

    def _tell(self, text: str) -> None:
        if text != self._told:
            self._say(f"shift: {text}")
        self._told = text


def arms_asking(fleet: Fleet, plan: Plan, name: str) -> list[str]:
    """The arms of a plan that ask engines for `name`."""
    shift = plan.shift
    if shift.route:
        rule = next(rule for rule in fleet.routes if rule.name == shift.route)
        asked = {f"{rule.name}/{arm.name}": arm.to.model or rule.to.model for arm in rule.arms}
    else:
        releases = fleet.policy.releases if shift.model else (fleet.policy.release,)
        release = next(one for one in releases if one.model == shift.model)
        asked = {arm.name: arm.model or shift.model for arm in release.arms}
    return [arm for arm, model in asked.items() if model == name]
