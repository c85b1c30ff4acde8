"""`sitsctl up`: one fleet served until Ctrl-C, every request recorded, every engine watched.

Before it listens, the store has been written to and all engines are ready, so that nobody waits for what is loaded.
What runs beside the data plane: a writer thread that empties the recorder into the store twice a second, and a
task that reads each engine's metrics page once a second, gives its state to the router and keeps it as signals.
A page that cannot be read leaves the engine's state *unknown*, never saturated.

Files in the store besides the tables: `fleet-<digest>.yaml`, the configuration that was served, so that `why`
knows the objective.

Deliberately absent: several processes on one port.  `gateway.workers` above one is refused here rather than
silently served by one.
"""

import asyncio
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import uvloop

from sits.app.output import read_text
from sits.bench.lengths import AZURE_CONVERSATION_ANSWER
from sits.bench.target import fetch
from sits.core.config import digest, dump_fleet, load_fleet
from sits.core.errors import ConfigError, SitsError
from sits.core.fleet import AnyEngine, EmulatedEngine, Fleet, OpenAIEngine
from sits.core.ports import Engine
from sits.core.request import Request
from sits.core.units import SECOND
from sits.engine.emulated import EmulatedEngine as Emulated
from sits.gateway.pipeline import Gateway
from sits.gateway.server import Server
from sits.sim.model import compile_kernel
from sits.telemetry.prometheus_text import parse
from sits.telemetry.recorder import Recorder
from sits.telemetry.rowlog import SignalLog, StepLog
from sits.telemetry.signals import engine_facts, rows, view
from sits.telemetry.store import DuckStore
from sits.telemetry.writer import StoreWriter
from sits.wire import build_engine
from sits.world import RealWorld

REQUESTS_BUFFERED, STEPS_BUFFERED, SIGNALS_BUFFERED = 65_536, 65_536, 65_536
WATCH_S = 1.0
RETAIN_NS = 7 * 24 * 3600 * SECOND
"""Raw rows are kept for seven days."""

Say = Callable[[str], None]


def up(path: Path, say: Say) -> None:
    """Serve the fleet of a file until SIGINT or SIGTERM, then drain.

    Raises:
        ConfigErrors: the file has problems; all are named.
        ConfigError: the file is not UTF-8, the address cannot be had, the store not be written, or more than one worker is asked for.

    """
    fleet = load_fleet(read_text(path), str(path))
    if fleet.gateway.workers != 1:
        raise ConfigError(
            f"{fleet.gateway.workers} workers, and this version serves with one process",
            field="gateway.workers",
            value=fleet.gateway.workers,
            hint="set it to 1 here; more workers exist in emulated fleets (sitsctl reproduce)",
        )
    uvloop.run(_serve(fleet, say))


async def _serve(fleet: Fleet, say: Say) -> None:
    world = RealWorld()
    path = Path(fleet.gateway.store)
    with _opened(path, world) as store:
        name = digest(fleet)[:12]
        run_id = f"{fleet.name}-{world.wall_ns() // SECOND}-{name}"
        recorder = Recorder(REQUESTS_BUFFERED, world, run_id)
        steps, signals = StepLog(STEPS_BUFFERED, run_id), SignalLog(SIGNALS_BUFFERED, run_id)
        gateway = Gateway(world, fleet, _engines(fleet, world, steps), recorder)
        writer = StoreWriter(
            store, {"requests": recorder, "steps": steps, "signals": signals}, retain_ns=RETAIN_NS
        )
        watchers: list[asyncio.Task[None]] = []

        def started(host: str, port: int) -> None:
            (path / f"fleet-{name}.yaml").write_text(dump_fleet(fleet))
            writer.start()
            watchers.extend(
                asyncio.ensure_future(_watch(gateway, one, signals, say))
                for one in fleet.engines
                if isinstance(one, EmulatedEngine | OpenAIEngine)  # Anthropic's API tells nothing to watch
            )
            say(_started(fleet, host, port, path))

        try:
            await _listen(Server(gateway, fleet), started)
        finally:
            for watcher in watchers:
                watcher.cancel()
            writer.stop()
    say(
        f"drained; {gateway.counts['completed']} answered, {recorder.dropped} records dropped, store in {path}"
    )


