"""KV cache and device memory: bytes a token, blocks a replica has, bytes a LoRA adapter takes.

    bytes = sum over sequences and layers of  blocks(s) * B * per_token
    per_token = 2 * kv_heads_of_a_rank * head_dim * element_bytes          keys and values, grouped queries
              = latent_dim * element_bytes                                 multi-head latent attention (MLA)
    blocks(s) = ceil(s / B); a sliding-window layer keeps at most ceil(window / B) + 1

KV *heads* count, not query heads.  Tensor parallelism divides them by min(tp, kv_heads): beyond that every
rank holds one whole head.  An MLA latent is never divided.  KV memory is linear in the sequence length.

Sources: the fields are those of a Hugging Face `config.json` (`num_key_value_heads`, `head_dim`,
`kv_lora_rank` + `qk_rope_head_dim`, `sliding_window`); a window that starts inside a block touches one block
more; LoRA slices as vLLM cuts them.  Capacity is the engine's own number when it told one: formulas for it
were 31 % off in published comparisons, because activation peaks and graphs are guesses.

Deliberately absent: what is allocated right now (telemetry knows), prefix sharing, host and disk tiers.
"""

from collections.abc import Iterable

import msgspec

from sits.core.errors import ConfigError
from sits.core.fleet import Memory, Model
from sits.core.units import Bytes

LORA_BYTES_PER_PARAMETER = 2


class KvShape(msgspec.Struct, frozen=True, kw_only=True):
    """What the cache of one model is made of.

    Attributes:
        layers: layers that keep a cache, sliding-window layers included.
        kv_heads, head_dim: of one layer; ignored when `latent_dim` is set.
        element_bytes: 2 for 16-bit, 1 for FP8.
        latent_dim: MLA: kv_lora_rank + qk_rope_head_dim; 0 = keys and values.
        window: tokens a sliding-window layer looks back.
        window_layers: how many of `layers` slide.

    Raises:
        ConfigError: a size below one, or more sliding layers than layers.

    """

    layers: int
    kv_heads: int = 1
    head_dim: int = 128
    element_bytes: int = 2
    latent_dim: int = 0
    window: int = 0
    window_layers: int = 0

    def __post_init__(self) -> None:
        for field in ("layers", "kv_heads", "head_dim", "element_bytes"):
            _at_least(field, getattr(self, field), 1)
        for field in ("latent_dim", "window", "window_layers"):
            _at_least(field, getattr(self, field), 0)
        if self.window_layers > self.layers or (self.window_layers and not self.window):
            raise ConfigError(
                f"{self.window_layers} sliding layers of {self.layers} with a window of {self.window} tokens",
                field="window_layers",
                value=self.window_layers,
                hint="at most `layers`, and set `window`",
            )


class Capacity(msgspec.Struct, frozen=True, kw_only=True):
    """KV blocks of one replica: how many, who says so (`engine` or `formula`), and what was assumed."""

    blocks: int
    source: str
    assumed: tuple[str, ...] = ()


def _at_least(field: str, value: int, low: int) -> None:
    if value < low:
        raise ConfigError(f"{value} is below {low}", field=field, value=value, hint=f"give {low} or more")


def shape_of(model: Model) -> KvShape:
    """The cache shape of a fleet file's model (keys and values in every layer).

    >>> from sits.core.fleet import Model
    >>> m = Model(name="m", layers=32, hidden=4096, heads=32, kv_heads=8, head_dim=128, intermediate=14336,
    ...     vocab=128256, weights=16_060_000_000, kv_dtype="fp8")
    >>> token_bytes(shape_of(m))
    65536
    """
    return KvShape(
        layers=model.layers,
        kv_heads=model.kv_heads,
        head_dim=model.head_dim,
        element_bytes=1 if model.kv_dtype == "fp8" else 2,
    )


