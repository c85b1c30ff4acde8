"""Anthropic's bodies and errors: `/v1/messages`, `/v1/messages/count_tokens`, the list of models, and how refusals are told.

As with `openai_api`, only what decisions need is read, and the body itself is forwarded as received.
Rules: the prompt is `system`, `tools` and `messages`; what shares a prefix is told by the first two of system and messages, which
come first where a model reads them; `metadata.user_id` is the user.  Counting tokens takes an engine no time worth balancing, so
it weighs nothing.  Errors have Anthropic's shape and its words (`overloaded_error` with 529, where OpenAI has 503), because its
clients choose by them whether to try again; one in mid-stream is an event `error`, after which no `message_stop` comes.

Deliberately absent: validation of what the engine, or the translation for it, will validate better.
"""

from collections.abc import Mapping
from typing import Annotated

import msgspec
import orjson

from sits.core.errors import SitsError
from sits.gateway.openai_api import decode, given, tokens_of
from sits.gateway.openai_bodies import COUNT_MAX, Body, Parsed, Parser

MESSAGES = "/v1/messages"
COUNT_TOKENS = "/v1/messages/count_tokens"

OVERLOADED = 529

_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
_FORWARDED = (b"anthropic-version", b"anthropic-beta")


class _Metadata(msgspec.Struct):
    user_id: str | None = None


class _Counted(Body):
    """What both endpoints share."""

    messages: msgspec.Raw = msgspec.Raw()
    system: msgspec.Raw = msgspec.Raw()
    tools: msgspec.Raw = msgspec.Raw()
    metadata: _Metadata | None = None


class _Messages(_Counted, kw_only=True):
    max_tokens: Annotated[int, msgspec.Meta(ge=0, le=COUNT_MAX)]


_MESSAGES = msgspec.json.Decoder(_Messages)
_COUNTED = msgspec.json.Decoder(_Counted)


def parse_messages(body: bytes) -> Parsed:
    """`/v1/messages`.

    >>> parse_messages(b'{"model":"m","max_tokens":9,"messages":[{"role":"user","content":"hi"}]}').output_tokens_max
    9

    Raises:
        CallerError: not JSON, or a field is wrong; names the field.

    """
    read: _Messages = decode(_MESSAGES, body)
    messages = given(read.messages, "messages", b"[", "a list of at least one message")
    system = bytes(read.system)
    tools = bytes(read.tools)
    return Parsed(
        model=read.model,
        stream=bool(read.stream),
        user=_user(read),
        prompt_tokens=tokens_of(len(system) + len(tools) + len(messages)),
        output_tokens_max=read.max_tokens,
        prompt=b"".join((system, tools, messages)),
    )


def parse_count(body: bytes) -> Parsed:
    """`/v1/messages/count_tokens`: never streams, generates nothing.  Raises as `parse_messages`."""
    read: _Counted = decode(_COUNTED, body)
    messages = given(read.messages, "messages", b"[", "a list of at least one message")
    prompt = b"".join((bytes(read.system), bytes(read.tools), messages))
    return Parsed(
        model=read.model,
        stream=False,
        user=_user(read),
        prompt_tokens=1,
        output_tokens_max=1,
        prompt=prompt,
    )


def _user(read: _Counted) -> str:
    return (read.metadata.user_id if read.metadata else None) or ""


PARSERS: dict[bytes, Parser] = {MESSAGES.encode(): parse_messages, COUNT_TOKENS.encode(): parse_count}
"""Endpoint -> parser."""


def forwarded(headers: Mapping[bytes, bytes]) -> str:
    r"""The header lines the engine has to see.

    >>> forwarded({b"anthropic-version": b"2023-06-01", b"host": b"h"})
    'anthropic-version: 2023-06-01\r\n'
    """
    lines = [b"%b: %b\r\n" % (name, headers[name]) for name in _FORWARDED if name in headers]
    return b"".join(lines).decode("latin-1")


def models_page(names: list[str]) -> bytes:
    """`GET /v1/models`, for clients that say `anthropic-version`."""
    data = [
        {"id": name, "type": "model", "display_name": name, "created_at": "1970-01-01T00:00:00Z"}
        for name in names
    ]
    ends = {"first_id": names[0] if names else None, "last_id": names[-1] if names else None}
    return orjson.dumps({"data": data, "has_more": False, **ends})


def status_of(error: SitsError) -> int:
    """The status Anthropic's clients know for it."""
    return OVERLOADED if error.status == 503 else error.status


def error_body(error: SitsError, request_id: str) -> bytes:
    """The error in Anthropic's shape."""
    default = "invalid_request_error" if error.status < 500 else "api_error"
    told = {"type": _KINDS.get(error.status, default), "message": str(error)}
    return orjson.dumps({"type": "error", "error": told, "request_id": request_id})


def error_event(body: bytes) -> bytes:
    """The error in mid-stream."""
    return b"event: error\ndata: " + body + b"\n\n"
