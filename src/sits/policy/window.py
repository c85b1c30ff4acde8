"""The batching window in front of one engine: hold requests for company, or send now.

Knows: how many are waiting, since when the oldest waits, how many calls are under way, and what `policy.pace` has learnt.
Rules: a full batch goes at once; nobody waits longer than `high` (`base` when fixed); `none` never holds.

`fixed`   base
`free`    nothing while the engine is free, `high` while a call is under way: sent earlier, it would wait there as well, and
          not for company.  What a server with a dynamic batcher does inside (Triton with max_queue_delay 0).
`fill`    max_batch / lambda, the time a batch takes to fill at lambda arrivals a second, at least `low`; where that is beyond
          `high` no batch fills however long one waits, so it is `low`: few arrivals wait least.  Before the first gap was seen, `base`.
`burst`   base * stretch; the stretch is times 1.5 after each rise of the rate, times 0.7 after each fall, 1 after three quiet
          checks.  (The published rule.  A rise fills batches sooner, so for latency its sign is wrong; see the decision.)
`slack`   until the oldest request's deadline less the time the next larger batch takes, fixed + item * (n + 1): the largest batch
          whose predicted finish still meets it (LazyBatching, arXiv 2010.13103).

`scale` corrects the last four by what was seen of the 99th percentile (`feedback`).  A window that is too long and one
that is too short for the engine to keep up both show as a P99 over the objective; which one it is, the share of the wait
tells.

A window is for engines that batch by call (embeddings, rerank, static batching).  In front of a continuous
batching engine it only adds its own length to every answer; `predict.window` says how much.

Deliberately absent: timers and queues (the gateway holds the requests), and what is learnt from arrivals (`policy.pace`).
"""

from sits.core.decision import Decision
from sits.core.fleet_window import Window
from sits.core.units import SECOND

GAP_SHARE = 0.2
"""Weight of the newest gap in the running mean of arrival gaps (EWMA), the reference setting of the field."""

RISE, FALL, QUIET_CHECKS = 1.5, 0.7, 3

FEEDBACK_NS = 5 * SECOND
SHORTER, LONGER, AT_EASE = 0.7, 1.5, 0.8
"""How the scale moves when P99 is over the objective, and the share of the objective below which it comes back."""


def mean_gap(mean_ns: float, gap_ns: int) -> float:
    """The running mean of arrival gaps after one more gap, ns; `mean_ns` 0 = nothing seen yet.

    >>> mean_gap(0.0, 100), mean_gap(100.0, 200)
    (100.0, 120.0)
    """
    return float(gap_ns) if not mean_ns else mean_ns + GAP_SHARE * (gap_ns - mean_ns)


def reacted(config: Window, stretch: float, quiet: int, verdict: int) -> tuple[float, int]:
    """Stretch and quiet checks after a detector's verdict (+1 rise, -1 fall, 0), `base * stretch` inside the bounds.

    >>> reacted(Window(), 1.0, 9, 1), reacted(Window(), 1.0, 9, -1), reacted(Window(), 1.5, 2, 0)
    ((1.5, 0), (0.7, 0), (1.0, 3))
    """
    if not verdict:
        return (1.0, quiet + 1) if quiet + 1 >= QUIET_CHECKS else (stretch, quiet + 1)
    moved = stretch * (RISE if verdict > 0 else FALL)
    base = max(1, config.base)
    return min(config.high / base, max(config.low / base, moved)), 0


def feedback(config: Window, scale: float, p99_ns: float, wait_p99_ns: float, objective_ns: int) -> float:
    """The scale after a look at the recent P99 of held requests, `wait_p99_ns` of which was spent in the window.

    >>> feedback(Window(), 1.0, 120e6, 90e6, 100_000_000)         # the window's own doing
    0.7
    >>> feedback(Window(), 1.0, 120e6, 5e6, 100_000_000)          # small calls: the engine does not keep up
    1.5
    >>> feedback(Window(), 0.7, 70e6, 20e6, 100_000_000)
    1.0
    """
    if p99_ns > objective_ns:
        moved = scale * (SHORTER if 2 * wait_p99_ns > p99_ns else LONGER)
    elif p99_ns < AT_EASE * objective_ns:
        moved = min(1.0, scale * LONGER) if scale < 1.0 else max(1.0, scale * SHORTER)
    else:
        moved = scale
    most = config.high / max(1, config.low)
    return min(most, max(1.0 / most, moved))


