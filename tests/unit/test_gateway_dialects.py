"""Callers of either dialect before engines of either dialect, through the official clients, on real sockets."""

import asyncio
import hashlib
import json

import anthropic
import openai
import pytest
from dialect_upstream import (
    CALLS,
    TEXT,
    THOUGHT,
    DialectHouse,
    anthropic_error,
    as_stream,
    event,
    events_of,
    message,
    messages_stream,
    openai_error,
)

from dialects import unfit_messages
from gateway_upstream import SSE_HEAD, answer, chunked, live, post, says, until
from sits import __version__
from sits.gateway.endpoints import PROMPT_HASH_BYTES, prompt_hash

HI = [{"role": "user", "content": "What's the weather?"}]
A_TOOLS = [{"name": n, "input_schema": {"type": "object", "properties": {}}} for n in ("weather", "clock")]
O_TOOLS = [
    {"type": "function", "function": {"name": n, "parameters": {"type": "object"}}}
    for n in ("weather", "clock")
]
ENGINES = ["claude", "llama"]
THINKS = {
    "claude": {"extra_body": {"thinking": {"type": "adaptive"}}},
    "llama": {"reasoning_effort": "high"},
}


def row_of(rows):
    """What a row says of a request that took the usual tokens."""
    (row,) = rows
    assert (row["outcome"], row["status"]) == ("completed", 200)
    assert (row["prompt_tokens"], row["output_tokens"], row["cached_tokens"]) == (125, 7, 100)
    return row


# -- every caller gets every engine's answer whole ---------------------------------------------------------------


@pytest.mark.parametrize("model", ENGINES)
def test_anthropics_client_gets_a_plain_answer(model):
    @live
    async def run():
        async with DialectHouse() as gateway, gateway.messages() as client:
            told = await client.messages.create(
                model=model,
                max_tokens=100,
                system="Be brief.",
                messages=HI,
                tools=A_TOOLS,
                tool_choice={"type": "auto", "disable_parallel_tool_use": False},
                output_config={"effort": "high"},
                thinking={"type": "adaptive"},
            )
            check_message(told, model)
            assert told._request_id == row_of(await gateway.settled())["id"]

    run()


def check_message(told, model):
    """The whole answer, as Anthropic's client has it."""
    blocks = [block.to_dict() for block in told.content]
    thinking = [block for block in blocks if block["type"] == "thinking"]
    assert [block["thinking"] for block in thinking] == [THOUGHT]
    assert [block["text"] for block in blocks if block["type"] == "text"] == [TEXT]
    assert [(b["id"], b["name"], b["input"]) for b in blocks if b["type"] == "tool_use"] == CALLS
    assert (told.stop_reason, told.model, told.role) == ("tool_use", model, "assistant")
    usage = told.usage
    assert (usage.input_tokens, usage.cache_read_input_tokens, usage.cache_creation_input_tokens) == (
        5,
        100,
        20,
    )
    assert usage.output_tokens == 7


@pytest.mark.parametrize("model", ENGINES)
def test_anthropics_client_gets_a_stream(model):
    @live
    async def run():
        async with DialectHouse() as gateway, gateway.messages() as client:
            asked = client.messages.stream(
                model=model,
                max_tokens=100,
                messages=HI,
                tools=A_TOOLS,
                output_config={"effort": "max"},
                thinking={"type": "adaptive"},
            )
            async with asked as stream:
                kinds = [told.type async for told in stream]
                told = await stream.get_final_message()
            assert kinds[0] == "message_start"
            assert kinds[-1] == "message_stop"
            check_message(told, model)
            row = row_of(await gateway.settled())
            assert row["timeline"].span_ns(0, 17) > 0

    run()


@pytest.mark.parametrize("model", ENGINES)
def test_openais_client_gets_a_plain_answer(model):
    @live
    async def run():
        async with DialectHouse() as gateway, gateway.chat() as client:
            told = await client.chat.completions.create(
                model=model,
                messages=[{"role": "developer", "content": "Be brief."}, *HI],
                tools=O_TOOLS,
                parallel_tool_calls=True,
                **THINKS[model],
            )
            check_completion(told, model, told.choices[0].message)
            row_of(await gateway.settled())

    run()


