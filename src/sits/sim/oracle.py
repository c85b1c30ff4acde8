"""The engine model again, slowly: ordinary objects and deques, written to be read, to hold the kernel honest.

`OracleModel` has the semantics of `sim.kernel` and shares no code with it: batches are lists of requests, the
waiting queue is a deque, adapter slots are an ordered dict from least to most recently used, and durations
come from the predictors themselves.  Tests run both on random workloads and demand equal nanoseconds.  It
checks its own books at the end of every step, so a wrong model cannot agree quietly.

Deliberately absent: speed, and numba.
"""

import math
from collections import OrderedDict, deque
from typing import NamedTuple

import msgspec

from sits.core.errors import BugError
from sits.predict.prepare import Rank, StepWork, prepare_ns, step_input_bytes
from sits.predict.steptime import step_time_us
from sits.sim.spec import EngineSpec, refusal


class OracleRequest:
    """One request: what it asked for, what it has, and when things happened to it."""

    def __init__(self, name: int, prompt: int, output: int, adapter: int) -> None:
        self.name = name
        self.prompt = prompt
        self.output = output
        self.adapter = adapter
        self.generated = 0
        self.with_kv = 0
        self.most_with_kv = 0
        self.blocks = 0
        self.preemptions = 0
        self.scheduled_ns = -1
        self.first_token_ns = -1
        self.last_token_ns = -1

    @property
    def without_kv(self) -> int:
        """Tokens known (prompt and generated) that have no KV yet."""
        return self.prompt + self.generated - self.with_kv


class OracleStep(NamedTuple):
    """What one step did; the fields of `model.StepResult` that both models state."""

    t_ns: int
    duration_ns: int
    running: int
    waiting: int
    prefill_tokens: int
    decode_tokens: int
    kv_used: int
    preempted: int
    denied: int
    recomputed_tokens: int
    copy_bytes: int
    copy_ns: int
    adapter_loads: int
    eager: int
    prepare_ns: int
    stages_ns: tuple[int, ...]
    started: list[int]
    first: list[int]
    finished: list[int]


class OracleModel:
    """`EngineModel` in plain Python; requests are named by integers, adapters too (-1 = base model)."""

    def __init__(self, spec: EngineSpec) -> None:
        self.spec = spec
        self.free = spec.blocks
        self.waiting: deque[OracleRequest] = deque()
        self.running: list[OracleRequest] = []
        self.slots: OrderedDict[int, None] = OrderedDict()
        self.requests: dict[int, OracleRequest] = {}

    def add(self, name: int, prompt: int, output: int, adapter: int = -1) -> bool:
        """Queue a request; False when it could never be served."""
        if refusal(self.spec, prompt, output, adapter >= 0):
            return False
        request = self.requests[name] = OracleRequest(name, prompt, output, adapter)
        self.waiting.append(request)
        return True

    def cancel(self, name: int) -> None:
        """Forget a request and free its blocks."""
        request = self.requests.pop(name)
        if request in self.running:
            self.running.remove(request)
        else:
            self.waiting.remove(request)
        self._release(request)

    def step(self, now_ns: int, noise: float = 1.0) -> OracleStep | None:
        """Run one step from `now_ns`; None when there is nothing to do."""
        if not (self.running or self.waiting):
            return None
        return _Step(self, now_ns, noise).run()

    def _release(self, request: OracleRequest) -> None:
        self.free += request.blocks
        request.blocks = 0

    def _check_books(self) -> None:
        held = sum(request.blocks for request in self.requests.values())
        if self.free < 0 or held + self.free != self.spec.blocks:
            raise BugError(f"{held} blocks held and {self.free} free are not {self.spec.blocks}")
        if len(self.running) > self.spec.max_num_seqs or len(self.slots) > max(0, self.spec.lora_slots):
            raise BugError(f"{len(self.running)} running, {len(self.slots)} slots used: too many")
        if any(request.adapter >= 0 and request.adapter not in self.slots for request in self.running):
            raise BugError("a running request's adapter is not on the device")


