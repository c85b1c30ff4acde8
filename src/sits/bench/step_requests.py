"""Which requests an engine's step prefilled: a step log says how many chunks and tokens, not whose.

An engine that takes requests first come first served prefills them in the order they came, so the log can be walked beside them: a step
of k chunks and T tokens holds the next k requests, the last of them perhaps cut, and their tokens must sum to T.  Where they do not
(two requests changed places on their way), the shortest stretch of steps is taken after which the sums agree again, and its requests
are shared out by tokens.

What is told for each step is the work of attention in prefill, sum over its chunks of

    q * (context + q / 2)        q prompt tokens computed, `context` those in front of them, from the prefix cache or an earlier chunk

Deliberately absent: engines that take requests in another order; where nothing fits, a step's tokens see what the run's tokens see on average.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
STRETCH_MOST = 64


class _Place(NamedTuple):
    """Where the walk stands: the next request, and how many of its tokens were computed before."""

    request: int
    computed: int


def prompt_kv(chunks: Floats, tokens: Floats, prompt: Ints, cached: Ints) -> Floats:
    """The sum of `q * (context + q / 2)` of each step; requests in order of coming, `prompt` with the `cached` tokens.

    >>> prompt_kv(np.array([2.0, 0, 1]), np.array([12.0, 0, 2]), np.array([10, 6]), np.array([0, 2]))
    array([56.,  0., 10.])
    """
    new, seen = (prompt - cached).tolist(), cached.tolist()
    steps = [(int(k), int(t)) for k, t in zip(chunks, tokens, strict=True)]
    found = np.where(tokens > 0, np.nan, 0.0)
    place, at = _Place(0, 0), 0
    while at < len(steps):
        if not steps[at][0]:
            at += 1
            continue
        one = _step(*steps[at], place, new, seen)
        if one is not None:
            found[at], place = one
            at += 1
            continue
        stretch = _stretch(steps, at, place, new)
        if stretch is None:
            break
        end, after = stretch
        work = sum(_work(new[i], seen[i]) for i in range(place.request, after.request))
        share = tokens[at:end] / tokens[at:end].sum()
        found[at:end] = work * share
        place, at = after, end
    return _filled(found, tokens, sum(map(_work, new, seen)) / max(1, sum(new)))


def _work(new: float, context: float) -> float:
    return new * (context + new / 2)


def _step(
    chunks: int, tokens: int, place: _Place, new: list[int], seen: list[int]
) -> tuple[float, _Place] | None:
    """The work of one step and where the walk stands after it; None when the next requests cannot be in it."""
    work, left, computed = 0.0, tokens, place.computed
    for request in range(place.request, place.request + chunks):
        if request >= len(new) or left <= 0:
            return None
        taken = min(left, new[request] - computed)
        work += _work(taken, seen[request] + computed)
        left -= taken
        if computed + taken < new[request]:
            whole = request == place.request + chunks - 1 and not left
            return (work, _Place(request, computed + taken)) if whole else None
        computed = 0
    return None if left else (work, _Place(place.request + chunks, 0))


def _stretch(
    steps: list[tuple[int, int]], at: int, place: _Place, new: list[int]
) -> tuple[int, _Place] | None:
    """The first step after `at` up to which steps and whole requests have the same sums, and where the walk stands there."""
    chunks = tokens = 0
    for end in range(at, min(len(steps), at + STRETCH_MOST)):
        chunks, tokens = chunks + steps[end][0], tokens + steps[end][1]
        after = place.request + chunks
        if after <= len(new) and tokens == sum(new[place.request : after]) - place.computed:
            return end + 1, _Place(after, 0)
    return None


def _filled(found: Floats, tokens: Floats, mean: float) -> Floats:
    return np.where(np.isfinite(found), found, tokens * mean)
