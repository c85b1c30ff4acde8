"""Reproduce an incident, take it apart, try every fix, prove the result: one scenario in, one Report out.

The plan: over the scenario's seeds, run the configuration as it is, with each fix alone, with all fixes, and
with all fixes but one.  A seed draws one workload, and every configuration meets that same workload (paired
seeds).  The runs of the configuration as it is are recorded in full and diagnosed together; the others give
their latencies.  What is proposed is all fixes but those that the runs prove harmful beside the others
(`proposed`), and it is run itself before it is called verified.

Rules: same scenario, seed and repetitions give the same Report, whatever the number of processes.  A request
that got no answer has no latency; it is counted, and a configuration that answers fewer is never verified.

Deliberately absent: what the runs say (`bench.reproduction`), rendering (`app.report`), and any knowledge of
which answer is hoped for.
"""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from itertools import repeat
from multiprocessing import get_context
from pathlib import Path

import msgspec
import numpy as np

from sits.bench.reproduction import ALL, AS_IS, PROPOSED, Outcome, Plan, ablation, proposed, report_of
from sits.bench.scenario import Scenario, Variant, load_scenario, variant
from sits.bench.traces import read_trace
from sits.bench.virtual import latency_ms, run_fleet
from sits.core.errors import ConfigError
from sits.core.report import Report

Progress = Callable[[int, int, str], None]
RunJobs = Callable[["list[Job]"], "dict[str, list[Outcome]]"]


class Job(msgspec.Struct, frozen=True):
    """One run: a configuration, a repetition, and what to keep (`full`: steps and signals too)."""

    variant: Variant
    repetition: int
    keep: bool
    full: bool


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
        trace: a real trace whose arrivals and lengths replace the drawn ones; each repetition takes the next slice.
        progress: called with runs done, runs in all, and what was run.

    Raises:
        ConfigError: a file that cannot be used, or a count that makes no run.

    """
    plan = _plan(path, seed, repetitions, requests, trace)
    if jobs is not None and jobs < 1:
        raise ConfigError(f"{jobs} processes", field="jobs", value=jobs, hint="at least 1")
    with _runner(plan, jobs or os.cpu_count() or 1, progress) as run:
        found = run(_jobs(plan, list(variants(plan.scenario).values())))
        rows = ablation(plan, found)
        kept = proposed(rows)
        found[PROPOSED] = found[ALL]
        if len(kept) < len(plan.scenario.fixes):
            best = msgspec.structs.replace(variant(plan.scenario, kept), id=PROPOSED)
            found |= run(_jobs(plan, [best]))
    return report_of(plan, found, rows, kept)


def _plan(
    path: str | Path | None,
    seed: int | None,
    repetitions: int | None,
    requests: int | None,
    trace: str | Path | None,
) -> Plan:
    scenario = load_scenario(path)
    if requests is not None:
        if requests < 10:
            raise ConfigError(
                f"{requests} requests", field="requests", value=requests, hint="a tail needs at least 10"
            )
        work = msgspec.structs.replace(scenario.workload, requests=requests)
        scenario = msgspec.structs.replace(scenario, workload=work)
    count = scenario.repetitions if repetitions is None else repetitions
    if count < 1:
        raise ConfigError(
            f"{count} repetitions", field="repetitions", value=count, hint="at least 1; ten give an interval"
        )
    first = scenario.seed if seed is None else seed
    if first < 0:
        raise ConfigError(f"seed {first} is negative", field="seed", value=first, hint="0 or more")
    rows = read_trace(trace) if trace else None
    if rows is not None:
        count = max(1, min(count, len(rows.arrival_s) // scenario.workload.requests))
    return Plan(scenario, first, count, rows)


def variants(scenario: Scenario) -> dict[str, Variant]:
    """Every configuration of the plan by id: as it is, each fix alone, all, all but one."""
    ids = tuple(fix.id for fix in scenario.fixes)
    plans = {AS_IS: ()} | {i: (i,) for i in ids} | {ALL: ids}
    plans |= {f"{ALL}-{i}": tuple(j for j in ids if j != i) for i in ids}
    return {name: msgspec.structs.replace(variant(scenario, fixes), id=name) for name, fixes in plans.items()}


def _jobs(plan: Plan, configurations: list[Variant]) -> list[Job]:
    """Every configuration in every repetition; a repetition's runs stand together."""
    return [
        Job(v, r, v.id in (AS_IS, ALL, PROPOSED), v.id == AS_IS or (v.id in (ALL, PROPOSED) and r == 0))
        for r in range(plan.repetitions)
        for v in configurations
    ]


@contextmanager
def _runner(plan: Plan, processes: int, progress: Progress | None) -> Iterator[RunJobs]:
    """Something that runs jobs, here or in `processes` others, and sorts what they gave by configuration."""
    if processes == 1:
        yield lambda todo: _collected((run_job(plan, job) for job in todo), len(todo), progress)
        return
    from sits.sim.model import compile_kernel  # noqa: PLC0415  (numba loads with it)

    compile_kernel()  # once here, so that the workers find it compiled
    # forkserver: workers start from a clean process, not from one that may already run threads.
    with ProcessPoolExecutor(processes, get_context("forkserver")) as pool:
        yield lambda todo: _collected(pool.map(run_job, repeat(plan), todo), len(todo), progress)


def _collected(
    outcomes: Iterator[Outcome], total: int, progress: Progress | None
) -> dict[str, list[Outcome]]:
    found: dict[str, list[Outcome]] = {}
    for done, outcome in enumerate(outcomes, 1):
        found.setdefault(outcome.variant_id, []).append(outcome)
        if progress is not None:
            progress(done, total, outcome.variant_id)
    return found


def run_job(plan: Plan, job: Job) -> Outcome:
    """Run one configuration once; a function of its arguments."""
    columns = run_fleet(
        job.variant,
        plan.workload(job.repetition),
        seed=plan.seed + job.repetition,
        run_id=f"{job.variant.id}/{job.repetition}",
        full=job.full,
    )
    latency: np.ndarray = latency_ms(columns.requests, plan.scenario.fleet.objective.metric)
    return Outcome(job.variant.id, job.repetition, latency, columns if job.keep else None)
