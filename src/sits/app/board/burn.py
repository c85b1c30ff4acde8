"""How fast the error budget is spent: the share of bad requests over each of several windows, as a multiple of what the objective allows.

A request is bad when it took longer than the objective, or went wrong as `policy.outcome` says; an objective on P99 allows 1 %.  The pairs of
windows are those of the alerts (`policy.burn_rate`); alerts count slow ones and errors each against its own budget, here both share one, so that
this burns no later than the latency alert of the same windows.

Rules: requests of a minute are looked at together, a bucket of the histogram (1 %) wide at the objective.

Deliberately absent: telling anybody.
"""

from typing import Any

import numpy as np

from sits.policy.burn_rate import BURNS, P99_BUDGET, minutes_of
from sits.telemetry.histograms import BUCKETS, RECORD, buckets_of

LONGEST_MINUTES = max(minutes_of(pair.long) for pair in BURNS)


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
    """Each pair of windows; the arrays are by minute, the last one is the newest that is over."""
    found = []
    for then, limit, long, short in BURNS:
        rates = [_burn(requests, bad, minutes_of(window)) for window in (short, long)]
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
    return None if not n else float(bad[-minutes:].sum()) / n / P99_BUDGET
