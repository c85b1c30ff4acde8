"""Where single rows are: by trace, by request, by the first digits of either, without reading the rows of an hour.

`lookup-WRITER-FIRST-LAST.bin` lies beside `part-WRITER-FIRST-LAST.parquet` of a table that has `KEYS`, and is of that file alone:

```
head      what follows, as JSON: rows, and where the entries of each column are
fences    by column: the first key of every `BLOCK` entries
entries   by column, ascending: `BLOCK` keys (8 bytes each) and then their rows' numbers (4 bytes each), block after block
```
Head and fences are some 50 kB a million rows and are read once; a lookup then reads one block of 6 kB, wherever it is.  It may be deleted at any time:
answers stay the same and take longer.  It is made once an hour is over (`telemetry.tending`).

A key is the first 16 hex digits of a text, as a number: so ids that begin alike are beside each other.  What follows the hex digits of a text that has
fewer is made of its CRC-32.  Keys of different texts may be equal: what is found are the rows that may be meant, and all that are meant are among them.

Deliberately absent: questions (`telemetry.narrowing`), and texts in capitals, which no id of ours has (they are found whole, not by their beginning).
"""

# ruff: noqa: S608 - only our own column names and quoted file names are put into SQL

import os
import struct
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from sits.telemetry.duck import quoted

WORTH = 1_000
"""Rows below which reading them is as quick."""

BLOCK = 512
_ENTRIES = BLOCK * 12
_MAGIC = b"SITSLKP1"
_DIGITS = 16
_FIRST_READ = 1 << 16

KEYS: Mapping[str, tuple[str, ...]] = {
    "requests": ("id", "trace_id"),
    "decisions": ("id",),
    "facts": ("version",),
    "spans": ("trace_id", "span_id"),
    "sightings": ("trace_id",),
    "logs": ("trace_id", "request_id"),
}
"""By table: what its rows are looked up by.  A request without a trace is found by its own id instead."""


class Head(msgspec.Struct, frozen=True):
    """Where everything is: `columns` has, by name, offsets of fences and entries from the end of the head, and how many entries there are."""

    rows: int
    columns: dict[str, tuple[int, int, int]]


def lookup_of(part: Path) -> Path:
    """Where the lookup of a part is."""
    return part.with_name("lookup-" + part.name.removeprefix("part-").removesuffix(".parquet") + ".bin")


def key_of(told: str | int) -> int:
    """What a lookup knows of a text (or of a number: itself), 64 bits.

    >>> hex(key_of("4bf92f3577b34da6a3ce929d0e0e4736")), hex(key_of("4bf9")), key_of(7)
    ('0x4bf92f3577b34da6', '0x4bf9eb8d79fceb8d', 7)
    """
    if isinstance(told, int):
        return told & 0xFFFFFFFFFFFFFFFF
    digits = _digits(told)
    low = 4 * (_DIGITS - len(digits))
    high = int(digits, 16) << low if digits else 0
    return high | (zlib.crc32(told.encode("utf-8", "replace")) * 0x100000001 & (1 << low) - 1)


def keys_like(prefix: str) -> tuple[int, int]:
    """First and last key that a text with this beginning may have."""
    digits = _digits(prefix)
    low = 4 * (_DIGITS - len(digits))
    first = int(digits, 16) << low if digits else 0
    return first, first | (1 << low) - 1


def _digits(text: str) -> str:
    head = text[:_DIGITS]
    return head[: len(head) - len(head.lstrip("0123456789abcdef"))]


def made(db: Any, part: Path, table: str) -> bytes:
    """The lookup of `part`, which is of `table`, as bytes; `db` is a connection to ask with."""
    read = f"read_parquet({quoted(str(part))})"
    known = {row[0] for row in db.execute(f"DESCRIBE SELECT * FROM {read}").fetchall()}
    fences, entries, found = [], [], {}
    rows = 0
    for name in KEYS[table]:
        keys, has = _keys(db, read, _told(table, name, known))
        rows = len(keys)
        numbers = np.flatnonzero(has).astype("<u4")
        order = np.argsort(keys[numbers], kind="stable")
        ordered = keys[numbers][order].astype("<u8")
        found[name] = len(ordered)
        fences.append(ordered[::BLOCK].tobytes())
        entries.append(_blocks(ordered, numbers[order]))
    at, head = 0, {}
    for pieces, place in ((fences, 0), (entries, 1)):
        for name, piece in zip(KEYS[table], pieces, strict=True):
            head[name, place] = at
            at += len(piece)
    text = msgspec.json.encode(
        Head(rows, {name: (head[name, 0], head[name, 1], found[name]) for name in KEYS[table]})
    )
    text += b" " * (-len(text) % 8)
    return _MAGIC + struct.pack("<Q", len(text)) + text + b"".join((*fences, *entries))


def _told(table: str, name: str, known: set[str]) -> str:
    """SQL of what a row is found by; files of before traces have no column for them."""
    if (table, name) == ("requests", "trace_id"):
        return "coalesce(nullif(trace_id, ''), id)" if name in known else "id"
    return name


