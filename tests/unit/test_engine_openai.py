"""The OpenAI-compatible engine against scripted servers: streams, refusals, failures, cancellation, pools."""

import asyncio
import contextlib

import orjson
import pytest

from gateway_upstream import (
    DONE,
    LAST,
    PLAIN,
    SSE_HEAD,
    STREAM,
    Chunks,
    Upstream,
    answer,
    chunked,
    event,
    live,
    mode,
    says,
    until,
    whole_stream,
)
from sits.core.breakpoints import POINT_COUNT
from sits.core.errors import ConfigError, EngineError, EngineTimeoutError
from sits.core.ports import Engine
from sits.core.request import Request, Usage
from sits.core.timeline import Timeline
from sits.engine.client import ClosedError
from sits.engine.openai import OpenAIEngine
from sits.world import RealWorld

__all__ = ["mode"]

BODY = b'{"model": "m", "odd":   [1.50, null], "stream": true}'


@contextlib.asynccontextmanager
async def engine(script=None, path="", **more):
    upstream = await Upstream(script).start()
    made = OpenAIEngine("e0", upstream.url + path, world=RealWorld(), **more)
    try:
        yield made, upstream
    finally:
        await made.close()
        await upstream.stop()


async def ask(made, timeline=None, into=None, **more):
    request = Request(**{"id": "r1", "model": "m", "body": BODY, **more})
    return await Chunks.of(made.generate(request, timeline or Timeline()), into)


def data(chunks):
    return b"".join(chunk.data for chunk in chunks)


@live
async def test_a_stream_comes_back_byte_for_byte_with_tokens_and_usage():
    async with engine(api_key="secret") as (made, upstream):
        assert isinstance(made, Engine)
        line = Timeline()
        chunks = await ask(made, timeline=line, traceparent="00-aa-bb-01")
        assert data(chunks) == b"".join(STREAM)
        assert chunks[0].status == 200
        assert chunks[0].content_type == b"text/event-stream"
        assert sum(c.tokens for c in chunks) == 2
        assert [c.usage for c in chunks if c.usage] == [Usage(input=9, output=3, cached=4)]
        assert [c.last for c in chunks][-1]
        assert not any(line.has(point) for point in range(POINT_COUNT))
        (hit,) = upstream.hits
        assert hit.body == BODY
        assert hit.headers["authorization"] == "Bearer secret"
        assert (hit.headers["x-request-id"], hit.headers["traceparent"]) == ("r1", "00-aa-bb-01")


@pytest.mark.parametrize(
    ("path", "want"),
    [("", "/v1/x"), ("/", "/v1/x"), ("/v1", "/v1/x"), ("/v1/", "/v1/x"), ("/api/v1", "/api/v1/x")],
)
@live
async def test_the_url_may_end_in_v1(path, want):
    async with engine(says(answer(PLAIN)), path=path) as (made, upstream):
        await ask(made, endpoint="/v1/x")
        assert upstream.hits[0].path == want


@pytest.mark.parametrize("url", ["", "localhost:8000", "ftp://h/", "http://", "http://h:port/", "unix:/x"])
def test_a_url_that_is_none_is_refused_with_an_example(url):
    with pytest.raises(ConfigError, match="http"):
        OpenAIEngine("e", url, world=RealWorld())


@live
async def test_a_plain_answer_is_one_chunk():
    async with engine(says(answer(PLAIN))) as (made, _):
        (chunk,) = await ask(made)
        assert (chunk.data, chunk.tokens, chunk.last, chunk.usage) == (
            PLAIN,
            3,
            True,
            Usage(input=9, output=3, cached=4),
        )


@live
async def test_streams_in_any_split_with_crlf_and_with_comments():
    text = (b": ping\n\n" + b"".join(STREAM)).replace(b"\n", b"\r\n")
    for size in (1, 7, 50, 10_000):
        pieces = [text[i : i + size] for i in range(0, len(text), size)]
        async with engine(says(SSE_HEAD, *map(chunked, pieces), b"0\r\n\r\n")) as (made, _):
            chunks = await ask(made)
            assert data(chunks) == text
            assert sum(c.tokens for c in chunks) == 2
            assert all(c.data.endswith(b"\r\n\r\n") for c in chunks)


@live
async def test_text_that_looks_like_the_protocol_is_only_text():
    tricky = [event(t) for t in ("data: x", "[DONE]", '"error"', '{"error": "no"}', '"usage":{', "\n\n", "")]
    async with engine(says(whole_stream([event("a"), *tricky, event("", finish="stop"), DONE]))) as (made, _):
        chunks = await ask(made)
        assert data(chunks).count(b"data: {") == 9
        assert chunks[-1].last


@live
async def test_a_kept_connection_is_used_again_and_replaced_when_the_engine_closed_it():
    async with engine() as (made, upstream):
        await ask(made)
        await ask(made)
        assert upstream.connections == 1
        upstream.script = says(answer(PLAIN), "close")
        await ask(made)
        await ask(made)
        assert upstream.connections == 2
        upstream.script = says(answer(PLAIN, connection="close"), "close")
        await ask(made)
        assert not made._pool


