"""An EngineSpec: everything the engine model needs to know about one replica, in one frozen record.

It states effective figures: blocks the pool really has, bandwidth the link really gives from where the
buffers lie, step times of this model on this GPU at this parallel degree.  How they follow from a
configuration is the business of predictors and of `wire`.

Deliberately absent: anything about requests; and anything that changes while the engine runs.
"""

import msgspec

from sits.core.errors import ConfigError
from sits.predict.steptime import StepTime


class HostCosts(msgspec.Struct, frozen=True, kw_only=True):
    """CPU of the engine's front end, one process that serves requests in order: us a request, us a token.

    `api_us` and `tokenize_us_per_token` delay a request until its prompt is ids; `enqueue_us` then hands it to
    the scheduler.
    """

    api_us: float = 300.0
    tokenize_us_per_token: float = 0.5
    enqueue_us: float = 60.0


class EngineSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One replica.

    Attributes:
        step: step-time figures; `noise_cv` is used only when a noise stream is asked for.
        block_size, blocks: tokens in a KV block, and usable blocks.
        max_num_seqs, max_num_batched_tokens: seats, and tokens a step may schedule.
        long_prefill_token_threshold: most tokens one request may take in a step; 0 = no limit.
        chunked_prefill: False = a prompt is scheduled whole; one larger than the budget gets a step alone.
        graph_seqs_max: largest captured decode batch; a step with prefill or more sequences runs eager.
        lora_slots: adapters the device holds at a time; 0 = adapters are refused.
        adapter_bytes: bytes of one adapter that each rank copies when it is loaded.
        link_bytes_per_s: effective host-to-device bandwidth of one rank.
        tp: tensor-parallel degree.
        host: front-end costs.

    Raises:
        ConfigError: a value the scheduler cannot work with.

    """

    step: StepTime
    block_size: int = 16
    blocks: int
    max_num_seqs: int = 128
    max_num_batched_tokens: int = 2048
    long_prefill_token_threshold: int = 0
    chunked_prefill: bool = True
    graph_seqs_max: int = 256
    lora_slots: int = 0
    adapter_bytes: int = 0
    link_bytes_per_s: float = 24e9
    tp: int = 1
    remote: bool = False
    host: HostCosts = HostCosts()

    def __post_init__(self) -> None:
        for field in ("block_size", "blocks", "max_num_seqs", "max_num_batched_tokens", "tp"):
            _check(field, getattr(self, field), 1)
        for field in ("long_prefill_token_threshold", "graph_seqs_max", "lora_slots", "adapter_bytes"):
            _check(field, getattr(self, field), 0)
        if not self.link_bytes_per_s > 0:
            raise ConfigError(
                f"{self.link_bytes_per_s!r} bytes/s copies nothing",
                field="link_bytes_per_s",
                value=self.link_bytes_per_s,
                hint="state the bandwidth the link gives",
            )
        if self.long_prefill_token_threshold and not self.chunked_prefill:
            raise ConfigError(
                "a prompt cannot be both cut at a threshold and scheduled whole",
                field="long_prefill_token_threshold",
                value=self.long_prefill_token_threshold,
                hint="set it to 0 or enable chunked prefill",
            )


def _check(field: str, value: int, least: int) -> None:
    if value < least:
        raise ConfigError(f"{value} is too small", field=field, value=value, hint=f"at least {least}")


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
