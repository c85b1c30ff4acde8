"""Where the time of a request went: one fixed row of timestamps cut into stages that add up.

Rules.  TTFT = `first_token - api_recv`, E2E = `sent - api_recv`.  Only completed requests with both ends seen
count; the others are in the account.  Consecutive *seen* points bound an interval: when they are neighbours
it is that stage, when points between them were not seen it is one named "unattributed (a..b)".  So for every
request, in integer nanoseconds, stages + unattributed = end to end.  Rows whose times decrease are left out
and counted.

Tail attribution: the mean time of each stage given that the request is in the slowest 1 %, beside the mean in
all others.  Means add, percentiles do not, so no percentile of a stage is ever added to another's: the
excesses of all stages add up to the excess of the whole.

Deliberately absent: why a stage took long (`attribute`, `causes`), and differences between runs (`compare`).
"""

from itertools import pairwise
from typing import Literal, NamedTuple

import numpy as np

from sits.core.breakpoints import (
    API_RECV,
    BREAKPOINTS,
    FIRST_TOKEN,
    NAMES,
    POINT_COUNT,
    SENT,
    Exactness,
)
from sits.core.errors import CallerError
from sits.core.report import Account, Bar, LatencySummary, Note, StageShare, Waterfall
from sits.diagnose.columns import OUTCOMES, Columns, Ints, points, require, rows_of, runs_of
from sits.diagnose.resample import DRAWS, Blocks, Tail, interval, quantile

Metric = Literal["ttft", "e2e"]
ENDS: dict[str, int] = {"ttft": FIRST_TOKEN, "e2e": SENT}
UNATTRIBUTED = "unattributed"
NS_PER_MS = 1e6


class Cut(NamedTuple):
    """Requests cut into stages.

    Attributes:
        metric: `ttft` or `e2e`.
        rows: (m,) rows of the request table that could be cut.
        names: stage names in timeline order, merged ones among them.
        pairs: the two points (indexes) that bound each of them.
        layers: layer of each stage; `unattributed` for a merged one.
        exactness: least trusted exactness of each stage's two ends over all rows it occurs in.
        stage_ns: (m, len(names)) int64; a stage that a request does not have is 0.
        total_ns: (m,) int64, equal to the row sums of `stage_ns`.
        at: (m, 20) int64 ns, how: (m, 20) exactness, of the same rows.
        run: (m,) run of the same rows, numbered as `columns.runs_of` numbers them.
        disordered: completed rows left out because their times decrease.
        incomplete: completed rows left out because an end was not seen.

    """

    metric: str
    rows: Ints
    names: tuple[str, ...]
    pairs: tuple[tuple[int, int], ...]
    layers: tuple[str, ...]
    exactness: tuple[str, ...]
    stage_ns: Ints
    total_ns: Ints
    at: Ints
    how: np.ndarray
    run: Ints
    disordered: int
    incomplete: int

    def stage(self, name: str) -> Ints:
        """(m,) ns of stage `name`; zeros when no request has it."""
        if name not in self.names:
            return np.zeros(len(self.rows), dtype=np.int64)
        return self.stage_ns[:, self.names.index(name)]


def end_of(metric: str) -> int:
    """Index of the point that ends `metric`.

    Raises:
        CallerError: not a metric.

    """
    if metric not in ENDS:
        raise CallerError(
            f"{metric!r} is not a latency", field="metric", value=metric, hint="one of ttft, e2e"
        )
    return ENDS[metric]


def stage_between(start: int, end: int) -> tuple[str, str]:
    """Name and layer of the interval between two consecutive seen points."""
    if end == start + 1:
        return BREAKPOINTS[end].stage, BREAKPOINTS[end].layer
    return f"{UNATTRIBUTED} ({NAMES[start]}..{NAMES[end]})", UNATTRIBUTED