def _engines(fleet: Fleet, world: RealWorld, steps: StepLog) -> dict[str, Engine]:
    """All engines, ready to answer: what emulated ones compile or load is there before somebody waits for it."""
    lengths = _drawn_lengths(world)
    if any(isinstance(engine, EmulatedEngine) for engine in fleet.engines):
        compile_kernel()
    return {
        engine.name: build_engine(fleet, engine, world, lengths=lengths, **_hooks(engine, steps))
        for engine in fleet.engines
    }


def _opened(path: Path, world: RealWorld) -> DuckStore:
    """The store, tried out by a file that is written and deleted.

    Raises:
        ConfigError: it cannot be written.

    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            return DuckStore(path, world=world)
    except OSError as error:
        raise ConfigError(
            f"cannot record to {path}: {error.strerror}",
            field="gateway.store",
            value=str(path),
            hint="name a directory that may be written",
        ) from error


async def _listen(server: Server, started: Callable[[str, int], None]) -> None:
    """Serve until told to stop; a port that cannot be had is told as a ConfigError."""
    listening = False

    def begun(host: str, port: int) -> None:
        nonlocal listening
        listening = True
        started(host, port)

    try:
        await server.run(begun)
    except OSError as error:
        if listening:
            raise
        listen = server.fleet.gateway.listen
        raise ConfigError(
            f"cannot listen on {listen}: {os.strerror(error.errno) if error.errno else error}",
            field="gateway.listen",
            value=listen,
            hint="choose a free port, or stop what uses it",
        ) from error


def _started(fleet: Fleet, host: str, port: int, store: Path) -> str:
    return f"{fleet.name}: serving {len(fleet.engines)} engines on http://{host}:{port}/v1, recording to {store}; Ctrl-C drains"


def _hooks(engine: AnyEngine, steps: StepLog) -> dict[str, Any]:
    return {"on_step": steps.append, "noise": True} if isinstance(engine, EmulatedEngine) else {}


def _drawn_lengths(world: RealWorld) -> Callable[[Request], int]:
    """Answer lengths of emulated engines: those of real conversations, within the caller's limit."""
    rng = world.rng("answers")

    def length(request: Request) -> int:
        drawn = int(AZURE_CONVERSATION_ANSWER.draw(rng, 1)[0])
        return min(drawn, request.output_tokens_max) if request.output_tokens_max else drawn

    return length


async def _watch(
    gateway: Gateway, engine: EmulatedEngine | OpenAIEngine, signals: SignalLog, say: Say
) -> None:
    """Keep one engine's state fresh; a failure is told once, until it works again."""
    told = False
    while True:
        await asyncio.sleep(WATCH_S)
        now_ns = gateway.world.now_ns()
        try:
            values, capacity = await _state(gateway.engines[engine.name], engine)
        except (SitsError, OSError) as error:
            if not told:
                say(f"engine {engine.name}: no metrics ({error}); its state counts as unknown")
            told = True
            continue
        told = False
        for name, value in values.items():
            signals.append((now_ns, engine.name, name, value))
        if "requests_running" in values:
            gateway.places.observe(
                engine.name,
                running=int(values["requests_running"]),
                waiting=int(values.get("requests_waiting", 0)),
                kv_usage=values.get("kv_usage", 0.0),
                now_ns=now_ns,
                capacity_tokens=capacity,
            )


async def _state(engine: Engine, config: EmulatedEngine | OpenAIEngine) -> tuple[dict[str, float], int]:
    """An engine's state by our signal names, and the tokens its KV pool holds (0 = not told)."""
    if isinstance(engine, Emulated):
        state = {
            "requests_running": engine.running,
            "requests_waiting": engine.waiting,
            "kv_usage": engine.kv_usage,
        }
        return {
            name: float(value) for name, value in state.items()
        }, engine.spec.blocks * engine.spec.block_size
    assert isinstance(config, OpenAIEngine)
    base = config.url.rstrip("/").removesuffix("/v1")
    page = parse(await asyncio.to_thread(fetch, config.metrics or f"{base}/metrics", timeout_s=2.0))
    facts = engine_facts(page)
    capacity = int(facts.get("num_gpu_blocks", 0)) * int(facts.get("block_size", 0))
    return {name: value for _, _, name, value in rows(view(page), config.name, 0)}, capacity
