"""Intervals for quantiles, tails and shares of one run, by bootstrap.

Two questions, two ways to resample.  *What made the tail of this run?* (`Tail`, shares): requests are
resampled one by one, so the interval says how much hangs on single requests; one incident in the run stays
in.  *What is the P99 of traffic like this?* (quantiles): requests that queue behind each other are
correlated, so resampled are blocks of `block_length(n)` = ceil(n^(1/3)) consecutive arrivals (Künsch 1989,
non-overlapping blocks); one incident may then be drawn twice or never, and the interval is as wide as that.
Runs of more than `UNITS_MAX` requests are resampled in that many groups of consecutive arrivals, to bound
memory.

*Several runs* in one table are clusters: requests of one run share its weather.  Then each draw takes first the
runs, with replacement, and then as many requests (or blocks, which never reach from one run into another) as the
drawn runs hold out of theirs pooled, the two stages of `compare`.

A quantile is the `ceil(q n)`-th smallest value: a latency that was observed, never an interpolation.  The
tail is the slowest `share` of requests (1 % unless told), at least one; requests of equal latency at its edge
share the last places evenly, because which of them comes first in a table means nothing.  Percentile intervals of level 0.95,
widened to hold their own estimate.  Differences between configurations need several seeds (see `compare`).  All draws
come from the generator passed in, so the same generator gives the same interval.

Deliberately absent: any knowledge of stages or causes.
"""

import math

import numpy as np

from sits.core.errors import CallerError
from sits.core.finding import Interval
from sits.diagnose.columns import Floats, Ints

LEVEL = 0.95
TAIL_SHARE = 0.01
DRAWS = 400

UNITS_MAX = 16_384

_CHUNK = 4_000_000
"""Cells of a draw matrix worked on at a time: 32 MB of float64."""


def quantile(ascending: np.ndarray, q: float) -> float:
    """The `ceil(q n)`-th smallest of values already in ascending order.

    >>> quantile(np.array([1.0, 2.0, 3.0, 4.0]), 0.5)
    2.0

    Raises:
        CallerError: no values, or `q` outside (0, 1].

    """
    n = len(ascending)
    if n == 0 or not 0.0 < q <= 1.0:
        raise CallerError(
            f"no {q} quantile of {n} values",
            field="q",
            value=q,
            hint="give at least one value and 0 < q <= 1",
        )
    return float(ascending[rank_of(q, n) - 1])


def rank_of(q: float, n: int) -> int:
    """Rank (1 = smallest) of the `q` quantile of `n` values, immune to the rounding of `q n`."""
    return min(n, max(1, math.ceil(q * n - 1e-9)))


