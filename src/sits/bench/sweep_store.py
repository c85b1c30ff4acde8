"""Results of a sweep, kept as they come: a file of lines, so that what was computed once is never computed again.

The first line says which sweep it is (a digest of all that results depend on); each other line is one point and its result, written whole,
flushed and synced before the next is taken.  Whoever is killed in the middle of a line leaves a torn one at the end: it is cut
off at the next opening, and its point is computed again.  A file of another sweep, and a bad line anywhere but at the end, are
refused: nothing is overwritten.  One writer at a time (flock).

Deliberately absent: deciding which points are worth keeping.
"""

import fcntl
import os
from pathlib import Path
from typing import Self

import msgspec

from sits.bench.sweep import Point, Result, Sweep
from sits.core.errors import ConfigError

FORMAT = 1


class _Head(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: int
    digest: str
    sweep: Sweep


class _Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    key: str
    point: Point
    result: Result


class Results:
    """An open results file; `done` is what it holds by point key.  Use as a context manager.

    Raises:
        ConfigError: another sweep's file, one with a bad line, or one somebody writes to.

    """

    def __init__(self, path: Path, sweep: Sweep) -> None:
        self.path = path
        self.done: dict[str, tuple[Point, Result]] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            self._lock()
            self._load(sweep)
        except BaseException:
            os.close(self._file)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        os.close(self._file)

    def keep(self, point: Point, result: Result) -> None:
        """Write one result down, for good."""
        self._append(_Line(point.key, point, result))
        self.done[point.key] = (point, result)

    def _append(self, value: object) -> None:
        line = msgspec.json.encode(value) + b"\n"
        if os.write(self._file, line) != len(line):
            raise OSError(f"{self.path}: the disk took only a part of a line")
        os.fsync(self._file)

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ConfigError(
                "another sweep is writing to it",
                where=str(self.path),
                hint="wait for it, or use another file",
            ) from error

    def _load(self, sweep: Sweep) -> None:
        text = self.path.read_bytes()
        whole = text.rfind(b"\n") + 1
        if whole < len(text):
            os.ftruncate(self._file, whole)
        lines = text[:whole].splitlines()
        if not lines:
            self._append(_Head(FORMAT, sweep.digest(), sweep))
            return
        try:
            head = msgspec.json.decode(lines[0], type=_Head)
        except (msgspec.DecodeError, RecursionError) as error:
            raise ConfigError(
                f"line 1 is not the head of a sweep's results: {error}",
                where=str(self.path),
                hint="name another file; this one is left as it is",
            ) from error
        if (head.format, head.digest) != (FORMAT, sweep.digest()):
            raise ConfigError(
                "it holds results of another sweep (other model, requests, objectives or version)",
                where=str(self.path),
                hint="name another file with -o, or remove this one",
            )
        for number, line in enumerate(lines[1:], 2):
            try:
                kept = msgspec.json.decode(line, type=_Line)
            except (msgspec.DecodeError, RecursionError) as error:
                raise ConfigError(
                    f"line {number} is no result: {error}", where=str(self.path), hint="remove that line"
                ) from error
            self.done[kept.key] = (kept.point, kept.result)
