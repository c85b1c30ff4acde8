"""Static against paged memory by simulation: the same requests, the same engine, another way to reserve.

An engine that reserves the longest allowed sequence for everybody is an engine whose KV block is as long as that: one
block a sequence.  So both sides run through the same engine model with the same step times, pool bytes and scheduler
limits, and differ in `block_size` alone.  All requests are there from the beginning, so what is compared is how fast
an engine that is never short of work gets through it.

The work: answers as in the Azure conversation trace; prompts of its shape, stretched so that 8,192 of its tokens fill the context
(`conversation`), or log-uniform between 1/64 of the context and all of it (`uniform`), or always filling it (`full`).
`reasoning` turns it round: prompts a quarter as long, answers log-uniform between 1/64 and half of the context, which is
the work on which more sequences at a time help most.  A prompt and its answer never exceed the context.

With a shared prefix a third side runs: blocks, and a prefix cache in which the first tokens of all prompts are found.  Its averages
of memory count shared blocks once a holder, so they are what sequences hold, not what the pool has lost.

Deliberately absent: pipeline stages (the engine model has none, so plans with several are compared by memory only).
"""

import msgspec
import numpy as np
from numpy.typing import NDArray

from sits.bench.lengths import AZURE_CONVERSATION_ANSWER, AZURE_CONVERSATION_PROMPT
from sits.core.errors import ConfigError
from sits.core.fleet import Memory, Model
from sits.predict.derive import derive_steptime
from sits.predict.paged import OverTime, over_time
from sits.predict.paged_pressure import Pressure, pressure_of
from sits.predict.prepare import Rank
from sits.predict.sharding import Sharding, room_of
from sits.sim.model import EngineModel, simulate
from sits.sim.spec import EngineSpec, refusal
from sits.world import stream_generator

Ints = NDArray[np.int64]
WORKS = ("conversation", "reasoning", "uniform", "full")
LINK = 24e9
"""Host link of the emulated ranks, bytes/s: it moves step inputs only, the same for both sides."""


