"""The OpenAI-compatible bodies: only what decisions need is read, the body itself is forwarded as received.

Knows: `model`, `stream`, the output limit, `user`, and how long the prompt is, in bytes of its JSON.  The decoder skips
everything else without building it, so a megabyte of messages costs no objects.
Rules: a wrong field is an error that names it, and so is one that would make the books lie (a count over 2^31, a model name
of a page) or that nobody can read (nested without end); the prompt's length in tokens is an *estimate* (bytes / 4, the usual
figure for English text) until the engine tells; `max_completion_tokens` beats `max_tokens`, as with OpenAI.

Deliberately absent: validation of what the engine will validate better (sampling parameters, tools, message roles).
"""

import re
from typing import Any, Final

import msgspec
import orjson

from sits.core.errors import CallerError
from sits.gateway.openai_bodies import CHAT, COMPLETION, EMBEDDING, Body, Parsed, Parser

BYTES_PER_TOKEN: Final = 4

EMPTY_BYTES: Final = 64
"""A field of so many bytes is not empty, whatever it holds."""

EXPLAINED_BYTES: Final = 256 * 2**10
"""The longest body in which the half of a character is looked for: a megabyte of escapes takes 150 ms."""

_FIELDS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_AT: Final = re.compile(r" - at `\$\.?([^`]*)`")
_EMPTY: Final = re.compile(rb'""|\[\s*\]')
_MISSING: Final = re.compile(r"required field `([^`]*)`")
_ESCAPE: Final = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)",
    re.DOTALL,
)
"""An escape in a JSON string; the group is half of a surrogate pair that stands alone."""


def parse_chat(body: bytes) -> Parsed:
    """`/v1/chat/completions`.

    >>> parse_chat(b'{"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 9}').output_tokens_max
    9

    Raises:
        CallerError: not JSON, or a field is wrong; names the field.

    """
    read = decode(CHAT, body)
    messages = given(read.messages, "messages", b"[", "a list of at least one message")
    most = read.max_completion_tokens or read.max_tokens or 0
    return _parsed(read, messages, most)


def parse_completion(body: bytes) -> Parsed:
    """`/v1/completions`.  Raises as `parse_chat`."""
    read = decode(COMPLETION, body)
    return _parsed(read, given(read.prompt, "prompt", b'["', "a string or a list"), read.max_tokens or 0)


def parse_embedding(body: bytes) -> Parsed:
    """`/v1/embeddings`: never streams, generates nothing.  Raises as `parse_chat`."""
    read = decode(EMBEDDING, body)
    parsed = _parsed(read, given(read.input, "input", b'["', "a string or a list"), 0)
    parsed.stream = False
    return parsed


PARSERS: dict[bytes, Parser] = {
    b"/v1/chat/completions": parse_chat,
    b"/v1/completions": parse_completion,
    b"/v1/embeddings": parse_embedding,
}
"""Endpoint -> parser; the endpoints a request can be forwarded to."""


def with_model(body: bytes, model: str) -> bytes:
    """The body asking for another model name; the only case in which a body is written anew.

    All other fields keep their own text, so no number is rounded and nothing is read that the engine would read otherwise.
    """
    if not body:
        return body
    fields = decode(_FIELDS, body)
    fields["model"] = msgspec.Raw(msgspec.json.encode(model))
    return msgspec.json.encode(fields)


def models_page(names: list[str]) -> bytes:
    """`GET /v1/models`."""
    data = [{"id": name, "object": "model", "created": 0, "owned_by": "sits"} for name in names]
    return orjson.dumps({"object": "list", "data": data})


def decode(decoder: msgspec.json.Decoder[Any], body: bytes) -> Any:
    """The fields of a body that `decoder` knows.  Raises CallerError."""
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        text = str(error)
        at = _AT.search(text) or _MISSING.search(text)
        field = at.group(1) if at else None
        raise CallerError(
            f"{field or 'body'}: {_AT.sub('', text)}", field=field or None, code="invalid_field"
        ) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        escapes = _ESCAPE.finditer(body) if len(body) <= EXPLAINED_BYTES else ()
        half = next((found for found in escapes if found.group(1)), None)
        if half is not None:  # the decoder calls it truncated input, or a malformed escape
            raise CallerError(
                f"the body is not JSON: \\{half.group(1).decode()} at byte {half.start()} is half of a character",
                hint="a surrogate is valid only as one of a pair; cut text between characters, not inside one",
                code="invalid_json",
            ) from error
        raise CallerError(f"the body is not JSON: {error}", code="invalid_json") from error
    except RecursionError as error:
        raise CallerError("the body is nested too deeply", code="invalid_json") from error


def given(raw: msgspec.Raw, field: str, openers: bytes, what: str) -> memoryview:
    """The JSON of a field that must be there, not empty, and begin like what it is."""
    text = memoryview(raw)
    if len(text) >= EMPTY_BYTES and text[0] in openers:
        return text
    short = bytes(text[:EMPTY_BYTES])
    if not short or short[0] not in openers or (len(short) < EMPTY_BYTES and _EMPTY.fullmatch(short)):
        shown = short[:40].decode(errors="replace") if short else "missing"
        raise CallerError(f"{field}: expected {what}, got {shown}", field=field, code="invalid_field")
    return text


def tokens_of(size: int) -> int:
    """The estimate for a prompt of `size` bytes of JSON, tokens."""
    return max(1, size // BYTES_PER_TOKEN)


def _parsed(read: Body, prompt: memoryview, output_tokens_max: int) -> Parsed:
    return Parsed(
        model=read.model,
        stream=bool(read.stream),
        user=read.user or "",
        prompt_tokens=len(prompt) // BYTES_PER_TOKEN or 1,
        output_tokens_max=output_tokens_max,
        prompt=prompt,
    )
