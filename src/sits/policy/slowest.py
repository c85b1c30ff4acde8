"""The slowest hundredth of each group, as it runs: a decayed histogram of logarithmic buckets a group.

```
bucket(t) = floor(64 log2(t / 1 us)),  1 us .. 1 h          bound = upper edge of the bucket that holds the P99
```
A time over the bound is among the slowest.  The edge is the upper one, so that a group whose times are all alike keeps few of them, not
all: what is over the bound is at most 1 % of what made it, and what is missed is within 1.1 % (2^(1/64)) of the P99.

Rules: a group that was seen fewer than `FEW` times has no bound yet (0: everything is over it); counts are halved when a group has
`MANY`, so that the bound is that of the last ten to twenty thousand requests, however many a second those are.

Deliberately absent: a clock, and quantiles for people to read (the store's sketches are for that).
"""

import numpy as np
import numpy.typing as npt

Longs = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

OCTAVE = 64
BUCKETS = 32 * OCTAVE
LOW_NS = 1_000
QUANTILE = 0.99
FEW, MANY = 100, 20_000


class Slowest:
    """The bounds of up to `groups` groups, by number."""

    def __init__(self, groups: int) -> None:
        self._counts = np.zeros((0, BUCKETS), dtype=np.int64)
        self._groups = groups
        self.bounds_ns: Longs = np.zeros(groups, dtype=np.int64)

    def over(self, times_ns: Longs, group: Longs) -> Bools:
        """Which times are among the slowest of their group, judged by what was added before; a time of -1 is none."""
        found: Bools = times_ns > self.bounds_ns[group]
        return found & (times_ns >= 0)

    def add(self, times_ns: Longs, group: Longs) -> None:
        """Learn from more times; those of -1 are none."""
        seen = times_ns >= 0
        if not seen.all():
            times_ns, group = times_ns[seen], group[seen]
        if not len(times_ns):
            return
        if len(self._counts) <= (
            last := int(group.max())
        ):  # room for the groups there are, not for all there may be
            more = np.zeros((min(self._groups, 2 * last + 4), BUCKETS), dtype=np.int64)
            more[: len(self._counts)] = self._counts
            self._counts = more
        bucket = (np.log2(np.maximum(times_ns, LOW_NS) / LOW_NS) * OCTAVE).astype(np.int64)
        flat = group * BUCKETS + np.minimum(bucket, BUCKETS - 1)
        np.add.at(self._counts.reshape(-1), flat, 1)
        for one in np.flatnonzero(np.bincount(group)).tolist():
            self._bound(one)

    def _bound(self, group: int) -> None:
        running = np.cumsum(self._counts[group])
        total = int(running[-1])
        if total >= FEW:
            holds = int(np.searchsorted(running, QUANTILE * total))
            self.bounds_ns[group] = int(LOW_NS * 2 ** ((holds + 1) / OCTAVE))
        if total >= MANY:
            self._counts[group] //= 2
