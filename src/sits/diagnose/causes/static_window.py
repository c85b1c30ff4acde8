"""A fixed batching window in front of an engine that batches by itself: it delays everybody and helps nobody.

A window shows as a wait before dispatch that nearly every request has and that never exceeds a bound: P99
over median is at most 2 for waits spread evenly over a window (1 when all wait it out), but 6.6 for an
exponential queue.  An engine batches continuously when prompts join steps in which others decode.

Beside the mean wait stands what `predict.window` expects of the configured window, at the arrival rate measured for
each engine (each has a window of its own) and Poisson arrivals: a mean over engines, weighted by their requests.  A window
that follows the engine (`free`, `slack`) has no length to expect anything of.

The whole `admit_window` time is accounted to it: without the window a request is sent at once.
"""

import numpy as np

from sits.core.breakpoints import API_RECV
from sits.core.finding import Change, Evidence, Finding
from sits.core.fleet_window import Window
from sits.core.units import SECOND
from sits.diagnose.causes.case import Case
from sits.diagnose.decompose import NS_PER_MS
from sits.diagnose.resample import quantile
from sits.policy.window import has_length, window_ns
from sits.predict.window import predict_window

ID, LAYER = "static_window", "framework"
WAITS_SHARE = 0.8
BOUND_RATIO = 2.5


def static_window(case: Case) -> Finding | None:
    """Find a window that holds nearly all requests for a bounded time."""
    wait = case.cut.stage("admit_window")
    ranked = np.sort(wait)
    p50, p99 = quantile(ranked, 0.5), quantile(ranked, 0.99)
    waiting = float(np.mean(wait > 0.02 * p99)) if p99 > 0 else 0.0
    configured = case.fleet.policy.window if case.fleet else None
    fixed = configured is not None and configured.kind == "fixed"
    shaped = waiting >= WAITS_SHARE and p99 <= BOUND_RATIO * p50
    if not (fixed or shaped):
        return None
    mixed = [
        np.mean(line.column("decode_tokens")[line.prefill_tokens > 0] > 0)
        for line in case.lines.values()
        if line.prefill_tokens.any()
    ]
    static = bool(mixed) and max(mixed) == 0.0
    evidence: tuple[Evidence, ...] = (
        Evidence("admit_window_ms_p50", p50 / NS_PER_MS, 0.0, "ms", "median wait before dispatch"),
        Evidence(
            "admit_window_ms_p99", p99 / NS_PER_MS, 0.0, "ms", "bounded: a queue would have a long tail"
        ),
        Evidence("requests_held_share", waiting, 0.0, "share"),
    )
    if configured is not None and has_length(configured):
        evidence += _expected(case, configured, float(wait.mean()))
    if mixed:
        note = "share of prompt steps in which others decode: the engine batches by itself"
        evidence += (Evidence("mixed_steps_share", float(max(mixed)), None, "share", note),)
    old = configured.kind if configured else "unknown"
    return case.claim(
        ID,
        LAYER,
        {"window": wait},
        "A batching window holds requests before dispatch; a tail request waits {ms} in it.",
        evidence,
        (
            Change(
                "policy.window.kind",
                old,
                "none",
                "the engine forms batches itself; waiting first only adds latency",
            ),
        ),
        doubt="no step mixes prompts with decoding, so the engine may need the window to form batches"
        if static
        else "",
    )


def _expected(case: Case, window: Window, mean_ns: float) -> tuple[Evidence, ...]:
    """The mean wait beside the predicted one; nothing where no engine has an arrival rate."""
    rates = {name: rate for name in sorted(set(case.engine.tolist())) if (rate := _rate_per_s(case, name))}
    if not rates:
        return ()
    weights = [int(np.sum(case.engine == name)) for name in rates]
    waits = [
        predict_window(rate, window_ns(window, rate), window.max_batch).wait_ns_mean
        for rate in rates.values()
    ]
    expected = float(np.average(waits, weights=weights))
    low, high = (f"{rate:.3g}" for rate in (min(rates.values()), max(rates.values())))
    note = (
        f"expected of at most {window.max_batch} requests a window and Poisson arrivals, "
        f"{low if low == high else f'{low} to {high}'} a second and engine"
    )
    return (Evidence("admit_window_ms_mean", mean_ns / NS_PER_MS, expected / NS_PER_MS, "ms", note),)


def _rate_per_s(case: Case, engine: str) -> float:
    """Arrivals a second of completed requests at one engine, within each run; 0 where there are not two in any."""
    mine = case.engine == engine
    arrived = [case.cut.at[mine & (case.cut.run == run), API_RECV] for run in np.unique(case.cut.run[mine])]
    span_ns = sum(int(t.max() - t.min()) for t in arrived)
    return sum(len(t) - 1 for t in arrived) * SECOND / span_ns if span_ns else 0.0
