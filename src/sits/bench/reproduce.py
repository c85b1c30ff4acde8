"""Reproduce an incident, take it apart, try every fix, prove the result: one scenario in, one Report out.

The plan: over the scenario's seeds, run the configuration as it is, with each fix alone, with all fixes, and
with all fixes but one.  A seed draws one workload, and every configuration meets that same workload (paired
seeds).  The runs of the configuration as it is are recorded in full and diagnosed together; the others give
their latencies.  P99 is that of all requests of all seeds pooled, its interval from a two-stage bootstrap over
seeds and requests (`diagnose.compare`), and differences are paired by request.

Rules: same scenario, seed and repetitions give the same Report, whatever the number of processes.  What a
Finding proposes is what the scenario's fixes for it change; a fix that does not help stays in the table.

Deliberately absent: rendering (`app.report`), and any knowledge of which answer is hoped for.
"""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import msgspec
import numpy as np

from sits.bench.arrivals import burstiness
from sits.bench.assemble import DEFINITIONS, Tables, anatomy, lay_out, other_latencies
from sits.bench.scenario import Scenario, Variant, load_scenario, variant
from sits.bench.traces import Trace, read_trace
from sits.bench.virtual import RunColumns, run_fleet, ttft_ms
from sits.bench.workload import Workload, draw, from_trace
from sits.core.config import digest
from sits.core.errors import ConfigError
from sits.core.finding import Change, Finding
from sits.core.fleet import EmulatedEngine
from sits.core.report import Ablation, Note, Report, Side
from sits.core.units import MS, show_duration
from sits.diagnose.compare import ablation_rows, pooled_quantile
from sits.diagnose.decompose import account, latency_summary
from sits.diagnose.spectrum import series
from sits.sim.model import compile_kernel
from sits.wire import emulation
from sits.world import RealWorld, stream_generator

AS_IS, ALL = "as_is", "all"
Progress = Callable[[int, int, str], None]


class Job(msgspec.Struct, frozen=True):
    """One run: a configuration and a repetition."""

    variant: Variant
    repetition: int
    full: bool


class Plan(msgspec.Struct, frozen=True):
    """What every process needs to know to run a Job."""

    scenario: Scenario
    seed: int
    trace: Trace | None


class Outcome(msgspec.Struct, frozen=True):
    """What one Job gave: TTFTs in ms, and the tables (requests always, the others when recorded in full)."""

    variant_id: str
    repetition: int
    ttft_ms: np.ndarray
    columns: RunColumns | None


def reproduce(
    path: str | Path | None = None,
    *,
    seed: int | None = None,
    repetitions: int | None = None,
    requests: int | None = None,
    jobs: int | None = None,
    trace: str | Path | None = None,
    progress: Progress | None = None,
) -> Report:
    """Run a scenario (None = the shipped incident) and report on it.

    Args:
        path: scenario file.
        seed: first seed; the scenario's own when None.
        repetitions: seeds to run; the scenario's own when None.
        requests: requests of one repetition; the scenario's own when None.
        jobs: processes; the machine's cores when None.
        trace: a real trace whose arrivals and lengths replace the drawn ones.
        progress: called with runs done, runs in all, and what was run.

    Raises:
        ConfigError: a file that cannot be used, or a repetition count below one.

    """
    scenario = load_scenario(path)
    if requests is not None:
        if requests < 10:
            raise ConfigError(
                f"{requests} requests", field="requests", value=requests, hint="a tail needs at least 10"
            )
        plan_of_work = msgspec.structs.replace(scenario.workload, requests=requests)
        scenario = msgspec.structs.replace(scenario, workload=plan_of_work)
    count = scenario.repetitions if repetitions is None else repetitions
    if count < 1:
        raise ConfigError(
            f"{count} repetitions", field="repetitions", value=count, hint="at least 1; ten give an interval"
        )
    if jobs is not None and jobs < 1:
        raise ConfigError(f"{jobs} processes", field="jobs", value=jobs, hint="at least 1")
    first = scenario.seed if seed is None else seed
    if first < 0:
        raise ConfigError(f"seed {first} is negative", field="seed", value=first, hint="0 or more")
    plan = Plan(scenario, first, read_trace(trace) if trace else None)
    count = _enough_trace(plan, count)
    results = _run_all(plan, count, jobs or os.cpu_count() or 1, progress)
    return _report(plan, count, results)


def _enough_trace(plan: Plan, count: int) -> int:
    """How many repetitions a trace has requests for: each takes the next slice of it."""
    if plan.trace is None:
        return count
    slices = len(plan.trace.arrival_s) // plan.scenario.workload.requests
    return max(1, min(count, slices))