def _keys(db: Any, read: str, told: str) -> tuple[np.ndarray, np.ndarray]:
    """Keys of all rows, and which rows have one."""
    kind = db.execute(f"SELECT typeof({told}) FROM {read} LIMIT 1").fetchone()
    if kind is None or kind[0] != "VARCHAR":
        got = db.execute(f"SELECT {told} AS k FROM {read}").fetchnumpy()["k"]
        return np.ma.getdata(got).astype(np.int64).view(np.uint64), ~np.ma.getmaskarray(got)
    begins = f"substring({told}, 1, {_DIGITS})"
    hexes = f"regexp_full_match({begins}, '[0-9a-f]{{{_DIGITS}}}')"
    got = db.execute(f"""SELECT CASE WHEN {hexes} THEN ('0x' || {begins})::UBIGINT ELSE 0 END AS k,
        CASE WHEN {hexes} THEN NULL ELSE nullif({told}, '') END AS other, coalesce({told}, '') <> '' AS has FROM {read}""").fetchnumpy()
    keys = np.ma.filled(got["k"], 0).astype(np.uint64)
    other = got["other"]
    for row in np.flatnonzero(~np.ma.getmaskarray(other)).tolist():
        keys[row] = key_of(other[row])
    return keys, np.ma.filled(got["has"], False).astype(bool)


def _blocks(keys: np.ndarray, rows: np.ndarray) -> bytes:
    return b"".join(
        part
        for at in range(0, len(keys), BLOCK)
        for part in (keys[at : at + BLOCK].tobytes(), rows[at : at + BLOCK].tobytes())
    )


class Lookup:
    """A lookup: its head and fences are in memory, its entries are read where they are asked for.

    Raises:
        OSError: there is none.
        ValueError: it is something else, or was cut off.

    """

    def __init__(self, path: Path) -> None:
        self._path = path
        with path.open("rb") as file:
            data = file.read(_FIRST_READ)
            if data[:8] != _MAGIC or len(data) < 16:
                raise ValueError(f"{path} is no lookup")
            (size,) = struct.unpack("<Q", data[8:16])
            end, there = 16 + size, os.fstat(file.fileno()).st_size
            self._base = end
            if there < end:
                raise ValueError(f"{path} was cut off")
            if len(data) < end:
                data += file.read(end - len(data))
            try:
                self.head = msgspec.json.decode(data[16:end], type=Head)
            except msgspec.DecodeError as error:
                raise ValueError(f"{path} has no head: {error}") from None
            last = max(
                (entries + n * _ENTRIES // BLOCK for _, entries, n in self.head.columns.values()), default=0
            )
            if there < end + last:
                raise ValueError(f"{path} was cut off")
            end += min((entries for _, entries, _ in self.head.columns.values()), default=0)
            data += file.read(max(end - len(data), 0))
        self._fences = {
            name: np.frombuffer(data, dtype="<u8", count=-(-n // BLOCK), offset=self._base + at)
            for name, (at, _, n) in self.head.columns.items()
        }

    def rows(self, column: str, ranges: Sequence[tuple[int, int]]) -> list[int]:
        """Numbers of the rows whose key is in one of the ranges (both ends belong to them), ascending.

        Raises:
            OSError: the file is gone.
            ValueError: it does not know the column, or was cut off since.

        """
        if column not in self._fences:
            raise ValueError(f"{self._path} knows no {column}")
        found: set[int] = set()
        with self._path.open("rb") as file:
            for first, last in ranges:
                found.update(self._between(file.fileno(), column, first, last))
        return sorted(found)

    def _between(self, file: int, column: str, first: int, last: int) -> list[int]:
        fences, (_, start, n) = self._fences[column], self.head.columns[column]
        low = max(int(fences.searchsorted(np.uint64(first), "left")) - 1, 0)
        high = int(fences.searchsorted(np.uint64(last), "right"))
        found: list[int] = []
        if low >= high:
            return found
        data = os.pread(file, (high - low) * _ENTRIES, self._base + start + low * _ENTRIES)
        for block in range(low, high):
            size, at = min(BLOCK, n - block * BLOCK), (block - low) * _ENTRIES
            keys = np.frombuffer(data, dtype="<u8", count=size, offset=at)
            rows = np.frombuffer(data, dtype="<u4", count=size, offset=at + 8 * size)
            begin, end = (
                keys.searchsorted(np.uint64(first), "left"),
                keys.searchsorted(np.uint64(last), "right"),
            )
            found += rows[begin:end].tolist()
        return found


def is_lookup(path: Path) -> bool:
    """Whether there is a lookup, and all of it."""
    try:
        Lookup(path)
    except (OSError, ValueError):
        return False
    return True


class Lookups:
    """Lookups that are open, by part; one that cannot be read is as none."""

    def __init__(self) -> None:
        self._open: dict[Path, Lookup | None] = {}

    def of(self, table: str, parts: Sequence[Path]) -> dict[Path, Lookup]:
        """The lookup of each part of the table that has one; parts that are no more are forgotten."""
        kept = {part: one for part, one in self._open.items() if part.parent.parent.name != table}
        mine = {part: self._open.get(part) or _opened(part) for part in parts}
        self._open = {**kept, **mine}
        return {part: one for part, one in mine.items() if one is not None}


def _opened(part: Path) -> Lookup | None:
    try:
        return Lookup(lookup_of(part))
    except (OSError, ValueError):
        return None
