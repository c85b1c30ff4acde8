"""What is new in a table of a store: every acknowledged row once, whatever is merged or deleted meanwhile.

A writer numbers its flushes and says in each file's name which are inside, so what was seen is one number a writer.  A merged
file keeps the rows in the order of their flushes and tells how many each had (`telemetry.store`), so when only some of it is new, only
those rows are read.  A `Tail` reads the directory and takes no lock: any number may follow one store, from any process.

Rules: rows of one writer come in its order; a flush is passed over only when two listings agree that it is gone (retention);
what `cursor` says can be saved as JSON and given to the next `Tail`, which goes on there.  A file that a writer merged before files
told the rows of their flushes is read whole when some of it is new: rows then come again rather than not at all.

Deliberately absent: waiting for something new, and what the rows are for.
"""

# ruff: noqa: S608 - only our own table and column names and quoted file names are put into SQL

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sits.core.errors import ConfigError
from sits.core.ports import World
from sits.telemetry.duck import StoreError, arrays, between, connect, empty_table, quoted, rows_from
from sits.telemetry.parts import FLUSH_ROWS, HOUR_NS, Part, current, hour_end_ns, hours_of, parts_in
from sits.telemetry.tables import TABLES, Columns, columns_of
from sits.world import RealWorld

Cursor = dict[str, int]

LISTINGS = 4
"""So often is a directory listed in one look before what does not hold still is left for the next."""


class _Piece(NamedTuple):
    """Rows to read: of `file`, from row `first` up to `last` (None: all that follow); afterwards `seen` flushes of `writer` are known."""

    file: Path
    first: int
    last: int | None
    writer: str
    seen: int


