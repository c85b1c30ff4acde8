"""Static against paged KV reservation on the same work, and what follows for figures others published.

A sequence that has s of at most L tokens now and will end with f holds

    static   L                     one contiguous place, as long as the longest answer allowed
    oracle   f                     one contiguous place of the right length, for somebody who knew it
    paged    ceil(s / B) * B       blocks of B, taken when needed

and needs s of that; the rest is waste.  Two comparisons are meaningful: what schemes hold for *the same* sequences,
and how many of them fit in the same pool.  Useful bytes of the same work are equal whatever the scheme, so a pair
(bytes, waste) of one scheme fixes what another scheme with its waste must take: that is what `check_pair` computes.

`over_time` averages over a service in which a request has its prompt from `scheduled` to `first token` and then gains
one token at a time until `last token`.  The expected waste of blocks is (B - 1) / 2 tokens a sequence, whatever its length.

Sources: reservation schemes as named in the PagedAttention paper (arXiv 2309.06180), which measured 20-38 % useful
memory without paging and above 96 % with it.

Deliberately absent: throughput, which memory alone does not give (the simulator does), and prefix sharing
(`sits.predict.blocktable` does it; its use is reported beside these figures).
"""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from sits.core.errors import ConfigError
from sits.predict.blocktable import BlockTable, Use

Ints = NDArray[np.int64]
SCHEMES = ("static", "oracle", "paged")


