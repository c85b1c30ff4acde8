"""One run laid out once for all detectors: the cut, the tail, the steps, and how a claim is made.

A detector says, for every request, how many ns of its latency one cause accounts for.  `claim` turns that
into a Finding whose effect is the mean of it over the slowest 1 % of requests, with a bootstrap interval: "of
the latency of a tail request, this much".  Effects of different causes may overlap (an adapter load over a
remote link is both), so they do not add up; the ablation tells them apart.

A claim is made only when the interval's lower bound reaches both `LEAST_MS` and `LEAST_SHARE` of the mean
tail latency.  With fewer than `LEAST_REQUESTS` requests the tail is three requests or fewer: a claim becomes
an inconclusive one.

Deliberately absent: what any single cause looks like.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from sits.core.breakpoints import API_RECV, INDEX
from sits.core.finding import Change, Evidence, Finding, Interval
from sits.core.fleet import EmulatedEngine, Fleet, OpenAIEngine
from sits.diagnose.attribute import Parts, split
from sits.diagnose.columns import Columns, Floats, Ints, rows_of
from sits.diagnose.decompose import NS_PER_MS, end_of
from sits.diagnose.resample import DRAWS, Tail
from sits.diagnose.steps import StepTime

LEAST_REQUESTS = 300
LEAST_MS = 1.0
LEAST_SHARE = 0.01
ALARM_SHARE = 0.2

Rates = Mapping[str, Any]


class Case:
    """What is known about one run.

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
        self.tail = Tail(self.cut.total_ns, self.cut.at[:, API_RECV], rng, draws=draws)
        self.tail_ms = float(self.cut.total_ns[self.tail.rows].mean()) / NS_PER_MS

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

    def engine_window(self) -> tuple[Ints, Ints]:
        """(m,) start and end of the time each request spent in its engine: `queued` to the metric's end."""
        end = "first_token" if self.metric == "ttft" else "last_token"
        return self.point("queued"), self.point(end)

    def signal(self, name: str) -> tuple[Ints, Floats]:
        """Times and values of all samples of signal `name`, in time order; empty when there are none."""
        if rows_of(self.signals) == 0:
            return np.zeros(0, np.int64), np.zeros(0)
        chosen = np.flatnonzero(self.signals["name"] == name)
        chosen = chosen[np.argsort(self.signals["t_ns"][chosen], kind="stable")]
        return self.signals["t_ns"][chosen], self.signals["value"][chosen].astype(np.float64)

    def engine_config(self, name: str) -> EmulatedEngine | OpenAIEngine | None:
        """The configured engine called `name`, if the fleet is known and has it."""
        return next((e for e in self.fleet.engines if e.name == name), None) if self.fleet else None

    def emulated(self) -> list[EmulatedEngine]:
        """Configurations of the engines with steps, as far as the fleet file describes them."""
        found = [self.engine_config(name) for name in self.lines]
        return [engine for engine in found if isinstance(engine, EmulatedEngine)]

    def effect(self, accounted_ns: np.ndarray) -> Interval:
        """Mean ms of `accounted_ns` (m,) over the slowest 1 % of requests."""
        return self.tail.mean(np.asarray(accounted_ns) / NS_PER_MS)

    def matters(self, effect: Interval) -> bool:
        """Whether an effect is large enough to be claimed."""
        return effect.low >= max(LEAST_MS, LEAST_SHARE * self.tail_ms)

    def claim(
        self,
        cause: str,
        layer: str,
        accounted_ns: np.ndarray,
        claim: str,
        evidence: tuple[Evidence, ...],
        changes: tuple[Change, ...] = (),
        *,
        doubt: str = "",
    ) -> Finding | None:
        """A Finding that `accounted_ns` of each request is due to `cause`; None when that is too little.

        `claim` may hold `{ms}`, replaced by the effect.  `doubt` makes it inconclusive.
        """
        effect = self.effect(accounted_ns)
        if not self.matters(effect):
            return None
        if self.n < LEAST_REQUESTS:
            doubt = f"{self.n} requests, at least {LEAST_REQUESTS} are needed to speak about the slowest 1 %"
        return Finding(
            id=cause,
            claim=claim.format(ms=f"{effect.value:,.0f} ms"),
            layer=layer,
            severity="alarm" if effect.low >= ALARM_SHARE * self.tail_ms else "warning",
            effect_ms=effect,
            evidence=evidence,
            changes=() if doubt else changes,
            inconclusive=doubt,
        )


def unknown(cause: str, layer: str, claim: str, why: str) -> Finding:
    """A Finding that says that `cause` could not be judged, and why."""
    return Finding(id=cause, claim=claim, layer=layer, severity="info", inconclusive=why)
