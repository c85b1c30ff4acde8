"""An answer in OpenAI's dialect as one in Anthropic's: whole, as a stream, or as an error.

Rules:
- `reasoning_content` (or `reasoning`, vLLM's newer name) becomes a block of thinking, without a signature; text a block of
  text; each call a block of its own.  Blocks follow each other: one ends where another begins, as Anthropic's do.
- Arguments are text on one side and an object on the other: what a model wrote as arguments and is no JSON is an error of the
  engine in a whole answer, and passes piece by piece in a stream, as it does at Anthropic.
- A call without an id gets one, made of the answer's id and the call's place.
- `message_delta` comes when the stream says it is over, for only then usage is known.  `message_start` has the counts of
  the first chunk, which most engines leave out: clients take those of `message_delta`.
- A refusal's words become the explanation of `stop_details`.
- Comments, with which engines keep a connection alive, become pings.

Lossy but harmless: `created`, `system_fingerprint`, `logprobs` and further choices (nobody who asks in Anthropic's dialect can
ask for them).

Deliberately absent: error events and ends without `[DONE]`; the reader in front of this finds them.
"""

from typing import Any

import msgspec

from sits.engine.answer import error_text
from sits.engine.dialect.ending import stop_of
from sits.engine.dialect.reading import AnswerError, decoded
from sits.engine.dialect.usage import ChatUsage, messages_usage
from sits.engine.sse import SseSplitter, contents

_PING = b'event: ping\ndata: {"type":"ping"}\n\n'
_STOP = b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
CALLS_MAX = 1024
"""Calls of one answer; beyond it a stream is garbage."""

_encode = msgspec.json.encode
_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class Function(msgspec.Struct):
    """A call's name and arguments, or more of them."""

    name: str | None = None
    arguments: str | None = None


class Call(msgspec.Struct):
    """A call, or more of one."""

    index: int | None = None
    id: str | None = None
    function: Function = msgspec.field(default_factory=Function)


class Part(msgspec.Struct):
    """What a choice says, whole or as a delta."""

    content: str | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[Call] | None = None

    @property
    def thought(self) -> str:
        """The reasoning, by whichever name."""
        return self.reasoning_content or self.reasoning or ""


class Choice(msgspec.Struct):
    """An answer; `stop_reason` is vLLM's."""

    index: int = 0
    message: Part | None = None
    delta: Part | None = None
    finish_reason: str | None = None
    stop_reason: msgspec.Raw = msgspec.Raw(b"null")
    native_finish_reason: msgspec.Raw = msgspec.Raw(b"null")


class Completion(msgspec.Struct):
    """A whole answer, or a chunk of one."""

    id: str = ""
    model: str = ""
    choices: list[Choice] = []
    usage: ChatUsage | None = None


_completion = msgspec.json.Decoder(Completion).decode


def message(body: bytes) -> bytes:
    """A whole answer in Anthropic's dialect.

    Raises:
        AnswerError: it is no answer, or has a part that cannot be said there.

    """
    told: Completion = decoded(_completion, body)
    choice = next((choice for choice in told.choices if choice.index == 0), None)
    if choice is None or choice.message is None:
        raise AnswerError("engine_garbage", "answered without a message")
    part = choice.message
    content: list[dict[str, Any]] = []
    if part.thought:
        content.append({"type": "thinking", "thinking": part.thought, "signature": ""})
    if part.content:
        content.append({"type": "text", "text": part.content})
    for i, call in enumerate(part.tool_calls or []):
        content.append(
            {
                "type": "tool_use",
                "id": _id(call.id, told.id, i),
                "name": call.function.name or "",
                "input": _input(call.function.arguments),
            }
        )
    stop_reason, stop_sequence, details = _end(choice, part.refusal or "", tools=bool(part.tool_calls))
    return _encode(
        {
            "id": told.id,
            "type": "message",
            "role": "assistant",
            "model": told.model,
            "content": content,
            "stop_reason": stop_reason,
            "stop_sequence": stop_sequence,
            "stop_details": details,
            "usage": messages_usage(told.usage),
        }
    )


def _id(told: str | None, answer: str, at: int) -> str:
    return told or f"toolu_{answer}_{at}"


def _input(arguments: str | None) -> msgspec.Raw:
    text = (arguments or "").strip().encode() or b"{}"
    try:
        _object(text)
    except msgspec.DecodeError as error:
        what = f"called a tool with what is no JSON object: {error}"
        raise AnswerError("engine_untranslatable", what) from error
    return msgspec.Raw(text)


def _end(
    choice: Choice, refused: str, *, tools: bool
) -> tuple[str, str | None, dict[str, str | None] | None]:
    met = msgspec.json.decode(choice.stop_reason)
    native = msgspec.json.decode(choice.native_finish_reason)
    stop_reason, stop_sequence = stop_of(choice.finish_reason, met, native, tools=tools)
    if refused:
        return "refusal", None, {"type": "refusal", "category": None, "explanation": refused}
    return stop_reason, stop_sequence, None


