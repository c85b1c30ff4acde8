"""Answers from indexes: the same rows as the named queries give, without reading the parts that have one (`telemetry.indexes`).

A part whose index lies wholly in the asked window is answered from the index; one that is not in it at all is left out; one that the window cuts is
answered by its slices in the same way, and of those that are cut themselves the rows are read; so are the others (the hour that is not over), and what
they hold is put beside the indexes'.  When no part and no slice can be answered from an index there is nothing to gain, and the query is asked as it is.

The slowest 1 % of a window are in the indexes' slowest 3 % unless one hour, or one slice, was much slower than the rest: of which that is not
certain, the rows are read.

Deliberately absent: approximation.
"""

import math
import resource
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sits.core.breakpoints import STAGES
from sits.telemetry.indexes import METRICS, Index, index_of, slices_of
from sits.telemetry.ordered import Ascending, InMemory, interpolated, stepped
from sits.telemetry.stage_queries import LEVELS, MORE, SLOW_LEVEL, SPANS, WHOLE
from sits.telemetry.unindexed import Ask, Parts, Piece, Rows, read

MS = 1e6

FILES_SHARE = 2
"""A mapped index keeps a file open: they may be one in so many of those a process can have."""

SLICED_MAX = 16
"""Files of slices that stay open: a window cuts an hour at each end, of which every writer has a file."""


class Source(NamedTuple):
    """What an index answers of a part: all of it, or the groups of a slice, and which rows (None: all) are behind them."""

    part: Path
    held: Index
    first_group: int = 0
    end_group: int | None = None
    rows: tuple[int, int] | None = None


class Window(NamedTuple):
    """What is asked of which parts."""

    given: Mapping[str, Any]
    indexed: list[Source]
    read: Parts
    ask: Ask

    def groups(self) -> Iterable[tuple[tuple[str, str], Index, int]]:
        """Model and engine, the index, and the number of the group there."""
        for source in self.indexed:
            for group in self.groups_of(source):
                _, model, engine = source.held.head.groups[group]
                yield (model, engine), source.held, group

    def groups_of(self, source: Source) -> list[int]:
        """Groups of a source that are asked for."""
        wanted = [self.given.get(name) for name in ("run_id", "model", "engine")]
        return source.held.groups(wanted, source.first_group, source.end_group)

    def reading(self, sources: Sequence[Source]) -> "Window":
        """The same with the rows of these sources read."""
        parts, pieces = [*self.read.whole], [*self.read.pieces]
        for source in sources:
            if source.rows is None:
                parts.append(source.part)
            else:
                pieces.append(Piece(source.part, *source.rows))
        rest = [source for source in self.indexed if source not in sources]
        return self._replace(indexed=rest, read=Parts(parts, pieces))

    def thinned(self, rows: Iterable[Rows]) -> bool:
        """Whether any row stands for several requests, of those that are read or in an index."""
        return any(some.weight > WHOLE for some in rows) or any(
            index.head.weights[group] > WHOLE for _, index, group in self.groups()
        )


class Indexes:
    """Indexes that are open, by part; one that cannot be read is as none, and so are those for which a process has no files left."""

    def __init__(self) -> None:
        self._open: dict[Path, Index] = {}
        self._sliced: dict[Path, Index] = {}

    def of(self, parts: Sequence[Path]) -> dict[Path, Index]:
        """The index of each part that has one, the newest first to be opened."""
        kept = {part: self._open[part] for part in parts if part in self._open}
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        for part in reversed(parts):
            if files != resource.RLIM_INFINITY and len(kept) >= files // FILES_SHARE:
                break
            if part not in kept and (index := _opened(index_of(part))) is not None:
                kept[part] = index
        self._open = kept
        return {part: kept[part] for part in parts if part in kept}

    def slices(self, part: Path) -> Index | None:
        """The slices of a part; those of the last few are open."""
        index = self._sliced.pop(part, None) or _opened(slices_of(part))
        if index is not None:
            self._sliced[part] = index
            while len(self._sliced) > SLICED_MAX:
                self._sliced.pop(next(iter(self._sliced)))
        return index


def _opened(path: Path) -> Index | None:
    try:
        return Index(path)
    except (OSError, ValueError):
        return None


def window(parts: Sequence[Path], indexes: Indexes, given: Mapping[str, Any], ask: Ask) -> Window:
    """Sort the parts, and the slices of those that are cut, into those to answer from and those to read."""
    found = indexes.of(parts)
    inside: list[Source] = []
    read = Parts([], [])
    for part in parts:
        index = found.get(part)
        whole = None if index is None else _within(given, index.head.first_wall_ns, index.head.last_wall_ns)
        if index is not None and whole:
            inside.append(Source(part, index))
        elif index is None or whole is None:
            sliced = None if index is None else indexes.slices(part)
            if sliced is None or not sliced.head.slices:
                read.whole.append(part)
            else:
                _slice(part, sliced, given, inside, read.pieces)
    return Window(given, inside, read, ask)


def _within(given: Mapping[str, Any], first: int, last: int) -> bool | None:
    """Whether times from `first` to `last` are in the window; None: some of them may be."""
    since, until = given.get("since_wall_ns"), given.get("until_wall_ns")
    if (since is None or since <= first) and (until is None or last < until):
        return True
    return None if (since is None or since <= last) and (until is None or first < until) else False


