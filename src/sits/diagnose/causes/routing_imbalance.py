"""A request queues at one replica while another one has nobody waiting: the route, not the load, made it wait.

Accounted to a request: the time in `engine_queue` after a usual step (any replica may make a request wait for the step
in progress, as far as that takes no longer than `USUAL_TOKENS` prompt tokens would) during which at least one other
replica that serves its model was *free*: nobody waited there, and it ran a usual step or none.

Deliberately absent: whether that replica had the adapter or a free KV block (the size is what a perfect route could
save at most), and steps shared with others' prompts (`head_of_line_prefill`), which another route spares too.
"""

from collections.abc import Mapping

import numpy as np

from sits.core.finding import Change, Evidence, Finding
from sits.diagnose.causes.case import Case, unknown
from sits.diagnose.columns import Floats
from sits.diagnose.decompose import NS_PER_MS
from sits.diagnose.resample import quantile
from sits.diagnose.steps import StepTime

ID, LAYER = "routing_imbalance", "framework"
USUAL_TOKENS = 2048


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
    spared = np.zeros(case.n)
    for kind in sorted(set(model)):
        serving = {
            name: case.lines[name]
            for name in used
            if name in case.lines and kind in model[case.engine == name]
        }
        if len(serving) < 2:
            continue
        free = FreeTime(serving)
        for name, line in serving.items():
            mine = np.flatnonzero((case.engine == name) & (model == kind) & (scheduled > queued))
            if len(mine):
                boundary = np.minimum(line.boundary_after(queued[mine]), scheduled[mine])
                usual_ns = int(line.cost.base_ns + line.cost.prefill_ns * USUAL_TOKENS)
                usual = np.minimum(queued[mine] + usual_ns, boundary)
                spared[mine] = free.elsewhere(name, usual, scheduled[mine])
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


class FreeTime:
    """When each of several engines was free: nobody waiting in a usual step, or no step (before the first, after the last)."""

    def __init__(self, lines: Mapping[str, StepTime]) -> None:
        self._names = list(lines)
        self._origin = min(line.origin_ns for line in lines.values())
        edges = [
            line.origin_ns - self._origin + np.concatenate([line.start, line.end]) for line in lines.values()
        ]
        self._knots = np.unique(np.concatenate(edges))
        self._free = np.zeros((len(lines), len(self._knots)), dtype=bool)
        for i, line in enumerate(lines.values()):
            at = self._knots - (line.origin_ns - self._origin)
            step = np.maximum(np.searchsorted(line.start, at, side="right") - 1, 0)
            inside = (at >= line.start[step]) & (at < line.end[step])
            usual = (line.column("waiting") == 0) & (line.prefill_tokens <= USUAL_TOKENS)
            self._free[i] = ~inside | usual[step]

    def elsewhere(self, name: str, start: np.ndarray, end: np.ndarray) -> Floats:
        """(m,) ns of each window in which at least one engine other than `name` was free."""
        others = np.array([other != name for other in self._names])
        if not others.any():
            return np.zeros(len(start))
        free = self._free[others].any(axis=0)
        low = min(float(self._knots[0]), float(start.min() - self._origin)) - 1.0
        high = max(float(self._knots[-1]), float(end.max() - self._origin)) + 1.0
        knots = np.concatenate([[low], self._knots, [high]])
        cumulative = np.concatenate([[0.0], np.cumsum(np.diff(knots) * np.concatenate([[True], free]))])
        return np.interp(end - self._origin, knots, cumulative) - np.interp(
            start - self._origin, knots, cumulative
        )
