"""What queue predictions are judged by, none of it made of the formulas judged.

`sojourns` and `server_sojourns` follow every customer (Lindley's recursion; first free server); Ciw, an independent
simulator, gives the same sojourns for the same arrivals and services (`tests/unit/test_predict_queue.py`).
`phases_above` is exact for services made of exponential phases: the sojourn of M/PH/1 is again of phase type, and its
tail a matrix exponential.  `fixed_wait_below` is Crommelin's series for constant service.
"""

import math

import numpy as np
from scipy.linalg import expm


def sojourns(arrivals, services):
    """One server, first come first served, by Lindley's recursion written as a running minimum."""
    steps = np.concatenate([[0.0], services[:-1] - np.diff(arrivals)])
    walk = np.cumsum(steps)
    return walk - np.minimum.accumulate(walk) + services


def server_sojourns(arrivals, services, servers):
    """`servers` servers, first come first served: each request takes the one that is free first."""
    free = [0.0] * servers
    found = np.empty(len(arrivals))
    for i, (at, long) in enumerate(zip(arrivals.tolist(), services.tolist(), strict=True)):
        k = min(range(servers), key=free.__getitem__)
        free[k] = max(at, free[k]) + long
        found[i] = free[k] - at
    return found


def draw(dice, cv, count, mean):
    """Gamma variables of a CV; 0 is a constant."""
    if cv == 0.0:
        return np.full(count, mean)
    shape = 1.0 / cv**2
    return dice.gamma(shape, mean / shape, count)


def erlang_phases(count, mean):
    """Phase-type service of `count` exponential stages: (initial vector, generator)."""
    rate = count / mean
    inside = np.diag(np.full(count, -rate)) + np.diag(np.full(count - 1, rate), 1)
    return np.eye(count)[0], inside


def mixed_phases(share, fast, slow):
    """Phase-type service: exponential of mean `slow` with probability `share`, else of mean `fast`."""
    return np.array([1.0 - share, share]), np.diag([-1.0 / fast, -1.0 / slow])


def phases_above(rate, start, inside, t):
    """P(T > t) of M/PH/1 (Neuts 1981): the wait is phase-type with generator inside + rate * exit * start_e; then one service."""
    leave = -inside.sum(axis=1)
    mean = float(start @ np.linalg.solve(-inside, np.ones(len(start))))
    busy = rate * mean
    residual = start @ np.linalg.inv(-inside) / mean  # equilibrium residual service
    waiting = inside + busy * np.outer(leave, residual)
    n = len(start)
    both = np.block([[waiting, (1.0 - busy) * np.outer(leave, start)], [np.zeros((n, n)), inside]])
    first = np.concatenate([busy * residual, (1.0 - busy) * start])
    return float(first @ expm(both * t) @ np.ones(2 * n))


def fixed_wait_below(rate, mean, t):
    """P(W <= t) of M/D/1 (Crommelin 1932); loses digits beyond about 20 services."""
    busy = rate * mean
    terms = [
        (-rate * (t - k * mean)) ** k / math.factorial(k) * math.exp(rate * (t - k * mean))
        for k in range(int(t / mean) + 1)
    ]
    return (1.0 - busy) * math.fsum(terms)


def root(above, share, high, halvings=60):
    """The t at which `above` falls to `share`, by halving."""
    low = 0.0
    for _ in range(halvings):
        middle = (low + high) / 2.0
        low, high = (middle, high) if above(middle) > share else (low, middle)
    return high
