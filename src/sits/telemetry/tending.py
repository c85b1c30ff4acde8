"""What is done with an hour of a store once it is over: one file of each writer, an index beside it, and nothing left over.

Any process may do it, also while gateways write (they are in another hour by then) and while others read: a merged file is complete when
it appears, contains the flushes of the narrow ones by its name, and those go `grace_ns` later.  Of two at once the first to be done is the one whose file stays.

Rules: an hour is over `SETTLED_NS` after its end.  What cannot be read is left as it is and said.

`python -m sits.telemetry.tending STORE SHARE` does it once: a gateway's keeper starts that when an hour is over, so that its own memory stays small.

Deliberately absent: when it is done, and retention.
"""

# ruff: noqa: S608 - only our own names and quoted file names are put into SQL

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sits.core.ports import World
from sits.telemetry import indexes, lookups
from sits.telemetry.duck import WRITTEN, connect, failure, quoted
from sits.telemetry.durable import sync
from sits.telemetry.indexes import SLICE_ROWS, WORTH, index_of, is_index, slices_of
from sits.telemetry.lookups import KEYS, is_lookup, lookup_of
from sits.telemetry.parts import (
    FLUSH_ROWS,
    TEMPORARY,
    Part,
    current,
    hour_end_ns,
    hours_of,
    part_name,
    parts_in,
    runs,
)
from sits.telemetry.tables import TABLES
from sits.telemetry.thinned_traces import AFTER_NS, THINNED, kept
from sits.world import RealWorld

SETTLED_NS = 2 * 60 * 10**9


class Tended(NamedTuple):
    """What was done: files merged away from now on, files that an index or a lookup was made of, and what could not be done."""

    merged: int
    indexed: int
    troubles: list[str]


def tend(
    path: Path,
    world: World | None = None,
    *,
    grace_ns: int = 60 * 10**9,
    worth: int = WORTH,
    share: float | None = 1.0,
    slice_rows: int = SLICE_ROWS,
) -> Tended:
    """Merge, index and sweep the hours of the store in `path` that are over.

    With a `share` below 1, spans and sightings of traces of which no request was kept go (`telemetry.thinned_traces`).  Where the share is not
    known (None) the files of these two tables are not merged: merged without it they would stay whole for good.
    """
    now_ns = (world or RealWorld()).wall_ns()
    merged, indexed = 0, 0
    troubles: list[str] = []
    db = connect(threads=1)
    try:
        for table in TABLES:
            for hour in hours_of(path / table):
                end = hour_end_ns(hour.name)
                thin = (share is None or share < 1.0) and table in THINNED
                if end is None or now_ns < end + SETTLED_NS + AFTER_NS * thin:
                    continue
                try:
                    known = share if thin else 1.0
                    if known is not None:
                        for parts in runs(current(parts_in(hour))):
                            merged += _merge(db, hour, parts, known)
                    indexed += sum(
                        _index(db, table, part, worth, slice_rows) for part in current(parts_in(hour))
                    )
                except (OSError, failure()) as error:
                    troubles.append(f"{hour}: {error}")
                _sweep(hour, now_ns - grace_ns)
    finally:
        db.close()
    return Tended(merged, indexed, troubles)


def _merge(db: Any, hour: Path, parts: list[Part], share: float) -> int:
    """Make one file of a run of a writer's; how many it replaces."""
    if len(parts) < 2:
        return 0
    listed = ", ".join(quoted(str(part.path)) for part in parts)
    where = f" WHERE {kept(db, hour, share)}" if share < 1.0 else ""
    counts = [_flush_rows(db, part, where) for part in parts]
    told = f", KV_METADATA {{{FLUSH_ROWS}: {quoted(','.join(counts))}}}" if all(counts) else ""
    select = f"SELECT * FROM read_parquet([{listed}], union_by_name=true){where}"
    name = part_name(parts[0].writer, parts[0].first, parts[-1].last)
    temporary = hour / f"{TEMPORARY}{os.getpid()}-{name}"
    db.execute(f"COPY ({select}) TO {quoted(str(temporary))} ({WRITTEN}{told})")
    _appear_first(temporary, hour / name)
    return len(parts)


