"""An answer in Anthropic's dialect as one in OpenAI's: whole, as a stream, or as an error.

Rules:
- Text blocks are joined; calls keep their order and get the index of a call; thinking becomes `reasoning_content`.
- A stream begins with the role, ends with the finish reason, then usage where it was asked for, then `[DONE]`; a ping
  becomes a comment, so it still keeps the connection alive.
- A call without arguments says `{}`, as a whole answer would.
- Event types nobody knows are skipped, as Anthropic asks of its clients; a *block* nobody knows is part of the answer, and
  an error: half an answer is not passed off as a whole one.
- An explanation of a refusal becomes `refusal`.

Lossy but harmless: `signature` of thinking and `redacted_thinking` (only their maker reads them), citations (nobody who asks
in OpenAI's dialect can ask for them), `container`, `service_tier`.

Deliberately absent: `error` events and ends without `message_stop`; the reader in front of this finds them.
"""

from typing import Any

import msgspec

from sits.engine.answer import error_text
from sits.engine.dialect.chat import Raw
from sits.engine.dialect.ending import Ending, ending_of
from sits.engine.dialect.reading import decoded
from sits.engine.dialect.usage import MessagesUsage, chat_usage
from sits.engine.sse import SseSplitter, contents

DONE = b"data: [DONE]\n\n"
PING = b": ping\n\n"

_encode = msgspec.json.encode


class Text(msgspec.Struct, tag_field="type", tag="text"):
    """A block of text."""

    text: str = ""


class Thinking(msgspec.Struct, tag_field="type", tag="thinking"):
    """A block of reasoning."""

    thinking: str = ""


class Redacted(msgspec.Struct, tag_field="type", tag="redacted_thinking"):
    """Reasoning nobody here can read."""


class ToolUse(msgspec.Struct, tag_field="type", tag="tool_use"):
    """A call."""

    id: str
    name: str
    input: Raw = Raw(b"{}")


Block = Text | Thinking | Redacted | ToolUse


class StopDetails(msgspec.Struct):
    """More about an end; only refusals have it so far."""

    explanation: str | None = None


class Message(msgspec.Struct):
    """A whole answer, or the head of a stream."""

    id: str
    model: str
    content: list[Block] = []
    stop_reason: str | None = None
    stop_sequence: str | None = None
    stop_details: StopDetails | None = None
    usage: MessagesUsage = msgspec.field(default_factory=MessagesUsage)


class TextDelta(msgspec.Struct, tag_field="type", tag="text_delta"):
    """More text."""

    text: str


class InputDelta(msgspec.Struct, tag_field="type", tag="input_json_delta"):
    """More arguments."""

    partial_json: str


class ThinkingDelta(msgspec.Struct, tag_field="type", tag="thinking_delta"):
    """More reasoning."""

    thinking: str


class SignatureDelta(msgspec.Struct, tag_field="type", tag="signature_delta"):
    """What proves reasoning genuine to its maker."""


class CitationsDelta(msgspec.Struct, tag_field="type", tag="citations_delta"):
    """Where text came from."""


class MessageStart(msgspec.Struct, tag_field="type", tag="message_start"):
    """The head of a stream."""

    message: Message


class BlockStart(msgspec.Struct, tag_field="type", tag="content_block_start"):
    """A block begins."""

    content_block: Block
    index: int = 0


class BlockDelta(msgspec.Struct, tag_field="type", tag="content_block_delta"):
    """A block goes on."""

    delta: TextDelta | InputDelta | ThinkingDelta | SignatureDelta | CitationsDelta
    index: int = 0


class BlockStop(msgspec.Struct, tag_field="type", tag="content_block_stop"):
    """A block is over."""

    index: int = 0


class End(msgspec.Struct):
    """Why it ended."""

    stop_reason: str | None = None
    stop_sequence: str | None = None
    stop_details: StopDetails | None = None


class MessageDelta(msgspec.Struct, tag_field="type", tag="message_delta"):
    """The end of an answer, and what it took."""

    delta: End
    usage: MessagesUsage = msgspec.field(default_factory=MessagesUsage)


class MessageStop(msgspec.Struct, tag_field="type", tag="message_stop"):
    """The end of a stream."""


class Ping(msgspec.Struct, tag_field="type", tag="ping"):
    """Nothing, so that the connection is not idle."""


Event = MessageStart | BlockStart | BlockDelta | BlockStop | MessageDelta | MessageStop | Ping
_EVENTS = frozenset(
    ("message_start", "content_block_start", "content_block_delta", "content_block_stop", "message_delta")
) | {"message_stop", "ping"}


class _Kind(msgspec.Struct):
    type: str


_message = msgspec.json.Decoder(Message).decode
_event = msgspec.json.Decoder(Event).decode
_kind = msgspec.json.Decoder(_Kind).decode


def completion(body: bytes, created_s: int) -> bytes:
    """A whole answer in OpenAI's dialect.

    Raises:
        AnswerError: it is no answer, or has a part that cannot be said there.

    """
    told: Message = decoded(_message, body)
    message: dict[str, Any] = {"role": "assistant", "content": None, "refusal": None}
    for block in told.content:
        if isinstance(block, Text):
            message["content"] = (message["content"] or "") + block.text
        elif isinstance(block, Thinking):
            message["reasoning_content"] = message.get("reasoning_content", "") + block.thinking
        elif isinstance(block, ToolUse):
            message.setdefault("tool_calls", []).append(_call(block))
    if told.stop_details is not None:
        message["refusal"] = told.stop_details.explanation
    ending = ending_of(told.stop_reason, told.stop_sequence)
    return _encode(
        {
            "id": told.id,
            "object": "chat.completion",
            "created": created_s,
            "model": told.model,
            "choices": [{"index": 0, "message": message, "logprobs": None, **fields_of(ending)}],
            "usage": chat_usage(told.usage),
        }
    )


