"""Long prompts of others ahead: everybody in their steps, and everybody waiting for those, stands behind them.

A prompt of more than `BUDGET_TOKENS` tokens to compute is *long*.  Its chunks are laid into the steps of its engine
between its `scheduled` and its first token, as many tokens a step as the step has, until it is used up.  Accounted to
another request of that engine: the kernel time of those chunks that falls between `queued` and its own end, as far
as the long prompt is longer than the budget *and* longer than the request's own prompt.  That is what a fair share of
each step would have spared it; a prompt behind equals, or behind many short ones, waits for work that no order of
work takes away, and is accounted nothing.

The budget is 2048 tokens: the default of chunked prefill in the engines of the field, and of `fleet.yaml`.
Deliberately absent: who was in which step (steps do not say; where two long prompts share steps, each is laid in alone).
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from sits.core.finding import Change, Evidence, Finding
from sits.diagnose.causes.case import Case, unknown
from sits.diagnose.columns import Floats, Ints
from sits.diagnose.decompose import NS_PER_MS
from sits.diagnose.resample import quantile
from sits.diagnose.steps import StepTime

ID, LAYER = "head_of_line_prefill", "framework"
BUDGET_TOKENS = 2048


def head_of_line_prefill(case: Case) -> Finding | None:
    """Find time that requests spent behind other requests' long prompts."""
    if not case.lines:
        return unknown(
            ID, LAYER, "Whether prompts block each other is not known.", "no step rows were recorded"
        )
    fresh = np.maximum(case.column("prompt_tokens").astype(np.float64) - case.column("cached_tokens"), 0.0)
    blocked = {name: np.zeros(case.n) for name in ("queue", "service")}
    for name, line in case.lines.items():
        mine = np.flatnonzero(case.engine == name)
        spans = {span: tuple(at[mine] for at in ends) for span, ends in case.engine_spans().items()}
        for span, ns in _behind(line, spans, fresh[mine]):
            blocked[span][mine] += ns
    long_ms, steps, long = _long_steps(case)
    old = sorted({str(e.scheduler.max_num_batched_tokens) for e in case.emulated()}) or ["unknown"]
    share = float(np.mean(fresh > BUDGET_TOKENS))
    return case.claim(
        ID,
        LAYER,
        blocked,
        "Long prompts fill the steps of an engine; a tail request stands {ms} behind those of others.",
        (
            Evidence(
                "long_prompts_share",
                share,
                None,
                "share",
                f"requests with over {BUDGET_TOKENS} prompt tokens",
            ),
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
                "cut long prompts into chunks, so that others get their share of each step",
            ),
        ),
    )


class _Prompt(NamedTuple):
    """A long prompt laid into steps: kernel start, end (ns from the engine's first step) and its share of each step."""

    row: int
    tokens: float
    start: Floats
    end: Floats
    share: Floats


def _laid(line: StepTime, begin: Ints, until: Ints, fresh: Floats) -> Iterator[_Prompt]:
    """The long prompts of one engine, chunk by chunk."""
    for i in np.flatnonzero(fresh > BUDGET_TOKENS).tolist():
        first = int(np.searchsorted(line.end, begin[i] - line.origin_ns, side="right"))
        last = int(np.searchsorted(line.start, until[i] - line.origin_ns, side="left"))
        taken = np.minimum(np.cumsum(line.prefill_tokens[first:last]), fresh[i])
        chunk = np.diff(taken, prepend=0.0)
        steps = first + np.flatnonzero(chunk > 0)
        if len(steps):
            kernel = np.maximum(line.kernel_ns[steps], 1.0)
            share = np.minimum(line.cost.prefill_ns * chunk[steps - first] / kernel, 1.0)
            yield _Prompt(i, float(fresh[i]), line.end[steps] - line.kernel_ns[steps], line.end[steps], share)


def _behind(
    line: StepTime, spans: dict[str, tuple[Ints, ...]], fresh: Floats
) -> Iterator[tuple[str, Floats]]:
    """For each long prompt and span: (span, (m,) ns that each request of this engine stood behind it in that span)."""
    begin, until = spans["service"]
    order = {name: np.argsort(start, kind="stable") for name, (start, _) in spans.items()}
    starts = {name: spans[name][0][order[name]] - line.origin_ns for name in spans}
    longest = {name: int((end - start).max(initial=0)) for name, (start, end) in spans.items()}
    for prompt in _laid(line, begin, until, fresh):
        for name, (start, end) in spans.items():
            low = np.searchsorted(starts[name], prompt.start[0] - longest[name])
            near = order[name][low : np.searchsorted(starts[name], prompt.end[-1])]
            a, b = ((at[near] - line.origin_ns)[:, None] for at in (start, end))
            ns = np.maximum(np.minimum(b, prompt.end) - np.maximum(a, prompt.start), 0.0) @ prompt.share
            fair = np.maximum(fresh[near], BUDGET_TOKENS)
            found = np.zeros(len(fresh))
            found[near] = ns * np.maximum(1.0 - fair / prompt.tokens, 0.0)
            found[prompt.row] = 0.0
            yield name, found


def _long(line: StepTime) -> Floats:
    return line.kernel_ns[line.prefill_tokens > BUDGET_TOKENS]


def _long_steps(case: Case) -> tuple[float, int, int]:
    """P99 of the kernel time of long steps (ms), number of steps, number of long steps."""
    long = np.sort(np.concatenate([_long(line) for line in case.lines.values()]))
    steps = sum(len(line.start) for line in case.lines.values())
    return (quantile(long, 0.99) / NS_PER_MS if len(long) else 0.0), steps, len(long)


def _largest(case: Case) -> float:
    return max(float(line.prefill_tokens.max()) for line in case.lines.values())
