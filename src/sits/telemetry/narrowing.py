"""Which rows a named query can be about at all, where it looks for few: those alone are read from hours that have a lookup (`telemetry.lookups`).

Rules: what is narrowed is a superset of what the query wants, and the query is asked of it as it is, so answers stay the same.  A parameter that is not
given, or empty, restricts nothing here.  More than `ROWS_MAX` rows of a file are not picked one by one: the file is read.

Deliberately absent: the query, and tables that nobody looks for single rows in.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from sits.telemetry.dialects import PARAMETER
from sits.telemetry.duck import picked, rows_from
from sits.telemetry.lookups import Lookup, Lookups, key_of, keys_like

Wanted = dict[str, list[tuple[int, int]]]

ROWS_MAX = 4096

IDS_MAX = 1000
"""Values that rows are looked up by at a time."""


class Key(NamedTuple):
    """Rows whose `column` has the value of `parameter`, begins with it (`like`), or has one of those that `select` finds in tables narrowed before."""

    column: str
    parameter: str = ""
    like: bool = False
    select: str = ""


_OF_TRACE = "SELECT id FROM requests WHERE trace_id = $trace_id OR id = $trace_id"
_TRACE, _ID = Key("trace_id", "trace_id"), Key("id", "id")


def _begins(*columns: str) -> tuple[Key, ...]:
    return tuple(Key(column, "prefix", like=True) for column in columns)


NARROWED: Mapping[str, Mapping[str, Sequence[Key]]] = {
    "trace": {"requests": [_TRACE]},
    "request": {"requests": [_ID]},
    "board_request": {"requests": [_ID, Key("trace_id", "id")]},
    "decision": {"decisions": [_ID]},
    "facts_of": {"facts": [Key("version", "version")]},
    "trace_spans": {"spans": [_TRACE]},
    "trace_sightings": {"sightings": [_TRACE]},
    "trace_logs": {
        "requests": [_TRACE, Key("id", "trace_id")],
        "logs": [_TRACE, Key("request_id", select=_OF_TRACE)],
    },
    "ids_like": {
        "requests": _begins("id", "trace_id"),
        "spans": _begins("trace_id", "span_id"),
        "logs": _begins("trace_id", "request_id"),
    },
    "board_ids": {"requests": _begins("id", "trace_id")},
}
"""By query and table, in the order in which tables are narrowed: rows that fit any of these."""


class Picked:
    """Rows of part files that were looked up, in temporary tables of the database `db` that asks.

    Who asks all that is known of a trace asks for its rows several times, and part files do not change: what was picked last of a table is kept.
    """

    def __init__(self, db: Any) -> None:
        self._db = db
        self._lookups = Lookups()
        self._kept: dict[str, list[str]] = {}

    def of(
        self, table: str, files: Sequence[str], keys: Sequence[Key], values: Mapping[str, Any]
    ) -> tuple[Sequence[str], str]:
        """Files to be read whole, and the table of what was picked from the others (none: '')."""
        lookups = self._lookups.of(table, list(map(Path, files))) if keys else {}
        wanted = self._ranges(keys, values) if lookups else None
        if not wanted:
            return files, ""
        found = {part: _rows(lookup, wanted) for part, lookup in lookups.items()}
        rows = {str(part): numbers for part, numbers in found.items() if numbers is not None}
        pieces = [picked(part, numbers) for part, numbers in rows.items() if numbers]
        if pieces and pieces != self._kept.get(table):
            self._kept.pop(table, None)
            told = rows_from(f"(FROM pending_{table} LIMIT 0)", table, [], pieces)
            self._db.execute(f"CREATE OR REPLACE TEMP TABLE picked_{table} AS {told}")
            self._kept[table] = pieces
        return [file for file in files if file not in rows], f"picked_{table}" if pieces else ""

    def _ranges(self, keys: Sequence[Key], values: Mapping[str, Any]) -> Wanted | None:
        """By column, the ranges of keys that are looked for; None when that is no help."""
        found: Wanted = {}
        for key in keys:
            told = self._selected(key.select, values) if key.select else [values[key.parameter]]
            if len(told) > IDS_MAX or any(value is None or value == "" for value in told):
                return None
            mine = [keys_like(value) if key.like else (key_of(value),) * 2 for value in told]
            found[key.column] = [*found.get(key.column, ()), *mine]
        return found

    def _selected(self, sql: str, values: Mapping[str, Any]) -> list[Any]:
        known = {name: values.get(name) for name in PARAMETER.findall(sql)}
        return [row[0] for row in self._db.execute(sql, known).fetchall() if row[0]]


def _rows(lookup: Lookup, wanted: Wanted) -> list[int] | None:
    """Numbers of the rows that are looked for; None when they are too many to be picked, or the lookup cannot be read."""
    rows: set[int] = set()
    for column, ranges in wanted.items():
        try:
            rows.update(lookup.rows(column, ranges))
        except (OSError, ValueError):  # it went meanwhile, or was cut off when it was copied
            return None
    return sorted(rows) if len(rows) <= ROWS_MAX else None
