"""The gateway over real sockets: the official SDK, raw bytes, clients that leave, engines that die."""

import asyncio
import gc
import socket

import openai
import orjson
import pytest

from gateway_upstream import (
    CHAT,
    DONE,
    PLAIN,
    SSE_HEAD,
    STREAM,
    House,
    answer,
    chunked,
    event,
    live,
    post,
    says,
    until,
)
from sits.core.breakpoints import API_RECV, DISPATCHED, FIRST_TOKEN, LAST_TOKEN, PARSED, SENT
from sits.core.fleet import Admit, Arm, Policies, Release, Window
from sits.gateway.trace import STATE_MAX

HANG = says("hang")


def sdk(house, key="k"):
    return openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{house.port}/v1", api_key=key, max_retries=0)


async def ask(client, **more):
    return await client.chat.completions.create(
        model="m", messages=[{"role": "user", "content": "hi"}], **more
    )


# -- the official SDK ---------------------------------------------------------------------------------------------


@live
async def test_sdk_plain():
    async with House() as house, sdk(house) as client:
        raw = await client.chat.completions.with_raw_response.create(**CHAT, max_tokens=5)
        said = raw.parse()
        assert said.choices[0].message.content == "Hello"
        assert said.usage.completion_tokens == 3
        assert raw.headers["x-sits-engine"] == "e0"
        assert raw.headers["server-timing"].startswith("gateway;dur=")
        assert raw.headers["x-request-id"] == raw.headers["x-sits-decision-id"] == house.rows[0]["id"]
        (row,) = house.rows
        assert (row["outcome"], row["status"]) == ("completed", 200)
        assert (row["prompt_tokens"], row["output_tokens"], row["cached_tokens"]) == (9, 3, 4)
        line = row["timeline"]
        assert line.disorder() is None
        for point in (API_RECV, PARSED, DISPATCHED, LAST_TOKEN, SENT):
            assert line.has(point)
        assert not line.has(FIRST_TOKEN)
        hit = house.up.hits[0]
        assert hit.path == "/v1/chat/completions"
        assert hit.headers["authorization"] == "Bearer engine-key"
        assert hit.headers["x-request-id"] == row["id"]
        assert hit.headers["traceparent"].split("-")[1] == row["id"]


@live
async def test_sdk_streaming_and_the_body_goes_out_as_it_came_in():
    async with House() as house, sdk(house) as client:
        stream = await ask(client, stream=True, stream_options={"include_usage": True})
        chunks = [c async for c in stream]
        assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "Hello"
        assert chunks[-1].usage.completion_tokens == 3
        (row,) = await house.settled()
        assert (row["outcome"], row["output_tokens"]) == ("completed", 3)
        assert row["timeline"].has(FIRST_TOKEN)
        sent = post(CHAT | {"stream": True, "odd": [1.50, None]}).partition(b"\r\n\r\n")[2]
        await house.raw(post(sent), until=b"[DONE]")
        assert house.up.hits[1].body == sent


@live
async def test_sdk_completions_embeddings_models():
    embedding = orjson.dumps(
        {"object": "list", "model": "m", "data": [{"object": "embedding", "index": 0, "embedding": [0.5]}],
         "usage": {"prompt_tokens": 2, "total_tokens": 2}}
    )  # fmt: skip

    def script(hit):
        return [answer(embedding if hit.path == "/v1/embeddings" else PLAIN)]

    async with House(script) as house, sdk(house) as client:
        await client.completions.create(model="m", prompt="hi")
        got = await client.embeddings.create(model="m", input="hi", encoding_format="float")
        assert got.data[0].embedding == [0.5]
        assert [m.id async for m in client.models.list()] == ["lora-x", "m"]
        assert [h.path for h in house.up.hits] == ["/v1/completions", "/v1/embeddings"]
        assert house.rows[1]["output_tokens"] == 0
        assert not any(row["timeline"].has(FIRST_TOKEN) for row in house.rows)