def decompose(requests: Columns, metric: str) -> Cut:
    """Cut all completed requests of the table into stages up to the end of `metric`.

    Raises:
        CallerError: a column is missing or malformed, or `metric` is unknown.

    """
    end = end_of(metric)
    n = require(requests, ("id", "outcome"), "requests")
    at, how = points(requests)
    done = np.array([text == "completed" for text in requests["outcome"]], dtype=bool).reshape(n)
    whole = done & (how[:, API_RECV] > 0) & (how[:, end] > 0)
    latest = np.maximum.accumulate(
        np.where(how[:, : end + 1] > 0, at[:, : end + 1], np.iinfo(np.int64).min), axis=1
    )
    ordered = np.all((how[:, : end + 1] == 0) | (at[:, : end + 1] >= latest), axis=1)
    rows = np.flatnonzero(whole & ordered)
    return _cut(
        metric,
        end,
        rows,
        at[rows],
        how[rows],
        runs_of(requests)[rows],
        disordered=int(np.sum(whole & ~ordered)),
        incomplete=int(np.sum(done & ~whole)),
    )


def _cut(
    metric: str,
    end: int,
    rows: Ints,
    at: Ints,
    how: np.ndarray,
    run: Ints,
    *,
    disordered: int,
    incomplete: int,
) -> Cut:
    """Rows with the same set of seen points have the same stages: cut them pattern by pattern."""
    seen = how[:, : end + 1] > 0
    patterns, which = np.unique(seen @ (1 << np.arange(end + 1)), return_inverse=True)
    durations: dict[tuple[int, int], Ints] = {(i, i + 1): np.zeros(len(rows), np.int64) for i in range(end)}
    trust: dict[tuple[int, int], int] = {}
    for k, pattern in enumerate(patterns):
        members = np.flatnonzero(which == k)
        present = [i for i in range(end + 1) if int(pattern) >> i & 1]
        for pair in pairwise(present):
            column = durations.setdefault(pair, np.zeros(len(rows), np.int64))
            column[members] = at[members, pair[1]] - at[members, pair[0]]
            worst = int(how[members][:, list(pair)].min())
            trust[pair] = min(trust.get(pair, worst), worst)
    pairs = sorted(pair for pair in durations if pair in trust)
    described = [stage_between(*pair) for pair in pairs]
    return Cut(
        metric=metric,
        rows=rows,
        names=tuple(name for name, _ in described),
        pairs=tuple(pairs),
        layers=tuple(layer for _, layer in described),
        exactness=tuple(Exactness(trust[pair]).name.lower() for pair in pairs),
        stage_ns=np.column_stack([durations[pair] for pair in pairs])
        if pairs
        else np.zeros((0, 0), np.int64),
        total_ns=at[:, end] - at[:, API_RECV],
        at=at,
        how=how,
        run=run,
        disordered=disordered,
        incomplete=incomplete,
    )


_ENDS_UNSEEN = {
    "ttft": "no arrival or no first token was seen (an answer that is not streamed has none)",
    "e2e": "no arrival or no end of the answer was seen",
}


def left_out(requests: Columns, metric: str) -> tuple[Note, ...]:
    """What `decompose` left out of the completed requests, a note for each reason; empty when nothing was.

    Raises:
        CallerError: a column is missing or malformed, or `metric` is unknown.

    """
    cut = decompose(requests, metric)
    reasons = ((cut.disordered, "their times decrease"), (cut.incomplete, _ENDS_UNSEEN[metric]))
    return tuple(
        Note(
            "Left out",
            f"{n} completed request{'s are' if n > 1 else ' is'} left out of the decomposition of {metric.upper()}: {why}.",
        )
        for n, why in reasons
        if n
    )


def latency_summary(
    requests: Columns, metric: str, rng: np.random.Generator, *, draws: int = DRAWS
) -> LatencySummary:
    """Quantiles of `metric` over the completed requests, P99 with a block-bootstrap interval.

    Raises:
        CallerError: no completed request has this latency.

    """
    cut = decompose(requests, metric)
    if len(cut.rows) == 0:
        raise CallerError(
            f"no completed request has a {metric}",
            field="requests",
            hint="look at the account: who was refused?",
        )
    ascending = np.sort(cut.total_ns)
    drawn = Blocks(cut.at[:, API_RECV], rng, draws, run=cut.run).quantiles(cut.total_ns, 0.99)
    return LatencySummary(
        metric=metric,
        n=len(cut.rows),
        mean_ms=float(ascending.mean()) / NS_PER_MS,
        p50_ms=quantile(ascending, 0.5) / NS_PER_MS,
        p95_ms=quantile(ascending, 0.95) / NS_PER_MS,
        p99=interval(quantile(ascending, 0.99) / NS_PER_MS, drawn / NS_PER_MS),
        max_ms=float(ascending[-1]) / NS_PER_MS,
    )


