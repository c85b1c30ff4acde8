"""The index of a part: what makes questions about millions of requests answerable without reading their rows.

`index-WRITER-FIRST-LAST.bin` lies beside `part-WRITER-FIRST-LAST.parquet` of table `requests`, and is of that file alone:

```
head          what follows, as JSON: rows, first and last wall_ns, groups (run, model, engine) and the weight of their rows, where each piece is
durations     by group: every stage, ttft and e2e of completed requests in ascending order (`telemetry.ordered`)
sums          by group and metric: how many requests, and the sums of the whole and of each stage
slowest       by group and metric: whole and stages of the slowest 3 %, so that any window's slowest 1 % are nearly always among them
```
It may be deleted at any time: answers stay the same and take longer.  It is made once an hour is over (`telemetry.tending`), of parts with
at least `WORTH` rows.

`slices-WRITER-FIRST-LAST.bin` is the same of every `SLICE_ROWS` rows of the part, in the order of the file, for windows that cut the hour: all groups once a slice
(empty ones too), and in the head which rows and times a slice has.  Rows are nearly in the order of time there, and a slice says of itself from when to
when, so a late row makes a slice longer and no answer wrong.  Parts of less than two slices have none.

Rows that stand for different numbers of requests (`weight`) are in different groups, so that one number says it of all.

Rules: a time that is not seen, or negative, is -1 and in none of the pieces; whole and stages are those of `telemetry.stage_queries`.
What was written is never changed.  Deliberately absent: questions (`telemetry.indexed`), and where single rows are (`telemetry.lookups`).
"""

# ruff: noqa: S608 - only our own column names and quoted file names are put into SQL

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from sits.core.breakpoints import FIRST_TOKEN, SENT
from sits.telemetry.duck import arrays, quoted
from sits.telemetry.ordered import Ordered, encoded
from sits.telemetry.stage_queries import E2E, SPANS, THOUSANDTHS, TTFT, both, took

WORTH = 20_000
"""Rows below which reading them is as quick."""

SLICE_ROWS = 131_072
"""Rows of a slice: 16 row groups of a file, read in a tenth of a second.  Half as many would be twice the arrays to choose from."""

SLOWEST = 0.03
METRICS: dict[str, int] = {TTFT: FIRST_TOKEN, E2E: SENT}
"""Metric, and how many stages it is made of."""

_MAGIC = b"SITSIDX2"
Group = tuple[str, str, str]


class Slice(msgspec.Struct, frozen=True, array_like=True):
    """Rows `first_row` up to before `end_row` of the file: their times, and the groups `first_group` up to before `end_group` that are theirs."""

    first_row: int
    end_row: int
    first_wall_ns: int
    last_wall_ns: int
    first_group: int
    end_group: int


