"""From tables to a Report: the part that a reproduction, a live store and an investigation share.

Rules: everything here is a fold over the three tables of `telemetry.tables`; dice come from the caller, so the
same tables and seed give the same report.  Runs that share a clock origin are laid one after the other before
they are diagnosed as one; their `run_id` still tells them apart, for intervals and for what lies between them.

Deliberately absent: what a change would bring (`bench.reproduce`), and rendering.
"""

from collections.abc import Sequence

import msgspec
import numpy as np

from sits.core.breakpoints import API_RECV, FIRST_TOKEN, LAST_TOKEN, NAMES
from sits.core.errors import CallerError
from sits.core.finding import Finding
from sits.core.fleet import Fleet
from sits.core.report import Group, HeatMap, LatencySummary, Matrix, Note, StageShare, Waterfall
from sits.core.units import SECOND
from sits.diagnose.attribute import matrix
from sits.diagnose.causes import find_causes
from sits.diagnose.columns import runs_of
from sits.diagnose.decompose import latency_summary, slow_and_normal, stage_shares
from sits.diagnose.groups import groups
from sits.diagnose.resample import Blocks, interval, quantile
from sits.diagnose.spectrum import heat_map
from sits.telemetry.tables import Columns

GAP_NS = 60 * SECOND
"""Silence between two runs that are laid one after the other."""

DEFINITIONS = (
    Note(
        "TTFT",
        "First byte of the request at the gateway to first token handed to the client's side, of streamed answers only: "
        "one that comes whole has no first token and is in E2E alone. Its 17 stages add up to it.",
    ),
    Note(
        "TPOT",
        "(last token - first token) / (output tokens - 1), one figure a request; the first token is not in it.",
    ),
    Note(
        "P99",
        "The ceil(0.99 n)-th smallest of n requests. Percentiles of stages are never added; stages are compared by their means in the slowest 1 % and in the rest.",
    ),
)


class Tables(msgspec.Struct, frozen=True):
    """The three tables of one diagnosis."""

    requests: Columns
    steps: Columns
    signals: Columns


class Anatomy(msgspec.Struct, frozen=True):
    """What the tables of one configuration say about its tail."""

    stages: tuple[StageShare, ...]
    who: tuple[Group, ...]
    waterfalls: tuple[Waterfall, ...]
    matrix: Matrix
    spectrum: HeatMap
    findings: tuple[Finding, ...]


def lay_out(runs: Sequence[Tables]) -> Tables:
    """Several runs as one: each starts `GAP_NS` after the one before has ended.

    Raises:
        CallerError: two of them have the same `run_id`.

    """
    _distinct(runs)
    shift_ns = 0
    moved: list[Tables] = []
    for run in runs:
        moved.append(Tables(*(_shifted(table, shift_ns) for table in (run.requests, run.steps, run.signals))))
        ends = [
            int(table[name].max())
            for table, name in ((run.requests, "sent"), (run.steps, "t_ns"), (run.signals, "t_ns"))
            if table and len(table[name])
        ]
        shift_ns += max(ends, default=0) + GAP_NS
    return Tables(
        *(_stacked([getattr(run, name) for run in moved]) for name in ("requests", "steps", "signals"))
    )


def _distinct(runs: Sequence[Tables]) -> None:
    seen: set[str] = set()
    for run in runs:
        names = set(run.requests["run_id"].tolist()) if "run_id" in run.requests else set()
        if twice := sorted(seen & names):
            raise CallerError(
                f"two runs are called {twice[0]!r}",
                field="requests.run_id",
                value=twice[0],
                hint="give each run an id of its own: their requests are resampled by run",
            )
        seen |= names


def _shifted(table: Columns, shift_ns: int) -> Columns:
    if not table:
        return table
    times = {name for name in (*NAMES, "t_ns") if name in table}
    return {
        name: np.where(column > 0, column + shift_ns, 0) if name in times else column
        for name, column in table.items()
    }


def _stacked(tables: list[Columns]) -> Columns:
    full = [table for table in tables if table]
    return {name: np.concatenate([table[name] for table in full]) for name in full[0]} if full else {}


def anatomy(
    tables: Tables, fleet: Fleet | None, metric: str, objective_ms: float, rng: np.random.Generator
) -> Anatomy:
    """Decompose, attribute and explain one configuration's tail; what is slower than the objective is bad.

    Raises:
        CallerError: fewer than two requests have this latency.

    """
    return Anatomy(
        stage_shares(tables.requests, metric, rng),
        groups(tables.requests, metric, objective_ms),
        slow_and_normal(tables.requests, metric),
        matrix(tables.requests, tables.steps, metric, rng),
        heat_map(tables.requests, metric),
        find_causes(tables.requests, tables.steps, tables.signals, fleet, metric=metric, rng=rng),
    )


def other_latencies(requests: Columns, metric: str, rng: np.random.Generator) -> tuple[LatencySummary, ...]:
    """The latencies beside the objective's: TTFT or end to end, and TPOT where answers have two tokens or more."""
    found = [latency_summary(requests, "e2e" if metric == "ttft" else "ttft", rng)]
    tpot = tpot_summary(requests, rng)
    return (*found, tpot) if tpot is not None else tuple(found)


def tpot_summary(requests: Columns, rng: np.random.Generator, draws: int = 500) -> LatencySummary | None:
    """Time per output token after the first, over completed requests with two tokens or more; None without any."""
    done = np.array([outcome == "completed" for outcome in requests["outcome"]], dtype=bool)
    first, last = requests[NAMES[FIRST_TOKEN]], requests[NAMES[LAST_TOKEN]]
    kept = done & (first > 0) & (last > 0) & (requests["output_tokens"] > 1)
    if not kept.any():
        return None
    tpot_ms = (last[kept] - first[kept]) / (requests["output_tokens"][kept] - 1) / 1e6
    values = np.sort(tpot_ms)
    blocks = Blocks(requests[NAMES[API_RECV]][kept], rng, draws, length=1, run=runs_of(requests)[kept])
    drawn = blocks.quantiles(tpot_ms, 0.99)
    return LatencySummary(
        metric="tpot",
        n=len(values),
        mean_ms=float(values.mean()),
        p50_ms=quantile(values, 0.5),
        p95_ms=quantile(values, 0.95),
        p99=interval(quantile(values, 0.99), drawn),
        max_ms=float(values[-1]),
    )
