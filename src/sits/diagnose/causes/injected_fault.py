"""A fault somebody put in on purpose (`injections` of the configuration), and which still is there, or was.

The column `injected_ns` of the requests says how long each was held by one; a table without it was made where nothing is injected.
All of that time is accounted to it: without the injection it is not spent.

Deliberately absent: injected refusals, which are outcomes and no time, and who put it there.
"""

import numpy as np

from sits.core.finding import Change, Evidence, Finding
from sits.diagnose.causes.case import Case
from sits.diagnose.columns import Ints
from sits.diagnose.decompose import NS_PER_MS

ID, LAYER = "injected_fault", "infrastructure"
COLUMN = "injected_ns"


def injected_fault(case: Case) -> Finding | None:
    """Find requests that were held on purpose."""
    held = held_ns(case)
    if not held.any():
        return None
    names = ", ".join(one.name for one in case.fleet.injections if one.delay) if case.fleet else ""
    share, most = float(np.mean(held > 0)), float(held.max())
    return case.claim(
        ID,
        LAYER,
        {"gateway": held},
        f"The configuration delays {share:.1%} of the requests on purpose (injections); a tail request is held {{ms}} by it.",
        (
            Evidence("requests_held_share", share, 0.0, "share", "drawn for an injection, and held as long"),
            Evidence("injected_delay_ms", most / NS_PER_MS, 0.0, "ms", "the longest injected delay"),
        ),
        (Change("injections", names, "none", "a reload without it ends it"),) if names else (),
    )


def held_ns(case: Case) -> Ints:
    """(m,) ns each request was held by an injection."""
    return case.column(COLUMN) if COLUMN in case.requests else np.zeros(case.n, dtype=np.int64)
