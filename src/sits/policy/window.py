"""The batching window in front of one engine: hold requests for company, or send now.

Knows: how many are waiting, since when the oldest waits, and the arrival rate as estimated so far.
Rules: a full batch goes at once; nobody waits longer than the window; `none` never holds.

`fixed`:     window = base
`adaptive`:  fill = max_batch / lambda, the time a batch takes to fill at lambda arrivals a second;
             window = max(low, fill) while fill <= high.  Beyond it no batch fills however long one waits, so the
             window is low: few arrivals wait least.  Before the first gap was seen, window = base within the bounds.

A window is for engines that batch by call (embeddings, rerank, static batching).  In front of a continuous
batching engine it only adds its own length to every answer; `predict.window` says how much.

Deliberately absent: timers and queues (the gateway holds the requests), and feedback from P99.
"""

from sits.core.decision import Decision
from sits.core.fleet import Window
from sits.core.units import SECOND

GAP_SHARE = 0.2
"""Weight of the newest gap in the running mean of arrival gaps (EWMA), the reference setting of the field."""


def mean_gap(mean_ns: float, gap_ns: int) -> float:
    """The running mean of arrival gaps after one more gap, ns; `mean_ns` 0 = nothing seen yet.

    >>> mean_gap(0.0, 100), mean_gap(100.0, 200)
    (100.0, 120.0)
    """
    return float(gap_ns) if not mean_ns else mean_ns + GAP_SHARE * (gap_ns - mean_ns)


def window_ns(config: Window, rate_per_s: float) -> int:
    """How long the oldest request may wait for company at `rate_per_s` arrivals a second (0 = unknown), ns.

    >>> window_ns(Window(kind="adaptive", max_batch=16), 800.0)
    20000000
    >>> window_ns(Window(kind="adaptive", max_batch=16), 10.0)
    5000000
    """
    if config.kind == "none":
        return 0
    if config.kind == "fixed":
        return config.base
    if not rate_per_s:
        return min(config.high, max(config.low, config.base))
    fill_ns = config.max_batch / rate_per_s * SECOND
    return max(config.low, round(fill_ns)) if fill_ns <= config.high else config.low


def decide(config: Window, *, pending: int, oldest_ns: int, rate_per_s: float, now_ns: int) -> Decision:
    """`flush` what is pending, or `hold` until `reasons["hold_until_ns"]`.

    `pending` counts the newest request too; `oldest_ns` is when the oldest of them began to wait.
    """
    length_ns = window_ns(config, rate_per_s)
    until_ns = oldest_ns + length_ns
    full = pending >= config.max_batch
    outcome = "flush" if full or now_ns >= until_ns else "hold"
    return Decision(
        policy="window",
        outcome=outcome,
        reasons={
            "window_ns": length_ns,
            "hold_until_ns": until_ns,
            "pending": pending,
            "rate_per_s": rate_per_s,
        },
    )
