"""Answers from indexes: the same rows as the named queries give, without reading the parts that have one (`telemetry.indexes`).

A part whose index lies wholly in the asked window is answered from the index; one that is not in it at all is left out; the others (the
hour that is not over, both ends of a window) are read, and what they hold is put beside the indexes'.  When no part can be answered
from an index there is nothing to gain, and the query is asked as it is.

The slowest 1 % of a window are in the indexes' slowest 3 % unless one hour was much slower than the rest; a part of which that is not
certain makes that the query is asked as it is.

Deliberately absent: approximation.
"""

# ruff: noqa: S608 - only our own column names and quoted file names are put into SQL

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sits.core.breakpoints import STAGES
from sits.telemetry.indexes import METRICS, Index, index_of
from sits.telemetry.ordered import Ordered, in_memory, interpolated
from sits.telemetry.stage_queries import BOUNDS, LEVELS, SPANS, both, took

MS = 1e6

Ask = Callable[[Sequence[Path], str, Mapping[str, Any]], Mapping[str, np.ndarray]]
"""Columns of a select from `requests` made of these files and what is pending, with parameters."""


class Window(NamedTuple):
    """What is asked of which parts."""

    given: Mapping[str, Any]
    indexed: list[Index]
    read: list[Path]
    ask: Ask

    def groups(self) -> Iterable[tuple[tuple[str, str], Index, int]]:
        """Model and engine, the index, and the number of the group there."""
        wanted = [self.given.get(name) for name in ("run_id", "model", "engine")]
        for index in self.indexed:
            for group in index.groups(wanted):
                _, model, engine = index.head.groups[group]
                yield (model, engine), index, group


class Indexes:
    """Indexes that are open, by part; one that cannot be read is as none."""

    def __init__(self) -> None:
        self._open: dict[Path, Index | None] = {}

    def of(self, parts: Sequence[Path]) -> dict[Path, Index]:
        """The index of each part that has one."""
        self._open = {part: self._open[part] if self._open.get(part) else _opened(part) for part in parts}
        return {part: index for part, index in self._open.items() if index is not None}


def _opened(part: Path) -> Index | None:
    try:
        return Index(index_of(part))
    except (OSError, ValueError):
        return None


def window(
    parts: Sequence[Path], indexes: Mapping[Path, Index], given: Mapping[str, Any], ask: Ask
) -> Window:
    """Sort the parts into those to answer from and those to read."""
    since, until = given.get("since_wall_ns"), given.get("until_wall_ns")
    inside, read = [], []
    for part in parts:
        index = indexes.get(part)
        if index is None:
            read.append(part)
        elif (since is None or since <= index.head.first_wall_ns) and (
            until is None or index.head.last_wall_ns < until
        ):
            inside.append(index)
        elif (since is None or since <= index.head.last_wall_ns) and (
            until is None or index.head.first_wall_ns < until
        ):
            read.append(part)
    return Window(given, inside, read, ask)


def stage_quantiles(asked: Window) -> list[dict[str, Any]]:
    """Rows of the query of this name; means are of whole sums here too."""
    found: dict[tuple[str, str], list[list[Ordered]]] = {}
    for key, index, group in asked.groups():
        spans = found.setdefault(key, [[] for _ in SPANS])
        for i in range(len(SPANS)):
            spans[i].append(index.durations(group, i))
    for key, columns in _read(asked, asked.read).items():
        spans = found.setdefault(key, [[] for _ in SPANS])
        for i in range(len(SPANS)):
            values = np.sort(columns[i])
            spans[i].append(in_memory(values[np.searchsorted(values, 0) :]))
    made = []
    for (model, engine), spans in sorted(found.items()):
        for i, (name, _, _) in enumerate(SPANS):
            n = sum(array.n for array in spans[i])
            if n:
                quantiles = interpolated(spans[i], LEVELS)
                row = {"model": model, "engine": engine, "stage": name, "position": i, "n": n}
                row["mean_ms"] = sum(array.total for array in spans[i]) / n / MS
                made.append(
                    row | {f"p{q * 100:.0f}_ms": v / MS for q, v in zip(LEVELS, quantiles, strict=True)}
                )
    return made