class Tail:
    """Follows `table` of the store in `path`, which need not exist yet.

    Without a cursor it begins with what becomes durable from now on; with `beginning`, with the oldest row kept.

    Raises:
        ConfigError: no such table, or a cursor that is none.

    """

    def __init__(
        self,
        path: Path | str,
        table: str,
        *,
        cursor: Mapping[str, Any] | None = None,
        beginning: bool = False,
        world: World | None = None,
    ) -> None:
        if table not in TABLES:
            raise ConfigError(
                f"there is no table {table!r}", field="table", value=table, hint=f"one of {', '.join(TABLES)}"
            )
        self._table = table
        self._path = Path(path) / table
        self._world = world or RealWorld()
        self._old: dict[str, tuple[int, list[Part]]] = {}
        self._seen = _checked(cursor or {})
        self._db: Any = None
        if cursor is None and not beginning:
            for part in self._parts()[0]:
                self._seen[part.writer] = max(part.last, self._seen.get(part.writer, 0))

    @property
    def cursor(self) -> Cursor:
        """The last flush seen of each writer."""
        return dict(self._seen)

    def look(self, at_most: int = 200_000) -> Columns:
        """Rows that became durable since the last look, as columns of the table; all that are new when they are few.

        `at_most` bounds what is returned to about so many rows (a single flush is never cut): look again until there are none.
        What could not be read is not passed over.

        Raises:
            StoreError: a file is no Parquet.

        """
        found: list[Columns] = []
        rows = 0
        for piece in self._pieces(at_most):
            try:
                batch = self._read(piece)
            except FileNotFoundError:
                break  # merged or deleted since it was listed: the next look lists again
            found.append(batch)
            self._seen[piece.writer] = piece.seen
            rows += len(next(iter(batch.values())))
            if rows >= at_most:
                break
        if not found:
            return columns_of(TABLES[self._table], [])
        return {name: np.concatenate([batch[name] for batch in found]) for name in TABLES[self._table]}

    def close(self) -> None:
        """Give back what reading took."""
        if self._db is not None:
            self._db.close()
            self._db = None

    # -- which files -------------------------------------------------------------------------------------------

    def _parts(self) -> tuple[list[Part], bool]:
        """All parts, and whether the directory held still while they were listed."""
        before: list[Part] | None = None
        for _ in range(LISTINGS):
            # The newest hour first: who shows flush n there has shown all earlier ones before we come to theirs.
            now = sorted(part for hour in reversed(hours_of(self._path)) for part in self._listed(hour))
            if now == before:
                return now, True
            before = now
        return before or [], False

    def _listed(self, hour: Path) -> list[Part]:
        """The parts of an hour; of one that ended an hour ago, and did not change, without looking again."""
        end = hour_end_ns(hour.name)
        if end is None or self._world.wall_ns() < end + HOUR_NS:
            return parts_in(hour)
        try:
            changed = hour.stat().st_mtime_ns
        except FileNotFoundError:
            return []
        known = self._old.get(hour.name)
        if known is None or known[0] != changed:
            known = self._old[hour.name] = (changed, parts_in(hour))
        return known[1]

    def _pieces(self, at_most: int) -> Iterator[_Piece]:
        parts, still = self._parts()
        stopped: set[str] = set()
        for part in current(parts):
            seen = self._seen.get(part.writer, 0)
            if part.last <= seen or part.writer in stopped:
                continue
            if part.first > seen + 1 and not still:
                stopped.add(part.writer)  # what lies between may only not have been listed yet
                continue
            yield from self._cut(part, seen, at_most)

    def _cut(self, part: Part, seen: int, at_most: int) -> Iterator[_Piece]:
        """What of `part` comes after flush `seen`, in pieces of about `at_most` rows."""
        counts = self._flush_rows(part)
        if len(counts) != part.width:
            yield _Piece(part.path, 0, None, part.writer, part.last)
            return
        known = max(seen - part.first + 1, 0)
        first = last = sum(counts[:known])
        for flush, rows in enumerate(counts[known:], part.first + known):
            last += rows
            if last - first >= at_most or flush == part.last:
                yield _Piece(part.path, first, last, part.writer, flush)
                first = last

    # -- what is in them ---------------------------------------------------------------------------------------

    def _flush_rows(self, part: Part) -> list[int]:
        """Rows of each flush inside; none when the file does not tell, or is gone."""
        if part.width == 1:
            return []
        sql = f"SELECT value FROM parquet_kv_metadata({quoted(str(part.path))}) WHERE key = '{FLUSH_ROWS}'"
        try:
            told = self._ask(sql, part.path, lambda answer: answer.fetchone())
        except FileNotFoundError:
            return []
        return [int(rows) for rows in told[0].split(b",")] if told else []

    def _read(self, piece: _Piece) -> Columns:
        whole = piece.last is None
        file = str(piece.file)
        pieces = [] if piece.last is None else [between(file, piece.first, piece.last)]
        sql = rows_from("nothing", self._table, [file] if whole else [], pieces)
        batch: Columns = self._ask(sql, piece.file, arrays)
        if self._table == "requests":
            untold = batch["trace_id"] == ""
            batch["trace_id"][untold] = batch["id"][untold]
        return batch

    def _ask(self, sql: str, file: Path, take: Callable[[Any], Any]) -> Any:
        """`take` of the answer.

        Raises:
            FileNotFoundError: `file` is gone.
            StoreError: it is no Parquet.

        """
        if self._db is None:
            self._db = connect(threads=1)
            self._db.execute(empty_table("nothing", self._table))
        try:
            return take(self._db.execute(sql))
        except Exception as error:
            if not file.exists():
                raise FileNotFoundError(str(file)) from None
            raise StoreError(
                f"cannot read {file}: {error}", hint="move it out of the store; the rest stays readable"
            ) from error


def _checked(cursor: Mapping[str, Any]) -> Cursor:
    for writer, seen in cursor.items():
        if not isinstance(writer, str) or not isinstance(seen, int) or isinstance(seen, bool) or seen < 0:
            raise ConfigError(
                f"a tail's cursor says {seen!r} of writer {writer!r}",
                field="cursor",
                value=seen,
                hint="delete the saved cursor to begin anew",
            )
    return dict(cursor)
