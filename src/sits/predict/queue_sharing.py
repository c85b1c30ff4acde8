"""A continuous-batching engine as processor sharing whose speed depends on how many share it.

With n requests decoding, a step takes tau(n) and gives each of them a token.  Prefill takes its share of all time,
rho_p = lam E[prefill], so a request with n others leaves at the rate (1 - rho_p) / (tau(n) E[out]) and

    P(n) ~ P(n - 1) * lam / mu_n,    mu_n = n (1 - rho_p) / (tau(n) E[out])        n = 1 .. seats;  beyond, requests wait

A processor-sharing queue is insensitive: only the mean of the output lengths matters to P(n) (Kelly 1979).  Little's law
gives times from numbers, and since everybody gets the same speed, a request's time follows its own length:

    E[in flight] = sum n P(n)        E[E2E] = E[in flight] / lam + E[prefill]        TPOT = E[in flight] / (lam E[out])
    E2E at P99  ~ Q99(out) * TPOT + E[prefill]
    capacity    = max over n of  1 / (E[prefill] + E[out] tau(n) / n)

Error against the step-by-step simulator (`sits.sim`): within 5 % for mean and P99 of E2E up to 70 % of capacity, Poisson arrivals, blocks
enough.  Above, queueing for seats, blocks and prefill is not in it and it may be far too low, so it says `beyond`.

Deliberately absent: TTFT, which hangs on the prefill queue and steps in flight; KV pressure and preemption.
All three need the simulator.
"""

import math
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from numpy.typing import NDArray

from sits.core.errors import ConfigError
from sits.predict.profile import Profile
from sits.predict.rate import check_rate
from sits.predict.steptime import StepTime, interpolate, step_time_us

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

Floats = NDArray[np.float64]

PROMPTS_LOOKED_AT = 200

GOOD_UP_TO = 0.7
"""Share of capacity up to which the 5 % hold."""


class SharingPrediction(msgspec.Struct, frozen=True, kw_only=True):
    """An engine at one rate; times ns, `inf` at and above capacity.

    Attributes:
        capacity_per_s: requests a second it can at most finish.
        load: rate / capacity.
        in_flight_mean: requests in the engine.
        e2e_mean_ns, e2e_p99_ns: arrival to last token.
        tpot_mean_ns: time between tokens of a request, the first excluded.
        waits: share of requests that find no seat.
        beyond: the load is above `GOOD_UP_TO`, or there is no steady state: simulate.

    """

    capacity_per_s: float
    load: float
    in_flight_mean: float
    e2e_mean_ns: float
    e2e_p99_ns: float
    tpot_mean_ns: float
    waits: float
    beyond: bool


class Work(msgspec.Struct, frozen=True):
    """What requests ask of an engine: `tau_ns[n - 1]` a step with n decoding, and a request's prefill and output."""

    tau_ns: Floats
    prefill_ns: float
    output_mean: float
    output_p99: float


def work_of(
    step: StepTime | Profile, prompts: "ArrayLike", outputs: "ArrayLike", seats: int, chunk: int = 2048
) -> Work:
    """The work of requests with these prompt and output tokens, pairwise, on an engine of `seats` sequences.

    A decoding request reads the mean KV, weighted by tokens; unequal lengths cost what `skew` says, with the longest of n
    taken as the n / (n + 1) quantile.  A prefill costs what it adds to steps that run anyway, each of at most `chunk` tokens and
    outside a captured graph.
    """
    p, o = (np.asarray(column, np.float64).ravel() for column in (prompts, outputs))
    if len(p) != len(o) or not len(p) or p.min() < 1 or o.min() < 1 or seats < 1:
        raise ConfigError(
            f"{len(p)} prompts and {len(o)} outputs on {seats} seats",
            field="prompts",
            hint="give prompt and output tokens, one or more each, of the same requests",
        )
    middle = p + o / 2.0
    order = np.argsort(middle)
    mean = float(middle @ o / o.sum())
    n = np.arange(1, seats + 1)
    place = np.searchsorted(np.cumsum(o[order]) / o.sum(), n / (n + 1.0))
    longest = np.maximum(middle[order][np.minimum(place, len(p) - 1)], mean)
    if isinstance(step, Profile):
        tau, each = _profiled(step, p, mean, longest, chunk)
    else:
        tau, each = _formula(step, p, mean, longest, chunk)
    return Work(tau * 1e3, each * 1e3, float(o.mean()), float(np.quantile(o, 0.99)))


