"""Completed requests that no index knows, read for their times: columns of points, group by group, without a Python object a row.

A time is the difference of two points, and a point was seen where its digit of `exactness` is not 0 (as `stage_queries.seen` has it).  There are few
combinations of model, engine, weight and digits, so the database gives each row one number for its own (a hash), and what is behind the
numbers once.

Deliberately absent: what is made of the times (`telemetry.indexed`).
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sits.core.breakpoints import NAMES, POINT_COUNT
from sits.telemetry.stage_queries import BOUNDS, SPANS, THOUSANDTHS


class Piece(NamedTuple):
    """Rows of a file, from `first_row` up to before `end_row`."""

    part: Path
    first_row: int
    end_row: int


class Parts(NamedTuple):
    """Files to be read whole, and pieces of others."""

    whole: list[Path]
    pieces: list[Piece]


Ask = Callable[[Parts, str, Mapping[str, Any]], Mapping[str, np.ndarray]]
"""Columns of a select from `requests` made of these and what is pending, with parameters."""

_KIND = f"hash(model, engine, {THOUSANDTHS}, exactness)"
_DONE = f"FROM requests WHERE {BOUNDS} AND outcome = 'completed'"
_KINDS = f"SELECT DISTINCT {_KIND} AS kind, model, engine, {THOUSANDTHS} AS weight, exactness {_DONE}"
_ROWS = f"SELECT {_KIND} AS kind, {', '.join(NAMES)} {_DONE}"


FEW = 512
"""Kinds that are kept apart: then all rows beside each other have seen the same points."""


class Rows(NamedTuple):
    """Rows of one model and engine that stand for equally many requests (in thousandths): their points, and which of them were seen.

    `seen` has one row for all (`kind` is then empty), or one a kind, and `kind` says which is whose.
    """

    key: tuple[str, str]
    weight: int
    at: list[np.ndarray]
    seen: np.ndarray
    kind: np.ndarray

    def span(self, i: int) -> np.ndarray:
        """Ns of span `i` of each row; -1 where there is none."""
        _, start, end = SPANS[i]
        fine = self.seen[:, start] & self.seen[:, end]
        if not fine.any():
            return np.full(len(self.at[0]), -1)
        took: np.ndarray = self.at[end] - self.at[start]
        if not fine.all():
            took[~fine[self.kind]] = -1
        np.maximum(took, -1, out=took)
        return took


def read(ask: Ask, parts: Parts, given: Mapping[str, Any]) -> list[Rows]:
    """Completed requests in these and in what is pending, within the bounds that are given."""
    kinds = ask(parts, _KINDS, given)
    if not len(kinds["kind"]):
        return []
    told = list(zip(kinds["model"].tolist(), kinds["engine"].tolist(), kinds["weight"].tolist(), strict=True))
    seen = np.array([_seen(digits) for digits in kinds["exactness"].tolist()])
    groups = sorted(set(told))
    number = {group: i for i, group in enumerate(groups)}
    few = len(told) <= FEW
    group_of = np.arange(len(told)) if few else np.array([number[one] for one in told], dtype=np.int64)
    by_hash = np.argsort(kinds["kind"])
    rows = ask(parts, _ROWS, given)
    kind = by_hash[np.searchsorted(kinds["kind"][by_hash], rows["kind"])]
    group = group_of[kind].astype(np.uint16 if len(groups) < 2**16 else np.int64)
    order = np.argsort(group, kind="stable")
    edges = np.searchsorted(group[order], np.arange(len(told if few else groups) + 1)).tolist()
    at = [rows[name][order] for name in NAMES]
    made = []
    for i, (model, engine, weight) in enumerate(told if few else groups):
        some = slice(edges[i], edges[i + 1])
        mine = kind[:0] if few else kind[order[some]]
        points = [values[some] for values in at]
        made.append(Rows((model, engine), int(weight), points, seen[i : i + 1] if few else seen, mine))
    return made


def _seen(digits: str) -> list[bool]:
    return [digits[point : point + 1] != "0" for point in range(POINT_COUNT)]
