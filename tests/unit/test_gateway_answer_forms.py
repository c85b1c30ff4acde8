"""One answer in two forms: nothing lost on the way, or no way at all."""

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sits.gateway.answer_forms import CHAT, EMBEDDINGS, TEXT, as_body, as_stream, is_whole

USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
HEAD = {"id": "c1", "created": 7, "model": "m", "system_fingerprint": "fp"}
CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}


def chat(message=None, **choice):
    said = {"role": "assistant", "content": "hello", **(message or {})}
    body = {**HEAD, "object": "chat.completion", "choices": [{"index": 0, "message": said, "finish_reason": "stop", **choice}]}  # fmt: skip
    return {**body, "usage": USAGE}


def text(**choice):
    return {**HEAD, "object": "text_completion", "choices": [{"index": 0, "text": "hello", "finish_reason": "length", **choice}], "usage": USAGE}  # fmt: skip


def stream(*events, done=b"data: [DONE]\n\n"):
    return b"".join(b"data: " + orjson.dumps(event) + b"\n\n" for event in events) + done


def chunk(delta=None, reason=None, **more):
    return {**HEAD, "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": delta or {}, "finish_reason": reason}], **more}  # fmt: skip


LAST = {**HEAD, "object": "chat.completion.chunk", "choices": [], "usage": USAGE}


def pruned(value):
    """Without what is null or empty, which the forms write in different ways."""
    if isinstance(value, dict):
        return {k: pruned(v) for k, v in value.items() if v not in (None, [], {})}
    return [pruned(v) for v in value] if isinstance(value, list) else value


@pytest.mark.parametrize(
    ("endpoint", "body"),
    [
        (CHAT, chat()),
        (CHAT, chat({"content": ""})),
        (CHAT, chat({"content": None, "tool_calls": [CALL, {**CALL, "id": "call_2"}]}, finish_reason="tool_calls")),
        (CHAT, chat({"reasoning_content": "hm", "refusal": "no"})),
        (CHAT, chat(logprobs={"content": [{"token": "a", "logprob": -1.5}, {"token": "b", "logprob": 0}]})),
        (CHAT, chat(stop_reason=128009)),
        (CHAT, chat({"annotations": [], "audio": None})),
        (TEXT, text()),
        (TEXT, text(logprobs={"tokens": ["a"], "text_offset": [0]})),
    ],
)  # fmt: skip
def test_there_and_back(endpoint, body):
    plain = orjson.dumps(body)
    for usage in (True, False):
        events = as_stream(plain, endpoint, usage=usage)
        assert events.endswith(b"data: [DONE]\n\n")
        assert (b'"usage"' in events) == usage
        assert is_whole(events, endpoint, stream=True)
        back = as_body(events, endpoint)
        assert (back is None) == (not usage)
        if usage:
            assert pruned(orjson.loads(back)) == pruned(body)
            assert is_whole(back, endpoint, stream=False)


