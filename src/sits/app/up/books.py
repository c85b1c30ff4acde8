"""The books of a gateway: every row of every worker, on its way to the store and counted.

The heavy half of the keeper (numpy, duckdb): opened in a thread, so that questions are answered meanwhile.

Rules: one thread adds, the writer's thread drains; what the store cannot take waits, bounded, then is dropped and counted.

Deliberately absent: links, and whose rows they are.
"""

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sits.core.ports import World
from sits.gateway.metrics import Metrics, Vitals
from sits.telemetry.packing import Packed
from sits.telemetry.rows import Arrivals, plain_columns, request_columns
from sits.telemetry.store import DuckStore
from sits.telemetry.tables import TABLES
from sits.telemetry.writer import StoreWriter

WRITE_S = 2.0
"""How often the store is written.  A write costs about 15 ms a table, however few rows it has, and 3 us a row; what a keeper that
is killed loses is what came since."""

ROWS_MAX = 200_000
"""Rows of a table that wait for a store that cannot write, beyond what the store itself holds."""


class Books:
    """The store in `path`, open and written to from now on.  `see` is shown the rows of requests, once each; rows are kept for `kept_ns`.

    Raises:
        SitsError: it cannot be opened.

    """

    def __init__(
        self, path: Path, world: World, see: Callable[[Sequence[Packed]], None], kept_ns: int
    ) -> None:
        makers = {name: functools.partial(plain_columns, name) for name in TABLES}
        makers["requests"] = functools.partial(request_columns, world=world)
        self._arrivals = {name: Arrivals(ROWS_MAX, make) for name, make in makers.items()}
        self._unfolded: list[Packed] = []
        self._see = see
        self._metrics = Metrics()
        self._store = DuckStore(path, world=world)
        self._writer = StoreWriter(self._store, self._arrivals, period_s=WRITE_S, retain_ns=kept_ns)
        self._writer.start()

    def add(self, table: str, run_id: str, rows: Sequence[Any]) -> None:
        """Enter rows as they were sent."""
        if table == "requests":
            packed = Packed(*rows)
            self._unfolded.append(packed)
            self._arrivals[table].add(run_id, packed)
        else:
            self._arrivals[table].add(run_id, rows)

    def fold(self) -> None:
        """Count what has come; not batch by batch, for the more at once, the cheaper."""
        parts, self._unfolded = self._unfolded, []
        self._metrics.fold(parts)
        self._see(parts)

    @property
    def completed(self) -> int:
        """Requests answered."""
        return self._metrics.completed

    @property
    def dropped(self) -> int:
        """Rows that came and found no room."""
        return sum(arrivals.dropped for arrivals in self._arrivals.values())

    @property
    def trouble(self) -> str:
        """Why the store could not be written the last time it could not; empty when it always could."""
        return self._writer.last_error

    def vitals(self) -> Vitals:
        """What is counted here."""
        self.fold()
        return {
            **self._metrics.vitals(),
            "sits_rows_dropped_total": {"": self.dropped},
            "sits_rows_stored_total": {"": self._writer.written},
            "sits_store_failures_total": {"": self._writer.failures},
        }

    def close(self) -> None:
        """Write what is left; takes as long as that takes."""
        self.fold()
        self._writer.stop()
        self._store.close()
