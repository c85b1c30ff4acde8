"""Names of the store's Parquet files, and which of them are current.

Layout: `STORE/TABLE/HOUR/part-WRITER-FIRST-LAST.parquet`, where HOUR is the UTC hour (`2026113013`) the rows were
flushed in, WRITER an identity unique to one open store, and FIRST..LAST the range of flushes inside.  A file appears
complete, by rename, or not at all; it is never changed.  Merging small files writes the wider range first and deletes
the narrow ones later, so a reader that sees both keeps the widest: ranges of one writer are disjoint or nested.

Deliberately absent: a manifest.  The directory listing is the truth, and any process may read it at any time.
"""

import os
import re
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

_NAME = re.compile(r"part-([0-9a-z]+)-(\d+)-(\d+)\.parquet")
_HOUR = re.compile(r"[0-9]{10}")
TEMPORARY = "tmp-"
FLUSH_ROWS = "sits_flush_rows"
"""Key in a merged file's own metadata: how many rows each flush had, in order, with commas between."""

HOUR_NS = 3600 * 10**9


class Part(NamedTuple):
    """One Parquet file: flushes `first..last` of `writer`."""

    writer: str
    first: int
    last: int
    path: Path

    @property
    def width(self) -> int:
        """How many flushes are inside."""
        return self.last - self.first + 1

    def contains(self, other: "Part") -> bool:
        """Whether every flush of `other` is inside this one."""
        return self.writer == other.writer and self.first <= other.first and other.last <= self.last


def hour_of(wall_ns: int) -> str:
    """Name of the UTC hour of a wall-clock time.

    >>> hour_of(0)
    '1970010100'
    """
    return datetime.fromtimestamp(wall_ns // 10**9, tz=UTC).strftime("%Y%m%d%H")


def hour_end_ns(hour: str) -> int | None:
    """Wall-clock ns at which the named hour ends; None when the name is not an hour.

    >>> hour_end_ns("1970010100") // 10**9
    3600
    """
    if not _HOUR.fullmatch(hour):
        return None
    try:
        start = datetime(int(hour[:4]), int(hour[4:6]), int(hour[6:8]), int(hour[8:]), tzinfo=UTC)
    except ValueError:
        return None
    return int(start.timestamp()) * 10**9 + HOUR_NS


def part_name(writer: str, first: int, last: int) -> str:
    """File name of flushes `first..last` of `writer`."""
    return f"part-{writer}-{first:08d}-{last:08d}.parquet"


def parts_in(directory: Path) -> list[Part]:
    """All parts in one hour's directory, current or not; none when it does not exist."""
    try:
        names = [entry.name for entry in directory.iterdir()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    matches = (_NAME.fullmatch(name) for name in names)
    return [Part(m[1], int(m[2]), int(m[3]), directory / m[0]) for m in matches if m]


def current(parts: Iterable[Part]) -> list[Part]:
    """The parts to read: those whose range no other part of the same writer contains."""
    kept: list[Part] = []
    for part in sorted(parts, key=lambda p: (p.writer, p.first, -p.last)):
        wider = kept[-1] if kept else None
        if wider is None or wider.writer != part.writer or part.last > wider.last:
            kept.append(part)
    return kept


def hours_of(table: Path) -> list[Path]:
    """The hour directories of one table, oldest first."""
    try:
        with os.scandir(table) as entries:
            return sorted(Path(e.path) for e in entries if hour_end_ns(e.name) is not None and e.is_dir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def runs(parts: Iterable[Part]) -> list[list[Part]]:
    """Current parts of one writer, in their order, cut where a flush is missing: those of a run can be one file.

    What is missing lies in another hour (the clock was set back over the end of one) or was moved out of the store: a file that named it
    as its own would hide it.
    """
    found: list[list[Part]] = []
    for part in parts:
        if found and found[-1][-1].writer == part.writer and found[-1][-1].last + 1 == part.first:
            found[-1].append(part)
        else:
            found.append([part])
    return found
