"""Files of recordings and requests, line by line: plain or gzipped, found under either name, each value checked where it is read.

An error names file, line, column and value, and what would be right.  A number must be finite; a column nobody asks for is ignored.
"""

import csv
import gzip
import io
import math
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from sits.core.errors import ConfigError

GZIP = b"\x1f\x8b"
WHOLE_MOST = 1_000_000_000
MS_MOST = 1e10
"""A hundred days: no step, and no request, takes that long."""


def found(folder: Path, *names: str) -> Path | None:
    """The first of `names`, or of them with `.gz`, that is a file in `folder`."""
    for name in names:
        for path in (folder / name, folder / f"{name}.gz"):
            if path.is_file():
                return path
    return None


def bytes_of(path: Path) -> bytes:
    """A file's bytes, unpacked where they are gzipped.

    Raises:
        ConfigError: it is missing or cut off.

    """
    if not path.is_file():
        raise ConfigError(f"no file at {path}", value=str(path), hint="check the path")
    data = path.read_bytes()
    try:
        return gzip.decompress(data) if data[:2] == GZIP else data
    except (OSError, EOFError, zlib.error) as error:
        raise ConfigError(
            f"{path}: damaged gzip data ({error})", value=str(path), hint="copy the file again"
        ) from error


def text_of(path: Path) -> str:
    """A text file, gzipped or not, by its first bytes and not by its name; the mark that some editors put first is dropped.

    Raises:
        ConfigError: it is missing, cut off, or no UTF-8.

    """
    try:
        return bytes_of(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{path}: byte {error.start} is not UTF-8", value=str(path), hint="save the file as UTF-8 text"
        ) from error


def objects(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """`(where, object)` of each line of a JSONL file; blank lines are none.

    Raises:
        ConfigError: a line is no JSON object.

    """
    for number, line in enumerate(text_of(path).split("\n"), 1):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        try:
            got = msgspec.json.decode(line)
        except (msgspec.DecodeError, RecursionError) as error:
            raise ConfigError(
                f"{where}: not JSON ({error}): {line[:60]!r}", hint="one JSON object a line"
            ) from error
        if not isinstance(got, dict):
            raise ConfigError(f"{where}: {line[:60]!r} is not an object", hint="one JSON object a line")
        yield where, got


def records(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """`(where, record)` of each line: of a CSV file by its name, with empty cells left out, of JSONL otherwise."""
    if path.name.removesuffix(".gz").endswith(".csv"):
        for where, row in rows(path, ()):
            yield (
                where,
                {name: value for name, value in row.items() if value not in (None, "")},
            )
    else:
        yield from objects(path)


def rows(path: Path, needed: tuple[str, ...]) -> Iterator[tuple[str, dict[str, str]]]:
    """`(where, row)` of each line of a CSV file that has the columns `needed`.

    Raises:
        ConfigError: the file is empty or lacks a column.

    """
    reader = csv.DictReader(io.StringIO(text_of(path), newline=""))
    try:
        yield from _rows(path, reader, needed)
    except csv.Error as error:
        raise ConfigError(
            f"{path}:{reader.line_num + 1}: no CSV ({error})", value=str(path), hint="is it the right file?"
        ) from error


def _rows(
    path: Path, reader: "csv.DictReader[str]", needed: tuple[str, ...]
) -> Iterator[tuple[str, dict[str, str]]]:
    names = reader.fieldnames or []
    twice = [name for place, name in enumerate(names) if name in names[:place]]
    if twice:
        raise ConfigError(
            f"{path} has two columns {twice[0]!r}", field=twice[0], value=str(path), hint="leave one out"
        )
    missing = [name for name in needed if name not in names]
    if missing:
        raise ConfigError(
            f"{path} has no column {', '.join(missing)}; it has {', '.join(names) or 'nothing'}",
            field=missing[0],
            value=str(path),
            hint=f"columns needed: {', '.join(needed)}",
        )
    for row in reader:
        if None in row:
            raise ConfigError(
                f"{path}:{reader.line_num}: more cells than the {len(names)} columns {', '.join(names)}",
                value=str(path),
                hint="one cell a column; text with a comma needs quotes",
            )
        yield f"{path}:{reader.line_num}", row


def number(
    where: str, row: Mapping[str, Any], name: str, *, least: float = -math.inf, most: float = math.inf, default: float | None = None
) -> float:  # fmt: skip
    """The finite number `row[name]`, from `least` to `most`; `default` when it is absent or empty.

    >>> number("f:1", {"a": "2.5"}, "a")
    2.5
    >>> number("f:1", {"a": "nan"}, "a")
    Traceback (most recent call last):
        ...
    sits.core.errors.ConfigError: a: f:1: a is 'nan' (a finite number)
    """
    value = row.get(name)
    if value is None or value == "":
        if default is not None:
            return default
        raise ConfigError(f"{where}: no {name}", field=name, hint="every line needs it")
    try:
        got = float(value) if not isinstance(value, bool) else math.nan
    except (TypeError, ValueError, OverflowError):
        got = math.nan
    if not math.isfinite(got) or not least <= got <= most:
        wanted = "a finite number" if least == -math.inf else f"a finite number, at least {least:g}"
        if got > most:
            wanted = f"at most {most:g}: is it in another unit?"
        shown = repr(value)
        shown = shown if len(shown) <= 60 else f"{shown[:40]}..."
        raise ConfigError(f"{where}: {name} is {shown}", field=name, value=value, hint=wanted)
    return got


def whole(where: str, row: Mapping[str, Any], name: str, *, least: int = 0) -> int:
    """The whole number `row[name]`, at least `least`; none of anything counted here comes near `WHOLE_MOST`."""
    got = number(where, row, name, least=least)
    if got != int(got):
        raise ConfigError(
            f"{where}: {name} is {row[name]!r}", field=name, value=row[name], hint="a whole number"
        )
    if got > WHOLE_MOST:
        raise ConfigError(
            f"{where}: {name} is {got:g}", field=name, value=got, hint=f"at most {WHOLE_MOST:,}"
        )
    return int(got)
