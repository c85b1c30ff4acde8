"""An answer that comes whole and is too large to be held: it is passed on in pieces, and its usage is read off its end.

Rules: what is not a stream of events has no tokens one could count on the way; they are told by the usage at the end, if it is
there.  Of an answer whose only end is that of its connection, an object must be whole: its brackets are counted as it passes, for the
last byte alone says little (most objects end in others' brackets).  What is no object cannot be told, and passes, as a small one does.

Deliberately absent: whether it is JSON otherwise, and translation (an answer in another dialect is held until it is whole).
"""

from sits.core.request import Chunk
from sits.engine.answer import usage_of

WHOLE_BYTES_MAX = 2**20
"""Larger answers are not held."""

TAIL_BYTES = 64 * 1024


class Brackets:
    r"""Counts the brackets of JSON that comes in pieces, those in strings left out.

    >>> brackets = Brackets()
    >>> for piece in (b'{"a\\', b'"}', b'": [{}'):
    ...     brackets.take(piece)
    >>> brackets.closed
    False
    >>> brackets.take(b"]}")
    >>> brackets.closed
    True
    """

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = self._escaped = False

    @property
    def closed(self) -> bool:
        """Every one that was opened."""
        return not self._depth and not self._in_string

    def take(self, data: bytes) -> None:
        """The next piece."""
        if self._escaped and data:
            data, self._escaped = data[1:], False
        if b"\\" in data:
            data = data.replace(b"\\\\", b"")
            self._escaped = data.endswith(b"\\")
            data = data.replace(b'\\"', b"")
        pieces = data.split(b'"')
        outside = b"".join(pieces[self._in_string :: 2])
        self._in_string ^= not len(pieces) % 2
        opened, closed = outside.count(b"{") + outside.count(b"["), outside.count(b"}") + outside.count(b"]")
        self._depth += opened - closed


class LargeReader:
    """Follows one answer of which `begins` is here; `framed`: it has a length or chunks.  See `answer.StreamReader` for the attributes."""

    marker = b""

    def __init__(self, status: int, content_type: bytes, begins: bytes, *, framed: bool = False) -> None:
        self.done = False
        self.problem: tuple[str, str] | None = None
        self.ending: Chunk | None = None
        self._first: Chunk | None = Chunk(
            data=begins, status=status, content_type=content_type, in_pieces=True
        )
        self._tail = begins[-TAIL_BYTES:]
        self._brackets = None if framed or not begins.lstrip().startswith(b"{") else Brackets()
        if self._brackets is not None:
            self._brackets.take(begins)

    def take(self, data: bytes) -> Chunk | None:
        """The piece as it is, and before it what was here already."""
        self._tail = (self._tail + data)[-TAIL_BYTES:] if len(data) < TAIL_BYTES else data[-TAIL_BYTES:]
        if self._brackets is not None:
            self._brackets.take(data)
        chunk, self._first = self._first or Chunk(), None
        chunk.data = chunk.data + data if chunk.data else data
        return chunk

    def end(self, *, cut: bool) -> None:
        """No more bytes: what the answer took."""
        if cut and self._brackets is not None and not self._brackets.closed:
            self.problem = ("engine_died", "closed the connection inside its answer")
            return
        self.done = True
        usage = usage_of(self._tail)
        chunk, self._first = self._first or Chunk(), None
        chunk.last, chunk.usage, chunk.tokens = True, usage, max(1, usage.output) if usage else 1
        self.ending = chunk
