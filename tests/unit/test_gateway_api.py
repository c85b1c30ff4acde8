"""Bodies and trace contexts."""

import orjson
import pytest

from sits.core.errors import CallerError
from sits.gateway.openai_api import parse_chat, parse_completion, parse_embedding, with_model
from sits.gateway.openai_bodies import PREFIX_BYTES
from sits.gateway.trace import Ids, continued
from sits.sim.loop import run_virtual

MESSAGES = [{"role": "user", "content": "x" * 400}]


def chat(**more):
    return parse_chat(orjson.dumps({"model": "m", "messages": MESSAGES, **more}))


def test_what_decisions_need_is_read():
    got = chat(stream=True, max_tokens=7, user="ann", temperature=0.5, tools=[{"deep": [1, {"x": None}]}])
    assert (got.model, got.stream, got.user, got.output_tokens_max) == ("m", True, "ann", 7)
    assert got.prompt_tokens == len(orjson.dumps(MESSAGES)) // 4
    assert chat(max_tokens=7, max_completion_tokens=9).output_tokens_max == 9
    assert chat(stream=None, max_tokens=None, user=None).stream is False


@pytest.mark.parametrize(
    ("field", "body"),
    [
        ("model", {"messages": MESSAGES}),
        ("model", {"model": "", "messages": MESSAGES}),
        ("model", {"model": 3, "messages": MESSAGES}),
        ("messages", {"model": "m"}),
        ("messages", {"model": "m", "messages": []}),
        ("messages", {"model": "m", "messages": "hi"}),
        ("messages", {"model": "m", "messages": None}),
        ("stream", {"model": "m", "messages": MESSAGES, "stream": "yes"}),
        ("max_tokens", {"model": "m", "messages": MESSAGES, "max_tokens": 0}),
        ("max_tokens", {"model": "m", "messages": MESSAGES, "max_tokens": 1.5}),
        ("max_completion_tokens", {"model": "m", "messages": MESSAGES, "max_completion_tokens": "9"}),
        ("user", {"model": "m", "messages": MESSAGES, "user": {}}),
    ],
)
def test_a_wrong_field_is_named(field, body):
    with pytest.raises(CallerError, match=field) as caught:
        parse_chat(orjson.dumps(body))
    assert caught.value.field == field
    assert caught.value.status == 400


@pytest.mark.parametrize(
    "body", [b"", b"{", b"\xff\xfe", b'{"model": "m", "messages": [}', b"null", b"[1]", b'"x"']
)
def test_what_is_not_json_or_not_an_object(body):
    with pytest.raises(CallerError):
        parse_chat(body)


@pytest.mark.parametrize(
    ("before", "half", "after"),
    [
        ('"', r"\ud800", '"'),
        (r'"\\', r"\uD83D", ' and more text"'),
        ('"', r"\uDC00", ' a"'),
        (r'"\ud83d\ude00', r"\ud83d", '"'),
    ],
)
def test_half_a_character_is_told_as_that(before, half, after):
    before = '{"model":"m","messages":[' + before
    with pytest.raises(CallerError) as told:
        parse_chat(f"{before}{half}{after}]}}".encode())
    assert told.value.message == f"the body is not JSON: {half} at byte {len(before)} is half of a character"
    assert told.value.code == "invalid_json"


def test_what_only_looks_like_half_a_character_passes():
    for text in (rb'"\\ud800"', rb'"\ud83d\ude00"'):
        assert parse_chat(b'{"model":"m","messages":[' + text + b"]}").model == "m"
    with pytest.raises(CallerError, match="truncated"):
        parse_chat(rb'{"model":"m","messages":["\\ud800"')


def test_prompts_and_inputs_are_strings_or_lists():
    assert parse_completion(b'{"model": "m", "prompt": "hi", "max_tokens": 0}').output_tokens_max == 0
    assert parse_embedding(b'{"model": "m", "input": ["a", "b"], "stream": true}').stream is False
    for body in (b'{"model": "m", "prompt": 3}', b'{"model": "m"}', b'{"model": "m", "prompt": ""}'):
        with pytest.raises(CallerError, match="prompt"):
            parse_completion(body)
    with pytest.raises(CallerError, match="input"):
        parse_embedding(b'{"model": "m", "input": {}}')


def test_prompts_that_begin_alike_share_a_prefix_and_short_ones_have_none():
    def prefix(text):
        return parse_chat(
            orjson.dumps({"model": "m", "messages": [{"role": "system", "content": text}]})
        ).prefix

    shared = "you are a bot " * 60
    assert prefix(shared + "one") == prefix(shared + "two") != b""
    assert len(prefix(shared)) == PREFIX_BYTES
    assert prefix("short") == b""


def test_another_model_name_leaves_the_rest_as_it_was():
    body = b'{"model": "m", "a": [1, 2.5, null], "z": {"k": "\xc3\xa9"}}'
    assert orjson.loads(with_model(body, "n")) == orjson.loads(body) | {"model": "n"}
    assert with_model(b"", "n") == b""


def test_ids_are_unique_and_hexadecimal():
    async def draw(world):
        ids = Ids(world)
        return [ids.new() for _ in range(10_000)]

    drawn = run_virtual(draw)
    assert len(set(drawn)) == len(drawn)
    assert all(len(i) == 32 and int(i, 16) for i in drawn[:100])
    assert drawn == run_virtual(draw)


@pytest.mark.parametrize(
    "wrong",
    [
        b"",
        b"00-" + b"0" * 32 + b"-00f067aa0ba902b7-01",
        b"00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
        b"ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        b"00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
        b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01\r\nx: y",
    ],
)
def test_a_broken_trace_starts_anew(wrong):
    mine = "0af7651916cd43dd8448eb211c80319c"
    assert continued(wrong, mine) == (f"00-{mine}-{mine[16:]}-01", "", "")


def test_a_trace_of_a_later_version_is_continued():
    trace = b"01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00-more"
    name, parent = trace[3:35].decode(), trace[36:52].decode()
    assert continued(trace, "0" * 16 + "1" * 16) == (f"00-{name}-{'1' * 16}-00", name, parent)
