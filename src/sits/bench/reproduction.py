"""What the runs of a scenario say: the ablation, what is proposed, and the Report.

P99 is that of all answered requests of all seeds pooled.  Every interval of the ablation, and the two P99s of the
headline, come from one bootstrap over seeds and requests (`diagnose.compare.ablation_rows`), paired by request
where every configuration answered every request.

Proposed are all fixes but those proven harmful beside the others: what the whole loses without them (`needed`) lies
below zero with its whole interval.

Deliberately absent: running anything (`bench.reproduce`).
"""

from typing import Any

import msgspec
import numpy as np

from sits.bench.assemble import DEFINITIONS, Tables, anatomy, lay_out, other_latencies
from sits.bench.scenario import Scenario, Variant, variant
from sits.bench.traces import Trace
from sits.bench.virtual import RunColumns
from sits.bench.workload import Workload, draw, from_trace
from sits.core.config import digest
from sits.core.finding import Change, Finding, Interval
from sits.core.fleet import EmulatedEngine
from sits.core.report import Ablation, Account, Note, Report, Side
from sits.core.run import Run
from sits.core.units import MS, show_duration
from sits.diagnose.compare import ablation_rows
from sits.diagnose.decompose import account, latency_summary, left_out
from sits.diagnose.spectrum import series
from sits.predict.burstiness import burstiness
from sits.wire import emulation
from sits.world import RealWorld, stream_generator

AS_IS, ALL, PROPOSED = "as_is", "all", "proposed"
WINDOWS_S = (1.0, 5.0, 10.0, 60.0)


class Outcome(msgspec.Struct, frozen=True):
    """What one run gave: latencies in ms by request row (NaN = no answer), and the tables when they were kept."""

    variant_id: str
    repetition: int
    latency_ms: np.ndarray
    columns: RunColumns | None

    def answered_ms(self) -> np.ndarray:
        """Latencies of the requests that were answered."""
        return self.latency_ms[~np.isnan(self.latency_ms)]


class Plan(msgspec.Struct, frozen=True):
    """A scenario, its first seed, how many seeds, and the trace that replaces the drawn workload, if any."""

    scenario: Scenario
    seed: int
    repetitions: int
    trace: Trace | None = None

    def workload(self, repetition: int) -> Workload:
        """The workload of one repetition: drawn from its seed, or the next slice of the trace."""
        scenario, world = self.scenario, RealWorld(self.seed + repetition)
        engine = scenario.fleet.engines[0]
        model = engine.model if isinstance(engine, EmulatedEngine) else engine.models[0]
        adapters = tuple(f"{f.name}-{i}" for f in scenario.fleet.adapters for i in range(f.count))
        if self.trace is None:
            return draw(scenario.workload, world, model=model, adapters=adapters)
        n, rows = scenario.workload.requests, self.trace
        part = slice(repetition * n, (repetition + 1) * n)
        return from_trace(
            rows.arrival_s[part] - rows.arrival_s[part][0],
            rows.prompt_tokens[part],
            rows.output_tokens[part],
            scenario.workload,
            world,
            model=model,
            adapters=adapters,
        )


def ablation(plan: Plan, found: dict[str, list[Outcome]]) -> tuple[Ablation, ...]:
    """The rows of the ablation, in the scenario's order, with the reason of each fix."""
    fixes = plan.scenario.fixes
    samples = {name: [outcome.answered_ms() for outcome in outcomes] for name, outcomes in found.items()}
    rows = ablation_rows(
        samples[AS_IS],
        {fix.id: samples[fix.id] for fix in fixes},
        samples[ALL],
        {fix.id: samples[f"{ALL}-{fix.id}"] for fix in fixes},
        stream_generator(plan.seed, "ablation"),
        titles={"none": "As it was", "all": "All changes together"} | {fix.id: fix.title for fix in fixes},
        paired=_all_answered(found),
    )
    why = {fix.id: fix.why for fix in fixes}
    return tuple(msgspec.structs.replace(row, why=why.get(row.id, "")) for row in rows)


def _all_answered(found: dict[str, list[Outcome]]) -> bool:
    return not any(np.isnan(o.latency_ms).any() for outcomes in found.values() for o in outcomes)


def proposed(rows: tuple[Ablation, ...]) -> tuple[str, ...]:
    """Ids of the fixes worth making together: all but those whose whole interval of `needed` is below zero."""
    fixes = [row for row in rows if row.id not in ("none", "all")]
    return tuple(row.id for row in fixes if row.needed is None or row.needed.high >= 0.0)


