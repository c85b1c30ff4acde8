"""What slow requests look like, and what the run looked like over time.

*Heat map*: counts over prompt x output tokens, the slowest 1 % against the others, on edges that are powers
of two (lengths are spread over decades).  *Series*: lines over bins of equal width, on one axis of seconds
from the first arrival.  P99 of a bin is the rolling one: of the requests that arrived in the bin, widened
back in time until it holds `at_least` requests, because a P99 of three requests is a maximum.  Bins before
that many arrived, and bins without samples, have no point.

State lines come from `signals` where they were sampled, else from `steps`: waiting requests added up over
engines, KV use of the fullest engine, CPU share and backlog of the busiest gateway.  The bandwidth of the slowest
link is the other way round, from the steps' copies of at least `LEAST_BYTES` where there are steps: smaller ones
measure latency, and a sampled bandwidth does not say what it was measured on.

Bins count from the first arrival to the last, whatever became of those requests, so the lines of two runs of one
workload have the same edges.

Deliberately absent: tests of whether two lines move together.
"""

import math
from collections.abc import Callable

import numpy as np

from sits.core.breakpoints import API_RECV
from sits.core.errors import CallerError
from sits.core.report import HeatMap, Series
from sits.core.units import SECOND
from sits.diagnose.columns import Columns, Floats, Ints, points, rows_of, runs_of
from sits.diagnose.decompose import NS_PER_MS, decompose
from sits.diagnose.resample import TAIL_SHARE, quantile

LINK = "link_bandwidth_gbytes_per_s"
LEAST_BYTES = 2**20
"""Smaller copies tell a latency, not a bandwidth."""

_Samples = tuple[Ints, np.ndarray, Floats]


def heat_map(requests: Columns, metric: str, *, slow_share: float = TAIL_SHARE) -> HeatMap:
    """Counts of slow and other requests by prompt and output tokens.

    `slow[i][j]` counts slow requests with prompt in `x_edges[i]..x_edges[i+1]` and output in
    `y_edges[j]..y_edges[j+1]` (lower edge in, upper edge out); both tables together hold every completed request once.

    Raises:
        CallerError: no completed request, or a share outside (0, 1).

    """
    if not 0.0 < slow_share < 1.0:
        raise CallerError(
            f"slow share {slow_share}", field="slow_share", value=slow_share, hint="between 0 and 1"
        )
    cut = decompose(requests, metric)
    n = len(cut.rows)
    if n == 0:
        raise CallerError(
            f"no completed request has a {metric}", field="requests", hint="look at the account"
        )
    size = max(1, math.ceil(slow_share * n - 1e-9))
    slow = np.zeros(n, dtype=bool)
    slow[np.lexsort((np.arange(n), -cut.total_ns))[:size]] = True
    x, y = (requests[name][cut.rows].astype(np.float64) for name in ("prompt_tokens", "output_tokens"))
    edges = [_edges(values) for values in (x, y)]
    tables = [np.histogram2d(x[rows], y[rows], bins=edges)[0] for rows in (slow, ~slow)]
    return HeatMap(
        "prompt tokens",
        "output tokens",
        tuple(edges[0].tolist()),
        tuple(edges[1].tolist()),
        *(tuple(tuple(row) for row in table.tolist()) for table in tables),
    )


def _edges(tokens: Floats) -> Floats:
    """0, then powers of two from the one at or below the smallest positive length to the one above the largest."""
    positive = tokens[tokens > 0]
    if len(positive) == 0:
        return np.array([0.0, 1.0])
    low = math.floor(math.log2(float(positive.min())))
    high = math.floor(math.log2(float(positive.max()))) + 1
    powers = np.exp2(np.arange(low, high + 1, dtype=np.float64))
    return np.concatenate([[0.0], powers]) if len(positive) < len(tokens) else powers


