"""Tests one may look at at any time, and intervals that hold at all times: evidence as bets.

A fixed test that is looked at every second finds something sooner or later, in sound arms too.  Here evidence is the wealth
of a gambler who bets against "nothing is wrong" at fair odds.  Were it true, wealth would be a non-negative supermartingale
that starts at 1, and would ever reach 1/alpha with a chance of at most alpha (Ville 1939): halting when it does is right
*whenever* one looks.  Evidence is kept as its natural logarithm ("nats"); the bar is ln(1/alpha).

`over(s, n, p0)`: of n events s were bad; is their true share above p0?
    wealth = mean over tilts r of  (q/p0)^s ((1-q)/(1-p0))^(n-s),   q/(1-q) = r p0/(1-p0)
    Robbins' method of mixtures (1970) on a grid; for a share p <= p0 each term is a supermartingale, so is their mean.
`Worse`: do our events turn out bad more often than others at the same time?  Of one batch with n = n1+n2 events, e of them bad,
the number x of ours among the bad is hypergeometric when both are alike, whatever the share is:
    wealth *= r^x / E[r^X],   X ~ hypergeometric(n, n1, e)          (Fisher's exact test as a bet; for odds ratio r)
    It asks who was hit, not how many: an incident that hits both arms alike is no evidence.  The same idea guards canaries
    in Lindon and Malek, "Anytime-valid inference for multinomial count data" (2022); mSPRT: Johari et al. (2017).
`share_bounds(s, n, alpha)`: all p0 that a mixture over Beta(1/2, 1/2) does not refute, a confidence sequence (Howard et al.
2021; for Bernoulli the exact form):  B(s+1/2, n-s+1/2)/B(1/2, 1/2) < p0^s (1-p0)^(n-s) / alpha.

Rules: pure numbers in and out.  Deliberately absent: normal approximations (errors are rare), and fixed horizons.
"""

import math
from collections.abc import Callable, Sequence

TILTS = (1.25, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0)
"""Odds ratios the bets are on: from "a quarter worse" to "all but always"."""

_LOG_TILTS = tuple(math.log(tilt) for tilt in TILTS)
_HALF = math.lgamma(0.5) * 2 - math.lgamma(1.0)
_STEPS = 60


def over(bad: int, n: int, share: float) -> float:
    """Evidence, in nats, that more than `share` of the events are bad, after `bad` of `n` were.

    >>> round(over(10, 1000, 0.01), 2), round(over(30, 1000, 0.01), 2)
    (-1.76, 11.32)
    """
    if not 0.0 < share < 1.0 or not n:
        return 0.0
    # log of q/p0 is log r - log(1 + p0 (r-1)), that of (1-q)/(1-p0) is -log(1 + p0 (r-1))
    return mean_of(
        [
            bad * log_tilt - n * math.log1p(share * (tilt - 1.0))
            for tilt, log_tilt in zip(TILTS, _LOG_TILTS, strict=True)
        ]
    )


def worse(ours: int, ours_bad: int, others: int, others_bad: int) -> tuple[float, ...]:
    """What one batch adds to the evidence of each tilt that ours turn out bad more often; nats.

    >>> worse(10, 0, 90, 0), worse(0, 0, 90, 3)
    ((0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0), (0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0))
    >>> [round(x, 2) for x in worse(10, 2, 90, 0)][:3]
    [0.4, 0.71, 1.2]
    """
    bad = ours_bad + others_bad
    if not (bad and ours and others):
        return (0.0,) * len(TILTS)
    low, high = max(0, bad - others), min(bad, ours)
    counts = range(low, high + 1)
    ways = [_choose(ours, k) + _choose(others, bad - k) for k in counts]
    total = _choose(ours + others, bad)
    ways = [way - total for way in ways]
    return tuple(
        ours_bad * log_tilt - _log_sum([way + k * log_tilt for k, way in zip(counts, ways, strict=True)])
        for log_tilt in _LOG_TILTS
    )


def mean_of(logs: Sequence[float]) -> float:
    """Log of the mean of the wealths whose logs are given."""
    return _log_sum(logs) - math.log(len(logs))


def share_bounds(bad: int, n: int, alpha: float) -> tuple[float, float]:
    """Lowest and highest share that `bad` of `n` events do not refute, however often one has looked.

    >>> [round(bound, 4) for bound in share_bounds(10, 1000, 0.05)]
    [0.0024, 0.0262]
    """
    if not n:
        return 0.0, 1.0
    bar = _log_beta(bad + 0.5, n - bad + 0.5) - _HALF + math.log(alpha)

    def refuted(share: float) -> bool:
        return _log_likelihood(bad, n, share) < bar

    seen = bad / n
    low = 0.0 if not bad else _edge(refuted, 0.0, seen)
    high = 1.0 if bad == n else _edge(refuted, 1.0, seen)
    return low, high


def rank_bounds(n: int, share: float, alpha: float) -> tuple[int, int]:
    """How few and how many of `n` values may lie above the quantile that a `share` of all lies above.

    So the values with these ranks from the top bound the quantile, however often one has looked (Howard and Ramdas 2022).

    >>> rank_bounds(1000, 0.01, 0.05)
    (2, 23)
    """

    def refuted(bad: int) -> bool:
        bar = _log_beta(bad + 0.5, n - bad + 0.5) - _HALF + math.log(alpha)
        return _log_likelihood(bad, n, share) < bar

    middle = round(n * share)
    fewest, most = middle, middle
    step = max(1, middle)
    while step:  # halving towards both ends; what is refuted lies outside
        while fewest >= step and not refuted(fewest - step):
            fewest -= step
        while most + step <= n and not refuted(most + step):
            most += step
        step //= 2
    return fewest, most


def _edge(refuted: Callable[[float], bool], outside: float, inside: float) -> float:
    """Where `refuted` changes between a share that is and one that is not, by halving."""
    for _ in range(_STEPS):
        middle = (outside + inside) / 2
        if refuted(middle):
            outside = middle
        else:
            inside = middle
    return outside


def _log_likelihood(bad: int, n: int, share: float) -> float:
    if (bad and share <= 0.0) or (n > bad and share >= 1.0):
        return -math.inf
    return (bad * math.log(share) if bad else 0.0) + ((n - bad) * math.log1p(-share) if n > bad else 0.0)


def _log_beta(a: float, b: float) -> float:
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)


def _choose(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)


def _log_sum(logs: Sequence[float]) -> float:
    top = max(logs)
    return top + math.log(math.fsum(math.exp(one - top) for one in logs)) if top > -math.inf else top
