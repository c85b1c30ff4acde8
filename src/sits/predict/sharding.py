"""Sharding plans: what of a model lies on each GPU, and how many tokens of KV that leaves room for.

    tensor      t ranks share every layer: heads, MLP columns and the vocabulary are divided by t
    layers      p stages hold whole layers; the first also the embedding, the last the head
    heads       attention (and so the KV cache) is divided, the MLP and the vocabulary are whole on every rank
    vocabulary  embedding and head are divided, everything else is whole on every rank

They combine: p stages of t ranks take p * t GPUs.  Of one rank of stage i with n_i layers

    weights  = n_i * (attention / max(t, h) + mlp / t) + (embedding if i = 0, head if last) / max(t, v)
    KV token = n_i * one layer's token bytes over max(t, h) ranks
    tokens   = floor((usable - weights - reserve) / (B * KV token)) * B, the least over all stages

because every stage keeps its layers' KV of every sequence.  The model's declared weights are divided as the
parameters of its shape are, so quantised weights stay in proportion.

What is exchanged for one token of one forward pass, in bytes handed to a collective by each rank: tensor, two
all-reduces of the hidden state a layer; heads, one a layer; vocabulary, one for the embedding and a gather of its share of the
logits; layers, one hidden state from each stage to the next.

Deliberately absent: how long that takes (`sits.predict.gpu`), expert parallelism, and sequence parallelism.
"""

import msgspec

from sits.core.errors import ConfigError
from sits.core.fleet import Memory, Model
from sits.core.units import Bytes
from sits.predict.derive import dense_parameters
from sits.predict.kv import heads_per_rank, layer_token_bytes, shape_of

ACTIVATION_BYTES = 2


class Sharding(msgspec.Struct, frozen=True, kw_only=True):
    """A plan.  `heads` and `vocabulary` divide only those parts; `tensor` divides all three.

    Raises:
        ConfigError: a degree below one, or degrees within a stage that differ (other than 1).

    """

    tensor: int = 1
    layers: int = 1
    heads: int = 1
    vocabulary: int = 1

    def __post_init__(self) -> None:
        for field in self.__struct_fields__:
            if getattr(self, field) < 1:
                raise ConfigError("below 1", field=field, value=getattr(self, field), hint="give 1 or more")
        inside = {self.tensor, self.heads, self.vocabulary} - {1}
        if len(inside) > 1:
            raise ConfigError(
                f"degrees {sorted(inside)} within one stage",
                field="tensor",
                value=self.tensor,
                hint="ranks of a stage are one group: use one degree",
            )

    @property
    def stage_ranks(self) -> int:
        """GPUs of one stage."""
        return max(self.tensor, self.heads, self.vocabulary)

    @property
    def ranks(self) -> int:
        """GPUs."""
        return self.layers * self.stage_ranks

    def __str__(self) -> str:
        degrees = [f"{name} {getattr(self, name)}" for name in self.__struct_fields__]
        return ", ".join(text for text in degrees if not text.endswith(" 1")) or "one GPU"


class Stage(msgspec.Struct, frozen=True, kw_only=True):
    """One rank of one stage: its layers, the bytes of its weights, and the bytes a token's KV takes there."""

    layers: int
    weights: Bytes
    token_bytes: Bytes


class Room(msgspec.Struct, frozen=True, kw_only=True):
    """What a plan leaves for KV: tokens in the whole pool (block-rounded), what fills first, and what was assumed."""

    tokens: int
    tightest: Stage
    stages: tuple[Stage, ...]
    assumed: tuple[str, ...]


def parse_sharding(text: str) -> Sharding:
    """A plan as written on a command line.

    >>> parse_sharding("tensor=4,layers=2").ranks, str(parse_sharding("heads=8"))
    (8, 'heads 8')

    Raises:
        ConfigError: not `name=number[,name=number]`.

    """
    degrees: dict[str, int] = {}
    for part in text.split(","):
        name, _, value = part.strip().partition("=")
        name = {"tp": "tensor", "pp": "layers", "layer": "layers", "head": "heads"}.get(name, name)
        if name not in Sharding.__struct_fields__ or not value.isdecimal() or not int(value):
            raise ConfigError(
                f"{part.strip()!r} is no part of a sharding plan",
                field="plan",
                value=text,
                hint="write it like tensor=4 or layers=2,tensor=4; " + ", ".join(Sharding.__struct_fields__),
            )
        degrees[name] = int(value)
    return Sharding(**degrees)


