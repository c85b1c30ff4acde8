"""What is in a store: tables, hours, rows, bytes, and the oldest and newest hour; from file names and the files' own heads.

Deliberately absent: the rows.
"""

from pathlib import Path
from typing import Any

from sits.telemetry.duck import StoreError, connect, failure, quoted
from sits.telemetry.parts import current, hours_of, parts_in
from sits.telemetry.tables import TABLES


def told(path: Path) -> list[dict[str, Any]]:
    """One entry a table that has files.

    Raises:
        StoreError: a file is no Parquet.

    """
    db = connect(threads=1)
    try:
        return [entry for table in TABLES if (entry := _table(db, path, table)) is not None]
    finally:
        db.close()


def _table(db: Any, path: Path, table: str) -> dict[str, Any] | None:
    hours = [hour for hour in hours_of(path / table) if parts_in(hour)]
    if not hours:
        return None
    parts = [part.path for hour in hours for part in current(parts_in(hour))]
    files = [entry for hour in hours for entry in hour.iterdir()]
    listed = ", ".join(quoted(str(part)) for part in parts)
    try:
        rows = db.execute(f"SELECT sum(num_rows) FROM parquet_file_metadata([{listed}])").fetchone()[0]  # noqa: S608
    except failure() as error:
        raise StoreError(
            f"cannot read {path / table}: {error}", hint="move the file named above out of the store"
        ) from error
    return {
        "table": table,
        "hours": len(hours),
        "oldest_hour_utc": hours[0].name,
        "newest_hour_utc": hours[-1].name,
        "files": len(parts),
        "rows": int(rows),
        "bytes": sum(file.stat().st_size for file in files if file.exists()),
        "indexes": sum(file.name.startswith("index-") for file in files),
    }