class Work(msgspec.Struct, frozen=True):
    """Requests: prompt and answer lengths in tokens, the longest sequence allowed, and how many first tokens all share."""

    prompt: Ints
    output: Ints
    limit: int
    shared_prefix: int = 0


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """One way to reserve, on one work.

    Attributes:
        block_size, pool_tokens: of the engine.
        served, never_fit: requests that ran, and that could never.
        output_per_s: output tokens a second from the first schedule to the last token.
        span_s: that time.
        memory: time averages of tokens, room held, sequences in service and waste.
        preemptions: times a request lost its blocks and began again.

    """

    scheme: str
    block_size: int
    pool_tokens: int
    served: int
    never_fit: int
    output_per_s: float
    span_s: float
    memory: OverTime
    preemptions: int


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Both sides of one context length, with the source of the step times, or why there is no such comparison.

    `shared` is the paged side with a prefix cache, where the work has a shared prefix.
    """

    context: int
    plan: Sharding
    static: Side | None = None
    paged: Side | None = None
    shared: Side | None = None
    source: str = ""
    refused: str = ""

    @property
    def speedup(self) -> float | None:
        """Output tokens a second of the paged side over those of the static side, where both did the same work."""
        if self.static is None or self.paged is None or self.static.served != self.paged.served:
            return None
        return self.paged.output_per_s / self.static.output_per_s


def work_of(kind: str, context: int, requests: int, seed: int, shared_prefix: int = 0) -> Work:
    """The requests of one context length, from named streams of `seed`.

    Raises:
        ConfigError: no such kind of work.

    """
    if kind not in WORKS:
        raise ConfigError(f"no work {kind!r}", field="work", value=kind, hint="one of " + ", ".join(WORKS))
    output = AZURE_CONVERSATION_ANSWER.draw(stream_generator(seed, "memory-answers"), requests)
    output = np.minimum(output, max(1, context // 4))
    dice = stream_generator(seed, "memory-prompts")
    if kind in ("conversation", "reasoning"):
        stretch = context / 8192 / (4 if kind == "reasoning" else 1)
        prompt = np.ceil(AZURE_CONVERSATION_PROMPT.draw(dice, requests) * stretch).astype(np.int64)
        if kind == "reasoning":
            output = np.exp(dice.uniform(np.log(context / 64), np.log(context / 2), requests)).astype(
                np.int64
            )
    elif kind == "uniform":
        prompt = np.exp(dice.uniform(np.log(context / 64), np.log(context), requests)).astype(np.int64)
    else:
        prompt = np.full(requests, context, np.int64)
    return Work(np.clip(prompt, 1, context - output), output, context, shared_prefix)


def compare_memory(
    model: Model,
    gpu: str,
    plan: Sharding,
    work: Work,
    *,
    gpu_memory: int,
    memory: Memory | None = None,
    block_size: int = 16,
    max_num_seqs: int = 256,
    max_num_batched_tokens: int = 2048,
) -> Comparison:
    """Both sides; refused when the model does not fit, or a plan cannot be simulated."""
    try:
        spec = _spec(model, gpu, plan, work, gpu_memory, memory, block_size)
    except ConfigError as error:
        return Comparison(context=work.limit, plan=plan, refused=str(error))
    limits = {"max_num_seqs": max_num_seqs, "max_num_batched_tokens": max_num_batched_tokens}
    spec = msgspec.structs.replace(spec, **limits)
    whole = msgspec.structs.replace(
        spec, block_size=work.limit, blocks=spec.blocks * block_size // work.limit
    )
    return Comparison(
        context=work.limit,
        plan=plan,
        static=_run("static", whole, work),
        paged=_run("paged", spec, work),
        shared=_run("paged", msgspec.structs.replace(spec, prefix_caching=True), work)
        if work.shared_prefix >= block_size
        else None,
        source=spec.step.source,
    )


def _spec(
    model: Model,
    gpu: str,
    plan: Sharding,
    work: Work,
    gpu_memory: int,
    memory: Memory | None,
    block_size: int,
) -> EngineSpec:
    """The paged engine of a plan.

    Raises:
        ConfigError: the model or one whole reservation does not fit, or the plan cannot be simulated.

    """
    room = room_of(model, plan, gpu_memory=gpu_memory, memory=memory, block_size=block_size)
    if plan.ranks != plan.tensor:
        raise ConfigError(
            f"the engine model runs tensor plans only, not {plan}", field="plan", value=str(plan)
        )
    if room.tokens < work.limit:
        raise ConfigError(
            f"one reservation of {work.limit:,} tokens is more than the whole pool of {room.tokens:,}",
            field="context",
            value=work.limit,
        )
    return EngineSpec(
        step=derive_steptime(model, gpu, plan.tensor),
        ranks=(Rank(bandwidth=LINK),) * plan.tensor,
        block_size=block_size,
        blocks=room.tokens // block_size,
    )


def tensor_engine(model: Model, gpu: str, gpus: int, *, gpu_memory: int, block_size: int = 16) -> EngineSpec:
    """A paged engine on `gpus` tensor-parallel GPUs with the KV pool that fits beside the weights.

    Raises:
        ConfigError: it does not fit, or there are no figures for the GPU.

    """
    room = room_of(model, Sharding(tensor=gpus), gpu_memory=gpu_memory, block_size=block_size)
    return EngineSpec(
        step=derive_steptime(model, gpu, gpus),
        ranks=(Rank(bandwidth=LINK),) * gpus,
        block_size=block_size,
        blocks=room.tokens // block_size,
    )


def _run(scheme: str, spec: EngineSpec, work: Work) -> Side:
    prefixes = None
    if spec.prefix_caching:
        system = list(range(work.shared_prefix // spec.block_size))
        prefixes = [system if tokens > work.shared_prefix else [] for tokens in work.prompt.tolist()]
    seen = simulate(
        np.zeros(len(work.prompt), np.int64), work.prompt, work.output, None, spec, prefixes=prefixes
    )
    ran = seen.last_token_ns >= 0
    span_ns = int(seen.last_token_ns[ran].max() - seen.scheduled_ns[ran].min()) if ran.any() else 0
    return Side(
        scheme=scheme,
        block_size=spec.block_size,
        pool_tokens=spec.blocks * spec.block_size,
        served=int(ran.sum()),
        never_fit=int((~ran).sum()),
        output_per_s=float(work.output[ran].sum()) / span_ns * 1e9 if span_ns else 0.0,
        span_s=span_ns / 1e9,
        memory=over_time(
            scheme,
            work.prompt,
            work.output,
            seen.scheduled_ns,
            seen.first_token_ns,
            seen.last_token_ns,
            limit=work.limit,
            block_size=spec.block_size,
        ),
        preemptions=int(seen.preemptions[ran].sum()),
    )


def pressure_under(spec: EngineSpec, work: Work, rate_per_s: float, seed: int) -> Pressure:
    """How hard the pool of one engine is pressed by `work` arriving at random at a rate; never-fitting requests left out."""
    gaps = stream_generator(seed, "memory-arrivals").exponential(1e9 / rate_per_s, len(work.prompt))
    arrivals = np.cumsum(gaps).astype(np.int64).tolist()
    model: EngineModel[int] = EngineModel(spec)
    now, added, rows = 0, 0, []
    while added < len(arrivals) or len(model):
        while added < len(arrivals) and arrivals[added] <= now:
            prompt, output = int(work.prompt[added]), int(work.output[added])
            if not refusal(spec, prompt, output, adapter=False):
                model.add(added, prompt, output)
            added += 1
        seen = model.step(now, emitted=False)
        if seen is None:
            now = arrivals[added] if added < len(arrivals) else now
            continue
        computed = seen.prefill_tokens + seen.decode_tokens
        rows.append(
            (seen.duration_ns, seen.kv_used, seen.denied, seen.preempted, seen.recomputed_tokens, computed)
        )
        now += seen.duration_ns
    durations, used, denied, preempted, recomputed, computed_tokens = (
        np.array(rows, np.int64).reshape(-1, 6).T
    )
    return pressure_of(durations, used, spec.blocks, denied, preempted, recomputed, computed_tokens)
