"""What an investigation may claim: one function a suspect, each with its evidence, its effect and its bar.

A suspect is named when its part of the mean latency of the loaded phase is a large share and more than a few
milliseconds.  Below `ENOUGH` completed requests every claim about time is made inconclusive: the figures are still shown.
The bars are stated here, in one place, and are printed with the report; none is tuned to a result.

Deliberately absent: proposals to change the engine's configuration, which an outside view cannot justify.
"""

from collections.abc import Iterable, Iterator

import msgspec
import numpy as np

from sits.bench.anatomy import OUTSIDE, PREFILL, QUEUE, UNSEEN, Part, Phase, client_ms, mean_of, outside_split
from sits.core.breakpoints import API_RECV, FIRST_TOKEN, LAST_TOKEN
from sits.core.finding import Evidence, Finding, Interval

ENOUGH = 30
"""Completed requests in the loaded phase below which nothing is claimed."""

SHARE, LEAST_MS = 0.25, 10.0
"""A stage is named from this share of the mean TTFT on, and from so many ms on."""

DECODE_SHARE, DECODE_SLOWER = 0.5, 2.0
"""Generating is named from this share of the end-to-end time on, and a warning from so many times the baseline's pace on."""

KV_FULL = 0.9
UNSTEADY = 1.5
"""Growth of the mean TTFT from a phase's first third to its last that is called growth."""

BARS = (
    f"A stage is named from {SHARE:.0%} of the mean TTFT and {LEAST_MS:.0f} ms on; decode from {DECODE_SHARE:.0%} of "
    f"the mean end-to-end time on; KV from {KV_FULL:.0%} in use or the "
    f"first preemption on; a phase is above capacity when the mean TTFT grows from third to third, to {UNSTEADY} times "
    f"the first and beyond its interval; below {ENOUGH} completed requests nothing is claimed."
)


class Scene(msgspec.Struct, frozen=True):
    """What the suspects are judged by."""

    baseline: Phase
    loaded: Phase
    calm: tuple[Part, ...]
    parts: tuple[Part, ...]
    metrics_error: str = ""

    def part(self, stage: str) -> Part | None:
        """A stage of the loaded phase, when it is known."""
        return next((part for part in self.parts if part.stage == stage), None)

    def calm_ms(self, stage: str) -> float:
        """The mean of a stage in the baseline phase, 0 when unknown."""
        return next((part.mean.value for part in self.calm if part.stage == stage), 0.0)

    @property
    def ttft_ms(self) -> float:
        """Mean TTFT of the loaded phase."""
        return sum(part.mean.value for part in self.parts)


def findings(scene: Scene, rng: np.random.Generator) -> tuple[Finding, ...]:
    """All claims, alarms first, then by effect; at least one, because "nothing stands out" is a claim too."""
    done = scene.loaded.completed()
    about_time = [*_stages(scene), *_decode(scene, rng), *_unsteady(scene, rng)] if scene.parts else []
    if done < ENOUGH:
        why = f"not enough evidence: {done} completed requests, {ENOUGH} are needed"
        about_time = [msgspec.structs.replace(f, severity="info", inconclusive=why) for f in about_time]
        about_time = about_time or [_nothing(f"{done} requests completed", why)]
    always = [*_outcomes(scene), *_kv(scene), *_blind(scene), *_others(scene), *_generator(scene)]
    found = sorted([*about_time, *always], key=_weight)
    if done >= ENOUGH and not any(f.severity != "info" or f.effect_ms for f in found):
        found.append(_nothing(f"no stage of {done} requests stands out", ""))
    return tuple(found)


def _weight(finding: Finding) -> tuple[int, float]:
    """Alarms first, then warnings, the largest effect first."""
    effect = finding.effect_ms.value if finding.effect_ms else 0.0
    return ("alarm", "warning", "info").index(finding.severity), -effect


def _nothing(what: str, why: str) -> Finding:
    return Finding(
        id="nothing_stands_out", claim=f"{what}.", layer="framework", severity="info", inconclusive=why
    )


_STAGES = {
    QUEUE: (
        "engine_queue",
        "framework",
        "requests wait {ms} in the engine's queue for a seat in the batch: {share} of the mean TTFT",
    ),
    PREFILL: ("prefill", "model", "prefill takes {ms} from being scheduled to the first token: {share} of the mean TTFT"),
    OUTSIDE: (
        "outside_engine_core",
        "framework",
        "{ms} pass outside the engine core (HTTP, tokenizing, hops, event loops, network), in no metric of the engine: {share} of the mean TTFT",
    ),
}  # fmt: skip