class MessageStream:
    """Turns OpenAI's chunks into Anthropic's events, whatever the pieces they come in.  `done`: they said `[DONE]`."""

    def __init__(self) -> None:
        self._splitter = SseSplitter()
        self._id: str | None = None
        self._open = ""
        self._blocks = -1
        self._calls: set[int] = set()
        self._call = -1
        self._last = Choice()
        self._refused = ""
        self._usage: ChatUsage | None = None
        self.done = False

    def take(self, data: bytes) -> bytes:
        """The events that `data` completes.

        Raises:
            AnswerError: a chunk that cannot be read, or said in Anthropic's dialect.

        """
        return b"".join(map(self._translate, contents(self._splitter.feed(data))))

    def _translate(self, data: bytes | None) -> bytes:
        if data is None:
            return _PING if self._id is not None else b""
        if data == b"[DONE]":
            return self._finish()
        told: Completion = decoded(_completion, data)
        self._usage = told.usage or self._usage
        out = b"" if self._id is not None else self._start(told)
        for choice in told.choices:
            if choice.index == 0:
                out += self._choice(choice)
        return out

    def _start(self, told: Completion) -> bytes:
        self._id = told.id
        usage = messages_usage(told.usage)
        usage.output_tokens = 0
        head: dict[str, Any] = {
            "id": told.id,
            "type": "message",
            "role": "assistant",
            "model": told.model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage,
        }
        return _event(b"message_start", {"type": "message_start", "message": head})

    def _choice(self, choice: Choice) -> bytes:
        out = b""
        if choice.finish_reason:
            self._last = choice
        part = choice.delta
        if part is None:
            return out
        if part.thought:
            out += self._piece("thinking", b"thinking_delta", b"thinking", part.thought)
        if part.content:
            out += self._piece("text", b"text_delta", b"text", part.content)
        if part.refusal:
            self._refused += part.refusal
        for call in part.tool_calls or ():
            out += self._more_of(call)
        return out

    def _more_of(self, call: Call) -> bytes:
        """A call, begun or continued.  Without an index a call with an id is a new one, any other the last."""
        index = call.index
        if index is None:
            index = self._call + 1 if call.id else max(0, self._call)
        out = b""
        if index not in self._calls:
            out = self._begin_call(call, index)
        elif index != self._call or self._open != "tool_use":
            what = f"went on with tool call {index} after another part of the answer had begun"
            raise AnswerError("engine_untranslatable", what)
        if call.function.arguments:
            out += self._delta(b"input_json_delta", b"partial_json", call.function.arguments)
        return out

    def _begin_call(self, call: Call, index: int) -> bytes:
        if len(self._calls) >= CALLS_MAX:
            raise AnswerError("engine_garbage", f"answered with over {CALLS_MAX} tool calls")
        self._calls.add(index)
        self._call = index
        name = call.function.name or ""
        block = {
            "type": "tool_use",
            "id": _id(call.id, self._id or "", len(self._calls) - 1),
            "name": name,
            "input": {},
        }
        return self._close() + self._begin("tool_use", block)

    def _piece(self, kind: str, delta: bytes, field: bytes, text: str) -> bytes:
        """More of a block of text or thinking, which begins where it has to."""
        if self._open == kind:
            return self._delta(delta, field, text)
        block = {"type": kind, kind: ""}
        if kind == "thinking":
            block["signature"] = ""
        return self._close() + self._begin(kind, block) + self._delta(delta, field, text)

    def _begin(self, kind: str, block: dict[str, Any]) -> bytes:
        self._open = kind
        self._blocks += 1
        told = {"type": "content_block_start", "index": self._blocks, "content_block": block}
        return _event(b"content_block_start", told)

    def _delta(self, kind: bytes, field: bytes, text: str) -> bytes:
        """The event that comes once a token."""
        return (
            b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,'
            b'"delta":{"type":"%b","%b":%b}}\n\n' % (self._blocks, kind, field, _encode(text))
        )

    def _close(self) -> bytes:
        if not self._open:
            return b""
        self._open = ""
        return _event(b"content_block_stop", {"type": "content_block_stop", "index": self._blocks})

    def _finish(self) -> bytes:
        self.done = True
        if self._id is None:
            raise AnswerError("engine_garbage", "ended a stream before it began")
        stop_reason, stop_sequence, details = _end(self._last, self._refused, tools=bool(self._calls))
        delta = {"stop_reason": stop_reason, "stop_sequence": stop_sequence, "stop_details": details}
        usage = messages_usage(self._usage)
        told = {"type": "message_delta", "delta": delta, "usage": usage}
        return self._close() + _event(b"message_delta", told) + _STOP


def _event(kind: bytes, told: dict[str, Any]) -> bytes:
    return b"event: " + kind + b"\ndata: " + _encode(told) + b"\n\n"


_KINDS = {
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
}


def refusal(status: int, body: bytes) -> bytes:
    """An engine's refusal (4xx) in Anthropic's shape, with the engine's own words.

    >>> refusal(429, b'{"error":{"message":"slow down","type":"rate_limit","code":null}}')
    b'{"type":"error","error":{"type":"rate_limit_error","message":"slow down"}}'
    """
    kind = _KINDS.get(status, "invalid_request_error")
    return _encode({"type": "error", "error": {"type": kind, "message": error_text(body)}})
