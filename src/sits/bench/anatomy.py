"""Where the time of one phase of load went, from both sides: the client's clock and the engine's own histograms.

Every figure of a phase is a mean, because means add and percentiles do not.  TTFT is the client's, from schedule.
Inside it the engine accounts for `engine_queue` (queued to scheduled) and `prefill` (scheduled to first token), each the
exact mean of its histogram over the phase, derived, since it is not known of which request.  What is left, TTFT - send lag -
queue - prefill, is in no metric: HTTP, tokenizing, the hops between API server and engine core and back, event loops that
are late, and the network.  It is reported as what it is, "unattributed (dispatched..queued)", also when it is negative (then the
engine's histograms are not about the same requests, and a finding says so).

Intervals: of client figures by block bootstrap over arrivals; of histogram means normal, with the largest deviation their
buckets and sum allow, so too wide rather than too narrow.  Deliberately absent: any I/O.
"""

import math

import msgspec
import numpy as np

from sits.bench.load import Load
from sits.core.breakpoints import API_RECV, DISPATCHED, FIRST_TOKEN
from sits.core.finding import Interval
from sits.core.report import LatencySummary, StageShare
from sits.diagnose.resample import LEVEL, Blocks, interval, quantile
from sits.telemetry.prometheus_text import Histogram
from sits.telemetry.signals import Change, EngineView
from sits.telemetry.tables import Columns

LAG = "unattributed (api_recv..dispatched)"
OUTSIDE = "unattributed (dispatched..queued)"
UNSEEN = "unattributed (dispatched..first_token)"
QUEUE = "engine_queue"
PREFILL = "prefill"

_Z = 1.96


class Phase(msgspec.Struct, frozen=True, kw_only=True):
    """One finished phase: the load, its `requests` table, and what the engine said about it.

    `change` is the engine's counters and histograms over the phase (None: it tells nothing); `samples` are its gauges
    during it, with monotonic ns.
    """

    name: str
    rate: float
    load: Load
    columns: Columns
    change: Change | None = None
    samples: tuple[tuple[int, EngineView], ...] = ()

    def completed(self) -> int:
        """Requests that completed."""
        return sum(call.outcome == "completed" for call in self.load.calls)

    def gauge(self, name: str) -> np.ndarray:
        """Samples of one gauge; empty when it was not told."""
        return np.array([view.values[name] for _, view in self.samples if name in view.values])

    def counted(self, name: str) -> float | None:
        """How much a counter grew over the phase; None when it was not told."""
        return None if self.change is None else self.change.view.values.get(name)

    def histogram(self, name: str) -> Histogram | None:
        """An engine histogram over the phase (seconds); None when it was not told or saw nothing."""
        found = None if self.change is None else self.change.view.histograms.get(name)
        return found if found is not None and found.count > 0 else None


class Part(msgspec.Struct, frozen=True):
    """The mean of one stage over a phase, ms, with its interval."""

    stage: str
    layer: str
    mean: Interval
    exactness: str


def client_ms(phase: Phase, start: int, end: int) -> tuple[np.ndarray, np.ndarray]:
    """(n,) milliseconds from point `start` to point `end` of completed requests, and their due times."""
    done = [call for call in phase.load.calls if call.outcome == "completed"]
    took = [(call.timeline.at[end] - call.timeline.at[start]) / 1e6 for call in done]
    return np.array(took, dtype=np.float64), np.array([call.due_ns for call in done], dtype=np.int64)


def mean_of(values: np.ndarray, arrival_ns: np.ndarray, rng: np.random.Generator) -> Interval:
    """Mean with its block-bootstrap interval."""
    blocks = Blocks(arrival_ns, rng)
    sizes = blocks.sums(np.ones(len(values)))
    return interval(float(values.mean()), blocks.sums(values) / sizes)


def histogram_mean_ms(histogram: Histogram) -> Interval:
    """The exact mean of a histogram of seconds, ms, with a conservative normal interval of its sampling error."""
    mean = (histogram.mean or 0.0) * 1e3
    spread = _Z * histogram.deviation_max() * 1e3 / math.sqrt(histogram.count)
    return Interval(mean, max(0.0, mean - spread), mean + spread, LEVEL)


