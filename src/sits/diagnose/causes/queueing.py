"""How long requests queued in their engine, and whether another replica was free meanwhile: what two detectors share.

A replica may make any request wait for the step in progress, as far as that takes no longer than `USUAL_TOKENS` prompt
tokens would.  What a request waits beyond that is *spared* elsewhere while at least one other replica that serves its
model was *free* (nobody waited there, and it ran a usual step or none).  What it waits after the step in progress while
none was free, it was *stuck*.

Deliberately absent: whether the free replica had the adapter or free KV blocks, and what is made of the two parts.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from sits.diagnose.causes.case import Case
from sits.diagnose.columns import Floats, Ints
from sits.diagnose.steps import StepTime

USUAL_TOKENS = 2048


class Queued(NamedTuple):
    """(m,) per request: when the step in progress at its arrival ended, when it was scheduled, ns spared, ns stuck."""

    boundary: Ints
    scheduled: Ints
    spared: Floats
    stuck: Floats


def queued(case: Case) -> Queued:
    """The wait of each request in its engine's queue; no time where its engine has no steps."""
    arrived, scheduled = case.span("queue")
    model = case.column("model").astype(str)
    found = Queued(scheduled.copy(), scheduled, np.zeros(case.n), np.zeros(case.n))
    for kind in sorted(set(model)):
        serving = {name: line for name, line in case.lines.items() if kind in model[case.engine == name]}
        free = FreeTime(serving) if serving else None
        for name, line in serving.items():
            mine = np.flatnonzero((case.engine == name) & (model == kind) & (scheduled > arrived))
            if free is None or not len(mine):
                continue
            end = scheduled[mine]
            boundary = np.minimum(line.boundary_after(arrived[mine]), end)
            usual_ns = int(line.cost.base_ns + line.cost.prefill_ns * USUAL_TOKENS)
            found.boundary[mine] = boundary
            found.spared[mine] = free.elsewhere(name, np.minimum(arrived[mine] + usual_ns, boundary), end)
            found.stuck[mine] = (end - boundary) - free.elsewhere(name, boundary, end)
    return found


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
