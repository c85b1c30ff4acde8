"""The emulated engine: the engine model behind the Engine port, on any asyncio loop and any clock.

It knows the time each step takes and lets it pass.  A front end (one process, in order) turns prompts into
ids; a driver with one timer a step runs `sim.model.EngineModel` while there is work and stops when there is
none, so idling costs nothing.  Step times are planned: when the loop wakes late, the next step still starts
where the last one ended, so the model's time does not drift from the clock.

When nobody waits for single tokens, a stretch of uneventful steps (`EngineModel.coast`) costs one timer; an
arrival or a cancellation within it ends it with the step that runs then, so every time is the same.

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

import msgspec

from sits.core.breakpoints import ENGINE_RECV
from sits.core.errors import CallerError, EngineError, UnknownError
from sits.core.ports import World
from sits.core.request import Chunk, Request
from sits.core.timeline import Timeline
from sits.engine.emulated_embeddings import EmbeddingsAnswer
from sits.engine.emulated_messages import MessagesAnswer, token_count
from sits.engine.emulated_text import JSON, Answer, Form
from sits.engine.emulated_work import Work, deliver_ends, deliver_some
from sits.sim.cpu import Flow
from sits.sim.model import EngineModel, StepResult
from sits.sim.spec import EngineSpec, blocks_needed, refusal

EMBEDDINGS = "/v1/embeddings"
COUNT_TOKENS = "/v1/messages/count_tokens"
FORMS: dict[str, Callable[[Request, int], Form]] = {
    EMBEDDINGS: EmbeddingsAnswer,
    "/v1/messages": MessagesAnswer,
}
"""Who renders the answers of an endpoint, where that is not `emulated_text`."""


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
            returns the Flow that is cut when the stretch is.  Used with `stream_interval` 0; then `on_tokens` hears
            of the other steps only, and `on_step` of a stretch's steps when it is over.
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
        self._on_flow = on_flow if stream_interval == 0 else None
        self._interval = stream_interval
        self._models = models
        self._render = render
        self._model: EngineModel[Work] = EngineModel(
            spec, world.rng(f"engine/{name}/noise") if noise else None
        )
        self._works: dict[Work, None] = {}
        self._arriving: deque[Work] = deque()
        self._front_free_ns = 0
        self._timer: asyncio.TimerHandle | None = None
        self._due_ns = 0
        self._result: StepResult[Work] | None = None
        self._coast_ns: list[int] = []
        self._flow: Flow | None = None
        self._closed = False

    @property
    def running(self) -> int:
        """Requests in the batch; one that gets its last token in the step that runs has left it."""
        return self._model.running

    @property
    def waiting(self) -> int:
        """Requests in the waiting queue as the step that runs left it; those still in the front end are not."""
        return self._model.waiting

    @property
    def kv_usage(self) -> float:
        """Share of KV blocks held, 0..1, in the step that runs."""
        ahead = self._ahead(self._world.now_ns())
        free = self._model.blocks_free + (self._model.blocks_taken(ahead) if ahead else 0)
        return 1.0 - free / self.spec.blocks

    async def generate(self, request: Request, timeline: Timeline) -> AsyncIterator[Chunk]:
        """Answer `request`; see the Engine port.

        Raises:
            UnknownError: a model or endpoint that is not served here.
            CallerError: a body that is not of its endpoint's shape, or (`never_fits`) a request too large for the KV pool:
                to try it again is in vain.
            EngineError: the engine was closed.

        """
        if request.endpoint == COUNT_TOKENS and request.body:  # the front end's work alone
            self._check(request)
            yield Chunk(token_count(request), 1, last=True, content_type=JSON)
            return
        work = self._enter(request, timeline)
        try:
            while True:
                chunk = await work.next_chunk()
                yield chunk
                if chunk.last:
                    return
        finally:
            if not work.gone:
                self._leave(work)

    async def close(self) -> None:
        """Stop; unfinished answers end with an EngineError."""
        self._closed = True
        self._fail(EngineError(f"engine {self.name} was closed", code="engine_closed"))

    def _enter(self, request: Request, timeline: Timeline) -> Work:
        self._check(request)
        answer = None
        if request.body or self._render:
            form = FORMS.get(request.endpoint, Answer)
            answer = form(request, self._world.wall_ns() // 1_000_000_000)
        embeds = request.endpoint == EMBEDDINGS
        if embeds and request.stream:
            request = msgspec.structs.replace(request, stream=False)
        output = 1 if embeds else max(1, self._lengths(request))  # vectors are there after the prefill
        if request.output_tokens_max:
            output = min(output, request.output_tokens_max)
        work = Work(request, timeline, output, answer, generates=not embeds)
        self._fits(work)
        now_ns = self._world.now_ns()
        timeline.mark(ENGINE_RECV, now_ns)
        front = self.spec.front
        cost_us = front.api_us + front.tokenize_us_per_token * work.prompt
        work.tokenized_ns = max(now_ns, self._front_free_ns) + int(cost_us * 1000.0 + 0.5)
        self._front_free_ns = work.tokenized_ns
        work.queued_ns = work.tokenized_ns + int(front.enqueue_us * 1000.0 + 0.5)
        self._works[work] = None
        self._arriving.append(work)
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
                code="model_not_found",
            )

    def _fits(self, work: Work) -> None:
        """Refuse what could never run here, as the caller's: it does not get smaller by waiting."""
        adapter = work.request.adapter
        why = refusal(self.spec, work.prompt, work.output, bool(adapter))
        if not why:
            return
        room = self.spec.blocks * self.spec.block_size
        large = blocks_needed(self.spec, work.prompt, work.output) > self.spec.blocks
        way = f"shorten the prompt or set max_tokens, so that both are at most {room} tokens together"
        raise CallerError(
            f"engine {self.name} can never serve {work.prompt} prompt and {work.output} answer tokens: {why}",
            field="max_tokens" if large else "model",
            value=work.output if large else adapter,
            hint=way if large else "ask for the base model",
            code="never_fits",
        )

    def _at(self, due_ns: int) -> None:
        self._due_ns = due_ns
        delay_ns = max(0, due_ns - self._world.now_ns())
        self._timer = asyncio.get_running_loop().call_later(delay_ns / 1e9, self._tick)

    def _tick(self) -> None:
        """End the step that is due, and start the next one where it ended."""
        self._timer = None
        self._report_stretch()
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
            work.mark_front_end(now_ns)
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
        self._flow = on_flow(self._coast_ns.copy(), self._model.running)
        if self._arriving:
            self._cut(self._arriving[0].queued_ns)
        self._at(self._coast_ns[-1])
        return True

    def _report_stretch(self) -> None:
        """The stretch is over: tell of its steps, and forget it."""
        if self._on_step is not None:
            for figures in self._model.coasted(len(self._coast_ns)):
                self._on_step(StepRow._make((self.name, *figures[:7], self.spec.blocks, *figures[7:])))
        self._coast_ns = []

    def _cut(self, at_ns: int) -> None:
        """End the stretch with the step that runs at `at_ns`; what it ran beyond never happened.

        At the very instant of a step's end, that step still runs.
        """
        ahead = self._ahead(at_ns)
        if not ahead:
            return
        self._model.rewind(ahead)
        del self._coast_ns[-ahead:]
        if self._flow is not None:
            self._flow.cut(len(self._coast_ns))
        if self._timer is not None:
            self._timer.cancel()
            self._at(self._coast_ns[-1])

    def _ahead(self, at_ns: int) -> int:
        """Steps of the stretch that begin after the one that runs at `at_ns`."""
        return max(0, len(self._coast_ns) - bisect_left(self._coast_ns, at_ns) - 1)

    def _finish_step(self, result: StepResult[Work]) -> None:
        for work in result.started:
            if not work.gone:
                work.mark_preparation(result, self._due_ns)
        if self._interval:
            deliver_some(result, self._interval)
        else:
            deliver_ends(result)
        for work in result.finished:
            self._works.pop(work, None)
        if self._on_tokens is not None and result.tokens:
            self._on_tokens(result.tokens)
        if self._on_step is not None:
            self._on_step(_row(self.name, self.spec.blocks, result))

    def _leave(self, work: Work) -> None:
        """Cancel: free what it holds, and mark what had happened to it by now."""
        work.gone = True
        self._works.pop(work, None)
        now_ns = self._world.now_ns()
        if work in self._model:
            self._cut(now_ns)
            self._model.cancel(work)
        if self._result is not None and work in self._result.started:
            work.mark_preparation(self._result, now_ns)
        if work in self._arriving:
            self._arriving.remove(work)
            work.mark_front_end(now_ns)

    def _fail(self, error: EngineError) -> None:
        for work in list(self._works):
            self._leave(work)
            work.fail(error)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._coast_ns and self._flow is not None:
            self._flow.cut(bisect_left(self._coast_ns, self._world.now_ns()))  # the step that runs never ends
        self._coast_ns = []
        self._result = None


def _row(name: str, blocks: int, r: StepResult[Work]) -> StepRow:
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
