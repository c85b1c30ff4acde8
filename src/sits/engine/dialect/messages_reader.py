"""What a stream of Anthropic's says while it passes byte for byte: tokens, usage, the end, an error.  No I/O.

The counterpart of `answer.StreamReader`, with the same use.  A block of nothing but `content_block_delta` events, each with its line of data, is
counted, not read: a line end inside JSON is escaped, so text cannot fake the line `event: content_block_delta`.

Rules: one delta counts as one token, until usage tells better; usage comes in two parts, the later ones count; the end is
`message_stop`, without it a stream has died; an error event stops the stream, what came before it stays valid; events of
other types pass.

Deliberately absent: the answer's text.
"""

from typing import Any

import msgspec

from sits.core.request import Chunk
from sits.engine.answer import error_text
from sits.engine.dialect.usage import MessagesUsage
from sits.engine.sse import EventTooLongError, SseSplitter, data_of, events

_CALM = b"event: content_block_delta\n"
_CALM_LINE = b"\n" + _CALM


class _Message(msgspec.Struct):
    usage: MessagesUsage | None = None


class _Event(msgspec.Struct):
    type: str
    message: _Message | None = None
    usage: MessagesUsage | None = None
    error: Any = None


_decode = msgspec.json.Decoder(_Event).decode


class MessagesReader:
    """Follows one stream.

    `done`: the end was seen; `problem`: (code, text) of what went wrong, None while all is well.
    """

    marker = b""
    ending: Chunk | None = None

    def __init__(self, status: int, content_type: bytes) -> None:
        self.done = False
        self.problem: tuple[str, str] | None = None
        self._splitter = SseSplitter()
        self._first: Chunk | None = Chunk(status=status, content_type=content_type)
        self._usage = MessagesUsage()

    def take(self, data: bytes) -> Chunk | None:
        """The chunk of whole events that `data` completes, None when it completes none."""
        try:
            block = self._splitter.feed(data)
        except EventTooLongError as error:
            self.problem = ("engine_garbage", f"sent {error}")
            return None
        if not block:
            return None
        chunk, self._first = self._first or Chunk(), None
        count = block.count(_CALM_LINE) + block.startswith(_CALM)
        if count and count == block.count(b"\nevent:") + block.startswith(b"event:") == block.count(
            b"\ndata:"
        ):
            chunk.data, chunk.tokens = block, count
            return chunk
        passed = 0
        for event in events(block):
            if not self._understand(event, chunk):
                break
            passed += len(event)
        chunk.data = block[:passed]
        return chunk if passed else None

    def end(self, *, cut: bool) -> None:
        """No more bytes; `cut` or not, a stream that has not said its end has died."""
        if not self.done and self.problem is None:
            self.problem = ("engine_died", "closed the stream before message_stop")

    def _understand(self, event: bytes, chunk: Chunk) -> bool:
        """Add what one event says to `chunk`; False when it says that the engine failed."""
        data = data_of(event)
        if data is None:
            return True
        try:
            told: _Event = _decode(data)
        except msgspec.DecodeError:
            shown = data[:80].decode(errors="replace")
            self.problem = ("engine_garbage", f"sent an event that is none of the Messages API: {shown}")
            return False
        if told.type == "error":
            self.problem = ("engine_error_event", f"failed in mid-stream: {error_text(data)}")
            return False
        if told.type == "content_block_delta":
            chunk.tokens += 1
        elif told.type == "message_start" and told.message and told.message.usage:
            self._usage.update(told.message.usage)
        elif told.type == "message_delta":
            self._usage.update(told.usage or MessagesUsage())
            counts = self._usage.counts
            chunk.usage = counts if counts.input or counts.output else None
        elif told.type == "message_stop":
            self.done = chunk.last = True
        return True