class _Step:
    """One step in the making: `batch` maps each scheduled request to the tokens it takes."""

    def __init__(self, model: OracleModel, now_ns: int, noise: float) -> None:
        self.model = model
        self.spec = model.spec
        self.now_ns = now_ns
        self.noise = noise
        self.budget = model.spec.max_num_batched_tokens
        self.batch: dict[OracleRequest, int] = {}
        self.started: list[int] = []
        self.new_blocks = self.preempted = self.denied = self.loads = 0

    def run(self) -> OracleStep:
        model = self.model
        for request in model.running:
            if request.adapter >= 0:
                model.slots.move_to_end(request.adapter)
        if not self.admit_alone():
            self.continue_running()
            if not self.preempted:
                self.admit_waiting()
        if not self.batch:
            raise BugError(f"a step at {self.now_ns} ns with work to do schedules nothing")
        return self.finish()

    def share_of(self, request: OracleRequest) -> int:
        """Tokens `request` would like in this step, before the budget is asked."""
        limit = self.spec.long_prefill_token_threshold
        return min(request.without_kv, limit) if limit else request.without_kv

    def blocks_for(self, request: OracleRequest, tokens: int) -> int:
        """Blocks missing for `tokens` more tokens of `request`."""
        return -(-(request.with_kv + tokens) // self.spec.block_size) - request.blocks

    def take(self, request: OracleRequest, tokens: int) -> None:
        """Put `request` into the batch with `tokens` tokens and the blocks for them."""
        blocks = self.blocks_for(request, tokens)
        self.model.free -= blocks
        request.blocks += blocks
        self.new_blocks += blocks
        self.batch[request] = tokens
        self.budget -= tokens

    def continue_running(self) -> None:
        for request in list(self.model.running):
            if request not in self.model.running or self.budget == 0:
                return
            tokens = min(self.share_of(request), self.budget)
            while self.blocks_for(request, tokens) > self.model.free:
                self.denied = 1
                if self.preempt_youngest() is request:
                    return
            self.take(request, tokens)

    def preempt_youngest(self) -> OracleRequest:
        victim = self.model.running.pop()
        self.model._release(victim)
        victim.most_with_kv = max(victim.most_with_kv, victim.with_kv)
        victim.with_kv = 0
        victim.preemptions += 1
        self.preempted += 1
        self.model.waiting.appendleft(victim)
        return victim

    def adapter_fits(self, adapter: int) -> bool:
        """Whether a request with `adapter` leaves the batch within its adapter slots."""
        in_use = {request.adapter for request in self.model.running if request.adapter >= 0}
        return adapter < 0 or len(in_use | {adapter}) <= self.spec.lora_slots

    def admit(self, request: OracleRequest, tokens: int) -> None:
        self.model.waiting.remove(request)
        self.load(request.adapter)
        self.model.running.append(request)
        self.take(request, tokens)
        if request.scheduled_ns < 0:
            request.scheduled_ns = self.now_ns
            self.started.append(request.name)

    def load(self, adapter: int) -> None:
        """Make `adapter` the most recently used one, evicting the least recently used one for it."""
        slots = self.model.slots
        if adapter < 0:
            return
        if adapter not in slots:
            self.loads += 1
            if len(slots) == self.spec.lora_slots:
                in_use = {request.adapter for request in self.model.running}
                del slots[next(old for old in slots if old not in in_use)]
            slots[adapter] = None
        slots.move_to_end(adapter)

    def admit_waiting(self) -> None:
        for request in list(self.model.waiting):
            if self.budget == 0 or len(self.model.running) == self.spec.max_num_seqs:
                return
            if not self.adapter_fits(request.adapter):
                continue
            tokens = self.share_of(request)
            if tokens > self.budget:
                if not self.spec.chunked_prefill:
                    return
                tokens = self.budget
            asked = request.without_kv if self.spec.reserve_full_isl else tokens
            if self.blocks_for(request, asked) > self.model.free:
                self.denied = 1
                return
            self.admit(request, tokens)

    def admit_alone(self) -> bool:
        """Without chunked prefill, give a step to a head of the queue that is larger than the whole budget."""
        model = self.model
        if self.spec.chunked_prefill or not model.waiting or len(model.running) == self.spec.max_num_seqs:
            return False
        head = model.waiting[0]
        if head.without_kv <= self.budget or not self.adapter_fits(head.adapter):
            return False
        if self.blocks_for(head, head.without_kv) > model.free:
            self.denied = 1
            return False
        self.admit(head, head.without_kv)
        return True

    def finish(self) -> OracleStep:
        """Let the time of the step pass and give out its tokens."""
        model, spec, batch = self.model, self.spec, self.batch
        decodes = [r for r in batch if r.generated and r.without_kv == 1]
        prefills = [r for r in batch if r not in decodes]
        eager = bool(prefills) or len(decodes) > spec.graph_seqs_max
        device_us = step_time_us(
            msgspec.structs.replace(spec.step, overhead_us=0.0),
            tokens=sum(batch.values()),
            seqs_emitting=sum(tokens == r.without_kv for r, tokens in batch.items()),
            prefill_chunks=[(batch[r], r.with_kv) for r in prefills],
            decode_kv=[r.with_kv + 1 for r in decodes],
            eager=eager,
        )
        device_ns = int(device_us * self.noise * 1000.0 + 0.5)
        work = self.preparation(eager)
        dipping = len(model.running) >= spec.dips_busy_min
        ranks = spec.ranks if dipping else tuple(Rank(bandwidth=rank.bandwidth) for rank in spec.ranks)
        prepared = prepare_ns(work, ranks, self.now_ns, spec.host)
        straggling = prepared.collective_sync - math.ceil(spec.host.barrier_ns) if len(ranks) > 1 else 0
        kv_used = spec.blocks - model.free
        running, waiting = len(model.running), len(model.waiting)
        recomputed = sum(
            max(0, min(r.with_kv + tokens, r.most_with_kv) - r.with_kv) for r, tokens in batch.items()
        )
        duration_ns = prepared.total_ns() + device_ns
        first, finished = self.emit(self.now_ns + duration_ns)
        model._check_books()
        return OracleStep(
            self.now_ns,
            duration_ns,
            running,
            waiting,
            sum(batch.values()) - len(decodes),
            len(decodes),
            kv_used,
            self.preempted,
            self.denied,
            recomputed,
            work.restore_bytes + work.input_bytes,
            prepared.kv_restore + prepared.input_copy + straggling,
            self.loads,
            int(eager),
            prepared.total_ns(),
            prepared.durations(),
            self.started,
            first,
            finished,
        )

    def preparation(self, eager: bool) -> StepWork:
        """What the host has to prepare; a row of the block table is as long as the batch's mean, rounded up."""
        seqs, tokens = len(self.batch), sum(self.batch.values())
        row = math.ceil(sum(request.blocks for request in self.batch) / seqs)
        return StepWork(
            seqs=seqs,
            new_tokens=tokens,
            kv_blocks=self.new_blocks,
            input_bytes=step_input_bytes(seqs, tokens, row),
            restore_bytes=self.loads * self.spec.adapter_bytes,
            restore_copies=self.loads * self.spec.adapter_copies,
            eager=eager,
        )

    def emit(self, end_ns: int) -> tuple[list[int], list[int]]:
        """Book the batch; who has KV for all its tokens gets the next one.  Returns first and finished."""
        model = self.model
        first, finished = [], []
        for request in list(model.running):
            tokens = self.batch.get(request, 0)
            emits = tokens > 0 and tokens == request.without_kv
            request.with_kv += tokens
            if not emits:
                continue
            request.generated += 1
            if request.generated == 1:
                request.first_token_ns = end_ns
                first.append(request.name)
            if request.generated == request.output:
                request.last_token_ns = end_ns
                finished.append(request.name)
                model.running.remove(request)
                model._release(request)
                del model.requests[request.name]
        return first, finished
