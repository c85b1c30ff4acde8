"""The store: DuckDB for questions, hourly Parquet files for keeping.

Rows are appended in memory (`telemetry.pending`) and become durable by `flush`, which writes one Parquet file a table, syncs it and
renames it into place: what `flush` acknowledged survives a crash, what it did not may be lost.  No process holds a lock:
a reader opens the same directory at any time (also while a gateway writes) and sees every acknowledged flush.  An hour's
directory is the unit of retention.  Small files are merged in tiers of `FANOUT`, so a gateway flushing twice a second
leaves tens of files an hour, not thousands; merged-away files stay `grace_ns` longer for readers that already listed them.

Only *named* queries (`telemetry.queries`) are asked.  With `path=None` everything stays in memory.  All methods may be
called from several threads; they wait for each other, so the event loop must not call them: see `telemetry.writer`.

Deliberately absent: updates, and a database file (its owner's lock would shut out the reader beside a live gateway).
"""

# ruff: noqa: S608 - only our own table and column names and quoted file names are put into SQL

import functools
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from sits.core.errors import BugError
from sits.core.ports import World
from sits.telemetry.dialects import PARAMETER
from sits.telemetry.duck import WRITTEN, StoreError, arrays, between, connect, failure, quoted, rows_from
from sits.telemetry.durable import deleted, sync
from sits.telemetry.indexed import QUICK, Indexes, window
from sits.telemetry.narrowing import NARROWED, Picked
from sits.telemetry.parts import (
    FLUSH_ROWS,
    TEMPORARY,
    Part,
    current,
    hour_end_ns,
    hour_of,
    hours_of,
    part_name,
    parts_in,
    runs,
)
from sits.telemetry.pending import Pending
from sits.telemetry.queries import QUERIES, parameters_of, tables_of, weighted_of
from sits.telemetry.tables import FIGURES, TABLES, Columns, checked
from sits.telemetry.unindexed import Parts
from sits.world import RealWorld

T = TypeVar("T")

FANOUT = 8
"""So many files of one tier are merged into one of the next."""


