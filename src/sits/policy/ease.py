"""Easing in: a replica that comes back, or is new, gets its share of the traffic little by little.

Knows: since when the replica may be asked, and the time now.  share = LOWEST + (1 - LOWEST) x age / ramp, at most 1: linear,
because a cold engine (empty prefix cache, graphs not captured, adapters not loaded) is slow at first, and least-loaded
routing would hand it everything at once just because nothing is running there.  Envoy calls the same thing slow start and also
begins at a tenth (`min_weight_percent`).

Deliberately absent: what "back" means (the breaker knows), and the weight itself (the caller multiplies).
"""

from sits.core.units import SECOND

RAMP_NS = 10 * SECOND
LOWEST = 0.1


def eased(since_ns: int, now_ns: int, ramp_ns: int = RAMP_NS) -> float:
    """The share of its weight a replica gets at `now_ns` that came (back) at `since_ns`.

    >>> [round(eased(0, age * SECOND), 2) for age in (0, 5, 10, 99)]
    [0.1, 0.55, 1.0, 1.0]
    """
    age_ns = now_ns - since_ns
    if age_ns >= ramp_ns:
        return 1.0
    return LOWEST + (1.0 - LOWEST) * max(0, age_ns) / ramp_ns
