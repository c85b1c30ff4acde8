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
from sits.telemetry.histograms import BUCKETS, VALUES_NS, buckets_of, summed
from sits.telemetry.stage_queries import SPANS

LEVELS = (0.50, 0.95, 0.99)
STAGE_NAMES = tuple(name for name, _, _ in SPANS)
_NUMBER = {name: i for i, name in enumerate(STAGE_NAMES)}
EXACTNESS = ("missing", "sampled", "derived", "measured")

Columns = Mapping[str, np.ndarray]


class Grid:
    """Histograms by stage and step."""

    def __init__(self, steps: int, counts: np.ndarray | None = None) -> None:
        self.steps = steps
        shape = len(STAGE_NAMES), steps, BUCKETS
        self._counts = np.zeros(shape, dtype=np.int64) if counts is None else counts

    def add(self, step: int, stage: str, histograms: Sequence[bytes]) -> None:
        """Add histograms to a cell; a step that is not of the window is left out, and a stage nobody knows."""
        if 0 <= step < self.steps and stage in _NUMBER:
            self._counts[_NUMBER[stage], step] += summed(histograms)

    def add_rows(self, rows: Columns, step: np.ndarray) -> None:
        """Add requests, each in its step."""
        done = np.flatnonzero((rows["outcome"] == "completed") & (step >= 0) & (step < self.steps))
        if not len(done):
            return
        at, how = points(rows, done)
        weight, step = weights(rows)[done], step[done]
        first = int(step.min())
        wide = int(step.max()) - first + 1
        for stage, start, end in SPANS:
            took = at[:, end] - at[:, start]
            fine = (how[:, start] > 0) & (how[:, end] > 0) & (took >= 0)
            cells = (step[fine] - first) * BUCKETS + buckets_of(took[fine])
            counts = np.rint(np.bincount(cells, weights=weight[fine], minlength=wide * BUCKETS))
            self._counts[_NUMBER[stage], first : first + wide] += counts.reshape(wide, BUCKETS).astype(
                np.int64
            )

    def total(self, stage: str) -> np.ndarray:
        """Counts by bucket of a stage over the whole window."""
        counts: np.ndarray = self._counts[_NUMBER[stage]].sum(axis=0)
        return counts

    def series(self, stage: str) -> dict[str, list[float | None]]:
        """Count and quantiles (ms) of a stage in each step; None where there is nothing."""
        there = np.flatnonzero(self.total(stage))
        if not len(there):
            return {name: [None] * self.steps for name in ("n", "p50", "p95", "p99")}
        # Only the buckets that are occupied at all: cumulated, a quantile is the first that reaches its rank.
        upto = np.cumsum(self._counts[_NUMBER[stage]][:, there], axis=1)
        n = upto[:, -1]
        found = {"n": [float(one) if one else None for one in n.tolist()]}
        for name, level in zip(("p50", "p95", "p99"), LEVELS, strict=True):
            rank = np.maximum(np.ceil(level * n - 1e-9), 1)
            which = np.minimum((upto < rank[:, np.newaxis]).sum(axis=1), len(there) - 1)
            values = (VALUES_NS[there[which]] / 1e6).tolist()
            found[name] = [value if one else None for value, one in zip(values, n.tolist(), strict=True)]
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
