"""OpenAI-shaped answers for an engine that has no model: readable pseudo-text, as events or as one body.

Rules: the words of an answer depend on the request's id only, one word a token; a streamed chat answer starts
with a role chunk, ends with a finish reason, then usage when `stream_options.include_usage` asked for it,
then `data: [DONE]`; a body that is not streamed is one JSON object with usage.

Deliberately absent: sense.  The text is made of plain words so that people see at once what it is.
"""

from typing import Any, Protocol
from zlib import crc32

import msgspec

from sits.core.errors import CallerError, UnknownError
from sits.core.request import Request, Usage

WORDS = (
    "amber", "anchor", "apple", "autumn", "basket", "beacon", "birch", "bridge", "bright", "brook", "candle", "canyon",
    "cedar", "cloud", "copper", "coral", "cotton", "desert", "dusk", "eagle", "ember", "falcon", "feather", "field",
    "forest", "garden", "ginger", "granite", "harbor", "hazel", "honey", "island", "ivory", "jasmine", "juniper", "kettle",
    "lantern", "lemon", "lily", "maple", "marble", "meadow", "mint", "moss", "north", "oak", "ocean", "olive", "orchard",
    "pebble", "pine", "prairie", "quartz", "rain", "river", "saddle", "silver", "spruce", "stone", "summer", "thistle",
    "tulip", "valley", "willow",
)  # fmt: skip

EVENTS = b"text/event-stream; charset=utf-8"
JSON = b"application/json"
DONE = b"data: [DONE]\n\n"

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"


class _StreamOptions(msgspec.Struct):
    include_usage: bool = False


class _Body(msgspec.Struct):
    stream_options: _StreamOptions | None = None


_decode_body = msgspec.json.Decoder(_Body).decode
_encode = msgspec.json.Encoder().encode


def words(name: str, start: int, count: int) -> str:
    """Words number `start` .. `start + count - 1` of the answer to request `name`, each followed by a space.

    >>> words("r1", 0, 5) == words("r1", 0, 2) + words("r1", 2, 3)
    True
    """
    seed = crc32(name.encode())
    return "".join(WORDS[crc32(b"%d" % i, seed) % len(WORDS)] + " " for i in range(start, start + count))


class Form(Protocol):
    """Renders the answer to one request."""

    def piece(self, tokens: int, usage: Usage | None) -> bytes:
        """The next `tokens` tokens as events; with `usage`, also the end of the stream."""

    def whole(self, usage: Usage) -> bytes:
        """The whole answer as one JSON body."""


class Answer:
    """Renders the answer to one request piece by piece.

    Raises:
        UnknownError: an endpoint other than chat and text completions.
        CallerError: a body that is not a JSON object of the expected shape.

    """

    def __init__(self, request: Request, created_s: int) -> None:
        if request.endpoint not in (CHAT, COMPLETIONS):
            raise UnknownError(
                f"the emulated engine does not serve {request.endpoint}",
                field="endpoint",
                value=request.endpoint,
                hint=f"use {CHAT}, {COMPLETIONS}, /v1/messages or /v1/embeddings",
                code="endpoint_not_served",
            )
        self._request = request
        self._chat = request.endpoint == CHAT
        self._usage_asked = _usage_asked(request)
        self._head: dict[str, Any] = {
            "id": f"{'chatcmpl' if self._chat else 'cmpl'}-{request.id}",
            "object": "chat.completion.chunk" if self._chat else "text_completion",
            "created": created_s,
            "model": request.adapter or request.model,
        }
        self._sent = 0

    def piece(self, tokens: int, usage: Usage | None) -> bytes:
        """The next `tokens` tokens as events; with `usage`, also the end of the stream."""
        out = b""
        if self._chat and not self._sent:
            out = self._event({"role": "assistant", "content": ""}, None)
        text = words(self._request.id, self._sent, tokens)
        self._sent += tokens
        out += self._event({"content": text} if self._chat else text, None)
        if usage is None:
            return out
        out += self._event({} if self._chat else "", self._reason(usage))
        if self._usage_asked:
            out += _sse({**self._head, "choices": [], "usage": _usage(usage)})
        return out + DONE

    def whole(self, usage: Usage) -> bytes:
        """The whole answer as one JSON body."""
        text = words(self._request.id, 0, usage.output)
        choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": self._reason(usage)}
        if self._chat:
            choice["message"] = {"role": "assistant", "content": text}
        else:
            choice["text"] = text
        kind = "chat.completion" if self._chat else "text_completion"
        return _encode({**self._head, "object": kind, "choices": [choice], "usage": _usage(usage)})

    def _event(self, content: Any, reason: str | None) -> bytes:
        choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": reason}
        choice["delta" if self._chat else "text"] = content
        return _sse({**self._head, "choices": [choice]})

    def _reason(self, usage: Usage) -> str:
        limit = self._request.output_tokens_max
        return "length" if limit and usage.output >= limit else "stop"


def _usage_asked(request: Request) -> bool:
    if not request.body:
        return False
    try:
        options = _decode_body(request.body).stream_options
    except msgspec.DecodeError as error:
        raise CallerError(
            f"the body is not what {request.endpoint} takes: {error}",
            field="body",
            hint="send a JSON object of the OpenAI shape",
        ) from error
    return options is not None and options.include_usage


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.input,
        "completion_tokens": usage.output,
        "total_tokens": usage.input + usage.output,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
    }


def _sse(payload: dict[str, Any]) -> bytes:
    return b"data: " + _encode(payload) + b"\n\n"
