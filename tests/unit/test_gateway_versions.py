"""Releases and the cache on the live path: real sockets and the official SDK, and scripted engines on a virtual loop."""

import openai
import orjson
import pytest
from test_gateway_pipeline import Answer, Script, virtual

from gateway_upstream import CHAT, PLAIN, STREAM, USAGE, House, live, post
from sits.core.breakpoints import API_RECV, DISPATCHED, FIRST_TOKEN, LAST_TOKEN, PARSED, SENT
from sits.core.errors import EngineError
from sits.core.fleet import Arm, Fleet, OpenAIEngine, Policies, Release, ResponseCache
from sits.core.request import Chunk, Request, Usage
from sits.core.timeline import Timeline
from sits.core.units import SECOND
from sits.gateway.pipeline import Gateway
from sits.testing.loop import MemoryRecorder

CACHE = ResponseCache(kind="exact")
COLD = {**CHAT, "temperature": 0}


def sdk(house):
    return openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{house.port}/v1", api_key="k", max_retries=0)


def parts(raw):
    head, _, body = raw.partition(b"\r\n\r\n")
    lines = head.decode().lower().split("\r\n")
    return lines[0].split(" ")[1], dict(line.split(": ", 1) for line in lines[1:]), body


async def ask(house, body=COLD, **headers):
    return parts(await house.raw(post(body, connection="close", **headers)))


# -- the cache over sockets ---------------------------------------------------------------------------------------


@live
async def test_the_same_question_is_answered_once_by_the_engine_and_then_byte_for_byte():
    async with House(policy=Policies(cache=CACHE)) as house:
        status, first, body = await ask(house)
        assert (status, first["x-sits-cache"], first["x-sits-engine"]) == ("200", "miss", "e0")
        await house.settled(1)
        other = b'{ "temperature": 0, "messages":[{"content":"\\u0068i","role":"user"}],"model":"m" }'
        status, again, same = await ask(house, other)
        assert (status, again["x-sits-cache"], again["age"], same) == ("200", "hit", "0", body)
        assert same == PLAIN
        assert again["content-type"] == first["content-type"]
        assert len(house.up.hits) == 1
        rows = await house.settled(2)
        assert (rows[1]["outcome"], rows[1]["detail"], rows[1]["engine"], rows[1]["arm"]) == ("completed", "cache_hit", "", "stable")  # fmt: skip
        assert (rows[1]["prompt_tokens"], rows[1]["output_tokens"], rows[1]["cached_tokens"]) == (9, 3, 9)
        line = rows[1]["timeline"]
        assert all(line.has(point) for point in (API_RECV, PARSED, LAST_TOKEN, SENT))
        assert not line.has(DISPATCHED)
        assert line.disorder() is None
        page = (await house.raw(b"GET /metrics HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")).decode()
        assert 'sits_cache_requests_total{verdict="hit"} 1' in page
        assert "sits_cache_answers 1" in page


@live
async def test_streams_through_the_sdk_whole_and_by_chunks():
    async with House(policy=Policies(cache=CACHE)) as house, sdk(house) as client:
        told = {**COLD, "stream": True, "stream_options": {"include_usage": True}}
        texts = []
        for _ in range(2):
            stream = await client.chat.completions.create(**told)
            chunks = [chunk async for chunk in stream]
            texts.append("".join(c.choices[0].delta.content or "" for c in chunks if c.choices))
            assert chunks[-1].usage.completion_tokens == 3
        assert texts == ["Hello", "Hello"]
        await house.settled(2)
        assert house.rows[1]["detail"] == "cache_hit"
        assert house.rows[1]["timeline"].has(FIRST_TOKEN)
        _, head, body = await ask(house, told)
        assert (
            body
            == b"".join(b"%x\r\n%b\r\n" % (len(b"".join(STREAM)), b"".join(STREAM)) for _ in (1,))
            + b"0\r\n\r\n"
        )
        assert head["content-type"].startswith("text/event-stream")
        plain = await client.chat.completions.create(**COLD)  # turned from the stream
        assert (plain.choices[0].message.content, plain.usage.total_tokens) == (
            "Hello",
            USAGE["total_tokens"],
        )
        assert len(house.up.hits) == 1