def series(
    requests: Columns,
    steps: Columns,
    signals: Columns,
    metric: str,
    *,
    bin_s: float = 1.0,
    at_least: int = 100,
) -> tuple[Series, ...]:
    """Lines over time: rolling P99, waiting requests, KV use, link bandwidth, gateway CPU and backlog.

    Only those that were recorded.  Of several runs laid one after the other, a P99 holds requests of one run, and
    no line has a point between two of them.

    Raises:
        CallerError: a bin that is not positive, or fewer than one request per P99.

    """
    if not bin_s > 0 or at_least < 1:
        raise CallerError(
            f"bins of {bin_s} s with at least {at_least} requests",
            field="bin_s",
            value=bin_s,
            hint="bin_s > 0, at_least >= 1",
        )
    cut = decompose(requests, metric)
    if len(cut.rows) == 0:
        return ()
    at, how = points(requests)
    seen = how[:, API_RECV] > 0
    origin = int(at[seen, API_RECV].min())
    run, t, value = runs_of(requests), [], []
    for one in np.unique(cut.run).tolist():
        offered = at[seen & (run == one), API_RECV] - origin
        mine = cut.run == one
        found = _rolling_p99(
            cut.at[mine, API_RECV] - origin, cut.total_ns[mine], offered, round(bin_s * SECOND), at_least
        )
        t += found[0]
        value += found[1]
    lines = [Series(f"{metric}_p99", "ms", "gateway", tuple(t), tuple(value))]
    for name, unit, source, over_bin, over_sources in _STATES:
        either = (_sampled(signals, name), _stepped(steps, name))
        samples = either[name == LINK] or either[name != LINK]
        if samples is not None:
            lines.append(_binned(name, unit, source, samples, origin, bin_s, over_bin, over_sources))
    return tuple(line for line in lines if line.t_s)


_STATES: tuple[tuple[str, str, str, Callable[..., Floats], Callable[..., Floats]], ...] = (
    ("requests_waiting", "requests", "all engines", np.mean, np.nansum),
    ("kv_usage", "share", "fullest engine", np.max, np.nanmax),
    (LINK, "GB/s", "slowest link", np.min, np.nanmin),
    ("gateway_cpu_share", "share", "gateway", np.mean, np.nanmax),
    ("gateway_backlog_ms", "ms", "gateway", np.max, np.nanmax),
)
"""Name, unit, what the line stands for, how a bin's samples of one source fold, how sources fold."""


def _rolling_p99(
    arrival: Ints, total: Ints, offered: Ints, width: int, at_least: int
) -> tuple[list[float], list[float]]:
    """Middles (s) of the bins of `width` ns in which a run's requests were `offered`, and P99 (ms) at their ends."""
    order = np.argsort(arrival, kind="stable")
    arrival, total = arrival[order], total[order]
    ends = np.arange(offered.min() // width + 1, offered.max() // width + 2) * width
    upper = np.searchsorted(arrival, ends, side="left")
    lower = np.minimum(np.searchsorted(arrival, ends - width, side="left"), upper - at_least)
    t, value = [], []
    for end, a, b in zip(ends.tolist(), lower.tolist(), upper.tolist(), strict=True):
        if a >= 0:
            t.append((end - width / 2) / SECOND)
            value.append(quantile(np.sort(total[a:b]), 0.99) / NS_PER_MS)
    return t, value


def _sampled(signals: Columns, name: str) -> _Samples | None:
    if rows_of(signals) == 0:
        return None
    rows = np.flatnonzero(signals["name"] == name)
    if len(rows) == 0:
        return None
    return (
        signals["t_ns"][rows],
        signals["source"][rows].astype(str),
        signals["value"][rows].astype(np.float64),
    )


def _stepped(steps: Columns, name: str) -> _Samples | None:
    """The same state as the engines' own steps tell it."""
    if rows_of(steps) == 0:
        return None
    t, source = steps["t_ns"], steps["engine"].astype(str)
    if name == "requests_waiting":
        return t, source, steps["waiting"].astype(np.float64)
    if name == "kv_usage":
        return t, source, steps["kv_used"] / np.maximum(steps["kv_total"], 1)
    if name == LINK:
        copied = (steps["copy_ns"] > 0) & (steps["copy_bytes"] >= LEAST_BYTES)
        return (
            (t[copied], source[copied], steps["copy_bytes"][copied] / steps["copy_ns"][copied])
            if copied.any()
            else None
        )
    return None


def _binned(
    name: str,
    unit: str,
    source: str,
    samples: _Samples,
    origin: int,
    bin_s: float,
    over_bin: Callable[..., Floats],
    over_sources: Callable[..., Floats],
) -> Series:
    """Fold the samples of each source in each bin, then the sources of each bin."""
    t, sources, value = samples
    bins = (t - origin) // round(bin_s * SECOND)
    used = np.unique(bins[bins >= 0])
    names = np.unique(sources)
    table = np.full((len(names), len(used)), np.nan)
    for i, one in enumerate(names):
        rows = np.flatnonzero((sources == one) & (bins >= 0))
        rows = rows[np.argsort(bins[rows], kind="stable")]
        present, starts = np.unique(bins[rows], return_index=True)
        for b, group in zip(present, np.split(value[rows], starts[1:]), strict=False):
            table[i, np.searchsorted(used, b)] = over_bin(group)
    folded = over_sources(table, axis=0) if len(used) else np.zeros(0)
    return Series(name, unit, source, tuple(((used + 0.5) * bin_s).tolist()), tuple(folded.tolist()))
