"""One run, or several of one configuration, laid out once for all detectors: the cut, the tail, the steps, and
how a claim is made.

A detector says, for every request, how many ns of its latency one cause accounts for, span by span (`SPANS`);
no more counts than the request spent there.  `claim` turns that into a Finding whose effect is the mean of it
over the slowest 1 % of requests, with a bootstrap interval (over runs first, where there are several): "of the
latency of a tail request, this much".
Beside it stands what P99 would be with this time taken off every request and all else as it was: the figure to
hold against an ablation.  The two differ where a few requests are far slower than P99.

Effects overlap: a wait for KV blocks at one replica while another is idle is two causes' time.  `overlaps` says
of each claim how much of it others must count too, since all claims about a span together cannot be more than
the span.  That is a lower bound; which of them would help is for the ablation to tell.

A claim is made only when the lower bound reaches both `LEAST_MS` and `LEAST_SHARE` of P99, and is an
alarm from `ALARM_SHARE` of P99 on.  With several runs, whether it is made hangs on these very runs (the bound with
requests resampled), its interval and severity on runs like these: what one run of twelve suffered is told, as `info`,
with the number of runs it was in.  A fault of the hardware that is there but below `LEAST_SHARE` is told as `info`.
With fewer than `LEAST_REQUESTS` requests the tail is three requests or fewer: a claim becomes an inconclusive one.

Deliberately absent: what any single cause looks like.
"""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import numpy as np

from sits.core.breakpoints import API_RECV, INDEX
from sits.core.finding import Change, Evidence, Finding, Interval
from sits.core.fleet import AnyEngine, EmulatedEngine, Fleet
from sits.diagnose.attribute import Parts, split
from sits.diagnose.columns import Columns, Floats, Ints, rows_of
from sits.diagnose.decompose import NS_PER_MS, end_of
from sits.diagnose.resample import DRAWS, Tail, quantile
from sits.diagnose.steps import StepTime

LEAST_REQUESTS = 300
LEAST_MS = 1.0
LEAST_SHARE = 0.01
ALARM_SHARE = 0.2

SPANS: dict[str, tuple[str, str]] = {
    "gateway": ("api_recv", "routed"),
    "window": ("routed", "dispatched"),
    "queue": ("queued", "scheduled"),
    "service": ("scheduled", ""),
}
"""Where time can be accounted to a cause: two points each, "" for the metric's end."""

Rates = Mapping[str, Any]
Spent = Mapping[str, np.ndarray]
"""(m,) ns by span."""