def report_of(
    plan: Plan, found: dict[str, list[Outcome]], rows: tuple[Ablation, ...], kept: tuple[str, ...]
) -> Report:
    """The Report of a reproduction."""
    scenario, rng = plan.scenario, stream_generator(plan.seed, "report")
    objective = scenario.fleet.objective
    best = variant(scenario, kept)
    was = next(row.p99 for row in rows if row.id == "none")
    proposal = _proposal(plan, found, rows)
    now = proposal.p99
    tables = lay_out([_tables(outcome) for outcome in found[AS_IS]])
    changed = lay_out([_tables(outcome) for outcome in found[PROPOSED]])
    before = _side("before", variant(scenario, ()), tables, _tables(found[AS_IS][0]), was, rng)
    after = _side("after", best, changed, _tables(found[PROPOSED][0]), now, rng)
    parts = anatomy(tables, scenario.fleet, objective.metric, objective.p99 / MS, rng)
    burst = _burstiness(plan)
    return Report(
        kind="reproduce",
        title=scenario.title,
        headline=_headline(before, after, rows, kept, objective.metric, objective.p99 / MS),
        objective_metric=objective.metric,
        objective_ms=objective.p99 / MS,
        seed=plan.seed,
        repetitions=plan.repetitions,
        run=Run(
            id=scenario.name,
            kind="reproduce",
            seed=plan.seed,
            config_digest=before.config_digest,
            clock="virtual",
            end_ns=int(
                max(outcome.columns.requests["sent"].max() for outcome in found[AS_IS] if outcome.columns)
            ),
        ),
        before=before,
        after=after,
        saved=proposal.saved,
        left_out=tuple(fix.id for fix in scenario.fixes if fix.id not in kept),
        verified=_verified(plan, before.account, after.account, now, objective.p99 / MS),
        stages=parts.stages,
        who=parts.who,
        waterfalls=parts.waterfalls,
        matrix=parts.matrix,
        spectrum=parts.spectrum,
        findings=_with_fixes(scenario, kept, parts.findings),
        ablation=rows,
        changes=best.changes,
        notes=(
            *DEFINITIONS,
            *left_out(tables.requests, objective.metric),
            *_notes(plan, found, rows, kept, burst),
        ),
        facts={"requests_per_repetition": len(found[AS_IS][0].latency_ms), "arrivals": burst},
    )


def _proposal(plan: Plan, found: dict[str, list[Outcome]], rows: tuple[Ablation, ...]) -> Ablation:
    """The ablation's row of what is proposed: that of all fixes where all are, else one of its own."""
    if found[PROPOSED] is found[ALL]:
        return next(row for row in rows if row.id == "all")
    samples = {name: [o.answered_ms() for o in found[name]] for name in (AS_IS, PROPOSED)}
    rng = stream_generator(plan.seed, "ablation")
    drawn = ablation_rows(samples[AS_IS], {}, samples[PROPOSED], {}, rng, paired=_all_answered(found))
    return next(row for row in drawn if row.id == "all")


def _verified(plan: Plan, before: Account, after: Account, p99: Interval, objective_ms: float) -> bool | None:
    """Whether the objective is proven met: by the interval's upper bound, and by no fewer answers than before.

    None with one repetition: an interval without run-to-run spread proves nothing.
    """
    if plan.repetitions < 2:
        return None
    return (
        p99.high <= objective_ms
        and after.completed >= before.completed
        and 100 * after.completed >= 99 * after.offered
    )


def _tables(outcome: Outcome) -> Tables:
    assert outcome.columns is not None
    return Tables(outcome.columns.requests, outcome.columns.steps, outcome.columns.signals)


def _side(
    label: str, config: Variant, whole: Tables, first: Tables, p99: Interval, rng: np.random.Generator
) -> Side:
    """One configuration: its figures from all repetitions laid out as one, its lines over time from the first."""
    metric = config.fleet.objective.metric
    return Side(
        label,
        latency=msgspec.structs.replace(latency_summary(whole.requests, metric, rng), p99=p99),
        others=other_latencies(whole.requests, metric, rng),
        account=account(whole.requests),
        series=series(first.requests, first.steps, first.signals, metric),
        fleet=config.fleet,
        config_digest=digest(config.fleet),
    )


def _with_fixes(
    scenario: Scenario, kept: tuple[str, ...], findings: tuple[Finding, ...]
) -> tuple[Finding, ...]:
    """Each finding with the changes of the proposed fixes that answer it, none where its fix was left out; its own
    proposal where the scenario has no fix for it.
    """
    changes: dict[str, list[Change]] = {}
    for fix in scenario.fixes:
        for cause in fix.answers:
            made = variant(scenario, (fix.id,)).changes if fix.id in kept else ()
            changes.setdefault(cause, []).extend(made)
    return tuple(
        msgspec.structs.replace(finding, changes=tuple(changes.get(finding.id, finding.changes)))
        for finding in findings
    )