def check_completion(told, model, said):
    """The whole answer, as OpenAI's client has it."""
    (choice,) = told.choices
    assert said.content == TEXT
    calls = [(c.id, c.function.name, json.loads(c.function.arguments)) for c in said.tool_calls]
    assert calls == CALLS
    assert (choice.finish_reason, told.model) == ("tool_calls", model)
    usage = told.usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (125, 7, 132)
    assert (usage.prompt_tokens_details.cached_tokens, usage.prompt_tokens_details.cache_write_tokens) == (
        100,
        20,
    )
    if model == "claude":  # an engine of OpenAI's own dialect passes as it is, by its own name of the field
        assert said.reasoning_content == THOUGHT


@pytest.mark.parametrize("model", ENGINES)
def test_openais_client_gets_a_stream(model):
    @live
    async def run():
        async with DialectHouse() as gateway, gateway.chat() as client:
            stream = client.chat.completions.stream(
                model=model,
                messages=HI,
                tools=O_TOOLS,
                stream_options={"include_usage": True},
                **THINKS[model],
            )
            thought = ""
            async with stream as told:
                async for one in told:
                    if one.type == "chunk" and one.chunk.choices:
                        thought += getattr(one.chunk.choices[0].delta, "reasoning_content", None) or ""
                final = await told.get_final_completion()
            if model == "claude":
                assert thought == THOUGHT
                final.choices[0].message.reasoning_content = thought
            check_completion(final, model, final.choices[0].message)
            row_of(await gateway.settled())

    run()


@live
async def test_an_agent_of_either_dialect_goes_round_its_loop_with_an_engine_of_the_other():
    async with DialectHouse() as gateway, gateway.messages() as messages, gateway.chat() as chat:
        said = [*HI]
        told = await messages.messages.create(model="llama", max_tokens=100, messages=said, tools=A_TOOLS)
        said.append({"role": "assistant", "content": [block.to_dict() for block in told.content]})
        results = [{"type": "tool_result", "tool_use_id": i, "content": "sunny"} for i, _, _ in CALLS]
        said.append({"role": "user", "content": [*results, {"type": "text", "text": "and now?"}]})
        await messages.messages.create(model="llama", max_tokens=100, messages=said, tools=A_TOOLS)
        roles = [m["role"] for m in json.loads(gateway.vllm.hits[1].body)["messages"]]
        assert roles == ["user", "assistant", "tool", "tool", "user"]

        said = [*HI]
        told = await chat.chat.completions.create(model="claude", messages=said, tools=O_TOOLS)
        said.append(told.choices[0].message.to_dict())
        said += [{"role": "tool", "tool_call_id": i, "content": "sunny"} for i, _, _ in CALLS]
        await chat.chat.completions.create(model="claude", messages=said, tools=O_TOOLS)
        assert unfit_messages(json.loads(gateway.claude.hits[1].body)) == ""


# -- the same dialect passes untouched ---------------------------------------------------------------------------

ODD = (
    b'{ "model":"claude", "max_tokens" : 100,\n "stream": true, "messages":[{"role":"user","content":"\\u00e9"}],'
    b' "of_next_year": {"x": 1.50} }'
)


@live
async def test_anthropics_dialect_passes_byte_for_byte_to_its_own_engine():
    stream = [
        *messages_stream({"model": "claude"})[:-1],
        b'event: message_stop\r\ndata: {"type": "message_stop"}\r\n\r\n',
    ]
    async with DialectHouse(claude=says(*as_stream(stream))) as gateway:
        beta = "fine-grained-tool-streaming-2025-05-14,of-next-year"
        asked = post(
            ODD,
            "/v1/messages?beta=true",
            x_api_key="k",
            anthropic_version="2024-01-01",
            anthropic_beta=beta,
        )
        got = await gateway.raw(asked, until=b"0\r\n\r\n")
        assert b"".join(map(chunked, stream)) in got or b"".join(stream) in unchunked(got)
        assert b"\r\nrequest-id: " in got
        (hit,) = gateway.claude.hits
        assert (hit.body, hit.path) == (ODD, "/v1/messages")
        assert hit.headers["x-api-key"] == "upstream-key"
        assert hit.headers["anthropic-version"] == "2024-01-01"
        assert hit.headers["anthropic-beta"] == beta
        assert "authorization" not in hit.headers
        row_of(await gateway.settled())


