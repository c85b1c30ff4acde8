"""Which points of a sweep are worth having: the front of GPUs against a P99, and the cheapest that meets the objectives.

A point is on the front when no other that keeps up takes as few GPUs and is as fast, and better in one.  Of equals the first in
the order of points stays, so that a front has no copies: a larger limit that changes nothing is not another choice.

`cheapest` asks for a share of requests within *all* objectives (99 % unless told), which is what P99 objectives mean, and for keeping up.

Deliberately absent: weights between cost and latency; whoever pays knows them.
"""

from collections.abc import Sequence

from sits.bench.sweep import Point, Result

Outcome = tuple[Point, Result]
METRICS = ("ttft", "tpot", "e2e")
GOOD_SHARE = 0.99


def p99_ns(result: Result, metric: str) -> float:
    """The P99 of `ttft`, `tpot` or `e2e`."""
    pair: tuple[float, float] = getattr(result, f"{metric}_ns")
    return pair[1]


def usable(result: Result) -> bool:
    """Whether its quantiles mean something: it ran, and no queue grew."""
    return not result.refused and result.keeps_up


def front(outcomes: Sequence[Outcome], metric: str = "ttft") -> list[Outcome]:
    """The points on the front, fewest GPUs first.

    >>> def one(replicas, ttft, keeps_up=True):
    ...     return Point(replicas, 1, 0, 8, 512), Result(ttft_ns=(0.0, ttft), keeps_up=keeps_up)
    >>> [point.replicas for point, _ in front([one(1, 9.0, False), one(2, 5.0), one(3, 5.0), one(4, 2.0), one(5, 3.0)])]
    [2, 4]
    """
    ranked = sorted(
        (outcome for outcome in outcomes if usable(outcome[1])),
        key=lambda outcome: (outcome[0].gpus, p99_ns(outcome[1], metric), outcome[0]),
    )
    kept: list[Outcome] = []
    for outcome in ranked:
        if not kept or p99_ns(outcome[1], metric) < p99_ns(kept[-1][1], metric):
            kept.append(outcome)
    return kept


def cheapest(outcomes: Sequence[Outcome], share: float = GOOD_SHARE, metric: str = "ttft") -> Outcome | None:
    """The point with the fewest GPUs of those within the objectives; of equals the one with the least P99."""
    good = [outcome for outcome in outcomes if usable(outcome[1]) and outcome[1].good >= share]
    return min(
        good, key=lambda outcome: (outcome[0].gpus, p99_ns(outcome[1], metric), outcome[0]), default=None
    )
