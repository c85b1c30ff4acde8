"""The recorder: one fixed row a finished request, in preallocated memory, at about a microsecond.

A ring of `capacity` rows between one producer (the event loop that finishes requests) and one consumer (the thread
that writes the store).  The timeline's 20 times and 20 exactness bytes are copied into flat buffers, so the caller may
reuse or drop its `Timeline`; the labels are kept as one tuple a row.  Neither side ever waits: the producer publishes a
row by moving `_written` after the row is complete, the consumer frees rows by moving `_read`.  A full ring drops the
new row and counts it in `dropped`: losing a record is better than delaying a request.

Rules: exactly one producer thread and one consumer thread.  Deliberately absent: folding, percentiles, files.
"""

from array import array
from typing import Any

import numpy as np

from sits.core.breakpoints import API_RECV, NAMES, POINT_COUNT
from sits.core.errors import BugError
from sits.core.ports import World
from sits.core.timeline import Timeline
from sits.telemetry.tables import REQUESTS, Columns, columns_of

_LABELS = {
    name: kind for name, kind in REQUESTS.items() if name not in {"run_id", "exactness", "wall_ns", *NAMES}
}


class Recorder:
    """Collects finished requests of run `run_id` until somebody drains them.

    Attributes:
        dropped: requests not recorded because the ring was full.

    """

    def __init__(self, capacity: int, world: World, run_id: str) -> None:
        if capacity < 1:
            raise BugError(f"a recorder of {capacity} rows holds nothing", field="capacity", value=capacity)
        self.capacity = capacity
        self.run_id = run_id
        self.dropped = 0
        self._world = world
        self._at = array("q", bytes(8 * POINT_COUNT * capacity))
        self._how = bytearray(POINT_COUNT * capacity)
        self._labels: list[tuple[Any, ...] | None] = [None] * capacity
        self._written = 0
        self._read = 0

    def __len__(self) -> int:
        """Rows recorded and not drained yet."""
        return self._written - self._read

    def record(
        self,
        *,
        id: str,  # noqa: A002 - the table's own column name
        tenant: str,
        model: str,
        adapter: str,
        engine: str,
        arm: str,
        outcome: str,
        status: int,
        detail: str,
        prompt_tokens: int,
        output_tokens: int,
        cached_tokens: int,
        preemptions: int,
        timeline: Timeline,
    ) -> bool:
        """Store one finished request; False when the ring was full and the row was dropped.

        `outcome` is `completed`, `failed`, `cancelled` or `refused`; `status` the HTTP status; `detail` a refusal
        or error label; token counts in tokens.
        """
        written = self._written
        if written - self._read >= self.capacity:
            self.dropped += 1
            return False
        row = written % self.capacity
        cell = row * POINT_COUNT
        end = cell + POINT_COUNT
        self._at[cell:end] = timeline.at
        self._how[cell:end] = timeline.how
        self._labels[row] = (
            id,
            tenant,
            model,
            adapter,
            engine,
            arm,
            outcome,
            status,
            detail,
            prompt_tokens,
            output_tokens,
            cached_tokens,
            preemptions,
        )
        self._written = written + 1
        return True

    def drain(self) -> Columns:
        """Hand out all complete rows as columns of table `requests`, in the order recorded, and free them."""
        first, last = self._read, self._written
        rows = np.arange(first, last) % self.capacity
        at = np.frombuffer(self._at, dtype=np.int64).reshape(-1, POINT_COUNT)[rows]
        how = np.frombuffer(self._how, dtype=np.uint8).reshape(-1, POINT_COUNT)[rows]
        labels: list[tuple[Any, ...]] = []
        for row in rows.tolist():
            label = self._labels[row]
            assert label is not None
            labels.append(label)
            self._labels[row] = None
        self._read = last
        named = columns_of(_LABELS, labels)
        named["run_id"] = np.full(last - first, self.run_id, dtype=object)
        named.update({name: at[:, i].copy() for i, name in enumerate(NAMES)})
        named["exactness"] = (how + ord("0")).view(f"S{POINT_COUNT}").ravel().astype(str).astype(object)
        named["wall_ns"] = self._wall_ns(at, how)
        return {name: named[name] for name in REQUESTS}

    def _wall_ns(self, at: np.ndarray, how: np.ndarray) -> np.ndarray:
        """Wall-clock time of each row's first byte; of its earliest point where that was not seen."""
        offset = self._world.wall_ns() - self._world.now_ns()
        seen = np.where(how > 0, at, np.iinfo(np.int64).max)
        start = np.where(
            how[:, API_RECV] > 0, at[:, API_RECV], seen.min(axis=1, initial=np.iinfo(np.int64).max)
        )
        known: np.ndarray = np.where(start == np.iinfo(np.int64).max, self._world.now_ns(), start) + offset
        return known
