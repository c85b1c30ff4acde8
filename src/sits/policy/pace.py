"""What a batching window learns: the pace of arrivals, the time of a call, and how its P99 stands to the objective.

A `Pace` is told of arrivals, of answered calls and, every five seconds, of the recent P99; it gives the numbers `policy.window`
decides by.  It keeps only what its window's reaction asks for: `free` and `fixed` learn nothing from an arrival.

The time of a call of k items is taken as fixed + item * k.  Both are the least-squares line through the calls seen, the older ones
weighing less (a call a hundred calls ago weighs 0.13 of the newest), neither part below zero; calls that waited behind others
are not told.  Calls of one size do not tell the line: half of their time then counts as fixed (`FIXED_SHARE`).

Deliberately absent: a clock, and the requests themselves.
"""

from sits.core.fleet_window import Window
from sits.core.units import SECOND
from sits.policy.burst import DETECTORS, Checks
from sits.policy.window import feedback, held_until_ns, mean_gap, reacted, window_ns

CALL_SHARE = 0.02
"""Weight of the newest call in the fit."""

FIXED_SHARE = 0.5
"""Of a call's time, taken to be fixed while calls of one size only were seen."""

SPREAD = 0.05
"""Variance of the calls' sizes, relative to their mean square, below which they count as of one size."""


class CallTime:
    """The line fixed + item * k through the times of calls, ns.

    >>> time = CallTime()
    >>> for k in (1, 4, 16, 2, 8) * 40: time.took(k, 8e6 + 1e6 * k)
    >>> round(time.fixed_ns), round(time.item_ns)
    (8000000, 1000000)
    """

    def __init__(self) -> None:
        self._calls = 0
        self._k = self._kk = self._t = self._kt = 0.0
        self.fixed_ns = self.item_ns = 0.0

    def took(self, items: int, ns: float) -> None:
        """A call of `items` that waited behind no other took `ns`."""
        self._calls += 1
        share = max(CALL_SHARE, 1.0 / self._calls)
        self._k += share * (items - self._k)
        self._kk += share * (items * items - self._kk)
        self._t += share * (ns - self._t)
        self._kt += share * (items * ns - self._kt)
        spread = self._kk - self._k * self._k
        if spread > SPREAD * self._kk:
            item = max(0.0, (self._kt - self._k * self._t) / spread)
        else:
            item = (1.0 - FIXED_SHARE) * self._t / self._k
        self.fixed_ns = max(0.0, self._t - item * self._k)
        self.item_ns = (self._t - self.fixed_ns) / self._k


class Pace:
    """What one window has learnt; `objective_ns` is the latency 99 % of its requests shall stay under."""

    def __init__(self, config: Window, objective_ns: int) -> None:
        self.config = config
        self.objective_ns = config.objective or objective_ns
        self.stretch = self.scale = 1.0
        self.call = CallTime()
        adaptive = config.kind == "adaptive"
        self.learns_arrivals = adaptive and config.reaction in ("fill", "burst")
        self.takes_feedback = adaptive
        self._checks = Checks(DETECTORS[config.detector]) if adaptive and config.reaction == "burst" else None
        self._quiet = 0
        self._last_ns = -1
        self._gap_ns = 0.0

    @property
    def rate_per_s(self) -> float:
        """Arrival rate as estimated so far; 0 before the first gap, or where nothing asks for it."""
        return SECOND / self._gap_ns if self._gap_ns else 0.0

    @property
    def length_ns(self) -> int:
        """The window that opens now."""
        return window_ns(self.config, self.rate_per_s, self.stretch, self.scale)

    def arrived(self, now_ns: int) -> None:
        """A request came."""
        if self._checks is not None:
            for verdict in self._checks.arrived(now_ns) or ():
                self.stretch, self._quiet = reacted(self.config, self.stretch, self._quiet, verdict)
            return
        if self._last_ns >= 0:
            self._gap_ns = mean_gap(self._gap_ns, max(1, now_ns - self._last_ns))
        self._last_ns = now_ns

    def until_ns(self, length_ns: int, pending: int, oldest_ns: int, under_way: int, deadline_ns: int) -> int:
        """Until when a window of `length_ns` holds its `pending` requests; `deadline_ns` 0: the oldest named none."""
        due_ns = oldest_ns + self.objective_ns
        if deadline_ns and deadline_ns < due_ns:
            due_ns = deadline_ns
        return held_until_ns(
            self.config,
            length_ns,
            pending,
            oldest_ns,
            under_way,
            due_ns,
            self.call.fixed_ns,
            self.call.item_ns,
        )

    def saw_p99(self, p99_ns: float, wait_p99_ns: float) -> None:
        """The recent P99 of held requests, and that of what they spent in the window."""
        self.scale = feedback(self.config, self.scale, p99_ns, wait_p99_ns, self.objective_ns)