@live
async def test_a_kept_connection_that_dies_unanswered_is_tried_once_more():
    async with engine() as (made, upstream):
        await ask(made)
        scripts = iter([["die"], [answer(PLAIN)]])
        upstream.script = lambda hit: next(scripts)
        assert data(await ask(made)) == PLAIN
        assert upstream.connections == 2
        upstream.script = says("die")
        with pytest.raises(EngineError, match=r"e0.*gave no answer"):
            await ask(made)


@live
async def test_refusals_pass_through_and_five_hundreds_do_not():
    body = orjson.dumps({"error": {"message": "CUDA out of memory"}})
    async with engine(says(answer(body, 429, retry_after="3"))) as (made, upstream):
        (chunk,) = await ask(made)
        assert (chunk.status, chunk.data, chunk.retry_after, chunk.tokens) == (429, body, b"3", 0)
        for status in (500, 503):
            upstream.script = says(answer(body, status))
            with pytest.raises(EngineError, match=f"{status}: CUDA out of memory") as caught:
                await ask(made)
            assert caught.value.code == f"engine_{status}"
            assert upstream.url in str(caught.value)
        assert upstream.connections == 1


HALF = [SSE_HEAD, *map(chunked, STREAM[:3])]
BARE = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"


@pytest.mark.parametrize(
    ("script", "code", "words"),
    [
        (["die"], "engine_died", "gave no answer"),
        (["close"], "engine_died", "gave no answer"),
        ([b"HTTP/1.1 200 OK\r\nContent-Le", "die"], "engine_died", "gave no answer"),
        ([b"SSH-2.0-OpenSSH_9.2\r\n"], "engine_garbage", "does not speak HTTP"),
        ([*HALF, "die"], "engine_died", "died in mid-answer"),
        ([*HALF, "close"], "engine_died", "died in mid-answer"),
        ([*HALF, b"zz\r\n"], "engine_garbage", "died in mid-answer"),
        ([BARE, *STREAM[:3], "close"], "engine_died", "before \\[DONE\\]"),
        ([SSE_HEAD, chunked(STREAM[1][:-9]), b"0\r\n\r\n"], "engine_died", "inside an event"),
        ([SSE_HEAD, chunked(b"data: {not json\n\n")], "engine_garbage", "not JSON"),
        ([answer(PLAIN)[:-20], "close"], "engine_died", "died in mid-answer"),
        ([*HALF, chunked(b'data: {"error": {"message": "KV full"}}\n\n'), chunked(DONE)], "engine_error_event", "KV full"),
    ],
)  # fmt: skip
@live
async def test_every_failure_names_engine_and_url(script, code, words):
    async with engine(says(*script)) as (made, upstream):
        got = []
        with pytest.raises(EngineError, match=words) as caught:
            await ask(made, into=got)
        assert caught.value.code == code
        assert "'e0'" in str(caught.value)
        assert upstream.url in str(caught.value)
        if script[:3] == HALF[:3]:
            assert data(got) == b"".join(STREAM[:3])
        assert bool(made._pool) == (words == "inside an event")  # only there was the HTTP frame whole
        assert not made._silence.watched


@live
async def test_what_came_before_an_error_event_in_the_same_packet_stays_valid():
    script = says(SSE_HEAD, chunked(STREAM[1] + b'data: {"error": "gone"}\n\n' + DONE), "hang")
    async with engine(script) as (made, _):
        got = []
        with pytest.raises(EngineError, match="gone"):
            await ask(made, into=got)
        assert [chunk.data for chunk in got] == [STREAM[1]]


@live
async def test_a_stream_without_a_frame_is_whole_with_done():
    async with engine(says(BARE, *STREAM, "close")) as (made, _):
        assert data(await ask(made)) == b"".join(STREAM)


@live
async def test_after_done_the_frame_does_not_matter():
    async with engine(says(SSE_HEAD, *map(chunked, STREAM), "die")) as (made, _):
        assert data(await ask(made)) == b"".join(STREAM)
        assert not made._pool


@live
async def test_a_second_answer_nobody_asked_for_spoils_the_connection_only():
    async with engine(says(answer(PLAIN) + answer(b'{"stolen": 1}'))) as (made, upstream):
        assert data(await ask(made)) == PLAIN
        assert data(await ask(made)) == PLAIN
        assert upstream.connections == 2


@live
async def test_an_interim_answer_is_passed_over():
    async with engine(says(b"HTTP/1.1 100 Continue\r\n\r\n" + answer(PLAIN))) as (made, _):
        (chunk,) = await ask(made)
        assert (chunk.status, chunk.data) == (200, PLAIN)