class DuckStore:
    """Columns in, named queries out; durable after `flush`.

    `path` is the store's directory, created by the first flush; None keeps all in memory.  `threads` bounds what a
    query may use of the machine (1 beside a live gateway).
    """

    def __init__(
        self,
        path: Path | str | None = None,
        *,
        world: World | None = None,
        threads: int = 1,
        grace_ns: int = 60 * 10**9,
    ) -> None:
        self.path = None if path is None else Path(path)
        if self.path is not None and self.path.exists() and not self.path.is_dir():
            raise StoreError(
                f"{self.path} is a file", field="path", hint="a store is a directory of Parquet files"
            )
        self._world = world or RealWorld()
        self._grace_ns = grace_ns
        # An identity, not a number of any result: two gateways writing one directory must never share names.
        self._writer = uuid.uuid4().hex[:12]
        self._flushes = dict.fromkeys(TABLES, 0)
        self._rows_of: dict[str, dict[int, int]] = {table: {} for table in TABLES}
        # Hours whose newest names are not known to be on the disk, and the rows in them that nobody was told are durable.
        self._unsynced: set[Path] = set()
        self._untold = 0
        self._indexes = Indexes()
        self._lock = threading.RLock()
        self._db = connect(threads)
        self._picked = Picked(self._db)
        self._failure = failure()
        self._pending = Pending(self._db, self._failure)

    @property
    def pending_rows(self) -> int:
        """Rows appended and not flushed; in a store without a path, all rows."""
        return len(self._pending)

    def append(self, table: str, columns: Mapping[str, Any]) -> None:
        """Add rows given as equally long columns, which are the store's from here on; durable after the next `flush`.

        Raises:
            BugError: not the columns of `table` (see `telemetry.tables`).

        """
        batch = checked(table, columns)
        if len(next(iter(batch.values()))):
            with self._lock:
                self._pending.add(table, batch)

    def flush(self) -> int:
        """Make all appended rows durable; how many.  A store without a path keeps them in memory and says 0.

        Raises:
            StoreError: a file could not be written, and the rows stay pending; or its name is not known to be on the disk, and the rows can
                be read but are not told.  The next flush tries again, and tells them.

        """
        if self.path is None:
            return 0
        with self._lock:
            hour = hour_of(self._world.wall_ns())
            for table in TABLES:
                if rows := self._pending.rows(table):
                    directory = self.path / table / hour
                    number = self._flushes[table] + 1
                    write = functools.partial(self._write, directory=directory, first=number, last=number)
                    self._pending.write(table, write)
                    self._flushes[table] = number
                    self._rows_of[table][number] = rows
                    self._untold += rows
                    self._merge(table, directory)
            for directory in [*self._unsynced]:
                self._keep_names(directory)
            if self._unsynced:
                raise StoreError(
                    f"what was written to {min(self._unsynced)} may not outlive a power cut",
                    hint="its directory could not be synced; the next flush tries again",
                )
            done, self._untold = self._untold, 0
        return done

    def scan(self, query: str, **parameters: Any) -> Sequence[Mapping[str, Any]]:
        """Rows of a named query as dictionaries of Python values.

        Raises:
            BugError: no such query, or a parameter it does not have.
            StoreError: a file of the store cannot be read.

        """
        with self._lock:
            quick = self._indexed(query, parameters)
            return self._weighed(query, parameters, _rows) if quick is None else quick

    def columns(self, query: str, **parameters: Any) -> Columns:
        """The same as `scan`, as columns: numpy arrays, text as `object` arrays, missing text as ''."""
        with self._lock:
            return self._weighed(query, parameters, arrays)

    def retain(self, max_age_ns: int, figures_ns: int | None = None) -> int:
        """Delete the files of hours that ended more than `max_age_ns` before now; how many files.

        Tables of figures (`telemetry.tables.FIGURES`) are kept for `figures_ns` when that is given.

        Raises:
            StoreError: an hour could not be deleted; all others are.

        """
        if self.path is None:
            return 0
        now_ns, gone = self._world.wall_ns(), 0
        stuck: list[str] = []
        with self._lock:
            for table in TABLES:
                kept_ns = figures_ns if figures_ns is not None and table in FIGURES else max_age_ns
                for directory in hours_of(self.path / table):
                    end = hour_end_ns(directory.name)
                    if end is not None and end < now_ns - kept_ns:
                        try:
                            gone += deleted(directory)
                        except OSError as error:
                            stuck.append(str(error))
        if stuck:
            raise StoreError(
                f"{len(stuck)} hours are over their time and cannot be deleted: {stuck[0]}",
                hint="files that are not the store's, or rights that are missing",
            )
        return gone

    def close(self) -> None:
        """Flush and release the database."""
        with self._lock:
            self.flush()
            self._db.close()

    def __enter__(self) -> "DuckStore":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- inside ------------------------------------------------------------------------------------------------

    def _weighed(self, query: str, parameters: Mapping[str, Any], take: Callable[[Any], T]) -> T:
        """`take` of the answer, with rows that stand for several requests counted so."""
        weighted = weighted_of(query)
        if weighted and not parameters.keys() - parameters_of(query):
            bounds = {name: parameters.get(name) for name in parameters_of("thinned")}
            if any(row["thinned"] for row in self._ask("thinned", bounds, _rows)):
                query = weighted
        return self._ask(query, parameters, take)

    def _ask(self, query: str, parameters: Mapping[str, Any], take: Callable[[Any], T]) -> T:
        """`take` of the answer to a named query."""
        known = parameters_of(query)
        if unknown := parameters.keys() - known:
            raise BugError(
                f"query {query} has no parameter {', '.join(sorted(unknown))}",
                field=query,
                hint=f"it has {', '.join(sorted(known)) or 'none'}",
            )
        values = {name: parameters.get(name) for name in known}
        while True:
            files = {table: self._files(table) for table in tables_of(query)}
            try:
                narrowed = NARROWED.get(query, {})
                for table in [*narrowed, *(files.keys() - narrowed)]:
                    self._view(table, *self._picked.of(table, files[table], narrowed.get(table, ()), values))
                return take(self._db.execute(QUERIES[query], values))
            except self._failure as error:
                if not all(Path(file).exists() for listed in files.values() for file in listed):
                    continue  # a writer's retention or merge deleted a file after we listed it: list again
                failure = error
            raise StoreError(
                f"query {query} on {self.path or 'the memory store'} failed: {_said(failure)}",
                hint="a file named above that is not Parquet, or not ours to read, can be moved out of the store; the rest stays readable",
            ) from failure

    def _indexed(self, query: str, given: Mapping[str, Any]) -> list[dict[str, Any]] | None:
        """The answer from indexes; None when there is none, or they are of no help."""
        if self.path is None or query not in QUICK or given.keys() - parameters_of(query):
            return None
        parts = [Path(file) for file in self._files("requests")]
        asked = window(parts, self._indexes, given, self._select)
        try:
            return QUICK[query](asked) if asked.indexed else None
        except self._failure:
            return None  # a file was merged or deleted meanwhile, or is none: the query says which

    def _select(self, parts: Parts, sql: str, parameters: Mapping[str, Any]) -> Columns:
        """Columns of a select from `requests` as these and what is pending have it."""
        pieces = [between(str(part), first, end) for part, first, end in parts.pieces]
        self._view("requests", list(map(str, parts.whole)), pieces=pieces)
        return arrays(self._db.execute(sql, {name: parameters.get(name) for name in PARAMETER.findall(sql)}))

    def _files(self, table: str) -> list[str]:
        if self.path is None:
            return []
        try:
            return [
                str(part.path) for hour in hours_of(self.path / table) for part in current(parts_in(hour))
            ]
        except OSError as error:
            raise StoreError(f"the store cannot be read: {error}", hint="is it ours to read?") from error

    def _view(self, table: str, files: Sequence[str], beside: str = "", pieces: Sequence[str] = ()) -> None:
        """(Re)make the view `table`: what is pending, what `files` hold, what is in the table `beside`, and what the selects `pieces` give."""
        pending = self._pending.entered(table)
        also = [*pieces]
        if beside and self._pending.rows(table):
            also.append(f"SELECT * FROM {pending}")
        self._db.execute(
            f"CREATE OR REPLACE TEMP VIEW {table} AS {rows_from(beside or pending, table, files, also)}"
        )

    def _write(self, select: str, directory: Path, first: int, last: int, told: str = "") -> None:
        """One complete Parquet file in `directory`, durable and atomic; `told` are more options of the copy."""
        name = part_name(self._writer, first, last)
        temporary = directory / f"{TEMPORARY}{name}"
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._db.execute(
                f"COPY ({select}) TO {quoted(str(temporary))} ({WRITTEN}, COMPRESSION_LEVEL 1{told})"
            )
            sync(temporary)
            temporary.rename(directory / name)
        except (OSError, self._failure) as error:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise StoreError(
                f"cannot write {directory / name}: {error}", hint="is the disk full, or not ours to write?"
            ) from error
        self._keep_names(directory)

    def _keep_names(self, directory: Path) -> None:
        """Make the names in `directory` durable, or remember that they are not.

        A file that has its name was seen by readers and can be no other file any more: that it may not outlive a power cut is no reason to write
        its rows again.
        """
        try:
            sync(directory)
        except FileNotFoundError:
            self._unsynced.discard(directory)  # retention, or somebody, deleted it
        except OSError:
            self._unsynced.add(directory)
        else:
            self._unsynced.discard(directory)

    def _merge(self, table: str, directory: Path) -> None:
        """Merge full tiers of this store's own files, and delete what was merged away long enough ago."""
        mine = [part for part in current(parts_in(directory)) if part.writer == self._writer]
        run = runs(mine)[-1] if mine else []
        tier = [part for part in run if _tier(part) == _tier(run[-1])]
        if len(tier) >= FANOUT:
            listed = ", ".join(quoted(str(part.path)) for part in tier)
            first, last = tier[0].first, tier[-1].last
            self._rows_of[table] = rows = {
                n: m for n, m in self._rows_of[table].items() if n >= mine[0].first
            }
            told = ",".join(str(rows[flush]) for flush in range(first, last + 1))
            self._write(
                f"SELECT * FROM read_parquet([{listed}], union_by_name=true)",
                directory,
                first,
                last,
                f", KV_METADATA {{{FLUSH_ROWS}: {quoted(told)}}}",
            )
            if directory not in self._unsynced:
                self._sweep(directory)
            self._merge(table, directory)

    def _sweep(self, directory: Path) -> None:
        """Delete files merged away, or abandoned half-written, longer than the grace ago."""
        parts = parts_in(directory)
        live = current(parts)
        ages = [
            (part.path, wider.path)
            for part in parts
            for wider in live
            if wider != part and wider.contains(part)
        ]
        ages += [(entry, entry) for entry in directory.iterdir() if entry.name.startswith(TEMPORARY)]
        now_ns = self._world.wall_ns()
        for path, since in ages:
            with suppress(FileNotFoundError):  # another writer of this store swept it first
                if now_ns - since.stat().st_mtime_ns > self._grace_ns:
                    path.unlink()


def _rows(answer: Any) -> list[dict[str, Any]]:
    names = [column[0] for column in answer.description]
    return [dict(zip(names, row, strict=True)) for row in answer.fetchall()]


def _tier(part: Part) -> int:
    tier, width = 0, part.width
    while width >= FANOUT:
        tier, width = tier + 1, width // FANOUT
    return tier


def _said(failure: Exception) -> str:
    """What went wrong, without the piece of our own SQL that DuckDB draws an arrow below."""
    return " ".join(str(failure).partition("\n\nLINE ")[0].split())
