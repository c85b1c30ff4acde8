"""Shapes of models people ask about by name, from their published `config.json`; 16-bit weights.

Weights are two bytes for each parameter the shape implies (attention, gated MLP, embedding and head; norms, below 0.01 %,
left out).

Deliberately absent: how long a context a model was trained for.  Memory arithmetic does not care; answers would.
"""

import msgspec

from sits.core.errors import ConfigError
from sits.core.fleet import Model
from sits.core.units import Bytes
from sits.predict.derive import dense_parameters


def _model(
    name: str, layers: int, hidden: int, heads: int, kv_heads: int, intermediate: int, vocab: int
) -> Model:
    shape = Model(
        name=name,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=hidden // heads,
        intermediate=intermediate,
        vocab=vocab,
        weights=Bytes(0),
    )
    return msgspec.structs.replace(shape, weights=Bytes(2 * dense_parameters(shape)))


MODELS: dict[str, Model] = {
    model.name: model
    for model in (
        _model("llama-2-7b", 32, 4096, 32, 32, 11008, 32000),
        _model("llama-3-8b", 32, 4096, 32, 8, 14336, 128256),
        _model("llama-3-70b", 80, 8192, 64, 8, 28672, 128256),
    )
}


def find_model(name: str, more: tuple[Model, ...] = ()) -> Model:
    """A model of `more` or of `MODELS` by name.

    >>> [round(find_model(name).weights / 1e9, 1) for name in MODELS]                # GB
    [13.5, 16.1, 141.1]

    Raises:
        ConfigError: nobody has that name.

    """
    known = {**MODELS, **{model.name: model for model in more}}
    if name not in known:
        raise ConfigError(
            f"no model {name!r}",
            field="model",
            value=name,
            hint="known: " + ", ".join(known) + "; or name a fleet file that has it",
        )
    return known[name]
