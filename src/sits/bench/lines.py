"""Files of recordings and requests, line by line: plain or gzipped, found under either name, each value checked where it is read.

An error names file, line, column and value, and what would be right.  A number must be finite; a column nobody asks for is ignored.
"""

import csv
import gzip
import math
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from sits.core.errors import ConfigError

GZIP = b"\x1f\x8b"


def found(folder: Path, *names: str) -> Path | None:
    """The first of `names`, or of them with `.gz`, that is a file in `folder`."""
    for name in names:
        for path in (folder / name, folder / f"{name}.gz"):
            if path.is_file():
                return path
    return None


def text_of(path: Path) -> str:
    """A text file, gzipped or not, by its first bytes and not by its name.

    Raises:
        ConfigError: it is missing, cut off, or no UTF-8.

    """
    if not path.is_file():
        raise ConfigError(f"no file at {path}", value=str(path), hint="check the path")
    data = path.read_bytes()
    try:
        if data[:2] == GZIP:
            data = gzip.decompress(data)
        return data.decode("utf-8")
    except (OSError, EOFError, zlib.error) as error:
        raise ConfigError(
            f"{path}: damaged gzip data ({error})", value=str(path), hint="copy the file again"
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{path}: byte {error.start} is not UTF-8", value=str(path), hint="save the file as UTF-8 text"
        ) from error


def objects(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """`(where, object)` of each line of a JSONL file; blank lines are none.

    Raises:
        ConfigError: a line is no JSON object.

    """
    for number, line in enumerate(text_of(path).splitlines(), 1):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        try:
            got = msgspec.json.decode(line)
        except msgspec.DecodeError as error:
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
                {name: value for name, value in row.items() if name is not None and value not in (None, "")},
            )
    else:
        yield from objects(path)


def rows(path: Path, needed: tuple[str, ...]) -> Iterator[tuple[str, dict[str, str]]]:
    """`(where, row)` of each line of a CSV file that has the columns `needed`.

    Raises:
        ConfigError: the file is empty or lacks a column.

    """
    reader = csv.DictReader(text_of(path).splitlines())
    names = reader.fieldnames or []
    missing = [name for name in needed if name not in names]
    if missing:
        raise ConfigError(
            f"{path} has no column {', '.join(missing)}; it has {', '.join(names) or 'nothing'}",
            field=missing[0],
            value=str(path),
            hint=f"columns needed: {', '.join(needed)}",
        )
    for row in reader:
        yield f"{path}:{reader.line_num}", row


def number(
    where: str, row: Mapping[str, Any], name: str, *, least: float = -math.inf, default: float | None = None
) -> float:
    """The finite number `row[name]`, at least `least`; `default` when it is absent or empty.

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
    except (TypeError, ValueError):
        got = math.nan
    if not math.isfinite(got) or got < least:
        wanted = "a finite number" if least == -math.inf else f"a finite number, at least {least:g}"
        raise ConfigError(f"{where}: {name} is {value!r}", field=name, value=value, hint=wanted)
    return got


def whole(where: str, row: Mapping[str, Any], name: str, *, least: int = 0) -> int:
    """The whole number `row[name]`, at least `least`."""
    got = number(where, row, name, least=least)
    if got != int(got):
        raise ConfigError(
            f"{where}: {name} is {row[name]!r}", field=name, value=row[name], hint="a whole number"
        )
    return int(got)
