"""Watching engines: each one's metrics page once a second, as signals and as the state that routing looks at.

Rules: a page that cannot be read leaves the engine's state *unknown*, never saturated, and is told once, until it can be read again; one
slow engine delays no other.  Engines that tell nothing (Anthropic's API, emulated ones, which are not here) are not watched.

Deliberately absent: what the states are for, and any judgement of them.
"""

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

from sits.app.up.senses import Senses
from sits.bench.target import fetch
from sits.core.errors import SitsError
from sits.core.fleet import Fleet, OpenAIEngine
from sits.core.ports import World
from sits.telemetry.logs import Say
from sits.telemetry.prometheus_text import parse
from sits.telemetry.signals import engine_facts, rows, view

WATCH_S = 1.0
TIMEOUT_S = 2.0
THREADS = 64
"""Engines that may be slow at the same time without delaying the others."""

Observed = Callable[[str, int, Mapping[str, float], int], None]
"""Called with an engine's name, the time, its values by our signal names, and the tokens its KV pool holds (0 = not told)."""


class Watch:
    """One task an engine of the fleet in use, and the senses for the machine."""

    def __init__(self, world: World, observed: Observed, say: Say) -> None:
        self._world = world
        self._observed = observed
        self._say = say
        self._tasks: dict[str, tuple[OpenAIEngine, asyncio.Task[None]]] = {}
        self._threads = ThreadPoolExecutor(THREADS, "sits-watch")
        self._senses = Senses(world, lambda name, now_ns, values: observed(name, now_ns, values, 0), say)

    def adopt(self, fleet: Fleet) -> None:
        """Watch the engines of this fleet, and no others, and the machine as it says."""
        wanted = {engine.name: engine for engine in fleet.engines if isinstance(engine, OpenAIEngine)}
        self._senses.adopt(
            fleet.telemetry.signals, {name: _peer(engine.url) for name, engine in wanted.items()}
        )
        for name, (engine, task) in list(self._tasks.items()):
            if wanted.get(name) != engine:
                task.cancel()
                del self._tasks[name]
        for name, engine in wanted.items():
            if name not in self._tasks:
                self._tasks[name] = (engine, asyncio.get_running_loop().create_task(self._watch(engine)))

    def stop(self) -> None:
        """Watch nothing any more."""
        self._senses.stop()
        for _, task in self._tasks.values():
            task.cancel()
        self._tasks.clear()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _watch(self, engine: OpenAIEngine) -> None:
        loop, told = asyncio.get_running_loop(), False
        while True:
            await asyncio.sleep(WATCH_S)
            now_ns = self._world.now_ns()
            try:
                values, capacity = await loop.run_in_executor(self._threads, state_of, engine)
            except (SitsError, OSError) as error:
                if not told:
                    self._say(
                        f"engine {engine.name}: no metrics ({error}); its state counts as unknown",
                        "warning",
                        engine=engine.name,
                    )
                told = True
                continue
            told = False
            self._observed(engine.name, now_ns, values, capacity)


def _peer(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    return parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)


def state_of(engine: OpenAIEngine) -> tuple[dict[str, float], int]:
    """An engine's state by our signal names, and the tokens its KV pool holds (0 = not told).  Raises SitsError, OSError."""
    base = engine.url.rstrip("/").removesuffix("/v1")
    found = parse(fetch(engine.metrics or f"{base}/metrics", timeout_s=TIMEOUT_S))
    facts = engine_facts(found)
    capacity = int(facts.get("num_gpu_blocks", 0)) * int(facts.get("block_size", 0))
    values = {name: value for _, _, name, value in rows(view(found), engine.name, 0)}
    return values, capacity or int(values.get("kv_capacity_tokens", 0))
