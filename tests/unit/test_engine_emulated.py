import asyncio
import base64
import json
import struct

import numpy as np
import pytest

from dialects import fold_events
from sits.core.breakpoints import (
    ENGINE_RECV,
    INDEX,
    KERNEL_LAUNCH,
    QUEUED,
    SCHEDULED,
    TOKENIZED,
    Exactness,
)
from sits.core.errors import CallerError, EngineError, UnknownError
from sits.core.ports import Engine
from sits.core.request import Request, Usage
from sits.core.timeline import Timeline
from sits.engine.emulated import EmulatedEngine, StepRow
from sits.sim.model import simulate
from sits.sim.spec import FrontEnd
from sits.telemetry.tables import STEPS
from sits.testing.loop import run_virtual, small_spec
from sits.world import RealWorld, stream_generator

MS = 1_000_000


def engine(world, spec=None, lengths=lambda request: 4, **more):
    return EmulatedEngine("e", spec or small_spec(), world, lengths, **more)


def ask(name="r", prompt=32, **more):
    return Request(id=name, model="m", prompt_tokens=prompt, **more)


async def collect(e, request, world, timeline=None):
    """Chunks with the times they came at."""
    return [(world.now_ns(), chunk) async for chunk in e.generate(request, timeline or Timeline())]


def test_points_follow_the_engines_own_story():
    async def main(world):
        steps = []
        e = engine(world, on_step=steps.append)
        assert isinstance(e, Engine)
        timeline = Timeline()
        start = world.now_ns()
        got = await collect(e, ask(), world, timeline)
        at = timeline.at
        assert at[ENGINE_RECV] == start
        assert at[TOKENIZED] == start + 316_000  # 300 us, and 0.5 us for each of 32 tokens
        assert at[QUEUED] == at[SCHEDULED] == at[TOKENIZED] + 60_000
        first = steps[0]
        assert at[KERNEL_LAUNCH] == first.t_ns + first.prepare_ns
        assert all(timeline.how[p] == Exactness.MEASURED for p in range(ENGINE_RECV, KERNEL_LAUNCH + 1))
        assert timeline.disorder() is None
        assert not any(timeline.how[p] for p in (*range(ENGINE_RECV), *range(KERNEL_LAUNCH + 1, 20)))
        ends = [row.t_ns + row.duration_ns for row in steps]
        assert [t for t, _ in got] == ends
        assert [(c.tokens, c.last) for _, c in got] == [(1, False), (1, False), (1, False), (1, True)]
        assert got[-1][1].usage.output == 4
        assert all(c.data == b"" for _, c in got)
        assert [b.t_ns for b in steps[1:]] == ends[:-1]  # no gap while there is work

    run_virtual(main)


def test_step_rows_have_the_columns_of_the_store():
    assert ("run_id", *StepRow._fields) == tuple(STEPS)


@pytest.mark.parametrize(
    ("interval", "expected"),
    [(0, [1, 9]), (1, [1] * 10), (4, [1, 4, 4, 1]), (100, [1, 9])],
)
def test_chunks_come_every_so_many_tokens_and_every_token_is_counted(interval, expected):
    async def main(world):
        tokens = []
        e = engine(world, lengths=lambda r: 10, stream_interval=interval, on_tokens=tokens.append)
        got = [c.tokens for _, c in await collect(e, ask(), world)]
        assert sum(tokens) == 10
        return got

    assert run_virtual(main) == expected


def test_an_answer_of_one_token_is_one_last_chunk():
    async def main(world):
        for interval in (0, 1):
            e = engine(world, lengths=lambda r: 1, stream_interval=interval)
            [(_, chunk)] = await collect(e, ask(), world)
            assert (chunk.tokens, chunk.last, chunk.usage.input) == (1, True, 32)

    run_virtual(main)


def test_the_callers_limit_cuts_the_answer():
    async def main(world):
        e = engine(world, lengths=lambda r: 50)
        got = await collect(e, ask(output_tokens_max=3), world)
        assert got[-1][1].usage.output == 3

    run_virtual(main)


