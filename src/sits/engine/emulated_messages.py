"""Anthropic-shaped answers of an engine that has no model: the text of `emulated_text`, as events or as one body.

Rules: as there; a stream goes from `message_start` to `message_stop`, one delta for each piece, usage at both ends.  Tokens are
counted as the gateway estimates them, four bytes of JSON each, for there is no tokenizer.

Deliberately absent: tools and thinking.  There is nobody to use them.
"""

from typing import Any

import msgspec

from sits.core.errors import CallerError
from sits.core.request import Request, Usage
from sits.engine.emulated_text import words

BYTES_PER_TOKEN = 4

_encode = msgspec.json.Encoder().encode


class _Prompt(msgspec.Struct):
    messages: msgspec.Raw = msgspec.Raw()
    system: msgspec.Raw = msgspec.Raw()
    tools: msgspec.Raw = msgspec.Raw()


_decode_prompt = msgspec.json.Decoder(_Prompt).decode


class MessagesAnswer:
    """Renders the answer to one request of `/v1/messages` piece by piece."""

    def __init__(self, request: Request, created_s: int) -> None:
        self._request = request
        self._sent = 0

    def piece(self, tokens: int, usage: Usage | None) -> bytes:
        """The next `tokens` tokens as events; with `usage`, also the end of the stream."""
        out = b""
        if not self._sent:
            head = self._message([], None, Usage(self._request.prompt_tokens, 0))
            out = _event({"type": "message_start", "message": head})
            block = {"type": "text", "text": ""}
            out += _event({"type": "content_block_start", "index": 0, "content_block": block})
        delta = {"type": "text_delta", "text": words(self._request.id, self._sent, tokens)}
        self._sent += tokens
        out += _event({"type": "content_block_delta", "index": 0, "delta": delta})
        if usage is None:
            return out
        end = {"stop_reason": self._reason(usage), "stop_sequence": None}
        return (
            out
            + _event({"type": "content_block_stop", "index": 0})
            + _event({"type": "message_delta", "delta": end, "usage": _usage(usage)})
            + _event({"type": "message_stop"})
        )

    def whole(self, usage: Usage) -> bytes:
        """The whole answer as one JSON body."""
        text = {"type": "text", "text": words(self._request.id, 0, usage.output)}
        return _encode(self._message([text], self._reason(usage), usage))

    def _message(self, content: list[dict[str, str]], reason: str | None, usage: Usage) -> dict[str, Any]:
        return {
            "id": f"msg_{self._request.id}",
            "type": "message",
            "role": "assistant",
            "model": self._request.adapter or self._request.model,
            "content": content,
            "stop_reason": reason,
            "stop_sequence": None,
            "usage": _usage(usage),
        }

    def _reason(self, usage: Usage) -> str:
        limit = self._request.output_tokens_max
        return "max_tokens" if limit and usage.output >= limit else "end_turn"


def token_count(request: Request) -> bytes:
    """The answer to `/v1/messages/count_tokens`."""
    try:
        prompt = _decode_prompt(request.body)
    except msgspec.DecodeError as error:
        raise CallerError(
            f"the body is not what {request.endpoint} takes: {error}",
            field="body",
            hint="send a JSON object of Anthropic's shape",
        ) from error
    size = sum(len(bytes(part)) for part in (prompt.system, prompt.tools, prompt.messages))
    return _encode({"input_tokens": max(1, size // BYTES_PER_TOKEN)})


def _usage(usage: Usage) -> dict[str, int]:
    return {
        "input_tokens": usage.input - usage.cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached,
        "output_tokens": usage.output,
    }


def _event(told: dict[str, Any]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (told["type"].encode(), _encode(told))
