"""Who is slow: names that have more of the bad requests than their share of the traffic explains.

A request is bad when it took longer than the objective, or went wrong as `policy.outcome` says.  Were B bad requests dealt out at random, a
name with the share p of all requests would get B p of them, give or take sqrt(B p (1 - p)) (binomial).  A name stands out when it has
more by `DEVIATES` times that, of `BAD_MIN` bad ones at least: at random that happens once in 30,000 times, and here some hundred names
are looked at.  Bad requests come in bursts, so a name that stands out is a place to look, and no cause.

Rules: of each kind the one that stands out most is told.  Names of two kinds that are the same requests (an engine, and the
model it alone serves) are told as one, for nothing here can tell them apart.

Deliberately absent: names that are better than the others, and why a name is slow (stages and findings say that).
"""

import math

import msgspec
import numpy as np

from sits.core.report import Group
from sits.diagnose.columns import Bools, Columns
from sits.diagnose.decompose import decompose
from sits.diagnose.outcomes import wrong as went_wrong

KINDS = ("engine", "model", "adapter", "arm", "tenant")
DEVIATES = 4.0
BAD_MIN = 10.0


def deviations(mine: float, bad: float, share: float) -> float:
    """By how many standard deviations `mine` of `bad` requests is above what a share of the traffic explains; 0 where it cannot be said.

    >>> round(deviations(30, 40, 0.25), 1), deviations(9, 9, 0.25), deviations(40, 40, 1.0)
    (7.3, 0.0, 0.0)
    """
    if bad < BAD_MIN or not 0.0 < share < 1.0:
        return 0.0
    return (mine - bad * share) / math.sqrt(bad * share * (1.0 - share))


def groups(requests: Columns, metric: str, objective_ms: float) -> tuple[Group, ...]:
    """The names that stand out, the clearest first; empty where there is none.

    Args:
        requests: the table, each row counted once.
        metric: `ttft` or `e2e`, the one the objective is for.
        objective_ms: what is slow is slower than this.

    Raises:
        CallerError: a column is missing or malformed, or `metric` is unknown.

    """
    cut = decompose(requests, metric)
    total_ms = np.full(len(requests["outcome"]), np.nan)
    total_ms[cut.rows] = cut.total_ns / 1e6
    slow, wrong = total_ms > objective_ms, went_wrong(requests)
    best = (_most(kind, requests[kind], slow, wrong, total_ms) for kind in KINDS if kind in requests)
    # Stable: of equals the kind that is named first.
    found = sorted((one for one in best if one is not None), key=lambda one: -one[0])
    told: list[tuple[Group, Bools]] = []
    for _, group, its in found:
        same = next((i for i, (_, others) in enumerate(told) if np.array_equal(its, others)), None)
        if same is None:
            told.append((group, its))
        else:
            first, others = told[same]
            told[same] = (_joined(first, group), others)
    return tuple(group for group, _ in told)


def _most(
    kind: str, names: np.ndarray, slow: Bools, wrong: Bools, total_ms: np.ndarray
) -> tuple[float, Group, Bools] | None:
    """The name of a kind that stands out most, by how much, and which rows are its own; empty is no name."""
    bad = slow | wrong
    seen: dict[str, int] = {}
    which = np.array([seen.setdefault(str(name or ""), len(seen)) for name in names], dtype=np.int64)
    n, its_bad = (np.bincount(which, some, len(seen)) for some in (None, bad))
    best, most = None, DEVIATES
    for name, at in seen.items():
        off = deviations(float(its_bad[at]), float(bad.sum()), float(n[at]) / len(which))
        if name and off > most:
            best, most = name, off
    if best is None:
        return None
    its = which == seen[best]
    timed, others = (np.sort(total_ms[rows & ~np.isnan(total_ms)]) for rows in (its, ~its))
    group = Group(
        kind=kind,
        name=best,
        n=int(its.sum()),
        of_n=len(which),
        slow=int((slow & its).sum()),
        wrong=int((wrong & ~slow & its).sum()),
        of_bad=int(bad.sum()),
        p99_ms=_p99(timed),
        others_p99_ms=_p99(others),
    )
    return most, group, its


def _joined(first: Group, other: Group) -> Group:
    return msgspec.structs.replace(first, same={**first.same, other.kind: other.name})


def _p99(ascending: np.ndarray) -> float | None:
    return float(ascending[math.ceil(0.99 * len(ascending)) - 1]) if len(ascending) else None
