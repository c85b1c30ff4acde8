"""Embeddings of an engine that has no model: unit vectors that depend on the input's words, or ids, and on nothing else.

Rules: each word has a fixed direction, drawn from SHAKE-128 of it; a text's vector is the sum over its words, normalised.  So
the same input always has the same vector, order does not matter, and texts that share words are closer than texts that do not.
As with OpenAI, `encoding_format: base64` (what its client asks for) is float32, little-endian.

Deliberately absent: meaning.
"""

import base64
import hashlib
from typing import Annotated, Any, Literal

import msgspec
import numpy as np

from sits.core.errors import CallerError
from sits.core.request import Request, Usage

DIMENSIONS = 256
DIMENSIONS_MAX = 8192
INPUTS_MAX = 2048
"""As with OpenAI."""

_encode = msgspec.json.Encoder().encode


class _Body(msgspec.Struct):
    input: str | list[str | int | list[int]]
    dimensions: Annotated[int, msgspec.Meta(ge=1, le=DIMENSIONS_MAX)] | None = None
    encoding_format: Literal["float", "base64"] | None = None


_decode_body = msgspec.json.Decoder(_Body).decode


class EmbeddingsAnswer:
    """Renders the answer to one request of `/v1/embeddings`.

    Raises:
        CallerError: a body that is not of the expected shape.

    """

    def __init__(self, request: Request, created_s: int) -> None:
        self._request = request
        try:
            self._body = _decode_body(request.body)
        except msgspec.DecodeError as error:
            raise CallerError(
                f"the body is not what {request.endpoint} takes: {error}",
                field="input",
                hint="a text or ids, or a list of them",
            ) from error
        self._inputs = _inputs(self._body.input)

    def whole(self, usage: Usage) -> bytes:
        """The vectors as one JSON body."""
        body = self._body
        vectors = [unit_vector(one, body.dimensions or DIMENSIONS) for one in self._inputs]
        data = [
            {"object": "embedding", "index": i, "embedding": self._shown(v)} for i, v in enumerate(vectors)
        ]
        return _encode(
            {
                "object": "list",
                "data": data,
                "model": self._request.adapter or self._request.model,
                "usage": {"prompt_tokens": usage.input, "total_tokens": usage.input},
            }
        )

    def piece(self, tokens: int, usage: Usage | None) -> bytes:
        """Embeddings come whole; nobody streams them."""
        return b""

    def _shown(self, vector: np.ndarray) -> Any:
        if self._body.encoding_format == "base64":
            return base64.b64encode(vector.astype("<f4").tobytes()).decode()
        return vector.tolist()


def _inputs(given: str | list[str | int | list[int]]) -> list[str | list[int]]:
    """Each input on its own: a list of ids is one."""
    if isinstance(given, str):
        return [given]
    ids = [one for one in given if isinstance(one, int)]
    if len(ids) == len(given) and ids:
        return [ids]
    inputs = [one for one in given if not isinstance(one, int)]
    if ids or not inputs or len(inputs) > INPUTS_MAX:
        what = "ids among texts" if ids else f"{len(inputs)} inputs"
        hint = f"texts, or lists of ids; 1 to {INPUTS_MAX} of them"
        raise CallerError(f"input: {what}", field="input", hint=hint)
    return inputs


def unit_vector(one: str | list[int], dimensions: int) -> np.ndarray:
    """The vector of one input.

    >>> a, b, c = (unit_vector(text, 256) for text in ("red apple", "green apple", "blue sky"))
    >>> bool(a @ b > 0.3 > a @ c)
    True
    """
    names = one.lower().split() if isinstance(one, str) else [str(number) for number in one]
    total = np.zeros(dimensions)
    for name in names or [""]:
        drawn = hashlib.shake_128(name.encode()).digest(dimensions)
        total += np.frombuffer(drawn, dtype=np.uint8) - 127.5
    length = float(np.sqrt(total @ total))
    unit: np.ndarray = (total / length if length else np.eye(1, dimensions)[0]).astype(np.float32)
    return unit
