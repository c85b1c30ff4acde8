"""Emulated engines in a worker: what they are given, and their states, which nobody could scrape.

They live in the worker that serves, because nothing outside can see them; so a fleet that has some is served by one worker.

Deliberately absent: the emulation itself (`engine.emulated`).
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from sits.app.up.outbox import Outbox
from sits.bench.lengths import AZURE_CONVERSATION_ANSWER
from sits.core.fleet import AnyEngine, EmulatedEngine
from sits.core.ports import World
from sits.core.request import Request
from sits.engine.emulated import EmulatedEngine as Emulated
from sits.gateway.server import Server
from sits.sim.model import compile_kernel

WATCH_S = 1.0


def prepare(world: World, outbox: Outbox) -> Callable[[AnyEngine], Mapping[str, Any]]:
    """Compile what they need before somebody waits for it; returns what each engine is given beside its configuration."""
    compile_kernel()
    lengths = drawn_lengths(world)

    def given(engine: AnyEngine) -> Mapping[str, Any]:
        if not isinstance(engine, EmulatedEngine):
            return {}
        return {
            "lengths": lengths,
            "noise": True,
            "on_step": lambda row: outbox.newest.add("steps", tuple(row)),
        }

    return given


def drawn_lengths(world: World) -> Callable[[Request], int]:
    """Answer lengths: those of real conversations, within the caller's limit."""
    rng = world.rng("answers")

    def length(request: Request) -> int:
        drawn = int(AZURE_CONVERSATION_ANSWER.draw(rng, 1)[0])
        return min(drawn, request.output_tokens_max) if request.output_tokens_max else drawn

    return length


async def watch(server: Server, outbox: Outbox) -> None:
    """Keep their states fresh, for the router and for the store."""
    while True:
        await asyncio.sleep(WATCH_S)
        gateway = server.gateway
        now_ns = gateway.world.now_ns()
        for engine in gateway.engines.values():
            if isinstance(engine, Emulated):
                gateway.places.observe(
                    engine.name,
                    running=engine.running,
                    waiting=engine.waiting,
                    kv_usage=engine.kv_usage,
                    now_ns=now_ns,
                    capacity_tokens=engine.spec.blocks * engine.spec.block_size,
                )
                for name, value in (
                    ("requests_running", engine.running),
                    ("requests_waiting", engine.waiting),
                    ("kv_usage", engine.kv_usage),
                ):
                    outbox.newest.add("signals", (now_ns, engine.name, name, float(value)))
