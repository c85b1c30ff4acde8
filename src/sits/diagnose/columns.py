"""The three tables diagnosis reads, as columns: `requests`, `steps` and `signals`.

A table is a `dict[str, numpy.ndarray]` of equally long arrays; strings are object arrays.  A request's 20
points are int64 monotonic nanoseconds in columns named as `core.breakpoints.NAMES`, and `exactness` holds one
digit a point.  The exactness decides whether a point was seen (a virtual clock may well start at 0); without
that column a 0 means "not seen".

A table may hold several runs laid one after the other; `run_id` tells them apart (`runs_of`), and what lies between
two of them is no time of either.

Deliberately absent: where the columns come from (a store, a simulation, a test), and any latency.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sits.core.breakpoints import NAMES, POINT_COUNT, Exactness
from sits.core.errors import CallerError

Columns = Mapping[str, np.ndarray]
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

OUTCOMES = ("completed", "failed", "cancelled", "refused")


class Points(NamedTuple):
    """Times and exactness of n requests: `at` (n, 20) int64 ns, `how` (n, 20) uint8, 0 = missing."""

    at: Ints
    how: NDArray[np.uint8]


def require(columns: Columns, names: Iterable[str], table: str) -> int:
    """Check that `names` are there and equally long; return the number of rows.

    Raises:
        CallerError: a column is missing or its length differs from the first one's.

    """
    rows = -1
    first = ""
    for name in names:
        if name not in columns:
            raise CallerError(
                f"table {table!r} has no column {name!r}",
                field=f"{table}.{name}",
                hint=f"it has {', '.join(sorted(columns)) or 'no columns at all'}",
            )
        length = len(columns[name])
        if rows < 0:
            rows, first = length, name
        elif length != rows:
            raise CallerError(
                f"table {table!r}: column {name!r} has {length} rows, {first!r} has {rows}",
                field=f"{table}.{name}",
                value=length,
                hint="all columns of a table are equally long",
            )
    return max(rows, 0)


def rows_of(columns: Columns) -> int:
    """Rows of a table; 0 for one without columns."""
    return len(next(iter(columns.values()))) if columns else 0


def runs_of(columns: Columns) -> Ints:
    """(n,) number of each row's run, counted from 0 in order of first appearance; all 0 without a `run_id`."""
    if "run_id" not in columns:
        return np.zeros(rows_of(columns), dtype=np.int64)
    names = columns["run_id"].tolist()
    index = {name: i for i, name in enumerate(dict.fromkeys(names))}
    return np.fromiter(map(index.__getitem__, names), dtype=np.int64, count=len(names))


def points(requests: Columns) -> Points:
    """The (n, 20) times and exactness of all rows.

    Raises:
        CallerError: a point's column is missing, or an `exactness` is not 20 digits 0..3.

    """
    n = require(requests, NAMES, "requests")
    at = np.empty((n, POINT_COUNT), dtype=np.int64)
    for i, name in enumerate(NAMES):
        at[:, i] = requests[name]
    if "exactness" not in requests:
        how = np.where(at != 0, int(Exactness.MEASURED), int(Exactness.MISSING)).astype(np.uint8)
        return Points(at, how)
    texts = [str(text) for text in requests["exactness"]]
    for row, text in enumerate(texts):
        if len(text) != POINT_COUNT or not set(text) <= set("0123"):
            raise CallerError(
                f"requests.exactness of row {row} is {text!r}",
                field="requests.exactness",
                value=text,
                hint=f"{POINT_COUNT} digits, each 0 (missing), 1 (sampled), 2 (derived) or 3 (measured)",
            )
    how = np.frombuffer("".join(texts).encode(), dtype=np.uint8).reshape(n, POINT_COUNT) - ord("0")
    return Points(np.where(how != 0, at, 0), how.astype(np.uint8))
