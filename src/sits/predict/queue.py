"""One server, Poisson arrivals, any service times, first come first served (M/G/1): busy share, wait, and P99.

With lam arrivals a second and service S, rho = lam E[S] (Pollaczek and Khinchine):

    mean wait       E[W] = lam E[S^2] / (2 (1 - rho))             mean sojourn   E[T] = E[S] + E[W]
    its transform   W(z) = (1 - rho) z / (z - lam (1 - S(z)))     S(z) = E[exp(-z S)]

The sojourn T = W + S is what a client sees.  Its tail is taken in two ways.

`inversion`, exact: who finds the server free (1 - rho of them) sojourns for S alone; of the others
P(T > t, W > 0) has the transform [rho - (W(z) - (1 - rho)) S(z)] / z, which has no jumps and is inverted (`queue_invert`).

`tail`, a few milliseconds instead of a tenth of a second: P(W > t) is a sum of two exponentials (Tijms 1994).  The slow one is
the true asymptote alpha exp(-theta t), with theta the root of lam (E[exp(theta S)] - 1) = theta and
alpha = (1 - rho) / (lam E[S exp(theta S)] - 1); the fast one makes P(W > 0) = rho and E[W] right; both are
convolved with the service times.  Where the slow one makes the P99 it is within 3.5 % of the inversion, 1.5 % for services without a
long tail.  Elsewhere a P99 is made by one or two long services (below half load, or at 0.5 for a Pareto sample: 10 % off), and the prediction
says so among what it assumes.  `predict_queue` inverts unless told otherwise.

The common tail rho exp(-rho t / E[W]) needs two moments only and is up to 19 % too high for constant and 18 % too low
for log-normal service at half load; "P99 = 4.6 times the mean" is up to 149 % off.  Neither is here.

Deliberately absent: continuous batching, whose server is not one (`queue_sharing`), several servers and bursty arrivals
(`queue_servers`), queues with a bound, priorities.
"""

import math
from collections.abc import Callable

import msgspec
import numpy as np
from numpy.typing import NDArray

from sits.core.errors import ConfigError
from sits.predict.queue_invert import inverted
from sits.predict.queue_service import Service
from sits.predict.rate import check_rate

Complexes = NDArray[np.complex128]

MOST_BUSY = 0.9999
"""Above this there is no steady state worth a number."""

FAST_MOST, LONG_MOST = 0.05, 0.05
"""Shares of P(T > t) above which `tail` does not trust its own P99: of the fast exponential, and of services longer than t."""

_PRECISION = 1e-5
_NOTHING = 1e-12


class QueuePrediction(msgspec.Struct, frozen=True, kw_only=True):
    """What a queue does to its requests; times ns, `inf` where it has no steady state.

    Attributes:
        method: `inversion` (exact), `tail` (two exponentials) or `servers` (an approximation, see `queue_servers`).
        busy: rho, the share of time a server works.
        wait_mean_ns: mean time in the queue, service not included.
        mean_ns: mean sojourn: arrival to end of service.
        p50_ns, p99_ns: sojourn that 50 % and 99 % of the requests do not exceed.
        waits: share of requests that wait at all.
        assumed: what was taken for granted.

    """

    method: str
    busy: float
    wait_mean_ns: float
    mean_ns: float
    p50_ns: float
    p99_ns: float
    waits: float
    assumed: tuple[str, ...] = ()


def predict_queue(rate_per_s: float, service: Service, *, method: str = "inversion") -> QueuePrediction:
    """Predict one server at `rate_per_s` Poisson arrivals a second.

    Exponential service has a known answer, P99 = ln(100) / (mu - lam):

    >>> from sits.predict.queue_service import gamma, two_kinds
    >>> p = predict_queue(16.0, gamma(50e6, 1.0))
    >>> round(p.busy, 2), round(p.mean_ns / 1e6), round(p.p99_ns / 1e6), round(math.log(100) / (20 - 16) * 1e3)
    (0.8, 250, 1151, 1151)
    >>> kinds = two_kinds(20e6, 200e6, 0.1)                                  # CV 1.42
    >>> [round(predict_queue(0.8 / 0.038, kinds, method=m).p99_ns / 1e6) for m in ("inversion", "tail")]
    [1309, 1308]

    Raises:
        ConfigError: a rate that is not above zero, or another method.

    """
    check_rate(rate_per_s)
    if method not in ("inversion", "tail"):
        raise ConfigError(
            f"no method {method!r}", field="method", value=method, hint="one of inversion, tail"
        )
    assumed = ("Poisson arrivals", *([service.assumed] if service.assumed else []))
    rate = rate_per_s / 1e9
    busy = rate * service.mean_ns
    if busy >= MOST_BUSY:
        return saturated(method, busy, assumed)
    wait = rate * service.second_ns2 / (2.0 * (1.0 - busy))
    tail = _tail(rate, service)
    p50, p99 = (quantile_ns(tail, q, wait + service.mean_ns) for q in (0.5, 0.99))
    if method == "inversion":
        above = _inversion(rate, service)
        p50, p99 = (quantile_ns(above, q, near) for q, near in ((0.5, p50), (0.99, p99)))
    elif not _asymptotic(rate, service, p99):
        assumed = (*assumed, "that the asymptote makes this P99, which it does not: use the inversion")
    return QueuePrediction(
        method=method,
        busy=busy,
        wait_mean_ns=wait,
        mean_ns=wait + service.mean_ns,
        p50_ns=p50,
        p99_ns=p99,
        waits=busy,
        assumed=assumed,
    )


