"""The emulated engine: the engine model behind the Engine port, on any asyncio loop and any clock.

It knows the time each step takes and lets it pass.  A front end (one process, in order) turns prompts into
ids; a driver with one timer a step runs `sim.model.EngineModel` while there is work and stops when there is
none, so idling costs nothing.  Step times are planned: when the loop wakes late, the next step still starts
where the last one ended, so the model's time does not drift from the clock.

Every point 5..16 is marked MEASURED with the time it has in this engine, once that time has come.  Tokens
leave at the end of the step that made them.  The true length of an answer is known here and nowhere else:
`lengths` is the oracle boundary.

Deliberately absent: language.  Bytes are rendered only for callers that sent some (`emulated_text`).
"""

import asyncio
from bisect import bisect_left
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import NamedTuple

from sits.core.breakpoints import ENGINE_RECV, KV_ALLOCATED, QUEUED, SCHEDULED, TOKENIZED
from sits.core.errors import EngineError, UnknownError
from sits.core.ports import World
from sits.core.request import Chunk, Request, Usage
from sits.core.timeline import Timeline
from sits.engine.emulated_text import EVENTS, JSON, Answer
from sits.sim.cpu import Flow
from sits.sim.model import EngineModel, StepResult
from sits.sim.spec import EngineSpec


class StepRow(NamedTuple):
    """One row of the `steps` table (all but `run_id`); times ns, KV in blocks."""

    engine: str
    t_ns: int
    duration_ns: int
    running: int
    waiting: int
    prefill_tokens: int
    decode_tokens: int
    kv_used: int
    kv_total: int
    preempted: int
    denied: int
    recomputed_tokens: int
    copy_bytes: int
    copy_ns: int
    adapter_loads: int
    eager: int
    prepare_ns: int


class _Work:
    """One request inside the engine."""

    __slots__ = (
        "answer",
        "chunks",
        "error",
        "generated",
        "gone",
        "output",
        "prompt",
        "queued_ns",
        "request",
        "sent",
        "timeline",
        "tokenized_ns",
        "waiter",
    )

    def __init__(self, request: Request, timeline: Timeline, output: int, answer: Answer | None) -> None:
        self.request = request
        self.timeline = timeline
        self.prompt = max(1, request.prompt_tokens)
        self.output = output
        self.answer = answer
        self.tokenized_ns = 0
        self.queued_ns = 0
        self.generated = 0
        self.sent = 0
        self.chunks: deque[Chunk] = deque()
        self.waiter: asyncio.Future[None] | None = None
        self.error: EngineError | None = None
        self.gone = False

    def wake(self) -> None:
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)


