"""A rate of requests, as all predictors of queues and windows take it.

>>> check_rate(0.5)

Deliberately absent: how bursty it is (`predict.burstiness`).
"""

import math

from sits.core.errors import ConfigError


def check_rate(rate_per_s: float) -> None:
    """Raises ConfigError: it is not finite and above zero."""
    if not (rate_per_s > 0.0 and math.isfinite(rate_per_s)):
        raise ConfigError(
            f"{rate_per_s!r} requests a second",
            field="rate_per_s",
            value=rate_per_s,
            hint="give a rate above zero",
        )
