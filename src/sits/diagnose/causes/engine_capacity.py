"""More work than all replicas together can take at a time: requests wait for their turn wherever they are sent.

Accounted to a request: the time in `engine_queue` after the step in progress at its arrival during which no other replica
was free (`queueing`), outside steps that denied KV blocks (`kv_pressure` counts those).  A burst does this for as long as it
lasts, a load above capacity for ever: the busy share of the engines tells which.

Deliberately absent: what more capacity would cost, and whether the load should have been admitted.
"""

import numpy as np

from sits.core.finding import Change, Evidence, Finding
from sits.diagnose.causes.case import Case
from sits.diagnose.causes.queueing import queued
from sits.diagnose.decompose import NS_PER_MS
from sits.diagnose.steps import observed_ns

ID, LAYER = "engine_capacity", "framework"
PHASES = ("copy", "prepare", "kernel", "gap")


def engine_capacity(case: Case) -> Finding | None:
    """Find waits that no other route and no larger KV pool would have spared; needs steps and queue times."""
    if not case.lines or not case.seen("queued", "scheduled"):
        return None
    wait = queued(case)
    denied = case.overlap(
        wait.boundary, wait.scheduled, lambda line: dict.fromkeys(PHASES, line.column("denied"))
    )
    stuck = np.maximum(wait.stuck - denied, 0.0)
    busy_ns = sum(float((line.end - line.start).sum()) for line in case.lines.values())
    span_ns = len(case.lines) * observed_ns(case.lines.values())
    longest = float(stuck.max()) / NS_PER_MS
    return case.claim(
        ID,
        LAYER,
        {"queue": stuck},
        "No replica is free; a tail request waits {ms} for its turn.",
        (
            Evidence(
                "busy_share", busy_ns / max(span_ns, 1.0), None, "share", "of the time, engines ran a step"
            ),
            Evidence(
                "waiting_share",
                float(np.mean(stuck > 0)),
                0.0,
                "share",
                "of requests waited while none was free",
            ),
            Evidence("longest_wait_ms", longest, 0.0, "ms", "while none was free"),
        ),
        (
            Change(
                "engines", str(len(case.lines)), "more", "more replicas, or fewer requests admitted at a time"
            ),
        ),
    )