def saturated(method: str, busy: float, assumed: tuple[str, ...]) -> QueuePrediction:
    """The prediction of a queue that only grows."""
    endless = math.inf
    return QueuePrediction(
        method=method,
        busy=busy,
        wait_mean_ns=endless,
        mean_ns=endless,
        p50_ns=endless,
        p99_ns=endless,
        waits=1.0,
        assumed=assumed,
    )


def sojourn_above(rate_per_s: float, service: Service, t_ns: float, *, method: str = "inversion") -> float:
    """P(T > t): the share of requests that take longer than `t_ns`, 1 where there is no steady state.

    >>> from sits.predict.queue_service import gamma
    >>> round(sojourn_above(10.0, gamma(50e6, 1.0), 100e6), 3), round(math.exp(-0.1 * (20 - 10)), 3)
    (0.368, 0.368)
    """
    check_rate(rate_per_s)
    rate = rate_per_s / 1e9
    if rate * service.mean_ns >= MOST_BUSY or t_ns <= 0.0:
        return 1.0
    above = (_inversion if method == "inversion" else _tail)(rate, service)
    return min(1.0, max(0.0, above(t_ns)))


def quantile_ns(above: Callable[[float], float], q: float, guess_ns: float) -> float:
    """The t at which P(T > t) falls to 1 - q, bracketed by doubling from `guess_ns`, then by Brent's method in log P.

    >>> round(quantile_ns(lambda t: math.exp(-t / 50.0), 0.99, 50.0), 2), round(50.0 * math.log(100.0), 2)
    (230.26, 230.26)
    """
    from scipy.optimize import brentq  # noqa: PLC0415  # heavy; not loaded by those who only want the structs

    def over(t: float) -> float:
        return math.log(max(above(t), _NOTHING) / (1.0 - q))

    low = high = guess_ns
    while over(low) <= 0.0 and low > guess_ns * _NOTHING:
        low /= 2.0
    if over(low) <= 0.0:
        return low  # nearly all take next to no time
    while over(high) > 0.0:
        high *= 2.0
    return float(brentq(over, low, high, rtol=_PRECISION, xtol=_PRECISION * low)) if low < high else high


def wait_exponentials(rate: float, service: Service) -> tuple[tuple[float, float], ...]:
    """P(W > t) as pairs (weight, decay per ns), rate per ns: the slow exponential first.

    Where the two cannot be fitted together the slow one stands alone, cut at rho.
    """
    busy = rate * service.mean_ns
    wait = rate * service.second_ns2 / (2.0 * (1.0 - busy))
    theta = _decay(rate, service, busy / wait)
    _, slope = service.growth(theta)
    alpha = (1.0 - busy) / (rate * slope - 1.0)
    left, missing = busy - alpha, wait - alpha / theta
    if abs(left) > 1e-9 * busy and missing != 0.0 and left / missing > theta:
        return (alpha, theta), (left, left / missing)
    return ((min(alpha, busy), theta),)


def _inversion(rate: float, service: Service) -> Callable[[float], float]:
    busy = rate * service.mean_ns

    def transform(z: Complexes) -> Complexes:
        one = service.transform(z)
        arriving = rate * (1.0 - one)
        # (W(z) - (1 - rho)) written so that nothing cancels at small z.
        waited = (1.0 - busy) * arriving / (z - arriving)
        return (busy - waited * one) / z

    return lambda t: (1.0 - busy) * service.above(t) + inverted(transform, t)


def _tail(rate: float, service: Service) -> Callable[[float], float]:
    parts = wait_exponentials(rate, service)
    return lambda t: convolved(parts, service, t)


def _asymptotic(rate: float, service: Service, t_ns: float) -> bool:
    """Whether the slow exponential alone says nearly what both do about P(T > t), and `t` is more than a long service."""
    if rate * service.mean_ns < 0.5:
        return False
    parts = wait_exponentials(rate, service)
    both, slow = convolved(parts, service, t_ns), convolved(parts[:1], service, t_ns)
    return abs(slow - both) <= FAST_MOST * both and service.above(t_ns) <= LONG_MOST * both


def convolved(parts: tuple[tuple[float, float], ...], service: Service, t_ns: float) -> float:
    """P(W + S > t) for a wait whose tail is a sum of exponentials."""
    left = t_ns - service.values_ns
    waited = sum(weight * np.exp(-decay * np.maximum(left, 0.0)) for weight, decay in parts)
    return float(np.where(left < 0.0, 1.0, waited) @ service.weights)


def _decay(rate: float, service: Service, guess: float) -> float:
    """The positive root of lam (E[exp(theta S)] - 1) = theta, by halving: the left side is convex and starts below."""

    def over(theta: float) -> bool:
        return rate * (service.growth(theta)[0] - 1.0) > theta

    # Beyond this exponent exp() overflows; the root lies far below it, since growth is exponential.
    most = 600.0 / float(service.values_ns[-1])
    high = min(guess, most)
    while not over(high) and high < most:
        high = min(2.0 * high, most)
    low = high / 2.0
    while over(low):
        high, low = low, low / 2.0
    for _ in range(60):
        middle = (low + high) / 2.0
        low, high = (low, middle) if over(middle) else (middle, high)
    return (low + high) / 2.0
