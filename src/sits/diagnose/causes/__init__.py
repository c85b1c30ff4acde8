"""What made it slow: one detector a cause, each saying how much of the tail it accounts for, or why it cannot
tell.

A detector takes a `Case` (request, step and signal tables and the fleet, laid out once) and returns a Finding
or None.  None means "looked, and it is not there"; an inconclusive Finding means "could not look".  A new
cause is one file and one line in `DETECTORS`.

`rank` orders by the lower bound of the effect, so that a small certain cause stands before a large vague one;
context without a size comes next, inconclusive ones last; ties go by id.
"""

import math
from collections.abc import Callable, Iterable

import numpy as np

from sits.core.finding import Finding
from sits.core.fleet import Fleet
from sits.diagnose.causes.adapter_thrash import adapter_thrash
from sits.diagnose.causes.arrival_burst import arrival_burst
from sits.diagnose.causes.case import LEAST_REQUESTS, Case, unknown
from sits.diagnose.causes.engine_capacity import engine_capacity
from sits.diagnose.causes.gateway_saturation import gateway_saturation
from sits.diagnose.causes.head_of_line_prefill import head_of_line_prefill
from sits.diagnose.causes.injected_fault import injected_fault
from sits.diagnose.causes.kv_pressure import kv_pressure
from sits.diagnose.causes.link import numa_remote, pcie_dips
from sits.diagnose.causes.routing_imbalance import routing_imbalance
from sits.diagnose.causes.static_window import static_window
from sits.diagnose.columns import Columns
from sits.diagnose.decompose import decompose
from sits.diagnose.resample import DRAWS

Detector = Callable[[Case], Finding | None]

DETECTORS: tuple[Detector, ...] = (
    static_window,
    injected_fault,
    gateway_saturation,
    head_of_line_prefill,
    kv_pressure,
    numa_remote,
    pcie_dips,
    adapter_thrash,
    routing_imbalance,
    engine_capacity,
    arrival_burst,
)


def find_causes(
    requests: Columns,
    steps: Columns,
    signals: Columns,
    fleet: Fleet | None,
    *,
    metric: str,
    rng: np.random.Generator,
    draws: int = DRAWS,
) -> tuple[Finding, ...]:
    """All Findings about one run, ranked.  Empty tables are allowed for `steps` and `signals`.

    Raises:
        CallerError: a needed column is missing or malformed, or `metric` is unknown.

    """
    if (completed := len(decompose(requests, metric).rows)) < 2:
        why = f"{completed} completed requests have a {metric}"
        return (unknown("too_few_requests", "framework", "Nothing can be said about a tail.", why),)
    case = Case(requests, steps, signals, fleet, metric=metric, rng=rng, draws=draws)
    found = [finding for detector in DETECTORS if (finding := detector(case)) is not None]
    if case.n < LEAST_REQUESTS:
        found.append(_small_tail(case.n))
    return rank(case.overlaps(finding) for finding in found)


def _small_tail(n: int) -> Finding:
    size = max(1, math.ceil(0.01 * n))
    claim = (
        f"The slowest 1 % of {n} requests is {size} request{'s'[: size > 1]}: what it met is no pattern yet."
    )
    why = f"{LEAST_REQUESTS - n} more requests are needed"
    return unknown("too_few_requests", "framework", claim, why)


def rank(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Findings by the lower bound of their effect; without effect after them, inconclusive ones last."""

    def key(finding: Finding) -> tuple[bool, bool, float, str]:
        low = finding.effect_ms.low if finding.effect_ms else 0.0
        return bool(finding.inconclusive), finding.effect_ms is None, -low, finding.id

    return tuple(sorted(findings, key=key))