def _formula(step: StepTime, p: Floats, mean: float, longest: Floats, chunk: int) -> tuple[Floats, float]:
    """Steps of 1, 2, ... decodes, and what a prefill adds on average; us."""
    n = np.arange(1, len(longest) + 1)
    even = [
        step_time_us(step, tokens=int(k), seqs_emitting=int(k), decode_kv=[round(mean)] * int(k)) for k in n
    ]
    skewed = step.decode_us_per_kv_token * step.skew * n * (longest - mean)
    low, high = 64.0, 2048.0
    dense = (
        interpolate(step.dense_tokens, step.dense_us, high)
        - interpolate(step.dense_tokens, step.dense_us, low)
    ) / (high - low)
    steps = np.ceil(p / chunk) * (step.prefill_us + step.eager_us)
    each = steps + p * (dense + step.prefill_us_per_token) + p * p / 2.0 * step.prefill_us_per_token_kv
    return np.array(even) + skewed, float(each.mean())


def _profiled(step: Profile, p: Floats, mean: float, longest: Floats, chunk: int) -> tuple[Floats, float]:
    """The same from a profile's tables; prefills beside decodes on half of the seats, as near 70 % of capacity, for a mixed
    batch costs more than its parts; at low loads that is 1 to 2 % too much.
    """
    tau = [
        step.step_us(0, k, mean, context_max=float(most)) + step.overhead_us
        for k, most in enumerate(longest, start=1)
    ]
    beside = max(1, len(longest) // 2)
    alone = step.step_us(0, beside, mean)
    lengths, counts = np.unique(
        np.quantile(p, (np.arange(PROMPTS_LOOKED_AT) + 0.5) / PROMPTS_LOOKED_AT), return_counts=True
    )
    total = 0.0
    for length, count in zip(lengths.tolist(), counts.tolist(), strict=True):
        done = 0.0
        while done < length:
            tokens = min(float(chunk), length - done)
            more = step.step_us(tokens, beside, mean, prefill_context=done) - alone + step.eager_us
            total += count * more
            done += tokens
    return np.array(tau), total / float(counts.sum())


def predict_sharing(rate_per_s: float, work: Work) -> SharingPrediction:
    """Predict an engine that does `work` for `rate_per_s` requests a second.

    Steps of 10 ms however many share them: an M/M/infinity of 100 tokens, one second each.

    >>> w = Work(np.full(64, 10e6), 0.0, 100.0, 300.0)
    >>> p = predict_sharing(20.0, w)
    >>> round(p.in_flight_mean, 2), round(p.e2e_mean_ns / 1e9, 2), round(p.capacity_per_s), p.beyond
    (20.0, 1.0, 64, False)
    >>> slower = Work(np.arange(1, 65) * 1e6, 0.0, 100.0, 300.0)          # a step per token: no gain from batching
    >>> round(predict_sharing(5.0, slower).in_flight_mean, 3)                # M/M/1 at 0.5
    1.0

    Raises:
        ConfigError: a rate that is not above zero.

    """
    check_rate(rate_per_s)
    seats = np.arange(1, len(work.tau_ns) + 1)
    each = work.prefill_ns + work.output_mean * work.tau_ns / seats
    capacity = 1e9 / float(each.min())
    load = rate_per_s / capacity
    last = rate_per_s / 1e9 * float(each[-1])
    if load >= 1.0 or last >= 1.0:
        endless = math.inf
        return SharingPrediction(
            capacity_per_s=capacity,
            load=load,
            in_flight_mean=endless,
            e2e_mean_ns=endless,
            e2e_p99_ns=endless,
            tpot_mean_ns=endless,
            waits=1.0,
            beyond=True,
        )
    mean, waits = _in_flight(rate_per_s / 1e9, work, seats)
    decode = mean / rate_per_s * 1e9
    tpot = decode / work.output_mean
    return SharingPrediction(
        capacity_per_s=capacity,
        load=load,
        in_flight_mean=mean + rate_per_s * work.prefill_ns / 1e9,
        e2e_mean_ns=decode + work.prefill_ns,
        e2e_p99_ns=work.output_p99 * tpot + work.prefill_ns,
        tpot_mean_ns=tpot,
        waits=waits,
        beyond=load > GOOD_UP_TO,
    )


def _in_flight(rate: float, work: Work, seats: NDArray[np.int64]) -> tuple[float, float]:
    """Mean number decoding or waiting, and the share of arrivals that find all seats taken; rate per ns."""
    leave = seats * (1.0 - rate * work.prefill_ns) / (work.tau_ns * work.output_mean)
    logs = np.concatenate([[0.0], np.cumsum(np.log(rate / leave))])
    shares = np.exp(logs - logs.max())
    full = rate / float(leave[-1])  # beyond the seats the rate of leaving stays what it is
    beyond = float(shares[-1]) * full / (1.0 - full)
    whole = float(shares.sum()) + beyond
    inside = float(np.arange(len(shares)) @ shares)
    outside = beyond * (len(seats) + 1.0 / (1.0 - full))
    return (inside + outside) / whole, (beyond + float(shares[-1])) / whole
