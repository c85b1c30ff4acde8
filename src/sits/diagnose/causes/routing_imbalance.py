"""A request queues at one replica while another one has nobody waiting: the route, not the load, made it wait.

Accounted to a request: the time in `engine_queue` after the step in progress at its arrival (every replica would have
made it wait for that) during which at least one other replica that serves its model had an empty waiting queue.

Deliberately absent: whether that replica had the adapter or a free KV block; the size is what a perfect route could save at most.
"""

import numpy as np

from sits.core.finding import Change, Evidence, Finding
from sits.diagnose.causes.case import Case, unknown
from sits.diagnose.columns import Floats
from sits.diagnose.decompose import NS_PER_MS
from sits.diagnose.resample import quantile
from sits.diagnose.steps import StepTime

ID, LAYER = "routing_imbalance", "framework"


def routing_imbalance(case: Case) -> Finding | None:
    """Find waits that another replica would have spared."""
    used = sorted(set(case.engine.tolist()))
    if len(used) < 2:
        return None
    if len(case.lines) < 2 or not case.seen("queued", "scheduled"):
        why = "no step rows of two replicas, or no queue times, were recorded"
        return unknown(ID, LAYER, "Whether the route spreads the load is not known.", why)
    queued, scheduled = case.point("queued"), case.point("scheduled")
    model = case.column("model").astype(str)
    serves = {name: set(model[case.engine == name]) for name in used}
    spared = np.zeros(case.n)
    for name in used:
        for kind in sorted(serves[name]):
            others = [case.lines[o] for o in used if o != name and o in case.lines and kind in serves[o]]
            mine = np.flatnonzero((case.engine == name) & (model == kind))
            if not others or name not in case.lines:
                continue
            start = np.minimum(case.lines[name].boundary_after(queued[mine]), scheduled[mine])
            spared[mine] = free_elsewhere(others, start, scheduled[mine])
    queue = scheduled - queued
    p99 = {name: quantile(np.sort(queue[case.engine == name]), 0.99) / NS_PER_MS for name in used}
    worst, best = max(p99, key=lambda n: (p99[n], n)), min(p99, key=lambda n: (p99[n], n))
    old = case.fleet.policy.route.kind if case.fleet else "unknown"
    change = Change(
        "policy.route.kind", old, "least_tokens", "send to the replica with the least work in flight"
    )
    return case.claim(
        ID,
        LAYER,
        spared,
        "Requests queue at one replica while another is free; a tail request waits {ms} for nothing.",
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


def free_elsewhere(others: list[StepTime], start: np.ndarray, end: np.ndarray) -> Floats:
    """(m,) ns of each window in which at least one of `others` had an empty waiting queue.

    Between two steps an engine has nobody waiting; before its first and after its last step too.
    """
    origin = min(line.origin_ns for line in others)
    knots = np.unique(
        np.concatenate([line.origin_ns - origin + np.concatenate([line.start, line.end]) for line in others])
    )
    free = np.zeros(len(knots), dtype=bool)
    for line in others:
        at = knots - (line.origin_ns - origin)
        step = np.searchsorted(line.start, at, side="right") - 1
        inside = (step >= 0) & (at < line.end[np.maximum(step, 0)])
        free |= ~inside | (line.column("waiting")[np.maximum(step, 0)] == 0)
    low, high = float(start.min() - origin) - 1.0, float(end.max() - origin) + 1.0
    knots = np.concatenate([[min(low, knots[0])], knots, [max(high, knots[-1])]])
    spent = np.diff(knots) * np.concatenate([[True], free])
    cumulative = np.concatenate([[0.0], np.cumsum(spent)])
    return np.interp(end - origin, knots, cumulative) - np.interp(start - origin, knots, cumulative)