@pytest.mark.parametrize("script", [["hang"], [*HALF, "hang"], [BARE, "hang"]])
@live
async def test_silence_is_a_time_out_that_closes_the_connection(script):
    async with engine(says(*script), first_byte_timeout=50_000_000) as (made, upstream):
        with pytest.raises(EngineTimeoutError, match=r"'e0'.*silent for 50 ms"):
            await ask(made)
        await upstream.left.wait()


@live
async def test_nobody_listens():
    async with engine() as (made, upstream):
        await upstream.stop()
        with pytest.raises(EngineError, match=r"'e0' at http://127\.0\.0\.1:.*cannot be reached") as caught:
            await ask(made)
        assert caught.value.code == "engine_unreachable"


@pytest.mark.parametrize("after", [0, 1, 2])
@live
async def test_closing_the_iterator_closes_the_connection_at_once(after):
    async with engine(says(SSE_HEAD, *map(chunked, STREAM[:2]), "hang")) as (made, upstream):
        stream = made.generate(Request(id="r", model="m", body=BODY), Timeline())

        async def consume():
            async for _ in stream:
                pass

        if after == 0:
            task = asyncio.ensure_future(consume())
            await upstream.hanging.wait()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        else:
            await anext(stream)
        await stream.aclose()
        await upstream.left.wait()
        assert not made._pool
        assert not made._silence.watched


@live
async def test_closing_the_engine_ends_answers_under_way():
    async with engine(says("hang")) as (made, upstream):
        task = asyncio.ensure_future(ask(made))
        await upstream.hanging.wait()
        await made.close()
        with pytest.raises(EngineError):
            await task


@live
async def test_a_server_that_is_no_tls_server_is_unreachable_over_https():
    plain = await asyncio.start_server(lambda r, w: w.write(b"HTTP/1.1 400 Bad\r\n\r\n"), "127.0.0.1", 0)
    port = plain.sockets[0].getsockname()[1]
    secure = OpenAIEngine("e1", f"https://127.0.0.1:{port}/v1", world=RealWorld())
    assert secure.address.tls
    with pytest.raises(EngineError, match="cannot be reached"):
        await ask(secure)
    plain.close()


@live
async def test_continuous_usage_and_tool_calls_count_tokens():
    def delta(**fields):
        return (
            b"data: "
            + orjson.dumps({"choices": [{"index": 0, "delta": fields, "finish_reason": None}]})
            + b"\n\n"
        )

    stream = [
        delta(role="assistant", content=""),
        delta(reasoning_content="hm"),
        delta(tool_calls=[{"index": 0, "function": {"arguments": "{"}}]),
        b"data: "
        + orjson.dumps({"choices": [{"text": "a"}], "usage": {"completion_tokens": 3, "prompt_tokens": 1}})
        + b"\n\n",
        LAST,
        DONE,
    ]
    async with engine(says(SSE_HEAD, *map(chunked, stream), b"0\r\n\r\n")) as (made, _):
        chunks = await ask(made)
        assert sum(c.tokens for c in chunks) == 3
        assert [c.usage.output for c in chunks if c.usage][-1] == 3


BARE_JSON = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n"
LARGE = b'{"text": "' + b"x" * (3 * 2**20) + b'", "usage": {"prompt_tokens": 5, "completion_tokens": 7}}'


@pytest.mark.parametrize("framed", [True, False])
@live
async def test_an_answer_too_large_to_hold_comes_in_pieces_with_its_usage_at_the_end(framed):
    script = [answer(LARGE)] if framed else [BARE_JSON, LARGE, "close"]
    async with engine(says(*script)) as (made, _):
        chunks = await ask(made)
        assert data(chunks) == LARGE
        assert (chunks[0].in_pieces, chunks[0].status) == (True, 200)
        assert all(len(chunk.data) < 2 * 2**20 for chunk in chunks)
        assert (chunks[-1].last, chunks[-1].usage) == (True, Usage(input=5, output=7))
        assert bool(made._pool) == framed


@live
async def test_a_large_answer_cut_short_is_an_error_after_its_pieces():
    async with engine(says(BARE_JSON, LARGE[:-3], "close")) as (made, _):
        into = []
        with pytest.raises(EngineError, match="inside its answer"):
            await ask(made, into=into)
        assert into


@live
async def test_an_engine_that_hangs_up_as_soon_as_it_has_answered_the_call_is_dead_not_a_bug():
    hung_up = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    port = hung_up.sockets[0].getsockname()[1]
    made = OpenAIEngine("e0", f"http://127.0.0.1:{port}", world=RealWorld())
    connection = await made.connected()
    await until(lambda: not connection.free)
    made._pool.append(connection)
    connection.free = True  # as if the loop had not told yet
    for _ in range(20):
        with pytest.raises(EngineError) as caught:
            await ask(made)
        assert caught.value.code == "engine_died"
    connection.send(b"POST / HTTP/1.1\r\n\r\n", b"")
    with pytest.raises(ClosedError):
        await connection.head()
    hung_up.close()
