"""Open-loop load on one Engine: requests leave by a schedule, whatever the engine does.

Rules.  Latency counts from the moment a request was *due*, not from when it was sent or a connection was free, so a
stalled server cannot hide the requests it delayed (coordinated omission: G. Tene, "How not to measure latency"; a vLLM
issue, 54101, reports a P99 of 507 ms by the sender's clock that was 3,330 ms from schedule).  Whether the load was delivered
is part of the result: offered and achieved rate, how late requests left, and the CPU this process used; a generator that
was late or out of CPU measured itself.  Everything is bounded: the schedule is a finite list, one request may take
`timeout_ns`, after the last due time we wait `drain_ns`, and at most `in_flight_max` requests are open.

Outcomes are those of the `requests` table; a request still open after the drain is in flight (`outcome` empty).  `load`
is for the real clock and for a virtual loop alike.  Deliberately absent: what is sent (a plan), connections (the Engine),
and judgement (`bench.investigate`, `diagnose`).
"""

import asyncio
import contextlib
import re
import resource
from collections.abc import AsyncGenerator, Sequence
from typing import Any, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from sits.core.breakpoints import API_RECV, DISPATCHED, FIRST_TOKEN, LAST_TOKEN, SENT
from sits.core.errors import BugError, CapacityError, SitsError
from sits.core.ports import Engine, World
from sits.core.request import Chunk, Request, Usage
from sits.core.timeline import Timeline
from sits.telemetry.recorder import Recorder, row_of
from sits.telemetry.tables import Columns

LEAD_NS = 20_000_000
"""The first request is due this long after the call, so that it can be on time."""

_REFUSED = frozenset({429, 503})
_ENGINE_STATUS = re.compile(r"engine_(\d{3})")


class Item(msgspec.Struct, frozen=True):
    """One request of a plan: due `offset_ns` after the start."""

    offset_ns: int
    request: Request


class Call(msgspec.Struct):
    """What became of one request.  Times are monotonic ns, 0 where it did not get so far.

    `chunk_ns` has the arrival of every chunk that carried tokens, `chunk_tokens` how many each carried.
    """

    request: Request
    due_ns: int
    timeline: Timeline
    sent_ns: int = 0
    first_ns: int = 0
    last_ns: int = 0
    chunk_ns: list[int] = []
    chunk_tokens: list[int] = []
    usage: Usage | None = None
    preemptions: int = 0
    outcome: str = ""
    status: int = 0
    detail: str = ""

    @property
    def output_tokens(self) -> int:
        """Tokens generated: by the engine's usage, else counted."""
        return self.usage.output if self.usage is not None and self.usage.output else sum(self.chunk_tokens)

    @property
    def tpot_ns(self) -> float | None:
        """Time per output token after the first, ns; None with fewer than two tokens."""
        tokens = self.output_tokens
        done = self.outcome == "completed" and self.first_ns and tokens > 1
        return (self.last_ns - self.first_ns) / (tokens - 1) if done else None


class Delivered(msgspec.Struct, frozen=True):
    """Proof that the load was what was asked for.

    Rates are requests a second over the schedule; lags are how late requests left, ms; `cpu_share` is the share of one
    core this process used meanwhile (1.0 = one full core: the generator was the bottleneck).
    """

    offered: int
    sent: int
    offered_per_s: float
    sent_per_s: float
    lag_ms_p50: float
    lag_ms_p99: float
    lag_ms_max: float
    cpu_share: float
    in_flight_max: int

    @property
    def doubt(self) -> str:
        """Why the load was not what was asked for; empty when it was."""
        if self.sent < self.offered:
            return f"{self.offered - self.sent} of {self.offered} requests were not sent: too many were open"
        if self.lag_ms_p99 > 20.0:
            return f"requests left late: {self.lag_ms_p99:.0f} ms at P99"
        if self.cpu_share > 0.8:
            return f"the load generator used {self.cpu_share:.0%} of a core"
        return ""


class Load(msgspec.Struct, frozen=True):
    """A finished load: one Call a planned request, in order of due time."""

    calls: tuple[Call, ...]
    start_ns: int
    end_ns: int
    delivered: Delivered

    def columns(self, world: World, run_id: str, engine: str) -> Columns:
        """The calls as table `requests`: `api_recv` is when a request was due, `dispatched` when it left."""
        recorder = Recorder(max(1, len(self.calls)), world, run_id)
        for call in self.calls:
            usage = call.usage or Usage()
            row = row_of(
                call.timeline,
                id=call.request.id,
                tenant=call.request.tenant,
                model=call.request.model,
                adapter=call.request.adapter,
                engine=engine,
                arm="",
                outcome=call.outcome,
                status=call.status,
                detail=call.detail,
                prompt_tokens=usage.input or call.request.prompt_tokens,
                output_tokens=call.output_tokens,
                cached_tokens=usage.cached,
                preemptions=call.preemptions,
                prompt_hash=call.request.prompt_hash,
                abstraction_layer="",
                trace_id=call.request.trace_id,
                parent_id=call.request.parent_id,
            )
            recorder.record(row)
        return recorder.drain()


def schedule(gaps_s: NDArray[np.float64], duration_ns: int) -> NDArray[np.int64]:
    """Due times, ns from the start, of arrivals with these gaps; those after `duration_ns` are left out."""
    due = (np.cumsum(gaps_s) * 1e9).astype(np.int64)
    return due[due <= duration_ns]