def unchunked(got):
    """The body of a chunked answer."""
    body, rest = b"", got.partition(b"\r\n\r\n")[2]
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        if not int(size, 16):
            return body
        body, rest = body + rest[: int(size, 16)], rest[int(size, 16) + 2 :]
    return body


@live
async def test_an_engine_that_speaks_both_is_asked_in_the_callers_dialect():
    def both(hit):
        if hit.path == "/v1/messages":
            return [answer(json.dumps(message(json.loads(hit.body))).encode())]
        return [answer(b'{"input_tokens":42}' if "count" in hit.path else b"{}")]

    async with DialectHouse(vllm11=both) as gateway, gateway.messages() as client:
        told = await client.messages.create(
            model="qwen",
            max_tokens=9,
            messages=HI,
            extra_body={"chat_template_kwargs": {"thinking": True}},
        )
        assert told.content[0].text == TEXT
        assert (await client.messages.count_tokens(model="qwen", messages=HI)).input_tokens == 42
        assert [hit.path for hit in gateway.vllm11.hits] == ["/v1/messages", "/v1/messages/count_tokens"]
        assert gateway.vllm11.hits[0].headers["authorization"] == "Bearer upstream-key"
        assert json.loads(gateway.vllm11.hits[0].body)["chat_template_kwargs"] == {"thinking": True}


@live
async def test_a_row_tells_the_layer_and_whose_prompt_was_the_same():
    async with DialectHouse() as gateway, gateway.messages() as messages, gateway.chat() as chat:
        for text in ("hi", "hi", "ho"):
            said = [{"role": "user", "content": text}]
            await messages.messages.create(model="claude", max_tokens=9, messages=said, system="be brief")
        await chat.chat.completions.create(model="llama", messages=HI)
        rows = await gateway.settled(4)
        layers = [row["abstraction_layer"] for row in rows]
        assert layers == [f"sits/{__version__} /v1/messages"] * 3 + [
            f"sits/{__version__} /v1/chat/completions"
        ]
        first, second, third, other = (row["prompt_hash"] for row in rows)
        assert first == second != third != other
        told = b'"be brief"[{"role":"user","content":"hi"}]\nclaude'
        assert first == hashlib.sha256(told).hexdigest()
    async with DialectHouse(more=", prompt_hash: false") as gateway, gateway.messages() as messages:
        await messages.messages.create(model="claude", max_tokens=9, messages=HI)
        (row,) = await gateway.settled()
        assert row["prompt_hash"] == ""


def test_a_prompt_that_would_take_everybodys_time_is_not_hashed():
    assert prompt_hash("m", b"x" * PROMPT_HASH_BYTES)
    assert prompt_hash("m", b"x" * (PROMPT_HASH_BYTES + 1)) == ""
    assert prompt_hash("m", b"xy") != prompt_hash("n", b"xy") != prompt_hash("n", b"x")


# -- what cannot be said, and what is not served -----------------------------------------------------------------


@live
async def test_what_cannot_be_said_there_never_reaches_the_engine():
    async with DialectHouse() as gateway, gateway.messages() as messages, gateway.chat() as chat:
        with pytest.raises(openai.BadRequestError, match="seed") as told:
            await chat.chat.completions.create(model="claude", messages=HI, seed=7)
        assert (told.value.param, told.value.code) == ("seed", "untranslatable_field")
        tool = {"type": "web_search_20250305", "name": "web_search"}
        with pytest.raises(anthropic.BadRequestError, match=r"tools\[0\]\.type"):
            await messages.messages.create(model="llama", max_tokens=9, messages=HI, tools=[tool])
        assert gateway.claude.hits == gateway.vllm.hits == []
        rows = await gateway.settled(2)
        assert [(row["outcome"], row["detail"]) for row in rows] == [("refused", "untranslatable_field")] * 2


@live
async def test_tokens_are_counted_by_engines_that_can():
    async with DialectHouse() as gateway, gateway.messages() as client:
        counted = await client.messages.count_tokens(model="claude", messages=HI, tools=A_TOOLS)
        assert counted.input_tokens == 42
        with pytest.raises(anthropic.NotFoundError, match="speaks"):
            await client.messages.count_tokens(model="llama", messages=HI)
        assert gateway.vllm.hits == []


