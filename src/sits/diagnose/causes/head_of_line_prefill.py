"""Long prompts of others in the same steps: everybody in the batch, and everybody waiting for it, stands behind
them.

A step with more than `BUDGET_TOKENS` prompt tokens is *long*.  Accounted to a request: the kernel time of
long steps' tokens above the budget that falls between `queued` and its end, less what its own tokens above
the budget cost.  With the budget kept, that work would be done in later steps, between which others get their
turn.

The budget is 2048 tokens: the default of chunked prefill in the engines of the field, and of `fleet.yaml`.
"""

import numpy as np

from sits.core.finding import Change, Evidence, Finding
from sits.diagnose.causes.case import Case, unknown
from sits.diagnose.columns import Floats
from sits.diagnose.decompose import NS_PER_MS
from sits.diagnose.resample import quantile
from sits.diagnose.steps import StepTime

ID, LAYER = "head_of_line_prefill", "framework"
BUDGET_TOKENS = 2048


def head_of_line_prefill(case: Case) -> Finding | None:
    """Find time that requests spent behind other requests' prompts."""
    if not case.lines:
        return unknown(
            ID, LAYER, "Whether prompts block each other is not known.", "no step rows were recorded"
        )
    start, end = case.engine_window()
    behind = case.overlap(start, end, lambda line: {"kernel": line.kernel_share(_above(line.prefill_tokens))})
    fresh = np.maximum(case.column("prompt_tokens").astype(np.float64) - case.column("cached_tokens"), 0.0)
    per_token = np.array([_per_token(case, name) for name in case.engine])
    blocked = np.maximum(behind - per_token * _above(fresh), 0.0)
    long_ms, steps, long = _long_steps(case)
    old = sorted({str(e.scheduler.max_num_batched_tokens) for e in case.emulated()}) or ["unknown"]
    return case.claim(
        ID,
        LAYER,
        blocked,
        "Steps filled with long prompts block the others; a tail request stands {ms} behind them.",
        (
            Evidence(
                "long_steps_share",
                long / steps,
                0.0,
                "share",
                f"steps with over {BUDGET_TOKENS} prompt tokens",
            ),
            Evidence("long_step_ms_p99", long_ms, None, "ms", "kernel time of long steps"),
            Evidence("prefill_tokens_max", _largest(case), float(BUDGET_TOKENS), "tokens", "in one step"),
        ),
        (
            Change(
                "engines.*.scheduler.max_num_batched_tokens",
                ", ".join(old),
                str(BUDGET_TOKENS),
                "cut long prompts into chunks, so that a step stays short",
            ),
        ),
    )


def _above(tokens: Floats) -> Floats:
    return np.maximum(tokens - BUDGET_TOKENS, 0.0)


def _per_token(case: Case, engine: str) -> float:
    return case.lines[engine].cost.prefill_ns if engine in case.lines else 0.0


def _long(line: StepTime) -> Floats:
    return line.kernel_ns[line.prefill_tokens > BUDGET_TOKENS]


def _long_steps(case: Case) -> tuple[float, int, int]:
    """P99 of the kernel time of long steps (ms), number of steps, number of long steps."""
    long = np.sort(np.concatenate([_long(line) for line in case.lines.values()]))
    steps = sum(len(line.start) for line in case.lines.values())
    return (quantile(long, 0.99) / NS_PER_MS if len(long) else 0.0), steps, len(long)


def _largest(case: Case) -> float:
    return max(float(line.prefill_tokens.max()) for line in case.lines.values())
