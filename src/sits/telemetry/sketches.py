"""Per-minute figures of all requests, made before rows are thinned: what a board of 24 hours or 90 days is drawn from.

```
packed rows --fold--> open minutes: histogram of each stage, TTFT and e2e by (model, engine, arm) --minutes--> table `minutes`
                      counts and tokens by (model, engine, arm, outcome, status)                  --outcomes-> table `outcomes_minutes`
```
A request belongs to the minute of its last point (when it was over), so a closed minute is not added to by what is still running.
A stage counts in completed requests in which both its ends were seen and its time is not negative, as in the named queries.

Rules: a minute's figures may come as several rows (it was closed early because the process ended, or rows came late): readers add them
up (`telemetry.histograms.summed`).  Open minutes are in memory: a process that is killed loses those (the rows of the requests, kept
or thinned, are written far more often).  One thread folds, another may drain.

Deliberately absent: quantiles (a reader makes them) and tenants (there are too many for every minute).
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np

from sits.core.breakpoints import API_RECV, FIRST_TOKEN, POINT_COUNT, SENT, STAGES
from sits.core.ports import World
from sits.telemetry.histograms import BUCKETS, buckets_of, packed
from sits.telemetry.packing import KIND, Packed
from sits.telemetry.recorder import NUMBERS
from sits.telemetry.tables import MINUTES, OUTCOMES_MINUTES, Columns, columns_of

MINUTE_NS = 60 * 10**9

LATE_NS = 5 * 10**9
"""A minute is closed this long after its end: rows of it may be on their way."""

SPAN_NAMES: tuple[str, ...] = (*STAGES, "ttft", "e2e")
_SPANS = len(SPAN_NAMES)
_CELLS = _SPANS * BUCKETS
_FIRST_BUCKETS = (np.arange(_SPANS) * BUCKETS)[:, np.newaxis]

FRESH_MAX = 400_000
"""Durations that are kept as they came (8 bytes each) before they are counted: counting many at once is cheaper."""

_TOKENS = ("prompt_tokens", "output_tokens", "cached_tokens")

CHUNK = 2048
"""Rows that are measured at a time: what is made of them stays in the cache of a core."""

DENSE = 16
"""Cells are counted in a table while it has no more than so many for each duration, and by sorting beyond."""

Key = tuple[int, tuple[Any, ...]]
"""A minute (its number since the epoch) and what it is told by."""

_GROUP = tuple(map(KIND.index, ("model", "engine", "arm")))
_OUTCOME = tuple(map(KIND.index, ("model", "engine", "arm", "outcome", "status")))
_COMPLETED = KIND.index("outcome")


class Taken:
    """What fills a table of the store: `drain` hands it out."""

    def __init__(self, drain: Callable[[], Columns]) -> None:
        self.drain = drain


class Sketches:
    """Figures of the minutes that are open.

    Attributes:
        ending: nothing more will come: every minute counts as closed.

    """

    def __init__(self, world: World) -> None:
        self.ending = False
        self._world = world
        self._lock = threading.Lock()
        self._outcomes: dict[Key, np.ndarray] = {}
        self._slots: dict[Key, int] = {}
        self._opened = 0
        self._fresh: list[np.ndarray] = []
        self._cells = np.empty(0, dtype=np.int64)
        self._counts = np.empty(0, dtype=np.int64)
        self._sums_ns: dict[int, np.ndarray] = {}

    def fold(self, parts: Sequence[Packed]) -> None:
        """Count rows that are over."""
        parts = [part for part in parts if len(part)]
        if not parts:
            return
        at = np.frombuffer(b"".join([part.at for part in parts]), dtype=np.int64).reshape(-1, POINT_COUNT)
        how = np.frombuffer(b"".join([part.how for part in parts]), dtype=np.uint8).reshape(-1, POINT_COUNT)
        kinds = [kind for part in parts for kind in part.kinds]
        kind, first = np.empty(len(at), dtype=np.int64), 0
        filled = 0
        for part in parts:
            kind[filled : filled + len(part)] = part.kind
            kind[filled : filled + len(part)] += first
            filled, first = filled + len(part), first + len(part.kinds)
        minute = self._minutes(at)
        with self._lock:
            self._count(kinds, kind, minute, parts)
            self._measure(kinds, kind, minute, at, how)

    def minutes(self) -> Columns:
        """Rows of table `minutes`: the minutes that are closed by now; they are forgotten here."""
        with self._lock:
            self._settle()
            keys = [key for key in self._slots if self._closed(key)]
            return columns_of(MINUTES, [row for key in keys for row in self._told(key)])

    def outcomes(self) -> Columns:
        """Rows of table `outcomes_minutes`, likewise."""
        with self._lock:
            keys = [key for key in self._outcomes if self._closed(key)]
            rows = [(key[0] * MINUTE_NS, *key[1], *map(int, self._outcomes.pop(key))) for key in keys]
        return columns_of(OUTCOMES_MINUTES, rows)

    # -- inside ------------------------------------------------------------------------------------------------

    def _closed(self, key: Key) -> bool:
        return self.ending or (key[0] + 1) * MINUTE_NS + LATE_NS <= self._world.wall_ns()

    def _minutes(self, at: np.ndarray) -> np.ndarray:
        """Minute in which each row was over; now, where nothing was seen."""
        now_ns = self._world.now_ns()
        over: np.ndarray = at.max(axis=1)
        over[over <= 0] = now_ns
        over += self._world.wall_ns() - now_ns
        over //= MINUTE_NS
        return over

    def _count(
        self, kinds: Sequence[Any], kind: np.ndarray, minute: np.ndarray, parts: Sequence[Packed]
    ) -> None:
        first = int(minute.min())
        width = int(minute.max()) - first + 1
        cell = kind * width
        cell += minute
        cell -= first
        size = len(kinds) * width
        columns = [np.bincount(cell, minlength=size)]
        for name in _TOKENS:
            i = NUMBERS.index(name)
            numbers = np.fromiter(chain.from_iterable(part.numbers[i] for part in parts), np.int64, len(kind))
            columns.append(np.bincount(cell, weights=numbers, minlength=size))
        table = np.stack(columns, axis=1)
        for index in np.flatnonzero(table[:, 0]).tolist():
            told = kinds[index // width]
            key = (first + index % width, tuple(told[i] for i in _OUTCOME))
            known = self._outcomes.get(key)
            self._outcomes[key] = table[index] if known is None else known + table[index]

    def _measure(
        self, kinds: Sequence[Any], kind: np.ndarray, minute: np.ndarray, at: np.ndarray, how: np.ndarray
    ) -> None:
        groups: dict[tuple[Any, ...], int] = {}
        of_kind = np.array(
            [
                groups.setdefault(tuple(told[i] for i in _GROUP), len(groups))
                if told[_COMPLETED] == "completed"
                else -1
                for told in kinds
            ],
            dtype=np.int64,
        )
        group = of_kind[kind]
        if not groups:
            return
        done = np.flatnonzero(group >= 0)
        first = int(minute[done].min())
        # One number for (minute, group), then the slot each of those numbers has.
        told = (minute[done] - first) * len(groups) + group[done]
        keys = list(groups)
        occupied = np.unique(told).tolist()
        slot_of = np.zeros(occupied[-1] + 1, dtype=np.int64)
        for number in occupied:
            slot_of[number] = self._slot((first + number // len(groups), keys[number % len(groups)]))
        slots = slot_of[told]
        # Slot by slot: what is beside each other is then summed as it lies.
        order = np.argsort(slots, kind="stable")
        slots, done = slots[order], done[order]
        at, how = at[done], how[done]
        for start in range(0, len(at), CHUNK):
            some = slice(start, start + CHUNK)
            self._add(slots[some], at[some], how[some])
        if sum(map(len, self._fresh)) > FRESH_MAX:
            self._settle()

    def _slot(self, key: Key) -> int:
        slot = self._slots.get(key)
        if slot is None:
            slot = self._slots[key] = self._opened
            self._opened += 1
            self._sums_ns[slot] = np.zeros(_SPANS)
        return slot

    def _add(self, slots: np.ndarray, at: np.ndarray, how: np.ndarray) -> None:
        """Add the times of completed rows, (n, 20) each, whose slots ascend."""
        at, seen = np.ascontiguousarray(at.T), np.ascontiguousarray(how.T) > 0
        took = np.empty((_SPANS, len(slots)), dtype=np.int64)
        fine = np.empty(took.shape, dtype=bool)
        np.subtract(at[1:], at[:-1], out=took[:-2])
        np.logical_and(seen[1:], seen[:-1], out=fine[:-2])
        for i, end in ((_SPANS - 2, FIRST_TOKEN), (_SPANS - 1, SENT)):
            np.subtract(at[end], at[API_RECV], out=took[i])
            np.logical_and(seen[end], seen[API_RECV], out=fine[i])
        fine &= took >= 0
        cells = buckets_of(took)
        cells += _FIRST_BUCKETS
        cells += slots * _CELLS
        if fine.all():
            self._fresh.append(cells.ravel())
        else:
            self._fresh.append(cells[fine])
            took *= fine
        those = np.unique(slots)
        edges = [*np.searchsorted(slots, those).tolist(), len(slots)]
        for i, slot in enumerate(those.tolist()):
            self._sums_ns[slot] += took[:, edges[i] : edges[i + 1]].sum(axis=1, dtype=np.float64)

    def _settle(self) -> None:
        """Add what is fresh to what is counted: occupied cells in order, and how many values each holds."""
        if not any(map(len, self._fresh)):
            return
        fresh, self._fresh = np.concatenate(self._fresh), []
        lowest = int(fresh.min())
        if int(fresh.max()) - lowest < DENSE * len(fresh):
            dense = np.bincount(fresh - lowest)
            cells = np.flatnonzero(dense)
            counts = dense[cells]
            cells += lowest
        else:
            cells, counts = np.unique(fresh, return_counts=True)
        both = np.concatenate((self._cells, cells))
        order = np.argsort(both)
        both = both[order]
        starts = np.flatnonzero(np.concatenate(([True], both[1:] != both[:-1])))
        self._counts = np.add.reduceat(np.concatenate((self._counts, counts))[order], starts)
        self._cells = both[starts]

    def _told(self, key: Key) -> Iterator[tuple[Any, ...]]:
        """Rows of a minute and group, which is forgotten."""
        slot = self._slots.pop(key)
        sums = self._sums_ns.pop(slot)
        edges = np.searchsorted(self._cells, slot * _CELLS + np.arange(_SPANS + 1) * BUCKETS)
        for i, name in enumerate(SPAN_NAMES):
            start, end = int(edges[i]), int(edges[i + 1])
            if start < end:
                counts = self._counts[start:end]
                buckets = self._cells[start:end] % BUCKETS
                yield (
                    key[0] * MINUTE_NS,
                    *key[1],
                    name,
                    int(counts.sum()),
                    float(sums[i]),
                    packed(buckets, counts),
                )
        keep = np.r_[0 : edges[0], edges[-1] : len(self._cells)]
        self._cells, self._counts = self._cells[keep], self._counts[keep]
