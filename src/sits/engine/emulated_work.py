"""One request inside the emulated engine: its points, its chunks, and the caller who waits for them.

Rules: points are marked when their time has come, so a request that is cancelled has those it reached and no
others.  Tokens leave at the end of the step that made them; a streamed answer in chunks of so many tokens, any
other as one.  What a request that is gone would have got, nobody gets.

Deliberately absent: when steps happen (`emulated`), and what bytes look like (`emulated_text`).
"""

import asyncio
from collections import deque

from sits.core.breakpoints import KV_ALLOCATED, QUEUED, SCHEDULED, TOKENIZED
from sits.core.errors import EngineError
from sits.core.request import Chunk, Request, Usage
from sits.core.timeline import Timeline
from sits.engine.emulated_text import EVENTS, JSON, Form
from sits.sim.model import StepResult


class Work:
    """One request; `tokenized_ns` and `queued_ns` are when the front end is done with it."""

    __slots__ = (
        "_answer",
        "_chunks",
        "_error",
        "_generated",
        "_generates",
        "_sent",
        "_waiter",
        "gone",
        "output",
        "prompt",
        "queued_ns",
        "request",
        "timeline",
        "tokenized_ns",
    )

    def __init__(
        self,
        request: Request,
        timeline: Timeline,
        output: int,
        answer: Form | None,
        *,
        generates: bool = True,
    ) -> None:
        self.request = request
        self.timeline = timeline
        self.prompt = max(1, request.prompt_tokens)
        self.output = output
        self.tokenized_ns = 0
        self.queued_ns = 0
        self.gone = False
        self._answer = answer
        self._generated = 0
        self._generates = generates
        self._sent = 0
        self._chunks: deque[Chunk] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._error: EngineError | None = None

    async def next_chunk(self) -> Chunk:
        """What is sent next; raises the error of `fail` when nothing is."""
        while not self._chunks:
            if self._error is not None:
                raise self._error
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return self._chunks.popleft()

    def fail(self, error: EngineError) -> None:
        """End the answer with an error."""
        self._error = error
        self._wake()

    def mark_front_end(self, now_ns: int) -> None:
        """Mark the points of the front end that have come by `now_ns`."""
        if self.tokenized_ns <= now_ns:
            self.timeline.mark(TOKENIZED, self.tokenized_ns)
        if self.queued_ns <= now_ns:
            self.timeline.mark(QUEUED, self.queued_ns)

    def mark_preparation(self, step: StepResult["Work"], now_ns: int) -> None:
        """Mark `scheduled` and the device points of the step that have come by `now_ns`."""
        at_ns = step.t_ns
        self.timeline.mark(SCHEDULED, at_ns)
        for point, stage_ns in enumerate(step.stages_ns, KV_ALLOCATED):
            at_ns += stage_ns
            if at_ns > now_ns:
                return
            self.timeline.mark(point, at_ns)

    def add_token(self, interval: int) -> None:
        """One token more, not the last; it is sent when it is the first or `interval` wait."""
        self._generated += 1
        if self.request.stream and (self._generated == 1 or self._generated - self._sent >= interval):
            self._push(None)

    def finish(self, preemptions: int) -> None:
        """All tokens are there: send the rest."""
        self.gone = True
        self._generated = self.output
        self._push(Usage(self.prompt, self.output if self._generates else 0), preemptions)

    def _push(self, usage: Usage | None, preemptions: int = 0) -> None:
        tokens = self._generated - self._sent
        chunk = Chunk(tokens=tokens, last=usage is not None, usage=usage, preemptions=preemptions)
        if self._answer is not None:
            if self.request.stream:
                chunk.data = self._answer.piece(tokens, usage)
                chunk.content_type = EVENTS
            elif usage is not None:
                chunk.data = self._answer.whole(usage)
                chunk.content_type = JSON
        self._sent = self._generated
        self._chunks.append(chunk)
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def deliver_some(step: StepResult[Work], interval: int) -> None:
    """Give everybody the token of a step, in chunks of `interval`."""
    finished = dict(zip(step.finished, step.preemptions, strict=True))
    for work in step.emitted:
        if work.gone:
            continue
        if work in finished:
            work.finish(finished[work])
        else:
            work.add_token(interval)


def deliver_ends(step: StepResult[Work]) -> None:
    """Give first tokens, and to those that finish all the rest; what is between needs no chunk."""
    for work in step.first:
        if not work.gone and work.output > 1:
            work.add_token(1)
    for work, preemptions in zip(step.finished, step.preemptions, strict=True):
        if not work.gone:
            work.finish(preemptions)
