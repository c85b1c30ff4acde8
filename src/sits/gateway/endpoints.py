"""The endpoints whose requests are exchanges: who reads their bodies, and how their callers are told of an error.

Two dialects: OpenAI's, and Anthropic's under `/v1/messages`.  An error before the first byte is a body with a status, one in
mid-stream an event; both have the shape of the caller's dialect, for its SDK reads no other.

Deliberately absent: the dialects themselves (openai_api, anthropic_api).
"""

from hashlib import sha256
from typing import Final

import orjson

from sits import __version__
from sits.core.errors import AccessError, SitsError
from sits.core.request import Request
from sits.gateway import anthropic_api, openai_api
from sits.gateway.openai_bodies import Parser

PARSERS: dict[bytes, Parser] = openai_api.PARSERS | anthropic_api.PARSERS
"""Endpoint -> parser; the endpoints a request can be forwarded to."""

LAYERS: Final = {path.decode(): f"sits/{__version__} {path.decode()}" for path in PARSERS}
"""Endpoint -> what stood between caller and engine, for the record: our version, and the dialect that was spoken to it."""

PROMPT_HASH_BYTES: Final = 2**20
"""Prompts beyond are not hashed: a millisecond for each megabyte would be everybody's."""

ANTHROPIC: Final = frozenset(anthropic_api.PARSERS)
_ANTHROPIC_NAMES: Final = frozenset(path.decode() for path in ANTHROPIC)

ELSEWHERE: Final = {
    b"/v1/responses": "the Responses API keeps state at the provider and is not served; send the conversation to"
    " /v1/chat/completions or /v1/messages",
}
"""Paths of the dialects that are not served, and what to use instead."""


def prompt_hash(model: str, prompt: bytes | memoryview) -> str:
    """SHA-256 of the prompt's JSON and of whose template renders it, the model's; empty for what is too long.

    >>> prompt_hash("m", b'[{"role":"user","content":"hi"}]')[:16]
    '36802154f29683d1'
    """
    if len(prompt) > PROMPT_HASH_BYTES:
        return ""
    hashed = sha256(prompt)
    hashed.update(b"\n" + model.encode())
    return hashed.hexdigest()


def hint(path: bytes) -> str:
    """What somebody should do who asked for a path that is not served."""
    return ELSEWHERE.get(path, "the API is under /v1")


def shown_elsewhere(path: str) -> AccessError:
    """What somebody is told who asks for a page that only the admin process shows (`gateway.metrics: admin`)."""
    return AccessError(
        f"{path} is not shown on this port",
        code="at_admin",
        hint="ask the admin process for it (`admin.listen`), with a key that may `admin`",
    )


def error_of(error: SitsError, request: Request) -> tuple[int, bytes]:
    """Status and body of an error, as the request's dialect has them."""
    if request.endpoint in _ANTHROPIC_NAMES:
        return anthropic_api.status_of(error), anthropic_api.error_body(error, request.id)
    return error.status, orjson.dumps(error.body())


def event_of(body: bytes, request: Request) -> bytes:
    """The event of an error in mid-stream."""
    if request.endpoint in _ANTHROPIC_NAMES:
        return anthropic_api.error_event(body)
    return b"data: " + body + b"\n\n"
