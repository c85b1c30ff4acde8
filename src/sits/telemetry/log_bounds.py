"""How many lines of one kind a log gets: the first few of each minute, and how many more there were.

Rules: `BURST` lines of a kind in a window of `WINDOW_NS`, from its first line on; what comes beyond is counted, and told in one line when the window
is over.  At most `KINDS_MAX` kinds are known at a time; the rest share one.

Deliberately absent: the lines.
"""

from typing import NamedTuple

from sits.core.units import SECOND

BURST = 10
WINDOW_NS = 60 * SECOND
KINDS_MAX = 512
OTHERS = ("others",)


class Suppressed(NamedTuple):
    """`lines` of `kind` were not written since `since_ns`."""

    kind: tuple[str, ...]
    lines: int
    since_ns: int


class Bounds:
    """Decides line by line; times are those of one monotonic clock, ns."""

    def __init__(self, burst: int = BURST, window_ns: int = WINDOW_NS) -> None:
        self._burst = burst
        self._window_ns = window_ns
        self._kinds: dict[tuple[str, ...], tuple[int, int]] = {}

    def allows(self, kind: tuple[str, ...], now_ns: int) -> bool:
        """Whether a line of this kind may be written; it is counted either way."""
        if kind not in self._kinds and len(self._kinds) >= KINDS_MAX:
            kind = OTHERS
        since_ns, count = self._kinds.get(kind, (now_ns, 0))
        self._kinds[kind] = (since_ns, count + 1)
        return count < self._burst

    def over(self, now_ns: int) -> list[Suppressed]:
        """Windows that have ended by now, of which lines were suppressed; all that have ended are forgotten."""
        ended = [kind for kind, (since, _) in self._kinds.items() if now_ns - since >= self._window_ns]
        return [
            Suppressed(kind, count - self._burst, since)
            for kind in ended
            for since, count in [self._kinds.pop(kind)]
            if count > self._burst
        ]

    def rest(self) -> list[Suppressed]:
        """The same at the end, whether or not windows have ended."""
        found = [Suppressed(k, n - self._burst, since) for k, (since, n) in self._kinds.items()]
        self._kinds.clear()
        return [one for one in found if one.lines > 0]
