"""A Finding: a claim with effect, interval, evidence and a proposed change, or why it is inconclusive.

Diagnosis, drift, regression and configuration lint all speak in Findings; a report is rendered Findings.
"I could not tell" is an answer (`inconclusive`), never a default ranking.
"""

import msgspec


class Interval(msgspec.Struct, frozen=True):
    """A figure with its uncertainty: point estimate and the bounds of a `level` interval."""

    value: float
    low: float
    high: float
    level: float = 0.95


class Evidence(msgspec.Struct, frozen=True):
    """One observation behind a claim: the signal, what it was, what it is compared to, and the unit."""

    signal: str
    observed: float
    reference: float | None = None
    unit: str = ""
    note: str = ""


class Change(msgspec.Struct, frozen=True):
    """A proposed change of one configuration value: dotted path, old, new, and why."""

    path: str
    old: str
    new: str
    why: str = ""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One claim about a run.

    Attributes:
        id: stable slug of the cause, e.g. `head_of_line_prefill`.
        claim: one sentence a human reads.
        layer: the plane it belongs to, `model`, `framework` or `infrastructure`; of a stage (`core.breakpoints`,
            `core.report`) a layer is `http`, `scheduler`, `device` or `result`.
        severity: `info`, `warning` or `alarm`.
        effect_ms: how much of the tail latency this accounts for, with its interval; None if not quantified.
        evidence: what was observed.
        changes: what to do about it; empty when nothing is proposed.
        inconclusive: why no claim can be made; empty for a real claim.

    """

    id: str
    claim: str
    layer: str
    severity: str = "warning"
    effect_ms: Interval | None = None
    evidence: tuple[Evidence, ...] = ()
    changes: tuple[Change, ...] = ()
    inconclusive: str = ""