class Head(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where everything is: offsets in bytes from the end of the head."""

    rows: int
    first_wall_ns: int
    last_wall_ns: int
    groups: list[Group]
    weights: list[int]
    """By group: how many requests each of its rows stands for, in thousandths (`stage_queries.THOUSANDTHS`)."""
    durations: list[list[tuple[int, int, int]]]
    """By group and span: offset, how many, and their sum."""
    sums: dict[str, list[list[int]]]
    """By metric and group: requests, ns of the whole, ns of each stage."""
    slowest: dict[str, list[tuple[int, int]]]
    """By metric and group: offset and how many rows of (whole, stages...) in descending order of the whole."""
    slices: list[Slice] = []
    """Of a file of slices alone."""


def index_of(part: Path) -> Path:
    """Where the index of a part is."""
    return part.with_name("index-" + part.name.removeprefix("part-").removesuffix(".parquet") + ".bin")


def slices_of(part: Path) -> Path:
    """Where the slices of a part are."""
    return part.with_name("slices-" + part.name.removeprefix("part-").removesuffix(".parquet") + ".bin")


def is_index(path: Path) -> bool:
    """Whether there is an index of today's form, and all of it."""
    try:
        Index(path)
    except (OSError, ValueError):
        return False
    return True


def made(db: Any, part: Path, slice_rows: int = 0) -> bytes:
    """The index of `part` as bytes, or its slices of so many rows; `db` is a connection to ask with."""
    return _Maker(db, part, slice_rows).made()


class _Maker:
    def __init__(self, db: Any, part: Path, slice_rows: int) -> None:
        self._db = db
        self._slice_rows = slice_rows
        self._read = f"read_parquet({quoted(str(part))}, file_row_number=true)"
        self._pieces: list[bytes] = []
        self._at = 0

    def made(self) -> bytes:
        rows, first, last = self._db.execute(
            f"SELECT count(*), min(wall_ns), max(wall_ns) FROM {self._read}"
        ).fetchone()
        slices = self._sliced(rows) if self._slice_rows else []
        groups, weights = self._grouped(max(len(slices), 1))
        each = len(groups) // max(len(slices), 1)
        slices = [
            msgspec.structs.replace(one, first_group=i * each, end_group=(i + 1) * each)
            for i, one in enumerate(slices)
        ]
        durations, wholes = self._durations(len(groups))
        sums, slowest = {}, {}
        for metric in METRICS:
            sums[metric], slowest[metric] = self._metric(metric, *wholes[metric])
        head = Head(rows, first or 0, last or 0, groups, weights, durations, sums, slowest, slices)
        text = msgspec.json.encode(head)
        text += b" " * (-len(text) % 8)
        return _MAGIC + struct.pack("<Q", len(text)) + text + b"".join(self._pieces)

    def _put(self, piece: bytes) -> int:
        at = self._at
        self._pieces.append(piece + b"\0" * (-len(piece) % 8))
        self._at += len(self._pieces[-1])
        return at

    def _sliced(self, rows: int) -> list[Slice]:
        found = self._db.execute(f"""SELECT file_row_number // {self._slice_rows} AS i, min(wall_ns), max(wall_ns)
            FROM {self._read} GROUP BY i ORDER BY i""").fetchall()
        step = self._slice_rows
        return [
            Slice(i * step, min((i + 1) * step, rows), first or 0, last or 0, 0, 0)
            for i, first, last in found
        ]

    def _grouped(self, slices: int) -> tuple[list[Group], list[int]]:
        """The groups of each slice and their weights; `_order` has the completed rows group by group, from `_edges[g]` on."""
        done = f"{self._weighted()} WHERE outcome = 'completed'"
        found = self._db.execute(
            f"SELECT DISTINCT run_id, model, engine, {THOUSANDTHS} AS w FROM {done} ORDER BY ALL"
        ).fetchall()
        listed = ", ".join(quoted("\x1f".join(map(str, group))) for group in found) or "''"
        told = f"run_id || chr(31) || model || chr(31) || engine || chr(31) || {THOUSANDTHS}"
        of = f"file_row_number // {self._slice_rows} * {len(found)} + " if self._slice_rows else ""
        group = arrays(
            self._db.execute(f"SELECT ({of}list_position([{listed}], {told}) - 1)::INTEGER AS g FROM {done}")
        )["g"]
        self._order = np.argsort(group, kind="stable").astype(np.uint32)
        self._edges = np.searchsorted(group[self._order], np.arange(slices * len(found) + 1)).tolist()
        return [row[:3] for row in found] * slices, [row[3] for row in found] * slices

    def _weighted(self) -> str:
        """What is read; a file of before there were weights has none."""
        names = {row[0] for row in self._db.execute(f"DESCRIBE SELECT * FROM {self._read}").fetchall()}
        return self._read if "weight" in names else f"(SELECT *, 1 AS weight FROM {self._read})"

    def _span(self, i: int) -> np.ndarray:
        """Nanoseconds of a span, group by group: one at a time, so that an hour's rows are never in memory whole."""
        _, start, end = SPANS[i]
        value = f"CASE WHEN {both(start, end)} THEN {took(start, end)} ELSE -1 END"
        sql = f"SELECT {value} AS d FROM {self._read} WHERE outcome = 'completed'"
        return arrays(self._db.execute(sql))["d"].astype(np.int64, copy=False)[self._order]

    def _durations(self, groups: int) -> tuple[list[list[tuple[int, int, int]]], dict[str, tuple[Any, Any]]]:
        """Where the ascending times are; by metric the whole of each row, and what of it the stages leave."""
        found: list[list[tuple[int, int, int]]] = [[] for _ in range(groups)]
        explained = np.zeros(len(self._order), dtype=np.int64)
        upto: dict[int, np.ndarray] = {}
        wholes: dict[str, tuple[Any, Any]] = {}
        for i, (name, _, _) in enumerate(SPANS):
            took_ns = self._span(i)
            for group in range(groups):
                mine = np.sort(took_ns[self._edges[group] : self._edges[group + 1]])
                mine = mine[np.searchsorted(mine, 0) :]
                found[group].append((self._put(encoded(mine)), len(mine), int(mine.sum())))
            if name in METRICS:
                wholes[name] = (took_ns, took_ns - upto.pop(METRICS[name]))
            else:
                explained += np.maximum(took_ns, 0)
                if i + 1 in METRICS.values():
                    upto[i + 1] = explained.copy()
        return found, wholes

    def _metric(
        self, metric: str, whole: np.ndarray, rest: np.ndarray
    ) -> tuple[list[list[int]], list[tuple[int, int]]]:
        """Sums of each group, and where its slowest are."""
        fine = (whole >= 0) & (rest >= 0)
        groups = list(zip(self._edges[:-1], self._edges[1:], strict=True))
        slow = [self._slow_rows(whole, fine, start, end) for start, end in groups]
        sums = [[int(fine[s:e].sum()), int(whole[s:e][fine[s:e]].sum())] for s, e in groups]
        columns = [[whole[rows]] for rows in slow]
        for i in range(METRICS[metric]):
            took_ns = self._span(i)
            np.maximum(took_ns, 0, out=took_ns)
            for group, (start, end) in enumerate(groups):
                sums[group].append(int(took_ns[start:end][fine[start:end]].sum()))
                columns[group].append(took_ns[slow[group]])
        tables = [np.stack(column, axis=1).astype("<i8") for column in columns]
        return sums, [(self._put(table.tobytes()), len(table)) for table in tables]

    def _slow_rows(self, whole: np.ndarray, fine: np.ndarray, start: int, end: int) -> np.ndarray:
        """Rows of the slowest share of a group, the slowest first; with all that are as slow as the last of them."""
        rows = np.flatnonzero(fine[start:end]) + start
        if not len(rows):
            return rows
        values = whole[rows]
        place = int((1 - SLOWEST) * (len(values) - 1))
        rows = rows[values >= np.partition(values, place)[place]]
        ordered: np.ndarray = rows[np.argsort(-whole[rows], kind="stable")]
        return ordered


class Index:
    """An index that is open: the file is mapped, and read where it is asked.

    Raises:
        OSError: there is none.
        ValueError: it is something else, or was cut off.

    """

    def __init__(self, path: Path) -> None:
        self._data = data = np.memmap(path, dtype=np.uint8, mode="r").view(np.ndarray)
        if data[:8].tobytes() != _MAGIC or len(data) < 16:
            raise ValueError(f"{path} is no index")
        (size,) = struct.unpack("<Q", data[8:16].tobytes())
        self._base = 16 + size
        try:
            self.head = msgspec.json.decode(data[16 : min(self._base, len(data))].tobytes(), type=Head)
        except msgspec.DecodeError as error:
            raise ValueError(f"{path} has no head: {error}") from None
        if len(data) < self._base + self._length():
            raise ValueError(f"{path} was cut off")

    def _length(self) -> int:
        """Bytes behind the head: the slowest rows are the last of them."""
        tables = [
            (at, 8 * n * (1 + METRICS[metric]))
            for metric, slow in self.head.slowest.items()
            for at, n in slow
        ]
        return max((at + size for at, size in tables), default=0)

    def groups(self, wanted: Sequence[str | None], first: int = 0, end: int | None = None) -> list[int]:
        """Groups of this run, model and engine (None: any), of those from `first` up to before `end`."""
        return [
            i
            for i, group in enumerate(self.head.groups[first:end], first)
            if all(want is None or want == told for want, told in zip(wanted, group, strict=True))
        ]

    def durations(self, group: int, span: int, weight: int = 1) -> Ordered:
        """All times of a span, ascending, each standing for `weight`."""
        offset, n, total = self.head.durations[group][span]
        return Ordered(self._data, self._base + offset, n, total, weight)

    def slowest(self, metric: str, group: int) -> np.ndarray:
        """(k, 1 + stages) int64 ns: whole and stages, the slowest first."""
        offset, n = self.head.slowest[metric][group]
        width = 1 + METRICS[metric]
        start = self._base + offset
        return self._data[start : start + 8 * n * width].view("<i8").reshape(n, width)
