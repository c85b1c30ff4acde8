"""Row logs for the tables `steps` and `signals`: append tuples, drain columns.

The same kind of ring as the recorder, for rows that are plain tuples: one producer, one consumer, neither waits, a
full log drops the new row and counts it.  `run_id` is the log's and not part of a row.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from sits.core.errors import BugError
from sits.telemetry.tables import SIGNALS, STEPS, Columns, columns_of


class RowLog:
    """A bounded log of tuples in the order of `schema` without its leading `run_id`.

    Attributes:
        dropped: rows not kept because the log was full.

    """

    def __init__(self, schema: Mapping[str, str], capacity: int, run_id: str) -> None:
        if capacity < 1:
            raise BugError(f"a log of {capacity} rows holds nothing", field="capacity", value=capacity)
        self.capacity = capacity
        self.run_id = run_id
        self.dropped = 0
        self._schema = {name: kind for name, kind in schema.items() if name != "run_id"}
        self._width = len(self._schema)
        self._rows: list[tuple[Any, ...] | None] = [None] * capacity
        self._written = 0
        self._read = 0

    def __len__(self) -> int:
        """Rows appended and not drained yet."""
        return self._written - self._read

    def append(self, row: tuple[Any, ...]) -> bool:
        """Keep one row; False when the log was full.

        Raises:
            BugError: the row's width is not the table's.

        """
        if len(row) != self._width:
            raise BugError(f"a row of {len(row)} values for the columns {', '.join(self._schema)}")
        written = self._written
        if written - self._read >= self.capacity:
            self.dropped += 1
            return False
        self._rows[written % self.capacity] = row
        self._written = written + 1
        return True

    def drain(self) -> Columns:
        """Hand out all rows as columns, in the order appended, and free them."""
        first, last = self._read, self._written
        rows: list[tuple[Any, ...]] = []
        for index in range(first, last):
            place = index % self.capacity
            row = self._rows[place]
            assert row is not None
            rows.append(row)
            self._rows[place] = None
        self._read = last
        return {"run_id": np.full(last - first, self.run_id, dtype=object), **columns_of(self._schema, rows)}


class StepLog(RowLog):
    """Engine steps; a row is `(engine, t_ns, duration_ns, running, ...)` as `tables.STEPS` without `run_id`."""

    def __init__(self, capacity: int, run_id: str) -> None:
        super().__init__(STEPS, capacity, run_id)


class SignalLog(RowLog):
    """Sampled values; a row is `(t_ns, source, name, value)`."""

    def __init__(self, capacity: int, run_id: str) -> None:
        super().__init__(SIGNALS, capacity, run_id)
