"""One run of a fleet on the virtual loop: the real pipeline and policies, engines that pretend, time that jumps.

What is real here: `gateway.pipeline`, every policy, the engines' scheduler, the recorder and its tables.  What
pretends: engines take the time predictors say, and the gateway's CPU is a queue of `gateway.workers` workers
that is charged `gateway.cost` (a live gateway simply spends it).  A token that leaves an engine is charged to
that CPU when it is made, and an answer's first and last token wait for the work before them (`_Toll`).

Rules: the true output length is known to the engines alone; the same variant, workload and seed give the same
columns; a run that leaves a request unfinished is a bug and says so.

Deliberately absent: what the columns mean (`diagnose`).
"""

import asyncio
from collections.abc import AsyncIterator

import msgspec
import numpy as np

from sits.bench.scenario import PcieBandwidth, Variant
from sits.bench.workload import Workload, row_of
from sits.core.access_names import opened
from sits.core.breakpoints import API_RECV, PARSED
from sits.core.errors import BugError
from sits.core.ports import Engine
from sits.core.report import Account
from sits.core.request import Chunk, Request
from sits.core.timeline import Timeline
from sits.gateway.pipeline import Gateway
from sits.predict.transfer import Dips
from sits.sim.cpu import Flow, VirtualCpu
from sits.sim.loop import VirtualWorld, run_virtual
from sits.telemetry.recorder import Recorder
from sits.telemetry.rowlog import SignalLog, StepLog
from sits.telemetry.tables import Columns
from sits.wire import NodeDips, build_engine

SAMPLE_NS = 100_000_000
"""How often signals are sampled in a recorded run."""

STEPS_MAX = 400_000
SIGNALS_MAX = 400_000


class RunColumns(msgspec.Struct, frozen=True):
    """The tables of one run and its account; `steps` and `signals` are empty unless the run was recorded in full."""

    requests: Columns
    steps: Columns
    signals: Columns
    account: Account


class _Silence:
    """A client that takes everything at once."""

    def in_pieces(self) -> None:
        """Taken as it comes."""

    def start(self, status: int, content_type: bytes, lines: bytes = b"") -> None:
        """Nothing to keep."""

    def write(self, data: bytes) -> None:
        """Taken."""

    def finish(self) -> None:
        """Done."""

    def abort(self) -> None:
        """Seen."""


class _Toll:
    """An engine seen through the gateway's CPU: what it hands over waits for the work that came before."""

    def __init__(self, engine: Engine, cpu: VirtualCpu) -> None:
        self.name = engine.name
        self._engine = engine
        self._cpu = cpu

    async def generate(self, request: Request, timeline: Timeline) -> AsyncIterator[Chunk]:
        """The engine's chunks, each after the work its tokens were charged behind."""
        async for chunk in self._engine.generate(request, timeline):
            await self._cpu.spend(0)
            yield chunk

    async def close(self) -> None:
        """Close the engine."""
        await self._engine.close()


def run_fleet(variant: Variant, workload: Workload, *, seed: int, run_id: str, full: bool) -> RunColumns:
    """Run a workload through a fleet once; `full` keeps steps and signals too.

    Raises:
        ConfigError: the fleet cannot be emulated.
        BugError: a request was neither finished nor refused.

    """
    return run_virtual(lambda world: _run(world, variant, workload, run_id, full), seed)


