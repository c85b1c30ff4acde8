"""Latency where a call takes whatever waits when the engine becomes free (a window of reaction `free`), for Poisson arrivals.

The engine serves batches: with Q waiting as it becomes free it takes k = min(Q, B), for s(k) = fixed + item * k; with nobody there
it waits for one and takes that one.  The numbers waiting at the ends of calls are a Markov chain (Bailey 1954; M/G^(1,B)/1):

    Q' = Q - k + A,   A ~ Poisson(lam s(k));        from Q = 0:  Q' = A,   A ~ Poisson(lam s(1))

Who finds the engine free is served alone, for s(1).  Who comes t into a call, u before its end, finds r = Q - k left over and
Poisson(lam t) come before; with p of them in front, p // B full calls go first, then the own one, which Poisson arrivals
until its start fill up to B:

    latency = u + (p // B) s(B) + s(own size)

Arrivals fall evenly into a call, so t is summed over evenly: exact but for that sum and the cut of the chain.
Against simulation: within 1 % of P99 (tests/unit/test_predict_calls.py).

Deliberately absent: the bound `high` on the wait for a call, which cuts calls longer than it.
"""

import math

import numpy as np

from sits.predict.calls import MOST_BUSY, CallPrediction, Floats, check_call, poisson
from sits.predict.window import predict_window

MOMENTS = 64
"""Places in a call at which an arrival is looked at."""

CHAIN_MOST = 1200
TINY = 1e-9


def predict_free(rate_per_s: float, max_batch: int, fixed_ns: float, item_ns: float) -> CallPrediction:
    """Predict calls of at most `max_batch` requests, each taking fixed + item * k, sent whenever the engine is free.

    >>> p = predict_free(200, 16, 8e6, 1e6)
    >>> round(p.batch_mean, 2), round(p.busy, 2), round(p.p99_ns / 1e6, 1)
    (2.17, 0.94, 24.5)

    Raises:
        ConfigError: a rate that is not above zero, a negative time, or a batch outside 1..100000.

    """
    check_call(fixed_ns, item_ns)
    predict_window(rate_per_s, 0.0, max_batch)  # refuses what is no rate and no batch
    rate = rate_per_s / 1e9
    calls: Floats = np.asarray(fixed_ns + item_ns * np.arange(max_batch + 1), np.float64)
    full_busy = rate * float(calls[-1]) / max_batch
    if full_busy >= MOST_BUSY:
        most = max_batch / float(calls[-1]) * 1e9
        return CallPrediction(
            bound="free",
            batch_mean=float(max_batch),
            busy=full_busy,
            per_engine_s=most,
            p50_ns=math.inf,
            p99_ns=math.inf,
        )
    waiting = _at_ends(rate, max_batch, calls, full_busy)
    taken = _taken(waiting, max_batch)
    call_ns = float(taken @ calls[1:])
    batch = float(taken @ np.arange(1, max_batch + 1))
    latency, weight = _latencies(rate, max_batch, calls, waiting)
    order = np.argsort(latency)
    total = np.cumsum(weight[order])
    p50, p99 = (float(latency[order][np.searchsorted(total, q * total[-1])]) for q in (0.5, 0.99))
    return CallPrediction(
        bound="free",
        batch_mean=batch,
        busy=call_ns / (call_ns + float(waiting[0]) / rate),
        per_engine_s=batch / call_ns * 1e9,
        p50_ns=p50,
        p99_ns=p99,
    )


def _taken(waiting: Floats, most: int) -> Floats:
    """P(a call takes k), k = 1..B."""
    taken = np.zeros(most)
    taken[0] = waiting[0]
    sizes = np.minimum(np.arange(1, len(waiting)), most)
    np.add.at(taken, sizes - 1, waiting[1:])
    return taken


def _at_ends(rate: float, most: int, calls: Floats, busy: float) -> Floats:
    """The stationary distribution of the number waiting as a call ends."""
    arrive = rate * float(calls[-1])
    reach = most + arrive + 8.0 * math.sqrt(arrive)
    n = int(min(CHAIN_MOST, reach + 14.0 / (1.0 - busy) + 20.0))
    came = [poisson(rate * float(call), n) for call in calls]
    moves = np.zeros((n + 1, n + 1))
    for waiting in range(n + 1):
        k = min(max(1, waiting), most)
        left = max(0, waiting - k)
        moves[waiting, left:] = came[k][: n + 1 - left]
    moves[:, -1] += 1.0 - moves.sum(axis=1)
    equations = moves.T - np.eye(n + 1)
    equations[-1] = 1.0
    found = np.linalg.solve(equations, np.append(np.zeros(n), 1.0))
    return np.maximum(found, 0.0)


def _latencies(rate: float, most: int, calls: Floats, waiting: Floats) -> tuple[Floats, Floats]:
    """Values of the latency, ns, and how often each occurs, for a cycle of the chain."""
    values, weights = [np.array([calls[1]])], [np.array([waiting[0]])]
    for k in range(1, most + 1):
        left = waiting[most:] if k == most else np.array([waiting[k]])
        if k == 1:
            left = left.copy()
            left[0] += waiting[0]
        share = float(left.sum())
        if share < TINY:
            continue
        come = rate * float(calls[k]) / MOMENTS
        for moment in range(MOMENTS):
            gone = (moment + 0.5) / MOMENTS * float(calls[k])
            before = poisson(rate * gone, _far(rate * gone))
            for value, weight in _from_place(
                rate, most, calls, float(calls[k]) - gone, np.convolve(left, before)
            ):
                values.append(value)
                weights.append(weight * come)
    return np.concatenate(values), np.concatenate(weights)


def _from_place(
    rate: float, most: int, calls: Floats, until: float, front: Floats
) -> list[tuple[Floats, Floats]]:
    """Latencies of who comes `until` ns before a call ends, `front[p]` being how often p are in front."""
    found = []
    for full in range(math.ceil(len(front) / most)):
        mine = front[full * most : (full + 1) * most]
        if float(mine.sum()) < TINY:
            continue
        starts = until + full * float(calls[most])
        after = poisson(rate * starts, _far(rate * starts))
        sizes = np.convolve(
            np.concatenate([[0.0], mine]), after
        )  # index: how many are in the own call, oneself included
        capped = np.zeros(most)
        np.add.at(capped, np.minimum(np.arange(1, len(sizes)), most) - 1, sizes[1:])
        found.append((starts + calls[1 : most + 1], capped))
    return found


def _far(mean: float) -> int:
    return int(mean + 8.0 * math.sqrt(mean) + 12.0)
