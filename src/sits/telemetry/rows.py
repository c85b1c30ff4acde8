"""From recorded rows to columns of table `requests`, and the place where a keeper collects the rows of all workers.

A batch is the run its rows belong to and the rows: packed ones of `requests` (`telemetry.packing`), plain tuples of the other tables.  The
wall-clock time of a request is that of its first byte, or of its earliest point where that was not seen, computed with the offset
of the two clocks now: all processes of a machine share both clocks.

Deliberately absent: what the columns are for, and sockets.
"""

from collections import deque
from collections.abc import Callable, Sequence, Sized
from typing import Any

import numpy as np

from sits.core.breakpoints import API_RECV, NAMES, POINT_COUNT
from sits.core.ports import World
from sits.telemetry.packing import KIND, Packed
from sits.telemetry.recorder import NUMBERS, OWN_TEXTS
from sits.telemetry.tables import REQUESTS, TABLES, Columns, column, columns_of

_NEVER = np.iinfo(np.int64).max
LOOKS = 3


def request_columns(batches: Sequence[tuple[str, Packed]], world: World) -> Columns:
    """Columns of table `requests`, rows in the order of the batches."""
    parts = [part for _, part in batches]
    at = np.frombuffer(b"".join([part.at for part in parts]), dtype=np.int64).reshape(-1, POINT_COUNT)
    how = np.frombuffer(b"".join([part.how for part in parts]), dtype=np.uint8).reshape(-1, POINT_COUNT)
    named = _kind_columns(parts)
    for i, name in enumerate(OWN_TEXTS):
        named[name] = column(REQUESTS[name], [text for part in parts for text in part.texts[i]])
    begun = named["trace_id"] == ""
    named["trace_id"][begun] = named["id"][begun]
    for i, name in enumerate(NUMBERS):
        named[name] = column(REQUESTS[name], [number for part in parts for number in part.numbers[i]])
    named["run_id"] = _run_ids(batches)
    named.update({name: at[:, i].copy() for i, name in enumerate(NAMES)})
    named["exactness"] = (how + ord("0")).view(f"S{POINT_COUNT}").ravel().astype(str).astype(object)
    named["wall_ns"] = _wall_ns(at, how, world)
    named["weight"] = np.ones(len(at))
    return {name: named[name] for name in REQUESTS}


def _kind_columns(parts: Sequence[Packed]) -> Columns:
    """The columns of which there are few combinations: made for the kinds, then handed out to the rows."""
    kinds, kind = (
        columns_of({name: REQUESTS[name] for name in KIND}, [k for part in parts for k in part.kinds]),
        [],
    )
    first = 0
    for part in parts:
        kind += [first + k for k in part.kind] if first else part.kind
        first += len(part.kinds)
    which = np.array(kind, dtype=np.intp)
    return {name: values[which] for name, values in kinds.items()}


def _wall_ns(at: np.ndarray, how: np.ndarray, world: World) -> np.ndarray:
    seen = np.where(how > 0, at, _NEVER).min(axis=1, initial=_NEVER)
    start = np.where(how[:, API_RECV] > 0, at[:, API_RECV], seen)
    known: np.ndarray = np.where(start == _NEVER, world.now_ns(), start) + _offset_ns(world)
    return known


def _offset_ns(world: World) -> int:
    """How far the wall clock is ahead: read between two looks at the other one, the closest of three.

    Whoever is taken off the processor between two looks would tell a millisecond more, and others' times are held against ours.
    """
    looks = [(world.now_ns(), world.wall_ns(), world.now_ns()) for _ in range(LOOKS)]
    before_ns, wall_ns, after_ns = min(looks, key=lambda look: look[2] - look[0])
    return wall_ns - (before_ns + after_ns) // 2


def plain_columns(table: str, batches: Sequence[tuple[str, Sequence[tuple[Any, ...]]]]) -> Columns:
    """Columns of a table whose rows are plain tuples, in the order of its schema without `run_id`."""
    schema = {name: kind for name, kind in TABLES[table].items() if name != "run_id"}
    named = columns_of(schema, [row for _, part in batches for row in part])
    return {"run_id": _run_ids(batches), **named}


def _run_ids(batches: Sequence[tuple[str, Sized]]) -> np.ndarray:
    return np.array([run_id for run_id, part in batches for _ in range(len(part))], dtype=object)


class Arrivals:
    """Rows of all workers on their way to one table of the store; one thread adds, another drains.

    Attributes:
        dropped: rows not kept because more than `capacity` waited (the store cannot write).

    """

    def __init__(self, capacity: int, columns: Callable[[Sequence[tuple[str, Any]]], Columns]) -> None:
        self.capacity = capacity
        self.dropped = 0
        self._columns = columns
        self._batches: deque[tuple[str, Any]] = deque()
        self._added = 0
        self._drained = 0

    def __len__(self) -> int:
        """Rows that wait."""
        return self._added - self._drained

    def add(self, run_id: str, rows: Sized) -> None:
        """Keep a batch, or count it as dropped."""
        if len(self) + len(rows) > self.capacity:
            self.dropped += len(rows)
        elif len(rows):
            self._batches.append((run_id, rows))
            self._added += len(rows)

    def drain(self) -> Columns:
        """Hand out all rows as columns, and forget them."""
        batches = [self._batches.popleft() for _ in range(len(self._batches))]
        self._drained += sum(len(rows) for _, rows in batches)
        return self._columns(batches)