def _flush_rows(db: Any, part: Part, where: str) -> str:
    """Rows of each flush inside, with commas between, of those that stay; empty when the file does not tell."""
    file = quoted(str(part.path))
    if part.width == 1:
        told = str(db.execute(f"SELECT num_rows FROM parquet_file_metadata({file})").fetchone()[0])
    else:
        row = db.execute(
            f"SELECT value FROM parquet_kv_metadata({file}) WHERE key = '{FLUSH_ROWS}'"
        ).fetchone()
        told = row[0].decode() if row else ""
    if not told or not where:
        return told
    numbers = db.execute(
        f"SELECT file_row_number AS i FROM read_parquet({file}, file_row_number=true){where}"
    ).fetchnumpy()["i"]
    edges = np.cumsum([0, *map(int, told.split(","))])
    return ",".join(map(str, np.diff(np.searchsorted(np.sort(numbers), edges)).tolist()))


def _index(db: Any, table: str, part: Part, worth: int, slice_rows: int) -> bool:
    """Make what is worth it and not there yet: the index of requests, the lookup of whatever is looked up; whether anything was."""
    wanted: list[tuple[Path, int, Callable[[], bytes]]] = []
    if table == "requests" and not is_index(index_of(part.path)):
        wanted.append((index_of(part.path), worth, lambda: indexes.made(db, part.path)))
    if table == "requests" and not is_index(slices_of(part.path)):
        wanted.append((slices_of(part.path), 2 * slice_rows, lambda: indexes.made(db, part.path, slice_rows)))
    if table in KEYS and not is_lookup(lookup_of(part.path)):
        wanted.append(
            (lookup_of(part.path), min(worth, lookups.WORTH), lambda: lookups.made(db, part.path, table))
        )
    if not wanted:
        return False
    rows = db.execute(f"SELECT num_rows FROM parquet_file_metadata({quoted(str(part.path))})").fetchone()[0]
    wanted = [one for one in wanted if rows >= one[1]]
    for path, _, make in wanted:
        temporary = path.with_name(f"{TEMPORARY}{os.getpid()}-{path.name}")
        temporary.write_bytes(make())
        _appear(temporary, path)
    return bool(wanted)


def _appear(temporary: Path, path: Path) -> None:
    """Let a complete file appear under its name, durable, in the place of one that had it."""
    sync(temporary)
    temporary.rename(path)
    sync(path.parent)


def _appear_first(temporary: Path, path: Path) -> None:
    """The same, unless one has the name: what it holds may be known by row already, and what is known by row never changes."""
    sync(temporary)
    try:
        os.link(temporary, path)
    except FileExistsError:
        return
    except OSError:  # a file system without links
        if not path.exists():
            temporary.rename(path)
    finally:
        temporary.unlink(missing_ok=True)
    sync(path.parent)


def _sweep(hour: Path, before_ns: int) -> None:
    """Delete what was merged away before then, indexes of what is no more, and files left half-written."""
    parts = parts_in(hour)
    live = current(parts)
    for part in parts:
        wider = next((one for one in live if one != part and one.contains(part)), None)
        if wider is not None and wider.path.stat().st_mtime_ns < before_ns:
            part.path.unlink(missing_ok=True)
    names = {of(part.path).name for part in live for of in (index_of, slices_of, lookup_of)}
    for entry in hour.iterdir():
        stale = entry.name.startswith(("index-", "slices-", "lookup-")) and entry.name not in names
        if (stale or entry.name.startswith(TEMPORARY)) and entry.stat().st_mtime_ns < before_ns:
            entry.unlink(missing_ok=True)


if __name__ == "__main__":
    os.nice(19)
    sys.exit(1 if tend(Path(sys.argv[1]), share=float(sys.argv[2])).troubles else 0)