def stages_of(model: Model, plan: Sharding) -> tuple[Stage, ...]:
    """One rank of each stage.

    >>> from sits.predict.sharding_models import MODELS
    >>> seven = MODELS["llama-2-7b"]
    >>> for plan in (Sharding(), Sharding(tensor=2), Sharding(heads=2), Sharding(vocabulary=2), Sharding(layers=2)):
    ...     stage = stages_of(seven, plan)[0]
    ...     print(plan, round(stage.weights / 1e9, 2), stage.token_bytes // 1024)        # GB, KiB a token
    one GPU 13.48 512
    tensor 2 6.74 256
    heads 2 11.33 256
    vocabulary 2 13.21 512
    layers 2 6.74 256

    Raises:
        ConfigError: ranks that do not divide the model, or more stages than layers.

    """
    split = max(plan.tensor, plan.heads)
    heads_per_rank(model.kv_heads, split)
    if model.heads % split or model.intermediate % plan.tensor or plan.layers > model.layers:
        raise ConfigError(
            f"{plan} does not divide {model.heads} heads, {model.intermediate} intermediate columns and {model.layers} layers",
            field="plan",
            value=str(plan),
            hint="use 1, 2, 4 or 8 within a stage, and at most one stage a layer",
        )
    attention = model.hidden * model.head_dim * (2 * model.heads + 2 * model.kv_heads)
    mlp = 3 * model.hidden * model.intermediate
    table = model.vocab * model.hidden
    scale = model.weights / dense_parameters(model)
    kept = layer_token_bytes(shape_of(model), split)
    found = []
    for index, layers in enumerate(_dealt(model.layers, plan.layers)):
        tables = (index == 0) + (index == plan.layers - 1)
        parameters = layers * (attention / split + mlp / plan.tensor)
        parameters += tables * table / max(plan.tensor, plan.vocabulary)
        found.append(
            Stage(layers=layers, weights=Bytes(round(parameters * scale)), token_bytes=Bytes(layers * kept))
        )
    return tuple(found)


def _dealt(layers: int, stages: int) -> list[int]:
    """Layers of each stage, as even as can be; what is left over goes to stages that hold no table first."""
    each, over = divmod(layers, stages)
    order = [*range(1, stages - 1), 0, stages - 1]
    return [each + (stage in order[:over]) for stage in range(stages)]


def room_of(
    model: Model, plan: Sharding, *, gpu_memory: int, memory: Memory | None = None, block_size: int = 16
) -> Room:
    """Tokens of KV that fit beside the weights, the same memory on every GPU.

    >>> from sits.predict.sharding_models import MODELS
    >>> seventy = MODELS["llama-3-70b"]
    >>> [room_of(seventy, Sharding(**plan), gpu_memory=80 * 2**30).tokens
    ...     for plan in ({"tensor": 4}, {"layers": 4}, {"tensor": 2, "layers": 2})]
    [460672, 447840, 460672]
    >>> room_of(seventy, Sharding(heads=8), gpu_memory=80 * 2**30)              # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    sits.core.errors.ConfigError: plan: llama-3-70b over heads 8 does not fit: ...

    Raises:
        ConfigError: weights and reserve leave no room for a block somewhere.

    """
    memory = memory or Memory()
    stages = stages_of(model, plan)
    usable = gpu_memory * memory.gpu_memory_utilization
    blocks = []
    for stage in stages:
        left = usable - stage.weights - memory.activation_reserve
        blocks.append(int(left // (block_size * stage.token_bytes)))
        if blocks[-1] < 1:
            raise ConfigError(
                f"{model.name} over {plan} does not fit: weights of {stage.layers} layers take {stage.weights / 1e9:.1f} GB "
                f"and activations {memory.activation_reserve / 1e9:.1f} GB of {usable / 1e9:.1f} GB usable on a GPU",
                field="plan",
                value=str(plan),
                hint="use more GPUs, divide the MLP too (tensor), or take a smaller or quantised model",
            )
    return Room(
        tokens=min(blocks) * block_size,
        tightest=stages[blocks.index(min(blocks))],
        stages=stages,
        assumed=(
            f"{memory.gpu_memory_utilization:.0%} of {gpu_memory / 1e9:.1f} GB a GPU usable",
            f"{memory.activation_reserve / 1e9:.2f} GB a GPU for activations, graphs and collectives",
            f"weights divided as the parameters of the shape: {model.weights / 1e9:.1f} GB in all",
        ),
    )


def exchanged_bytes(model: Model, plan: Sharding) -> Bytes:
    """Bytes a rank hands to collectives and to the next stage for one token of one forward pass.

    >>> from sits.predict.sharding_models import MODELS
    >>> [exchanged_bytes(MODELS["llama-2-7b"], Sharding(**{how: 4})) // 1024
    ...     for how in ("tensor", "layers", "heads", "vocabulary")]                         # KiB
    [535, 8, 256, 23]
    """
    hidden = model.hidden * ACTIVATION_BYTES
    each = 2 * model.layers if plan.tensor > 1 else model.layers if plan.heads > 1 else 0
    size = -(-each // plan.layers) * hidden
    if max(plan.tensor, plan.vocabulary) > 1:
        size += hidden + model.vocab * ACTIVATION_BYTES // max(plan.tensor, plan.vocabulary)
    return Bytes(size + (hidden if plan.layers > 1 else 0))
