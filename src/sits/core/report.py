"""What a reproduction or an investigation found, as data: the one structure a report is rendered from.

`report.json` is this structure, encoded with sorted keys; `report.html` and the terminal summary are views of
it.  Every latency is in milliseconds, every time on an axis in seconds from the start of the run.  Same seed
and same configuration give the same bytes: no wall-clock time, no path and no machine name is in here.

Deliberately absent: raw requests.  They stay in the store of the run.
"""

from typing import Any

import msgspec

from sits.core.cpu_report import CpuTime
from sits.core.finding import Change, Finding, Interval
from sits.core.fleet import Fleet
from sits.core.run import Run

P99_REQUESTS_MIN = 299
"""Requests an upper bound of P99 needs: the smallest n whose largest value is one in 95 of 100 runs, 1 - 0.99^n >= 0.95.

Distribution-free (the k-th smallest of n is over P99 with a binomial probability); with fewer, no interval can reach
high enough to prove an objective met.
"""


class LatencySummary(msgspec.Struct, frozen=True):
    """Quantiles of one latency over one run: milliseconds, and how many requests stand behind them."""

    metric: str
    n: int
    mean_ms: float
    p50_ms: float
    p95_ms: float
    p99: Interval
    max_ms: float


class Account(msgspec.Struct, frozen=True):
    """Conservation of requests: `offered = completed + failed + cancelled + refused + in_flight`."""

    offered: int
    completed: int
    failed: int
    cancelled: int
    refused: int
    in_flight: int


class StageShare(msgspec.Struct, frozen=True):
    """One stage: mean time in the slowest 1 % of requests beside the mean in all others (percentiles never add).

    `excess_ms` = `tail_ms - rest_ms`; the excesses of all stages add up to the excess of the whole.
    """

    stage: str
    layer: str
    rest_ms: float
    tail_ms: float
    excess: Interval
    exactness: str = "measured"


class Bar(msgspec.Struct, frozen=True):
    """One bar of a waterfall: a stage of one request."""

    stage: str
    layer: str
    start_ms: float
    duration_ms: float
    exactness: str = "measured"


class Waterfall(msgspec.Struct, frozen=True):
    """One request drawn stage by stage, with what is known about it."""

    request_id: str
    label: str
    total_ms: float
    bars: tuple[Bar, ...]
    facts: dict[str, str] = {}


class Cell(msgspec.Struct, frozen=True):
    """One cell of the attribution matrix: share of a latency band's time that a plane accounts for."""

    band: str
    plane: str
    share: Interval
    mean_ms: float


class Band(msgspec.Struct, frozen=True):
    """One latency band of the attribution matrix: its bounds in ms and how many requests fell into it."""

    name: str
    low_ms: float
    high_ms: float
    n: int


class Matrix(msgspec.Struct, frozen=True):
    """Latency bands x {model, framework, infrastructure, unattributed}; shares of a band add up to 1."""

    planes: tuple[str, ...]
    bands: tuple[Band, ...]
    cells: tuple[Cell, ...]


class Ablation(msgspec.Struct, frozen=True):
    """One row of the ablation: a fix (or all, or none) and what it does to P99 over paired seeds.

    `saved` is the paired difference to the bad configuration (positive = faster); `without` is the P99 when all
    fixes but this one are applied, with `needed` the ms lost by leaving it out.  None where it does not apply.
    """

    id: str
    title: str
    p99: Interval
    saved: Interval | None = None
    without: Interval | None = None
    needed: Interval | None = None
    why: str = ""


class Series(msgspec.Struct, frozen=True):
    """One line of the timeline: `t_s` seconds from the start, `value` in `unit`."""

    name: str
    unit: str
    source: str
    t_s: tuple[float, ...]
    value: tuple[float, ...]


class HeatMap(msgspec.Struct, frozen=True):
    """Counts over two token-length axes (bin edges, tokens): slow requests against the others."""

    x_name: str
    y_name: str
    x_edges: tuple[float, ...]
    y_edges: tuple[float, ...]
    slow: tuple[tuple[float, ...], ...]
    rest: tuple[tuple[float, ...], ...]


class Availability(msgspec.Struct, frozen=True):
    """What went wrong: `wrong` of the `of` requests that were completed or went wrong; the rest left, or made a mistake of their own.

    `low` is the lower bound (95 %) of the share that goes wrong, `allowed` the share the objective allows.
    """

    wrong: int
    of: int
    low: float
    allowed: float

    @property
    def missed(self) -> bool:
        """Whether more goes wrong than is allowed, beyond chance."""
        return self.low > self.allowed


class Group(msgspec.Struct, frozen=True):
    """A name that has more of the bad requests than its share of the traffic explains.

    `n` of all `of_n` requests were its own, and `slow` + `wrong` of all `of_bad` bad ones: slower than the objective, or gone wrong.  P99s
    are of the objective's metric, in ms, its own and that of the others; None where nothing was timed.  `same`: names of other kinds
    (kind -> name) that are the very same requests.
    """

    kind: str
    name: str
    n: int
    of_n: int
    slow: int
    wrong: int
    of_bad: int
    p99_ms: float | None
    others_p99_ms: float | None
    same: dict[str, str] = {}

    @property
    def bad(self) -> int:
        """Its bad requests."""
        return self.slow + self.wrong


class Side(msgspec.Struct, frozen=True):
    """One configuration and how it fared: the `before` or the `after` of a report."""

    label: str
    latency: LatencySummary
    others: tuple[LatencySummary, ...]
    account: Account
    series: tuple[Series, ...]
    fleet: Fleet | None = None
    config_digest: str = ""


class Note(msgspec.Struct, frozen=True):
    """A definition, an assumption or a doubt, printed with the figures it belongs to."""

    title: str
    text: str


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Everything one page says.

    `kind` is `reproduce`, `why` or `investigate`.  `after`, `ablation` and `changes` are present where a changed
    configuration was run, and `saved` is then the paired difference of their P99s in ms; `left_out` are ids of fixes
    that were tried and are not in `after`.  `cpu` is there where processes were sampled meanwhile.  `verified` says whether `after` meets the objective at the interval's upper bound.
    """

    version: int = 1
    kind: str
    title: str
    headline: str
    objective_metric: str
    objective_ms: float
    seed: int
    repetitions: int
    run: Run | None = None
    before: Side
    after: Side | None = None
    saved: Interval | None = None
    verified: bool | None = None
    availability: Availability | None = None
    stages: tuple[StageShare, ...] = ()
    who: tuple[Group, ...] = ()
    waterfalls: tuple[Waterfall, ...] = ()
    matrix: Matrix | None = None
    spectrum: HeatMap | None = None
    findings: tuple[Finding, ...] = ()
    ablation: tuple[Ablation, ...] = ()
    left_out: tuple[str, ...] = ()
    changes: tuple[Change, ...] = ()
    notes: tuple[Note, ...] = ()
    facts: dict[str, Any] = {}
    cpu: CpuTime | msgspec.UnsetType = msgspec.UNSET