_INSIDE = ((QUEUE, "scheduler", "queue_seconds"), (PREFILL, "result", "prefill_seconds"))


def known(phase: Phase) -> frozenset[str]:
    """The stages the engine told something about in this phase."""
    told = {stage for stage, _, name in _INSIDE if phase.histogram(name) is not None}
    if phase.counted("prefill_seconds_total"):
        told.add(PREFILL)
    return frozenset(told)


def parts_of(phase: Phase, stages: frozenset[str], rng: np.random.Generator) -> tuple[Part, ...]:
    """The stages of the mean TTFT of a phase; their means add up to it.

    `stages` are those of `known` to be told apart.  Needs at least one completed request.
    """
    lag = mean_of(*client_ms(phase, API_RECV, DISPATCHED), rng)
    rest = mean_of(*client_ms(phase, DISPATCHED, FIRST_TOKEN), rng)
    parts = [Part(LAG, "http", lag, "measured")]
    inside = [
        Part(stage, layer, histogram_mean_ms(histogram), "derived")
        for stage, layer, name in _INSIDE
        if stage in stages and (histogram := phase.histogram(name)) is not None
    ]
    total_s = phase.counted("prefill_seconds_total")
    if PREFILL in stages and not any(part.stage == PREFILL for part in inside) and total_s is not None:
        mean = total_s * 1e3 / phase.completed()
        inside.append(Part(PREFILL, "result", Interval(mean, mean, mean), "derived"))
    if not inside:
        return (*parts, Part(UNSEEN, "unattributed", rest, "measured"))
    outside = Interval(
        rest.value - sum(part.mean.value for part in inside),
        rest.low - sum(part.mean.high for part in inside),
        rest.high - sum(part.mean.low for part in inside),
        LEVEL,
    )
    return (*parts, Part(OUTSIDE, "unattributed", outside, "derived"), *inside)


def outside_split(phase: Phase, parts: tuple[Part, ...]) -> dict[str, float]:
    """Two halves of what is outside the engine core, ms, where the engine has a TTFT histogram of its own.

    That histogram starts at the API server: `api_server` is its mean less queue and prefill, `client_and_network` what
    the client saw more than it.  Empty when it cannot be told.
    """
    own = phase.histogram("ttft_seconds")
    by_stage = {part.stage: part.mean.value for part in parts}
    if own is None or OUTSIDE not in by_stage:
        return {}
    api_server = histogram_mean_ms(own).value - by_stage.get(QUEUE, 0.0) - by_stage.get(PREFILL, 0.0)
    return {"api_server": api_server, "client_and_network": by_stage[OUTSIDE] - api_server}


def stage_rows(baseline: tuple[Part, ...], loaded: tuple[Part, ...]) -> tuple[StageShare, ...]:
    """Rows of the report: mean in the baseline phase, mean in the loaded phase, and what the load added."""
    before = {part.stage: part for part in baseline}
    nothing = Interval(0.0, 0.0, 0.0)
    rows = []
    for part in loaded:
        calm = before[part.stage].mean if part.stage in before else nothing
        more = Interval(
            part.mean.value - calm.value, part.mean.low - calm.high, part.mean.high - calm.low, LEVEL
        )
        rows.append(StageShare(part.stage, part.layer, calm.value, part.mean.value, more, part.exactness))
    return tuple(rows)


def summary(
    metric: str, values_ms: np.ndarray, arrival_ns: np.ndarray, rng: np.random.Generator
) -> LatencySummary | None:
    """Quantiles of a client-side latency; None without values."""
    if len(values_ms) == 0:
        return None
    ascending = np.sort(values_ms)
    return LatencySummary(
        metric=metric,
        n=len(values_ms),
        mean_ms=float(ascending.mean()),
        p50_ms=quantile(ascending, 0.5),
        p95_ms=quantile(ascending, 0.95),
        p99=interval(quantile(ascending, 0.99), Blocks(arrival_ns, rng).quantiles(values_ms, 0.99)),
        max_ms=float(ascending[-1]),
    )
