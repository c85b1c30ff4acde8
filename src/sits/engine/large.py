"""An answer that comes whole and is too large to be held: it is passed on in pieces, and its usage is read off its end.

Rules: what is not a stream of events has no tokens one could count on the way; they are told by the usage at the end, if it is
there.  An answer whose only end is that of its connection must look like the end of an object.

Deliberately absent: translation (an answer in another dialect is held until it is whole).
"""

from sits.core.request import Chunk
from sits.engine.answer import usage_of

WHOLE_BYTES_MAX = 2**20
"""Larger answers are not held."""

TAIL_BYTES = 64 * 1024


class LargeReader:
    """Follows one answer of which `begins` is here; see `answer.StreamReader` for the attributes."""

    marker = b""

    def __init__(self, status: int, content_type: bytes, begins: bytes) -> None:
        self.done = False
        self.problem: tuple[str, str] | None = None
        self.ending: Chunk | None = None
        self._first: Chunk | None = Chunk(
            data=begins, status=status, content_type=content_type, in_pieces=True
        )
        self._tail = begins[-TAIL_BYTES:]

    def take(self, data: bytes) -> Chunk | None:
        """The piece as it is, and before it what was here already."""
        self._tail = (self._tail + data)[-TAIL_BYTES:] if len(data) < TAIL_BYTES else data[-TAIL_BYTES:]
        chunk, self._first = self._first or Chunk(), None
        chunk.data = chunk.data + data if chunk.data else data
        return chunk

    def end(self, *, cut: bool) -> None:
        """No more bytes: what the answer took."""
        if cut and not self._tail.rstrip().endswith(b"}"):
            self.problem = ("engine_died", "closed the connection inside its answer")
            return
        self.done = True
        usage = usage_of(self._tail)
        chunk, self._first = self._first or Chunk(), None
        chunk.last, chunk.usage, chunk.tokens = True, usage, max(1, usage.output) if usage else 1
        self.ending = chunk