def account(requests: Columns) -> Account:
    """Conservation of requests: every row is completed, failed, cancelled, refused, or in flight ("" so far).

    Raises:
        CallerError: an outcome that is none of these.

    """
    n = require(requests, ("outcome",), "requests")
    tally = dict.fromkeys((*OUTCOMES, "in_flight"), 0)
    for text in requests["outcome"]:
        outcome = str(text) or "in_flight"
        if outcome not in tally:
            raise CallerError(
                f"{outcome!r} is not an outcome",
                field="requests.outcome",
                value=outcome,
                hint=f"one of {', '.join(tally)}",
            )
        tally[outcome] += 1
    return Account(offered=n, **tally)


def stage_shares(
    requests: Columns, metric: str, rng: np.random.Generator, *, draws: int = DRAWS
) -> tuple[StageShare, ...]:
    """Tail attribution: each stage's mean in the slowest 1 % beside its mean in all others, and the excess.

    Raises:
        CallerError: fewer than two completed requests.

    """
    cut = decompose(requests, metric)
    tail = Tail(cut.total_ns, cut.at[:, API_RECV], rng, draws=draws, run=cut.run)
    rest, slow, excess = tail.against_rest(cut.stage_ns / NS_PER_MS)
    return tuple(
        StageShare(name, cut.layers[j], float(rest[j]), float(slow[j]), excess[j], cut.exactness[j])
        for j, name in enumerate(cut.names)
    )


_FACTS = (
    "tenant",
    "model",
    "adapter",
    "engine",
    "prompt_tokens",
    "output_tokens",
    "cached_tokens",
    "preemptions",
)


def waterfall(requests: Columns, row: int, label: str = "") -> Waterfall:
    """Row `row` of the table drawn stage by stage from `api_recv` to the last point seen.

    Raises:
        CallerError: no such row, its arrival was not seen, or its times decrease.

    """
    n = rows_of(requests)
    if not 0 <= row < n:
        raise CallerError(f"no request row {row}", field="row", value=row, hint=f"the table has {n} rows")
    one = {name: column[row : row + 1] for name, column in requests.items()}
    at, how = points(one)
    present = [i for i in range(POINT_COUNT) if how[0, i]]
    name = str(one["id"][0])
    if not present or present[0] != API_RECV:
        raise CallerError(
            f"request {name}: api_recv was not seen", field="api_recv", hint="choose another request"
        )
    bars = []
    for start, end in pairwise(present):
        length = int(at[0, end] - at[0, start])
        if length < 0:
            raise CallerError(
                f"request {name}: {NAMES[end]} is {-length} ns before {NAMES[start]}",
                field=NAMES[end],
                value=int(at[0, end]),
                hint="align the clocks of gateway and engine before recording",
            )
        stage, layer = stage_between(start, end)
        exact = Exactness(int(min(how[0, start], how[0, end]))).name.lower()
        begin_ms = int(at[0, start] - at[0, API_RECV]) / NS_PER_MS
        bars.append(Bar(stage, layer, begin_ms, length / NS_PER_MS, exact))
    total_ms = int(at[0, present[-1]] - at[0, API_RECV]) / NS_PER_MS
    facts = {key: str(one[key][0]) for key in _FACTS if key in one and str(one[key][0])}
    return Waterfall(name, label, total_ms, tuple(bars), facts)


def slow_and_normal(requests: Columns, metric: str = "ttft") -> tuple[Waterfall, Waterfall]:
    """The request nearest to P99 (a typical one of the tail, not the worst) and the one nearest to the median.

    Raises:
        CallerError: no completed request has this latency.

    """
    cut = decompose(requests, metric)
    ascending = np.sort(cut.total_ns)
    if len(ascending) == 0:
        raise CallerError(
            f"no completed request has a {metric}", field="requests", hint="look at the account"
        )
    drawn = []
    for q, label in ((0.99, "near P99"), (0.5, "near the median")):
        nearest = int(np.argmin(np.abs(cut.total_ns - quantile(ascending, q))))
        drawn.append(waterfall(requests, int(cut.rows[nearest]), f"{label} of {metric.upper()}"))
    return drawn[0], drawn[1]