class Case:
    """What is known about the requests of a table.

    Attributes:
        parts: every request's latency, split by stage and plane; `parts.cut` the stages.
        lines: the steps of each engine by name; empty when no steps were recorded.
        engine: (m,) engine of each request of the cut.
        fleet: what was configured; None when unknown.

    """

    def __init__(
        self,
        requests: Columns,
        steps: Columns,
        signals: Columns,
        fleet: Fleet | None,
        *,
        metric: str,
        rng: np.random.Generator,
        draws: int = DRAWS,
    ) -> None:
        self.requests, self.steps, self.signals, self.fleet, self.metric = (
            requests,
            steps,
            signals,
            fleet,
            metric,
        )
        self.end = end_of(metric)
        self.parts: Parts = split(requests, steps, metric)
        self.cut = self.parts.cut
        self.lines = self.parts.lines
        self.engine = requests["engine"][self.cut.rows].astype(str)
        self.n = len(self.cut.rows)
        self.tail = Tail(self.cut.total_ns, self.cut.at[:, API_RECV], rng, draws=draws, run=self.cut.run)
        self._here = (
            Tail(self.cut.total_ns, self.cut.at[:, API_RECV], rng, draws=draws)
            if self.cut.run.any()
            else self.tail
        )
        self.tail_ms = self.tail.at(self.cut.total_ns) / NS_PER_MS
        self.p99_ms = quantile(np.sort(self.cut.total_ns), 0.99) / NS_PER_MS
        self.claimed: dict[str, Spent] = {}

    def column(self, name: str) -> np.ndarray:
        """Column `name` of the request table for the requests of the cut."""
        return self.requests[name][self.cut.rows]

    def point(self, name: str) -> Ints:
        """(m,) times of point `name`; where it was not seen, of the last point seen before it."""
        last = INDEX[name]
        return np.where(
            self.cut.how[:, : last + 1] > 0, self.cut.at[:, : last + 1], np.iinfo(np.int64).min
        ).max(axis=1)

    def seen(self, *names: str) -> bool:
        """Whether these points were seen on at least half of the requests."""
        return bool((self.cut.how[:, [INDEX[name] for name in names]] > 0).all(axis=1).mean() >= 0.5)

    def overlap(self, start: Ints, end: Ints, rates: Callable[[StepTime], Rates]) -> Floats:
        """(m,) rate-weighted ns of each request's window in the steps of its own engine."""
        found = np.zeros(self.n)
        for name, line in self.lines.items():
            mine = np.flatnonzero((self.engine == name) & (end > start))
            found[mine] = line.between(start[mine], end[mine], **rates(line))
        return found

    def span(self, name: str) -> tuple[Ints, Ints]:
        """(m,) start and end of a span of `SPANS`; `service` ends with the last token where the metric is `e2e`."""
        start, end = SPANS[name]
        return self.point(start), self.point(
            end or ("first_token" if self.metric == "ttft" else "last_token")
        )

    def engine_spans(self) -> dict[str, tuple[Ints, Ints]]:
        """`queue`, and `service` as far as it passed in the engine: a TTFT ends outside, with the delivery."""
        start, end = self.span("service")
        inside = end - self.parts.part("prefill: delivery") if self.metric == "ttft" else end
        return {"queue": self.span("queue"), "service": (start, np.maximum(inside, start))}

    def in_engine(self, rates: Callable[[StepTime], Rates]) -> dict[str, Floats]:
        """Rate-weighted ns of each request's time in its engine, by span."""
        return {name: self.overlap(*span, rates) for name, span in self.engine_spans().items()}

    def signal(self, name: str) -> tuple[Ints, Floats]:
        """Times and values of all samples of signal `name`, in time order; empty when there are none."""
        chosen = self._samples(name)
        if not len(chosen):
            return np.zeros(0, np.int64), np.zeros(0)
        return self.signals["t_ns"][chosen], self.signals["value"][chosen].astype(np.float64)

    def signal_by_run(self, name: str) -> list[tuple[Ints, Ints, Floats]]:
        """For each run, and each source that sampled signal `name` in it: the run's requests (rows of the cut), and the samples.

        Where either table does not tell runs apart, all is one run.
        """
        samples = self._samples(name)
        if not len(samples):
            return []
        t, value = self.signal(name)
        source = self.signals["source"][samples]
        told = "run_id" in self.signals and "run_id" in self.requests and self.cut.run.any()
        mine = self.column("run_id") if told else np.zeros(self.n, np.int64)
        theirs = self.signals["run_id"][samples] if told else np.zeros(len(samples), np.int64)
        found = []
        for run in dict.fromkeys(mine.tolist()):
            rows = np.flatnonzero(mine == run)
            for one in dict.fromkeys(source[theirs == run].tolist()):
                sampled = (theirs == run) & (source == one)
                found.append((rows, t[sampled], value[sampled]))
        return found

    def _samples(self, name: str) -> Ints:
        if rows_of(self.signals) == 0:
            return np.zeros(0, np.int64)
        chosen = np.flatnonzero(self.signals["name"] == name)
        return chosen[np.argsort(self.signals["t_ns"][chosen], kind="stable")]

    def engine_config(self, name: str) -> AnyEngine | None:
        """The configured engine called `name`, if the fleet is known and has it."""
        return next((e for e in self.fleet.engines if e.name == name), None) if self.fleet else None

    def emulated(self) -> list[EmulatedEngine]:
        """Configurations of the engines with steps, as far as the fleet file describes them."""
        found = [self.engine_config(name) for name in self.lines]
        return [engine for engine in found if isinstance(engine, EmulatedEngine)]

    def effect(self, accounted_ns: np.ndarray) -> Interval:
        """Mean ms of `accounted_ns` (m,) over the slowest 1 % of requests."""
        return self.tail.mean(np.asarray(accounted_ns) / NS_PER_MS)

    def matters(self, ms: float) -> bool:
        """Whether so much of a tail request's latency is worth a claim."""
        return ms >= max(LEAST_MS, LEAST_SHARE * self.p99_ms)

    def claim(
        self,
        cause: str,
        layer: str,
        spent: Spent,
        claim: str,
        evidence: tuple[Evidence, ...],
        changes: tuple[Change, ...] = (),
        *,
        doubt: str = "",
        fault: bool = False,
    ) -> Finding | None:
        """A Finding that `spent` of each request is due to `cause`; None when that is too little.

        Args:
            cause: its id.
            layer: where it is.
            spent: (m,) ns by span; what exceeds a request's span does not count.
            claim: one sentence; `{ms}` in it is replaced by the effect.
            evidence: what was observed.
            changes: what to do about it.
            doubt: makes it inconclusive.
            fault: of the hardware, to be told (as `info`) even when little of the tail is due to it.

        """
        spent = {name: np.clip(ns, 0.0, np.subtract(*self.span(name)[::-1])) for name, ns in spent.items()}
        whole = np.sum(list(spent.values()), axis=0)
        effect = self.effect(whole)
        here_ms = self._here.mean(whole / NS_PER_MS).low
        if here_ms < LEAST_MS or not (fault or self.matters(here_ms)):
            return None
        self.claimed[cause] = spent
        if self.n < LEAST_REQUESTS:
            doubt = f"{self.n} requests, at least {LEAST_REQUESTS} are needed to speak about the slowest 1 %"
        alarming = self.matters(effect.low) and effect.low >= ALARM_SHARE * self.p99_ms
        without_ms = quantile(np.sort(self.cut.total_ns - whole), 0.99) / NS_PER_MS
        note = "with this time taken off every request and all else as it was, against P99 as it was"
        return Finding(
            id=cause,
            claim=claim.format(ms=f"{effect.value:,.0f} ms")[:-1] + self._where(whole) + ".",
            layer=layer,
            severity="alarm" if alarming else "warning" if self.matters(effect.low) else "info",
            effect_ms=effect,
            evidence=(*evidence, Evidence("p99_ms_without", without_ms, self.p99_ms, "ms", note)),
            changes=() if doubt else changes,
            inconclusive=doubt,
        )

    def _where(self, spent_ns: np.ndarray) -> str:
        """In how many of several runs the tail requests lost enough to matter, as a clause; empty when in all."""
        rows = self.tail.rows
        lost = [spent_ns[rows[self.cut.run[rows] == run]] / NS_PER_MS for run in np.unique(self.cut.run)]
        hit = sum(self.matters(float(ms.mean())) for ms in lost if len(ms))
        return f" (in {hit} of {len(lost)} runs)" if 0 < hit < len(lost) else ""

    def overlaps(self, finding: Finding) -> Finding:
        """The finding with how much of its effect other claims must count too, where that is 1 ms or more."""
        mine = self.claimed.get(finding.id, {})
        shared = np.zeros(self.n)
        others: set[str] = set()
        for name, ns in mine.items():
            same = {cause: spent[name] for cause, spent in self.claimed.items() if name in spent}
            start, end = self.span(name)
            shared += np.clip(np.sum(list(same.values()), axis=0) - (end - start), 0.0, ns)
            others |= set(same) - {finding.id}
        shared_ms = self.tail.at(shared) / NS_PER_MS
        if finding.effect_ms is None or shared_ms < LEAST_MS:
            return finding
        note = f"at least, of the effect: it is also counted under {', '.join(sorted(others))}"
        told = Evidence("shared_ms", shared_ms, finding.effect_ms.value, "ms", note)
        stem = finding.claim.removesuffix(".").removesuffix(")")
        joint = "; " if finding.claim.endswith(").") else " ("
        claim = f"{stem}{joint}{shared_ms:,.0f} ms or more of it under other causes too)."
        return msgspec.structs.replace(finding, claim=claim, evidence=(*finding.evidence, told))


def unknown(cause: str, layer: str, claim: str, why: str) -> Finding:
    """A Finding that says that `cause` could not be judged, and why."""
    return Finding(id=cause, claim=claim, layer=layer, severity="info", inconclusive=why)
