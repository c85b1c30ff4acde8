"""From recorded rows to columns of table `requests`, and the place where a keeper collects the rows of all workers.

A row is what `telemetry.recorder` keeps; a batch is the run it belongs to and a list of rows.  The wall-clock time of a row is that of
its first byte, or of its earliest point where that was not seen, computed with the offset of the two clocks now: all
processes of a machine share both clocks.

Deliberately absent: what the columns are for, and sockets.
"""

from collections import deque
from collections.abc import Callable, Sequence

import numpy as np

from sits.core.breakpoints import API_RECV, NAMES, POINT_COUNT
from sits.core.ports import World
from sits.telemetry.recorder import AT, HOW, LABELS, Row
from sits.telemetry.tables import REQUESTS, TABLES, Columns, columns_of

Batch = tuple[str, Sequence[Row]]

_LABELS = {name: REQUESTS[name] for name in LABELS}
_NEVER = np.iinfo(np.int64).max


def request_columns(batches: Sequence[Batch], world: World) -> Columns:
    """Columns of table `requests`, rows in the order of the batches."""
    rows = [row for _, part in batches for row in part]
    at = np.frombuffer(b"".join([row[AT] for row in rows]), dtype=np.int64).reshape(-1, POINT_COUNT)
    how = np.frombuffer(b"".join([row[HOW] for row in rows]), dtype=np.uint8).reshape(-1, POINT_COUNT)
    named = columns_of(_LABELS, [row[:AT] for row in rows])
    named["run_id"] = _run_ids(batches)
    named.update({name: at[:, i].copy() for i, name in enumerate(NAMES)})
    named["exactness"] = (how + ord("0")).view(f"S{POINT_COUNT}").ravel().astype(str).astype(object)
    named["wall_ns"] = _wall_ns(at, how, world)
    return {name: named[name] for name in REQUESTS}


def _wall_ns(at: np.ndarray, how: np.ndarray, world: World) -> np.ndarray:
    now_ns = world.now_ns()
    seen = np.where(how > 0, at, _NEVER).min(axis=1, initial=_NEVER)
    start = np.where(how[:, API_RECV] > 0, at[:, API_RECV], seen)
    known: np.ndarray = np.where(start == _NEVER, now_ns, start) + (world.wall_ns() - now_ns)
    return known


def plain_columns(table: str, batches: Sequence[Batch]) -> Columns:
    """Columns of a table whose rows are plain tuples, in the order of its schema without `run_id`."""
    schema = {name: kind for name, kind in TABLES[table].items() if name != "run_id"}
    named = columns_of(schema, [row for _, part in batches for row in part])
    return {"run_id": _run_ids(batches), **named}


def _run_ids(batches: Sequence[Batch]) -> np.ndarray:
    return np.array([run_id for run_id, part in batches for _ in range(len(part))], dtype=object)


class Arrivals:
    """Rows of all workers on their way to one table of the store; one thread adds, another drains.

    Attributes:
        dropped: rows not kept because more than `capacity` waited (the store cannot write).

    """

    def __init__(self, capacity: int, columns: Callable[[Sequence[Batch]], Columns]) -> None:
        self.capacity = capacity
        self.dropped = 0
        self._columns = columns
        self._batches: deque[Batch] = deque()
        self._added = 0
        self._drained = 0

    def __len__(self) -> int:
        """Rows that wait."""
        return self._added - self._drained

    def add(self, run_id: str, rows: Sequence[Row]) -> None:
        """Keep a batch, or count it as dropped."""
        if len(self) + len(rows) > self.capacity:
            self.dropped += len(rows)
        elif rows:
            self._batches.append((run_id, rows))
            self._added += len(rows)

    def drain(self) -> Columns:
        """Hand out all rows as columns, and forget them."""
        batches = [self._batches.popleft() for _ in range(len(self._batches))]
        self._drained += sum(len(rows) for _, rows in batches)
        return self._columns(batches)
