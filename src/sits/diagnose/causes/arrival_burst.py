"""Arrivals in bursts: context for every other finding, not a fault of the service.

Two figures over all requests that arrived, refused ones too: the coefficient of variation of the gaps between
arrivals (1 for Poisson), and the index of dispersion for counts, variance over mean of arrivals per bin (1
for Poisson at every bin width; it sees slow bursts that the gaps do not).  Bins hold ten arrivals on average
and last at least 1 s.
"""

import numpy as np

from sits.core.breakpoints import API_RECV
from sits.core.finding import Evidence, Finding
from sits.core.units import SECOND
from sits.diagnose.causes.case import LEAST_REQUESTS, Case
from sits.diagnose.columns import points

ID, LAYER = "arrival_burst", "infrastructure"
BURSTY_CV = 1.5
BURSTY_IDC = 3.0
LEAST_BINS = 20


def arrival_burst(case: Case) -> Finding | None:
    """Tell when arrivals vary far more than Poisson arrivals would."""
    at, how = points(case.requests)
    t = np.sort(at[how[:, API_RECV] > 0, API_RECV])
    gaps = np.diff(t).astype(np.float64)
    if len(t) < LEAST_REQUESTS or gaps.sum() <= 0:
        return None
    cv = float(gaps.std() / gaps.mean())
    bin_ns = max(float(SECOND), 10.0 * float(gaps.mean()))
    counts = np.bincount(((t - t[0]) / bin_ns).astype(np.int64))[:-1]
    idc = float(counts.var(ddof=1) / counts.mean()) if len(counts) >= LEAST_BINS else 1.0
    if cv < BURSTY_CV and idc < BURSTY_IDC:
        return None
    evidence = [Evidence("interarrival_cv", cv, 1.0, "", "1 for Poisson arrivals")]
    if len(counts) >= LEAST_BINS:
        note = f"variance over mean of arrivals per {bin_ns / SECOND:.3g} s; 1 for Poisson"
        evidence.append(Evidence("index_of_dispersion", idc, 1.0, "", note))
        evidence.append(
            Evidence("peak_to_mean", float(counts.max() / counts.mean()), None, "", "busiest bin")
        )
    return Finding(
        id=ID,
        claim="Requests arrive in bursts, so queues fill even where the mean load is low.",
        layer=LAYER,
        severity="info",
        evidence=tuple(evidence),
    )
