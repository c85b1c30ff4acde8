"""A holder's book: what the requests of this process have reserved of its lines.

Reserving and settling are sums on slots, about half a microsecond each; the authority is asked in the background, before a
lease is empty.

Rules: `reserve` is all or nothing over the balances of a request, and idempotent by request id.  The first `settle` or
`void` of an id stands; what comes later changes nothing and says so.  A reservation nobody ends is voided after `HELD_MAX_NS`; if
its request ends after all, what it took is still counted.

Deliberately absent: waiting and sending (gateway.ledger.client); the clock is handed in.
"""

from collections.abc import Callable
from itertools import islice
from operator import attrgetter
from typing import Final

from sits.core.decision import Decision
from sits.core.fleet_quota import Outage
from sits.core.recorded import Reserved
from sits.core.units import SECOND
from sits.gateway.ledger.line import Costs, Line, Slots
from sits.gateway.ledger.lines import Lines
from sits.policy.quota import RESERVED, Room, decide

HELD_MAX_NS: Final = 3600 * SECOND
"""Longer than any request: a reservation this old was leaked."""

CLOSED_MAX: Final = 8192
"""Ended request ids remembered, twice over, so that a repetition is known; and the most expired reservations."""


Reservation = tuple[int, tuple[Line, ...], int, Costs]
"""Since when; the lines that are charged its tokens, and how many; and what it costs in others."""

_balance = attrgetter("account", "window", "left")


