"""What the answer of an OpenAI-compatible server says: tokens, usage, the end, an error.  No I/O.

`StreamReader` looks into a stream only where it matters: every event until the first that carries content, and those
that can be the end, usage or an error; in between, events that say `"finish_reason":null` are counted.  A stream passes byte for byte.

Rules: one event with content counts as one token, until usage tells better; usage is understood under everybody's names
(`dialect.usage`); an error event stops the stream, what came before it stays valid.
Errors come as data (`{"error": ...}`; `{"object": "error"}` of vLLM before 0.9), as events named `error`, and as a field
`error:` (llama.cpp before mid 2025).

Deliberately absent: the answer's text.

(`in` between two `bytes` costs three times a `find`: the interpreter first tries to read the left one as a number.)
"""

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec
import orjson

from sits.core.request import Chunk, Usage
from sits.engine.dialect.usage import counts_of
from sits.engine.sse import EventTooLongError, SseSplitter, data_of, event_end, only_data
from sits.engine.usage_told import TAIL

ERROR_TEXT_MAX: Final = 300
"""Characters of an engine's own error text that are repeated to the caller."""

_NAMED_ERROR: Final = re.compile(rb"^event: ?error\r?$", re.MULTILINE)

_CALM: Final = (b'"finish_reason":null', b'"finish_reason": null')
"""What every event in mid-stream contains, and no end, error or last usage does, in either spelling of JSON.  Text cannot
fake it, because quotes are escaped in JSON strings.  A stream without it is read event by event."""


class StreamReader:
    """Follows one stream.

    `done`: the end was seen (`[DONE]`); `problem`: (code, text) of what went wrong, None while all is well; `marker`: while
    not empty, one event of one line that contains it is one token, and need not be read; `ending`: a chunk without bytes that
    comes after the end, where there is one.
    """

    ending: Chunk | None = None

    def __init__(self, status: int, content_type: bytes) -> None:
        self.done = False
        self.problem: tuple[str, str] | None = None
        self._splitter = SseSplitter()
        self._first: Chunk | None = Chunk(status=status, content_type=content_type)
        self._flowing = False
        self._calm = _CALM[0]
        self.marker = b""

    def take(self, data: bytes) -> Chunk | None:
        """The chunk of whole events that `data` completes, None when it completes none."""
        try:
            block = self._splitter.feed(data)
        except EventTooLongError as error:
            self.problem = ("engine_garbage", f"sent {error}")
            return None
        self.marker = self._calm if self._flowing and not self._splitter.holds else b""
        if not block:
            return None
        if self._flowing:
            count = _count_data(block)
            if block.count(self._calm) == count and (only_data(block) or not _has_field(block)):
                return Chunk(data=block, tokens=count)
        chunk = self._read(block)
        return chunk if chunk.data else None

    def end(self, *, cut: bool) -> None:
        """No more bytes.  `cut`: the connection's end was the only sign of it, as it is when an engine dies."""
        if cut and not self.done:
            self.problem = ("engine_died", "closed the stream before [DONE]")
        elif self._splitter.rest.strip():
            self.problem = ("engine_died", "ended the stream inside an event")

    def _read(self, block: bytes) -> Chunk:
        """Look at single events: up to the first with content, and after the last calm one; count between."""
        chunk, self._first = self._first or Chunk(), None
        passed, counted = 0, False
        while passed < len(block):
            if self._flowing and not counted:
                calm, counted = block[passed : self._calm_end(block, passed)], True
                chunk.tokens += _count_data(calm)
                passed += len(calm)
                continue
            event = block[passed : event_end(block, passed)]
            data = data_of(event)
            if not only_data(event) and _is_error(event):
                shown = error_text(data or event.partition(b"error:")[2].strip())
                self.problem = ("engine_error_event", f"failed in mid-stream: {shown}")
                break
            if data == b"[DONE]":
                self.done = chunk.last = True
            elif data is not None and not self._understand(data, chunk):
                break
            passed += len(event)
            self._flowing = self._flowing or chunk.tokens > 0
        chunk.data = block[:passed] if passed < len(block) else block
        return chunk

    def _calm_end(self, block: bytes, start: int) -> int:
        """Where the calm events at `start` end: after the last calm one, unless another is among them."""
        last = block.rfind(self._calm, start)
        if last < 0:
            return start
        end = event_end(block, last)
        head = block[start:end]
        return end if head.count(self._calm) == _count_data(head) and not _has_field(head) else start

    def _understand(self, data: bytes, chunk: Chunk) -> bool:
        """Add what one event says to `chunk`; False when it says that the engine failed."""
        try:
            event = orjson.loads(data)
        except ValueError:
            shown = data[:80].decode(errors="replace")
            self.problem = ("engine_garbage", f"sent an event that is not JSON: {shown}")
            return False
        if not isinstance(event, dict):
            return True
        if event.get("error") or event.get("object") == "error":  # the second: vLLM before 0.9
            self.problem = ("engine_error_event", f"failed in mid-stream: {error_text(data)}")
            return False
        if _carries_content(event):
            chunk.tokens += 1
            self._calm = _CALM[1] if _CALM[1] in data else _CALM[0]
        chunk.usage = counts_of(event.get("usage")) or chunk.usage
        return True


