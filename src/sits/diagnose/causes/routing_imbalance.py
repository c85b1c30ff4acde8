"""A request queues at one replica while another one has nobody waiting: the route, not the load, made it wait.

Accounted to a request: the time in `engine_queue` beyond a usual step during which another replica was free
(`queueing`).  The size is what a perfect route could save at most.

Deliberately absent: steps shared with others' prompts (`head_of_line_prefill`), which another route spares too.
"""

import numpy as np

from sits.core.finding import Change, Evidence, Finding
from sits.diagnose.causes.case import Case, unknown
from sits.diagnose.causes.queueing import queued
from sits.diagnose.decompose import NS_PER_MS
from sits.diagnose.resample import quantile

ID, LAYER = "routing_imbalance", "framework"


def routing_imbalance(case: Case) -> Finding | None:
    """Find waits that another replica would have spared."""
    used = sorted(set(case.engine.tolist()))
    if len(used) < 2:
        return None
    if len(case.lines) < 2 or not case.seen("queued", "scheduled"):
        why = "no step rows of two replicas, or no queue times, were recorded"
        return unknown(ID, LAYER, "Whether the route spreads the load is not known.", why)
    spared = queued(case).spared
    queue = np.subtract(*case.span("queue")[::-1])
    p99 = {name: quantile(np.sort(queue[case.engine == name]), 0.99) / NS_PER_MS for name in used}
    worst, best = max(p99, key=lambda n: (p99[n], n)), min(p99, key=lambda n: (p99[n], n))
    old = case.fleet.policy.route.kind if case.fleet else "unknown"
    change = Change(
        "policy.route.kind", old, "least_tokens", "send to the replica with the least work in flight"
    )
    return case.claim(
        ID,
        LAYER,
        {"queue": spared},
        "Requests queue at one replica while another is free; of a tail request's wait up to {ms} could be spared.",
        (
            Evidence("engine_queue_ms_p99_worst", p99[worst], p99[best], "ms", f"{worst} against {best}"),
            Evidence(
                "spared_requests_share",
                float(np.mean(spared > 0)),
                0.0,
                "share",
                "would have waited less elsewhere",
            ),
        ),
        () if old == "least_tokens" else (change,),
    )