def slow_stages(asked: Window, metric: str) -> list[dict[str, Any]] | None:
    """Rows of `slow_ttft_stages` or `slow_e2e_stages`; None when an index does not hold all that are that slow."""
    span = [name for name, _, _ in SPANS].index(metric)
    stages = METRICS[metric]
    groups = list(asked.groups())
    rows = list(_read(asked, asked.read).values())
    wholes = [index.durations(group, span) for _, index, group in groups]
    wholes += [in_memory(np.sort(columns[span][columns[span] >= 0])) for columns in rows]
    if not sum(array.n for array in wholes):
        return []
    (bound,) = interpolated(wholes, (0.99,))
    slow, total = np.zeros(stages + 2), np.zeros(stages + 2)
    for _, index, group in groups:
        table = index.slowest(metric, group)
        kept = index.head.sums[metric][group]
        if len(table) < kept[0] and table[-1, 0] >= bound:
            return None
        total += kept
        over = table[table[:, 0] >= bound]
        slow += [len(over), *over.sum(axis=0, dtype=np.float64)]
    for columns in rows:
        table = np.stack([columns[span], *(np.maximum(columns[i], 0) for i in range(stages))], axis=1)
        table = table[(table[:, 0] >= 0) & (table[:, 0] >= table[:, 1:].sum(axis=1))]
        over = table[table[:, 0] >= bound]
        total += [len(table), *table.sum(axis=0, dtype=np.float64)]
        slow += [len(over), *over.sum(axis=0, dtype=np.float64)]
    if not slow[0]:
        return []
    return _shares([*STAGES[:stages], "unattributed"], slow, total - slow)


def _shares(names: Sequence[str], slow: np.ndarray, rest: np.ndarray) -> list[dict[str, Any]]:
    made = []
    for i, name in enumerate(names):
        row: dict[str, Any] = {"stage": name, "position": i, "slow_n": int(slow[0]), "rest_n": int(rest[0])}
        for side, sums in (("slow", slow), ("rest", rest)):
            value = sums[2 + i] if i < len(names) - 1 else sums[1] - sums[2:].sum()
            row[f"{side}_mean_ms"] = float(value / sums[0] / MS) if sums[0] else None
            row[f"{side}_share"] = float(value / sums[1]) if sums[0] else None
        made.append(row)
    return made


def _read(asked: Window, parts: Sequence[Path]) -> dict[tuple[str, str], list[np.ndarray]]:
    """Ns of every span (-1 where there is none) of the completed requests in what is read, by model and engine."""
    columns = ", ".join(
        f"CASE WHEN {both(start, end)} THEN {took(start, end)} ELSE -1 END AS d{i}"
        for i, (_, start, end) in enumerate(SPANS)
    )
    got = asked.ask(
        parts,
        f"SELECT model, engine, {columns} FROM requests WHERE {BOUNDS} AND outcome = 'completed'",
        asked.given,
    )
    keys = list(zip(got["model"].tolist(), got["engine"].tolist(), strict=True))
    number = {key: i for i, key in enumerate(sorted(set(keys)))}
    group = np.array([number[key] for key in keys], dtype=np.int64)
    return {
        key: [got[f"d{span}"][group == i].astype(np.int64) for span in range(len(SPANS))]
        for key, i in number.items()
    }


def _quantiles(asked: Window) -> list[dict[str, Any]] | None:
    return stage_quantiles(asked)


def _slow(metric: str) -> Callable[[Window], list[dict[str, Any]] | None]:
    return lambda asked: slow_stages(asked, metric)


QUICK: Mapping[str, Callable[[Window], list[dict[str, Any]] | None]] = {
    "stage_quantiles": _quantiles,
    "slow_ttft_stages": _slow("ttft"),
    "slow_e2e_stages": _slow("e2e"),
}
"""Queries answered from a window; None when the indexes do not suffice."""