def _count_data(block: bytes) -> int:
    return block.count(b"\ndata:") + block.startswith(b"data:")


def _has_error_field(block: bytes) -> bool:
    """A field is told from text by the line end before it, which JSON escapes."""
    return block.find(b"\nerror:") >= 0 or block.startswith(b"error:")


def _has_field(block: bytes) -> bool:
    """Whether a line is a field but `data:` that could say that something is wrong; an event without data has no other."""
    return block.find(b"\nevent:") >= 0 or block.startswith(b"event:") or _has_error_field(block)


def _is_error(event: bytes) -> bool:
    """Whether the event says by its name or by its field that it is an error."""
    return _has_error_field(event) or (event.find(b"event:") >= 0 and _NAMED_ERROR.search(event) is not None)


def _carries_content(event: Mapping[str, Any]) -> int:
    """1 when the event carries generated text, reasoning or tool arguments, else 0."""
    choices = event.get("choices")
    for choice in choices if isinstance(choices, list) else ():
        if not isinstance(choice, dict):
            continue
        if choice.get("text"):
            return 1
        delta = choice.get("delta")
        if isinstance(delta, dict):
            for key, value in delta.items():
                if value and key != "role":
                    return 1
    return 0


def usage_of(body: bytes) -> Usage | None:
    """The usage of a plain answer, found at its end without building the answer.

    >>> usage_of(b'{"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 2}}')
    Usage(input=5, output=2, cached=0)
    """
    at = body.rfind(b'"usage"')
    if at < 0:
        return None
    try:  # as nearly all engines tell it, without building an object
        told = TAIL.decode(b"{" + body[at:]).usage
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return _usage_of_rest(body, at)
    return Usage(told.prompt_tokens, told.completion_tokens)


def _usage_of_rest(body: bytes, at: int) -> Usage | None:
    """By the rules of `counts_of`; where usage is a field of the answer itself, what follows it is the rest of an object."""
    try:
        return counts_of(orjson.loads(b"{" + body[at:])["usage"])
    except ValueError:
        return _usage_of_whole(body)


def _usage_of_whole(body: bytes) -> Usage | None:
    try:
        found = orjson.loads(body)
    except ValueError:
        return None
    return counts_of(found.get("usage")) if isinstance(found, dict) else None


def cut_short(body: bytes) -> bool:
    """Whether `body` begins as a JSON object and is none: what an engine's death leaves of an answer without a length."""
    if not body.lstrip().startswith(b"{"):
        return False
    try:
        orjson.loads(body)
    except ValueError:
        return True
    return False


def error_text(body: bytes) -> str:
    """The engine's own words.

    >>> error_text(b'{"error": {"message": "CUDA out of memory"}}'), error_text(b"oops")
    ('CUDA out of memory', 'oops')
    """
    try:
        found = orjson.loads(body)
    except ValueError:
        found = None
    if isinstance(found, dict):
        inner = found.get("error")
        text = inner.get("message") if isinstance(inner, dict) else inner
        text = text or found.get("message") or found.get("detail")
        if isinstance(text, str):
            return text[:ERROR_TEXT_MAX]
    return body[:ERROR_TEXT_MAX].decode(errors="replace").strip() or "no text"
