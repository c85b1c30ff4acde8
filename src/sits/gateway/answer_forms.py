"""One answer in its two forms: a plain body, and a stream of chunks; and when it is whole.

Knows `/v1/chat/completions` and `/v1/completions`: the fields of a choice that have a place in both forms.

Rules: `as_stream` and `as_body` give None rather than lose anything: a field that is set and has no known place in the other
form, a choice that is not finished, a stream without usage.  Null fields have no place and are left out.
`as_body(as_stream(body))` is `body`, but for nulls and for empty texts other than the content.  An answer is whole when its one choice says why it ended, and the
reason is one that the same question would meet again (an abort or a filter's mood is not).

Deliberately absent: other answers (they are given again in their own form only), and any reading of what they say.
"""

from typing import Any

import orjson

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
EMBEDDINGS = "/v1/embeddings"

ENDS = frozenset({"stop", "length", "tool_calls", "function_call"})
TAIL_BYTES = 8192
"""Where the end of a stream is looked for: the last chunk with text, the usage, `[DONE]`."""

_KINDS = {CHAT: ("chat.completion", "chat.completion.chunk"), TEXT: ("text_completion", "text_completion")}
_ABOUT = ("id", "created", "model", "system_fingerprint", "service_tier")
_ENDING = ("finish_reason", "stop_reason", "matched_stop")
_TEXTS = ("content", "reasoning_content", "reasoning", "refusal")


def is_whole(data: bytes, endpoint: str, *, stream: bool) -> bool:
    """Whether `data` is a complete answer that is worth giving again."""
    if stream:
        events = _events(data[-TAIL_BYTES:], cut=len(data) > TAIL_BYTES)
        return endpoint in _KINDS and events is not None and _ended(events)
    body = _loaded(data)
    if not isinstance(body, dict) or body.get("error"):
        return False
    if endpoint == EMBEDDINGS:
        return bool(body.get("data"))
    return endpoint in _KINDS and _ended([body])


def as_body(data: bytes, endpoint: str) -> bytes | None:
    """The plain form of a stream that tells its usage."""
    events = _events(data)
    if not events or endpoint not in _KINDS or not _ended(events):
        return None
    about, usage = _about(events), None
    choice: dict[str, Any] = {"index": 0}
    for event in events:
        if not _only(event, ("object", "choices", "usage", "obfuscation", *_ABOUT)):
            return None
        usage = event.get("usage") or usage
        for piece in event.get("choices") or ():
            if piece.get("index", 0) != 0 or not _add(choice, piece, endpoint):
                return None
    if usage is None:
        return None
    if endpoint == CHAT:
        message = choice.setdefault("message", {})
        choice["message"] = {"role": "assistant", "content": None, **message}
    return orjson.dumps({**about, "object": _KINDS[endpoint][0], "choices": [choice], "usage": usage})


def as_stream(data: bytes, endpoint: str, *, usage: bool) -> bytes | None:
    """The stream of a plain answer; with a chunk of `usage` at its end, or not."""
    body = _loaded(data)
    if not isinstance(body, dict) or endpoint not in _KINDS or not _ended([body]):
        return None
    choices = body["choices"]
    if not _only(body, ("object", "choices", "usage", *_ABOUT)) or len(choices) != 1 or not body.get("usage"):
        return None
    pieces = _pieces(choices[0], endpoint)
    if pieces is None:
        return None
    head = {**_about([body]), "object": _KINDS[endpoint][1]}
    events = [{**head, "choices": [{"index": 0, **piece}]} for piece in pieces]
    if usage:
        events.append({**head, "choices": [], "usage": body["usage"]})
    return b"".join(b"data: %b\n\n" % orjson.dumps(event) for event in events) + b"data: [DONE]\n\n"


