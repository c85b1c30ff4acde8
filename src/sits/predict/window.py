"""Batching window: how long requests wait for company, and how large batches get, for Poisson arrivals.

The first request opens a window of W; the batch goes when W has passed or B requests are there.  With rate
lam, m = lam*W and N(t) ~ Poisson(lam*t) further arrivals within t of the opening, renewal-reward gives

    fill time          (B - 1) / lam              below W: the size cap decides, W hardly matters; else the timeout
    mean batch         E[K] = 1 + sum over j = 1..B-1 of P(N(W) >= j)
    mean added wait    1/lam * sum over j = 1..B-1 of j * P(N(W) >= j)  /  E[K]
    P(wait > w)        ( P(N(w) <= B-2) + sum over j = 1..B-2 of [P(N(W) >= j) - P(N(w) >= j)] ) / E[K]     for w < W

all exact.  The wait is what the window *adds*; time in service and behind earlier batches is not in it.

A continuous-batching engine takes a request into the next step anyway, so a window in front of one only adds
latency; `only_latency` says so.  Real arrivals are burstier than Poisson: batches then fill earlier and the
same window waits less in bursts and W alone between them.

Deliberately absent: the choice of a window (a policy's business) and batch service times.
"""

import math

import msgspec

from sits.core.errors import ConfigError
from sits.predict.rate import check_rate

_LONGEST = 100_000


class WindowPrediction(msgspec.Struct, frozen=True, kw_only=True):
    """What a batching window does to its requests.

    Attributes:
        bound: `size` when the batch usually fills first, `timeout` when the window usually ends first.
        fill_ns: mean time until the batch is full, counted from its first request.
        batch_mean: requests a batch.
        batches_per_s: batches sent a second.
        wait_ns_mean, wait_ns_p99: added wait over requests; never above the window.
        only_latency: the window stands before a continuous-batching engine and gains nothing.
        warning: that, as a sentence with its cost; empty when there is nothing to warn of.

    """

    bound: str
    fill_ns: float
    batch_mean: float
    batches_per_s: float
    wait_ns_mean: float
    wait_ns_p99: float
    only_latency: bool
    warning: str


def predict_window(
    rate_per_s: float, window_ns: float, max_batch: int, *, continuous_batching: bool = False
) -> WindowPrediction:
    """Predict a window of `window_ns` and at most `max_batch` requests at `rate_per_s` Poisson arrivals a second.

    >>> p = predict_window(1420, 15e6, 8)                       # fills in 4.9 ms: the 15 ms hardly matter
    >>> p.bound, round(p.fill_ns / 1e6, 2), round(p.batch_mean, 1), round(p.wait_ns_mean / 1e6, 2)
    ('size', 4.93, 8.0, 2.46)
    >>> p = predict_window(100, 20e6, 16, continuous_batching=True)
    >>> p.bound, round(p.batch_mean, 2), round(p.wait_ns_mean / 1e6, 2), round(p.wait_ns_p99 / 1e6, 2)
    ('timeout', 3.0, 13.33, 20.0)
    >>> p.warning
    'a window before a continuous-batching engine only adds latency: 13.3 ms on average, 20.0 ms at P99'

    Raises:
        ConfigError: a rate that is not above zero, a negative window, or a batch outside 1..100000.

    """
    _check(rate_per_s, window_ns, max_batch)
    rate = rate_per_s / 1e9
    more = _tails(rate * window_ns, max_batch - 1)
    batch = 1.0 + math.fsum(more)
    mean = min(window_ns, math.fsum(j * p for j, p in enumerate(more, start=1)) / rate / batch)
    p99 = _quantile(rate, window_ns, max_batch, more, batch)
    fill = (max_batch - 1) / rate
    only_latency = continuous_batching and mean > 0.0
    warning = (
        "a window before a continuous-batching engine only adds latency: "
        f"{mean / 1e6:.1f} ms on average, {p99 / 1e6:.1f} ms at P99"
    )
    return WindowPrediction(
        bound="size" if fill < window_ns else "timeout",
        fill_ns=fill,
        batch_mean=batch,
        batches_per_s=rate_per_s / batch,
        wait_ns_mean=mean,
        wait_ns_p99=p99,
        only_latency=only_latency,
        warning=warning if only_latency else "",
    )


def _check(rate_per_s: float, window_ns: float, max_batch: int) -> None:
    check_rate(rate_per_s)
    if not (window_ns >= 0.0 and math.isfinite(window_ns)):
        raise ConfigError(
            f"a window of {window_ns!r} ns", field="window_ns", value=window_ns, hint="give zero or more"
        )
    if not 1 <= max_batch <= _LONGEST:
        raise ConfigError(
            f"a batch of {max_batch}", field="max_batch", value=max_batch, hint=f"give 1 to {_LONGEST}"
        )


def _tails(mean: float, upto: int) -> list[float]:
    """P(N >= j) of a Poisson variable for j = 1..upto."""
    if mean <= 0.0:
        return [0.0] * upto
    log, below, out = math.log(mean), 0.0, []
    for j in range(upto):
        below += math.exp(j * log - mean - math.lgamma(j + 1))
        out.append(max(0.0, 1.0 - below))
    return out


def _quantile(rate: float, window_ns: float, max_batch: int, more: list[float], batch: float) -> float:
    """The wait that 99 % of the requests stay under: smallest w with P(wait > w) <= 1 %, by bisection."""
    if max_batch == 1 or window_ns == 0.0:
        return 0.0
    low, high = 0.0, window_ns
    for _ in range(60):
        w = (low + high) / 2
        now = _tails(rate * w, max_batch - 1)
        over = 1.0 - now[-1] + math.fsum(a - b for a, b in zip(more[:-1], now[:-1], strict=True))
        low, high = (w, high) if over / batch > 0.01 else (low, w)
    return high
