"""The board as plain text: for pipes, for CI, and the parts of the live screen that are text there too.

Rules: every number has its unit; percentiles are shown as the bucket they lie in (`100-250` ms); what is not known is `-`, never 0.  Words carry what
colour may repeat.

Deliberately absent: colour and layout of the live screen (`screen`).
"""

from collections.abc import Sequence

from sits.app.top.frame import EngineLine, Frame, Span
from sits.policy.burn_rate import P99_BUDGET

BARS = "▁▂▃▄▅▆▇█"
COLUMNS = (
    "engine",
    "state",
    "in flight",
    "tokens",
    "req/s",
    "fail/s",
    "TTFT P50 ms",
    "P95",
    "P99",
    "e2e P99 ms",
    "late",
    "KV",
    "wait",
)
DETAILS = 6
FEW = 100
"""Answers below which one late one is more than the hundredth that may be."""


def page(frame: Frame, objective: str = "") -> str:
    """All of it, as lines."""
    rows = [COLUMNS, *(cells(one) for one in frame.engines)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(COLUMNS))]
    lines = [title(frame), slo(frame, objective), totals(frame), ""]
    lines += [
        "  ".join(
            cell.ljust(n) if i < 2 else cell.rjust(n)
            for i, (cell, n) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    if frame.outcomes:
        lines += ["", f"outcomes  {outcomes(frame)}"]
    lines += [f"{name:<9} {text}" for name, text in frame.other.items()]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def scope(frame: Frame) -> str:
    """What a single board judges, as a line of its own; nothing where it judges nothing."""
    if frame.state != "live":
        return ""
    few = "too few to tell a P99; " if frame.judged < FEW else ""
    count = f"{frame.judged:,} answer{'' if frame.judged == 1 else 's'}"
    return f"\njudged by {count} of {_short_time(frame.window_s)} between two looks; {few}--interval says how long\n"


def title(frame: Frame) -> str:
    """Whose board it is, and how fresh."""
    parts = [frame.address]
    parts += [f"generation {frame.generation}"] * bool(frame.generation)
    parts += [f"{frame.workers} worker{'' if frame.workers == 1 else 's'}"] * bool(frame.workers)
    if frame.state == "lost":
        parts.append(f"LOST for {frame.lost_s:.0f} s: {frame.trouble}")
    elif frame.state == "waiting":
        parts.append("waiting for a second look")
    else:
        parts.append(f"the last {_short_time(frame.window_s)}")
    parts += ["counters began anew"] * frame.restarted
    return "  ".join(parts)


def slo(frame: Frame, objective: str) -> str:
    """The objective and how fast its budget is spent."""
    named = f"objective {objective}" if objective else "objective"
    if frame.missed is None:
        state = "nothing to judge"
    else:
        word = "met" if frame.missed <= P99_BUDGET else "MISSED"
        state = f"{word}: {frame.missed:.2%} of {frame.judged:,} late (1 % allowed)"
    burns = ", ".join(
        f"{burn.rate:.1f}x over {_time(burn.seen_s)}" for burn in frame.burns if burn.rate is not None
    )
    return f"{named}  {state}" + (f"  latency burn {burns}" if burns else "")


def totals(frame: Frame) -> str:
    """The gateway as a whole."""
    parts = [
        f"{frame.req_s:,.1f} req/s",
        f"{frame.token_s:,.0f} tokens/s",
        errors(frame),
        f"TTFT P99 {ms(frame.ttft, 2)} ms",
        f"e2e P99 {ms(frame.e2e, 2)} ms",
        f"{frame.connections:,} connections",
    ]
    parts += [f"{frame.dropped:,} ROWS DROPPED"] * bool(frame.dropped)
    return "  ".join(parts)


def errors(frame: Frame) -> str:
    """All errors, and how many of them are in no engine's row."""
    beside = frame.error_s - sum(one.error_s for one in frame.engines)
    apart = f" ({beside:,.2f} refused or unsent)"
    return f"{frame.error_s:,.2f} errors/s" + apart * (beside >= 0.005)


def outcomes(frame: Frame | EngineLine) -> str:
    """How requests ended, the most frequent first."""
    named = list(frame.outcomes.items())
    more = f"  and {len(named) - DETAILS} more kinds" if len(named) > DETAILS else ""
    return "  ".join(f"{name} {rate:,.2f}/s" for name, rate in named[:DETAILS]) + more


def cells(engine: EngineLine) -> tuple[str, ...]:
    """The row of an engine."""
    return (
        engine.name,
        engine.state,
        f"{engine.inflight:,}",
        f"{engine.inflight_tokens:,}",
        f"{engine.req_s:,.1f}",
        f"{engine.error_s:,.2f}" if engine.error_s else "0",
        *(ms(engine.ttft, i) for i in range(3)),
        ms(engine.e2e, 2),
        "-" if engine.missed is None else f"{engine.missed:.1%}",
        "-" if engine.kv_use is None else f"{engine.kv_use:.0%}",
        "-" if engine.waiting is None else f"{engine.waiting:,.0f}",
    )


def ms(spans: Sequence[Span], level: int) -> str:
    """The bucket of a percentile, ms.

    >>> ms([Span(2.5, 10000.0)], 0), ms([Span(120000.0, None)], 0), ms([], 0)
    ('2.5-10,000', '>120,000', '-')
    """
    if level >= len(spans):
        return "-"
    low, high = spans[level].low_ms, spans[level].high_ms
    return f">{low:,.0f}" if high is None else f"{_short(low)}-{_short(high)}"


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def spark(values: Sequence[float], width: int) -> str:
    """A history, the newest on the right; the highest is a full mark, nothing at all is a low one.

    >>> spark([0, 1, 2, 4], 6)
    '  ▁▂▄█'
    """
    shown = list(values[-width:])
    most = max(shown, default=0.0)
    marks = [
        BARS[0] if value <= 0 or not most else BARS[min(7, int(value / most * 7.999))] for value in shown
    ]
    return "".join(marks).rjust(width)


def _short_time(seconds: float) -> str:
    """Whole seconds, but for the first ones."""
    return f"{seconds:.1f} s" if seconds < 3 else f"{seconds:.0f} s"


def _time(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"
