"""A gateway without CPU left: requests wait for it at every turn, long before an engine sees them.

Accounted: what `parse`, `authorize` and `route` take above their calm cost (their 10 % quantile), and
likewise the delivery of the first token after its step (where steps are known), which passes through the same
CPU.  The CPU is to blame only where its share was at least `BUSY_SHARE` when tail requests arrived, or its
backlog, read at arrival, ranks like the wait (Spearman).
"""

import numpy as np

from sits.core.breakpoints import API_RECV
from sits.core.finding import Change, Evidence, Finding
from sits.diagnose.causes.case import Case
from sits.diagnose.columns import Floats, Ints
from sits.diagnose.resample import quantile

ID, LAYER = "gateway_saturation", "infrastructure"
BUSY_SHARE = 0.8
RANK_LIKE = 0.3


def gateway_saturation(case: Case) -> Finding | None:
    """Find waits in the gateway that go with its CPU."""
    wait = sum(
        (_above_calm(case.cut.stage(s)) for s in ("parse", "authorize", "route")), np.zeros(case.n, np.int64)
    )
    delivery = _above_calm(case.parts.part("prefill: delivery"))
    share, busy = _at_tail(case, "gateway_cpu_share")
    backlog_ms, backlog = _at_tail(case, "gateway_backlog_ms")
    alike = rank_correlation(backlog, wait) if len(backlog) else 0.0
    evidence: tuple[Evidence, ...] = (
        Evidence(
            "gateway_wait_ms", case.effect(wait).value, 0.0, "ms", "parse, authorize and route above calm"
        ),
        Evidence(
            "delivery_wait_ms",
            case.effect(delivery).value,
            0.0,
            "ms",
            "first token after its step, above calm",
        ),
    )
    if len(busy):
        evidence += (Evidence("gateway_cpu_share", share, BUSY_SHARE, "share", "when tail requests arrived"),)
    if len(backlog):
        evidence += (
            Evidence("gateway_backlog_ms", backlog_ms, 0.0, "ms", "when tail requests arrived"),
            Evidence(
                "backlog_rank_correlation", alike, RANK_LIKE, "", "backlog at arrival against gateway wait"
            ),
        )
    doubt = ""
    if not len(busy) and not len(backlog):
        doubt = "gateway_cpu_share and gateway_backlog_ms were not recorded: the wait is there, its reason is not known"
    elif not (len(busy) and share >= BUSY_SHARE) and alike < RANK_LIKE:
        return None
    workers = str(case.fleet.gateway.workers) if case.fleet else "unknown"
    more = str(2 * case.fleet.gateway.workers) if case.fleet else "more"
    return case.claim(
        ID,
        LAYER,
        wait + delivery,
        "The gateway has no CPU left; a tail request waits {ms} for it.",
        evidence,
        (Change("gateway.workers", workers, more, "one point carries all requests and all tokens"),),
        doubt=doubt,
    )


def _above_calm(ns: Ints) -> Ints:
    return np.maximum(ns - int(quantile(np.sort(ns), 0.1)), 0)


def _at_tail(case: Case, name: str) -> tuple[float, Floats]:
    """Mean of a signal at the arrivals of tail requests, and its value at every arrival."""
    t, value = case.signal(name)
    if not len(t):
        return 0.0, value
    at = np.interp(case.cut.at[:, API_RECV] - t[0], t - t[0], value)
    return float(at[case.tail.rows].mean()), at


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