def held_tokens(scheme: str, now: int, final: int, limit: int, block_size: int = 16) -> int:
    """Tokens of room a sequence holds under a scheme.

    >>> [held_tokens(scheme, now=100, final=300, limit=2048) for scheme in SCHEMES]
    [2048, 300, 112]

    Raises:
        ConfigError: a scheme nobody knows, or lengths out of order.

    """
    if not 0 < now <= final <= limit:
        raise ConfigError(
            f"{now} of {final} tokens, at most {limit}",
            field="now",
            value=now,
            hint="0 < now <= final <= limit",
        )
    if scheme == "static":
        return limit
    if scheme == "oracle":
        return final
    if scheme == "paged":
        return -(-now // block_size) * block_size
    raise ConfigError(
        f"no scheme {scheme!r}", field="scheme", value=scheme, hint="one of " + ", ".join(SCHEMES)
    )


class OverTime(NamedTuple):
    """Time averages over a run: tokens present, tokens of room held, sequences in service, and the share wasted."""

    useful: float
    held: float
    sequences: float
    waste: float


def over_time(
    scheme: str,
    prompt: Ints,
    output: Ints,
    scheduled_ns: Ints,
    first_ns: Ints,
    last_ns: Ints,
    *,
    limit: int,
    block_size: int = 16,
) -> OverTime:
    """Averages over the time from the first schedule to the last token; requests that never ran (-1) take no part.

    >>> one = [np.array([value]) for value in (100, 200, 0, 100, 300)]           # prompt, output, times
    >>> seen = over_time("static", *one, limit=1000)
    >>> round(seen.useful, 1), seen.held, round(seen.waste, 3)          # (100*100 + 199.5*200) / 300
    (166.3, 1000.0, 0.834)
    >>> round(over_time("paged", *one, limit=1000).waste, 3)
    0.051
    """
    ran = last_ns >= 0
    useful = held = present = 0.0
    for p, o, s, f, e in zip(
        *(column[ran].tolist() for column in (prompt, output, scheduled_ns, first_ns, last_ns)), strict=True
    ):
        before, after = f - s, e - f
        useful += p * before + (p + (o - 1) / 2) * after
        held += held_tokens(scheme, p, p + o, limit, block_size) * before
        if scheme == "paged":
            held += _mean_rounded(p, p + o - 1, block_size) * after
        else:
            held += held_tokens(scheme, p, p + o, limit) * after
        present += e - s
    if not ran.any():
        return OverTime(0.0, 0.0, 0.0, 0.0)
    span = float(last_ns[ran].max() - scheduled_ns[ran].min()) or 1.0
    return OverTime(useful / span, held / span, present / span, 1.0 - useful / held if held else 0.0)


def _mean_rounded(low: int, high: int, block: int) -> float:
    """The mean of ceil(n / block) * block over n = low..high."""

    def total(n: int) -> int:  # sum of ceil(i / block) for i = 1..n
        full, rest = divmod(n, block)
        return block * full * (full + 1) // 2 + rest * (full + 1)

    return block * (total(high) - total(low - 1)) / (high - low + 1)


class Packed(NamedTuple):
    """How much of the same work fits into one pool at one moment.

    `static` and `oracle` are counts of sequences; `paged` is a table filled in order until one was refused, with its use.
    """

    static: int
    oracle: int
    paged: int
    use: Use


def pack(
    lengths: Sequence[int], *, pool_tokens: int, limit: int, block_size: int = 16, shared_prefix: int = 0
) -> Packed:
    """Put sequences of `lengths` tokens into a pool, in order, until the first does not fit.

    With `shared_prefix`, the first so many tokens of all are the same, and paged tables hold them once.

    >>> packed = pack([500] * 100, pool_tokens=16_384, limit=2048)
    >>> packed.static, packed.oracle, packed.paged, round(packed.use.waste, 4)
    (8, 32, 32, 0.0234)
    >>> pack([500] * 100, pool_tokens=16_384, limit=2048, shared_prefix=400).paged
    100
    """
    table = BlockTable(pool_tokens // block_size, block_size)
    system = list(range(shared_prefix))
    paged = 0
    for name, tokens in enumerate(lengths):
        if shared_prefix and tokens > shared_prefix:
            own = range(1_000_000 * (name + 1), 1_000_000 * (name + 1) + tokens - shared_prefix)
            fits = table.allocate(name, system + list(own))
        else:
            fits = table.allocate(name, tokens)
        if fits is None:
            break
        paged += 1
    sums = np.cumsum(np.asarray(lengths, np.int64))
    return Packed(
        static=min(len(lengths), pool_tokens // limit),
        oracle=int(np.searchsorted(sums, pool_tokens, side="right")),
        paged=paged,
        use=table.use(),
    )


class PairCheck(msgspec.Struct, frozen=True, kw_only=True):
    """What a published pair of (bytes, waste) says about itself.  All bytes in the unit they came in.

    Attributes:
        useful: useful bytes each side implies, bytes * (1 - waste); equal for equal work.
        consistent: whether they are, within `TOLERANCE`.
        static_needs: what the static side would take for the paged side's work at its own stated waste.
        static_waste: the waste its stated bytes mean for the paged side's work.
        paged_waste: the waste the paged side's stated bytes mean for the static side's work; None when they cannot hold it.
        block_waste: the waste blocks have at the stated length, (B - 1) / 2 over the length.
        tokens_at_waste: the length at which blocks would waste what was stated.
        batch_ratio: sequences more that fit in the same memory, static bytes over paged bytes.

    """

    useful: tuple[float, float]
    consistent: bool
    static_needs: float
    static_waste: float
    paged_waste: float | None
    block_waste: float
    tokens_at_waste: float
    batch_ratio: float


TOLERANCE = 0.02


def check_pair(
    static: float, static_waste: float, paged: float, paged_waste: float, *, tokens: int, block_size: int = 16
) -> PairCheck:
    """Hold a published pair against itself.

    The often quoted one: 48.2 GB of which 37 % wasted, against 19.6 GB of which 8 %, at 128K tokens in blocks of 16:

    >>> said = check_pair(48.2, 0.37, 19.6, 0.08, tokens=131_072)
    >>> [round(value, 1) for value in said.useful], said.consistent
    ([30.4, 18.0], False)
    >>> round(said.static_needs, 1), round(said.static_waste, 3), said.paged_waste
    (28.6, 0.626, None)
    >>> round(said.block_waste * 100, 4), said.tokens_at_waste, round(said.batch_ratio, 2)       # %, tokens, times
    (0.0057, 93.75, 2.46)

    Raises:
        ConfigError: no bytes, or a share outside 0..1.

    """
    for field, value in (("static", static), ("paged", paged), ("tokens", tokens)):
        if not (value > 0 and math.isfinite(value)):
            raise ConfigError(f"{value!r} is nothing", field=field, value=value, hint="give more than 0")
    for field, value in (("static_waste", static_waste), ("paged_waste", paged_waste)):
        if not 0 <= value < 1:
            raise ConfigError(f"{value!r} is no share", field=field, value=value, hint="give 0 to below 1")
    useful = (static * (1 - static_waste), paged * (1 - paged_waste))
    mean = (block_size - 1) / 2
    left = 1 - useful[0] / paged
    return PairCheck(
        useful=useful,
        consistent=abs(useful[0] - useful[1]) <= TOLERANCE * max(useful),
        static_needs=useful[1] / (1 - static_waste),
        static_waste=1 - useful[1] / static,
        paged_waste=left if left >= 0 else None,
        block_waste=mean / (tokens + mean),
        tokens_at_waste=mean / paged_waste if paged_waste else math.inf,
        batch_ratio=static / paged,
    )


def explain_pair(said: PairCheck, unit: str = "GB") -> Iterable[str]:
    """The check in sentences.

    >>> print(next(iter(explain_pair(check_pair(48.2, 0.37, 19.6, 0.08, tokens=131_072)))))
    Useful bytes must be equal for equal work, but are 30.4 and 18.0 GB.
    """
    first, second = said.useful
    if said.consistent:
        yield f"Useful bytes are equal ({first:.1f} and {second:.1f} {unit}): both may be the same work."
    else:
        yield f"Useful bytes must be equal for equal work, but are {first:.1f} and {second:.1f} {unit}."
        yield (
            f"The paged side's work at the static side's waste takes {said.static_needs:.1f} {unit}; "
            f"the bytes stated for it mean {said.static_waste:.1%} waste."
        )
        if said.paged_waste is None:
            yield "The bytes stated for the paged side cannot hold the static side's work at all."
        else:
            yield f"The bytes stated for the paged side mean {said.paged_waste:.1%} waste for the static side's work."
    yield (
        f"Blocks waste {said.block_waste:.4%} at that length; the share stated belongs to sequences of "
        f"{said.tokens_at_waste:.0f} tokens."
    )
    yield (
        f"The bytes alone give {said.batch_ratio:.2f} times the sequences; throughput grows less than that, "
        "for a larger batch makes each step longer."
    )