def _pieces(choice: dict[str, Any], endpoint: str) -> list[dict[str, Any]] | None:
    """The choices of the chunks of one plain choice: role, text, end."""
    end = {"finish_reason": choice["finish_reason"], **_set(choice, _ENDING)}
    more = _set(choice, ("logprobs",))
    if endpoint == TEXT:
        if not _only(choice, ("index", "text", "logprobs", *_ENDING)) or not isinstance(
            choice.get("text"), str
        ):
            return None
        return [{"text": choice["text"], **more, "finish_reason": None}, {"text": "", **end}]
    message = choice.get("message")
    if not isinstance(message, dict) or not _only(choice, ("index", "message", "logprobs", *_ENDING)):
        return None
    if not _only(message, ("role", "tool_calls", *_TEXTS)):
        return None
    delta = _set(message, _TEXTS)
    calls = message.get("tool_calls")
    if calls:
        delta["tool_calls"] = [{"index": i, **call} for i, call in enumerate(calls)]
    role = {"role": message.get("role", "assistant")}
    if "content" in delta:
        role["content"] = ""
    return [
        {"delta": role, "finish_reason": None},
        {"delta": delta, **more, "finish_reason": None},
        {"delta": {}, **end},
    ]


def _add(choice: dict[str, Any], piece: dict[str, Any], endpoint: str) -> bool:
    """Add a chunk's choice to the plain one; False when it holds something that has no place there."""
    if not _only(piece, ("index", "text" if endpoint == TEXT else "delta", "logprobs", *_ENDING)):
        return False
    choice.update(_set(piece, _ENDING))
    for name, values in (piece.get("logprobs") or {}).items():
        if values is not None:
            if not isinstance(values, list):
                return False
            choice.setdefault("logprobs", {}).setdefault(name, []).extend(values)
    if endpoint == TEXT:
        choice["text"] = choice.get("text", "") + (piece.get("text") or "")
        return True
    delta = piece.get("delta") or {}
    if not _only(delta, ("role", "tool_calls", *_TEXTS)):
        return False
    message = choice.setdefault("message", {})
    if delta.get("role"):
        message["role"] = delta["role"]
    for name, text in _set(delta, _TEXTS).items():
        if text or name == "content":
            message[name] = message.get(name, "") + text
    return all(_add_call(message, call) for call in delta.get("tool_calls") or ())


def _add_call(message: dict[str, Any], piece: dict[str, Any]) -> bool:
    """Add a piece of a tool call: what has no text comes once, arguments come in pieces."""
    calls = message.setdefault("tool_calls", [])
    at = piece.get("index")
    if (
        not isinstance(at, int)
        or not 0 <= at <= len(calls)
        or not _only(piece, ("index", "id", "type", "function"))
    ):
        return False
    function = piece.get("function") or {}
    if not _only(function, ("name", "arguments")):
        return False
    if at == len(calls):
        calls.append({**_set(piece, ("id", "type")), "function": {"name": "", "arguments": ""}})
    call = calls[at]["function"]
    call["name"] = call["name"] or function.get("name") or ""
    call["arguments"] += function.get("arguments") or ""
    return True


def _events(data: bytes, *, cut: bool = False) -> list[dict[str, Any]] | None:
    """The chunks of a stream that ends well; when it was cut in front, what is left of its first event is passed over."""
    lines = data.replace(b"\r\n", b"\n").rstrip().split(b"\n\n")
    if not lines or lines.pop().removeprefix(b"data:").strip() != b"[DONE]":
        return None
    events = []
    for line in lines[1:] if cut else lines:
        text = line.strip()
        if text.startswith(b"data:"):
            event = _loaded(text[5:])
            if isinstance(event, dict):
                events.append(event)
                continue
        if not text.startswith(b":"):
            return None
    return events


def _ended(events: list[dict[str, Any]]) -> bool:
    """Whether the one choice of these chunks, or of this body, ended, and well."""
    reasons = [
        choice.get("finish_reason")
        for event in events
        for choice in event.get("choices") or ()
        if isinstance(choice, dict)
    ]
    told = [reason for reason in reasons if reason is not None]
    return len(told) == 1 and told[0] in ENDS and not any(event.get("error") for event in events)


def _about(events: list[dict[str, Any]]) -> dict[str, Any]:
    return {name: value for event in reversed(events) for name, value in _set(event, _ABOUT).items()}


def _only(found: dict[str, Any], known: tuple[str, ...]) -> bool:
    """Whether everything that is set in `found` is known (an empty list or map is not set)."""
    return all(name in known or value in (None, [], {}) for name, value in found.items())


def _set(found: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: found[name] for name in names if found.get(name) is not None}


def _loaded(text: bytes) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
