"""Which requests a cache has to do with, and which it leaves alone: one word each."""

import orjson
import pytest

from sits.core.fleet import ResponseCache
from sits.policy.cacheable import PLAIN, STREAM, STREAM_USAGE, Wish, question_of, wish_of
from sits.policy.cachekey import IGNORED, digest_of, fields_of

CHAT = "/v1/chat/completions"
BASE = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "temperature": 0}
FUNCTION = {"type": "function", "function": {"name": "f"}}


def ask(more=None, endpoint=CHAT, control=None, **config):
    fields = {name: value for name, value in {**BASE, **(more or {})}.items() if value is not ...}
    cache = ResponseCache(kind="exact", **config)
    return question_of(orjson.dumps(fields), endpoint, cache, model="m", cache_control=control)


@pytest.mark.parametrize(
    ("more", "verdict"),
    [
        ({}, ""),
        ({"temperature": 0.0}, ""),
        ({"temperature": 1e-9}, "bypass_sampled"),
        ({"temperature": False}, "bypass_sampled"),
        ({"temperature": "0"}, "bypass_sampled"),
        ({"temperature": None}, "bypass_sampled"),
        ({"temperature": ...}, "bypass_sampled"),
        ({"temperature": 1, "seed": 0}, ""),
        ({"temperature": 1, "seed": None}, "bypass_sampled"),
        ({"n": 1}, ""),
        ({"n": None}, ""),
        ({"n": 2}, "bypass_n"),
        ({"n": [1]}, "bypass_n"),
        ({"best_of": 2}, "bypass_n"),
        ({"store": True}, "bypass_store"),
        ({"store": False}, "bypass_store"),
        ({"store": None}, ""),
        ({"tools": []}, ""),
        ({"tools": [FUNCTION]}, "bypass_tools"),
        ({"functions": [{"name": "f"}]}, "bypass_tools"),
        ({"previous_response_id": "r"}, "bypass_state"),
        ({"kv_transfer_params": {}}, "bypass_state"),
    ],
)
def test_what_the_body_says(more, verdict):
    assert ask(more).verdict == verdict
    assert bool(ask(more).digest) == (not verdict)


def test_embeddings_draw_nothing_and_never_stream():
    found = ask({"temperature": ..., "stream": True}, endpoint="/v1/embeddings")
    assert (found.verdict, found.form) == ("", PLAIN)


def test_what_the_configuration_allows():
    assert ask({"temperature": 1}, any_temperature=True).verdict == ""
    assert ask({"tools": [FUNCTION]}, tools=True).verdict == ""
    assert ask({"functions": [{"name": "f"}]}, tools=True).verdict == ""
    for served in ([{"type": "web_search"}], [FUNCTION, {"type": "mcp"}], {"type": "function"}, [1]):
        assert ask({"tools": served}, tools=True).verdict == "bypass_tools"
    assert ask(models=("m",)).verdict == ""
    assert ask(models=("other",)).verdict == "bypass_model"
    assert ask({"x": "y" * 100}, body_limit=100).verdict == "bypass_long"


@pytest.mark.parametrize(
    ("control", "wish"),
    [
        (None, Wish()),
        (b"", Wish()),
        (b"no-transform, private", Wish()),
        (b"no-store", Wish(look=False, keep=False)),
        (b"private , NO-STORE", Wish(look=False, keep=False)),
        (b"no-cache", Wish(look=False)),
        (b"max-age=0", Wish(look=False, age_ns=0)),
        (b'max-age="60"', Wish(age_ns=60_000_000_000)),
        (b"max-age=60, max-age=5", Wish(age_ns=5_000_000_000)),
        (b"max-age=x", Wish(look=False, age_ns=0)),
        (b"max-age=99999999999999999999999", Wish(look=False, age_ns=0)),
    ],
)
def test_what_the_client_wishes(control, wish):
    assert wish_of(control) == wish
    found = ask(control=control)
    assert found.verdict == ("" if wish.keep else "bypass_no_store")
    if wish.keep:
        assert found.wish == wish


@pytest.mark.parametrize(
    ("more", "form"),
    [
        ({}, PLAIN),
        ({"stream": False, "stream_options": {"include_usage": True}}, PLAIN),
        ({"stream": True}, STREAM),
        ({"stream": True, "stream_options": {}}, STREAM),
        ({"stream": True, "stream_options": {"include_usage": False}}, STREAM),
        ({"stream": True, "stream_options": {"include_usage": True}}, STREAM_USAGE),
        ({"stream": True, "stream_options": {"include_usage": 1}}, b'{"include_usage":1}'),
        ({"stream": True, "stream_options": {"b": 1, "a": 2}}, b'{"a":2,"b":1}'),
        ({"stream": True, "stream_options": {"a": 2**64}}, b'{"a":18446744073709551616}'),
    ],
)
def test_forms(more, form):
    body = {**BASE, **{k: v for k, v in more.items() if k != "stream_options"}}
    text = orjson.dumps(body)
    if "stream_options" in more:
        import json

        text = json.dumps({**body, "stream_options": more["stream_options"]}).encode()
    found = question_of(text, CHAT, ResponseCache(kind="exact"), model="m")
    assert (found.verdict, found.form) == ("", form)


@pytest.mark.parametrize(
    "body",
    [
        b"", b"[]", b"{", b"\xff", b'{"a":"\\ud800"}', b'{"temperature":1,"temperature":0}', b'{"temperature":0,"a":1e999}',
        b'{"temperature":0,"a":' + b"[" * 5000 + b"]" * 5000 + b"}", b'{"temperature":0,"a":' + b"9" * 5000 + b"}",
        b'{"temperature":0,"user":{"a":1,"a":2}}',
    ],
)  # fmt: skip
def test_a_body_that_parsers_may_read_differently_has_no_key(body):
    found = question_of(body, CHAT, ResponseCache(kind="exact"), model="m")
    assert (found.verdict, found.digest) == ("bypass_ambiguous", b"")


def test_deep_and_large_values_are_still_exact():
    for n in (200, 300, 900):
        deep = [b'{"a":' + b"[" * n + inner + b"]" * n + b"}" for inner in (b"1", b"1.0")]
        one, other = (digest_of(body, fields_of(body)) for body in deep)
        assert one != other


def test_ignored_fields_do_not_reach_the_digest():
    same = {ask({name: "x"}).digest for name in IGNORED if name not in ("stream", "stream_options")}
    assert same == {ask().digest}
