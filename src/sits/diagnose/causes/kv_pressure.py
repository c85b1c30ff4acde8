"""A KV pool that is too small: requests wait for blocks, and preempted ones compute again what was thrown away.

Accounted to a request: the time between `queued` and `scheduled` in steps that denied blocks to somebody
(first come, first served: who waits behind a denied request waits for blocks too), and after that the kernel
time of recomputed tokens in its steps. Looked at only where at least `DENIED_SHARE` of the steps denied
blocks, or a request was preempted.  A high `kv_usage` alone is not a fault: a full cache that nobody waits
for is a good cache.
"""

import numpy as np

from sits.core.finding import Change, Evidence, Finding
from sits.core.units import SECOND
from sits.diagnose.causes.case import Case, unknown
from sits.diagnose.resample import quantile
from sits.diagnose.steps import observed_ns

ID, LAYER = "kv_pressure", "framework"
DENIED_SHARE = 0.01
FULL_SHARE = 0.75


def kv_pressure(case: Case) -> Finding | None:
    """Find waits for KV blocks and recomputation after preemption."""
    if not case.lines:
        return unknown(
            ID, LAYER, "Whether the KV pool is too small is not known.", "no step rows were recorded"
        )
    steps = sum(len(line.start) for line in case.lines.values())
    denied = sum(float(line.column("denied").sum()) for line in case.lines.values())
    preempted = sum(float(line.column("preempted").sum()) for line in case.lines.values())
    if denied < DENIED_SHARE * steps and preempted == 0:
        return None
    waited = case.overlap(
        *case.span("queue"),
        lambda line: dict.fromkeys(("copy", "prepare", "kernel", "gap"), line.column("denied")),
    )
    again = case.overlap(
        *case.span("service"), lambda line: {"kernel": line.kernel_share(line.column("recomputed_tokens"))}
    )
    usage = np.sort(
        np.concatenate(
            [
                line.column("kv_used") / np.maximum(line.column("kv_total"), 1.0)
                for line in case.lines.values()
            ]
        )
    )
    span_s = observed_ns(case.lines.values()) / SECOND
    recomputed = sum(float(line.column("recomputed_tokens").sum()) for line in case.lines.values())
    scheduled_tokens = sum(
        float((line.prefill_tokens + line.column("decode_tokens")).sum()) for line in case.lines.values()
    )
    evidence = (
        Evidence(
            "denied_steps_share", denied / steps, 0.0, "share", "steps in which a request got no blocks"
        ),
        Evidence("preemptions_per_s", preempted / max(span_s, 1e-9), 0.0, "1/s"),
        Evidence(
            "recomputed_tokens_share",
            recomputed / max(scheduled_tokens, 1.0),
            0.0,
            "share",
            "of all tokens scheduled",
        ),
        Evidence("kv_usage_p95", quantile(usage, 0.95), FULL_SHARE, "share"),
        Evidence(
            "wait_for_blocks_ms", case.effect(waited).value, 0.0, "ms", "queued in steps that denied blocks"
        ),
        Evidence(
            "recompute_ms",
            case.effect(again).value,
            0.0,
            "ms",
            "recomputed tokens in the request's own steps",
        ),
    )
    return case.claim(
        ID,
        LAYER,
        {"queue": waited, "service": again},
        "The KV pool is too small; a tail request loses {ms} to waiting for blocks and to recomputation.",
        evidence,
        _changes(case),
    )


def _changes(case: Case) -> tuple[Change, ...]:
    emulated = case.emulated()
    used = min((float(e.memory.gpu_memory_utilization) for e in emulated), default=None)
    if used is not None and used < 0.9:
        why = "more blocks for the same weights"
        return (Change("engines.*.memory.gpu_memory_utilization", f"{used:g}", "0.9", why),)
    seqs = ", ".join(sorted({str(e.scheduler.max_num_seqs) for e in emulated})) or "unknown"
    return (
        Change(
            "engines.*.scheduler.max_num_seqs",
            seqs,
            "fewer",
            "fewer requests share the pool, none is preempted",
        ),
    )
