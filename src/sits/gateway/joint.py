"""A Joint: one request to the engine for several held ones (embeddings), and each one's share of the answer.

The first member that is forwarded sends it; each gets its share as one chunk, with the engine's points on its own timeline.

Rules:
- Who leaves takes only itself away: the request goes on for the others, and is given up when all have left.
- An engine that fails, fails for all, and each is tried again by itself, as ever; to breakers it is one failure.
- An answer that says a request is wrong (400,
  413, 422), or that cannot be shared out, is nobody's: each member is then sent by itself to the same engine, so that
  one request too long spoils no other.  Any other refusal holds for all alike.
- The engine sees the headers of the first member (id, trace).

Deliberately absent: what can be merged and how an answer is shared out (`gateway.merging`), and when (`gateway.holding`).
"""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec

from sits.core.breakpoints import DISPATCHED, FIRST_TOKEN
from sits.core.errors import EngineError, SitsError
from sits.core.ports import Engine
from sits.core.request import Chunk, Request
from sits.core.timeline import Timeline
from sits.engine.waiter import Waiter
from sits.gateway.merging import EMBEDDINGS, Asked, asked, merged, parts
from sits.gateway.strand import Strand

if TYPE_CHECKING:
    from sits.gateway.holding import Holder, Seat

ENGINE_POINTS = range(DISPATCHED + 1, FIRST_TOKEN)
THEIR_OWN = frozenset({400, 413, 422})
"""Statuses that say something of one request, not of the engine."""


def joined(holder: "Holder", seats: Sequence["Seat"]) -> Iterator[tuple["Seat", "Joint", int]]:
    """The seats that go together, each with its Joint and its place in it.

    Those are embeddings that are equal but for their texts, `max_batch` texts at most.
    """
    groups: dict[tuple[str, tuple[tuple[str, bytes], ...]], list[tuple[Seat, Asked]]] = {}
    for seat in seats:
        request = seat.request
        if request.endpoint != EMBEDDINGS or request.adapter:
            continue
        one = asked(request.body, request.prompt_tokens)
        if one is not None:
            groups.setdefault((request.dialect_headers, one.rest), []).append((seat, one))
    for group in groups.values():
        for some in _cut(group, holder.config.max_batch):
            if len(some) > 1:
                joint = Joint(holder, [one for _, one in some])
                yield from ((seat, joint, place) for place, (seat, _) in enumerate(some))


def _cut(group: list[tuple["Seat", Asked]], most: int) -> Iterator[list[tuple["Seat", Asked]]]:
    """The group in pieces of at most `most` texts; one that has more by itself goes alone."""
    some: list[tuple[Seat, Asked]] = []
    texts = 0
    for seat, one in group:
        if some and texts + len(one.texts) > most:
            yield some
            some, texts = [], 0
        some.append((seat, one))
        texts += len(one.texts)
    yield some


class Joint:
    """One request for several; `part` is each member's answer."""

    def __init__(self, holder: "Holder", members: Sequence[Asked]) -> None:
        self._holder = holder
        self._members = members
        self._present = 0
        self._timeline = Timeline()
        self._parts: list[Chunk] | None = None
        self._error: BaseException | None = None
        self._counted: set[object] = set()
        self._over = False
        self._waiters: list[Waiter] = []
        self._strand: Strand | None = None

    def part(self, place: int, engine: Engine, request: Request, timeline: Timeline) -> AsyncIterator[Chunk]:
        """The answer of the member at `place`."""
        self._present += 1
        return _Part(self, place, engine, request, timeline)

    async def outcome(self, engine: Engine, request: Request) -> list[Chunk] | None:
        """Every member's chunk; None when each has to be sent by itself.

        Raises:
            EngineError: the engine failed, for all of them.

        """
        if self._strand is None:
            tokens = sum(member.weight for member in self._members)
            sent = msgspec.structs.replace(request, body=merged(self._members), prompt_tokens=tokens)
            self._strand = Strand(self._ask(engine, sent), self._ended)
        if not self._over:
            waiter = Waiter()
            self._waiters.append(waiter)
            await waiter
        if isinstance(self._error, EngineError):
            error = type(self._error)(self._error.message, code=self._error.code)
            error.counted = self._counted
            raise error
        return self._parts

    def leave(self) -> None:
        """A member no longer wants its share."""
        self._present -= 1
        if not self._present and self._strand is not None and not self._over:
            self._strand.cancel()

    def share_points(self, timeline: Timeline) -> None:
        """The engine's points are everybody's, also of who was forwarded a moment after the first."""
        sent_ns = timeline.at[DISPATCHED]
        for point in ENGINE_POINTS:
            if self._timeline.how[point]:
                timeline.mark(point, max(sent_ns, self._timeline.at[point]), self._timeline.how[point])

    async def _ask(self, engine: Engine, request: Request) -> None:
        stream = engine.generate(request, self._timeline)
        try:
            chunks = [chunk async for chunk in stream]
        finally:
            close = getattr(stream, "aclose", None)
            if close is not None:
                await close()
        self._parts = self._shared(chunks)
        self._holder.told(apart=self._parts is None)

    def _shared(self, chunks: list[Chunk]) -> list[Chunk] | None:
        first = chunks[0] if chunks else Chunk(status=400)
        body = b"".join(chunk.data for chunk in chunks)
        if first.status in THEIR_OWN:
            return None
        if first.status >= 400:
            return [msgspec.structs.replace(first, data=body, last=True) for _ in self._members]
        found = parts(body, self._members)
        if found is None:
            return None
        return [Chunk(part.body, 1, True, part.usage, first.status, first.content_type) for part in found]

    def _ended(self, error: BaseException | None) -> None:
        self._over, self._error = True, error
        if error is not None and not isinstance(error, SitsError | asyncio.CancelledError):
            asyncio.get_running_loop().call_exception_handler(
                {"message": "bug in a joint request", "exception": error}
            )
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            waiter.wake()


class _Part:
    """One member's answer: its share, or, taken apart, the engine's own answer to it alone."""

    def __init__(
        self, joint: Joint, place: int, engine: Engine, request: Request, timeline: Timeline
    ) -> None:
        self._joint, self._place = joint, place
        self._engine, self._request, self._timeline = engine, request, timeline
        self._alone: AsyncIterator[Chunk] | None = None
        self._asked = False

    async def whole(self) -> Chunk | None:
        """The one chunk of the answer; None when it has to be read in chunks."""
        self._asked = True
        try:
            chunks = await self._joint.outcome(self._engine, self._request)
        finally:
            self._joint.leave()
        if chunks is not None:
            self._joint.share_points(self._timeline)
            return chunks[self._place]
        self._alone = self._engine.generate(self._request, self._timeline)
        whole = getattr(self._alone, "whole", None)
        return None if whole is None else await whole()

    def __aiter__(self) -> "_Part":
        return self

    async def __anext__(self) -> Chunk:
        if not self._asked:
            chunk = await self.whole()
            if chunk is not None:
                return chunk
        if self._alone is None:
            raise StopAsyncIteration
        return await anext(self._alone)

    async def aclose(self) -> None:
        """It is over, or no longer wanted."""
        close = getattr(self._alone, "aclose", None)
        if close is not None:
            await close()
