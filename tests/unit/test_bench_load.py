"""Open-loop load: latency from schedule, every outcome counted, everything bounded.  On the virtual loop."""

import asyncio
import time

import numpy as np
import pytest

from sits.bench.load import LEAD_NS, Item, load, schedule
from sits.core.breakpoints import API_RECV, DISPATCHED, FIRST_TOKEN
from sits.core.errors import BugError, CapacityError, EngineError
from sits.core.request import Chunk, Request, Usage
from sits.diagnose.decompose import account, decompose
from sits.sim.loop import run_virtual
from sits.world import RealWorld

MS = 1_000_000


class Scripted:
    """An engine that does what its script says with each request."""

    name = "scripted"

    def __init__(self, script):
        self.script = script
        self.open = 0

    async def generate(self, request, timeline):
        self.open += 1
        try:
            async for chunk in self.script(request):
                yield chunk
        finally:
            self.open -= 1

    async def close(self):
        pass


async def answer(first_s=0.1, tokens=5, pace_s=0.01):
    await asyncio.sleep(first_s)
    for i in range(tokens):
        if i:
            await asyncio.sleep(pace_s)
        yield Chunk(tokens=1)
    yield Chunk(last=True, usage=Usage(7, tokens))


def plan(*offsets_ms):
    return [
        Item(int(at * MS), Request(id=f"r{i}", model="m", prompt_tokens=3)) for i, at in enumerate(offsets_ms)
    ]


def run(script, items, **more):
    engine = Scripted(script)

    async def main(world):
        return await load(engine, items, world, **more), engine.open

    done, left = run_virtual(main)
    assert left == 0
    return done


def test_times_are_from_schedule_and_exact_on_a_virtual_clock():
    done = run(lambda _: answer(), plan(0, 30, 30))
    assert [call.outcome for call in done.calls] == ["completed"] * 3
    assert [call.due_ns - done.start_ns for call in done.calls] == [0, 30 * MS, 30 * MS]
    assert [call.first_ns - call.due_ns for call in done.calls] == [100 * MS] * 3
    assert [call.last_ns - call.first_ns for call in done.calls] == [40 * MS] * 3
    assert [call.tpot_ns for call in done.calls] == [10 * MS] * 3
    assert done.calls[0].chunk_ns == [done.start_ns + (100 + 10 * i) * MS for i in range(5)]
    assert done.delivered.lag_ms_max == 0
    assert (done.delivered.offered, done.delivered.sent, done.delivered.doubt) == (3, 3, "")
    assert done.end_ns - done.start_ns == 170 * MS


def test_the_table_cuts_into_stages_that_add_up():
    columns = run(lambda _: answer(), plan(0, 5)).columns(RealWorld(), "run", "e0")
    assert account(columns).completed == 2
    cut = decompose(columns, "ttft")
    assert cut.total_ns.tolist() == [100 * MS] * 2
    assert columns["prompt_tokens"].tolist() == [7, 7]
    assert columns["output_tokens"].tolist() == [5, 5]
    assert (columns["dispatched"] - columns["api_recv"]).tolist() == [0, 0]


def test_a_generator_that_was_late_says_so_and_hides_nothing():
    """A blocked event loop delays the second request: its latency counts from when it was due."""

    async def blocks(request):
        if request.id == "r0":
            time.sleep(0.06)  # noqa: ASYNC251 - blocking the loop is what is tested
        yield Chunk(tokens=1)
        yield Chunk(last=True)

    async def main():
        return await load(Scripted(blocks), plan(0, 10), RealWorld())

    done = asyncio.run(main())
    late = done.calls[1]
    blocked_until = done.calls[0].sent_ns + 60 * MS
    assert late.sent_ns >= blocked_until
    assert late.first_ns - late.due_ns >= blocked_until - late.due_ns > 0
    assert late.timeline.at[API_RECV] == late.due_ns
    assert late.timeline.at[DISPATCHED] == late.sent_ns
    assert done.delivered.lag_ms_max >= 40
    assert "left late" in done.delivered.doubt


