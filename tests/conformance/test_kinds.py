"""Every kind a configuration may name is tried for being listed: engines in `wire.KINDS`, policies in their sections.

A new engine kind adds its maker to `MAKERS` below; a kind without one fails, so that nothing listed goes untried.
"""

import asyncio
import contextlib
import json
import typing

import pytest

from gateway_upstream import SSE_HEAD, Upstream, chunked
from sits.core import fleet as tree
from sits.core.config import load_fleet
from sits.core.errors import EngineError
from sits.core.ports import Engine
from sits.core.replica import Replica
from sits.core.request import Request
from sits.core.timeline import Timeline
from sits.engine.anthropic import AnthropicEngine
from sits.engine.emulated import EmulatedEngine
from sits.engine.openai import OpenAIEngine
from sits.policy import window
from sits.policy.route import route
from sits.testing.loop import small_spec
from sits.wire import KINDS
from sits.world import RealWorld

BODY = b'{"model":"m","max_tokens":4,"stream":true,"stream_options":{"include_usage":true},"messages":[{"role":"user","content":"hi"}]}'
DIALECTS = {
    "/v1/chat/completions": (BODY, b"data: [DONE]"),
    "/v1/messages": (
        BODY.replace(b'"stream_options":{"include_usage":true},', b""),
        b'{"type":"message_stop"}',
    ),
}
"""Endpoint -> what is asked there, and how a stream ends."""

MESSAGE = {
    "id": "m1",
    "type": "message",
    "role": "assistant",
    "model": "m",
    "content": [],
    "usage": {"input_tokens": 9},
}
EVENTS = [
    {"type": "message_start", "message": MESSAGE},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hello"}},
    {"type": "content_block_stop", "index": 0},
    {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 3}},
    {"type": "message_stop"},
]


def speaks_messages(hit):
    assert hit.path == "/v1/messages"
    assert "max_tokens" in json.loads(hit.body)
    told = [json.dumps(event, separators=(",", ":")) for event in EVENTS]
    lines = [f"event: {e['type']}\ndata: {text}\n\n" for e, text in zip(EVENTS, told, strict=True)]
    return [SSE_HEAD, *(chunked(line.encode()) for line in lines), b"0\r\n\r\n"]


def ask(name="r1", endpoint="/v1/chat/completions"):
    body = DIALECTS[endpoint][0]
    return Request(id=name, model="m", endpoint=endpoint, prompt_tokens=8, output_tokens_max=4, body=body)


@contextlib.asynccontextmanager
async def emulated():
    spec = small_spec()
    yield EmulatedEngine("e", spec, RealWorld(), lambda request: 3, models=("m",))


@contextlib.asynccontextmanager
async def openai():
    upstream = await Upstream().start()
    try:
        yield OpenAIEngine("e", upstream.url, world=RealWorld(), models=("m",))
    finally:
        await upstream.stop()


@contextlib.asynccontextmanager
async def anthropic():
    upstream = await Upstream(speaks_messages).start()
    try:
        yield AnthropicEngine("e", upstream.url, world=RealWorld(), models=("m",))
    finally:
        await upstream.stop()


MAKERS = {"anthropic": anthropic, "emulated": emulated, "openai": openai}


def run(kind, body):
    async def main():
        async with MAKERS[kind]() as engine:
            try:
                return await asyncio.wait_for(body(engine), 30)
            finally:
                await engine.close()

    return asyncio.run(main())


def words(section):
    """The kinds a section of the configuration knows."""
    return typing.get_args(section.__annotations__["kind"])


engines = pytest.mark.parametrize("kind", sorted(KINDS["engine"]))


def test_every_kind_is_a_kind_of_the_configuration_and_the_other_way_round():
    tags = {
        t.__struct_config__.tag
        for t in typing.get_args(typing.get_args(tree.Fleet.__annotations__["engines"])[0])
    }
    assert set(KINDS["engine"]) == tags == set(MAKERS)


@pytest.mark.parametrize("endpoint", DIALECTS)
@engines
def test_an_engine_is_an_engine_and_answers_in_order_in_either_dialect(kind, endpoint):
    async def body(engine):
        assert isinstance(engine, Engine)
        assert engine.name == "e"
        timeline = Timeline()
        chunks = [chunk async for chunk in engine.generate(ask(endpoint=endpoint), timeline)]
        assert [chunk.last for chunk in chunks].count(True) == 1
        assert chunks[-1].last
        assert sum(chunk.tokens for chunk in chunks) >= 1
        assert b"".join(chunk.data for chunk in chunks).rstrip().endswith(DIALECTS[endpoint][1])
        assert timeline.disorder() is None
        usage = [chunk.usage for chunk in chunks if chunk.usage]
        assert len(usage) == 1
        assert usage[0].output == 3

    run(kind, body)


@engines
def test_closing_the_iterator_early_leaves_the_engine_usable(kind):
    async def body(engine):
        for number in range(3):
            stream = engine.generate(ask(f"a{number}"), Timeline())
            async for _ in stream:
                break
            await stream.aclose()
        assert [chunk async for chunk in engine.generate(ask("b"), Timeline())][-1].last

    run(kind, body)


@engines
def test_a_closed_engine_says_so(kind):
    async def body(engine):
        await engine.close()
        with pytest.raises(EngineError):
            [chunk async for chunk in engine.generate(ask("late"), Timeline())]

    run(kind, body)


@pytest.mark.parametrize("kind", words(tree.Route))
def test_a_route_chooses_a_healthy_replica_that_serves_the_model(kind):
    replicas = [
        Replica(id="a", models=("m",), healthy=False),
        Replica(id="b", models=("x",)),
        Replica(id="c", models=("m",)),
    ]
    config = tree.Route(kind=kind)
    for turn in range(5):
        decision = route(ask(), replicas, config, need_tokens=10, now_ns=1, turn=turn)
        assert (decision.outcome, decision.choice) == ("chosen", "c")


@pytest.mark.parametrize("kind", words(tree.Window))
def test_a_window_never_holds_a_full_batch_and_never_holds_beyond_its_bound(kind):
    config = tree.Window(kind=kind, max_batch=4)
    full = window.decide(config, pending=4, oldest_ns=0, rate_per_s=1.0, now_ns=0)
    assert full.outcome == "flush"
    alone = window.decide(config, pending=1, oldest_ns=0, rate_per_s=1.0, now_ns=0)
    if kind == "none":
        assert alone.outcome == "flush"
    else:
        assert alone.reasons["hold_until_ns"] <= config.high


@pytest.mark.parametrize("kind", words(tree.Window))
def test_every_kind_can_be_written_in_a_file(kind):
    text = f'name: x\npolicy: {{window: {{kind: "{kind}"}}}}\nengines: [{{kind: openai, name: a, url: "http://127.0.0.1:1", models: [m]}}]\n'
    assert load_fleet(text).policy.window.kind == kind