def heads_per_rank(kv_heads: int, tp: int) -> int:
    """KV heads one rank keeps: kv_heads / tp, never below one.

    >>> [heads_per_rank(8, tp) for tp in (1, 2, 4, 8, 16)]
    [8, 4, 2, 1, 1]

    Raises:
        ConfigError: neither number divides the other.

    """
    _at_least("tp", tp, 1)
    if kv_heads % tp and tp % kv_heads:
        raise ConfigError(
            f"{kv_heads} KV heads cannot be split over {tp} ranks",
            field="tp",
            value=tp,
            hint=f"use a divisor or a multiple of {kv_heads}",
        )
    return max(1, kv_heads // tp)


def layer_token_bytes(shape: KvShape, tp: int = 1) -> int:
    """Bytes one token takes in one layer on one of `tp` ranks.

    >>> layer_token_bytes(KvShape(layers=61, latent_dim=512 + 64), tp=8)       # MLA is not divided
    1152
    """
    if shape.latent_dim:
        _at_least("tp", tp, 1)
        return shape.latent_dim * shape.element_bytes
    return 2 * heads_per_rank(shape.kv_heads, tp) * shape.head_dim * shape.element_bytes


def token_bytes(shape: KvShape, tp: int = 1) -> int:
    """Bytes one token takes on one of `tp` ranks, while no layer's window is full.

    >>> token_bytes(KvShape(layers=32, kv_heads=32)) / 2**20            # MiB
    0.5
    """
    return shape.layers * layer_token_bytes(shape, tp)


def kv_bytes(shape: KvShape, lengths: Iterable[int], *, block_size: int = 16, tp: int = 1) -> Bytes:
    """Bytes the sequences of `lengths` tokens take on one of `tp` ranks, rounded up to blocks.

    The classic example (8 sequences of 2048 tokens, 32 layers, 32 heads of 128, FP16), and the same model
    with 8 KV heads:

    >>> kv_bytes(KvShape(layers=32, kv_heads=32), [2048] * 8) / 2**30           # GiB
    8.0
    >>> kv_bytes(KvShape(layers=32, kv_heads=8), [2048] * 8) / 2**30
    2.0
    >>> kv_bytes(KvShape(layers=32, kv_heads=8), [2048] * 8, tp=4) / 2**30
    0.5
    >>> kv_bytes(KvShape(layers=1, kv_heads=1, head_dim=1), [1, 16, 17]) // 4   # tokens paid for
    64
    >>> kv_bytes(KvShape(layers=2, kv_heads=1, head_dim=1, window=32, window_layers=1), [1600]) // 4
    1648
    """
    _at_least("block_size", block_size, 1)
    per_block = block_size * layer_token_bytes(shape, tp)
    kept = -(-shape.window // block_size) + 1
    total = 0
    for tokens in lengths:
        _at_least("lengths", tokens, 0)
        blocks = -(-tokens // block_size)
        total += blocks * (shape.layers - shape.window_layers) + min(blocks, kept) * shape.window_layers
    return Bytes(total * per_block)


def block_bytes(shape: KvShape, *, block_size: int = 16, tp: int = 1) -> Bytes:
    """Bytes of one block over all layers of one rank.

    >>> block_bytes(KvShape(layers=32, kv_heads=32)) / 2**20            # MiB
    8.0
    """
    _at_least("block_size", block_size, 1)
    return Bytes(block_size * token_bytes(shape, tp))


def lora_bytes(model: Model, rank: int, tp: int = 1, fully_sharded: bool = False) -> Bytes:
    """Bytes of one 16-bit LoRA adapter on every linear layer (q, k, v, o, gate, up, down), on one of `tp` ranks.

    A is rank x in, B is out x rank.  Column-parallel layers (q, k, v, gate, up) divide `out` and so B;
    row-parallel layers (o, down) divide `in` and so A; the other half is whole on every rank.
    `fully_sharded` (vLLM's `fully_sharded_loras`) divides both.

    >>> from sits.core.fleet import Model
    >>> m = Model(name="llama-3-70b", layers=80, hidden=8192, heads=64, kv_heads=8, head_dim=128,
    ...     intermediate=28672, vocab=128256, weights=141_100_000_000)
    >>> [round(lora_bytes(m, 16, tp) / 1e6) for tp in (1, 4, 8)]         # MB
    [414, 214, 180]
    >>> round(lora_bytes(m, 16, 4, fully_sharded=True) / 1e6)
    104

    Raises:
        ConfigError: rank or tp below one, or a shape tp does not divide.

    """
    _at_least("rank", rank, 1)
    _at_least("tp", tp, 1)
    if model.heads % tp or model.intermediate % tp:
        raise ConfigError(
            f"{tp} ranks do not divide {model.heads} heads and {model.intermediate} intermediate columns",
            field="tp",
            value=tp,
            hint="use 1, 2, 4 or 8 GPUs",
        )
    query = model.heads * model.head_dim // tp
    key = heads_per_rank(model.kv_heads, tp) * model.head_dim
    inner = model.intermediate // tp
    whole = model.hidden / tp if fully_sharded else float(model.hidden)
    columns = [whole + out for out in (query, key, key, inner, inner)]
    rows = [part + whole for part in (query, inner)]
    return Bytes(round(model.layers * rank * sum(columns + rows) * LORA_BYTES_PER_PARAMETER))


def capacity_blocks(
    model: Model,
    *,
    gpu_memory: int,
    memory: Memory,
    block_size: int = 16,
    tp: int = 1,
    max_loras: int = 0,
    lora_rank: int = 16,
) -> Capacity:
    """KV blocks of a replica on `tp` GPUs of `gpu_memory` bytes each.

    `memory.kv_blocks` (what the engine printed as its number of GPU blocks) wins.  Otherwise:

        blocks = floor((gpu_memory * utilization - weights / tp - activation_reserve - max_loras * lora) / block)

    >>> from sits.core.fleet import Memory, Model
    >>> m = Model(name="llama-3-70b", layers=80, hidden=8192, heads=64, kv_heads=8, head_dim=128,
    ...     intermediate=28672, vocab=128256, weights=141_100_000_000)
    >>> c = capacity_blocks(m, gpu_memory=80 * 2**30, memory=Memory(), tp=4)
    >>> c.blocks, c.source, c.blocks * 16                               # tokens
    (28792, 'formula', 460672)
    >>> capacity_blocks(m, gpu_memory=80 * 2**30, memory=Memory(kv_blocks=27000), tp=4).source
    'engine'
    >>> capacity_blocks(m, gpu_memory=80 * 2**30, memory=Memory(), tp=1)     # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    sits.core.errors.ConfigError: memory: llama-3-70b does not fit: ...

    Raises:
        ConfigError: no block is left after weights, activations and adapter slots.

    """
    if memory.kv_blocks > 0:
        return Capacity(blocks=memory.kv_blocks, source="engine")
    _at_least("tp", tp, 1)
    _at_least("max_loras", max_loras, 0)
    usable = gpu_memory * memory.gpu_memory_utilization
    weights = model.weights / tp
    slots = max_loras * lora_bytes(model, lora_rank, tp) if max_loras else 0
    block = block_bytes(shape_of(model), block_size=block_size, tp=tp)
    left = usable - weights - memory.activation_reserve - slots
    if left < block:
        raise ConfigError(
            f"{model.name} does not fit: {_gb(usable)} usable of {_gb(gpu_memory)} a GPU, but weights take "
            f"{_gb(weights)} on each of {tp} GPUs, activations {_gb(memory.activation_reserve)}, adapter slots "
            f"{_gb(slots)}, one block {_gb(block)}",
            field="memory",
            value=round(left),
            hint="use more GPUs for each engine, a smaller or quantised model, fewer adapter slots, or a higher "
            "gpu_memory_utilization",
        )
    return Capacity(
        blocks=int(left // block),
        source="formula",
        assumed=(
            f"{memory.gpu_memory_utilization:.0%} of {_gb(gpu_memory)} a GPU usable",
            f"weights {_gb(weights)} on each of {tp} GPUs, evenly split",
            f"{_gb(memory.activation_reserve)} for activations, graphs and collectives",
            f"{max_loras} adapter slots of rank {lora_rank}: {_gb(slots)}",
            f"{block_size} tokens a block: {_gb(block)} a GPU",
        ),
    )


def _gb(size: float) -> str:
    return f"{size / 1e9:.2f} GB" if size >= 1e8 else f"{size / 1e6:.2f} MB"
