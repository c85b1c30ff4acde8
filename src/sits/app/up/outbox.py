"""What a worker has for the store: collected on the path of requests, sent to the keeper `FLUSH_S` later, never waited for.

Rules: one `Run` for each generation, because rows carry the run they belong to; its recorder and its other tables are bounded, and so
is what the link takes; a row that finds no room is dropped and counted.  A worker that is killed loses what came since the last flush, at
most `FLUSH_S`; one that stops in peace flushes to the end.

Deliberately absent: columns and files (the keeper has them).
"""

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import Any

from sits.app.up.link import Link
from sits.core.ports import World
from sits.telemetry.packing import HIGH, LOW, pack
from sits.telemetry.recorder import Recorder

FLUSH_S = 0.1
ROWS_MAX = 16_384
"""Rows kept between two flushes; the link may hold more than that once they are packed."""

CHUNK = 160
"""Rows a message; of usual length they fit one frame."""

TEXT_MAX = 256
"""Characters kept of a text a caller made up, once a message was refused."""


class Run:
    """Rows of one generation."""

    def __init__(self, world: World, run_id: str) -> None:
        self.run_id = run_id
        self.recorder = Recorder(ROWS_MAX, world, run_id)
        self.dropped = 0
        self._tables: dict[str, deque[tuple[Any, ...]]] = {}

    def add(self, table: str, row: tuple[Any, ...]) -> None:
        """Keep a row of another table."""
        rows = self._tables.get(table)
        if rows is None:
            rows = self._tables[table] = deque()
        if len(rows) < ROWS_MAX:
            rows.append(row)
        else:
            self.dropped += 1

    def take(self) -> list[tuple[str, list[tuple[Any, ...]]]]:
        """All rows, by table, and forget them."""
        taken = [("requests", self.recorder.take())]
        for table, rows in self._tables.items():
            taken.append((table, [rows.popleft() for _ in range(len(rows))]))
        return [(table, rows) for table, rows in taken if rows]


class Outbox:
    """The rows of a worker on their way to the keeper.

    Attributes:
        beside: called with each flush; for what else is told as often.

    """

    def __init__(self, link: Link, world: World, beside: Callable[[], None]) -> None:
        self._link = link
        self._world = world
        self._beside = beside
        self._runs: list[Run] = []
        self._refused = 0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def dropped(self) -> int:
        """Rows nobody will see."""
        return self._refused + sum(run.dropped + run.recorder.dropped for run in self._runs)

    def run(self, run_id: str) -> Run:
        """Where the rows of a generation go; those of the ones before still may come."""
        self._runs.append(Run(self._world, run_id))
        return self._runs[-1]

    @property
    def newest(self) -> Run:
        """Of the generation that serves."""
        return self._runs[-1]

    def keep(self, run_ids: Collection[str]) -> None:
        """Forget the runs of generations that have ended."""
        for run in [run for run in self._runs if run.run_id not in run_ids and not len(run.recorder)]:
            self._refused += run.dropped + run.recorder.dropped
            self._runs.remove(run)

    def start(self) -> None:
        """Flush from now on."""
        self._tick()

    def flush(self) -> None:
        """Send all there is."""
        for run in self._runs:
            for table, rows in run.take():
                for start in range(0, len(rows), CHUNK):
                    self._send(table, run.run_id, rows[start : start + CHUNK])

    async def stop(self) -> None:
        """Send all there is, and wait until the kernel has it; a keeper that is away is not waited for."""
        if self._timer is not None:
            self._timer.cancel()
        self.flush()
        self._beside()
        for _ in range(100):
            if self._link.empty:
                return
            await asyncio.sleep(FLUSH_S / 10)

    def _send(self, table: str, run_id: str, rows: Sequence[tuple[Any, ...]]) -> None:
        """Send some rows; those that cannot travel as they are, cut and mended."""
        packs = pack if table == "requests" else list
        try:
            taken = self._link.send("rows", (table, run_id, packs(rows)))
        except (UnicodeEncodeError, OverflowError):  # half a character, or a number beyond 64 bits
            taken = False
        if not taken and not self._link.send("rows", (table, run_id, packs([_mended(row) for row in rows]))):
            self._refused += len(rows)

    def _tick(self) -> None:
        self.flush()
        self._beside()
        self._timer = asyncio.get_running_loop().call_later(FLUSH_S, self._tick)


def _mended(row: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(_mended_value(value) for value in row)


def _mended_value(value: Any) -> Any:
    if isinstance(value, str):
        return value[:TEXT_MAX].encode("utf-8", "replace").decode()
    return min(max(value, LOW), HIGH) if isinstance(value, int) else value