@live
async def test_what_the_providers_dialect_has_not_is_not_found():
    async with DialectHouse() as gateway, gateway.chat() as client:
        with pytest.raises(openai.NotFoundError, match="/v1/embeddings"):
            await client.embeddings.create(model="claude", input="x")
        with pytest.raises(openai.NotFoundError, match="/v1/completions"):
            await client.completions.create(model="claude", prompt="x")
        with pytest.raises(openai.NotFoundError, match="/v1/chat/completions or /v1/messages"):
            await client.responses.create(model="llama", input="x")
        assert gateway.claude.hits == []


@live
async def test_both_clients_list_the_models():
    async with DialectHouse() as gateway, gateway.messages() as messages, gateway.chat() as chat:
        names = {"claude", "both", "llama", "qwen"}
        assert {model.id async for model in messages.models.list()} == names
        assert {model.id async for model in chat.models.list()} == names


# -- errors ------------------------------------------------------------------------------------------------------

REFUSALS = [
    (400, "invalid_request_error", "BadRequestError"),
    (401, "authentication_error", "AuthenticationError"),
    (403, "permission_error", "PermissionDeniedError"),
    (404, "not_found_error", "NotFoundError"),
    (429, "rate_limit_error", "RateLimitError"),
]


@pytest.mark.parametrize(("status", "kind", "name"), REFUSALS)
@pytest.mark.parametrize("stream", [False, True])
def test_an_engines_refusal_is_told_in_the_callers_dialect(status, kind, name, stream):
    @live
    async def run():
        text = "tokens per minute: 0 left"
        house = DialectHouse(
            claude=says(*anthropic_error(status, kind, text, retry_after="7")),
            vllm=says(*openai_error(status, "whatever", text, retry_after="7")),
        )
        async with house as gateway, gateway.messages() as messages, gateway.chat() as chat:
            for model in ENGINES:
                with pytest.raises(getattr(anthropic, name), match=text) as told:
                    await messages.messages.create(model=model, max_tokens=9, messages=HI, stream=stream)
                assert told.value.body["error"]["type"] == kind
                assert told.value.response.headers["retry-after"] == "7"
                with pytest.raises(getattr(openai, name), match=text) as told:
                    await chat.chat.completions.create(model=model, messages=HI, stream=stream)
                assert told.value.response.headers["retry-after"] == "7"
                if model == "claude":
                    assert told.value.type == kind
            rows = await gateway.settled(4)
            assert {(row["outcome"], row["status"]) for row in rows} == {("refused", status)}

    run()


@live
async def test_an_overloaded_engine_is_no_failed_one():
    said = anthropic_error(529, "overloaded_error", "Overloaded", retry_after="9")
    async with DialectHouse(claude=says(*said)) as gateway:
        async with gateway.messages() as messages, gateway.chat() as chat:
            with pytest.raises(anthropic.OverloadedError, match="Overloaded") as told:
                await messages.messages.create(model="claude", max_tokens=9, messages=HI)
            assert told.value.body["error"]["type"] == "overloaded_error"
            assert told.value.response.headers["retry-after"] == "9"
            with pytest.raises(openai.InternalServerError, match="Overloaded") as told:
                await chat.chat.completions.create(model="claude", messages=HI)
            assert told.value.status_code == 503
            assert told.value.response.headers["retry-after"] == "9"
        rows = await gateway.settled(2)
        assert {(row["outcome"], row["detail"]) for row in rows} == {("refused", "engine_overloaded")}


@live
async def test_an_engine_that_fails_is_told_as_anthropic_tells_it():
    house = DialectHouse(vllm=says(answer(b"boom", 500)), claude=says("die"))
    async with house as gateway, gateway.messages() as client:
        for model in ENGINES:
            with pytest.raises(anthropic.InternalServerError) as told:
                await client.messages.create(model=model, max_tokens=9, messages=HI)
            assert (told.value.status_code, told.value.body["error"]["type"]) == (502, "api_error")
            assert told.value.body["request_id"] == told.value.response.headers["request-id"]


