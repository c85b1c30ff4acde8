"""What an engine may hold and schedule, read off its own figures: KV blocks, tokens in a block, seats, tokens in a step.

The engine's word comes first: an option given by hand, then the engine's metrics page or log, then what its recorded figures prove:

    blocks          every value of the KV usage gauge is (blocks used) / (usable blocks): the smallest N that makes all of them whole
    block size      prefix hits come in whole blocks (their greatest common divisor); and the books: blocks held, summed over
                    steps, equal the blocks the requests' lengths need, summed over their steps
    seats           the largest batch, proven when others waited while it was that large
    step tokens     the largest step, proven when several steps are exactly that large

What is only assumed says so (`sure` False) and why the assumption is harmless, or is not; what can be neither read nor assumed is refused.

Deliberately absent: reading files and the engine's log (`engine_facts` reads those texts).
"""

from collections.abc import Sequence
from math import gcd
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from sits.core.errors import ConfigError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

SIZES = (8, 16, 32, 64, 128, 256, 512)
BLOCKS_MOST = 4_000_000
STEP_TOKENS = 2048
FULL = 0.9
"""KV usage from which a pool is taken to be a limit."""


class Limit(msgspec.Struct, frozen=True, kw_only=True):
    """One limit: its value, where it comes from in words, and whether that proves it."""

    value: int
    source: str
    sure: bool


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of one engine, and the largest share of its KV pool it was seen to use."""

    blocks: Limit
    block_size: Limit
    max_num_seqs: Limit
    max_num_batched_tokens: Limit
    prefix_caching: bool
    kv_used_most: float

    def assumed(self) -> list[str]:
        """Sentences about what is not proven."""
        named = [(name, getattr(self, name)) for name in LIMITS]
        return [f"{name} = {limit.value}: {limit.source}" for name, limit in named if not limit.sure]


LIMITS = ("blocks", "block_size", "max_num_seqs", "max_num_batched_tokens")


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """What the recording shows: steps (batch size, scheduled tokens), scrapes (running, waiting, KV usage 0..1), prefix hits in tokens.

    `held` sums KV usage over steps; `lengths` are `(tokens when decoding starts, steps it decodes)` of the requests.
    """

    batch: "Floats"
    tokens: "Floats"
    running: "Floats"
    waiting: "Floats"
    usage: "Floats"
    hits: tuple[int, ...]
    held: float
    lengths: "NDArray[np.int64]"


def usable_blocks(usage: "Floats") -> int | None:
    """The smallest number of blocks that makes every usage a whole number of them; None when the values do not tell.

    >>> usable_blocks(np.array([2, 5, 7, 24, 31]) / 1023)
    1023
    """
    values = np.unique(usage[(usage > 0) & (usage <= 1)])
    if len(values) < 3:
        return None
    for k in range(1, 257):
        count = k / values[0]
        if count > BLOCKS_MOST:
            return None
        whole = round(float(count))
        used = values * whole
        if abs(count - whole) < 1e-4 * max(1, k) and np.abs(used - np.round(used)).max() < 1e-3:
            return whole
    return None


def block_size_by_hits(hits: Sequence[int]) -> int | None:
    """Tokens in a block, from prefix hits: their greatest common divisor, once four different ones agree on a known size.

    >>> block_size_by_hits([128, 384, 896, 640, 128])
    128
    """
    if len(set(hits)) < 4:
        return None
    found = gcd(*hits)
    return found if found in SIZES else None


def block_size_by_books(seen: Seen, blocks: int) -> int | None:
    """Tokens in a block, from the sum of blocks held: the size whose books come out closest, within a quarter."""
    if not len(seen.lengths) or seen.held <= 0:
        return None
    best, least = None, 0.25
    start, steps = seen.lengths[:, 0], seen.lengths[:, 1]
    for size in SIZES:
        # Mean over the decoding steps; a block is taken whole when its first token is.
        middle = start + steps / 2
        needed = float((steps * (middle / size + 0.5)).sum())
        off = abs(np.log(seen.held * blocks / needed)) if needed else np.inf
        if off < least:
            best, least = size, off
    return best


def limits(seen: Seen, given: dict[str, Limit], prefix_caching: bool | None = None) -> Limits:
    """The limits, `given` ones (by hand, or the engine's word) first.

    Raises:
        ConfigError: the KV pool can be neither read nor derived.

    """
    most = float(seen.usage.max()) if len(seen.usage) else float("nan")
    blocks = given.get("blocks") or _blocks(seen)
    return Limits(
        blocks=blocks,
        block_size=given.get("block_size") or _block_size(seen, blocks.value, most),
        max_num_seqs=given.get("max_num_seqs") or _seats(seen),
        max_num_batched_tokens=given.get("max_num_batched_tokens") or _step_tokens(seen),
        prefix_caching=bool(seen.hits) if prefix_caching is None else prefix_caching,
        kv_used_most=most,
    )


def _blocks(seen: Seen) -> Limit:
    found = usable_blocks(seen.usage)
    if found is None:
        raise ConfigError(
            f"how many KV blocks the engine has is not told: {len(np.unique(seen.usage))} different values of its KV usage",
            field="blocks",
            hint="give --metrics FILE (a page of the engine's /metrics, with vllm:cache_config_info), --engine-log FILE or "
            "--set blocks=N",
        )
    return Limit(value=found, source="every value of the KV usage gauge is a multiple of 1/N", sure=True)


def _block_size(seen: Seen, blocks: int, most: float) -> Limit:
    hits, books = block_size_by_hits(seen.hits), block_size_by_books(seen, blocks)
    if hits is not None:
        return Limit(value=hits, source="greatest common divisor of prefix hits", sure=True)
    if books is not None:
        return Limit(
            value=books, source="blocks held over all steps against the requests' lengths", sure=True
        )
    if not most < FULL:
        raise ConfigError(
            "how many tokens a KV block holds is not told, and the pool was full at times, so it matters",
            field="block_size",
            hint="give --metrics FILE or --set block_size=16",
        )
    return Limit(
        value=16,
        source=f"assumed, vLLM's default on GPUs (128 on CPUs); at most {most:.0%} of the pool was used, so it hardly matters",
        sure=False,
    )


def _seats(seen: Seen) -> Limit:
    most = int(seen.batch.max())
    held = (seen.running >= most) & (seen.waiting > 0)
    if held.any():
        return Limit(
            value=most, source=f"largest batch, with others waiting in {int(held.sum())} scrapes", sure=True
        )
    return Limit(
        value=max(most, 128),
        source=f"assumed: nobody was seen waiting for a seat (largest batch {most}); a lower limit would show at loads above the recorded ones",
        sure=False,
    )


def _step_tokens(seen: Seen) -> Limit:
    most = int(seen.tokens.max())
    if (seen.tokens == most).sum() >= 3 and most >= 4 * np.median(seen.tokens):
        return Limit(value=most, source="several steps of exactly this size, none larger", sure=True)
    size = STEP_TOKENS
    while size < most:
        size *= 2
    return Limit(
        value=size,
        source=f"assumed (largest step seen: {most} tokens, so the limit was hardly ever reached)",
        sure=False,
    )
