"""The front of a batching window: which windows and batch sizes buy latency, which buy engine time, and which neither.

Two things are wanted of a window: a low P99, and few engine seconds for an answer (what is left is throughput).  A cell (window, batch)
is on the front when no other is at least as good in both and better in one; differences below `SAME` are none.

In a size-bound cell the batch usually fills before the window ends, so the window's length is irrelevant there: it is
the batch size that was chosen.  A saturated cell cannot keep up with the rate at all.

Deliberately absent: what an engine second is worth; that choice is between cells of the front, and the reader's.
"""

from collections.abc import Callable, Sequence

import msgspec

from sits.predict.bulk import predict_free
from sits.predict.calls import MOST_BUSY, CallPrediction, likely_batch, predict_calls

SAME = 0.002
"""Relative difference that the prediction itself does not resolve."""


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One window and batch size; `window_ns` None is the window that waits for the engine (`free`).

    `bound`: `free`, `size`, `timeout`, or `saturated`.
    """

    window_ns: int | None
    max_batch: int
    expected: CallPrediction
    bound: str
    on_front: bool = False

    @property
    def name(self) -> str:
        """The window in words."""
        return "free" if self.window_ns is None else f"{self.window_ns / 1e6:g} ms"


def front(
    windows_ns: Sequence[int | None],
    batches: Sequence[int],
    expect: Callable[[int | None, int], CallPrediction],
) -> list[Cell]:
    """Every cell in order of windows, then batches, with those on the front marked; `expect` says what becomes of one."""
    cells = []
    for window_ns in windows_ns:
        for batch in batches:
            expected = expect(window_ns, batch)
            bound = (
                "saturated"
                if expected.busy >= MOST_BUSY and expected.p99_ns == float("inf")
                else expected.bound
            )
            cells.append(Cell(window_ns=window_ns, max_batch=batch, expected=expected, bound=bound))
    return [msgspec.structs.replace(cell, on_front=not _beaten(cell, cells)) for cell in cells]


def poisson_expectation(
    rate_per_s: float, fixed_ns: float, item_ns: float
) -> Callable[[int | None, int], CallPrediction]:
    """What `front` asks, for Poisson arrivals.

    >>> expect = poisson_expectation(200, 8e6, 1e6)
    >>> [(cell.name, cell.max_batch, cell.bound) for cell in front([None, 0, 20_000_000], [4, 16], expect) if cell.on_front]
    [('free', 16, 'free'), ('20 ms', 4, 'size'), ('20 ms', 16, 'timeout')]
    """
    known: dict[tuple[int | None, int], CallPrediction] = {}

    def expect(window_ns: int | None, max_batch: int) -> CallPrediction:
        if window_ns is None:
            return predict_free(rate_per_s, max_batch, fixed_ns, item_ns)
        case = (window_ns, likely_batch(rate_per_s, window_ns, max_batch))
        if case not in known:
            known[case] = predict_calls(rate_per_s, *case, fixed_ns, item_ns)
        return known[case]

    return expect


def _beaten(cell: Cell, cells: Sequence[Cell]) -> bool:
    mine = cell.expected
    if cell.bound == "saturated":
        return True
    return any(
        other.expected.p99_ns <= mine.p99_ns * (1 + SAME)
        and other.expected.per_engine_s >= mine.per_engine_s * (1 - SAME)
        and (
            other.expected.p99_ns < mine.p99_ns * (1 - SAME)
            or other.expected.per_engine_s > mine.per_engine_s * (1 + SAME)
        )
        for other in cells
        if other.bound != "saturated"
    )
