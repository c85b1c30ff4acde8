"""Laws of the row behind an emulated engine: all 17 breakpoints measured, in order, and the stages are the whole time."""

import asyncio
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from sits.core.breakpoints import (
    API_RECV,
    BREAKPOINT_COUNT,
    FIRST_TOKEN,
    PARSED,
    POINT_COUNT,
    SENT,
    Exactness,
)
from sits.core.fleet import Fleet, OpenAIEngine
from sits.core.request import Request
from sits.core.timeline import Timeline
from sits.engine.emulated import EmulatedEngine
from sits.gateway.pipeline import Gateway
from sits.testing.loop import MemoryRecorder, run_virtual, small_spec


class Nowhere:
    """An answer that nobody reads."""

    def start(self, status, content_type, lines=b""):
        pass

    def write(self, data):
        pass

    def finish(self):
        pass

    def abort(self):
        pass


BURST = st.lists(
    st.tuples(
        st.integers(0, 30),  # ms after the one before
        st.integers(1, 400),  # prompt tokens: up to two chunks of a prefill
        st.integers(1, 40),  # answer tokens
        st.booleans(),  # streamed
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=25, deadline=None)
@given(burst=BURST, blocks=st.sampled_from([40, 64, 200]), interval=st.sampled_from([0, 1, 4]))
def test_every_breakpoint_of_every_request_is_measured(burst, blocks, interval):
    async def main(world):
        outputs = {f"r{i}": asked[2] for i, asked in enumerate(burst)}
        engine = EmulatedEngine(
            "e", small_spec(blocks=blocks), world, lambda r: outputs[r.id], stream_interval=interval
        )
        recorder, lines = MemoryRecorder(), {}
        fleet = Fleet(name="f", engines=(OpenAIEngine(name="e", models=("m",)),))
        gateway = Gateway(world, fleet, {"e": engine}, recorder)

        async def ask(i, prompt, stream):
            timeline = lines[i] = Timeline()
            timeline.mark(API_RECV, world.now_ns())
            timeline.mark(PARSED, world.now_ns())
            request = Request(
                id=f"r{i}", model="m", prompt_tokens=prompt, output_tokens_max=64, stream=stream
            )
            await gateway.handle(request, timeline, Nowhere(), headers={})

        async with asyncio.TaskGroup() as tasks:
            for i, (gap_ms, prompt, _, stream) in enumerate(burst):
                await asyncio.sleep(gap_ms / 1000)
                tasks.create_task(ask(i, prompt, stream))
        assert [row["outcome"] for row in recorder.rows] == ["completed"] * len(burst)
        for i, (_, _, _, stream) in enumerate(burst):
            line = lines[i]
            missing = {point for point in range(POINT_COUNT) if not line.has(point)}
            assert missing == (set() if stream else {FIRST_TOKEN}), (
                "an answer that comes whole has no first token"
            )
            assert {line.how[point] for point in range(BREAKPOINT_COUNT)} == {Exactness.MEASURED}
            assert line.disorder() is None
            seen = [line.at[point] for point in range(POINT_COUNT) if point not in missing]
            assert sum(b - a for a, b in pairwise(seen)) == line.span_ns(API_RECV, SENT)

    run_virtual(main)