def interval(value: float, draws: np.ndarray) -> Interval:
    """Percentile interval of bootstrap `draws` around `value`; draws that are NaN (empty) do not count."""
    kept = draws[np.isfinite(draws)]
    if len(kept) == 0:
        return Interval(value, value, value, LEVEL)
    low, high = np.quantile(kept, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(value, min(float(low), value), max(float(high), value), LEVEL)


def block_length(n: int) -> int:
    """Length of the blocks in which correlated requests are resampled: ceil(n^(1/3))."""
    return max(1, math.ceil(n ** (1 / 3) - 1e-9))


class Blocks:
    """How often each block of `length` consecutive arrivals is drawn: `counts` (draws, blocks), `of_row` (n,).

    `length` is `block_length(n)` unless told, `n` the requests of a run; 1 resamples single requests.  `run` (n,)
    tells several runs apart, numbered from 0; None is one run.
    """

    def __init__(
        self,
        arrival_ns: np.ndarray,
        rng: np.random.Generator,
        draws: int = DRAWS,
        *,
        length: int | None = None,
        run: Ints | None = None,
    ) -> None:
        n = len(arrival_ns)
        self.of_row: Ints = np.empty(n, dtype=np.int64)
        sizes: list[int] = []
        for rows in _by_run(n, run):
            long = max(1, block_length(len(rows)) if length is None else length, math.ceil(n / UNITS_MAX))
            order = rows[np.argsort(arrival_ns[rows], kind="stable")]
            self.of_row[order] = sum(sizes) + np.arange(len(rows)) // long
            sizes.append(max(1, math.ceil(len(rows) / long)))
        self.blocks = sum(sizes)
        self.counts: Floats = (
            _drawn(self.blocks, rng, draws) if len(sizes) == 1 else _drawn_by_run(np.array(sizes), rng, draws)
        ).astype(np.float64)

    def sums(self, values: np.ndarray) -> Floats:
        """Resampled sums of `values` (n,) or (n, k): shape (draws,) or (draws, k)."""
        columns = values.reshape(len(values), -1).astype(np.float64)
        by_block = np.zeros((self.blocks, columns.shape[1]))
        np.add.at(by_block, self.of_row, columns)
        drawn = self.counts @ by_block
        return drawn[:, 0] if values.ndim == 1 else drawn

    def quantiles(self, values: np.ndarray, q: float) -> Floats:
        """Resampled `q` quantiles of `values` (n,): shape (draws,)."""
        order = np.argsort(values, kind="stable")
        ranked = values[order]
        found = np.empty(len(self.counts))
        step = max(1, _CHUNK // max(1, len(values)))
        for start in range(0, len(found), step):
            weight = np.cumsum(self.counts[start : start + step][:, self.of_row[order]], axis=1)
            wanted = np.maximum(1.0, np.ceil(q * weight[:, -1:] - 1e-9))
            found[start : start + step] = ranked[np.argmax(weight >= wanted, axis=1)]
        return found


def _by_run(n: int, run: Ints | None) -> list[Ints]:
    """The rows of each run."""
    if run is None or n == 0:
        return [np.arange(n)]
    ends = np.cumsum(np.bincount(run))
    found = np.split(np.argsort(run, kind="stable"), ends[:-1])
    return [rows for rows in found if len(rows)]


def _drawn(blocks: int, rng: np.random.Generator, draws: int) -> Ints:
    """How often each of `blocks` is drawn, when as many are drawn as there are: (draws, blocks)."""
    picked = rng.integers(0, blocks, size=(draws, blocks)) + blocks * np.arange(draws)[:, None]
    return np.bincount(picked.ravel(), minlength=draws * blocks).reshape(draws, blocks)


def _drawn_by_run(sizes: Ints, rng: np.random.Generator, draws: int) -> Ints:
    """The same in two stages: runs of `sizes` blocks, then as many blocks as these hold out of theirs pooled."""
    first = np.cumsum(sizes) - sizes
    counts = np.empty((draws, int(sizes.sum())), dtype=np.int64)
    for b in range(draws):
        runs = rng.integers(0, len(sizes), len(sizes))
        pool = np.repeat(first[runs] - (np.cumsum(sizes[runs]) - sizes[runs]), sizes[runs])
        pool += np.arange(len(pool))
        counts[b] = np.bincount(pool[rng.integers(0, len(pool), len(pool))], minlength=counts.shape[1])
    return counts


class Tail:
    """The slowest `share` of requests and its resampled versions.

    `rows` are the tail's own rows, slowest first, with their `places` (1, or less where equals share the last
    places), which add up to `size`; `total_ns` (n,) ranks the requests, `run` (n,) is that of `Blocks`.  Every statistic taken from one Tail uses
    the same draws, so differences between two of them carry no extra noise.
    """

    def __init__(
        self,
        total_ns: np.ndarray,
        arrival_ns: np.ndarray,
        rng: np.random.Generator,
        *,
        share: float = TAIL_SHARE,
        draws: int = DRAWS,
        run: Ints | None = None,
    ) -> None:
        self.n = len(total_ns)
        if self.n < 2:
            raise CallerError(
                f"a tail of {self.n} requests",
                field="requests",
                value=self.n,
                hint="at least 2 requests are needed",
            )
        self._share = share
        self.size = float(self._count(np.array([float(self.n)]))[0])
        slowest = np.lexsort((np.arange(self.n), -total_ns))
        self._ranked_ns = total_ns[slowest]
        self.rows: Ints = slowest[: self._to_group_end(int(self.size))]
        once = np.ones((1, len(self.rows)))
        self.places: Floats = self._places(once, np.array([self.size]))[0]
        self.blocks = Blocks(arrival_ns, rng, draws, length=1, run=run)
        self._drawn = self.blocks.sums(np.ones(self.n))
        self._sizes = self._count(self._drawn)
        self._near, self._weights = self._draw(slowest)

    def _count(self, sizes: Floats) -> Floats:
        return np.maximum(1.0, np.ceil(self._share * sizes - 1e-9))

    def _draw(self, slowest: Ints) -> tuple[Ints, Floats]:
        """Rows that are ever in a resampled tail, and how often each is in each: (draws, rows)."""
        width = min(self.n, int(8 * self.size) + 200)
        while True:
            width = self._to_group_end(width)
            near = slowest[:width]
            counts = self.blocks.counts[:, self.blocks.of_row[near]]
            if width == self.n or bool((counts.sum(axis=1) >= self._sizes).all()):
                return near, self._places(counts, self._sizes)
            width = min(self.n, 2 * width)

    def _to_group_end(self, width: int) -> int:
        """The least number of slowest rows that holds the first `width` and everybody as slow as the last of them."""
        return int(np.searchsorted(-self._ranked_ns, -self._ranked_ns[width - 1], side="right"))

    def _places(self, counts: Floats, sizes: Floats) -> Floats:
        """How many of the `sizes` (draws,) places each of the slowest rows takes: (draws, rows).

        `counts` (draws, rows) is how often each is there; a group of equals shares what is left for it evenly.
        """
        ns = self._ranked_ns[: counts.shape[1]]
        first = np.concatenate([[True], ns[1:] != ns[:-1]])
        of_group = np.add.reduceat(counts, np.flatnonzero(first), axis=1)
        above = np.cumsum(of_group, axis=1) - of_group
        share = np.clip(sizes[:, None] - above, 0.0, of_group) / np.maximum(of_group, 1.0)
        return counts * share[:, np.cumsum(first) - 1]

    def at(self, values: np.ndarray) -> float:
        """Mean of `values` (n,) over the tail, without an interval."""
        return float(self.places @ values[self.rows].astype(np.float64)) / self.size

    def mean(self, values: np.ndarray) -> Interval:
        """Mean of `values` (n,) over the tail."""
        drawn = self._weights @ values[self._near].astype(np.float64) / self._sizes
        return interval(self.at(values), drawn)

    def against_rest(self, values: np.ndarray) -> tuple[Floats, Floats, list[Interval]]:
        """For each column of `values` (n, k): mean over the rest, mean over the tail, and the difference."""
        columns = values.astype(np.float64)
        in_tail = self.places @ columns[self.rows]
        tail = in_tail / self.size
        rest = (columns.sum(axis=0) - in_tail) / (self.n - self.size)
        drawn_tail = self._weights @ columns[self._near]
        drawn_rest = (self.blocks.sums(columns) - drawn_tail) / (self._drawn - self._sizes)[:, None]
        drawn = drawn_tail / self._sizes[:, None] - drawn_rest
        return rest, tail, [interval(float(tail[j] - rest[j]), drawn[:, j]) for j in range(columns.shape[1])]
