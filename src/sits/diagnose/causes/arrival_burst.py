"""Arrivals in bursts: context for every other finding, not a fault of the service.

Two figures over all requests that arrived, refused ones too: the coefficient of variation of the gaps between
arrivals (1 for Poisson), and the index of dispersion for counts, variance over mean of arrivals per bin (1
for Poisson at every bin width; it sees slow bursts that the gaps do not).  Bins hold ten arrivals on average
and last at least 1 s.

With several runs r in the table, gaps and bins are taken within each of them and its own mean, so that neither the
silence between runs nor their different rates look like bursts:

    cv^2 = sum over gaps of (g - mean_r)^2 / sum over gaps of mean_r^2
    idc  = sum over bins of (c - mean_r)^2 / sum over runs of (bins_r - 1) mean_r

which for one run are the plain ones.
"""

import math
from collections.abc import Sequence

import numpy as np

from sits.core.breakpoints import API_RECV
from sits.core.finding import Evidence, Finding
from sits.core.units import SECOND
from sits.diagnose.causes.case import LEAST_REQUESTS, Case
from sits.diagnose.columns import Floats, Ints, points, runs_of

ID, LAYER = "arrival_burst", "infrastructure"
BURSTY_CV = 1.5
BURSTY_IDC = 3.0
LEAST_BINS = 20


def arrival_burst(case: Case) -> Finding | None:
    """Tell when arrivals vary far more than Poisson arrivals would."""
    runs = _arrivals(case)
    gaps = [np.diff(t).astype(np.float64) for t in runs]
    total = sum(float(g.sum()) for g in gaps)
    if sum(map(len, runs)) < LEAST_REQUESTS or total <= 0:
        return None
    cv = math.sqrt(_around_means(gaps) / sum(len(g) * float(g.mean()) ** 2 for g in gaps))
    bin_ns = max(float(SECOND), 10.0 * total / sum(map(len, gaps)))
    counts = [c for t in runs if len(c := np.bincount(((t - t[0]) / bin_ns).astype(np.int64))[:-1])]
    degrees = sum(len(c) - 1 for c in counts)
    binned = degrees >= LEAST_BINS - 1
    idc = _around_means(counts) / sum((len(c) - 1) * float(c.mean()) for c in counts) if binned else 1.0
    if cv < BURSTY_CV and idc < BURSTY_IDC:
        return None
    evidence = [Evidence("interarrival_cv", cv, 1.0, "", "1 for Poisson arrivals")]
    if binned:
        note = f"variance over mean of arrivals per {bin_ns / SECOND:.3g} s; 1 for Poisson"
        evidence.append(Evidence("index_of_dispersion", idc, 1.0, "", note))
        peak = max(float(c.max() / c.mean()) for c in counts)
        evidence.append(Evidence("peak_to_mean", peak, None, "", "busiest bin"))
    return Finding(
        id=ID,
        claim="Requests arrive in bursts, so queues fill even where the mean load is low.",
        layer=LAYER,
        severity="info",
        evidence=tuple(evidence),
    )


def _arrivals(case: Case) -> list[Ints]:
    """Arrival times of each run with two or more, ascending."""
    at, how = points(case.requests)
    run = np.where(how[:, API_RECV] > 0, runs_of(case.requests), -1)
    found = [np.sort(at[run == one, API_RECV]) for one in range(int(run.max(initial=-1)) + 1)]
    return [t for t in found if len(t) > 1]


def _around_means(groups: Sequence[Floats | Ints]) -> float:
    """Sum of squared distances of all values from the mean of their own group."""
    return sum(float(np.sum((group - group.mean()) ** 2)) for group in groups)
