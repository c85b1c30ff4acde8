"""A fingerprint: what a model answers to one fixed prompt, and how far two such answers lie apart.

A probe asks for a few tokens at temperature 0 and, for each, the log-probabilities of the likeliest candidates.  Which adapter
was applied shows in those numbers long before it shows in the text: two adapters of one base often choose the same token, hardly ever
with the same probabilities.

```
distance = mean over the compared candidates of |log p - log q|, in nats
```
Compared are the positions up to and including the first at which the chosen tokens differ (behind it the contexts differ, and so
would anything).  A candidate that only one side lists counts by how much it must move to fall off that side's list: the least
change that explains what is seen.  The same weights give 0 again on the same machine; another batch size or card moves it by the
resolution of the logits (bfloat16: 2^-8 of their size).

As text: `fp1:`, the digest of the probe's prompt, and the numbers packed (24 bits of a token's CRC, thousandths of a nat).
Two prompts, two fingerprints that cannot be compared.

Deliberately absent: log-probabilities of the *prompt*.  They would need no generated token, but `echo` with `logprobs` reads past
its rows in vLLM 0.32 when adapters and other requests share a batch, and kills the engine.
"""

import base64
import binascii
import hashlib
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from sits.core.errors import CallerError

PREFIX = "fp1"
CANDIDATES = 5
"""Candidates asked for at each position; what OpenAI's own API allows at most."""

POSITIONS_MAX = 16


class Position(msgspec.Struct, frozen=True, array_like=True):
    """One generated token: the CRC of the chosen one, and of each candidate with its log-probability (nats, negative)."""

    chosen: int
    candidates: tuple[tuple[int, float], ...]


class Fingerprint(msgspec.Struct, frozen=True, array_like=True):
    """The answer to one probe; `probe` names the prompt."""

    probe: str
    positions: tuple[Position, ...]

    def __str__(self) -> str:
        packed = b"".join(_packed(position) for position in self.positions)
        return f"{PREFIX}:{self.probe}:{base64.urlsafe_b64encode(packed).decode().rstrip('=')}"


def probe_name(prompt: str) -> str:
    """What names a probe: eight hexadecimal digits of its prompt's SHA-256.

    >>> probe_name("The capital of France is")
    'bbaff4d2'
    """
    return hashlib.sha256(prompt.encode()).hexdigest()[:8]


def fingerprint(prompt: str, tokens: Sequence[str], tops: Sequence[Mapping[str, float]]) -> Fingerprint:
    """The fingerprint of an answer: its tokens, and at each the candidates with their log-probabilities.

    >>> fingerprint("hi", ["a"], [{"a": -0.5, "b": -1.25}]).positions[0].candidates[0][1]
    -0.5
    """
    positions = (
        Position(_crc(token), tuple((_crc(text), _rounded(nats)) for text, nats in top.items()))
        for token, top in zip(tokens[:POSITIONS_MAX], tops, strict=False)
    )
    return Fingerprint(probe_name(prompt), tuple(positions))


def read_fingerprint(text: str) -> Fingerprint:
    """The fingerprint that `str()` wrote.

    Raises:
        CallerError: it is none.

    """
    prefix, _, rest = text.partition(":")
    probe, _, packed = rest.partition(":")
    positions: tuple[Position, ...] = ()
    if prefix == PREFIX and len(probe) == 8:
        try:
            data = base64.b64decode(packed + "=" * (-len(packed) % 4), altchars=b"-_", validate=True)
            positions = tuple(_unpacked(data))
        except (ValueError, binascii.Error):
            positions = ()
    if not positions:
        raise CallerError(
            f"{text[:40]!r} is not a fingerprint",
            value=text[:80],
            hint="print one: sitsctl adapters fingerprint",
        )
    return Fingerprint(probe, positions)


def distance(one: Fingerprint, other: Fingerprint) -> float:
    """How far two answers to the same probe lie apart, in nats; infinite when they cannot be compared.

    >>> a = fingerprint("hi", ["a"], [{"a": -0.5, "b": -1.25}])
    >>> b = fingerprint("hi", ["a"], [{"a": -0.7, "c": -1.5}])
    >>> distance(a, a), round(distance(a, b), 3)
    (0.0, 0.15)
    """
    if one.probe != other.probe or not one.positions or not other.positions:
        return float("inf")
    moved: list[float] = []
    for mine, theirs in zip(one.positions, other.positions, strict=False):
        moved += _moves(dict(mine.candidates), dict(theirs.candidates))
        if mine.chosen != theirs.chosen:
            break
    return sum(moved) / len(moved) if moved else float("inf")


def _moves(mine: dict[int, float], theirs: dict[int, float]) -> Iterator[float]:
    """By how much each candidate of either list moved, at least."""
    if not mine or not theirs:
        return
    floors = min(mine.values()), min(theirs.values())
    for token in sorted({*mine, *theirs}):
        if token in mine and token in theirs:
            yield abs(mine[token] - theirs[token])
        elif token in mine:
            yield max(0.0, mine[token] - floors[1])
        else:
            yield max(0.0, theirs[token] - floors[0])


def _crc(text: str) -> int:
    return zlib.crc32(text.encode(errors="replace")) & 0xFFFFFF


def _rounded(nats: float) -> float:
    """As it will stand in the text: a fingerprint read back is equal to the one written."""
    return -min(round(-nats * 1000), 65_535) / 1000 if nats < 0 else 0.0


def _packed(position: Position) -> bytes:
    head = struct.pack(">B", len(position.candidates)) + position.chosen.to_bytes(3, "big")
    return head + b"".join(
        token.to_bytes(3, "big") + struct.pack(">H", round(-nats * 1000))
        for token, nats in position.candidates
    )


def _unpacked(data: bytes) -> Iterator[Position]:
    at = 0
    while at < len(data):
        count = data[at]
        chosen = int.from_bytes(data[at + 1 : at + 4], "big")
        at += 4
        if at + 5 * count > len(data):
            raise ValueError("cut short")
        yield Position(
            chosen,
            tuple(
                (
                    int.from_bytes(data[k : k + 3], "big"),
                    0.0 - int.from_bytes(data[k + 3 : k + 5], "big") / 1000,
                )
                for k in range(at, at + 5 * count, 5)
            ),
        )
        at += 5 * count