def _stages(scene: Scene) -> Iterator[Finding]:
    for stage, (slug, layer, text) in _STAGES.items():
        part = scene.part(stage)
        if part is None:
            continue
        share = part.mean.value / scene.ttft_ms if scene.ttft_ms else 0.0
        if part.mean.value < 0:
            yield Finding(
                id="negative_remainder",
                claim="the engine's histograms say more time than the client saw: they are about other requests too.",
                layer=layer,
                evidence=(Evidence("outside_engine_core", part.mean.value, unit="ms"),),
                inconclusive="queue and prefill include requests that are not ours",
            )
        elif share >= SHARE and part.mean.value >= LEAST_MS:
            yield Finding(
                id=slug,
                claim=text.format(ms=f"{part.mean.value:,.0f} ms", share=f"{share:.0%}") + ".",
                layer=layer,
                severity="warning" if stage != PREFILL else "info",
                effect_ms=part.mean,
                evidence=(
                    Evidence(
                        stage, part.mean.value, scene.calm_ms(stage), "ms", "mean, against the baseline phase"
                    ),
                    Evidence("share_of_ttft", share, SHARE, "share"),
                    *(_gauges(scene, "requests_waiting", "requests_running") if stage == QUEUE else ()),
                    *(_halves(scene) if stage == OUTSIDE else ()),
                ),
            )


def _halves(scene: Scene) -> Iterator[Evidence]:
    calm = outside_split(scene.baseline, scene.calm)
    for name, value in outside_split(scene.loaded, scene.parts).items():
        yield Evidence(name, value, calm.get(name), "ms", "by the engine's own TTFT histogram")


def _gauges(scene: Scene, *names: str) -> Iterator[Evidence]:
    for name in names:
        seen, calm = scene.loaded.gauge(name), scene.baseline.gauge(name)
        if len(seen):
            yield Evidence(
                name,
                float(seen.max()),
                float(calm.max()) if len(calm) else None,
                "requests",
                "highest sample",
            )


def _decode(scene: Scene, rng: np.random.Generator) -> Iterator[Finding]:
    took, _ = client_ms(scene.loaded, FIRST_TOKEN, LAST_TOKEN)
    whole, _ = client_ms(scene.loaded, API_RECV, LAST_TOKEN)
    share = float(took.mean() / whole.mean()) if len(took) else 0.0
    loaded, calm = (_tpot_mean(phase, rng) for phase in (scene.loaded, scene.baseline))
    if loaded is None or share < DECODE_SHARE:
        return
    slower = loaded.value / calm.value if calm is not None else 0.0
    effect = None
    if calm is not None and loaded.low > 0:
        shares = (1 - slower**-1, 1 - calm.high / loaded.low, 1 - calm.low / loaded.high)
        effect = Interval(*(float(took.mean()) * part for part in shares))
    yield Finding(
        id="decode",
        claim=f"generating takes {share:.0%} of the end-to-end time: {loaded.value:.1f} ms a token"
        + (f", {slower:.1f} times the baseline's." if slower else "."),
        layer="model",
        severity="warning" if slower >= DECODE_SLOWER and effect is not None and effect.low > 0 else "info",
        effect_ms=effect,
        evidence=(
            Evidence("tpot", loaded.value, calm.value if calm is not None else None, "ms", "mean a token"),
            Evidence("share_of_e2e", share, DECODE_SHARE, "share"),
        ),
    )


def _tpot_mean(phase: Phase, rng: np.random.Generator) -> Interval | None:
    values = tpot_ms(phase)
    due = np.array([call.due_ns for call in phase.load.calls if call.tpot_ns is not None], dtype=np.int64)
    return mean_of(values, due, rng) if len(values) else None


def _unsteady(scene: Scene, rng: np.random.Generator) -> Iterator[Finding]:
    took, due = client_ms(scene.loaded, API_RECV, FIRST_TOKEN)
    third = len(took) // 3
    if third < 5:
        return
    order = np.argsort(due, kind="stable")
    rows = (order[:third], order[third:-third], order[-third:])
    first, middle, last = (mean_of(took[part], due[part], rng) for part in rows)
    growing = first.value < middle.value < last.value and first.high < last.low
    if growing and last.value > UNSTEADY * first.value and last.value - first.value >= LEAST_MS:
        yield Finding(
            id="above_capacity",
            claim=f"TTFT grew all through the phase, {first.value:,.0f} to {last.value:,.0f} ms from its first to its "
            f"last third: {scene.loaded.rate:.2g} req/s is more than this engine sustained, and the figures depend on how "
            "long we looked.",
            layer="framework",
            effect_ms=Interval(last.value - first.value, last.low - first.high, last.high - first.low),
            evidence=(
                Evidence("ttft_last_third", last.value, first.value, "ms", "mean, against the first third"),
            ),
        )