@live
async def test_who_asks_and_how_decides_whether_it_is_answered_from_the_cache():
    keys = ("ann:ka", "bob:kb")
    async with House(policy=Policies(cache=CACHE), keys=keys) as house:
        said = []
        for body, key, more in (
            (COLD, "ka", {}),
            (COLD, "ka", {}),
            (COLD, "kb", {}),
            (CHAT, "ka", {}),
            (COLD, "ka", {"cache_control": "no-store"}),
            (COLD, "ka", {"cache_control": "no-cache"}),
            ({**COLD, "seed": 1}, "ka", {}),
        ):
            _, head, _ = await ask(house, body, authorization=f"Bearer {key}", **more)
            said.append(head["x-sits-cache"])
            await house.settled(len(said))
        assert said == ["miss", "hit", "miss", "bypass", "bypass", "miss", "miss"]
        status, head, _ = await ask(house, COLD)
        assert (status, "x-sits-cache" in head) == ("401", False)


@live
async def test_an_answer_that_was_cut_short_is_asked_for_again():
    calls = []

    def script(hit):
        calls.append(hit)
        whole = STREAM if len(calls) > 1 else STREAM[:3]
        head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        body = b"".join(b"%x\r\n%b\r\n" % (len(e), e) for e in whole)
        return [
            head + body + (b"0\r\n\r\n" if len(calls) > 1 else b""),
            *(["die"] if len(calls) == 1 else []),
        ]

    async with House(script, policy=Policies(cache=CACHE)) as house:
        for count in (1, 2, 3):
            _, head, body = await ask(house, {**COLD, "stream": True})
            assert (b"[DONE]" in body) == (count > 1)
            await house.settled(count)
        assert (len(calls), head["x-sits-cache"]) == (2, "hit")
        assert house.gateway.cached.copying == 0


@live
async def test_a_new_generation_keeps_the_cache_it_still_asks_for():
    async with House(policy=Policies(cache=CACHE)) as house:
        await ask(house)
        await house.settled(1)
        old = house.gateway
        for policy, verdict in (
            (Policies(cache=CACHE, release=Release(salt="r2")), "hit"),
            (Policies(cache=ResponseCache(kind="exact", ttl=SECOND)), "miss"),
            (Policies(), None),
        ):
            fleet = Fleet(name="t", gateway=house.config, policy=policy, engines=old.fleet.engines)
            house.server.swap(Gateway(old.world, fleet, old.engines, house.rows, before=house.server.gateway))
            _, head, _ = await ask(house)
            assert head.get("x-sits-cache") == verdict


@live
async def test_a_hint_from_a_trusted_tenant():
    arms = (Arm(name="stable", weight=1.0), Arm(name="tuned", weight=0.0, model="lora-x"))
    policy = Policies(release=Release(arms=arms, honour_version_hint=("qa",)))
    async with House(policy=policy, keys=("qa:kq", "ann:ka")) as house:
        for key in ("kq", "ka"):
            await ask(house, authorization=f"Bearer {key}", x_model_version="tuned")
        rows = await house.settled(2)
        assert [(row["arm"], row["adapter"]) for row in rows] == [("tuned", "lora-x"), ("stable", "")]
        assert orjson.loads(house.up.hits[0].body)["model"] == "lora-x"


@live
async def test_a_worker_that_caches_nothing_says_nothing_about_it():
    async with House() as house:
        _, head, _ = await ask(house)
        assert "x-sits-cache" not in head
        assert house.gateway.cached is None


# -- fallbacks, on a virtual loop ---------------------------------------------------------------------------------

JSON = b"application/json"
DOWN = EngineError("down", code="engine_unreachable")


