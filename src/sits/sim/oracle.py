"""The engine model again, slowly: ordinary objects and deques, written to be read, to hold the kernel honest.

`OracleModel` has the semantics of `sim.kernel` and shares no code with it: batches are lists of requests, the
waiting queue is a deque, adapter slots are an ordered dict from least to most recently used, and durations
come from the predictors themselves.  Tests run both on random workloads and demand equal nanoseconds.  It
checks its own books at the end of every step, so a wrong model cannot agree quietly.  Blocks are real here, cached
or not: each has a number, holders, and a place in the order in which free ones are taken.

`oracle_replay` runs whole traces through it.

Deliberately absent: speed, and numba.
"""

import math
from collections import OrderedDict, deque
from collections.abc import Sequence

import msgspec

from sits.core.errors import BugError
from sits.predict.prepare import Preparation, Rank, StepWork, prepare_ns, step_input_bytes
from sits.predict.profile import Profile, profile_time_us
from sits.predict.steptime import StepTime, step_time_us
from sits.sim.oracle_parts import OracleRequest, OracleStep, Pool
from sits.sim.spec import EngineSpec, refusal


class OracleModel:
    """`EngineModel` in plain Python; requests are named by integers, adapters too (-1 = base model)."""

    def __init__(self, spec: EngineSpec) -> None:
        self.spec = spec
        self.pool = Pool(spec.blocks)
        self.added = 0
        self.waiting: deque[OracleRequest] = deque()
        self.running: list[OracleRequest] = []
        self.slots: OrderedDict[int, None] = OrderedDict()
        self.requests: dict[int, OracleRequest] = {}

    @property
    def free(self) -> int:
        """Blocks nobody holds."""
        return len(self.pool.free)

    def add(
        self,
        name: int,
        prompt: int,
        output: int,
        adapter: int = -1,
        priority: int = 0,
        names: Sequence[int] = (),
    ) -> bool:
        """Queue a request; False when it could never be served."""
        if refusal(self.spec, prompt, output, adapter >= 0):
            return False
        rank = (priority, self.added)
        self.added += 1
        request = self.requests[name] = OracleRequest(name, prompt, output, adapter, rank, names)
        self.waiting.append(request)
        self._sort()
        return True

    def cancel(self, name: int) -> None:
        """Forget a request and free its blocks."""
        request = self.requests.pop(name)
        if request in self.running:
            self.running.remove(request)
        else:
            self.waiting.remove(request)
        self.pool.give_back(request.blocks)

    def step(self, now_ns: int, noise: float = 1.0) -> OracleStep | None:
        """Run one step from `now_ns`; None when there is nothing to do."""
        if not (self.running or self.waiting):
            return None
        preempted = 0
        step = Step(self, now_ns, noise)
        step.schedule()
        while (
            not step.batch
        ):  # by priority, somebody may go before he was served, and all after him come to nothing
            if not step.preempted:
                raise BugError(f"a step at {now_ns} ns with work to do schedules nothing")
            preempted += step.preempted
            step = Step(self, now_ns, noise)
            step.schedule()
        step.preempted += preempted
        step.denied |= preempted > 0
        return step.finish(now_ns, now_ns)

    def retire(self) -> None:
        """Let those go whose last token has come in."""
        for request in [r for r in self.running if r.ending]:
            self.running.remove(request)
            self.leave(request)

    def leave(self, request: OracleRequest) -> None:
        """Free what a finished request holds, and forget it."""
        self.pool.give_back(request.blocks)
        del self.requests[request.name]

    def _sort(self) -> None:
        if self.spec.order == "priority":
            self.waiting = deque(sorted(self.waiting, key=lambda r: r.rank))

    def _check_books(self) -> None:
        held = {block for request in self.requests.values() for block in request.blocks}
        if len(held) + self.free != self.spec.blocks or held & self.pool.free.keys():
            raise BugError(f"{len(held)} blocks held and {self.free} free are not {self.spec.blocks}")
        if any(self.pool.found[what] != block for block, what in self.pool.holds.items()):
            raise BugError("a block is not found by what it holds")
        if len(self.running) > self.spec.max_num_seqs or len(self.slots) > max(0, self.spec.lora_slots):
            raise BugError(f"{len(self.running)} running, {len(self.slots)} slots used: too many")
        if any(request.adapter >= 0 and request.adapter not in self.slots for request in self.running):
            raise BugError("a running request's adapter is not on the device")