def _outcomes(scene: Scene) -> Iterator[Finding]:
    calls = [call for phase in (scene.baseline, scene.loaded) for call in phase.load.calls]
    bad: dict[tuple[str, str], int] = {}
    for call in calls:
        if call.outcome != "completed":
            key = (call.outcome or "in flight", call.detail or "not answered in time")
            bad[key] = bad.get(key, 0) + 1
    for (outcome, detail), count in sorted(bad.items(), key=lambda item: -item[1]):
        yield Finding(
            id=f"requests_{outcome.replace(' ', '_')}",
            claim=f"{count} of {len(calls)} requests {outcome}: {detail}.",
            layer="framework",
            severity="alarm" if outcome == "failed" else "warning",
            evidence=(Evidence(outcome, float(count), 0.0, "requests", detail),),
        )


def _kv(scene: Scene) -> Iterator[Finding]:
    usage = scene.loaded.gauge("kv_usage")
    preempted = scene.loaded.counted("preemptions_total") or 0.0
    if not len(usage) or (usage.max() < KV_FULL and not preempted):
        return
    yield Finding(
        id="kv_pressure",
        claim=f"the KV cache is under pressure: {usage.max():.0%} in use at the highest, {preempted:.0f} preemptions.",
        layer="framework",
        severity="alarm" if preempted else "warning",
        evidence=(
            Evidence("kv_usage", float(usage.max()), KV_FULL, "share", "highest sample"),
            Evidence("preemptions", preempted, 0.0, "requests"),
        ),
    )


def _blind(scene: Scene) -> Iterator[Finding]:
    part = scene.part(UNSEEN)
    if part is not None:
        yield Finding(
            id="engine_tells_nothing",
            claim="the engine tells nothing about its queue or prefill, so all of TTFT stays unattributed.",
            layer="framework",
            severity="info",
            effect_ms=part.mean,
            inconclusive=scene.metrics_error or "its metrics have no time in queue or prefill",
        )


def _others(scene: Scene) -> Iterator[Finding]:
    for phase in (scene.baseline, scene.loaded):
        histogram = phase.histogram("queue_seconds") or phase.histogram("e2e_seconds")
        sent = phase.load.delivered.sent
        if histogram is not None and not phase.completed() <= histogram.count <= sent:
            yield Finding(
                id="not_alone",
                claim=f"in the {phase.name} phase the engine finished {histogram.count:.0f} requests, "
                f"{sent} of ours were sent and {phase.completed()} completed: its means are not about ours alone.",
                layer="infrastructure",
                evidence=(Evidence("finished", histogram.count, float(sent), "requests", phase.name),),
            )
        if phase.change is not None and phase.change.resets:
            yield Finding(
                id="engine_restarted",
                claim=f"the engine's counters restarted in the {phase.name} phase: its figures are lower bounds.",
                layer="infrastructure",
                severity="alarm",
                evidence=tuple(
                    Evidence(name, 0.0, unit="", note="reset") for name in phase.change.resets[:3]
                ),
            )


def _generator(scene: Scene) -> Iterator[Finding]:
    for phase in (scene.baseline, scene.loaded):
        got = phase.load.delivered
        if got.doubt:
            yield Finding(
                id="load_not_delivered",
                claim=f"the {phase.name} load was not what was asked for: {got.doubt}"
                + (
                    ", with little CPU used here: this machine is busy with something else."
                    if got.cpu_share < 0.5
                    else "."
                ),
                layer="infrastructure",
                severity="info"
                if got.sent == got.offered and _harmless(scene, got.lag_ms_p99)
                else "warning",
                evidence=(
                    Evidence("send_lag_p99", got.lag_ms_p99, 20.0, "ms"),
                    Evidence("generator_cpu", got.cpu_share, 0.8, "share", "of one core"),
                ),
            )


def _harmless(scene: Scene, lag_ms: float) -> bool:
    """Whether a send lag is below a twentieth of the mean TTFT it is part of."""
    return lag_ms < 0.05 * scene.ttft_ms


def tpot_ms(phase: Phase) -> np.ndarray:
    """Milliseconds a token after the first, one value a completed request with two tokens or more."""
    found: Iterable[float] = (tpot / 1e6 for call in phase.load.calls if (tpot := call.tpot_ns) is not None)
    return np.array(list(found), dtype=np.float64)