def has_length(config: Window) -> bool:
    """Whether requests wait for a clock, for so long as `window_ns` says, and not for the engine.

    >>> [has_length(Window(kind="adaptive", reaction=reaction)) for reaction in ("fill", "burst", "free", "slack")]
    [True, True, False, False]
    """
    return config.kind == "fixed" or (config.kind == "adaptive" and config.reaction in ("fill", "burst"))


def window_ns(config: Window, rate_per_s: float, stretch: float = 1.0, scale: float = 1.0) -> int:
    """How long the oldest request may wait for company at most, at `rate_per_s` arrivals a second (0 = unknown), ns.

    >>> fill = Window(kind="adaptive", reaction="fill", max_batch=16)
    >>> window_ns(fill, 800.0), window_ns(fill, 10.0)
    (20000000, 5000000)
    >>> window_ns(Window(kind="adaptive", reaction="burst"), 10.0, stretch=1.5)
    30000000
    """
    if config.kind == "none":
        return 0
    if config.kind == "fixed":
        return config.base
    low, high, reaction = config.low, config.high, config.reaction
    if reaction == "burst":
        length = config.base * stretch
    elif reaction != "fill":
        length = float(high)
    elif not rate_per_s:
        length = float(config.base)
    else:
        length = config.max_batch / rate_per_s * SECOND
        if length > high:
            length = float(low)
    return min(high, max(low, round(length * scale)))


def held_until_ns(
    config: Window,
    length_ns: int,
    pending: int,
    oldest_ns: int,
    under_way: int = 0,
    deadline_ns: int = 0,
    fixed_ns: float = 0.0,
    item_ns: float = 0.0,
) -> int:
    """Until when to hold `pending` requests of which the oldest came at `oldest_ns`, in a window of `length_ns`.

    What is not in the future means: send now.  `deadline_ns`, `fixed_ns` and `item_ns` only matter to `slack`.
    """
    if pending >= config.max_batch:
        return oldest_ns
    reaction = config.reaction
    if config.kind != "adaptive" or reaction in ("fill", "burst"):
        return oldest_ns + length_ns
    if reaction == "free":
        return oldest_ns + length_ns if under_way else oldest_ns
    latest_ns = deadline_ns - round(fixed_ns + item_ns * (pending + 1))
    return min(oldest_ns + length_ns, max(oldest_ns, latest_ns))


def decide(
    config: Window,
    *,
    pending: int,
    oldest_ns: int,
    now_ns: int,
    rate_per_s: float = 0.0,
    stretch: float = 1.0,
    scale: float = 1.0,
    under_way: int = 0,
    deadline_ns: int = 0,
    fixed_ns: float = 0.0,
    item_ns: float = 0.0,
) -> Decision:
    """`flush` what is pending, or `hold` until `reasons["hold_until_ns"]`.

    `pending` counts the newest request too; `oldest_ns` is when the oldest of them began to wait, and `deadline_ns` when its
    answer should be there.
    """
    length_ns = window_ns(config, rate_per_s, stretch, scale)
    until_ns = held_until_ns(config, length_ns, pending, oldest_ns, under_way, deadline_ns, fixed_ns, item_ns)
    return Decision(
        policy="window",
        outcome="flush" if now_ns >= until_ns else "hold",
        reasons={
            "window_ns": length_ns,
            "hold_until_ns": until_ns,
            "pending": pending,
            "rate_per_s": rate_per_s,
            "stretch": stretch,
            "scale": scale,
            "under_way": under_way,
            "deadline_ns": deadline_ns,
            "fixed_ns": fixed_ns,
            "item_ns": item_ns,
        },
    )
