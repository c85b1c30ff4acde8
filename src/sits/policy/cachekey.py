"""What a stored answer is the answer *to*: one 256-bit key of everything that could have made it another answer.

```
key     = H(tenant, scope, artefact, endpoint, H(request))          scope: whole tenant, or the digest of one unit
artefact = H(model, adapter, declared digests)                      of what really answered, never of what was asked for
request  = canonical JSON of the body without IGNORED               sampling, tools, messages, and every field not known here
```
Rules:
- Parts are typed and length-prefixed (as netstrings), so no two lists of parts encode alike, whatever is in them.
- Equal JSON in another order, spacing or escaping is one request.  Numbers are typed: 1, 1.0, "1" and true are four values;
  integers of any size are exact; a float is its IEEE double.
- A field nobody here has heard of counts: a key that is too fine misses, one that is too coarse lies.  `IGNORED` lists
  the fields that cannot change the text of an answer; `model` is among them because the artefact stands for it.
- A body that names a field twice has no key: parsers differ in which one they believe, so one client could store, under an
  innocent question, the answer to another.  Told by counting colons: canonical JSON has as many as the body unless a pair
  was dropped, or a colon was written as an escape (and then there is no key either).
- `H` is SHA-256 (FIPS 180-4), twice as fast as BLAKE2b where the CPU has instructions for it.

Deliberately absent: whether an answer may be kept at all (`policy.cacheable`), headers (none reaches an engine), and any
notion of *similar*.
"""

from hashlib import sha256
from typing import Any

import msgspec
import orjson

IGNORED = (
    "model",
    "stream",
    "stream_options",
    "user",
    "metadata",
    "safety_identifier",
    "prompt_cache_key",
)
"""Who asks, how the answer travels, and hints to a provider's books: nothing a model sees."""

_DECODE = msgspec.json.Decoder(dict[str, Any]).decode
_ENCODE_ALL = msgspec.json.Encoder(order="deterministic").encode
_SORTED = orjson.OPT_SORT_KEYS


def encode(*parts: str | bytes) -> bytes:
    """Parts as one string of bytes that no other parts encode to.

    >>> encode("a", b"", "b:")
    b's1:a,b0:,s2:b:,'
    """
    pieces = []
    for part in parts:
        data = part if isinstance(part, bytes) else part.encode("utf-8", "surrogatepass")
        pieces.append(b"%c%d:%b," % (98 if data is part else 115, len(data), data))
    return b"".join(pieces)


def artefact_of(model: str, adapter: str = "", *digests: str) -> str:
    """The identity of what answers: served names, and the digests that are known of it (empty = not declared)."""
    return sha256(encode("artefact", model, adapter, *digests)).hexdigest()


def key_of(tenant: str, unit_digest: str, artefact: str, endpoint: str, request: bytes) -> bytes:
    """The key of an answer; `unit_digest` is empty when the whole tenant shares it, `request` is from `digest_of`."""
    who, unit = tenant.encode("utf-8", "surrogatepass"), unit_digest.encode()
    what, where = artefact.encode(), endpoint.encode()
    return sha256(  # encode("answer", tenant, unit_digest, artefact, endpoint, request), in one go
        b"s6:answer,s%d:%b,s%d:%b,s%d:%b,s%d:%b,b%d:%b,"
        % (len(who), who, len(unit), unit, len(what), what, len(where), where, len(request), request)
    ).digest()


def fields_of(body: bytes) -> dict[str, Any] | None:
    """The body's fields; None when it is not a JSON object that every parser reads alike."""
    try:
        return _DECODE(body)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


def digest_of(body: bytes, fields: dict[str, Any]) -> bytes | None:
    r"""The digest of the request `body`, whose fields are `fields`; None when it has none (see the rules).

    >>> a, b = b'{"n": 1, "user": "ann", "stop": "\\u0061"}', b'{"stop":"a","n":1}'
    >>> digest_of(a, fields_of(a)) == digest_of(b, fields_of(b))
    True

    """
    rest = fields.copy()
    colons = 0
    try:
        for name in IGNORED:
            if name in rest:
                value = rest.pop(name)
                colons += 1 + (value.count(":") if isinstance(value, str) else canonical(value).count(b":"))
        text = canonical(rest)
    except RecursionError:
        return None
    if colons + text.count(b":") != body.count(b":") or (
        b"\\" in body and (b"\\u003a" in body or b"\\u003A" in body)
    ):
        return None
    return sha256(text).digest()


def canonical(value: Any) -> bytes:
    """JSON of one form: keys sorted, no spacing, no escape that is not needed."""
    try:
        return orjson.dumps(value, option=_SORTED)
    except TypeError:  # an integer of over 64 bits; floats are written another way, never mistaken for it
        return _ENCODE_ALL(value)
