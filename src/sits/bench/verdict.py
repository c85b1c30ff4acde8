"""The report of an investigation: two finished phases -> `core.report.Report`.

Pure arithmetic: no I/O and no clock; the generator passed in draws the bootstrap.  Beside the figures stand their
definitions and the traps that made others misread them (`NOTES`), and in `facts` everything a reader may want to check
by hand.  The stages are two columns of means: `rest_ms` is the baseline phase, `tail_ms` the loaded one.

Deliberately absent: where the figures come from (`bench.anatomy`) and what may be claimed (`bench.suspects`).
"""

from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np

from sits.bench.anatomy import Part, Phase, client_ms, known, outside_split, parts_of, stage_rows, summary
from sits.bench.load import Load
from sits.bench.suspects import BARS, Scene, findings, tpot_ms
from sits.bench.target import Target
from sits.core.breakpoints import API_RECV, FIRST_TOKEN, LAST_TOKEN
from sits.core.errors import EngineError
from sits.core.fleet import Objective
from sits.core.ports import World
from sits.core.report import P99_REQUESTS_MIN, LatencySummary, Note, Report, Series, Side, Waterfall
from sits.diagnose.decompose import account, slow_and_normal

GRID_NS = 500_000_000
"""Spacing of the client's own series."""

STAGES_COLUMNS = {
    "title": "What load adds",
    "rest": "baseline",
    "tail": "loaded",
}
"""What the two columns of `Report.stages` are in an investigation: means of two phases, not of the rest and the slowest 1 %."""

NOTES: tuple[Note, ...] = (
    Note("TTFT", "From the moment a request was due to its first token at the client: send lag and connecting included."),
    Note("TPOT", "(last token - first token) / (output tokens - 1), per request; tokens as the engine's usage says."),
    Note(
        "Stages",
        "Means, because means add up to the mean TTFT and percentiles do not. The first column is the baseline phase, "
        "the second the loaded phase, the difference is what the load added. Queue and prefill are the exact means of "
        "the engine's histograms over the phase, so they are derived: it is not known of which request.",
    ),
    Note(
        "Outside the engine core",
        "Client TTFT - send lag - queue - prefill. HTTP, tokenizing, the hops between API server and engine core and "
        "back, late event loops, the network: no engine has a metric for it. It is shown, never spread over the rest. "
        "An engine's own TTFT histogram splits it once: before and after the request reached its API server.",
    ),
    Note(
        "Two kinds of TTFT",
        "An engine's TTFT histogram starts when its API server has the request and includes the queue; vLLM's response "
        "field time_to_first_token_ms starts when the request is scheduled and is prefill only. Neither is the client's.",
    ),
    Note(
        "Queue time may read zero",
        "It starts in the engine core. A request that the API server still holds, or that waits for the core's loop to "
        "finish a step, is in no queue time and not in requests_waiting either; it is outside the engine core.",
    ),
    Note("Quantiles of histograms", "Known to their bucket only: a figure is given with the bounds of its bucket."),
    Note("Bars", BARS),
)  # fmt: skip


def report_of(
    target: Target,
    baseline: Phase,
    loaded: Phase,
    engine: dict[str, str],
    objective: Objective,
    world: World,
) -> Report:
    """The finished report: pure arithmetic on the two phases."""
    rng = world.rng("investigate/bootstrap")
    told = known(baseline) & known(loaded) if baseline.completed() else known(loaded)
    calm = parts_of(baseline, told, rng) if baseline.completed() else ()
    parts = parts_of(loaded, told, rng) if loaded.completed() else ()
    scene = Scene(baseline, loaded, calm, parts, target.metrics_error)
    latencies = {
        name: list(_latencies(phase, rng)) for name, phase in (("baseline", baseline), ("loaded", loaded))
    }
    mine = [found for found in latencies["loaded"] if found.metric == objective.metric]
    if not mine:
        raise EngineError(
            f"no request of the loaded phase completed: {outcome_text(loaded.load)}",
            field="target",
            hint="lower the rate with loaded_rate, or look at the engine's log",
        )
    claims = findings(scene, rng)
    side = Side(
        label=f"{target.model} at {loaded.rate:.3g} req/s",
        latency=mine[0],
        others=tuple(found for found in latencies["loaded"] if found.metric != objective.metric),
        account=account(loaded.columns),
        series=tuple(_series(loaded, target.family or "engine")),
    )
    return Report(
        kind="investigate",
        title=f"Where the time is: {target.model}",
        headline=_headline(mine[0], objective, scene, target),
        objective_metric=objective.metric,
        objective_ms=objective.p99 / 1e6,
        seed=int(getattr(world, "seed", 0)),
        repetitions=1,
        before=side,
        stages=stage_rows(calm, parts),
        waterfalls=_waterfalls(loaded),
        findings=claims,
        notes=NOTES,
        facts={
            "target": target.base,
            "model": target.model,
            "engine": target.family,
            "endpoint": target.endpoint,
            "metrics": target.metrics_url or target.metrics_error,
            "engine_configuration": engine,
            "metric_names": loaded.change.view.used if loaded.change else {},
            "stages_columns": STAGES_COLUMNS,
            "phases": {
                "baseline": _phase_facts(baseline, latencies["baseline"], calm),
                "loaded": _phase_facts(loaded, latencies["loaded"], parts),
            },
        },
    )


