"""A published formula for P99 that is not one, kept by name so that its error can be shown.

    L99 = 1 / (mu - lam)  +  (C^2 + 1) / 2 * lam / (mu (mu - lam))

The second term is exactly the mean wait of Pollaczek and Khinchine.  The first should then be the mean service 1 / mu; 1 / (mu - lam)
is the mean sojourn of M/M/1 and contains a wait already.  So queueing is counted twice, and the sum is neither
the mean nor any quantile: a mean plus a mean cannot be a P99.

Deliberately absent: a repair.  `queue.predict_queue` is the right answer.
"""

import math

from sits.core.errors import ConfigError
from sits.predict.queue import predict_queue
from sits.predict.queue_service import Service


def l99_reference_ns(rate_per_s: float, mean_ns: float, cv: float) -> float:
    """The formula as published, ns; `inf` at and above saturation.

    >>> round(l99_reference_ns(16.0, 50e6, 1.0) / 1e6)                 # the true P99 is ln(100) / 4 s = 1151 ms
    450
    """
    if not (rate_per_s > 0.0 and mean_ns > 0.0 and cv >= 0.0):
        raise ConfigError(
            f"{rate_per_s!r} requests a second of {mean_ns!r} ns, CV {cv!r}",
            field="rate_per_s",
            value=rate_per_s,
            hint="give a rate and a mean above zero",
        )
    mu, lam = 1e9 / mean_ns, rate_per_s
    if lam >= mu:
        return math.inf
    return 1e9 * (1.0 / (mu - lam) + (cv**2 + 1.0) / 2.0 * lam / (mu * (mu - lam)))


def l99_reference_error(rate_per_s: float, service: Service) -> float:
    """The formula beside the exact P99 of the same queue: -0.7 says that it is 70 % too low.

    >>> from sits.predict.queue_service import two_kinds
    >>> kinds = two_kinds(20e6, 200e6, 0.1)                             # CV 1.42
    >>> [round(l99_reference_error(rho / 0.038, kinds), 2) for rho in (0.5, 0.8, 0.95)]
    [-0.74, -0.68, -0.65]
    """
    exact = predict_queue(rate_per_s, service).p99_ns
    if math.isinf(exact):
        return math.nan
    return l99_reference_ns(rate_per_s, service.mean_ns, service.cv) / exact - 1.0