def _headline(
    before: Side,
    after: Side,
    rows: tuple[Ablation, ...],
    kept: tuple[str, ...],
    metric: str,
    objective_ms: float,
) -> str:
    was, now = before.latency.p99, after.latency.p99
    name = "time to first token" if metric == "ttft" else "end-to-end time"
    verdict = (
        "under"
        if now.high <= objective_ms
        else "not proven under"
        if now.low <= objective_ms
        else "still over"
    )
    text = (
        f"P99 {name} was {show_duration(was.value * MS)} against an objective of {show_duration(objective_ms * MS)}; "
        f"with the proposed changes it is {show_duration(now.value * MS)}, {verdict} it."
    )
    losses = [(row.needed.value, row) for row in rows if row.id in kept and row.needed and row.needed.low > 0]
    if losses:
        value, best = max(losses, key=lambda loss: loss[0])
        text += f" Most surely needed among them, {value:,.0f} ms lost without it: {best.title}."
    lost = after.account.offered - after.account.completed
    if lost:
        text += f" {lost:,} of {after.account.offered:,} requests got no answer."
    return text


def _burstiness(plan: Plan) -> dict[str, float]:
    """Rate, CV and IDC of the arrivals of all repetitions, one after the other."""
    gaps_s = np.concatenate([plan.workload(r).gaps_s() for r in range(plan.repetitions)])
    whole = burstiness(np.cumsum(gaps_s), windows_s=WINDOWS_S)
    return {"rate_per_s": whole.rate_per_s, "cv": whole.cv} | {
        f"idc_{row.window_s:g}s": row.idc for row in whole.idc
    }


def _notes(
    plan: Plan,
    found: dict[str, list[Outcome]],
    rows: tuple[Ablation, ...],
    kept: tuple[str, ...],
    burst: dict[str, Any],
) -> tuple[Note, ...]:
    scenario = plan.scenario
    source = (
        "slices of a trace file" if plan.trace is not None else "an arrival process fitted to a real trace"
    )
    pairing = (
        "paired request by request"
        if _all_answered(found)
        else "paired by seed, as some requests got no answer"
    )
    notes = [
        Note(
            "Arrivals",
            f"{plan.repetitions} x {len(found[AS_IS][0].latency_ms)} requests from {source}: {burst['rate_per_s']:.2f} "
            f"requests/s, inter-arrival CV {burst['cv']:.1f} (a Poisson process has 1)"
            + (f", IDC(1 s) {burst['idc_1s']:.1f}." if "idc_1s" in burst else "."),
        ),
        Note("Spread", _spread(found, scenario.fleet.objective.p99 / MS)),
        Note(
            "Intervals",
            "95 %, from a two-stage bootstrap over repetitions and over requests within them; every configuration "
            f"meets the same requests, and differences are {pairing}.",
        ),
        Note(
            "What pretends",
            "Engines take the time a step-time model says; held-out checks of that model are mostly 10 to 30 % too fast "
            "(docs/accuracy-steptime.md). The gateway's CPU is a queue with a stated cost; several workers share "
            "one queue, which is a little kinder than one queue each. The pipeline, the policies, the scheduler's rules "
            "and the tables are those of live traffic. Lines over time are of the first repetition.",
        ),
    ]
    notes += [_left_out(row) for row in rows if row.needed is not None and row.id not in kept]
    engine = scenario.fleet.engines[0]
    if isinstance(engine, EmulatedEngine):
        notes.append(
            Note("Assumed for each engine", "; ".join(emulation(scenario.fleet, engine, {}).assumed) + ".")
        )
    return tuple(notes)


def _left_out(row: Ablation) -> Note:
    needed, saved = row.needed, row.saved
    assert needed is not None
    assert saved is not None
    return Note(
        f"Left out: {row.title}",
        f"Beside the other changes it costs {-needed.value:,.0f} ms of P99 ({-needed.high:,.0f} to "
        f"{-needed.low:,.0f}); alone it saves {saved.value:,.0f} ms.",
    )


def _spread(found: dict[str, list[Outcome]], objective_ms: float) -> str:
    """How much single repetitions differ: the P99s of the run before and the run after."""
    if len(found[AS_IS]) < 2:
        return "One repetition: nothing is known about run-to-run spread, and nothing is called verified."
    texts = []
    for name, label in ((AS_IS, "before"), (PROPOSED, "after")):
        each = sorted(float(np.quantile(outcome.answered_ms(), 0.99)) for outcome in found[name])
        over = sum(value > objective_ms for value in each)
        texts.append(
            f"{label}, {over} of {len(each)} are over the objective ({each[0]:,.0f} to {each[-1]:,.0f} ms)"
        )
    return f"P99 of single repetitions differs as bursts do: {'; '.join(texts)}."
