"""Rows that were appended to a store and are in no file yet.

A batch waits as the columns it came as.  Nearly always it is the only one when its table is flushed, and goes from there into its file;
only a question, or a second batch, brings it into a table of the database first.  That saves a microsecond a row, and three
milliseconds a table each second however few its rows.

Rules: what was not written stays, whole; a text with half a character (a lone surrogate) is no UTF-8, so its row is kept with the place
marked.

Deliberately absent: files, and locks: the store has them.
"""

# ruff: noqa: S608 - only our own table and column names are put into SQL

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

from sits.telemetry.duck import StoreError, empty_table
from sits.telemetry.tables import TABLES, Columns


class Pending:
    """Those of all tables; `db` is the connection that questions are asked on, `failure` what it raises."""

    def __init__(self, db: Any, failure: type[Exception]) -> None:
        self._db = db
        self._failure = failure
        self._batches: dict[str, list[Columns]] = {table: [] for table in TABLES}
        self._rows = dict.fromkeys(TABLES, 0)
        self._entered = dict.fromkeys(TABLES, 0)
        for table in TABLES:
            self._empty(table)

    def add(self, table: str, batch: Columns) -> None:
        """Keep a batch, whose arrays are ours from here on."""
        self._batches[table].append(batch)
        self._rows[table] += _length(batch)

    def rows(self, table: str) -> int:
        """Rows that wait for one table."""
        return self._rows[table]

    def __len__(self) -> int:
        """Rows that wait for all."""
        return sum(self._rows.values())

    def entered(self, table: str) -> str:
        """The table of the database in which all of them are, for a question."""
        batches = self._batches[table]
        while batches:
            self._enter(table, batches[0])
            self._entered[table] += _length(batches.pop(0))
        return f"pending_{table}"

    def write(self, table: str, write: Callable[[str], object]) -> None:
        """Have `write` write what a select gives, which is all that waits, and forget that.

        Raises:
            StoreError: as `write` does; all of it waits on.

        """
        batches = self._batches[table]
        if len(batches) == 1 and not self._entered[table]:
            # fails for a half character, too: then once more, by way of the database
            with suppress(StoreError), self._shown(batches[0]):
                write(f"SELECT {_typed(table)} FROM batch")
                batches.clear()
        if batches or self._entered[table]:
            write(f"SELECT * FROM {self.entered(table)}")
            self._empty(table)
        self._rows[table] = 0

    def _enter(self, table: str, batch: Columns) -> None:
        try:
            self._insert(table, batch)
        except self._failure:
            self._insert(table, {name: _writable(values) for name, values in batch.items()})

    def _insert(self, table: str, batch: Columns) -> None:
        with self._shown(batch):
            self._db.execute(f"INSERT INTO pending_{table} SELECT * FROM batch")

    @contextmanager
    def _shown(self, batch: Columns) -> Iterator[None]:
        """With `batch` as a table of that name."""
        self._db.register("batch", batch)
        try:
            yield
        finally:
            self._db.unregister("batch")

    def _empty(self, table: str) -> None:
        self._db.execute(empty_table(f"pending_{table}", table))
        self._entered[table] = 0


def _length(batch: Columns) -> int:
    return len(next(iter(batch.values())))


def _typed(table: str) -> str:
    """The columns of a batch with the types that the table gives them: what an array of objects holds is guessed otherwise."""
    return ", ".join(f'CAST("{name}" AS {kind}) AS "{name}"' for name, kind in TABLES[table].items())


def _writable(values: np.ndarray) -> np.ndarray:
    """The same column, with a question mark for half a character."""
    if values.dtype != object:
        return values
    made = np.empty(len(values), dtype=object)
    made[:] = [
        value if isinstance(value, bytes) else str(value).encode("utf-8", "replace").decode()
        for value in values
    ]
    return made
