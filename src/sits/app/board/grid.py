"""A grid of histograms, steps of a window by stages, from figures per minute and from rows.

```
minutes (closed, all requests) ──┐
rows (since the last closed minute, or where minutes do not tell) ──> histograms by (step, stage) ──> quantiles by step, and over all
```
Rules: what is counted from rows counts each by its weight, so a thinned store tells the same as a whole one.  A stage of a row counts as in
the named queries: completed, both ends seen, not negative.  Both sources have the same buckets, so their sums are exact.

Deliberately absent: what the figures mean.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sits.core.breakpoints import NAMES, POINT_COUNT
from sits.telemetry.histograms import BUCKETS, buckets_of, packed, quantiles_ns, summed
from sits.telemetry.stage_queries import SPANS

LEVELS = (0.50, 0.95, 0.99)
STAGE_NAMES = tuple(name for name, _, _ in SPANS)
EXACTNESS = ("missing", "sampled", "derived", "measured")

Columns = Mapping[str, np.ndarray]


class Grid:
    """Histograms by step and stage."""

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self._parts: dict[tuple[int, str], list[bytes]] = {}

    def add(self, step: int, stage: str, histograms: Sequence[bytes]) -> None:
        """Add histograms to a cell; a step that is not of the window is left out."""
        if 0 <= step < self.steps:
            self._parts.setdefault((step, stage), []).extend(histograms)

    def add_rows(self, rows: Columns, step: np.ndarray) -> None:
        """Add requests, each in its step."""
        done = np.flatnonzero((rows["outcome"] == "completed") & (step >= 0) & (step < self.steps))
        if not len(done):
            return
        at, how = points(rows, done)
        weight = weights(rows)[done]
        for stage, start, end in SPANS:
            took = at[:, end] - at[:, start]
            fine = (how[:, start] > 0) & (how[:, end] > 0) & (took >= 0)
            cells = step[done][fine] * BUCKETS + buckets_of(took[fine])
            found, where = np.unique(cells, return_inverse=True)
            counts = np.rint(np.bincount(where, weights=weight[fine], minlength=len(found))).astype(np.int64)
            of = found // BUCKETS
            for one in np.unique(of).tolist():
                mine = of == one
                self.add(one, stage, [packed(found[mine] % BUCKETS, counts[mine])])

    def total(self, stage: str) -> np.ndarray:
        """Counts by bucket of a stage over the whole window."""
        return summed(part for (_, name), parts in self._parts.items() if name == stage for part in parts)

    def stages(self) -> list[str]:
        """Stages that have anything, in their order."""
        there = {stage for _, stage in self._parts}
        return [stage for stage in STAGE_NAMES if stage in there]

    def series(self, stage: str) -> dict[str, list[float | None]]:
        """Count and quantiles (ms) of a stage in each step; None where there is nothing."""
        found: dict[str, list[float | None]] = {
            name: [None] * self.steps for name in ("n", "p50", "p95", "p99")
        }
        for step in range(self.steps):
            parts = self._parts.get((step, stage))
            counts = summed(parts) if parts else None
            if counts is not None and (n := int(counts.sum())):
                values = [n, *(value / 1e6 for value in quantiles_ns(counts, LEVELS))]
                for name, value in zip(found, values, strict=True):
                    found[name][step] = value
        return found


def points(rows: Columns, which: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Points (n, 20) in ns and their exactness (n, 20) of some rows."""
    at = np.stack([rows[name][which] for name in NAMES], axis=1)
    told = [str(text).ljust(POINT_COUNT, "0")[:POINT_COUNT] for text in rows["exactness"][which].tolist()]
    how = np.frombuffer("".join(told).encode("ascii", "replace"), dtype=np.uint8) - ord("0")
    return at, np.minimum(how.reshape(-1, POINT_COUNT), 3)


def weights(rows: Columns) -> np.ndarray:
    """How many requests each row stands for."""
    weight: np.ndarray = np.where(rows["weight"] > 0, rows["weight"], 1.0)
    return weight


def over_ns(rows: Columns) -> np.ndarray:
    """When each request was over, by the wall clock: minutes count it there."""
    last = np.maximum.reduce([rows[name] for name in NAMES])
    began = rows["api_recv"]
    return rows["wall_ns"] + np.where((began > 0) & (last > began), last - began, 0)


def exactness(rows: Columns) -> dict[str, dict[str, Any]]:
    """How the times of each stage came to be: shares by kind among completed rows that have it, and the least exact kind of a tenth or more."""
    done = np.flatnonzero(rows["outcome"] == "completed")
    if not len(done):
        return {}
    _, how = points(rows, done)
    found = {}
    for stage, start, end in SPANS:
        least = np.minimum(how[:, start], how[:, end])
        counts = np.bincount(least, minlength=4)
        seen = int(counts[1:].sum())
        shares = {EXACTNESS[i]: float(counts[i] / seen) for i in (1, 2, 3)} if seen else {}
        told = next((kind for kind in EXACTNESS[1:] if shares.get(kind, 0.0) >= 0.1), "missing")
        found[stage] = {"kind": told, "shares": shares, "seen": float(seen / len(done))}
    return found
