"""Weighted rendezvous hashing (highest random weight): who owns a key, without shared state.

Each (key, name) pair hashes to u in (0, 1); the owner is the name with the highest `-weight / ln(u)`
(Thaler and Ravishankar 1998; the weighted form: Schindelhauer and Schomaker 2005).  P(owner = i) = w_i / sum(w);
raising one weight only raises that name's own score, so keys move *to* it and between no others.

Deliberately absent: a ring, virtual nodes, any memory.  Two processes with the same names agree.
"""

import math
from collections.abc import Iterable
from hashlib import blake2b

_SPAN = float(2**53)


def score(key: bytes, name: str, weight: float) -> float:
    """The claim of `name` on `key`; 0 when its weight is 0.  Length-prefixed, so no two pairs collide by concatenation."""
    if weight <= 0.0:
        return 0.0
    text = name.encode()
    digest = blake2b(len(text).to_bytes(4, "big") + text + key, digest_size=8).digest()
    u = ((int.from_bytes(digest, "big") >> 11) + 0.5) / _SPAN
    return -weight / math.log(u)


class Owners:
    """Names and weights made ready to be asked often: `of(key)` is the name with the highest `score(salt + key, name, weight)`.

    A tie goes to the greater name; where nobody has a weight the owner is "".
    """

    __slots__ = ("_only", "_weighed")

    def __init__(self, weights: Iterable[tuple[str, float]], salt: bytes = b"") -> None:
        texts = [
            (name, name.encode(), weight) for name, weight in sorted(weights, reverse=True) if weight > 0.0
        ]
        self._weighed = [
            (name, len(text).to_bytes(4, "big") + text + salt, -weight) for name, text, weight in texts
        ]
        self._only = texts[0][0] if len(texts) == 1 else "" if not texts else None

    def of(self, key: bytes) -> str:
        """The owner of `key`."""
        if self._only is not None:
            return self._only
        best, owner = 0.0, ""
        for name, head, weight in self._weighed:
            digest = blake2b(head + key, digest_size=8).digest()
            claim = weight / math.log(((int.from_bytes(digest, "big") >> 11) + 0.5) / _SPAN)
            if claim > best:
                best, owner = claim, name
        return owner