def says(text):
    body = orjson.dumps(
        {
            "choices": [
                {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
            ],
            "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
        }
    )
    return Chunk(data=body, tokens=1, last=True, content_type=JSON, usage=Usage(1, 1))


class Two:
    """Two engines with a model each, and a release from one to the other."""

    def __init__(self, world, new, old, **arm):
        arms = (
            Arm(name="new", weight=1.0, model="m2", fallback="old", **arm),
            Arm(name="old", weight=0.0, model="m1"),
        )
        engines = {"e2": Script("e2", *new), "e1": Script("e1", *old)}
        for engine in engines.values():
            engine.world = world
        fleet = Fleet(
            name="t",
            policy=Policies(release=Release(arms=arms), cache=CACHE),
            engines=(OpenAIEngine(name="e2", models=("m2",)), OpenAIEngine(name="e1", models=("m1",))),
        )
        self.world, self.engines = world, engines
        self.rows = MemoryRecorder()
        self.gateway = Gateway(world, fleet, engines, self.rows)

    async def ask(self, **fields):
        body = orjson.dumps({"model": "m1", "messages": [], "temperature": 0, **fields})
        timeline = Timeline()
        timeline.mark(API_RECV, self.world.now_ns())
        timeline.mark(PARSED, self.world.now_ns())
        answer = Answer()
        request = Request(id="r", model="m1", stream=False, body=body, prompt_tokens=1)
        exchange = await self.gateway.handle(request, timeline, answer)
        assert (self.gateway.places.inflight_requests, self.gateway.cached.copying) == (0, 0)
        return answer, exchange


@virtual
async def test_a_fallback_answers_under_its_own_name_and_is_never_taken_for_the_primary(world):
    two = Two(world, [says("new")], [says("old")])
    two.gateway.places.by_id["e2"].healthy = False
    answer, exchange = await two.ask()
    assert (exchange.arm, answer.headers[b"x-sits-fallback"], answer.headers[b"x-sits-cache"]) == (
        "old",
        b"old",
        b"miss",
    )
    assert orjson.loads(two.engines["e1"].seen[0].body)["model"] == "m1"
    assert exchange.fell_back.reasons["instead_of"] == "new"
    again, exchange = await two.ask()
    assert (again.data, again.headers[b"x-sits-cache"], exchange.arm) == (answer.data, b"hit", "old")

    two.gateway.places.by_id["e2"].healthy = True
    two.gateway.places.changed()
    fresh, exchange = await two.ask()
    assert (exchange.arm, fresh.headers[b"x-sits-cache"]) == ("new", b"miss")
    assert b'"new"' in fresh.data
    assert orjson.loads(two.engines["e2"].seen[0].body)["model"] == "m2"


@virtual
async def test_an_engine_that_fails_before_its_first_byte_is_answered_for_by_the_next_arm(world):
    two = Two(world, [DOWN], [says("old")])
    answer, exchange = await two.ask()
    assert (answer.status, exchange.arm, exchange.replica.id) == (200, "old", "e1")
    assert two.rows.rows[0]["arm"] == "old"
    again, exchange = await two.ask()  # the retry finds the fallback's answer stored
    assert (again.data, again.headers[b"x-sits-cache"]) == (answer.data, b"hit")
    assert (exchange.arm, exchange.replica, len(two.engines["e1"].seen)) == ("old", None, 1)


@virtual
async def test_no_arm_is_up(world):
    two = Two(world, [says("new")], [says("old")])
    for replica in two.gateway.places.replicas:
        replica.healthy = False
    answer, exchange = await two.ask()
    assert (answer.status, answer.error["code"]) == (503, "no_healthy_engine")
    assert exchange.outcome == "refused"


@pytest.mark.patches
@virtual
async def test_without_a_retry_to_spend_the_failure_stays_the_primarys(world):
    two = Two(world, [DOWN], [says("old")])
    two.gateway.places.may_retry = lambda: False
    answer, exchange = await two.ask()
    assert (answer.status, exchange.arm, exchange.fell_back) == (502, "new", None)
