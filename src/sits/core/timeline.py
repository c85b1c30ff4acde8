"""A Timeline: one fixed row of int64 nanoseconds for one request.

Rules: times are monotonic nanoseconds of one clock domain (the gateway's); a cell without a time holds 0 and
exactness `MISSING`; timestamps of a request never decrease along the row.  Spans, stages, waterfalls and
latency metrics are folds over Timelines and are computed elsewhere.

Marking is the hot path (17+ marks a request), so a Timeline is two small preallocated buffers and nothing
else; `telemetry.recorder` copies them into a column store.
"""

from array import array
from typing import Final

from sits.core.breakpoints import NAMES, POINT_COUNT, Exactness

_EMPTY_AT: Final = array("q", [0] * POINT_COUNT)
_EMPTY_HOW: Final = bytes(POINT_COUNT)

MEASURED: Final = int(Exactness.MEASURED)
"""What the live path itself marks, it has measured.  (It writes the cells, as a call a mark would be a third of their cost.)"""


class Timeline:
    """The row of one request.  `at[i]` is the time of point `i` in ns, `how[i]` its `Exactness`."""

    __slots__ = ("at", "how")

    def __init__(self) -> None:
        self.at = _EMPTY_AT[:]
        self.how = bytearray(_EMPTY_HOW)

    def mark(self, point: int, now_ns: int, how: Exactness | int = Exactness.MEASURED) -> None:
        """Set point `point` (an index of `core.breakpoints`) to `now_ns`."""
        self.at[point] = now_ns
        self.how[point] = how

    def has(self, point: int) -> bool:
        """Whether point `point` was seen at all."""
        return self.how[point] != Exactness.MISSING

    def span_ns(self, start: int, end: int) -> int | None:
        """Nanoseconds from point `start` to point `end`, or None when either is missing."""
        if not (self.how[start] and self.how[end]):
            return None
        return self.at[end] - self.at[start]

    def disorder(self) -> str | None:
        """The first pair of points whose times decrease, as text; None when the row is in order."""
        last = -1
        for i in range(POINT_COUNT):
            if self.how[i]:
                if last >= 0 and self.at[i] < self.at[last]:
                    return f"{NAMES[i]} is {self.at[last] - self.at[i]} ns before {NAMES[last]}"
                last = i
        return None

    def __repr__(self) -> str:
        seen = ", ".join(f"{NAMES[i]}={self.at[i]}" for i in range(POINT_COUNT) if self.how[i])
        return f"Timeline({seen})"