async def _run(
    world: VirtualWorld, variant: Variant, workload: Workload, run_id: str, full: bool
) -> RunColumns:
    fleet, start_ns = variant.fleet, world.now_ns()
    cpu = VirtualCpu(world, fleet.gateway.workers)
    steps, signals = StepLog(STEPS_MAX if full else 1, run_id), SignalLog(SIGNALS_MAX if full else 1, run_id)
    recorder = Recorder(max(1, len(workload)), world, run_id)
    chunk_ns = fleet.gateway.cost.chunk
    outputs = workload.output_tokens.tolist()
    engines = {
        engine.name: build_engine(
            fleet,
            engine,
            world,
            lengths=lambda request: outputs[row_of(request)],
            faults=node_dips(variant.faults),
            on_tokens=lambda tokens: cpu.charge(tokens * chunk_ns),
            on_flow=lambda ends_ns, tokens: cpu.flow(Flow(ends_ns, tokens * chunk_ns)),
            on_step=steps.append if full else None,
            stream_interval=0,
            noise=True,
        )
        for engine in fleet.engines
    }
    gateway = Gateway(
        world, opened(fleet), {name: _Toll(e, cpu) for name, e in engines.items()}, recorder, cpu
    )
    sampler = asyncio.ensure_future(_sample(world, gateway, cpu, signals)) if full else None
    await _offer(world, gateway, cpu, workload, start_ns)
    if sampler is not None:
        sampler.cancel()
    if full and (steps.dropped or signals.dropped):
        raise BugError(
            f"{steps.dropped} steps and {signals.dropped} signals did not fit", hint="split the run"
        )
    return RunColumns(
        recorder.drain(), steps.drain() if full else {}, signals.drain() if full else {}, _account(gateway)
    )


async def _offer(
    world: VirtualWorld, gateway: Gateway, cpu: VirtualCpu, workload: Workload, start_ns: int
) -> None:
    """Send every request at its time, whatever became of the ones before, and wait for all of them."""
    loop, silence = world.loop, _Silence()
    tasks: list[asyncio.Task[None]] = []

    parse_ns = gateway.fleet.gateway.cost.request // 2

    async def visit(request: Request) -> None:
        timeline = Timeline()
        timeline.mark(API_RECV, request.arrival_ns)
        await cpu.spend(parse_ns)
        timeline.mark(PARSED, world.now_ns())
        await gateway.handle(request, timeline, silence)

    def arrive(request: Request) -> None:
        tasks.append(loop.create_task(visit(request)))

    last_ns = start_ns
    for request in workload.requests():
        request.arrival_ns += start_ns
        last_ns = request.arrival_ns
        loop.call_at_ns(last_ns, arrive, request)
    await asyncio.sleep((last_ns - world.now_ns()) / 1e9 + 1e-6)
    await asyncio.gather(*tasks)


async def _sample(world: VirtualWorld, gateway: Gateway, cpu: VirtualCpu, signals: SignalLog) -> None:
    """The gateway's own signals, every `SAMPLE_NS`."""
    busy_ns = cpu.busy_ns()
    while True:
        await asyncio.sleep(SAMPLE_NS / 1e9)
        now_ns, busy_before_ns, busy_ns = world.now_ns(), busy_ns, cpu.busy_ns()
        share = (busy_ns - busy_before_ns) / (SAMPLE_NS * cpu.workers)
        signals.append((now_ns, "gateway", "gateway_cpu_share", share))
        signals.append((now_ns, "gateway", "gateway_backlog_ms", cpu.backlog_ns() / 1e6))
        signals.append((now_ns, "gateway", "window_pending", float(sum(gateway.pending().values()))))
        signals.append((now_ns, "gateway", "requests_inflight", float(gateway.places.inflight_requests)))


def node_dips(faults: tuple[PcieBandwidth, ...]) -> dict[str, NodeDips]:
    """Link faults by node."""
    return {
        node: NodeDips(
            Dips(depth=fault.depth, width_ns=fault.width, period_ns=fault.every), fault.while_running
        )
        for fault in faults
        for node in fault.nodes
    }


def _account(gateway: Gateway) -> Account:
    counts = gateway.counts
    account = Account(
        gateway.offered, counts["completed"], counts["failed"], counts["cancelled"], counts["refused"], 0
    )
    if account.offered != sum(counts.values()):
        raise BugError(f"{account.offered} requests were offered, {sum(counts.values())} ended: {counts}")
    return account


def latency_ms(columns: Columns, metric: str) -> np.ndarray:
    """TTFT or end-to-end time of every request in ms, in the order of arrival; NaN where there was no answer.

    The order makes runs of one workload comparable row by row.
    """
    order = np.argsort(columns["id"])
    end = columns["first_token" if metric == "ttft" else "sent"][order]
    answered = (end > 0) & (columns["outcome"][order] == "completed")
    return np.where(answered, (end - columns["api_recv"][order]) / 1e6, np.nan)


__all__ = ["RunColumns", "latency_ms", "node_dips", "run_fleet"]