def _slice(
    part: Path, sliced: Index, given: Mapping[str, Any], inside: list[Source], pieces: list[Piece]
) -> None:
    """Sort the slices of a part; those that are read, and follow each other, are one piece."""
    for one in sliced.head.slices:
        within = _within(given, one.first_wall_ns, one.last_wall_ns)
        if within:
            rows = one.first_row, one.end_row
            inside.append(Source(part, sliced, one.first_group, one.end_group, rows))
        elif within is None:
            last = pieces[-1] if pieces else None
            if last is not None and last.part == part and last.end_row == one.first_row:
                pieces[-1] = last._replace(end_row=one.end_row)
            else:
                pieces.append(Piece(part, one.first_row, one.end_row))


def rows_read(asked: Window) -> list[Rows]:
    """The completed requests of what no index answers."""
    return read(asked.ask, asked.read, asked.given)


def stage_quantiles(asked: Window) -> list[dict[str, Any]]:
    """Rows of the query of this name; means are of whole sums here too."""
    rows = rows_read(asked)
    thinned = asked.thinned(rows)
    found: dict[tuple[str, str], list[list[Ascending]]] = {}
    for key, index, group in asked.groups():
        spans = found.setdefault(key, [[] for _ in SPANS])
        weight = index.head.weights[group] if thinned else 1
        for i in range(len(SPANS)):
            spans[i].append(index.durations(group, i, weight))
    for some in rows:
        spans = found.setdefault(some.key, [[] for _ in SPANS])
        for i in range(len(SPANS)):
            took_ns = np.sort(some.span(i))
            took_ns = took_ns[np.searchsorted(took_ns, 0) :]
            spans[i].append(InMemory(took_ns, some.weight if thinned else 1))
    made = []
    for (model, engine), spans in sorted(found.items()):
        for i, (name, _, _) in enumerate(SPANS):
            n = sum(array.n * array.weight for array in spans[i])
            if n:
                quantiles = (stepped if thinned else interpolated)(spans[i], LEVELS)
                stands = _rounded(n) if thinned else n
                row = {"model": model, "engine": engine, "stage": name, "position": i, "n": stands}
                row["mean_ms"] = sum(array.total * array.weight for array in spans[i]) / n / MS
                made.append(
                    row | {f"p{q * 100:.0f}_ms": v / MS for q, v in zip(LEVELS, quantiles, strict=True)}
                )
    return made


def slow_stages(asked: Window, metric: str) -> list[dict[str, Any]]:
    """Rows of `slow_ttft_stages` or `slow_e2e_stages`; where an index does not hold all that are that slow, rows are read."""
    span = [name for name, _, _ in SPANS].index(metric)
    stages = METRICS[metric]
    groups = list(asked.groups())
    rows = rows_read(asked)
    thinned = asked.thinned(rows)
    wholes: list[Ascending] = [
        index.durations(group, span, index.head.weights[group] if thinned else 1)
        for _, index, group in groups
    ]
    tables = []
    for some in rows:
        whole = some.span(span)
        wholes.append(InMemory(np.sort(whole[whole >= 0]), some.weight if thinned else 1))
        table = np.stack([whole, *(np.maximum(some.span(i), 0) for i in range(stages))], axis=1)
        tables.append(table[(whole >= 0) & (whole >= table[:, 1:].sum(axis=1))])
    if not sum(array.n for array in wholes):
        return []
    (bound,) = stepped(wholes, (SLOW_LEVEL + MORE,)) if thinned else interpolated(wholes, (SLOW_LEVEL,))
    if lacking := [source for source in asked.indexed if _lacks(asked, source, metric, bound)]:
        return slow_stages(asked.reading(lacking), metric)
    slow, total = np.zeros(stages + 2), np.zeros(stages + 2)
    for _, index, group in groups:
        table, weight = index.slowest(metric, group), index.head.weights[group] / WHOLE
        total += np.array(index.head.sums[metric][group]) * weight
        slow += _sums(table[table[:, 0] >= bound]) * weight
    for some, table in zip(rows, tables, strict=True):
        weight = some.weight / WHOLE
        total += _sums(table) * weight
        slow += _sums(table[table[:, 0] >= bound]) * weight
    if not slow[0]:
        return []
    return _shares([*STAGES[:stages], "unattributed"], slow, total - slow)


def _lacks(asked: Window, source: Source, metric: str, bound: float) -> bool:
    """Whether rows may be that slow that are not among the slowest of the source."""
    for group in asked.groups_of(source):
        table = source.held.slowest(metric, group)
        if len(table) < source.held.head.sums[metric][group][0] and table[-1, 0] >= bound:
            return True
    return False


def _sums(table: np.ndarray) -> np.ndarray:
    return np.array([len(table), *table.sum(axis=0, dtype=np.float64)])


def _rounded(thousandths: float) -> int:
    return math.floor(thousandths / WHOLE + 0.5)


def _shares(names: Sequence[str], slow: np.ndarray, rest: np.ndarray) -> list[dict[str, Any]]:
    made = []
    for i, name in enumerate(names):
        counts = {"slow_n": math.floor(slow[0] + 0.5), "rest_n": math.floor(rest[0] + 0.5)}
        row: dict[str, Any] = {"stage": name, "position": i, **counts}
        for side, sums in (("slow", slow), ("rest", rest)):
            value = sums[2 + i] if i < len(names) - 1 else sums[1] - sums[2:].sum()
            row[f"{side}_mean_ms"] = float(value / sums[0] / MS) if sums[0] else None
            row[f"{side}_share"] = float(value / sums[1]) if sums[0] else None
        made.append(row)
    return made


def _slow(metric: str) -> Callable[[Window], list[dict[str, Any]]]:
    return lambda asked: slow_stages(asked, metric)


QUICK: Mapping[str, Callable[[Window], list[dict[str, Any]]]] = {
    "stage_quantiles": stage_quantiles,
    "slow_ttft_stages": _slow("ttft"),
    "slow_e2e_stages": _slow("e2e"),
}
"""Queries answered from a window."""
