"""Laws of the coasting engine: times, tokens, cancellations and the gateway's CPU are those of single steps."""

import asyncio
import itertools

import msgspec
from hypothesis import assume, given
from hypothesis import strategies as st

from sim_engines import RUNS, specs, tight
from sits.core.breakpoints import QUEUED, SCHEDULED
from sits.core.errors import EngineError
from sits.core.request import Request
from sits.core.timeline import Timeline
from sits.engine.emulated import EmulatedEngine
from sits.sim.cpu import Flow, VirtualCpu
from sits.sim.spec import FrontEnd, refusal
from sits.testing.loop import run_virtual, small_spec

LATE_NS = 3_600 * 10**9

jobs_drawn = st.lists(
    st.tuples(
        st.integers(0, 20_000_000),  # after the one before, ns
        st.integers(1, 60),  # prompt
        st.integers(1, 60),  # output
        st.integers(-1, 3),  # adapter
        st.none() | st.integers(0, 60_000_000),  # cancelled so long after, ns
    ),
    min_size=1,
    max_size=12,
)
looks_drawn = st.lists(st.integers(0, 150_000_000), max_size=6)


def live(spec, jobs, looks, *, coasting, workers=1, close_ns=None):
    """Everything that can be seen of an engine and of the CPU its tokens pass, and the ends of its single steps.

    `jobs` are (arrival ns, prompt, output, adapter, cancelled at ns or None).
    """

    async def main(world):
        cpu, start = VirtualCpu(world, workers), world.now_ns()
        ends = []
        engine = EmulatedEngine(
            "e",
            spec,
            world,
            lambda request: int(request.unit),
            on_step=None if coasting else lambda row: ends.append(row.t_ns + row.duration_ns - start),
            on_tokens=lambda tokens: cpu.charge(tokens * 1_000),
            on_flow=lambda ends_ns, tokens: cpu.flow(Flow(ends_ns, tokens * 1_000)),
            stream_interval=0,
            noise=True,
        )
        seen = [[] for _ in jobs]

        async def until(ns):
            if start + ns > world.now_ns():
                await asyncio.sleep((start + ns - world.now_ns()) / 1e9)

        async def one(number):
            arrival_ns, prompt, output, adapter, _ = jobs[number]
            await until(arrival_ns)
            timeline, got = Timeline(), seen[number]
            request = Request(id=str(number), model="m", prompt_tokens=prompt, unit=str(output))
            request.adapter = f"a{adapter}" if adapter >= 0 else ""
            got.append(timeline.at)
            got.append(timeline.how)
            try:
                async for chunk in engine.generate(request, timeline):
                    got.append((world.now_ns() - start, chunk.tokens, chunk.last, chunk.preemptions))
                    await cpu.spend(0)
                    got.append(world.now_ns() - start)
            except EngineError as error:
                got.append(str(error))

        tasks = [asyncio.ensure_future(one(number)) for number in range(len(jobs))]

        async def leave(number, ns):
            await until(ns)
            tasks[number].cancel()

        async def look(ns):
            await until(ns)
            return (
                (engine.running, engine.waiting, engine.kv_usage),
                (cpu.backlog_ns(), cpu.busy_ns()),
            )

        async def close(ns):
            await until(ns)
            await engine.close()

        leaving = [leave(number, ns) for number, (*_, ns) in enumerate(jobs) if ns is not None]
        closing = [close(close_ns)] if close_ns is not None else []
        views = await asyncio.gather(*map(look, looks), *leaving, *closing)
        await asyncio.gather(*tasks, return_exceptions=True)
        await until(LATE_NS)
        told = [[*map(list, got[:2]), *got[2:]] for got in seen]
        return told, views, await look(LATE_NS), ends

    return run_virtual(main)


def jobs_of(spec, drawn):
    """Drawn jobs at their times, those that could never be served left out."""
    arrivals = itertools.accumulate(gap for gap, *_ in drawn)
    return [
        (at, prompt, output, adapter, None if left is None else at + left)
        for at, (_, prompt, output, adapter, left) in zip(arrivals, drawn, strict=True)
        if not refusal(spec, prompt, output, adapter >= 0)
    ]


def same(spec, jobs, looks, **more):
    *single, ends = live(spec, jobs, looks, coasting=False, **more)
    # Who acts at the very instant of a step's end acts before or after it as timers were set: no law.
    acts = {*looks, *(at for at, *_ in jobs), *(left for *_, left in jobs), more.get("close_ns")}
    assume(not acts & set(ends))
    *coasted, _ = live(spec, jobs, looks, coasting=True, **more)
    assert coasted == single
    return single, ends


@RUNS
@given(specs(), jobs_drawn, looks_drawn, st.integers(1, 4), st.booleans())
def test_a_coasting_engine_is_a_stepping_engine(spec, drawn, looks, workers, fight):
    if fight:
        spec = tight(spec, [job[:4] for job in drawn])
    same(spec, jobs_of(spec, drawn), looks, workers=workers)


@RUNS
@given(specs(), jobs_drawn, st.integers(0, 10**6), st.sampled_from([1, 1_000, 100_000]), looks_drawn)
def test_closing_a_coasting_engine_ends_what_a_stepping_one_ends(spec, drawn, which, early_ns, looks):
    spec = msgspec.structs.replace(spec, blocks=500, max_num_batched_tokens=200)
    jobs = jobs_of(spec, drawn)
    *_, ends = live(spec, jobs, [], coasting=False)
    assume(ends)
    same(spec, jobs, looks, close_ns=max(0, ends[which % len(ends)] - early_ns))


@RUNS
@given(st.integers(0, 10**6), st.sampled_from([-1, 0, 1]), st.integers(1, 40), st.integers(1, 4))
def test_who_queues_exactly_when_a_step_ends_is_in_the_next(which, off_ns, prompt, workers):
    """The front end takes a round millisecond, so that a request can be sent to be queued at a given nanosecond."""
    front = FrontEnd(api_us=600.0, tokenize_us_per_token=0.0, enqueue_us=400.0)
    spec = small_spec(front=front)
    jobs = [(0, 30, 40, -1, None), (5_000_000, 30, 25, -1, None)]
    *_, ends = live(spec, jobs, [], coasting=False)
    queued_ns = ends[2 + which % (len(ends) - 3)] + off_ns
    jobs.append((queued_ns - 1_000_000, prompt, 3, -1, None))
    (told, *_), steps = same(spec, jobs, [queued_ns + 5_000_000], workers=workers)
    at = told[2][0]
    assert at[SCHEDULED] - at[QUEUED] == min(end for end in steps if end >= queued_ns) - queued_ns
