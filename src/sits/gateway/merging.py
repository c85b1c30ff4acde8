"""Several requests for embeddings as one, and its answer as several: what makes a window one call of the engine.

Knows: `/v1/embeddings` bodies of OpenAI's dialect.  Two can be one request when everything but `input` is equal, byte for byte, and
`input` is a text or a list of texts.

Rules: vectors are passed on as the engine wrote them, never parsed; each request's indices begin at 0 again; counts of tokens are
shared out so that they add up to what the engine said, by the prompts' estimated lengths, for the engine told only the sum.  An
answer that has not exactly one vector for each text is no answer to merge by (`None`), and the requests go one by one.

Deliberately absent: token ids as input (a list of them is one text or many, by its depth), and who goes with whom when (holding).
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from sits.core.request import Usage

EMBEDDINGS = "/v1/embeddings"

_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_list = msgspec.json.Decoder(list[msgspec.Raw]).decode
_items = msgspec.json.Decoder(list[dict[str, msgspec.Raw]]).decode
_index = msgspec.json.Decoder(int).decode
_counts = msgspec.json.Decoder(dict[str, Any]).decode
_encode = msgspec.json.Encoder().encode


class Asked(msgspec.Struct, frozen=True):
    """One body taken apart: its texts, and everything else, which has to be equal.  `weight` is its share of the tokens."""

    texts: tuple[bytes, ...]
    rest: tuple[tuple[str, bytes], ...]
    weight: int


class Part(msgspec.Struct, frozen=True):
    """One request's share of an answer."""

    body: bytes
    usage: Usage | None


def asked(body: bytes, weight: int) -> Asked | None:
    """The body taken apart; None when it cannot go with others.

    >>> asked(b'{"model":"m","input":["a","b"]}', 5).texts
    (b'"a"', b'"b"')
    >>> asked(b'{"model":"m","input":[1,2]}', 5) is None
    True
    """
    try:
        fields = _fields(body)
        given = bytes(fields.pop("input"))
        texts = tuple(bytes(one) for one in _list(given)) if given[:1] == b"[" else (given,)
    except (msgspec.MsgspecError, KeyError, RecursionError):
        return None
    if not texts or any(text[:1] != b'"' for text in texts) or body.count(b'"input"') != 1:
        return None
    return Asked(texts, tuple(sorted((name, bytes(value)) for name, value in fields.items())), max(1, weight))


def merged(requests: Sequence[Asked]) -> bytes:
    """One body that asks for all of them, in order; they have the same `rest`.

    >>> one, two = asked(b'{"input":"a","model":"m"}', 1), asked(b'{"input":["b"],"model":"m"}', 1)
    >>> merged([one, two])
    b'{"model":"m","input":["a","b"]}'
    """
    fields = {name: msgspec.Raw(value) for name, value in requests[0].rest}
    texts = b",".join(text for request in requests for text in request.texts)
    return _encode({**fields, "input": msgspec.Raw(b"[" + texts + b"]")})


def parts(answer: bytes, requests: Sequence[Asked]) -> list[Part] | None:
    """Each request's share of `answer`; None when it cannot be told.

    >>> one, two = asked(b'{"input":"a"}', 3), asked(b'{"input":"b"}', 1)
    >>> answer = b'{"data":[{"index":0,"embedding":[0]},{"index":1,"embedding":[1]}],"usage":{"prompt_tokens":8}}'
    >>> for part in parts(answer, [one, two]): print(part.body.decode(), part.usage.input)
    {"data":[{"index":0,"embedding":[0]}],"usage":{"prompt_tokens":6}} 6
    {"data":[{"index":0,"embedding":[1]}],"usage":{"prompt_tokens":2}} 2
    """
    try:
        fields = _fields(answer)
        items = _items(fields["data"])
        vectors = {_index(item["index"]): item for item in items}
        counts = _counts(fields["usage"]) if "usage" in fields else {}
    except (msgspec.MsgspecError, KeyError, TypeError, RecursionError):
        return None
    texts = sum(len(request.texts) for request in requests)
    if len(items) != texts or set(vectors) != set(range(texts)):
        return None
    shares = _shares(counts, [request.weight for request in requests])
    found, at = [], 0
    for request, share in zip(requests, shares, strict=True):
        mine = [{**vectors[at + i], "index": i} for i in range(len(request.texts))]
        at += len(request.texts)
        body = {**fields, "data": mine, **({"usage": share} if "usage" in fields else {})}
        used = Usage(input=share["prompt_tokens"]) if "prompt_tokens" in share else None
        found.append(Part(_encode(body), used))
    return found


def _shares(counts: dict[str, Any], weights: Sequence[int]) -> list[dict[str, int]]:
    """Each count shared out by `weights` so that it adds up; what is no plain count is left out."""
    shares: list[dict[str, int]] = [{} for _ in weights]
    total = sum(weights)
    for name, count in counts.items():
        if isinstance(count, bool) or not isinstance(count, int) or count < 0:
            continue
        before = given = 0
        for share, weight in zip(shares, weights, strict=True):
            before += weight
            share[name] = count * before // total - given
            given += share[name]
    return shares
