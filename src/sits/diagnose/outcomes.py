"""What went wrong: which requests, and whether they are more than the objective's availability allows.

The share that goes wrong is of requests that were completed or went wrong (`policy.outcome`), as alerts count it: who left, and who was refused
by his own mistake, is in neither.  It is more than is allowed when its lower bound is: the smallest p for which k wrong of n are no
rarer than 1 in 20, by Chernoff's bound P(X >= k) <= exp(-n KL(k/n || p)), KL(a || b) = a ln(a/b) + (1-a) ln((1-a)/(1-b))
(Hoeffding 1963, theorem 1).  It holds for every n, and is a little lower than the exact one.

Deliberately absent: why they went wrong (the log and `sitsctl logs timeouts` say that).
"""

import math

import numpy as np

from sits.core.report import Availability
from sits.diagnose.columns import Bools, Columns, require
from sits.policy.outcome import is_error

RARE = 0.05


def wrong(requests: Columns) -> Bools:
    """(n,) which rows went wrong.

    Raises:
        CallerError: the table has no outcomes.

    """
    n = require(requests, ("outcome",), "requests")
    status = requests["status"].tolist() if "status" in requests else [0] * n
    detail = requests["detail"].tolist() if "detail" in requests else [""] * n
    rows = zip(requests["outcome"].tolist(), status, detail, strict=True)
    return np.array([is_error(str(outcome), code, text or "") for outcome, code, text in rows], dtype=bool)


def availability(requests: Columns, promised: float) -> Availability:
    """What went wrong beside what may; `promised` is the objective's availability, a share.

    Raises:
        CallerError: the table has no outcomes.

    """
    bad = wrong(requests)
    k, n = int(bad.sum()), int((bad | (requests["outcome"] == "completed")).sum())
    return Availability(wrong=k, of=n, low=lower_bound(k, n), allowed=round(1.0 - promised, 9))


def lower_bound(k: int, n: int) -> float:
    """The smallest share under which k of n are no rarer than `RARE`; 0 for none of none.

    >>> lower_bound(0, 100), round(lower_bound(3, 3), 3), round(lower_bound(62, 306), 3)
    (0.0, 0.368, 0.15)
    """
    if k == 0:
        return 0.0
    share, limit = k / n, -math.log(RARE) / n
    low, high = 0.0, share
    while high - low > 1e-9 * share:
        middle = (low + high) / 2
        low, high = (middle, high) if _divergence(share, middle) > limit else (low, middle)
    return low


def _divergence(a: float, b: float) -> float:
    rest = (1 - a) * math.log((1 - a) / (1 - b)) if a < 1 else 0.0
    return a * math.log(a / b) + rest
