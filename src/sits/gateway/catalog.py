"""What a fleet's configuration offers: its engines as Replicas, and every name a caller may ask for.

Rules: a family of adapters counts as many as it has, numbered; a model's own name beats an adapter's, and the first engine that has an adapter says which
model it is on.

Deliberately absent: whether an engine is up (gateway.places), and who may use what (gateway.access).
"""

from collections.abc import Iterable

from sits.core.fleet import Adapters, AnyEngine, Fleet, RemoteEngine
from sits.core.replica import Replica


def replicas_of(fleet: Fleet, names: Iterable[str]) -> tuple[Replica, ...]:
    """One Replica for each engine of the fleet whose name is in `names`, in the fleet's order."""
    wanted = set(names)
    families = {family.name: family for family in fleet.adapters}
    return tuple(_replica(engine, families) for engine in fleet.engines if engine.name in wanted)


def _replica(engine: AnyEngine, families: dict[str, Adapters]) -> Replica:
    adapters: list[str] = []
    for name in engine.adapters:
        family = families.get(name)
        adapters += [f"{name}-{i}" for i in range(family.count)] if family else [name]
    if isinstance(engine, RemoteEngine):
        models, region, weight = engine.models, engine.region, engine.weight
    else:
        models, region, weight = (engine.model,), "", 1.0
    return Replica(id=engine.name, models=models, adapters=tuple(adapters), region=region, weight=weight)


def catalog(replicas: Iterable[Replica]) -> dict[str, tuple[str, str]]:
    """Every name a caller may ask for -> (model, adapter).  A model's own name beats an adapter's."""
    names: dict[str, tuple[str, str]] = {}
    models: dict[str, tuple[str, str]] = {}
    for replica in replicas:
        models.update((model, (model, "")) for model in replica.models)
        for adapter in replica.adapters:
            for model in replica.models[:1]:
                names.setdefault(adapter, (model, adapter))
    return names | models


def loadable(fleet: Fleet) -> dict[str, tuple[str, str]]:
    """The same for adapters that are loaded when they are asked for."""
    return {adapter.name: (adapter.model, adapter.name) for adapter in fleet.runtime_adapters.adapters}
