"""Counts of one arm's requests, and what can be read from them: enough to judge it, small enough to keep.

Rules: what was answered, failed or refused after an arm was assigned is a request of that arm; a client that left is none.  Not
answered = an error: that callers send nonsense happens to all arms alike, and arms are compared at the same time.
Latencies are counted in buckets 2 % apart, so a quantile read from them is at most 2 % too high.  What has no latency (it
failed, or was not streamed where the first token counts) is not timed.

Deliberately absent: rows themselves, and times of day.
"""

import math
from collections.abc import Iterable, Sequence

import msgspec

from sits.policy.sequential import rank_bounds, share_bounds

GROWTH = 1.02
TAIL = 0.01
"""What may be slower than the objective: P99 says one in a hundred."""

_LOG = math.log(GROWTH)

Row = tuple[str, str, int]
"""Arm, outcome, latency in ns (0 = none)."""


class Counts(msgspec.Struct, kw_only=True):
    """One arm's requests so far.  `slow` of the `timed` took longer than the objective; `buckets` are their latencies."""

    requests: int = 0
    errors: int = 0
    timed: int = 0
    slow: int = 0
    loads: int = 0
    loads_failed: int = 0
    buckets: dict[int, int] = {}


class Span(msgspec.Struct, frozen=True):
    """A number with the bounds that hold however often one looks; None = nothing bounds it, or nothing was seen."""

    value: float | None
    low: float | None
    high: float | None


def tally(rows: Iterable[Row], objective_ns: int) -> dict[str, Counts]:
    """The counts of `rows` by arm."""
    found: dict[str, Counts] = {}
    for arm, outcome, latency_ns in rows:
        if not arm or outcome == "cancelled":
            continue
        counts = found.get(arm)
        if counts is None:
            counts = found[arm] = Counts(buckets={})
        counts.requests += 1
        if outcome != "completed":
            counts.errors += 1
        elif latency_ns > 0:
            counts.timed += 1
            counts.slow += latency_ns > objective_ns
            bucket = math.ceil(math.log(latency_ns) / _LOG)
            counts.buckets[bucket] = counts.buckets.get(bucket, 0) + 1
    return found


def added(parts: Sequence[Counts]) -> Counts:
    """The sum of several counts."""
    buckets: dict[int, int] = {}
    for part in parts:
        for bucket, n in part.buckets.items():
            buckets[bucket] = buckets.get(bucket, 0) + n
    return Counts(
        requests=sum(part.requests for part in parts),
        errors=sum(part.errors for part in parts),
        timed=sum(part.timed for part in parts),
        slow=sum(part.slow for part in parts),
        loads=sum(part.loads for part in parts),
        loads_failed=sum(part.loads_failed for part in parts),
        buckets=buckets,
    )


def p99(counts: Counts, alpha: float) -> Span:
    """P99 in ns, and its bounds: the latencies whose ranks bound it.

    >>> p99(Counts(), 0.05)
    Span(value=None, low=None, high=None)
    """
    if not counts.timed:
        return Span(None, None, None)
    few, many = rank_bounds(counts.timed, TAIL, alpha)
    return Span(
        _ranked(counts, math.floor(counts.timed * TAIL) + 1),
        _ranked(counts, many + 1),
        _ranked(counts, few) if few else None,
    )


def share(bad: int, n: int, alpha: float) -> Span:
    """The share of `bad` among `n`."""
    if not n:
        return Span(None, None, None)
    return Span(bad / n, *share_bounds(bad, n, alpha))


def _ranked(counts: Counts, rank: int) -> float | None:
    """The latency of the `rank`-th slowest, ns (the upper end of its bucket); None when there are fewer."""
    for bucket in sorted(counts.buckets, reverse=True):
        rank -= counts.buckets[bucket]
        if rank <= 0:
            return GROWTH**bucket
    return None