@pytest.mark.parametrize("interval", [0, 1])
def test_the_engine_and_the_compiled_loop_agree_on_a_whole_trace(interval):
    rng = stream_generator(3, "trace")
    n = 120
    arrivals = np.cumsum(rng.integers(0, 30 * MS, n))
    prompts, outputs = rng.integers(1, 300, n), rng.integers(1, 40, n)
    adapters = rng.integers(-1, 4, n)
    spec = small_spec(blocks=40, lora_slots=2, adapter_bytes=2 * MS)

    async def main(world):
        e = engine(world, spec, lambda r: int(outputs[int(r.id)]), stream_interval=interval)
        start = world.now_ns()
        rows = np.full((n, 4), -1)

        async def one(i):
            await asyncio.sleep(int(arrivals[i]) / 1e9)
            timeline = Timeline()
            adapter = f"a{adapters[i]}" if adapters[i] >= 0 else ""
            got = await collect(e, ask(str(i), int(prompts[i]), adapter=adapter), world, timeline)
            assert timeline.disorder() is None
            rows[i] = (
                timeline.at[SCHEDULED] - start,
                got[0][0] - start,
                got[-1][0] - start,
                got[-1][1].preemptions,
            )

        await asyncio.gather(*(one(i) for i in range(n)))
        return rows

    done = simulate(arrivals, prompts, outputs, adapters, spec)
    expected = np.stack(
        [done.scheduled_ns, done.first_token_ns, done.last_token_ns, done.preemptions], axis=1
    )
    assert done.preemptions.sum() > 0
    assert (run_virtual(main) == expected).all()


def test_closing_the_answer_frees_the_engine_at_once():
    async def main(world):
        e = engine(world, lengths=lambda r: 500)
        kept, left = Timeline(), Timeline()
        other = asyncio.create_task(collect(e, ask("other"), world, kept))
        stream = e.generate(ask("left"), left)
        async for _ in stream:
            break
        assert e.running == 2
        await stream.aclose()
        assert (e.running, e.waiting) == (1, 0)
        held = e.kv_usage
        other.cancel()
        await asyncio.sleep(0)
        assert 0 == e.kv_usage < held
        assert left.has(KERNEL_LAUNCH)
        before = world.now_ns()
        await asyncio.sleep(3600)
        assert world.loop.jumps < 20, "an idle engine sets no timers"
        assert world.now_ns() - before == 3600 * 10**9

    run_virtual(main)


@pytest.mark.parametrize(
    ("after_us", "last"),
    [(100, "engine_recv"), (330, "tokenized"), (400, "kv_ready"), (5_000, "kernel_launch")],
)
def test_a_cancelled_request_has_the_points_that_had_come(after_us, last):
    async def main(world):
        e = engine(world)
        timeline = Timeline()
        task = asyncio.create_task(collect(e, ask(), world, timeline))
        await asyncio.sleep(after_us / 1e6)
        task.cancel()
        await asyncio.wait([task])
        return timeline, world.now_ns()

    timeline, now_ns = run_virtual(main)
    seen = [p for p in range(20) if timeline.how[p]]
    assert seen == list(range(ENGINE_RECV, INDEX[last] + 1))
    assert max(timeline.at) <= now_ns


def test_a_refusal_does_not_disturb_others():
    async def main(world):
        e = engine(world, models=("m",))
        task = asyncio.create_task(collect(e, ask("fine"), world))
        await asyncio.sleep(0)
        with pytest.raises(
            CallerError, match=r"3000 prompt and 4 answer tokens: needs 188 KV .* has 64 .*1024"
        ) as told:
            await collect(e, ask("big", 3000), world)
        assert (told.value.status, told.value.code, told.value.field) == (400, "never_fits", "max_tokens")
        with pytest.raises(CallerError, match=r"no adapter slots .*ask for the base model") as told:
            await collect(e, ask("lora", adapter="m"), world)
        assert (told.value.code, told.value.field, told.value.value) == ("never_fits", "model", "m")
        with pytest.raises(UnknownError, match="serves m"):
            await collect(e, Request(id="x", model="other"), world)
        assert len(await task) == 4

    run_virtual(main)