async def load(
    engine: Engine,
    plan: Sequence[Item],
    world: World,
    *,
    timeout_ns: int = 120 * 10**9,
    drain_ns: int = 60 * 10**9,
    in_flight_max: int = 512,
) -> Load:
    """Send the plan and wait for the answers.

    Raises:
        BugError: an empty plan, or one that is not in order of time.

    """
    offsets = [item.offset_ns for item in plan]
    if not plan or offsets != sorted(offsets) or offsets[0] < 0:
        raise BugError("a plan is a list of requests in order of time", field="plan", value=len(plan))
    start_ns = world.now_ns() + LEAD_NS
    cpu_s = _cpu_s()
    calls: list[Call] = []
    tasks: set[asyncio.Task[None]] = set()
    crashes: list[BaseException] = []
    most = 0

    def ended(task: "asyncio.Task[None]") -> None:
        tasks.discard(task)
        if not task.cancelled() and (crash := task.exception()) is not None:
            crashes.append(crash)

    try:
        for item in plan:
            call = Call(item.request, start_ns + item.offset_ns, Timeline())
            call.timeline.mark(API_RECV, call.due_ns)
            calls.append(call)
            await _until(call.due_ns, world)
            if len(tasks) >= in_flight_max:
                call.outcome, call.detail = "refused", "client_in_flight_max"
                continue
            task = asyncio.create_task(_send(engine, call, world, timeout_ns))
            tasks.add(task)
            task.add_done_callback(ended)
            most = max(most, len(tasks))
        if tasks:
            await asyncio.wait(tasks, timeout=drain_ns / 1e9)
    finally:
        left = list(tasks)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
    if crashes:
        raise crashes[0]
    end_ns = world.now_ns()
    return Load(tuple(calls), start_ns, end_ns, _delivered(calls, end_ns - start_ns, _cpu_s() - cpu_s, most))


async def _until(due_ns: int, world: World) -> None:
    """Wait for a moment; a timer may come early by the resolution of its clock, then wait again."""
    while (wait_ns := due_ns - world.now_ns()) > 0:  # noqa: ASYNC110 - time is what we wait for
        await asyncio.sleep(wait_ns / 1e9)


async def _send(engine: Engine, call: Call, world: World, timeout_ns: int) -> None:
    """One request to its end.  A failure is a result, not an exception; being cancelled leaves it in flight."""
    call.sent_ns = world.now_ns()
    call.timeline.mark(DISPATCHED, call.sent_ns)
    try:
        async with asyncio.timeout(timeout_ns / 1e9):
            answer = cast("AsyncGenerator[Chunk, None]", engine.generate(call.request, call.timeline))
            async with contextlib.aclosing(answer):
                async for chunk in answer:
                    _take(call, chunk, world.now_ns())
    except TimeoutError:
        call.outcome, call.detail = "cancelled", "timeout"
    except CapacityError as error:
        _end(call, "refused", error)
    except SitsError as error:
        _end(call, "failed", error)
    else:
        _finish(call)


def _take(call: Call, chunk: Chunk, now_ns: int) -> None:
    call.status = chunk.status
    call.last_ns = now_ns
    call.preemptions = max(call.preemptions, chunk.preemptions)
    if chunk.usage is not None:
        call.usage = chunk.usage
    if chunk.tokens:
        call.chunk_ns.append(now_ns)
        call.chunk_tokens.append(chunk.tokens)
        if not call.first_ns:
            call.first_ns = now_ns


def _finish(call: Call) -> None:
    """The engine's answer ended by itself."""
    if call.status >= 400:
        call.outcome = "refused" if call.status in _REFUSED else "failed"
        call.detail = f"http_{call.status}"
        return
    if not call.first_ns:
        call.outcome, call.detail = "failed", "no_tokens"
        return
    call.outcome = "completed"
    call.timeline.mark(FIRST_TOKEN, call.first_ns)
    call.timeline.mark(LAST_TOKEN, call.chunk_ns[-1])
    call.timeline.mark(SENT, call.last_ns)


def _end(call: Call, outcome: str, error: SitsError) -> None:
    call.detail = error.code or error.kind
    told = _ENGINE_STATUS.fullmatch(call.detail)
    call.status = int(told[1]) if told else error.status
    call.outcome = "refused" if call.status in _REFUSED else outcome


def _delivered(calls: Sequence[Call], took_ns: int, cpu_s: float, most: int) -> Delivered:
    sent = [call for call in calls if call.sent_ns]
    lags = np.array([call.sent_ns - call.due_ns for call in sent] or [0]) / 1e6
    p50, p99 = (float(value) for value in np.quantile(lags, [0.5, 0.99], method="higher"))
    return Delivered(
        offered=len(calls),
        sent=len(sent),
        offered_per_s=_rate([call.due_ns for call in calls]),
        sent_per_s=_rate([call.sent_ns for call in sent]),
        lag_ms_p50=p50,
        lag_ms_p99=p99,
        lag_ms_max=float(lags.max()),
        cpu_share=cpu_s / max(1e-9, took_ns / 1e9),
        in_flight_max=most,
    )


def _rate(times_ns: Sequence[int]) -> float:
    """Arrivals a second: gaps over the time they span, 0 for fewer than two."""
    span_ns: Any = max(times_ns, default=0) - min(times_ns, default=0)
    return (len(times_ns) - 1) / (span_ns / 1e9) if span_ns else 0.0


def _cpu_s() -> float:
    """CPU this process used so far, s: accounting, not a clock."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