class Step:
    """One step in the making: `batch` maps each scheduled request to the tokens it takes."""

    def __init__(self, model: OracleModel, now_ns: int, noise: float) -> None:
        self.model = model
        self.spec = model.spec
        self.now_ns = now_ns
        self.noise = noise
        self.budget = model.spec.max_num_batched_tokens
        self.batch: dict[OracleRequest, int] = {}
        self.started: list[int] = []
        self.fresh: dict[OracleRequest, int] = {}
        self.preempted = self.denied = self.loads = 0
        self.host_free_ns = self.end_ns = now_ns

    def schedule(self) -> None:
        """Choose the batch."""
        model = self.model
        for request in model.running:
            if request.adapter >= 0:
                model.slots.move_to_end(request.adapter)
        if not self.admit_alone():
            self.continue_running()
            if not self.preempted:
                self.admit_waiting()

    def share_of(self, without_kv: int) -> int:
        """Tokens a request would like in this step, before the budget is asked."""
        limit = self.spec.long_prefill_token_threshold
        return min(without_kv, limit) if limit else without_kv

    def blocks_for(self, tokens: int) -> int:
        """Blocks that hold `tokens` tokens."""
        return -(-tokens // self.spec.block_size)

    def take(self, request: OracleRequest, tokens: int) -> None:
        """Put `request` into the batch with `tokens` tokens and the blocks for them."""
        size, pool = self.spec.block_size, self.model.pool
        fresh = self.blocks_for(request.with_kv + tokens) - len(request.blocks)
        request.blocks += [pool.take() for _ in range(fresh)]
        self.fresh[request] = fresh
        if self.spec.prefix_caching:
            for index in range(request.with_kv // size, (request.with_kv + tokens) // size):
                pool.remember(request.blocks[index], request.content(index, size))
        self.batch[request] = tokens
        self.budget -= tokens

    def continue_running(self) -> None:
        """Give tokens and blocks to who runs, oldest admitted first."""
        model = self.model
        for request in list(model.running):
            if request not in model.running or request.ending:
                continue
            if self.budget <= 0:
                return
            tokens = min(self.share_of(request.without_kv), self.budget)
            while self.blocks_for(request.with_kv + tokens) - len(request.blocks) > model.free:
                self.denied = 1
                if self.preempt() is request:
                    return
            self.take(request, tokens)

    def preempt(self) -> OracleRequest:
        """Send the last of those who run back to the queue; what this step had given to it can be given again."""
        model = self.model
        by_rank = self.spec.order == "priority"
        victim = max(model.running, key=lambda r: r.rank) if by_rank else model.running[-1]
        model.running.remove(victim)
        self.budget += self.batch.pop(victim, 0)
        victim.preemptions += 1
        self.preempted += 1
        if victim.ending:
            model.leave(victim)
            return victim
        model.pool.give_back(victim.blocks)
        victim.most_with_kv = max(victim.most_with_kv, victim.with_kv)
        victim.with_kv = 0
        model.waiting.appendleft(victim)
        model._sort()
        return victim

    def find(self, request: OracleRequest) -> list[int]:
        """Blocks of `request` that are in the cache, from its first on; its last token is always computed."""
        found: list[int] = []
        size = self.spec.block_size
        if self.spec.prefix_caching:
            while (len(found) + 1) * size < request.prompt + request.generated:
                block = self.model.pool.found.get(request.content(len(found), size))
                if block is None:
                    break
                found.append(block)
        return found

    def adapter_fits(self, adapter: int) -> bool:
        """Whether a request with `adapter` leaves the batch within its adapter slots."""
        in_use = {request.adapter for request in self.model.running if request.adapter >= 0}
        return adapter < 0 or len(in_use | {adapter}) <= self.spec.lora_slots

    def admit(self, request: OracleRequest, found: list[int], tokens: int) -> None:
        """Let `request` run, sharing the blocks it `found`."""
        self.model.waiting.remove(request)
        self.load(request.adapter)
        self.model.running.append(request)
        request.blocks = [self.model.pool.share(block) for block in found]
        request.with_kv = len(found) * self.spec.block_size
        self.take(request, tokens)
        if request.scheduled_ns < 0:
            request.scheduled_ns = self.now_ns
            self.started.append(request.name)

    def fits(self, found: list[int], tokens: int) -> bool:
        """Whether there are blocks for `tokens` tokens, the `found` ones among them."""
        idle = sum(block in self.model.pool.free for block in found)
        if self.blocks_for(tokens) - len(found) + idle <= self.model.free:
            return True
        self.denied = 1
        return False

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
        """Admit who waits, in order, until somebody does not fit."""
        for request in list(self.model.waiting):
            if self.budget == 0 or len(self.model.running) == self.spec.max_num_seqs:
                return
            if not self.adapter_fits(request.adapter):
                continue
            found = self.find(request)
            with_kv = len(found) * self.spec.block_size
            known = request.prompt + request.generated
            tokens = self.share_of(known - with_kv)
            if tokens > self.budget:
                if not self.spec.chunked_prefill:
                    return
                tokens = self.budget
            if not self.fits(found, known if self.spec.reserve_full_isl else with_kv + tokens):
                return
            self.admit(request, found, tokens)

    def admit_alone(self) -> bool:
        """Without chunked prefill, give a step to a head of the queue that is larger than the whole budget."""
        model = self.model
        if self.spec.chunked_prefill or not model.waiting or len(model.running) == self.spec.max_num_seqs:
            return False
        head = model.waiting[0]
        found = self.find(head)
        known = head.prompt + head.generated
        tokens = known - len(found) * self.spec.block_size
        if tokens <= self.budget or not self.adapter_fits(head.adapter) or not self.fits(found, known):
            return False
        self.admit(head, found, tokens)
        return True

    def finish(self, host_free_ns: int, busy_ns: int) -> OracleStep:
        """Let the time of the step pass and give out its tokens; the host and the device are busy until then."""
        model, spec, batch = self.model, self.spec, self.batch
        decodes = [r for r in batch if r.generated and r.without_kv == 1]
        prefills = [r for r in batch if r not in decodes]
        eager = bool(prefills) or len(decodes) > spec.graph_seqs_max
        device_ns = int(self.device_us(decodes, prefills, eager) * self.noise * 1000.0 + 0.5)
        work = self.preparation(eager)
        begin_ns = max(self.now_ns, host_free_ns)
        prepared = self.prepared(work, begin_ns)
        self.host_free_ns = begin_ns + prepared.total_ns()
        self.end_ns = max(busy_ns, self.host_free_ns) + device_ns
        straggling = 0
        if len(spec.ranks) > 1 and spec.host:
            straggling = prepared.collective_sync - math.ceil(spec.host.barrier_ns)
        kv_used = spec.blocks - model.free
        running, waiting = len(model.running), len(model.waiting)
        recomputed = sum(
            max(0, min(r.with_kv + tokens, r.most_with_kv) - r.with_kv) for r, tokens in batch.items()
        )
        if spec.async_scheduling:
            model.retire()
        first, finished = self.emit(self.end_ns)
        model._check_books()
        return OracleStep(
            self.now_ns,
            self.end_ns - self.now_ns,
            running,
            waiting,
            sum(batch.values()) - len(decodes),
            len(decodes),
            kv_used,
            self.preempted,
            self.denied,
            recomputed,
            work.restore_bytes + work.input_bytes if spec.host else 0,
            prepared.kv_restore + prepared.input_copy + straggling,
            self.loads,
            int(eager),
            prepared.total_ns(),
            prepared.durations(),
            self.started,
            first,
            finished,
        )

    def device_us(self, decodes: list[OracleRequest], prefills: list[OracleRequest], eager: bool) -> float:
        """The predictor's time of this batch, without the host's."""
        batch, step = self.batch, self.spec.step
        tokens = sum(batch.values())
        emitting = sum(tokens == r.without_kv for r, tokens in batch.items())
        chunks = [(batch[r], r.with_kv) for r in prefills]
        kv = [r.with_kv + 1 for r in decodes]
        if isinstance(step, Profile):
            us = profile_time_us(
                step, tokens=tokens, seqs_emitting=emitting, prefill_chunks=chunks, decode_kv=kv
            )
            return us + step.eager_us if eager and self.spec.host else us
        alone = msgspec.structs.replace(step, overhead_us=0.0)
        return step_time_us(
            alone,
            tokens=tokens,
            seqs_emitting=emitting,
            prefill_chunks=chunks,
            decode_kv=kv,
            eager=eager and self.spec.host is not None,
        )

    def prepared(self, work: StepWork, start_ns: int) -> Preparation:
        """The host's part: stage by stage, or one figure, booked as the last stage."""
        spec = self.spec
        if spec.host is None:
            step: StepTime | Profile = spec.step
            us = step.overhead_us + step.eager_us if work.eager else step.overhead_us
            none = dict.fromkeys(Preparation.__struct_fields__, 0)
            return Preparation(**{**none, "launch": int(us * 1000.0 + 0.5)})
        dipping = len(self.model.running) >= spec.dips_busy_min
        ranks = spec.ranks if dipping else tuple(Rank(bandwidth=rank.bandwidth) for rank in spec.ranks)
        return prepare_ns(work, ranks, start_ns, spec.host)

    def preparation(self, eager: bool) -> StepWork:
        """What the host has to prepare; a row of the block table is as long as the batch's mean, rounded up."""
        seqs, tokens = len(self.batch), sum(self.batch.values())
        row = math.ceil(sum(len(request.blocks) for request in self.batch) / seqs)
        return StepWork(
            seqs=seqs,
            new_tokens=tokens,
            kv_blocks=sum(self.fresh[request] for request in self.batch),
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
                request.ending = self.spec.async_scheduling
                if not request.ending:
                    model.running.remove(request)
                    model.leave(request)
        return first, finished