def test_closing_the_engine_fails_what_is_unfinished_and_refuses_more():
    async def main(world):
        e = engine(world, lengths=lambda r: 500)
        running = asyncio.create_task(collect(e, ask("a"), world))
        await asyncio.sleep(0.1)
        arriving = asyncio.create_task(collect(e, ask("b"), world))
        await asyncio.sleep(0.0001)
        await e.close()
        for task in (running, arriving):
            with pytest.raises(EngineError, match="was closed"):
                await task
        with pytest.raises(EngineError, match="is closed"):
            await collect(e, ask("c"), world)
        assert e.kv_usage == 0.0

    run_virtual(main)


def test_a_failing_callback_fails_the_answers_instead_of_hanging_them():
    async def main(world):
        def broken(row):
            raise ZeroDivisionError("in the callback")

        e = engine(world, on_step=broken)
        reported = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: reported.append(context))
        with pytest.raises(EngineError, match="in the callback"):
            await collect(e, ask(), world)
        assert len(reported) == 1

    run_virtual(main)


def test_the_front_end_is_one_process():
    async def main(world):
        spec = small_spec(front=FrontEnd(api_us=1000.0, tokenize_us_per_token=0.0, enqueue_us=0.0))
        e = engine(world, spec)
        lines = [Timeline() for _ in range(3)]
        start = world.now_ns()
        await asyncio.gather(*(collect(e, ask(str(i)), world, t) for i, t in enumerate(lines)))
        return [t.at[TOKENIZED] - start for t in lines]

    assert run_virtual(main) == [MS, 2 * MS, 3 * MS]


def events(chunks):
    return [line for c in chunks for line in c.data.decode().split("\n\n") if line]


def rendered(body, **more):
    async def main(world):
        e = engine(world, stream_interval=2)
        request = ask(body=json.dumps(body).encode(), **more)
        return [c for _, c in await collect(e, request, world)]

    return run_virtual(main)