def _latencies(phase: Phase, rng: np.random.Generator) -> Iterator[LatencySummary]:
    ttft, due = client_ms(phase, API_RECV, FIRST_TOKEN)
    e2e, _ = client_ms(phase, API_RECV, LAST_TOKEN)
    tpot_due = [call.due_ns for call in phase.load.calls if call.tpot_ns is not None]
    rows = (
        ("ttft", ttft, due),
        ("e2e", e2e, due),
        ("tpot", tpot_ms(phase), np.array(tpot_due, dtype=np.int64)),
    )
    for metric, values, arrival in rows:
        found = summary(metric, values, arrival, rng)
        if found is not None:
            yield found


def _headline(latency: LatencySummary, objective: Objective, scene: Scene, target: Target) -> str:
    p99, promised = latency.p99, objective.p99 / 1e6
    met = "is not proven to meet"
    if p99.low > promised:
        met = "misses"
    elif p99.high <= promised and latency.n >= P99_REQUESTS_MIN:
        met = "meets"
    largest = max(scene.parts, key=lambda part: part.mean.value)
    share = largest.mean.value / scene.ttft_ms if scene.ttft_ms else 0.0
    return (
        f"{latency.metric.upper()} P99 of {target.model} is {p99.value:,.0f} ms [{p99.low:,.0f}, {p99.high:,.0f}] at "
        f"{scene.loaded.rate:.3g} req/s and {met} the objective of {promised:,.0f} ms; "
        f"{share:.0%} of the mean TTFT is {largest.stage}."
    )


def _waterfalls(phase: Phase) -> tuple[Waterfall, ...]:
    return slow_and_normal(phase.columns, "ttft") if phase.completed() else ()


def _series(phase: Phase, source: str) -> Iterator[Series]:
    """The engine's gauges during the phase, and how many requests we had open."""
    start_ns = phase.load.start_ns
    for name, unit in (
        ("requests_running", "requests"),
        ("requests_waiting", "requests"),
        ("kv_usage", "share"),
    ):
        rows = [((t_ns - start_ns) / 1e9, v.values[name]) for t_ns, v in phase.samples if name in v.values]
        if rows:
            times, values = zip(*rows, strict=True)
            yield Series(name, unit, source, times, values)
    sent = np.sort([call.sent_ns for call in phase.load.calls if call.sent_ns])
    ended = np.sort([call.last_ns for call in phase.load.calls if call.outcome and call.last_ns])
    grid = np.arange(start_ns, phase.load.end_ns + 1, GRID_NS)
    open_now = np.searchsorted(sent, grid, "right") - np.searchsorted(ended, grid, "right")
    yield Series(
        "client_in_flight",
        "requests",
        "client",
        tuple(((grid - start_ns) / 1e9).tolist()),
        tuple(open_now.astype(float).tolist()),
    )


def _phase_facts(phase: Phase, latencies: list[LatencySummary], parts: tuple[Part, ...]) -> dict[str, Any]:
    """Everything a reader may want to check by hand."""
    engine: dict[str, Any] = {}
    for name in ("queue_seconds", "prefill_seconds", "decode_seconds", "ttft_seconds", "e2e_seconds"):
        histogram = phase.histogram(name)
        p99 = histogram.quantile(0.99) if histogram is not None else None
        if histogram is not None and histogram.mean is not None and p99 is not None:
            engine[name.replace("_seconds", "_ms")] = {
                "n": histogram.count,
                "mean": histogram.mean * 1e3,
                "p99_bucket": [p99.low * 1e3, p99.high * 1e3 if np.isfinite(p99.high) else None],
            }
    for name in ("preemptions_total", "rejections_total", "prompt_tokens_total", "output_tokens_total",
                 "prefix_hit_tokens_total"):  # fmt: skip
        counted = phase.counted(name)
        if counted is not None:
            engine[name] = counted
    done = phase.load
    return {
        "rate": phase.rate,
        "account": msgspec.structs.asdict(account(phase.columns)),
        "load": msgspec.structs.asdict(done.delivered),
        "client": {found.metric: msgspec.to_builtins(found) for found in latencies},
        "completed_per_s": phase.completed() / ((done.end_ns - done.start_ns) / 1e9),
        "engine": engine,
        "outside_engine_core_ms": outside_split(phase, parts),
        "samples": len(phase.samples),
    }


def outcome_text(done: Load) -> str:
    """How many requests of a load met what, as text."""
    tally: dict[str, int] = {}
    for call in done.calls:
        key = f"{call.outcome or 'in flight'} ({call.detail})" if call.detail else call.outcome or "in flight"
        tally[key] = tally.get(key, 0) + 1
    return ", ".join(f"{count} {what}" for what, count in sorted(tally.items()))