def test_every_outcome_is_counted():
    async def mixed(request):
        match request.id:
            case "r0":
                raise CapacityError("full", code="queue_full")
            case "r1":
                raise EngineError("died", code="engine_died")
            case "r2":
                raise EngineError("overloaded", code="engine_503")
            case "r3":
                yield Chunk(status=429, last=True)
            case "r4":
                yield Chunk(status=404, last=True)
            case "r5":
                await asyncio.sleep(5)
            case "r6":
                yield Chunk(last=True)
            case "r7":
                yield Chunk(tokens=1)
                raise EngineError("failed", code="engine_500")
            case _:
                yield Chunk(tokens=1)
                await asyncio.sleep(1000)

    done = run(mixed, plan(*range(9)), timeout_ns=1000 * MS, drain_ns=900 * MS)
    got = [(call.outcome, call.status, call.detail) for call in done.calls]
    assert got == [
        ("refused", 503, "queue_full"),
        ("failed", 502, "engine_died"),
        ("refused", 503, "engine_503"),
        ("refused", 429, "http_429"),
        ("failed", 404, "http_404"),
        ("", 0, ""),
        ("failed", 200, "no_tokens"),
        ("failed", 500, "engine_500"),
        ("", 200, ""),
    ]
    tally = account(done.columns(RealWorld(), "run", "e0"))
    assert (tally.completed, tally.failed, tally.refused, tally.cancelled, tally.in_flight) == (0, 4, 3, 0, 2)


def test_a_request_may_take_its_time_and_no_more():
    done = run(lambda _: answer(first_s=10), plan(0), timeout_ns=2000 * MS)
    assert (done.calls[0].outcome, done.calls[0].detail) == ("cancelled", "timeout")
    assert done.end_ns - done.start_ns == 2000 * MS


def test_open_requests_are_bounded_and_the_rest_counted():
    done = run(lambda _: answer(first_s=1), plan(0, 1, 2, 3), in_flight_max=2)
    assert [call.outcome for call in done.calls] == ["completed", "completed", "refused", "refused"]
    assert done.calls[2].detail == "client_in_flight_max"
    assert done.delivered.sent == 2
    assert "2 of 4 requests were not sent" in done.delivered.doubt


def test_being_cancelled_cancels_the_requests():
    engine = Scripted(lambda _: answer(first_s=100))

    async def main(world):
        task = asyncio.create_task(load(engine, plan(0, 1), world))
        await asyncio.sleep(1)
        open_before = engine.open
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return open_before, engine.open

    assert run_virtual(main) == (2, 0)


def test_a_bug_of_the_engine_is_not_swallowed():
    async def broken(_):
        raise ZeroDivisionError
        yield

    with pytest.raises(ZeroDivisionError):
        run(broken, plan(0))


def test_the_offered_rate_is_of_the_schedule():
    done = run(lambda _: answer(), plan(0, 100, 200, 300, 400))
    assert done.delivered.offered_per_s == pytest.approx(10)
    assert done.delivered.sent_per_s == pytest.approx(10)


def test_a_schedule_is_cut_at_its_duration():
    assert schedule(np.array([0.5, 0.5, 0.5]), 1000 * MS).tolist() == [500 * MS, 1000 * MS]


@pytest.mark.parametrize("items", [[], plan(5, 1)])
def test_a_plan_is_in_order_of_time(items):
    with pytest.raises(BugError, match="in order of time"):
        run(lambda _: answer(), items)


def test_without_usage_tokens_are_counted_and_the_lead_keeps_the_first_on_time():
    async def unsaid(_):
        yield Chunk(tokens=2)
        await asyncio.sleep(0.03)
        yield Chunk(tokens=1)

    done = run(unsaid, plan(0))
    (call,) = done.calls
    assert (call.output_tokens, call.tpot_ns) == (3, 15 * MS)
    assert call.timeline.at[FIRST_TOKEN] == call.due_ns
    assert LEAD_NS > 0