@live
async def test_sdk_errors_have_their_types():
    async with House(keys=("team:right",), policy=Policies(admit=Admit(max_inflight=1))) as house:
        async with sdk(house, "wrong") as client:
            with pytest.raises(openai.AuthenticationError) as caught:
                await ask(client)
            assert caught.value.body["code"] == "invalid_api_key"
            with pytest.raises(openai.AuthenticationError):
                await client.models.list()
        async with sdk(house, "right") as client:
            with pytest.raises(openai.NotFoundError, match="nope") as caught:
                await client.chat.completions.create(
                    model="nope", messages=[{"role": "user", "content": "x"}]
                )
            assert caught.value.param == "model"
            with pytest.raises(openai.BadRequestError, match="messages") as caught:
                await client.chat.completions.create(model="m", messages=[])
            assert caught.value.param == "messages"
            await ask(client)
            assert house.rows[-1]["tenant"] == "team"
            house.up.script = HANG
            task = asyncio.ensure_future(ask(client))
            await house.up.hanging.wait()
            with pytest.raises(openai.InternalServerError) as caught:
                await ask(client)
            assert caught.value.status_code == 503
            assert caught.value.response.headers["retry-after"] == "1"
            task.cancel()
        assert [r["outcome"] for r in house.rows[:3]] == ["refused"] * 3


@live
async def test_sdk_sees_the_engines_own_429_and_400():
    body = orjson.dumps({"error": {"message": "slow down", "type": "x", "param": None, "code": "y"}})
    async with House(says(answer(body, 429, retry_after="7"))) as house, sdk(house) as client:
        with pytest.raises(openai.RateLimitError, match="slow down") as caught:
            await ask(client)
        assert caught.value.response.headers["retry-after"] == "7"
        assert caught.value.response.content == body
        house.up.script = says(answer(body, 400))
        with pytest.raises(openai.BadRequestError, match="slow down"):
            await ask(client, stream=True)
        assert [(r["outcome"], r["status"]) for r in house.rows] == [("refused", 429), ("refused", 400)]
        assert len(house.up.hits) == 2


@live
async def test_sdk_stream_is_told_when_the_engine_dies():
    async with House(says(SSE_HEAD, *map(chunked, STREAM[:3]), "die")) as house, sdk(house) as client:
        stream = await ask(client, stream=True)
        with pytest.raises(openai.APIError, match="e0"):
            [c async for c in stream]
        (row,) = await house.settled()
        assert (row["outcome"], row["status"], row["detail"]) == ("failed", 502, "engine_died")
        assert row["output_tokens"] == 2


# -- clients that leave -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "script", [HANG, says(SSE_HEAD, "hang"), says(SSE_HEAD, *map(chunked, STREAM[:3]), "hang")],
    ids=["before the head", "after the head", "in mid-stream"],
)  # fmt: skip
@live
async def test_leaving_cancels_the_engine(script):
    async with House(script) as house:
        _, writer = await house.connect()
        writer.write(post(CHAT | {"stream": True}))
        await house.up.hanging.wait()
        writer.close()
        await house.up.left.wait()
        (row,) = await house.settled()
        assert (row["outcome"], row["status"], row["detail"]) == ("cancelled", 499, "client_left")


@live
async def test_leaving_the_window_never_reaches_the_engine():
    window = Window(kind="fixed", base=10**12, max_batch=2)
    async with House(policy=Policies(window=window)) as house:
        _, writer = await house.connect()
        writer.write(post(CHAT))
        await until(lambda: house.gateway.pending()["e0"])
        writer.close()
        (row,) = await house.settled()
        assert row["outcome"] == "cancelled"
        assert house.up.hits == []
        assert house.gateway.pending() == {"e0": 0}


@live
async def test_sdk_timeout_cancels_the_engine():
    async with House(HANG) as house, sdk(house) as client:
        with pytest.raises(openai.APITimeoutError):
            await ask(client, timeout=1.5)
        await house.up.left.wait()
        (row,) = await house.settled()
        assert row["outcome"] == "cancelled"


# -- engines that fail --------------------------------------------------------------------------------------------


@live
async def test_death_in_mid_stream_is_an_error_event_and_a_proper_end():
    async with House(says(SSE_HEAD, *map(chunked, STREAM[:2]), "die")) as house:
        got = await house.raw(
            post(CHAT | {"stream": True}) + b"GET /healthz HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"
        )
        stream, _, health = got.partition(b"0\r\n\r\n")
        assert b'"type":"engine_error"' in stream
        assert b"[DONE]" not in stream
        assert health.startswith(b"HTTP/1.1 200")


@live
async def test_first_byte_death_goes_to_another_engine_once():
    async with House(says("die"), None) as house:
        for i in range(4):
            got = await house.raw(post(CHAT, connection="close"))
            assert got.startswith(b"HTTP/1.1 200"), i
        assert house.gateway.places.budget.spent >= 1
        assert {r["engine"] for r in house.rows} == {"e1"}
    async with House(says("die")) as house:
        got = await house.raw(post(CHAT, connection="close"))
        assert got.startswith(b"HTTP/1.1 502")
        assert len(house.up.hits) == 1