class EmulatedEngine:
    """An engine whose durations come from predictors.

    Args:
        name: replica id.
        spec: what it pretends to be.
        world: the clock it lives by.
        lengths: true output length of a request, tokens; capped by the request's own limit.
        on_step: called at the end of every step.
        on_tokens: called at the end of every step with the tokens it generated.
        on_flow: called with the ends (ns) of a stretch of uneventful steps and the tokens each of them generates;
            returns the Flow that is cut when the stretch is.  Used when nobody asks for single steps (no
            `on_step`, `stream_interval` 0); then `on_tokens` hears of the other steps only.
        stream_interval: tokens between chunks of a streamed answer; 0 = only the first and the last chunk.
        models: model and adapter names it answers to; empty = any.
        render: render bytes even for requests without a body.
        noise: draw log-normal noise on device time, stream `engine/{name}/noise` of the world.

    """

    def __init__(
        self,
        name: str,
        spec: EngineSpec,
        world: World,
        lengths: Callable[[Request], int],
        *,
        on_step: Callable[[StepRow], None] | None = None,
        on_tokens: Callable[[int], None] | None = None,
        on_flow: Callable[[list[int], int], Flow] | None = None,
        stream_interval: int = 1,
        models: tuple[str, ...] = (),
        render: bool = False,
        noise: bool = False,
    ) -> None:
        self.name = name
        self.spec = spec
        self._world = world
        self._lengths = lengths
        self._on_step = on_step
        self._on_tokens = on_tokens
        self._on_flow = on_flow if on_step is None and stream_interval == 0 else None
        self._interval = stream_interval
        self._models = models
        self._render = render
        self._model: EngineModel[_Work] = EngineModel(
            spec, world.rng(f"engine/{name}/noise") if noise else None
        )
        self._works: dict[_Work, None] = {}
        self._arriving: deque[_Work] = deque()
        self._front_free_ns = 0
        self._timer: asyncio.TimerHandle | None = None
        self._due_ns = 0
        self._result: StepResult[_Work] | None = None
        self._coast_ns: list[int] = []
        self._flow: Flow | None = None
        self._closed = False

    @property
    def running(self) -> int:
        """Requests in the batch."""
        return self._model.running

    @property
    def waiting(self) -> int:
        """Requests in the waiting queue; those still in the front end are not."""
        return self._model.waiting

    @property
    def kv_usage(self) -> float:
        """Share of KV blocks held, 0..1."""
        return 1.0 - self._model.blocks_free / self.spec.blocks

    async def generate(self, request: Request, timeline: Timeline) -> AsyncIterator[Chunk]:
        """Answer `request`; see the Engine port.

        Raises:
            CapacityError: the request could never fit.
            UnknownError: a model or endpoint that is not served here.
            CallerError: a body that is not of the OpenAI shape.
            EngineError: the engine was closed.

        """
        work = self._enter(request, timeline)
        try:
            while True:
                while work.chunks:
                    chunk = work.chunks.popleft()
                    yield chunk
                    if chunk.last:
                        return
                if work.error is not None:
                    raise work.error
                work.waiter = asyncio.get_running_loop().create_future()
                await work.waiter
        finally:
            if not work.gone:
                self._leave(work)

    async def close(self) -> None:
        """Stop; unfinished answers end with an EngineError."""
        self._closed = True
        self._fail(EngineError(f"engine {self.name} was closed", code="engine_closed"))

    def _enter(self, request: Request, timeline: Timeline) -> _Work:
        self._check(request)
        answer = None
        if request.body or self._render:
            answer = Answer(request, self._world.wall_ns() // 1_000_000_000)
        output = max(1, self._lengths(request))
        if request.output_tokens_max:
            output = min(output, request.output_tokens_max)
        work = _Work(request, timeline, output, answer)
        self._model.check(request.id, work.prompt, output, request.adapter)
        now_ns = self._world.now_ns()
        timeline.mark(ENGINE_RECV, now_ns)
        front = self.spec.front
        cost_us = front.api_us + front.tokenize_us_per_token * work.prompt
        work.tokenized_ns = max(now_ns, self._front_free_ns) + int(cost_us * 1000.0 + 0.5)
        self._front_free_ns = work.tokenized_ns
        work.queued_ns = work.tokenized_ns + int(front.enqueue_us * 1000.0 + 0.5)
        self._works[work] = None
        self._arriving.append(work)
        if self._coast_ns:
            self._cut(work.queued_ns)
        if self._timer is None:
            self._at(work.queued_ns)
        return work

    def _check(self, request: Request) -> None:
        if self._closed:
            raise EngineError(f"engine {self.name} is closed", code="engine_closed")
        wanted = request.adapter or request.model
        if self._models and wanted not in self._models:
            raise UnknownError(
                f"engine {self.name} does not serve {wanted!r}",
                field="model",
                value=wanted,
                hint=f"it serves {', '.join(self._models)}",
            )

    def _at(self, due_ns: int) -> None:
        self._due_ns = due_ns
        delay_ns = max(0, due_ns - self._world.now_ns())
        self._timer = asyncio.get_running_loop().call_later(delay_ns / 1e9, self._tick)

    def _tick(self) -> None:
        """End the step that is due, and start the next one where it ended."""
        self._timer = None
        self._coast_ns = []
        try:
            result, self._result = self._result, None
            if result is not None:
                self._finish_step(result)
            self._start_step(self._due_ns)
        except Exception as error:
            self._fail(EngineError(f"engine {self.name} failed: {error!r}", code="engine_died"))
            raise

    def _start_step(self, now_ns: int) -> None:
        arriving = self._arriving
        while arriving and arriving[0].queued_ns <= now_ns:
            work = arriving.popleft()
            timeline = work.timeline
            timeline.mark(TOKENIZED, work.tokenized_ns)
            timeline.mark(QUEUED, work.queued_ns)
            self._model.add(work, work.prompt, work.output, work.request.adapter)
        if self._on_flow is not None and self._coast(now_ns, self._on_flow):
            return
        self._result = self._model.step(now_ns, self._interval > 0)
        if self._result is not None:
            self._at(now_ns + self._result.duration_ns)
        elif arriving:
            self._at(arriving[0].queued_ns)

    def _coast(self, now_ns: int, on_flow: Callable[[list[int], int], Flow]) -> bool:
        """Let a stretch of uneventful steps pass in one go, up to the next arrival; False when there is none."""
        self._coast_ns = self._model.coast(now_ns)
        if not self._coast_ns:
            return False
        self._flow = on_flow(self._coast_ns, self._model.running)
        if self._arriving:
            self._cut(self._arriving[0].queued_ns)
        else:
            self._at(self._coast_ns[-1])
        return True

    def _cut(self, at_ns: int) -> None:
        """End the stretch with the step that runs at `at_ns`; what it ran beyond never happened."""
        ends_ns = self._coast_ns
        keep = bisect_left(ends_ns, at_ns) + 1
        if keep < len(ends_ns):
            self._model.rewind(len(ends_ns) - keep)
            if self._flow is not None:
                self._flow.cut(keep)
            del ends_ns[keep:]
        if self._timer is not None:
            self._timer.cancel()
        self._at(ends_ns[-1])

    def _finish_step(self, result: StepResult[_Work]) -> None:
        for work in result.started:
            if not work.gone:
                _mark_preparation(work.timeline, result, self._due_ns)
        if self._interval:
            self._deliver_some(result)
        else:
            self._deliver_ends(result)
        if self._on_tokens is not None and result.tokens:
            self._on_tokens(result.tokens)
        if self._on_step is not None:
            self._on_step(_row(self.name, self.spec.blocks, result))

    def _deliver_some(self, result: StepResult[_Work]) -> None:
        finished = dict(zip(result.finished, result.preemptions, strict=True))
        for work in result.emitted:
            if work.gone:
                continue
            work.generated += 1
            if work in finished:
                self._last(work, finished[work])
            elif work.request.stream and (
                work.generated == 1 or work.generated - work.sent >= self._interval
            ):
                self._push(work, None)

    def _deliver_ends(self, result: StepResult[_Work]) -> None:
        for work in result.first:
            if not work.gone:
                work.generated = 1
                if work.output > 1 and work.request.stream:
                    self._push(work, None)
        for work, preemptions in zip(result.finished, result.preemptions, strict=True):
            if not work.gone:
                work.generated = work.output
                self._last(work, preemptions)

    def _last(self, work: _Work, preemptions: int) -> None:
        self._forget(work)
        self._push(work, Usage(work.prompt, work.output), preemptions)

    def _push(self, work: _Work, usage: Usage | None, preemptions: int = 0) -> None:
        tokens = work.generated - work.sent
        chunk = Chunk(tokens=tokens, last=usage is not None, usage=usage, preemptions=preemptions)
        if work.answer is not None:
            if work.request.stream:
                chunk.data = work.answer.piece(tokens, usage)
                chunk.content_type = EVENTS
            elif usage is not None:
                chunk.data = work.answer.whole(usage)
                chunk.content_type = JSON
        work.sent = work.generated
        work.chunks.append(chunk)
        work.wake()

    def _forget(self, work: _Work) -> None:
        work.gone = True
        self._works.pop(work, None)

    def _leave(self, work: _Work) -> None:
        """Cancel: free what it holds, and mark what had happened to it by now."""
        self._forget(work)
        now_ns = self._world.now_ns()
        self._model.cancel(work)
        if self._result is not None and work in self._result.started:
            _mark_preparation(work.timeline, self._result, now_ns)
        if work not in self._arriving:
            return
        self._arriving.remove(work)
        if work.tokenized_ns <= now_ns:
            work.timeline.mark(TOKENIZED, work.tokenized_ns)
        if work.queued_ns <= now_ns:
            work.timeline.mark(QUEUED, work.queued_ns)

    def _fail(self, error: EngineError) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for work in list(self._works):
            self._leave(work)
            work.error = error
            work.wake()
        self._result = None


def _mark_preparation(timeline: Timeline, result: StepResult[_Work], now_ns: int) -> None:
    """Mark `scheduled` and the device points of the step that came before `now_ns`."""
    at_ns = result.t_ns
    timeline.mark(SCHEDULED, at_ns)
    for point, stage_ns in enumerate(result.stages_ns, KV_ALLOCATED):
        at_ns += stage_ns
        if at_ns > now_ns:
            return
        timeline.mark(point, at_ns)


def _row(name: str, blocks: int, r: StepResult[_Work]) -> StepRow:
    return StepRow(
        name,
        r.t_ns,
        r.duration_ns,
        r.running,
        r.waiting,
        r.prefill_tokens,
        r.decode_tokens,
        r.kv_used,
        blocks,
        r.preempted,
        r.denied,
        r.recomputed_tokens,
        r.copy_bytes,
        r.copy_ns,
        r.adapter_loads,
        r.eager,
        r.prepare_ns,
    )
