"""Rows on their way to the store, thinned: what `policy.sample` needs to know is taken from packed rows, all that came at once.

Rules: everything was counted before it comes here.  What is not kept costs no columns.  A kept row says in `weight` how many finished
requests it stands for.  The decision record of a request is kept or dropped with its row: who decides a request again needs to know how
it went, and the records are the greater part of a store.  A record whose row is not known yet is kept.

Deliberately absent: which rows are kept.
"""

from collections.abc import Sequence
from itertools import compress
from typing import Any

import numpy as np

from sits.core.breakpoints import API_RECV, FIRST_TOKEN, POINT_COUNT, SENT
from sits.core.ports import World
from sits.policy.outcome import is_error
from sits.policy.sample import REASONS, Batch, Sampler, randomness
from sits.telemetry.packing import KIND, Packed
from sits.telemetry.recorder import OWN_TEXTS
from sits.telemetry.rows import plain_columns, request_columns
from sits.telemetry.tables import Columns

_ID, _TRACE = OWN_TEXTS.index("id"), OWN_TEXTS.index("trace_id")
_TENANT, _MODEL, _ENGINE, _OUTCOME, _STATUS, _DETAIL = map(
    KIND.index, ("tenant", "model", "engine", "outcome", "status", "detail")
)


class Thinning:
    """Thins what one thread writes to a store.

    Attributes:
        kept: rows kept, by the place of the reason in `REASONS`; `thinned`: rows that were not.

    """

    def __init__(self, sampler: Sampler, world: World) -> None:
        self.sampler = sampler
        self.kept = [0] * len(REASONS)
        self.thinned = 0
        self._world = world
        self._gone: set[str] = set()
        self._gone_before: set[str] = set()

    def requests(self, batches: Sequence[tuple[str, Packed]]) -> Columns:
        """Columns of table `requests`: of the rows that are kept, in the order of the batches."""
        self._gone_before, self._gone = self._gone, set()
        if self.sampler.keep.share >= 1.0 or not batches:
            self.kept[-1] += sum(len(part) for _, part in batches)
            return request_columns(batches, self._world)
        parts = [part for _, part in batches]
        found = self.sampler.decide(self._batch(parts), self._world.now_ns())
        self.kept = [mine + more for mine, more in zip(self.kept, found.reasons, strict=True)]
        if found.rows.all():
            columns = request_columns(batches, self._world)
        else:
            columns = request_columns(self._thinned(batches, found.rows), self._world)
        columns["weight"] = found.weight[found.rows]
        return columns

    def decisions(self, batches: Sequence[tuple[str, Sequence[tuple[Any, ...]]]]) -> Columns:
        """Columns of table `decisions`: of requests that were kept, or have not come yet."""
        gone = self._gone | self._gone_before
        if gone:
            batches = [(run_id, [row for row in rows if row[0] not in gone]) for run_id, rows in batches]
        return plain_columns("decisions", batches)

    def _batch(self, parts: Sequence[Packed]) -> Batch:
        keep, number = self.sampler.keep, self.sampler.number
        at = np.frombuffer(b"".join([part.at for part in parts]), dtype=np.int64).reshape(-1, POINT_COUNT)
        how = np.frombuffer(b"".join([part.how for part in parts]), dtype=np.uint8).reshape(-1, POINT_COUNT)
        codes: dict[tuple[Any, ...], int] = {}
        kind: list[int] = []
        for part in parts:
            mine = [codes.setdefault(tuple(about), len(codes)) for about in part.kinds]
            kind += [mine[one] for one in part.kind]
        which = np.array(kind, dtype=np.intp)
        of_kind = [
            (
                number(k[_MODEL]),
                is_error(k[_OUTCOME], k[_STATUS], k[_DETAIL]),
                k[_OUTCOME] == "cancelled",
                keep.pins(k[_TENANT], k[_MODEL], k[_ENGINE]),
            )
            for k in codes
        ]
        model, error, cancelled, pinned = (
            np.array(values, dtype=kind)[which]
            for values, kind in zip(zip(*of_kind, strict=True), (np.int64, bool, bool, bool), strict=True)
        )
        traces = [
            trace or own
            for part in parts
            for own, trace in zip(part.texts[_ID], part.texts[_TRACE], strict=True)
        ]
        if keep.traces:
            pinned |= np.array([trace in keep.traces for trace in traces])
        return Batch(
            model=model,
            error=error,
            cancelled=cancelled,
            pinned=pinned,
            ttft_ns=_since_begin(at, how, FIRST_TOKEN),
            e2e_ns=_since_begin(at, how, SENT),
            random=randomness(traces),
        )

    def _thinned(self, batches: Sequence[tuple[str, Packed]], rows: np.ndarray) -> list[tuple[str, Packed]]:
        found, first = [], 0
        for run_id, part in batches:
            mine = rows[first : first + len(part)]
            first += len(part)
            chosen = mine.tolist()
            self.thinned += len(part) - sum(chosen)
            self._gone.update(compress(part.texts[_ID], (~mine).tolist()))
            found.append((run_id, _of(part, chosen, mine)))
        return found


def _of(part: Packed, chosen: list[bool], mine: np.ndarray) -> Packed:
    """The chosen rows of a part."""
    at = np.frombuffer(part.at, dtype=np.uint8).reshape(len(chosen), -1)
    how = np.frombuffer(part.how, dtype=np.uint8).reshape(len(chosen), -1)
    return Packed(
        kinds=part.kinds,
        kind=list(compress(part.kind, chosen)),
        texts=[list(compress(column, chosen)) for column in part.texts],
        numbers=[list(compress(column, chosen)) for column in part.numbers],
        at=at[mine].tobytes(),
        how=how[mine].tobytes(),
    )


def _since_begin(at: np.ndarray, how: np.ndarray, point: int) -> np.ndarray:
    """Ns from the first byte to `point`; -1 where either was not seen."""
    return np.where((how[:, API_RECV] > 0) & (how[:, point] > 0), at[:, point] - at[:, API_RECV], -1)


def standing_for(requests: Columns) -> Columns:
    """Rows of table `requests`, each as often as it stands for (`weight`; missing or 0 is once), in their order.

    Weights that are no whole number are rounded so that running totals are right to half a request.
    """
    weight = requests.get("weight")
    if weight is None or not len(weight) or (weight <= 1.0).all():
        return requests
    total = np.rint(np.cumsum(np.maximum(weight, 1.0))).astype(np.int64)
    times = np.diff(total, prepend=0)
    return {name: np.repeat(values, times) for name, values in requests.items()}
