"""How fast the error budget is spent: the share of bad requests over each of several windows, as a multiple of what the objective allows.

A request is bad when it took longer than the objective, or went wrong as `policy.outcome` says; an objective on P99 allows 1 %.  Burn 1
spends the budget of 30 days in 30 days.  Two windows together tell an incident: the long one that it matters, the short one that it
goes on (Google, The Site Reliability Workbook, 2018, chapter 5, table 5-8: 14.4 over 1 h and 5 min, 6 over 6 h and 30 min, 1 over 3 d and 6 h).

Rules: requests of a minute are looked at together, a bucket of the histogram (1 %) wide at the objective.

Deliberately absent: telling anybody.
"""

from typing import Any

import numpy as np

from sits.telemetry.histograms import BUCKETS, RECORD, buckets_of

ALLOWED = 0.01
PAIRS = (
    ("5m", 5, "1h", 60, 14.4, "page"),
    ("30m", 30, "6h", 360, 6.0, "page"),
    ("6h", 360, "3d", 4320, 1.0, "ticket"),
)
"""The short window, the long one, the burn from which on both together are an incident, and what is done then."""

LONGEST_MINUTES = 4320


def slow_by_minute(
    minutes: int, cells: list[tuple[int, list[bytes]]], bound_ns: int
) -> tuple[np.ndarray, np.ndarray]:
    """Requests timed, and those above the bound, in each of so many minutes, from `(minute, histograms)`."""
    data, index = [], []
    for minute, histograms in cells:
        joined = b"".join(histograms)
        data.append(joined)
        index.append((minute, len(joined) // RECORD.itemsize))
    records = np.frombuffer(b"".join(data), dtype=RECORD)
    where = np.repeat([minute for minute, _ in index], [n for _, n in index]).astype(np.int64)
    fine = (where >= 0) & (where < minutes) & (records["bucket"] < BUCKETS)
    where, n = where[fine], records["n"][fine].astype(np.float64)
    above = n * (records["bucket"][fine] > int(buckets_of(np.array([bound_ns]))[0]))
    return np.bincount(where, n, minutes), np.bincount(where, above, minutes)


def burns(requests: np.ndarray, bad: np.ndarray) -> list[dict[str, Any]]:
    """Each pair of windows; the arrays are by minute, the last one is now."""
    found = []
    for short, short_n, long, long_n, limit, then in PAIRS:
        rates = [_burn(requests, bad, n) for n in (short_n, long_n)]
        burning = all(rate is not None and rate >= limit for rate in rates)
        found.append(
            {
                "short": short,
                "long": long,
                "short_burn": rates[0],
                "long_burn": rates[1],
                "limit": limit,
                "then": then,
                "burning": burning,
            }
        )
    return found


def _burn(requests: np.ndarray, bad: np.ndarray, minutes: int) -> float | None:
    n = float(requests[-minutes:].sum())
    return None if not n else float(bad[-minutes:].sum()) / n / ALLOWED