def test_a_stream_as_engines_send_it():
    events = stream(
        chunk({"role": "assistant", "content": ""}),
        chunk({"content": "hel"}, obfuscation="xx"),
        chunk({"content": "lo"}),
        chunk({"tool_calls": [{"index": 0, "id": "i", "type": "function", "function": {"name": "f", "arguments": ""}}]}),
        chunk({"tool_calls": [{"index": 0, "function": {"arguments": '{"a":'}}]}),
        chunk({"tool_calls": [{"index": 0, "function": {"arguments": "1}"}}]}),
        chunk({}, "tool_calls"),
        LAST,
    )  # fmt: skip
    body = orjson.loads(as_body(events.replace(b"\n", b"\r\n"), CHAT))
    message = body["choices"][0]["message"]
    assert (message["role"], message["content"]) == ("assistant", "hello")
    assert message["tool_calls"] == [
        {"id": "i", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
    ]
    assert (body["object"], body["usage"], body["id"]) == ("chat.completion", USAGE, "c1")


ENDED = chunk({"content": "x"}, "stop")


@pytest.mark.parametrize(
    ("data", "endpoint"),
    [
        (stream(ENDED), CHAT),  # no usage
        (stream(ENDED, LAST, done=b""), CHAT),
        (stream(chunk({"content": "x"}), LAST), CHAT),  # never ended
        (stream(chunk({"content": "x"}, "abort"), LAST), CHAT),
        (stream(chunk({"audio": {"id": 1}}, "stop"), LAST), CHAT),  # no place in a body
        (stream(chunk({"content": "x"}, "stop", kv_transfer_params={"a": 1}), LAST), CHAT),
        (stream(ENDED, {**ENDED, "choices": [{"index": 1, "delta": {}, "finish_reason": "stop"}]}, LAST), CHAT),
        (stream(chunk({"tool_calls": [{"index": 1}]}, "stop"), LAST), CHAT),
        (stream({"error": {"message": "m"}}, ENDED, LAST), CHAT),
        (b"event: x\n" + stream(ENDED, LAST), CHAT),
        (stream(ENDED, LAST), EMBEDDINGS),
        (stream(ENDED, LAST)[30:], CHAT),
        (b"", CHAT),
    ],
)  # fmt: skip
def test_streams_with_no_way_to_a_body(data, endpoint):
    assert as_body(data, endpoint) is None


@pytest.mark.parametrize(
    "body",
    [
        chat({"audio": {"id": "a"}}), chat({"annotations": [{"url": "u"}]}), chat(finish_reason="content_filter"), chat(token_ids=[1]),
        {**chat(), "prompt_logprobs": [1]}, {**chat(), "choices": []}, {**chat(), "choices": chat()["choices"] * 2}, {**chat(), "usage": None},
    ],
)  # fmt: skip
def test_bodies_with_no_way_to_a_stream(body):
    assert as_stream(orjson.dumps(body), CHAT, usage=True) is None


@pytest.mark.parametrize(
    ("data", "endpoint", "streamed", "whole"),
    [
        (orjson.dumps(chat()), CHAT, False, True),
        (orjson.dumps(chat())[:-1], CHAT, False, False),
        (orjson.dumps(chat(finish_reason=None)), CHAT, False, False),
        (orjson.dumps({**chat(), "error": {"message": "m"}}), CHAT, False, False),
        (orjson.dumps({**chat(), "error": None}), CHAT, False, True),
        (orjson.dumps({"object": "list", "data": [{"embedding": [1]}]}), EMBEDDINGS, False, True),
        (orjson.dumps({"object": "list", "data": []}), EMBEDDINGS, False, False),
        (orjson.dumps(chat()), "/v1/other", False, False),
        (b"[1]", CHAT, False, False),
        (stream(ENDED), CHAT, True, True),
        (b": ping\n\n" + stream(ENDED), CHAT, True, True),
        (stream(ENDED, done=b"data:[DONE]"), CHAT, True, True),
        (stream(ENDED, done=b""), CHAT, True, False),
        (stream(chunk({"content": "x" * 9000}), ENDED, LAST), CHAT, True, True),
        (stream(chunk({"content": "x"}, "stop", error={"m": 1})), CHAT, True, False),
        (stream(chunk({"content": "a\n\ndata: [DONE]\n\n"})), CHAT, True, False),  # said, not meant
    ],
)  # fmt: skip
def test_when_an_answer_is_whole(data, endpoint, streamed, whole):
    assert is_whole(data, endpoint, stream=streamed) == whole


@given(st.lists(st.text(st.characters(exclude_categories=("Cs",)), max_size=5), min_size=1, max_size=6))
def test_text_comes_through_whatever_it_is(parts):
    events = stream(*(chunk({"content": part}) for part in parts), chunk({}, "stop"), LAST)
    body = as_body(events, CHAT)
    assert orjson.loads(body)["choices"][0]["message"]["content"] == "".join(parts)
    again = as_body(as_stream(body, CHAT, usage=True), CHAT)
    assert orjson.loads(again) == orjson.loads(body)