class Book:
    """What this process's requests have reserved.

    Args:
        lines: what this process holds.
        on_outage: what to do while the authority does not answer.

    Attributes:
        down: the authority does not answer.
        wake: called when something should be asked for at once.
        counts: `opened` without a lease in an outage, `duplicate` ids, `expired` reservations, `late` settlements of those, and
            `over`, what was used above what was reserved.

    """

    def __init__(self, lines: Lines, on_outage: Outage = "refuse") -> None:
        self.lines = lines
        self.on_outage = on_outage
        self.down = False
        self.wake: Callable[[], object] = bool
        self.counts = dict.fromkeys(("opened", "duplicate", "expired", "late", "over"), 0)
        self._open: dict[str, Reservation] = {}
        self._expired: dict[str, tuple[Line, ...]] = {}
        self._closed: dict[str, str] = {}
        self._closed_before: dict[str, str] = {}

    def __len__(self) -> int:
        """Open reservations."""
        return len(self._open)

    def reserve(
        self, request_id: str, slots: Slots, input_tokens: int, output_tokens: int, now_ns: int
    ) -> Decision:
        """Reserve what a request may take at most.

        Outcomes: those of `policy.quota.decide`; `refused_ledger` (the authority does not answer); `refused_duplicate` (this id has
        ended already).  Repeating an open reservation changes nothing.
        """
        if request_id in self._open or request_id in self._closed or request_id in self._closed_before:
            return self._again(request_id)
        if now_ns >= slots.until_ns and not slots.look(now_ns):
            return self._look_closer(request_id, slots, input_tokens, output_tokens, now_ns)
        tokens, plain = input_tokens + output_tokens, slots.plain
        others = slots.others(input_tokens, output_tokens) if slots.weighed else slots.fixed
        for line in plain:
            left = line.left - tokens
            if left < line.low and not self._runs_low(line, left, now_ns):
                _give_back((now_ns, plain, tokens, others), line)
                return self._look_closer(request_id, slots, input_tokens, output_tokens, now_ns)
            line.left = left
        for line, cost in others:
            left = line.left - cost
            if left < line.low and not self._runs_low(line, left, now_ns):
                _give_back((now_ns, plain, tokens, others), line)
                return self._look_closer(request_id, slots, input_tokens, output_tokens, now_ns)
            line.left = left
        self._open[request_id] = (now_ns, plain, tokens, others)
        return RESERVED

    def _runs_low(self, line: Line, left: int, now_ns: int) -> bool:
        """Ask for more; whether there is enough all the same."""
        if left < 0:
            return False
        line.run_low(now_ns)
        self.wake()
        return True

    def settle(self, request_id: str, input_tokens: int, output_tokens: int, cached_tokens: int = 0) -> str:
        """Charge what a request really took.  `settled`; or, changing nothing, `duplicate`, `voided_before`, `unknown`."""
        entry = self._open.pop(request_id, None)
        if entry is None:
            return self._settle_late(request_id, input_tokens, output_tokens, cached_tokens)
        _, plain, reserved, others = entry
        took = input_tokens + output_tokens
        spare = reserved - took
        for line in plain:
            line.used += took
            line.left += spare
        if spare < 0:
            self.counts["over"] -= spare * len(plain)
        for line, cost in others:
            took = line.fixed or line.meter.cost(input_tokens, output_tokens, cached_tokens)
            line.used += took
            if took != cost:
                line.left += cost - took
                self.counts["over"] += max(0, took - cost)
        closed = self._closed
        closed[request_id] = "settled"
        if len(closed) >= CLOSED_MAX:
            self._closed_before, self._closed = closed, {}
        return "settled"

    def void(self, request_id: str) -> str:
        """Give a reservation back unused.  `voided`; or, changing nothing, `duplicate`, `settled_before`, `unknown`."""
        entry = self._open.pop(request_id, None)
        if entry is None:
            before = self._ended(request_id)
            return "settled_before" if before == "settled" else "duplicate" if before else "unknown"
        _give_back(entry)
        self._close(request_id, "voided")
        return "voided"

    def held(self, request_id: str) -> Reserved:
        """What an open request has reserved and where, for the decision record."""
        entry = self._open.get(request_id)
        if entry is None:
            return ()
        _, plain, tokens, others = entry
        return [(tokens, [*map(_balance, plain)]), *[(cost, [_balance(line)]) for line, cost in others]]

    def expire(self, now_ns: int) -> int:
        """Void reservations that nobody ended; how many."""
        old = []
        for request_id, (since_ns, *_) in self._open.items():  # oldest first
            if now_ns - since_ns < HELD_MAX_NS:
                break
            old.append(request_id)
        for request_id in old:
            entry = self._open.pop(request_id)
            _give_back(entry)
            self._expired[request_id] = (*entry[1], *(line for line, _ in entry[3]))
        for request_id in list(islice(self._expired, max(0, len(self._expired) - CLOSED_MAX))):
            del self._expired[request_id]
        self.counts["expired"] += len(old)
        return len(old)

    def _ended(self, request_id: str) -> str:
        if request_id in self._expired:
            return "expired"
        return self._closed.get(request_id) or self._closed_before.get(request_id) or ""

    def _settle_late(self, request_id: str, input_tokens: int, output_tokens: int, cached_tokens: int) -> str:
        lines = self._expired.pop(request_id, None)
        if lines is None:
            before = self._ended(request_id)
            return "voided_before" if before == "voided" else "duplicate" if before else "unknown"
        for gone in lines:
            line = self.lines.reopen(gone)
            took = line.meter.cost(input_tokens, output_tokens, cached_tokens)
            line.used += took
            line.left -= took
        self.counts["late"] += 1
        self._close(request_id, "settled")
        return "settled"

    def _close(self, request_id: str, how: str) -> None:
        self._closed[request_id] = how
        if len(self._closed) >= CLOSED_MAX:
            self._closed_before, self._closed = self._closed, {}

    def _again(self, request_id: str) -> Decision:
        self.counts["duplicate"] += 1
        if request_id in self._open:
            return RESERVED
        return Decision(policy="quota", outcome="refused_duplicate")

    def _look_closer(
        self, request_id: str, slots: Slots, input_tokens: int, output_tokens: int, now_ns: int
    ) -> Decision:
        """A balance is short, its window is over, or its lease is: find out which."""
        slots.forget()
        rooms: list[Room] = []
        costs: list[tuple[Line, int]] = []
        opened = False
        for slot in slots:
            line = self.lines.current(slot, now_ns)
            if line is None:
                return _no_ledger(slot.meter.quota, "too_many_balances")
            cost = line.meter.cost(input_tokens, output_tokens)
            left = self._usable(line, now_ns)
            if self.down and cost > left:
                if self.on_outage != "open":
                    return _no_ledger(slot.meter.quota, "outage")
                left, opened = cost, True
            costs.append((line, cost))
            rooms.append(_room(line, left, now_ns))
        decision = decide(rooms, input_tokens, output_tokens, now_ns + self.lines.offset_ns)
        if decision is RESERVED:
            for line, cost in costs:
                line.left -= cost
            self._open[request_id] = (now_ns, (), 0, tuple(costs))
            self.counts["opened"] += opened
        return decision

    def _usable(self, line: Line, now_ns: int) -> int:
        spends_on = self.down and self.on_outage == "spend_lease"
        return line.left if now_ns < line.valid_ns or spends_on else min(0, line.left)


def _give_back(entry: Reservation, before: Line | None = None) -> None:
    """What was taken; of the lines before one, where that had not enough."""
    _, plain, tokens, others = entry
    for line, cost in (*((line, tokens) for line in plain), *others):
        if line is before:
            return
        line.left += cost


def _room(line: Line, left: int, now_ns: int) -> Room:
    """As long as the authority has not refused, it may have all there is."""
    free = line.free if now_ns < line.dry_ns else line.total - min(0, left)
    return Room(line.meter, left, free, line.total, line.meter.ends_ns(line.window))


def _no_ledger(quota: str, why: str) -> Decision:
    return Decision(policy="quota", outcome="refused_ledger", choice=quota, reasons={"why": why})
