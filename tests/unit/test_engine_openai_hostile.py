"""Engines that mean no good: heads without end, answers nobody asked for, errors dressed as answers."""

import asyncio
import contextlib

import pytest

from gateway_upstream import (
    DONE,
    PLAIN,
    Chunks,
    Upstream,
    answer,
    event,
    live,
    mode,
    says,
    until,
    whole_stream,
)
from sits.core.errors import ConfigError, EngineError
from sits.core.request import Request, Usage
from sits.core.timeline import Timeline
from sits.engine.answer import StreamReader, cut_short
from sits.engine.client import HEAD_BYTES_MAX
from sits.engine.dialect.usage import counts_of
from sits.engine.openai import HEADER_BYTES, OpenAIEngine
from sits.engine.sse import SseSplitter
from sits.world import RealWorld

__all__ = ["mode"]

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
MANY = HEAD_BYTES_MAX // 1000 + 600


@contextlib.asynccontextmanager
async def engine(*steps):
    upstream = await Upstream(says(*steps)).start()
    made = OpenAIEngine("e0", upstream.url, world=RealWorld())
    try:
        yield made, upstream
    finally:
        await made.close()
        await upstream.stop()


async def ask(made, **more):
    request = Request(**{"id": "r1", "model": "m", "body": b"{}", **more})
    return await Chunks.of(made.generate(request, Timeline()))


@pytest.mark.parametrize(
    "steps",
    [
        (b"HTTP/1.1 200 ", *[b"A" * 1000] * MANY),
        (b"HTTP/1.1 200 OK\r\nX: ", *[b"A" * 1000] * MANY),
        (b"HTTP/1.1 200 OK\r\n", *[b"X: y\r\n" * 170] * MANY),
        (b"HTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\n" * 26,) * MANY,
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n", *[b"X: y\r\n" * 170] * MANY),
    ],
    ids=["status line", "header value", "headers", "early hints", "trailers"],
)
@live
async def test_what_is_not_body_is_bounded(steps):
    async with engine(*steps, "hang") as (made, _):
        with pytest.raises(EngineError, match="without a body") as caught:
            await ask(made)
        assert caught.value.code == "engine_garbage"


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        (b"HTTP/1.1 204 No Content\r\n\r\n", "engine_204"),
        (b"HTTP/1.1 304 Not Modified\r\n\r\n", "engine_304"),
        (b"HTTP/1.1 302 Found\r\nLocation: http://h/\r\nContent-Length: 0\r\n\r\n", "engine_302"),
        (HEAD + b"Content-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}", "engine_coding"),
        (HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", "engine_coding"),
        (HEAD + b"Transfer-Encoding: chunked\r\n" * 2 + b"\r\n2\r\n{}\r\n0\r\n\r\n", "engine_coding"),
        (answer(PLAIN, content_type="a" * (HEADER_BYTES + 1)), "engine_garbage"),
        (answer(b"{}", status=429, retry_after="1" * (HEADER_BYTES + 1)), "engine_garbage"),
        (answer(b"{}", content_type="application/json;\r\n X-Evil: 1"), "engine_garbage"),
    ],
    ids=["204", "304", "302", "gzip", "gzip below chunks", "chunks in chunks", "type", "retry", "fold"],
)
@live
async def test_what_is_no_answer_is_not_passed_on(raw, code):
    async with engine(raw) as (made, _):
        with pytest.raises(EngineError) as caught:
            await ask(made)
        assert caught.value.code == code


@live
async def test_no_coding_is_asked_for_and_identity_is_none():
    async with engine(answer(PLAIN, content_encoding="identity")) as (made, upstream):
        await ask(made)
        assert upstream.hits[0].headers["accept-encoding"] == "identity"


@live
async def test_an_answer_without_length_that_is_cut_is_no_answer():
    async with engine(HEAD + b"\r\n" + PLAIN[:40], "close") as (made, _):
        with pytest.raises(EngineError, match="inside its answer"):
            await ask(made)
    async with engine(HEAD + b"\r\n" + PLAIN, "close") as (made, _):
        assert (await ask(made))[0].data == PLAIN
    assert not cut_short(b"plain text")
    assert not cut_short(b"")


@live
async def test_what_an_announcement_says_is_not_about_the_answer():
    """Its headers were taken for the answer's, and a body of it for the beginning of the answer's."""
    early = b"HTTP/1.1 103 X\r\nContent-Type: a/b\r\nContent-Encoding: gzip\r\nRetry-After: 9\r\n\r\n"
    async with engine(early + answer(PLAIN)) as (made, _):
        (chunk,) = await ask(made)
        assert (chunk.data, chunk.content_type, chunk.retry_after) == (PLAIN, b"application/json", b"")
    for framing in (
        b"Content-Length: 2\r\n\r\n{}",
        b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    ):
        async with engine(b"HTTP/1.1 100 Continue\r\n" + framing + answer(PLAIN)) as (made, _):
            with pytest.raises(EngineError) as caught:
                await ask(made)
            assert caught.value.code == "engine_garbage"