@live
async def test_silence_is_a_504_and_closed_ports_a_502():
    async with House(HANG, first_byte_timeout=50_000_000) as house:
        got = await house.raw(post(CHAT, connection="close"))
        assert got.startswith(b"HTTP/1.1 504")
        assert b"silent for 50 ms" in got
        await house.up.left.wait()
        await house.up.stop()
    async with House() as house:
        await house.up.stop()
        got = await house.raw(post(CHAT, connection="close"))
        assert got.startswith(b"HTTP/1.1 502")
        assert house.rows[0]["detail"] == "engine_unreachable"


# -- HTTP over sockets --------------------------------------------------------------------------------------------


@live
async def test_byte_by_byte_and_pipelined_requests_are_answered_in_order():
    async with House() as house:
        request = post(CHAT)
        got = await house.raw(*(bytes([b]) for b in request), until=PLAIN)
        assert PLAIN in got
        slow = [0.05, answer(b'{"n":1}')]
        answers = iter([slow, [answer(b'{"n":2}')], [answer(b'{"n":3}')]])
        house.up.script = lambda hit: next(answers)
        got = await house.raw(request * 3 + b"GET /healthz HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
        places = [got.index(b'{"n":%d}' % n) for n in (1, 2, 3)]
        assert places == sorted(places)
        assert got.endswith(b'{"status":"alive"}')


@live
async def test_a_flood_of_pipelined_requests_is_bounded_and_answered():
    async with House() as house:
        ping = b"GET /healthz HTTP/1.1\r\nHost: h\r\n\r\n"
        got = await house.raw(
            post(CHAT) + ping * 500 + ping.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
        )
        assert got.count(b"HTTP/1.1 200 OK") == 502


@live
async def test_smuggling_is_refused_and_the_connection_closed():
    both = b"POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /healthz HTTP/1.1\r\nHost: h\r\n\r\n"
    async with House() as house:
        got = await house.raw(both)
        assert got.startswith(b"HTTP/1.1 400")
        assert got.count(b"HTTP/1.1 ") == 1
        assert orjson.loads(got.partition(b"\r\n\r\n")[2])["error"]["type"] == "invalid_request_error"
        assert house.up.hits == []
        assert house.server.bad_requests == 1


@live
async def test_sizes_are_refused_before_they_are_read():
    async with House(body_limit=1000, header_limit=2000) as house:
        head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nContent-Length: 5000000000\r\n\r\n"
        got = await house.raw(head)
        assert got.startswith(b"HTTP/1.1 413")
        assert (await house.settled())[0]["status"] == 413
        got = await house.raw(b"POST / HTTP/1.1\r\nHost: h\r\nX: " + b"a" * 3000)
        assert got.startswith(b"HTTP/1.1 431")
        got = await house.raw(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
            + chunked(b"x" * 1001)
        )
        assert got.startswith(b"HTTP/1.1 413")
        assert house.up.hits == []


@live
async def test_a_refused_upload_can_read_why_although_it_is_still_sending():
    async with House(body_limit=1000) as house:
        head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nContent-Length: 50000000\r\n\r\n"
        reader, writer = await house.connect()
        writer.write(head)
        for _ in range(50):
            writer.write(b"x" * 100_000)
            await writer.drain()
        assert (await reader.read()).startswith(b"HTTP/1.1 413")
        writer.close()


@pytest.mark.patches
@live
async def test_a_client_that_never_reads_is_cut_off(monkeypatch):
    monkeypatch.setattr("sits.gateway.server.STALL_NS", 50_000_000)
    monkeypatch.setattr("sits.gateway.server.SWEEP_NS", 20_000_000)
    endless = chunked(event("x" * 65_000))
    async with House(says(SSE_HEAD, *[endless] * 2000)) as house:
        _, writer = await house.connect()
        writer.transport.pause_reading()
        writer.write(post(CHAT | {"stream": True}))
        (row,) = await house.settled()
        assert (row["outcome"], row["detail"]) == ("cancelled", "client_left")
        await house.up.left.wait()
        writer.close()


@pytest.mark.patches
@live
async def test_slow_requests_and_idle_connections_are_closed(monkeypatch):
    monkeypatch.setattr("sits.gateway.server.REQUEST_NS", 50_000_000)
    monkeypatch.setattr("sits.gateway.server.IDLE_NS", 80_000_000)
    monkeypatch.setattr("sits.gateway.server.SWEEP_NS", 20_000_000)
    async with House() as house:
        assert (await house.raw(post(CHAT)[:-3])).startswith(b"HTTP/1.1 408")
        assert await house.raw() == b""


@live
async def test_a_large_body_arrives_whole():
    big = orjson.dumps(CHAT | {"padding": "x" * 3_000_000})
    async with House() as house:
        got = await house.raw(post(big, connection="close"))
        assert got.endswith(PLAIN)
        assert house.up.hits[0].body == big


@live
async def test_expect_continue_head_and_wrong_methods():
    async with House() as house:
        reader, writer = await house.connect()
        request = post(CHAT, expect="100-continue", connection="close")
        writer.write(request[:-10])
        assert (await reader.readline()) == b"HTTP/1.1 100 Continue\r\n"
        writer.write(request[-10:])
        assert PLAIN in await reader.read()
        writer.close()
        got = await house.raw(b"HEAD /healthz HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
        assert got.startswith(b"HTTP/1.1 200")
        assert got.endswith(b"\r\n\r\n")
        for request, status, allow in (
            (b"GET /v1/chat/completions", b"405", b"POST"),
            (b"DELETE /v1/models", b"405", b"GET, HEAD"),
            (b"GET /nope", b"404", b""),
        ):
            got = await house.raw(request + b" HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
            assert got.startswith(b"HTTP/1.1 " + status)
            assert (b"allow: " + allow in got) == bool(allow)


@live
async def test_http_1_0_gets_a_stream_that_ends_with_the_connection():
    async with House() as house:
        got = await house.raw(post(CHAT | {"stream": True}).replace(b"HTTP/1.1", b"HTTP/1.0"))
        assert b"transfer-encoding" not in got
        assert got.partition(b"\r\n\r\n")[2] == b"".join(STREAM)


@live
async def test_tcp_nodelay_on_both_sides():
    async with House(says(SSE_HEAD, chunked(STREAM[1]), "hang")) as house:
        reader, writer = await house.connect()
        writer.write(post(CHAT | {"stream": True}))
        await reader.readuntil(STREAM[1])
        (connection,) = house.server.connections
        (upstream,) = house.gateway.engines["e0"]._silence.watched
        for transport in (connection.transport, upstream._transport):
            sock = transport.get_extra_info("socket")
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        writer.close()


@live
async def test_a_client_that_does_not_read_holds_its_engine_back():
    big = event("x" * 65_000)
    async with House(says(SSE_HEAD, *[chunked(big)] * 800, chunked(DONE), b"0\r\n\r\n")) as house:
        reader, writer = await house.connect()
        writer.transport.pause_reading()
        writer.write(post(CHAT | {"stream": True}, connection="close"))
        before = -1
        while house.up.sent != before or not before:
            before = house.up.sent
            await asyncio.sleep(0.1)
        assert house.up.sent < 35_000_000 < 800 * len(big)
        writer.transport.resume_reading()
        size = 0
        while data := await reader.read(2**20):
            size += len(data)
        assert size > 800 * len(big)
        writer.close()


@live
async def test_requests_leave_no_reference_cycles_behind():
    """Collections may be rare (`app.up.pauses`) because nothing waits for them."""
    async with House() as house:
        reader, writer = await house.connect()

        async def ask_often():
            for _ in range(60):
                writer.write(post(CHAT) + post(CHAT | {"stream": True}))
                await reader.readuntil(b"\r\n0\r\n\r\n")

        await ask_often()
        gc.collect()
        gc.disable()
        try:
            await ask_often()
            assert gc.collect() < 60
        finally:
            gc.enable()
        writer.close()


@live
async def test_traces_are_continued_and_nonsense_is_not():
    async with House() as house:
        trace = "4bf92f3577b34da6a3ce929d0e0e4736"
        await house.raw(post(CHAT, connection="close", traceparent=f"00-{trace}-00f067aa0ba902b7-00"))
        await house.raw(post(CHAT, connection="close", traceparent="00-" + "0" * 32 + "-00f067aa0ba902b7-01"))
        first, second = (hit.headers["traceparent"].split("-") for hit in house.up.hits)
        assert (first[1], first[3]) == (trace, "00")
        assert first[2] == house.rows[0]["id"][16:]
        assert second[1] == house.rows[1]["id"]
        assert [(row["trace_id"], row["parent_id"]) for row in house.rows] == [
            (trace, "00f067aa0ba902b7"),
            ("", ""),
        ]


@live
async def test_the_state_of_a_trace_goes_with_it_and_not_without_it():
    async with House() as house:
        told = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
        state = "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE"
        await house.raw(post(CHAT, connection="close", traceparent=told, tracestate=state))
        await house.raw(post(CHAT, connection="close", tracestate=state))
        await house.raw(post(CHAT, connection="close", traceparent=told, tracestate="a=" + "b" * STATE_MAX))
        assert [hit.headers.get("tracestate") for hit in house.up.hits] == [state, None, None]


@live
async def test_units_deadlines_and_adapters_come_from_the_request():
    arms = (Arm(name="a", weight=1.0), Arm(name="b", weight=1.0))
    policy = Policies(release=Release(unit="session", arms=arms))
    async with House(policy=policy) as house:
        for i in range(12):
            await house.raw(post(CHAT, connection="close", x_sits_session=f"s{i % 4}"))
        by_session = [{row["arm"] for row in house.rows[i::4]} for i in range(4)]
        assert all(len(arms) == 1 for arms in by_session)
        got = await house.raw(post(CHAT, connection="close", x_sits_deadline_ms="soon"))
        assert got.startswith(b"HTTP/1.1 400")
        got = await house.raw(post(CHAT, connection="close", x_sits_deadline_ms="0"))
        assert got.startswith(b"HTTP/1.1 503")
        await house.raw(post(CHAT | {"model": "lora-x"}, connection="close"))
        assert (house.rows[-1]["adapter"], house.rows[-1]["outcome"]) == ("lora-x", "completed")


# -- pages and the end --------------------------------------------------------------------------------------------


@live
async def test_metrics_are_readable_by_prometheus_and_ready_tells():
    from prometheus_client.parser import text_string_to_metric_families

    async with House() as house:
        await house.raw(post(CHAT, connection="close"))
        get = b" HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"
        page = (await house.raw(b"GET /metrics" + get)).partition(b"\r\n\r\n")[2].decode()
        families = {f.name: f for f in text_string_to_metric_families(page)}
        assert families["sits_requests"].samples[0].value == 1
        assert families["sits_ttft_seconds"].type == "histogram"
        assert (await house.raw(b"GET /readyz" + get)).startswith(b"HTTP/1.1 200")
        house.gateway.places.by_id["e0"].healthy = False
        assert (await house.raw(b"GET /readyz" + get)).startswith(b"HTTP/1.1 503")


@live
async def test_drain_lets_running_answers_finish_and_takes_no_new_ones():
    script = says(SSE_HEAD, *map(chunked, STREAM[:2]), 0.1, *map(chunked, STREAM[2:]), b"0\r\n\r\n")
    async with House(script, drain_timeout=15 * 10**9) as house:
        idle_reader, idle_writer = await house.connect()
        running = asyncio.ensure_future(house.raw(post(CHAT | {"stream": True})))
        await until(lambda: house.up.sent)
        await house.server.drain()
        assert b"[DONE]" in await running
        assert await idle_reader.read() == b""
        idle_writer.close()
        with pytest.raises(OSError):
            await house.connect()
        assert house.rows[0]["outcome"] == "completed"


@live
async def test_drain_cancels_what_does_not_finish_in_time():
    async with House(HANG, drain_timeout=1_000_000) as house:
        running = asyncio.ensure_future(house.raw(post(CHAT)))
        await house.up.hanging.wait()
        await house.server.drain()
        await asyncio.gather(running, return_exceptions=True)
        (row,) = await house.settled()
        assert (row["outcome"], row["detail"]) == ("cancelled", "gateway_draining")


@live
async def test_a_large_plain_answer_is_not_held_for_a_client_that_does_not_read():
    large = b'{"x": "' + b"y" * (24 * 2**20) + b'", "usage": {"prompt_tokens": 5, "completion_tokens": 7}}'
    async with House(says(answer(large))) as house:
        reader, writer = await house.connect()
        writer.transport.pause_reading()
        writer.write(post(CHAT))
        await until(lambda: any(c.paused is not None for c in house.server.connections))
        (upstream,) = house.gateway.engines["e0"]._silence.watched
        assert sum(map(len, upstream.pieces)) < 2**20
        assert house.server.connections.copy().pop().transport.get_write_buffer_size() < 4 * 2**20
        writer.transport.resume_reading()
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"transfer-encoding: chunked" in head
        body = b""
        while size := int(await reader.readline(), 16):
            body += await reader.readexactly(size)
            await reader.readline()
        assert body == large
        await until(lambda: house.rows)