def variants(scenario: Scenario) -> dict[str, Variant]:
    """Every configuration of the plan by id: as it is, each fix alone, all, all but one."""
    ids = tuple(fix.id for fix in scenario.fixes)
    plans = {AS_IS: ()} | {i: (i,) for i in ids} | {ALL: ids}
    plans |= {f"{ALL}-{i}": tuple(j for j in ids if j != i) for i in ids}
    return {name: msgspec.structs.replace(variant(scenario, fixes), id=name) for name, fixes in plans.items()}


def _run_all(plan: Plan, count: int, processes: int, progress: Progress | None) -> dict[str, list[Outcome]]:
    every = variants(plan.scenario)
    todo = [
        Job(v, r, v.id == AS_IS or (v.id == ALL and r == 0)) for r in range(count) for v in every.values()
    ]
    found: dict[str, list[Outcome]] = {name: [] for name in every}
    for done, outcome in enumerate(_outcomes(plan, todo, min(processes, len(todo))), 1):
        found[outcome.variant_id].append(outcome)
        if progress is not None:
            progress(done, len(todo), outcome.variant_id)
    return {name: sorted(outcomes, key=lambda o: o.repetition) for name, outcomes in found.items()}


def _outcomes(plan: Plan, todo: list[Job], processes: int) -> Iterator[Outcome]:
    if processes == 1:
        for job in todo:
            yield _run(plan, job)
        return
    compile_kernel()  # once, so that the workers find it on disk instead of each compiling it
    # forkserver: workers start from a clean process, not from one that may already run threads.
    with ProcessPoolExecutor(processes, get_context("forkserver"), _adopt, (plan,)) as pool:
        yield from pool.map(_run_adopted, todo, chunksize=1)


_ADOPTED: list[Plan] = []
"""The plan of this worker process; filled once when the process starts, empty everywhere else."""


def _adopt(plan: Plan) -> None:
    _ADOPTED[:] = [plan]


def _run_adopted(job: Job) -> Outcome:
    return _run(_ADOPTED[0], job)


def _run(plan: Plan, job: Job) -> Outcome:
    workload = workload_of(plan, job.repetition)
    columns = run_fleet(
        job.variant,
        workload,
        seed=plan.seed + job.repetition,
        run_id=f"{job.variant.id}/{job.repetition}",
        full=job.full,
    )
    kept = columns if job.variant.id in (AS_IS, ALL) else None
    return Outcome(job.variant.id, job.repetition, ttft_ms(columns.requests), kept)


def workload_of(plan: Plan, repetition: int) -> Workload:
    """The workload of one repetition: drawn from its seed, or the next slice of the trace."""
    scenario, world = plan.scenario, RealWorld(plan.seed + repetition)
    engine = scenario.fleet.engines[0]
    model = engine.model if isinstance(engine, EmulatedEngine) else engine.models[0]
    adapters = tuple(f"{family.name}-{i}" for family in scenario.fleet.adapters for i in range(family.count))
    if plan.trace is None:
        return draw(scenario.workload, world, model=model, adapters=adapters)
    n = scenario.workload.requests
    part = slice(repetition * n, (repetition + 1) * n)
    arrival_s = plan.trace.arrival_s[part]
    return from_trace(
        arrival_s - arrival_s[0],
        plan.trace.prompt_tokens[part],
        plan.trace.output_tokens[part],
        scenario.workload,
        world,
        model=model,
        adapters=adapters,
    )


def _report(plan: Plan, count: int, found: dict[str, list[Outcome]]) -> Report:
    scenario = plan.scenario
    objective = scenario.fleet.objective
    rng = stream_generator(plan.seed, "report")
    samples = {name: [outcome.ttft_ms for outcome in outcomes] for name, outcomes in found.items()}
    rows = _ablation(scenario, samples, rng)
    fixed = variant(scenario, tuple(fix.id for fix in scenario.fixes))
    before = _side("before", scenario, variant(scenario, ()), found[AS_IS], samples[AS_IS], rng)
    after = _side("after", scenario, fixed, found[ALL], samples[ALL], rng)
    parts = anatomy(
        lay_out([_tables(outcome) for outcome in found[AS_IS]]), scenario.fleet, objective.metric, rng
    )
    return Report(
        kind="reproduce",
        title=scenario.title,
        headline=_headline(before, after, rows, objective.metric, objective.p99 / MS),
        objective_metric=objective.metric,
        objective_ms=objective.p99 / MS,
        seed=plan.seed,
        repetitions=count,
        before=before,
        after=after,
        verified=after.latency.p99.high <= objective.p99 / MS,
        stages=parts.stages,
        waterfalls=parts.waterfalls,
        matrix=parts.matrix,
        spectrum=parts.spectrum,
        findings=_with_fixes(scenario, parts.findings),
        ablation=rows,
        changes=fixed.changes,
        notes=(*DEFINITIONS, *_notes(plan, count)),
        facts={"requests_per_repetition": scenario.workload.requests, "arrivals": _burstiness(plan, count)},
    )


