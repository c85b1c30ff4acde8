"""A gateway without CPU left: requests wait for it on their way in, and their first token on its way out.

Accounted: what `parse`, `authorize` and `route` take above their calm cost (their 10 % quantile), and likewise
the delivery of the first token, from the end of its step (where steps are known), which passes through the same
CPU.  Each of the two waits is held against what the gateway told about itself *while it lasted*: `gateway_cpu_share`
and `gateway_backlog_ms`, read as lines between their samples and averaged over the wait.  The CPU is to blame when
it was at least `BUSY_SHARE` busy during the waits of tail requests (mean, weighted by the wait), or when the waits of
all requests rank like the backlog they met (Spearman).

What a fault put in on purpose held is no wait for the CPU (`injected_fault`).

Deliberately absent: tokens after the first (they are late alike, but no metric of ours ends there), and other
processes on the gateway's machine.
"""

import numpy as np

from sits.core.finding import Change, Evidence, Finding
from sits.diagnose.causes.case import Case
from sits.diagnose.causes.injected_fault import held_ns
from sits.diagnose.columns import Floats, Ints
from sits.diagnose.resample import quantile

ID, LAYER = "gateway_saturation", "infrastructure"
BUSY_SHARE = 0.8
RANK_LIKE = 0.3
INWARD = ("parse", "authorize", "route")


def gateway_saturation(case: Case) -> Finding | None:
    """Find waits in the gateway, inward and outward, that go with its CPU."""
    inward = np.sum([_above_calm(case.cut.stage(stage)) for stage in INWARD], axis=0)
    inward = np.maximum(inward - held_ns(case), 0)
    whole = case.parts.part("prefill: delivery")
    outward = _above_calm(whole)
    first = case.point("first_token")
    windows = (case.span("gateway"), (first - whole, first))
    evidence: tuple[Evidence, ...] = (
        Evidence("inward_wait_ms", case.effect(inward).value, 0.0, "ms", "parse, authorize and route above calm"),
        Evidence("outward_wait_ms", case.effect(outward).value, 0.0, "ms", "first token after its step, above calm"),
    )  # fmt: skip
    share = _during(case, "gateway_cpu_share", windows)
    backlog = _during(case, "gateway_backlog_ms", windows)
    busy = alike = 0.0
    if share is not None:
        waits = case.tail.at(inward) + case.tail.at(outward)
        busy = case.tail.at(share[0] * inward + share[1] * outward) / waits if waits > 0 else 0.0
        note = "while tail requests waited, weighted by their waits"
        evidence += (Evidence("gateway_cpu_share", busy, BUSY_SHARE, "share", note),)
    if backlog is not None:
        alike = rank_correlation(backlog[0] + backlog[1], inward + outward)
        met = case.tail.at(backlog[0] + backlog[1])
        evidence += (
            Evidence("gateway_backlog_ms", met, 0.0, "ms", "met by tail requests on their way in and out"),
            Evidence("backlog_rank_correlation", alike, RANK_LIKE, "", "backlog met against time waited"),
        )
    doubt = ""
    if share is None and backlog is None:
        doubt = "gateway_cpu_share and gateway_backlog_ms were not recorded: the wait is there, its reason is not known"
    elif busy < BUSY_SHARE and alike < RANK_LIKE:
        return None
    workers = str(case.fleet.gateway.workers) if case.fleet else "unknown"
    more = str(2 * case.fleet.gateway.workers) if case.fleet else "more"
    return case.claim(
        ID,
        LAYER,
        {"gateway": inward, "service": outward},
        "The gateway has no CPU left; a tail request waits {ms} for it, on the way in and on the way out.",
        evidence,
        (Change("gateway.workers", workers, more, "one point carries all requests and all tokens"),),
        doubt=doubt,
    )


def _above_calm(ns: Ints) -> Ints:
    return np.maximum(ns - int(quantile(np.sort(ns), 0.1)), 0)


def _during(case: Case, name: str, windows: tuple[tuple[Ints, Ints], ...]) -> list[Floats] | None:
    """Mean of a signal over each of the (m,) windows, from the samples of the same run; None when there are none.

    Of several workers the one that had most of it counts: which one a request was at is not told, and who waited was hardly at an idle one.
    A request whose run was not sampled, while others were, counts as one that met a signal of 0.
    """
    runs = case.signal_by_run(name)
    found = [np.zeros(case.n) for _ in windows]
    for rows, t, value in runs:
        for mean, (start, end) in zip(found, windows, strict=True):
            mean[rows] = np.maximum(mean[rows], line_mean(t, value, start[rows], end[rows]))
    return found if runs else None


def line_mean(t_ns: Ints, value: Floats, start_ns: Ints, end_ns: Ints) -> Floats:
    """Mean over each window of the line through samples at ascending `t_ns`, level before the first and after the last.

    A window without length gives the line at that time.

    >>> line_mean(np.array([0, 10]), np.array([0.0, 1.0]), np.array([0, 5, 5, 10]), np.array([10, 10, 5, 30]))
    array([0.5 , 0.75, 0.5 , 1.  ])
    """
    t = (t_ns - t_ns[0]).astype(np.float64)
    area = np.concatenate([[0.0], np.cumsum(np.diff(t) * (value[1:] + value[:-1]) / 2)])

    def until(at: Floats) -> tuple[Floats, Floats]:
        level = np.interp(at, t, value)
        k = np.clip(np.searchsorted(t, at, side="right") - 1, 0, len(t) - 1)
        return area[k] + (at - t[k]) * np.where(at < 0, level, (value[k] + level) / 2), level

    (before, level), (after, _) = (until((at - t_ns[0]).astype(np.float64)) for at in (start_ns, end_ns))
    length = np.maximum(end_ns - start_ns, 0).astype(np.float64)
    return np.where(length > 0, (after - before) / np.maximum(length, 1.0), level)


def rank_correlation(a: np.ndarray, b: np.ndarray) -> float:
    """Spearman's rank correlation, ties at their mean rank; 0 when either does not vary.

    >>> round(rank_correlation(np.array([1, 2, 3]), np.array([10, 20, 90])), 6)
    1.0
    """
    ranks = [_mean_ranks(x) for x in (a, b)]
    if ranks[0].std() == 0 or ranks[1].std() == 0:
        return 0.0
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])


def _mean_ranks(x: np.ndarray) -> Floats:
    _, which, counts = np.unique(x, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2.0)[which]
