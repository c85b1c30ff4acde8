"""An EngineSpec: everything the engine model needs to know about one replica, in one frozen record.

It states effective figures: blocks the pool really has, bandwidth each rank's link gives from where the
buffers lie, step times of this model on this GPU at this parallel degree.  How they follow from a
configuration is the business of predictors and of `wire`.

Deliberately absent: anything about requests; and anything that changes while the engine runs.
"""

from typing import Literal

import msgspec

from sits.core.errors import ConfigError
from sits.predict.prepare import DEFAULT_COSTS, HostCosts, Rank
from sits.predict.profile import Profile
from sits.predict.steptime import StepTime

Order = Literal["fcfs", "priority"]


def _check(field: str, value: float, least: int) -> None:
    if not value >= least:
        raise ConfigError(f"{value} is too small", field=field, value=value, hint=f"at least {least}")


class FrontEnd(msgspec.Struct, frozen=True, kw_only=True):
    """CPU of the engine's front end, one process that serves requests in order.

    `api_us` a request and `tokenize_us_per_token` occupy it until the prompt is ids; `enqueue_us` later the
    request is in the scheduler's waiting queue.  The defaults are assumptions: a request parsed and validated in
    Python, two million tokens a second, one hop between processes.
    """

    api_us: float = 300.0
    tokenize_us_per_token: float = 0.5
    enqueue_us: float = 60.0

    def __post_init__(self) -> None:
        for field in self.__struct_fields__:
            _check(field, getattr(self, field), 0)


class EngineSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One replica.

    Attributes:
        step: step-time figures, or a profile's tables.  `overhead_us` is used only without `host`, which states the
            same time stage by stage; `noise_cv` only when a noise stream is asked for.
        ranks: the host links of its GPUs; the number of them is the tensor-parallel degree, the first is the one
            observed.
        dips_busy_min: the links dip only in steps with at least this many running requests.
        block_size, blocks: tokens in a KV block, and usable blocks.
        max_num_seqs, max_num_batched_tokens: seats, and tokens a step may schedule.
        long_prefill_token_threshold: most tokens one request may take in a step; 0 = no limit.
        chunked_prefill: False = a prompt is scheduled whole; one larger than the budget gets a step alone.
        reserve_full_isl: admit a request only when blocks for its whole prompt are free (vLLM's default).
        graph_seqs_max: largest captured decode batch; a step with prefill or more sequences runs eager.
        lora_slots: adapters the device holds at a time; 0 = adapters are refused.
        adapter_bytes, adapter_copies: what each rank copies to load one adapter, and in how many copies.
        order: who is admitted first and preempted last: by arrival, or by priority (lower first) and then arrival.
        prefix_caching: full blocks stay findable when they are freed, until they are taken for something else
            (least recently freed first; of one request, its last blocks first).  For whole traces only.
        async_scheduling: a step is scheduled while the one before it runs, on what was known when that one began, and
            its host time is hidden behind it.  For whole traces only.
        host: costs of the preparation chain; None = the step's `overhead_us`, and `eager_us` when it runs eager.
        front: costs before the scheduler.

    Raises:
        ConfigError: a value the scheduler cannot work with.

    """

    step: StepTime | Profile
    ranks: tuple[Rank, ...]
    dips_busy_min: int = 0
    block_size: int = 16
    blocks: int
    max_num_seqs: int = 128
    max_num_batched_tokens: int = 2048
    long_prefill_token_threshold: int = 0
    chunked_prefill: bool = True
    reserve_full_isl: bool = True
    graph_seqs_max: int = 256
    lora_slots: int = 0
    adapter_bytes: int = 0
    adapter_copies: int = 1
    order: Order = "fcfs"
    prefix_caching: bool = False
    async_scheduling: bool = False
    host: HostCosts | None = DEFAULT_COSTS
    front: FrontEnd = FrontEnd()

    def __post_init__(self) -> None:
        for field in ("block_size", "blocks", "max_num_seqs", "max_num_batched_tokens", "adapter_copies"):
            _check(field, getattr(self, field), 1)
        for field in (
            "dips_busy_min",
            "long_prefill_token_threshold",
            "graph_seqs_max",
            "lora_slots",
            "adapter_bytes",
        ):
            _check(field, getattr(self, field), 0)
        if not self.ranks:
            raise ConfigError("no rank", field="ranks", value=self.ranks, hint="name one link for each GPU")
        for rank in self.ranks:
            if not rank.bandwidth > 0:
                raise ConfigError(
                    f"{rank.bandwidth!r} bytes/s copies nothing",
                    field="ranks.bandwidth",
                    value=rank.bandwidth,
                    hint="state the bandwidth the link gives",
                )
        if self.long_prefill_token_threshold and not self.chunked_prefill:
            raise ConfigError(
                "a prompt cannot be both cut at a threshold and scheduled whole",
                field="long_prefill_token_threshold",
                value=self.long_prefill_token_threshold,
                hint="set it to 0 or enable chunked prefill",
            )


def blocks_needed(spec: EngineSpec, prompt_tokens: int, output_tokens: int) -> int:
    """KV blocks a request holds at its longest: the last token generated has no KV of its own yet."""
    return -(-(prompt_tokens + output_tokens - 1) // spec.block_size)


def refusal(spec: EngineSpec, prompt_tokens: int, output_tokens: int, adapter: bool) -> str:
    """Why this engine can never serve such a request; empty when it can."""
    if prompt_tokens < 1 or output_tokens < 1:
        return f"{prompt_tokens} prompt and {output_tokens} output tokens: both must be at least 1"
    need = blocks_needed(spec, prompt_tokens, output_tokens)
    if need > spec.blocks:
        return f"needs {need} KV blocks at its longest, the pool has {spec.blocks}"
    if adapter and not spec.lora_slots:
        return "asks for an adapter, the engine has no adapter slots"
    return ""