def _call(block: ToolUse) -> dict[str, Any]:
    arguments = bytes(block.input).decode()
    return {"id": block.id, "type": "function", "function": {"name": block.name, "arguments": arguments}}


def fields_of(ending: Ending) -> dict[str, Any]:
    """The fields of a choice that say why it ended."""
    fields: dict[str, Any] = msgspec.to_builtins(ending)
    return fields


class CompletionStream:
    """Turns Anthropic's events into OpenAI's chunks, whatever the pieces they come in.  `done`: they said `message_stop`.

    Args:
        created_s: when, for the chunks' `created`.
        usage: whether the caller asked for a chunk with the usage.

    """

    def __init__(self, created_s: int, *, usage: bool) -> None:
        self.done = False
        self._created_s = created_s
        self._asked = usage
        self._splitter = SseSplitter()
        self._head = b""
        self._tail = b""
        self._usage = MessagesUsage()
        self._calls = -1
        self._call: ToolUse | None = None
        self._arguments = False

    def take(self, data: bytes) -> bytes:
        """The chunks that `data` completes.

        Raises:
            AnswerError: an event that cannot be read, or said in OpenAI's dialect.

        """
        return b"".join(map(self._translate, contents(self._splitter.feed(data))))

    def _translate(self, data: bytes | None) -> bytes:
        if data is None:
            return PING
        try:
            told = _event(data)
        except msgspec.DecodeError:
            if decoded(_kind, data).type not in _EVENTS:
                return b""
            told = decoded(_event, data)
        if isinstance(told, BlockDelta):
            return self._delta(told)
        if isinstance(told, BlockStart):
            return self._begin(told.content_block)
        if isinstance(told, BlockStop):
            return self._block_end()
        if isinstance(told, MessageStart):
            return self._start(told.message)
        if isinstance(told, MessageDelta):
            return self._end(told)
        if isinstance(told, Ping):
            return PING
        self.done = True
        return DONE

    def _start(self, message: Message) -> bytes:
        self._usage.update(message.usage)
        head = {
            "id": message.id,
            "object": "chat.completion.chunk",
            "created": self._created_s,
            "model": message.model,
        }
        self._head = b"data: " + _encode(head)[:-1]
        self._tail = b',"usage":null}\n\n' if self._asked else b"}\n\n"
        return self._chunk({"role": "assistant", "content": "", "refusal": None})

    def _begin(self, block: Block) -> bytes:
        if isinstance(block, ToolUse):
            self._calls += 1
            self._call, self._arguments = block, False
            function = {"name": block.name, "arguments": ""}
            call = {"index": self._calls, "id": block.id, "type": "function", "function": function}
            return self._chunk({"tool_calls": [call]})
        if isinstance(block, Text) and block.text:
            return self._piece(b"content", block.text)
        if isinstance(block, Thinking) and block.thinking:
            return self._piece(b"reasoning_content", block.thinking)
        return b""

    def _delta(self, told: BlockDelta) -> bytes:
        delta = told.delta
        if isinstance(delta, TextDelta):
            return self._piece(b"content", delta.text)
        if isinstance(delta, InputDelta):
            return self._more_arguments(delta.partial_json) if delta.partial_json else b""
        if isinstance(delta, ThinkingDelta):
            return self._piece(b"reasoning_content", delta.thinking)
        return b""

    def _block_end(self) -> bytes:
        call, self._call = self._call, None
        if call is None or self._arguments:
            return b""
        return self._more_arguments(bytes(call.input).decode())

    def _more_arguments(self, text: str) -> bytes:
        self._arguments = True
        return self._chunk({"tool_calls": [{"index": self._calls, "function": {"arguments": text}}]})

    def _end(self, told: MessageDelta) -> bytes:
        self._usage.update(told.usage)
        end = told.delta
        explanation = end.stop_details.explanation if end.stop_details else None
        ending = ending_of(end.stop_reason, end.stop_sequence)
        out = self._chunk({"refusal": explanation} if explanation else {}, fields_of(ending))
        if self._asked:
            out += self._head + b',"choices":[],"usage":' + _encode(chat_usage(self._usage)) + b"}\n\n"
        return out

    def _chunk(self, delta: dict[str, Any], ending: dict[str, Any] | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, **(ending or {"finish_reason": None})}
        return self._head + b',"choices":[' + _encode(choice) + b"]" + self._tail

    def _piece(self, field: bytes, text: str) -> bytes:
        """A chunk with a piece of text; the one that comes once a token."""
        return b'%b,"choices":[{"index":0,"delta":{"%b":%b},"logprobs":null,"finish_reason":null}]%b' % (
            self._head,
            field,
            _encode(text),
            self._tail,
        )


_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}


def refusal(status: int, body: bytes) -> bytes:
    """An engine's refusal (4xx) in OpenAI's shape, with the engine's own words.

    >>> refusal(400, b'{"type":"error","error":{"type":"invalid_request_error","message":"max_tokens: too many"}}')
    b'{"error":{"message":"max_tokens: too many","type":"invalid_request_error","param":null,"code":null}}'
    """
    kind = _KINDS.get(status, "invalid_request_error")
    return _encode({"error": {"message": error_text(body), "type": kind, "param": None, "code": None}})
