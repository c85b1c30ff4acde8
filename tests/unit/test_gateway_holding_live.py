"""Windows on real sockets, with the official client, before a server that embeds: many callers, few calls, everybody their own."""

import asyncio
import base64
import struct

import openai
import orjson
import pytest

from embedders import vector_of
from gateway_upstream import CHAT, House, answer, live, post, until
from sits.core.fleet import Policies
from sits.core.fleet_window import Window

WINDOW = Window(kind="fixed", base=10**11, endpoints=("/v1/embeddings",), max_batch=8)


def embeds(hit):
    """What a server of embeddings answers, one call at a time or not."""
    body = orjson.loads(hit.body)
    texts = [body["input"]] if isinstance(body["input"], str) else body["input"]
    if any("too long" in text for text in texts):
        return [answer(b'{"error":{"message":"too long"}}', 413)]
    vectors = [vector_of(text) for text in texts]
    if body.get("encoding_format") == "base64":
        vectors = [base64.b64encode(struct.pack("<2f", *map(float, one))).decode() for one in vectors]
    data = [{"object": "embedding", "index": i, "embedding": one} for i, one in enumerate(vectors)]
    usage = {"prompt_tokens": 3 * len(texts), "total_tokens": 3 * len(texts)}
    return [0.01, answer(orjson.dumps({"object": "list", "data": data, "model": "m", "usage": usage}))]


def texts_of(hit):
    given = orjson.loads(hit.body)["input"]
    return 1 if isinstance(given, str) else len(given)


def sdk(house):
    return openai.AsyncOpenAI(base_url=f"http://{house.host}:{house.port}/v1", api_key="k", max_retries=0)


def as_float32(vector):
    return list(struct.unpack("<2f", struct.pack("<2f", *map(float, vector))))


@live
async def test_the_official_client_gets_its_own_vectors_out_of_a_shared_call():
    async with House(embeds, policy=Policies(window=WINDOW)) as house, sdk(house) as client:
        asked = [f"text {i}" for i in range(7)]
        told = await asyncio.gather(
            *(client.embeddings.create(model="m", input=text) for text in asked),
            client.embeddings.create(model="m", input=["two", "texts"]),
            return_exceptions=True,
        )
        for text, one in zip(asked, told, strict=False):
            assert [item.embedding for item in one.data] == [as_float32(vector_of(text))]
        assert [item.index for item in told[-1].data] == [0, 1]
        assert sum(one.usage.prompt_tokens for one in told) == 3 * 9
        assert sum(map(texts_of, house.up.hits)) == 9
        assert len(house.up.hits) == 2, (
            "eight requests fill the window; nine texts are two calls of at most eight"
        )
        rows = await house.settled(8)
        assert {row["status"] for row in rows} == {200}


@live
async def test_a_text_too_long_is_its_senders_error_only():
    async with House(embeds, policy=Policies(window=WINDOW)) as house, sdk(house) as client:
        asked = ["fine"] * 7 + ["too long"]
        told = await asyncio.gather(
            *(client.embeddings.create(model="m", input=text) for text in asked), return_exceptions=True
        )
        assert [getattr(one, "status_code", 200) for one in told] == [200] * 7 + [413]


@live
async def test_who_hangs_up_leaves_the_others_their_answer():
    window = Window(kind="fixed", base=10**11, endpoints=("/v1/embeddings",), max_batch=3)
    async with House(embeds, policy=Policies(window=window)) as house, sdk(house) as client:

        def ask(text):
            return asyncio.ensure_future(client.embeddings.create(model="m", input=text))

        _, writer = await house.connect()
        writer.write(post({"model": "m", "input": "gone"}, "/v1/embeddings"))
        await until(lambda: house.gateway.pending()["e0"] == 1)
        first = ask("t0")
        await until(lambda: house.gateway.pending()["e0"] == 2)
        writer.close()
        await until(lambda: house.gateway.pending()["e0"] == 1)
        told = await asyncio.gather(first, ask("t1"), ask("t2"))
        assert [one.data[0].embedding for one in told] == [as_float32(vector_of(f"t{i}")) for i in range(3)]
        (hit,) = house.up.hits
        assert sorted(orjson.loads(hit.body)["input"]) == ["t0", "t1", "t2"]


@live
async def test_an_engine_that_dies_under_a_shared_call_is_everybodys_502():
    async with House(lambda hit: ["die"], policy=Policies(window=WINDOW)) as house, sdk(house) as client:
        told = await asyncio.gather(
            *(client.embeddings.create(model="m", input=f"t{i}") for i in range(8)), return_exceptions=True
        )
        assert [one.status_code for one in told] == [502] * 8
        assert house.gateway.holders["e0"].under_way == 0


@live
async def test_under_load_every_caller_gets_their_own_and_calls_are_shared():
    window = Window(kind="adaptive", endpoints=("/v1/embeddings",), max_batch=16)
    async with House(embeds, policy=Policies(window=window)) as house, sdk(house) as client:

        async def caller(i):
            for j in range(6):
                told = await client.embeddings.create(model="m", input=f"{i} {j}")
                assert told.data[0].embedding == as_float32(vector_of(f"{i} {j}"))

        await asyncio.gather(*(caller(i) for i in range(24)))
        assert sum(map(texts_of, house.up.hits)) == 24 * 6
        assert len(house.up.hits) < 24 * 6 / 3
        assert house.gateway.pending() == {"e0": 0}


@pytest.mark.parametrize("kind", ["none", "fixed"])
def test_chat_is_not_held_where_the_window_names_embeddings(kind):
    @live
    async def run():
        window = Window(kind=kind, base=10**12, endpoints=("/v1/embeddings",))
        async with House(policy=Policies(window=window)) as house:
            got = await house.raw(post(CHAT), until=b"total_tokens")
            assert b"Hello" in got

    run()