@live
async def test_the_gateways_own_refusals_are_anthropics():
    async with DialectHouse(more=", keys: [acme:callers-key]") as gateway:
        async with gateway.messages() as client:
            with pytest.raises(anthropic.NotFoundError, match="nope"):
                await client.messages.create(model="nope", max_tokens=9, messages=HI)
            with pytest.raises(anthropic.BadRequestError, match="max_tokens"):
                await client.post("/v1/messages", body={"model": "claude", "messages": HI}, cast_to=object)
            with pytest.raises(anthropic.BadRequestError, match="messages"):
                await client.messages.create(model="claude", max_tokens=9, messages=[])
            assert (await client.messages.create(model="claude", max_tokens=9, messages=HI)).content
        async with gateway.messages(default_headers={"x-api-key": "wrong"}) as stranger:
            with pytest.raises(anthropic.AuthenticationError):
                await stranger.messages.create(model="claude", max_tokens=9, messages=HI)
        rows = await gateway.settled(5)
        assert [row["tenant"] for row in rows if row["outcome"] == "completed"] == ["acme"]


# -- death -------------------------------------------------------------------------------------------------------


def half_of(stream):
    return [SSE_HEAD, *map(chunked, stream[: len(stream) // 2])]


@pytest.mark.parametrize("model", ENGINES)
@pytest.mark.parametrize("end", ["die", "close", b"0\r\n\r\n"])
def test_an_engine_that_dies_in_mid_stream_ends_nobodys_answer_well(model, end):
    @live
    async def run():
        asked = {"model": model}
        claude = says(*half_of(messages_stream(asked)), end)
        text = [
            b'data: {"id":"c","model":"m","choices":[{"index":0,"delta":{"content":"x"},"finish_reason":null}]}\n\n'
        ] * 4
        async with DialectHouse(claude=claude, vllm=says(*half_of(text), end)) as gateway:
            body = {"model": model, "max_tokens": 9, "messages": HI, "stream": True}
            got = await gateway.raw(post(body, "/v1/messages", connection="close"))
            assert b"event: message_start" in got
            assert b"event: content_block_delta" in got
            assert b"event: message_stop" not in got
            body = unchunked(got)
            last = body[body.rindex(b"event: ") :]
            assert last.startswith(b"event: error\ndata: {")
            assert json.loads(last.partition(b"data: ")[2])["error"]["type"] == "api_error"
            if (
                model == "claude" or end != b"0\r\n\r\n"
            ):  # OpenAI's own may end without [DONE], if the frame around it ends
                got = await gateway.raw(
                    post({"model": model, "messages": HI, "stream": True}, connection="close")
                )
                assert b'"content":"' in got.replace(b'": "', b'":"')
                assert b"[DONE]" not in got
                assert b'data: {"error":{' in got
            rows = await gateway.settled(1)
            assert {row["outcome"] for row in rows} == {"failed"}

    run()


@live
async def test_an_error_event_of_anthropics_engine_reaches_both_clients_as_one():
    failed = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    told = [*messages_stream({"model": "claude"})[:6], event(failed)]
    house = DialectHouse(claude=says(*as_stream(told)))
    async with house as gateway, gateway.messages() as messages, gateway.chat() as chat:
        stream = await messages.messages.create(model="claude", max_tokens=9, messages=HI, stream=True)
        with pytest.raises(anthropic.APIStatusError, match="Overloaded"):
            [one async for one in stream]
        stream = await chat.chat.completions.create(model="claude", messages=HI, stream=True)
        with pytest.raises(openai.APIError, match="Overloaded"):
            [one async for one in stream]


@live
async def test_a_part_nobody_can_be_told_is_a_failure_before_or_after_the_first_byte():
    stream = messages_stream({"model": "claude"})
    block = {
        "type": "content_block_start",
        "index": 0,
        "content_block": {"type": "server_tool_use", "id": "x"},
    }

    def odd(hit):
        if json.loads(hit.body).get("stream"):
            return as_stream([*stream[:1], event(block), *stream[1:]])
        return [
            answer(json.dumps(message({"model": "claude"}) | {"content": [block["content_block"]]}).encode())
        ]

    async with DialectHouse(claude=odd) as gateway, gateway.chat() as chat:

        async def ask():
            return [
                one
                async for one in await chat.chat.completions.create(model="claude", messages=HI, stream=True)
            ]

        with pytest.raises(openai.APIError, match="no words"):
            await ask()
        with pytest.raises(openai.InternalServerError, match="no words"):
            await chat.chat.completions.create(model="claude", messages=HI)
        rows = await gateway.settled(2)
        assert {(row["outcome"], row["detail"]) for row in rows} == {("failed", "engine_untranslatable")}


@live
async def test_a_replica_of_the_other_dialect_takes_over_before_the_first_byte():
    async with DialectHouse(claude=says("die")) as gateway:
        async with gateway.messages() as messages, gateway.chat() as chat:
            told = await messages.messages.create(model="both", max_tokens=9, messages=HI)
            assert told.content[0].text == TEXT
            told = await chat.chat.completions.create(model="both", messages=HI)
            assert told.choices[0].message.content == TEXT
        assert len(gateway.claude.hits) >= 1
        assert [hit.path for hit in gateway.last.hits] == ["/v1/chat/completions"] * 2


@live
async def test_what_one_replica_cannot_be_told_another_may():
    async with DialectHouse() as gateway, gateway.messages() as messages, gateway.chat() as chat:
        told = await chat.chat.completions.create(model="both", messages=HI, seed=7)
        assert told.choices[0].message.content == TEXT
        assert json.loads(gateway.last.hits[0].body)["seed"] == 7
        for _ in range(3):
            assert (await messages.messages.count_tokens(model="both", messages=HI)).input_tokens == 42
        with pytest.raises(anthropic.BadRequestError, match="mcp_servers"):
            await messages.messages.create(
                model="llama", max_tokens=9, messages=HI, extra_body={"mcp_servers": [{}]}
            )
        await gateway.settled(5)


@live
async def test_an_engines_failure_is_told_though_the_other_could_not_be_asked():
    async with DialectHouse(claude=says("die")) as gateway, gateway.messages() as messages:
        with pytest.raises(anthropic.InternalServerError, match="claude"):
            await messages.messages.create(
                model="both", max_tokens=9, messages=HI, extra_body={"mcp_servers": [{}]}
            )
        (row,) = await gateway.settled()
        assert (row["outcome"], row["detail"]) == ("failed", "engine_died")
        assert gateway.last.hits == []


@pytest.mark.parametrize("model", ENGINES)
def test_a_client_that_leaves_a_translated_stream_stops_the_engine(model):
    @live
    async def run():
        first = half_of(messages_stream({"model": model}))
        text = b'data: {"id":"c","model":"m","choices":[{"index":0,"delta":{"content":"x"},"finish_reason":null}]}\n\n'
        async with DialectHouse(
            claude=says(*first, "hang"), vllm=says(SSE_HEAD, chunked(text), "hang")
        ) as gateway:
            up = gateway.claude if model == "claude" else gateway.vllm
            body = {"model": model, "max_tokens": 9, "messages": HI, "stream": True}
            asked = post(body, "/v1/messages" if model == "llama" else "/v1/chat/completions")
            reader, writer = await gateway.connect()
            writer.write(asked)
            await reader.readuntil(b"x" if model == "llama" else b"Let")
            writer.close()
            await up.left.wait()
            (row,) = await gateway.settled()
            assert row["outcome"] == "cancelled"

    run()


def test_pieces_of_any_size_give_the_same_stream():
    whole = b"".join(messages_stream({"model": "claude", "tools": True}))

    @live
    async def run():
        answers = set()
        for size in (1, 7, 4096):
            pieces = [whole[k : k + size] for k in range(0, len(whole), size)]
            async with DialectHouse(claude=says(SSE_HEAD, *map(chunked, pieces), b"0\r\n\r\n")) as gateway:
                got = await gateway.raw(
                    post({"model": "claude", "messages": HI, "stream": True}), until=b"\r\n0\r\n\r\n"
                )
                told = [
                    json.loads(line[6:])
                    for line in unchunked(got).split(b"\n\n")
                    if line.startswith(b"data: {")
                ]
                answers.add(json.dumps([chunk["choices"] for chunk in told]))
        assert len(answers) == 1

    run()


def test_the_mock_is_strict():
    assert [told["type"] for told in events_of(message({"model": "m"}))][-1] == "message_stop"
    assert unfit_messages(
        {"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": "x", "name": "n"}]}
    )


@live
async def test_many_at_once_keep_their_own_dialect():
    async with DialectHouse() as gateway, gateway.messages() as messages, gateway.chat() as chat:

        async def one(i):
            model = ENGINES[i % 2]
            if i % 4 < 2:
                told = await messages.messages.create(model=model, max_tokens=9, messages=HI)
                return told.content[0].text
            told = await chat.chat.completions.create(model=model, messages=HI)
            return told.choices[0].message.content

        assert set(await asyncio.gather(*map(one, range(24)))) == {TEXT}
        await until(lambda: len(gateway.rows) == 24)