def _tables(outcome: Outcome) -> Tables:
    assert outcome.columns is not None
    return Tables(outcome.columns.requests, outcome.columns.steps, outcome.columns.signals)


def _ablation(
    scenario: Scenario, samples: dict[str, list[np.ndarray]], rng: np.random.Generator
) -> tuple[Ablation, ...]:
    fixes = scenario.fixes
    rows = ablation_rows(
        samples[AS_IS],
        {fix.id: samples[fix.id] for fix in fixes},
        samples[ALL],
        {fix.id: samples[f"{ALL}-{fix.id}"] for fix in fixes},
        rng,
        titles={"none": "As it was", "all": "All changes together"} | {fix.id: fix.title for fix in fixes},
    )
    why = {fix.id: fix.why for fix in fixes}
    return tuple(msgspec.structs.replace(row, why=why.get(row.id, "")) for row in rows)


def _side(
    label: str,
    scenario: Scenario,
    config: Variant,
    outcomes: list[Outcome],
    samples: list[np.ndarray],
    rng: np.random.Generator,
) -> Side:
    metric = scenario.fleet.objective.metric
    whole = lay_out([_tables(outcome) for outcome in outcomes])
    latency = latency_summary(whole.requests, metric, rng)
    first = _tables(outcomes[0])
    return Side(
        label,
        latency=msgspec.structs.replace(latency, p99=pooled_quantile(samples, rng)),
        others=other_latencies(whole.requests, metric, rng),
        account=account(whole.requests),
        series=series(first.requests, first.steps, first.signals, metric),
        fleet=config.fleet,
        config_digest=digest(config.fleet),
    )


def _with_fixes(scenario: Scenario, findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
    """Each finding with the changes of the fixes that answer it; its own proposal stays where there is none."""
    changes: dict[str, list[Change]] = {}
    for fix in scenario.fixes:
        for cause in fix.answers:
            changes.setdefault(cause, []).extend(variant(scenario, (fix.id,)).changes)
    return tuple(
        msgspec.structs.replace(finding, changes=tuple(changes.get(finding.id, finding.changes)))
        for finding in findings
    )


def _headline(before: Side, after: Side, rows: tuple[Ablation, ...], metric: str, objective_ms: float) -> str:
    was, now = before.latency.p99, after.latency.p99
    singles = [row for row in rows if row.saved is not None and row.id != "all"]
    best = max(singles, key=lambda row: row.saved.value if row.saved else 0.0, default=None)
    verdict = "under" if now.high <= objective_ms else "about" if now.low <= objective_ms else "still over"
    name = "time to first token" if metric == "ttft" else "end-to-end time"
    text = (
        f"P99 {name} was {show_duration(was.value * MS)} against an objective of "
        f"{show_duration(objective_ms * MS)}; with all changes it is {show_duration(now.value * MS)}, {verdict} it."
    )
    if best is not None and best.saved is not None and best.saved.low > 0:
        text += f" The largest gain of one change: {best.saved.value:,.0f} ms ({best.title})."
    return text


def _burstiness(plan: Plan, count: int) -> dict[str, float]:
    every = [burstiness(workload_of(plan, r).gaps_s()) for r in range(count)]
    gaps_s = np.concatenate([workload_of(plan, r).gaps_s() for r in range(count)])
    whole = burstiness(gaps_s)
    found = {"rate_per_s": whole["rate_per_s"], "cv": whole["cv"]}
    found |= {f"idc_{w:g}s": v for w, v in whole["idc"].items()}
    return found | {"cv_median_of_repetitions": float(np.median([row["cv"] for row in every]))}


def _notes(plan: Plan, count: int) -> tuple[Note, ...]:
    scenario = plan.scenario
    engine = scenario.fleet.engines[0]
    burst = _burstiness(plan, count)
    source = "a trace file" if plan.trace is not None else "an arrival process fitted to a real trace"
    notes = [
        Note(
            "Arrivals",
            f"{count} x {scenario.workload.requests} requests from {source}: {burst['rate_per_s']:.2f} requests/s, "
            f"inter-arrival CV {burst['cv']:.1f} (a Poisson process has 1), IDC(1 s) {burst.get('idc_1s', 0):.1f}.",
        ),
        Note(
            "Intervals",
            "95 %, from a two-stage bootstrap over repetitions and over requests within them; every configuration "
            "meets the same requests, so differences are paired request by request.",
        ),
        Note(
            "What pretends",
            "Engines take the time a step-time model says and the gateway's CPU is a queue with a stated cost. The "
            "pipeline, the policies, the scheduler's rules and the tables are those of live traffic.",
        ),
    ]
    if isinstance(engine, EmulatedEngine):
        notes.append(
            Note("Assumed for each engine", "; ".join(emulation(scenario.fleet, engine, {}).assumed) + ".")
        )
    return tuple(notes)
