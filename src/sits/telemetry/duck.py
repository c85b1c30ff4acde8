"""What all users of DuckDB here agree on: its configuration, how text is quoted, how part files are read.

Part files of any age have the columns of their time; a reader gets today's columns, the missing ones NULL.

Deliberately absent: connections that live on, and whose rows they are.
"""

# ruff: noqa: S608 - only our own table and column names and quoted file names are put into SQL

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sits.core.errors import SitsError
from sits.telemetry.tables import TABLES, Columns

CONFIG: Mapping[str, Any] = {
    "autoinstall_known_extensions": "false",
    "enable_external_file_cache": "false",
    "allocator_background_threads": "true",
    "pandas_analyze_sample": "8",
}
"""Of DuckDB: nothing is fetched; of a file that was merged nothing is kept (half a kilobyte each, 100 MB a day of a busy gateway);
what is free is given back to the system, also when nothing is asked for; and what a column of objects holds is told by its first few, because all
of a column are of one kind (looking at a thousand costs 3 ms a batch)."""


ROW_GROUP = 8192
"""Rows of a file that are compressed together.  A group is in memory whole, uncompressed, while it is written or merged: DuckDB's own
122,880 rows of decision records are 150 MB of a process that needs 120 (measured: peak 273 MB with them, 134 with these)."""

WRITTEN = f"FORMAT parquet, PARQUET_VERSION v2, COMPRESSION zstd, ROW_GROUP_SIZE {ROW_GROUP}"
"""Options of each file.  The second version's encodings (differences of numbers) make small files a fifth smaller, and quicker to write and to read."""


class StoreError(SitsError):
    """A file of the store cannot be read or written; names the file and the way out."""

    kind = "store_error"


def connect(threads: int) -> Any:
    """Open a database in memory."""
    import duckdb  # noqa: PLC0415 - 40 MB that a process without a store need not load

    return duckdb.connect(":memory:", config={**CONFIG, "threads": threads})


def failure() -> type[Exception]:
    """What DuckDB raises."""
    import duckdb  # noqa: PLC0415 - see above

    return duckdb.Error


def quoted(text: str) -> str:
    """`text` as an SQL literal.

    >>> quoted("it's")
    "'it''s'"
    """
    return "'" + text.replace("'", "''") + "'"


def empty_table(name: str, table: str) -> str:
    """SQL that makes `name` an empty table with the columns of `table`."""
    columns = ", ".join(f'"{column}" {kind}' for column, kind in TABLES[table].items())
    return f"CREATE OR REPLACE TABLE {name} ({columns})"


def rows_from(empty: str, table: str, files: Sequence[str], pieces: Sequence[str] = ()) -> str:
    """SQL that selects what is in `empty` (a table of the same columns), what `files` hold, and what the selects `pieces` give."""
    columns = ", ".join(f'"{name}"' for name in TABLES[table])
    sources = [f"SELECT * FROM {empty}", *pieces]
    if files:
        sources.append(f"SELECT * FROM read_parquet([{', '.join(map(quoted, files))}], union_by_name=true)")
    if len(sources) == 1:
        return f"SELECT {columns} FROM {empty}"
    return f"SELECT {columns} FROM ({' UNION ALL BY NAME '.join(sources)})"


def picked(file: str, rows: Sequence[int]) -> str:
    """SQL that selects the rows of these numbers from a file; only their row groups are read."""
    numbers = ", ".join(map(str, rows))
    return f"{_NUMBERED.format(quoted(file))} WHERE file_row_number IN ({numbers})"


def between(file: str, first: int, last: int) -> str:
    """SQL that selects the rows from number `first` up to before `last`."""
    return f"{_NUMBERED.format(quoted(file))} WHERE file_row_number >= {first} AND file_row_number < {last}"


_NUMBERED = "SELECT * EXCLUDE (file_row_number) FROM read_parquet({}, file_row_number=true)"


def arrays(answer: Any) -> Columns:
    """Columns of an answer; missing text is '' and a missing number 0."""
    found: dict[str, np.ndarray] = answer.fetchnumpy()
    made: Columns = {}
    for name, values in found.items():
        if isinstance(values, np.ma.MaskedArray):
            values = values.filled("" if values.dtype == object else 0)  # noqa: PLW2901
        made[name] = np.asarray(values)
    return made
