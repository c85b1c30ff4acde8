"""The only file that names concrete classes: configuration tree in, objects out.

`KINDS` lists what a configuration may name; a new kind is one file and one line here, and the conformance tests
try it for being listed.  What a spec must know beyond the configuration (step times, pool size, adapter bytes)
comes from predictors, and what they assumed is kept to be printed (`Emulation.assumed`).  What pretends to be an engine is imported
by the first one that is asked for: it needs numpy and a compiled kernel, which a gateway in front of real engines never loads.

Deliberately absent: decisions, clocks (a World is handed in) and command lines.
"""

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from sits.core import fleet as tree
from sits.core.errors import ConfigError
from sits.core.ports import Engine, World
from sits.core.request import Request
from sits.engine.anthropic import AnthropicEngine
from sits.engine.openai import OpenAIEngine

if TYPE_CHECKING:
    from sits.predict.transfer import Dips
    from sits.sim.spec import EngineSpec

KINDS: Mapping[str, Mapping[str, Any]] = {
    "engine": {
        "anthropic": AnthropicEngine,
        "emulated": "sits.engine.emulated.EmulatedEngine",
        "openai": OpenAIEngine,
    },
}
"""Every kind of object a configuration may name, by what it is a kind of; a dotted name where the class is imported late."""

LORA_COPIES_PER_LAYER = 14
"""An adapter is copied matrix by matrix: A and B of seven linear layers (assumption; vLLM copies each tensor)."""


class NodeDips(msgspec.Struct, frozen=True):
    """A fault of a node's links: the dips, and how many running requests it takes for them to happen."""

    dips: "Dips"
    while_running: int


class Emulation(msgspec.Struct, frozen=True):
    """What an emulated engine pretends to be, and what had to be assumed for it."""

    spec: "EngineSpec"
    assumed: tuple[str, ...]


def by_name(items: tuple[Any, ...], name: str) -> Any:
    """The item of a checked tree that has this name."""
    return next(item for item in items if item.name == name)


def emulation(fleet: tree.Fleet, engine: tree.EmulatedEngine, faults: Mapping[str, NodeDips]) -> Emulation:
    """The effective figures of one emulated engine: step times, pool, links, slots.

    Raises:
        ConfigError: the model does not fit, or the GPU has no figures.

    """
    from sits.predict.derive import derive_steptime  # noqa: PLC0415
    from sits.predict.kv import capacity_blocks, lora_bytes  # noqa: PLC0415
    from sits.predict.prepare import Rank  # noqa: PLC0415
    from sits.sim.spec import EngineSpec  # noqa: PLC0415

    node = by_name(fleet.nodes, engine.node)
    model = by_name(fleet.models, engine.model)
    families = [by_name(fleet.adapters, name) for name in engine.adapters]
    tp = len(engine.gpus)
    rank = max((family.rank for family in families), default=0)
    try:
        step = derive_steptime(model, node.gpu, tp)
        capacity = capacity_blocks(
            model,
            gpu_memory=node.gpu_memory,
            memory=engine.memory,
            block_size=engine.scheduler.block_size,
            tp=tp,
            max_loras=engine.lora.max_loras if rank else 0,
            lora_rank=max(rank, 1),
        )
    except ConfigError as error:
        error.field = f"engines[{engine.name}].{error.field or 'memory'}"
        raise
    fault = faults.get(node.name)
    links = [
        node.link.local if node.gpu_numa[gpu] == engine.cpu_numa else node.link.remote for gpu in engine.gpus
    ]
    scheduler = engine.scheduler
    spec = EngineSpec(
        step=step,
        ranks=tuple(Rank(bandwidth=link, dips=fault.dips if fault else None) for link in links),
        dips_busy_min=fault.while_running if fault else 0,
        block_size=scheduler.block_size,
        blocks=capacity.blocks,
        max_num_seqs=scheduler.max_num_seqs,
        max_num_batched_tokens=scheduler.max_num_batched_tokens,
        long_prefill_token_threshold=scheduler.long_prefill_token_threshold,
        chunked_prefill=scheduler.enable_chunked_prefill,
        reserve_full_isl=scheduler.scheduler_reserve_full_isl,
        graph_seqs_max=scheduler.cudagraph_capture_max,
        lora_slots=engine.lora.max_loras if rank else 0,
        adapter_bytes=lora_bytes(model, rank, tp) if rank else 0,
        adapter_copies=LORA_COPIES_PER_LAYER * model.layers,
    )
    return Emulation(spec, (f"step times: {step.source}", *capacity.assumed))


def build_engine(
    fleet: tree.Fleet,
    engine: tree.AnyEngine,
    world: World,
    *,
    lengths: Callable[[Request], int] | None = None,
    faults: Mapping[str, NodeDips] | None = None,
    **hooks: Any,
) -> Engine:
    """The engine a fleet names.  `lengths` and `hooks` (`on_step`, `on_tokens`, ...) are for emulated ones, which need lengths.

    Raises:
        ConfigError: the environment variable that should hold the engine's key is not set.

    """
    if isinstance(engine, tree.EmulatedEngine):
        from sits.engine.emulated import EmulatedEngine  # noqa: PLC0415

        assert lengths is not None
        spec = emulation(fleet, engine, faults or {}).spec
        return EmulatedEngine(engine.name, spec, world, lengths, models=served(fleet, engine), **hooks)
    key = ""
    if engine.api_key_env:
        key = os.environ.get(engine.api_key_env, "")
        if not key:
            raise ConfigError(
                f"the environment variable {engine.api_key_env} is not set",
                field=f"engines[{engine.name}].api_key_env",
                value=engine.api_key_env,
                hint="export it, or leave api_key_env out",
            )
    shared: dict[str, Any] = {
        "name": engine.name,
        "url": engine.url,
        "api_key": key,
        "models": engine.models,
        "connect_timeout": engine.connect_timeout,
        "first_byte_timeout": fleet.gateway.first_byte_timeout,
        "world": world,
    }
    if isinstance(engine, tree.AnthropicEngine):
        return AnthropicEngine(**shared, version=engine.version, max_tokens=engine.max_tokens)
    return OpenAIEngine(**shared, speaks=engine.speaks)


def served(fleet: tree.Fleet, engine: tree.AnyEngine) -> tuple[str, ...]:
    """Model and adapter names an engine answers to."""
    if isinstance(engine, tree.RemoteEngine):
        return (*engine.models, *engine.adapters)
    families = [by_name(fleet.adapters, name) for name in engine.adapters]
    return (engine.model, *(f"{family.name}-{i}" for family in families for i in range(family.count)))


__all__ = ["KINDS", "Emulation", "NodeDips", "build_engine", "emulation", "served"]
