"""How fast an error budget may burn before somebody is told: the pairs of windows that rules, board and terminal agree on.

```
burn = share of bad requests / share that may be bad          burn 1 spends the budget of 30 days in 30 days
both windows of a pair over its burn ──> page or ticket       the long one: it matters; the short one: it still goes on
```
Source: Google, The Site Reliability Workbook, 2018, chapter 5, table 5-8 (2 % of a 30-day budget in an hour, 5 % in six hours, 10 % in a day,
10 % in three days).

Deliberately absent: what is bad (`policy.outcome`, and the objective), and counting it.
"""

from typing import Final, NamedTuple

P99_BUDGET: Final = 0.01
"""The share of answers that an objective on P99 lets take longer."""


class Pair(NamedTuple):
    """Two windows, as PromQL writes them, and the burn from which on both together are told; to whom."""

    severity: str
    burn: float
    long: str
    short: str


BURNS: Final = (
    Pair("page", 14.4, "1h", "5m"),
    Pair("page", 6.0, "6h", "30m"),
    Pair("ticket", 3.0, "1d", "2h"),
    Pair("ticket", 1.0, "3d", "6h"),
)

_MINUTES: Final = {"m": 1, "h": 60, "d": 24 * 60}


def minutes_of(window: str) -> int:
    """Minutes of a window.

    >>> minutes_of("5m"), minutes_of("3d")
    (5, 4320)
    """
    return int(window[:-1]) * _MINUTES[window[-1]]