def test_a_streamed_chat_answer_is_openai_shaped():
    chunks = rendered({"messages": [], "stream_options": {"include_usage": True}}, output_tokens_max=4)
    assert all(c.content_type.startswith(b"text/event-stream") for c in chunks)
    *lines, done = events(chunks)
    assert done == "data: [DONE]"
    parts = [json.loads(line.removeprefix("data: ")) for line in lines]
    assert {p["object"] for p in parts} == {"chat.completion.chunk"}
    assert {p["id"] for p in parts} == {"chatcmpl-r"}
    assert parts[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    text = "".join(p["choices"][0]["delta"].get("content", "") for p in parts[:-1])
    assert len(text.split()) == 4
    assert parts[-2]["choices"][0]["finish_reason"] == "length"
    assert parts[-1]["choices"] == []
    assert parts[-1]["usage"]["completion_tokens"] == 4
    [whole] = rendered({}, stream=False)
    assert json.loads(whole.data)["choices"][0]["message"]["content"] == text


def test_usage_is_streamed_only_when_asked_for():
    lines = events(rendered({"messages": []}))
    assert not any("usage" in line for line in lines)
    assert '"finish_reason":"stop"' in lines[-2]


def test_a_whole_answer_is_one_json_body():
    [chunk] = rendered({}, stream=False, endpoint="/v1/completions")
    body = json.loads(chunk.data)
    assert chunk.content_type == b"application/json"
    assert (body["object"], len(body["choices"][0]["text"].split())) == ("text_completion", 4)
    assert body["usage"] == {
        "prompt_tokens": 32,
        "completion_tokens": 4,
        "total_tokens": 36,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


def test_wrong_bodies_and_endpoints_are_the_callers_fault():
    with pytest.raises(CallerError, match="stream_options"):
        rendered({"stream_options": 7})
    for endpoint, body in (
        ("/v1/embeddings", {"input": 7}),
        ("/v1/embeddings", {"input": []}),
        ("/v1/embeddings", {"input": ["a", 7]}),
        ("/v1/embeddings", {"input": "a", "dimensions": 0}),
        ("/v1/messages/count_tokens", []),
    ):
        with pytest.raises(CallerError):
            rendered(body, endpoint=endpoint)
    with pytest.raises(UnknownError, match="/v1/audio") as told:
        rendered({}, endpoint="/v1/audio")
    assert (told.value.status, told.value.code) == (404, "endpoint_not_served")


def test_a_streamed_message_tells_what_the_whole_one_tells():
    chunks = rendered({"messages": []}, endpoint="/v1/messages", output_tokens_max=4)
    assert all(c.content_type.startswith(b"text/event-stream") for c in chunks)
    told = fold_events(b"".join(c.data for c in chunks))
    [whole] = rendered({"messages": []}, endpoint="/v1/messages", output_tokens_max=4, stream=False)
    assert whole.content_type == b"application/json"
    assert told == json.loads(whole.data)
    assert (told["stop_reason"], len(told["content"][0]["text"].split())) == ("max_tokens", 4)
    assert (told["usage"]["input_tokens"], told["usage"]["output_tokens"]) == (32, 4)
    [chunk] = rendered({}, stream=False)
    assert json.loads(chunk.data)["choices"][0]["message"]["content"] == told["content"][0]["text"]


def test_tokens_of_a_conversation_are_counted_without_a_step():
    def count(**body):
        [chunk] = rendered(body, endpoint="/v1/messages/count_tokens", stream=False)
        return json.loads(chunk.data)["input_tokens"]

    said = [{"role": "user", "content": "hello " * 100}]
    assert count(messages=said) == len(json.dumps(said)) // 4
    assert count(messages=said, system="be brief", tools=[{}]) > count(messages=said)


def test_embeddings_are_unit_vectors_that_depend_on_the_input_alone():
    def vectors(given, **more):
        [chunk] = rendered({"input": given, **more}, endpoint="/v1/embeddings")
        assert chunk.usage == Usage(input=32, output=0)
        body = json.loads(chunk.data)
        assert body["usage"] == {"prompt_tokens": 32, "total_tokens": 32}
        assert [one["index"] for one in body["data"]] == list(range(len(body["data"])))
        return [one["embedding"] for one in body["data"]]

    def near(a, b):
        return sum(x * y for x, y in zip(a, b, strict=True))

    red, green, sky, empty = vectors(["red apple", "green apple", "blue sky", ""])
    assert all(near(v, v) == pytest.approx(1, abs=1e-5) for v in (red, green, sky, empty))
    assert near(red, green) > 0.3 > abs(near(red, sky))
    assert vectors("red apple") == [red]
    (packed,) = vectors("red apple", encoding_format="base64")
    assert list(struct.unpack("<256f", base64.b64decode(packed))) == pytest.approx(red)
    assert len(vectors([1, 2, 3], dimensions=8)[0]) == 8
    assert vectors([1, 2, 3]) == vectors([[1, 2, 3]]) != vectors([[1, 2], [3]])[:1]


def test_an_embedding_is_there_after_the_prefill():
    def took_ns(**more):
        async def main(world):
            start_ns = world.now_ns()
            [(at_ns, _)] = await collect(engine(world), ask(stream=False, **more), world)
            return at_ns - start_ns

        return run_virtual(main)

    embedding = took_ns(endpoint="/v1/embeddings", body=b'{"input":"x"}')
    assert embedding == took_ns(output_tokens_max=1, body=b"{}") < took_ns(body=b"{}")


def test_it_runs_on_a_real_loop_and_clock():
    async def main():
        world = RealWorld()
        fast = small_spec(front=FrontEnd(api_us=0.0, tokenize_us_per_token=0.0, enqueue_us=0.0))
        e = EmulatedEngine("e", fast, world, lambda r: 3)
        timeline = Timeline()
        got = await collect(e, ask(prompt=1), world, timeline)
        await e.close()
        return got, timeline

    got, timeline = asyncio.run(main())
    assert [c.tokens for _, c in got] == [1, 1, 1]
    assert timeline.disorder() is None
    # Tokens never come before the model's time for them; how much later is the machine's business.
    assert got[0][0] > timeline.at[KERNEL_LAUNCH]
    assert got[-1][0] - timeline.at[SCHEDULED] >= 3 * 10 * MS