@live
async def test_a_stream_by_another_spelling_is_a_stream():
    odd = whole_stream().replace(b"text/event-stream", b"Text/Event-Stream; charset=utf-8")
    async with engine(odd) as (made, _):
        chunks = await ask(made)
        assert chunks[0].content_type == b"text/event-stream; charset=utf-8"
        assert sum(chunk.tokens for chunk in chunks) == 2


@live
async def test_an_answer_that_lies_in_the_socket_is_not_the_next_ones():
    async with engine(answer(PLAIN)) as (made, upstream):
        await ask(made)
        (kept,) = made._pool
        kept._transport.pause_reading()  # the loop does not tell of what comes now, as between two of its rounds
        assert kept.quiet
        upstream.script = says(answer(b'{"for": "the second"}'))
        for writer in upstream.writers:
            writer.write(answer(b'{"smuggled": true}'))
        await until(lambda: not kept.quiet)
        assert kept.free
        assert (await ask(made))[0].data == b'{"for": "the second"}'
        assert upstream.connections == 2


@live
async def test_two_answers_at_once_end_the_connection():
    async with engine(answer(PLAIN) * 2) as (made, _):
        assert (await ask(made))[0].data == PLAIN
        assert not made._pool


@live
async def test_a_connection_whose_request_was_not_read_is_not_used_again():
    async def serve(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer(b"{}", status=413))
        await asyncio.Event().wait()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=4096)
    made = OpenAIEngine("e0", f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", world=RealWorld())
    (chunk,) = await ask(made, body=b"x" * 30_000_000)
    assert chunk.status == 413
    assert not made._pool
    await made.close()
    server.close()


@pytest.mark.parametrize("key", ["a b", "a\n", "a\r\nX-Evil: 1", "schlüssel", "\0"])
def test_a_key_that_would_end_the_header_is_refused_unseen(key):
    with pytest.raises(ConfigError) as caught:
        OpenAIEngine("e", "http://h", world=RealWorld(), api_key=key)
    assert key not in str(caught.value)


@live
async def test_a_name_that_cannot_be_looked_up_is_unreachable():
    for host in ("a..b", "x" * 70 + ".test"):
        made = OpenAIEngine("e", f"http://{host}/v1", world=RealWorld())
        with pytest.raises(EngineError) as caught:
            await ask(made)
        assert caught.value.code == "engine_unreachable"


# -- what streams say ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "bad",
    [
        b'data: {"error":{"message":"boom"}}\n\n',
        b'data: {"object":"error","message":"boom","code":500}\n\n',
        b'event: error\ndata: {"message":"boom"}\n\n',
        b'event:error\r\ndata: {"message":"boom"}\r\n\r\n',
        b'error: {"code":500,"message":"boom"}\n\n',
    ],
)
@pytest.mark.parametrize("together", [True, False])
def test_an_error_in_a_stream_by_any_name(bad, together):
    good = event("a") + event("b")
    reader = StreamReader(200, b"text/event-stream")
    got = [
        reader.take(piece) for piece in ([good + bad + event("c")] if together else [good, bad, event("c")])
    ]
    assert reader.problem == ("engine_error_event", "failed in mid-stream: boom")
    passed = b"".join(chunk.data for chunk in got[:2] if chunk)
    assert passed == good


def test_text_about_errors_is_text():
    tricky = [event(text) for text in ("\nerror: no", "event: error", "error:", '{"object":"error"}')]
    reader = StreamReader(200, b"text/event-stream")
    for piece in [event("a"), *tricky, event("", finish="stop"), DONE]:
        assert reader.take(piece).data == piece
    assert reader.problem is None


@pytest.mark.parametrize(
    "said", [{}, None, [1], {"completion_tokens": -1}, {"completion_tokens": "5"}, {"completion_tokens": True},
             {"prompt_tokens": 2**64 - 1, "completion_tokens": 2**31}, {"prompt_tokens": 1e30}]
)  # fmt: skip
def test_usage_that_tells_nothing_leaves_the_counted_tokens(said):
    assert counts_of(said) is None


def test_the_largest_usage_that_is_believed():
    assert counts_of({"prompt_tokens": 2**31 - 1, "completion_tokens": 2**63}) == Usage(input=2**31 - 1)


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n", b"\n\r\n"])
def test_an_event_in_crumbs_is_looked_at_once(end):
    class Counted(bytearray):
        looked = 0

        def rfind(self, what, start):
            Counted.looked += len(self) - start
            return super().rfind(what, start)

    splitter = SseSplitter()
    splitter.holds = Counted()
    text = b"data: " + b"a" * 3000 + end
    got = b"".join(splitter.feed(text[i : i + 1]) for i in range(len(text)))
    assert (got, splitter.rest) == (text, b"")
    assert Counted.looked < 10 * len(text)
