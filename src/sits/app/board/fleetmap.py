"""The fleet map: every engine, whether it is up, what is in flight there, how full it is, and how old that knowledge is.

Health and what is in flight come from the table all workers share, so they are of this moment; what an engine says of itself was scraped, and
comes with its age.  A state older than `STALE_NS` is unknown: it is not shown as if it held.

Deliberately absent: choosing an engine.
"""

from typing import Any

from sits.app.up.rooms import House
from sits.core.fleet import EmulatedEngine
from sits.core.units import MS, SECOND
from sits.gateway.liveness import UP, engine_state
from sits.telemetry.store import DuckStore

STALE_NS = 10 * SECOND
"""The keeper scrapes twice a second and writes every two: what is older was not scraped."""

SIGNALS = ("requests_running", "requests_waiting", "kv_usage")


def pulse(house: House) -> dict[str, Any]:
    """What is in flight at this moment, in all and by engine."""
    shared, slots, now_ns = house.shared, house.generation.slots, house.world.now_ns()
    requests, tokens = shared.inflight()
    engines = {}
    for name, slot in slots.items():
        mine, mine_tokens = shared.inflight(slot)
        state = engine_state(shared, slot, now_ns)
        engines[name] = {"requests": mine, "tokens": mine_tokens, "up": state == UP, "state": state}
    return {"now_ms": house.world.wall_ns() // MS, "requests": requests, "tokens": tokens, "engines": engines}


def fleet_map(house: House, store: DuckStore) -> dict[str, Any]:
    """Every engine of the configuration in use.

    Raises:
        StoreError: the store cannot be read.

    """
    now_ns = house.world.now_ns()
    seen: dict[str, dict[str, tuple[float, int]]] = {}
    for row in store.scan("board_signals", start_ns=now_ns - 300 * SECOND, names=",".join(SIGNALS)):
        seen.setdefault(row["source"], {})[row["name"]] = (row["value"], row["t_ns"])
    live = pulse(house)["engines"]
    fleet = house.generation.fleet
    engines = []
    for engine in fleet.engines:
        told = seen.get(engine.name, {})
        age_ns = now_ns - max((t_ns for _, t_ns in told.values()), default=-1)
        known = bool(told) and 0 <= age_ns <= STALE_NS
        emulated = isinstance(engine, EmulatedEngine)
        engines.append(
            {
                "name": engine.name,
                "kind": "emulated" if emulated else type(engine).__name__.removesuffix("Engine").lower(),
                "models": [engine.model] if isinstance(engine, EmulatedEngine) else list(engine.models),
                "place": _place(engine) if isinstance(engine, EmulatedEngine) else engine.url,
                **live.get(engine.name, {"requests": 0, "tokens": 0, "up": True, "state": UP}),
                "known": known,
                "age_ms": age_ns // MS if told else None,
                **{name: told[name][0] if known and name in told else None for name in SIGNALS},
            }
        )
    return {"engines": engines, "stale_s": STALE_NS // SECOND}


def _place(engine: EmulatedEngine) -> str:
    gpus = ", ".join(map(str, engine.gpus))
    return f"{engine.node}, GPU {gpus}" if gpus else engine.node
