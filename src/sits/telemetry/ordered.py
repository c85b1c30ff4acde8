"""Ascending integers on disk, and the exact r-th smallest of many such arrays together without reading them.

An array is cut into blocks of `BLOCK` values.  First and last value of each block are at hand, the rest is differences in the fewest bytes
that hold them, so a sorted column of a million durations takes one to three bytes a value and a block is read by itself.

Selection: at most `r` values are in blocks that begin below the block at which the running count of blocks, in the order of their first
values, passes `r`, so the r-th is not below that block's first value; likewise it is not above the last value at which the count in the
order of last values passes `r`.  Only blocks between the two bounds are read: two or three an array.

Values may stand for several: those of one array for as many (`weight`, a whole number), as if each were there so often.

Deliberately absent: what the numbers are.
"""

import math
from collections.abc import Sequence

import numpy as np

BLOCK = 512
_KINDS = {width: np.dtype(f"<u{width}") for width in (1, 2, 4, 8)}


class Ordered:
    """An array as it lies in `data` (bytes, or a map of a file) from `offset` on.

    Attributes:
        n: how many values.
        total: their sum.
        weight: how many values each of them stands for.

    """

    def __init__(self, data: np.ndarray, offset: int, n: int, total: int, weight: int = 1) -> None:
        self.n = n
        self.total = total
        self.weight = weight
        blocks = -(-n // BLOCK)
        self._data = data
        at = offset
        self.firsts = data[at : at + 8 * blocks].view("<i8")
        at += 8 * blocks
        self.lasts = data[at : at + 8 * blocks].view("<i8")
        at += 8 * blocks
        widths = data[at : at + blocks].astype(np.int64)
        self._widths = widths
        at += blocks + -blocks % 8
        self._ends = at + BLOCK * np.cumsum(widths)

    def sizes(self) -> np.ndarray:
        """How many values each block has."""
        made = np.full(len(self.firsts), BLOCK)
        if len(made):
            made[-1] = self.n - BLOCK * (len(made) - 1)
        return made

    def steps(self, index: int, into: np.ndarray) -> None:
        """Put the steps of a block `into` `BLOCK` places (int64): from its first value, that is 0, from each value to the next, and 0 behind the last."""
        end, width = int(self._ends[index]), int(self._widths[index])
        into[:] = self._data[end - width * BLOCK : end].view(_KINDS[width])


class InMemory:
    """An array that is not on disk, to be selected from with others: `values` int64, ascending."""

    def __init__(self, values: np.ndarray, weight: int = 1) -> None:
        self.n = len(values)
        self.total = int(values.sum())
        self.weight = weight
        self.firsts = values[::BLOCK]
        self.lasts = values[np.minimum(np.arange(BLOCK, self.n + BLOCK, BLOCK), self.n) - 1]
        self._values = values

    def sizes(self) -> np.ndarray:
        """How many values each block has."""
        return np.diff(np.minimum(np.arange(0, self.n + BLOCK, BLOCK), self.n))

    def steps(self, index: int, into: np.ndarray) -> None:
        """As `Ordered.steps`."""
        values = self._values[index * BLOCK : (index + 1) * BLOCK]
        into[:1], into[len(values) :] = 0, 0
        np.subtract(values[1:], values[:-1], out=into[1 : len(values)])


Ascending = Ordered | InMemory


def encoded(ascending: np.ndarray) -> bytes:
    """Values (int64, ascending) as `Ordered` reads them; a multiple of 8 bytes."""
    n = len(ascending)
    blocks = -(-n // BLOCK)
    if not blocks:
        return b""
    padded = np.concatenate((ascending, np.full(blocks * BLOCK - n, ascending[-1], dtype=np.int64)))
    table = padded.reshape(blocks, BLOCK)
    steps = np.diff(table, axis=1, prepend=table[:, :1])
    widest = steps.max(axis=1)
    widths = np.select([widest < 2**8, widest < 2**16, widest < 2**32], [1, 2, 4], 8)
    body = b"".join(
        [row.astype(f"<u{width}").tobytes() for row, width in zip(steps, widths.tolist(), strict=True)]
    )
    head = table[:, 0].tobytes() + table[:, -1].tobytes() + widths.astype(np.uint8).tobytes()
    return head + b"\0" * (-blocks % 8) + body


def selected(arrays: Sequence[Ascending], ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The values of these pairs of ranks (0-based, first <= second < number of all values) among all arrays together.

    A value of weight `w` has `w` ranks.
    """
    arrays = [array for array in arrays if array.n]
    firsts = np.concatenate([array.firsts for array in arrays])
    lasts = np.concatenate([array.lasts for array in arrays])
    counts = np.concatenate([array.sizes() for array in arrays])
    weights = np.repeat([array.weight for array in arrays], [len(array.firsts) for array in arrays])
    sizes = counts * weights
    begins = np.cumsum([0, *(len(array.firsts) for array in arrays)]).tolist()
    by_first, by_last = np.argsort(firsts), np.argsort(lasts)
    upto_first, upto_last = np.cumsum(sizes[by_first]), np.cumsum(sizes[by_last])
    bounds = [
        (
            firsts[by_first[upto_first.searchsorted(rank, side="right")]],
            lasts[by_last[upto_last.searchsorted(second, side="right")]],
        )
        for rank, second in ranges
    ]
    reads = [
        np.flatnonzero((firsts <= high) & (lasts >= low)) if low != high else by_first[:0]
        for low, high in bounds
    ]
    read = np.unique(np.concatenate(reads))
    decoded = _decoded(arrays, begins, read, firsts)
    found: list[tuple[int, int]] = []
    for (rank, second), (low, high), mine in zip(ranges, bounds, reads, strict=True):
        if low == high:
            found.append((int(low), int(low)))
            continue
        values = decoded[read.searchsorted(mine)]
        there = np.arange(BLOCK) < counts[mine][:, None]
        below = int(sizes[lasts < low].sum())
        stands = np.broadcast_to(weights[mine][:, None], there.shape)[there]
        found.append(_ranked(values[there], stands, rank - below, second - below))
    return found


def _decoded(
    arrays: Sequence[Ascending], begins: Sequence[int], read: np.ndarray, firsts: np.ndarray
) -> np.ndarray:
    """(k, `BLOCK`) int64: values of these blocks of all arrays together; behind the end of an array its last value is told again."""
    values = np.empty((len(read), BLOCK), dtype=np.int64)
    owner = 0
    for row, block in zip(values, read.tolist(), strict=True):
        while begins[owner + 1] <= block:
            owner += 1
        arrays[owner].steps(block - begins[owner], row)
    np.cumsum(values, axis=1, out=values)
    values += firsts[read][:, None]
    return values


def _ranked(values: np.ndarray, weights: np.ndarray, rank: int, second: int) -> tuple[int, int]:
    if weights.max() == 1:
        values.sort()
        return int(values[rank]), int(values[second])
    order = np.argsort(values)
    first, last = np.cumsum(weights[order]).searchsorted([rank, second], side="right")
    return int(values[order[first]]), int(values[order[last]])


def interpolated(arrays: Sequence[Ascending], levels: Sequence[float]) -> list[float]:
    """Quantiles as DuckDB's `quantile_cont` and numpy's default have them: between the two neighbours of `q (n - 1)`, linearly; weights are not looked at."""
    n = sum(array.n for array in arrays)
    places = [level * (n - 1) for level in levels]
    found = selected(arrays, [(int(place), min(int(place) + 1, n - 1)) for place in places])
    return [
        low + (high - low) * (place - int(place)) for place, (low, high) in zip(places, found, strict=True)
    ]


def stepped(arrays: Sequence[Ascending], levels: Sequence[float]) -> list[float]:
    """Quantiles as ClickHouse's `quantileExactWeighted` has them: the least value up to which a share `q` of the weight lies."""
    weight = sum(array.n * array.weight for array in arrays)
    ranks = [max(math.ceil(weight * level), 1) - 1 for level in levels]
    return [float(value) for value, _ in selected(arrays, [(rank, rank) for rank in ranks])]
