"""All lines of one process: which window is the current one, what to ask the authority, and what it answered.

Rules: a line lives as long as its window, so its totals go on growing; one that holds nothing and has nothing to tell is only
parked, and costs nothing a report; when its window is over it is forgotten.  The next window's lease is asked for before it begins, where the present one is in use.  The
window is judged by the authority's wall clock (its answers tell it), so gateways whose clocks differ charge the same one; a lease
runs out by this process's own monotonic clock, counted from before it was asked for.

Deliberately absent: requests (gateway.ledger.book), sending and waiting (gateway.ledger.client).
"""

from collections.abc import Sequence
from itertools import islice

from sits.core.caller import Caller
from sits.core.units import SECOND
from sits.gateway.ledger.line import Line, Slot, Slots
from sits.gateway.ledger.messages import LINES_MAX, LeaseAsk, LeaseGrant
from sits.policy.lease import FORGET_NS, AskLine
from sits.policy.quota import Meter, account

SWEPT, SWEPT_SHARE = 256, 64
"""Of the parked lines so many, or such a part of them if that is more, are looked at each report: are they over?"""

BALANCES_MAX = 65_536
"""Lines one process keeps; what needs another one then is refused."""

AHEAD_NS = 2 * SECOND
"""How long before a window begins its lease is asked for, at most a quarter of the window."""


class Lines:
    """The lines of the process named `holder`, which is unique to one life of it.

    Attributes:
        offset_ns: the authority's wall clock minus this process's monotonic clock; at first, this process's own.
        more: the last question had no room for all there is to tell.

    """

    def __init__(self, holder: str, offset_ns: int) -> None:
        self.holder = holder
        self.offset_ns = offset_ns
        self.more = False
        self._lines: dict[tuple[str, int], Line] = {}
        self._active: dict[Line, None] = {}
        self._parked: dict[Line, None] = {}
        self._renew_ns = SECOND
        self._lives = 0
        self._closing = False

    def __len__(self) -> int:
        return len(self._lines)

    @property
    def active(self) -> int:
        """Lines that hold something, or have something to tell."""
        return len(self._active)

    def slots(self, meters: Sequence[Meter], caller: Caller, model: str) -> Slots:
        """The balances a caller's requests for `model` are charged to; made once, used for every request."""
        names = ((meter, account(meter, caller, model)) for meter in meters)
        return Slots(self, (Slot(meter, name) for meter, name in names if name))

    def current(self, slot: Slot, now_ns: int) -> Line | None:
        """The line of the window that runs, made when there is none; None when there are too many."""
        meter = slot.meter
        line = self._line(meter, slot.account, meter.window(now_ns + self.offset_ns), now_ns)
        if line is not None:
            slot.line = line
            self._activate(line)
            if line.meter is not meter:
                line.measure(meter)
        return line

    def reopen(self, line: Line) -> Line:
        """The line to charge where something is added to one that may be parked, or gone."""
        line = self._lines.setdefault((line.account, line.window), line)
        self._activate(line)
        return line

    def ask(self, now_ns: int) -> LeaseAsk | None:
        """What to tell the authority now, if anything: call again after its answer when there were many lines."""
        told: list[AskLine] = []
        for line in list(self._active):
            ends_ns = now_ns if self._closing else self._ends_ns(line)
            if line.valid_ns and now_ns - line.valid_ns > FORGET_NS // 2:
                line.begin_again(self._next_life())
            self._look_ahead(line, now_ns, ends_ns)
            if (one := line.ask(now_ns, ends_ns, self._renew_ns)) is not None:
                told.append(one)
                self._active[line] = self._active.pop(line)  # next time the others come first
                if len(told) == LINES_MAX:
                    break
            elif line.settled and not line.hungry:
                self._park(line, over=now_ns >= ends_ns)
        self.more = len(told) == LINES_MAX
        self._sweep(now_ns)
        return LeaseAsk(self.holder, now_ns, tuple(told)) if told else None

    def hear(self, grant: LeaseGrant, now_ns: int) -> list[Line]:
        """Take in an answer; the lines it told of."""
        self.offset_ns = grant.wall_ns - (grant.sent_ns + now_ns) // 2
        self._renew_ns = grant.ttl_ns // 2
        valid_ns = grant.sent_ns + grant.ttl_ns - grant.ttl_ns // 10
        found = []
        for told in grant.lines:
            line = self._lines.get((told.account, told.window))
            if line is None or line.life != told.life:
                continue
            line.hear(told, now_ns, valid_ns, self._ends_ns(line))
            found.append(line)
        return found

    def give_all_back(self) -> None:
        """Treat every window as over from now on: this process is about to end."""
        self._closing = True
        for line in self._lines.values():
            self._activate(line)

    def _activate(self, line: Line) -> None:
        self._active[line] = None
        self._parked.pop(line, None)

    def _line(self, meter: Meter, account: str, window: int, since_ns: int) -> Line | None:
        line = self._lines.get((account, window))
        if line is None and len(self._lines) < BALANCES_MAX:
            line = Line(meter, account, window, self._next_life(), since_ns)
            self._lines[account, window] = line
        return line

    def _next_life(self) -> int:
        self._lives += 1
        return self._lives

    def _ends_ns(self, line: Line) -> int:
        """The end of a line's window by this process's clock."""
        return line.meter.ends_ns(line.window) - self.offset_ns

    def _look_ahead(self, line: Line, now_ns: int, ends_ns: int) -> None:
        per_ns = line.meter.per_ns
        left_ns = ends_ns - now_ns
        if not per_ns or not 0 < left_ns <= min(AHEAD_NS, per_ns // 4) or not line.busy(now_ns):
            return
        if (line.account, line.window + 1) not in self._lines:
            ahead = self._line(line.meter, line.account, line.window + 1, ends_ns)
            if ahead is not None:
                ahead.block = line.block
                self._active[ahead] = None

    def _park(self, line: Line, *, over: bool) -> None:
        del self._active[line]
        if over:
            del self._lines[line.account, line.window]
        else:
            self._parked[line] = None

    def _sweep(self, now_ns: int) -> None:
        """Forget some of the parked lines whose windows are over; those not looked at have their turn next."""
        parked = self._parked
        for line in list(islice(parked, max(SWEPT, len(parked) // SWEPT_SHARE))):
            del parked[line]
            if now_ns >= self._ends_ns(line):
                del self._lines[line.account, line.window]
            else:
                parked[line] = None
