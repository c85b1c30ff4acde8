"""What engines answer to being told to load an adapter, and what that is taken for."""

import asyncio
import contextlib

import pytest

from lora_mock import LyingVllm
from sits.core.fingerprint import distance
from sits.core.units import SECOND
from sits.engine.lora import Lora, LoraError, asked_as
from sits.engine.openai import OpenAIEngine
from sits.world import RealWorld


@contextlib.asynccontextmanager
async def engine(api="vllm", load_ns=5 * SECOND, **disk):
    vllm = await LyingVllm({f"/{name}": name for name in disk} or {"/a": "a"}).start()
    world = RealWorld()
    lora = Lora(
        OpenAIEngine("e", vllm.url + "/v1", world=world),
        api,
        load_ns=load_ns,
        probe_ns=5 * SECOND,
        world=world,
    )
    try:
        yield vllm, lora
    finally:
        lora.close()
        await vllm.stop()


async def refused(call):
    with pytest.raises(LoraError) as raised:
        await call
    return raised.value.reason


def test_load_list_show_unload():
    async def main():
        async with engine() as (vllm, lora):
            assert await lora.listed() == {"m": "/base"}
            await lora.load("a", "/a")
            assert await lora.listed() == {"m": "/base", "a": "/a"}
            base, shown = await lora.show("m", "", "hi", 4), await lora.show("m", "a", "hi", 4)
            assert (base.model, shown.model) == ("m", "a")
            assert distance(base.fingerprint, shown.fingerprint) > 0.1
            assert distance(shown.fingerprint, (await lora.show("m", "a", "hi", 4)).fingerprint) == 0
            await lora.unload("a")
            await lora.unload("a")  # gone is gone
            assert "a" not in await lora.listed()
            assert await refused(lora.show("m", "a", "hi", 4)) == "denied"
            asked = [body for path, body in vllm.calls if path == "/v1/completions"]
            assert all(
                "echo" not in body and "seed" not in body for body in asked
            )  # both have killed engines

    asyncio.run(main())


def test_refusals_have_their_reasons():
    async def main():
        async with engine() as (vllm, lora):
            assert await refused(lora.load("a", "/none")) == "path_not_found"
            await lora.load("a", "/a")
            assert await refused(lora.load("a", "/a")) == "already_loaded"
            vllm.fails = 1
            assert await refused(lora.load("b", "/a")) == "engine_error"
            vllm.off = True
            assert await refused(lora.load("b", "/a")) == "lora_disabled"
            await vllm.stop()
            assert await refused(lora.load("b", "/a")) == "engine_unreachable"
            assert await refused(lora.listed()) == "engine_unreachable"

    asyncio.run(main())


def test_a_load_that_takes_too_long_is_given_up():
    async def main():
        async with engine(load_ns=SECOND // 20) as (vllm, lora):
            vllm.slow_s = 30
            assert await refused(lora.load("a", "/a")) == "engine_timeout"

    asyncio.run(main())


def test_the_end_of_the_line_is_told_at_once_and_only_when_it_is_not_ours():
    async def main():
        async with engine() as (vllm, lora):
            lost = asyncio.Event()
            lora.watch(lost.set)
            await lora.listed()
            await lora.listed()
            assert len(vllm.writers) == 1  # one connection is kept
            lora.close()
            await asyncio.sleep(0)
            assert not lost.is_set()
            await lora.listed()
            vllm.restart()
            await asyncio.wait_for(lost.wait(), 5)
            assert await lora.listed() == {"m": "/base"}

    asyncio.run(main())


def test_an_engine_that_closes_after_each_answer_has_no_line_to_lose():
    async def main():
        async with engine() as (vllm, lora):
            lost = []
            lora.watch(lambda: lost.append(1))
            vllm.lies.add("short")
            for _ in range(3):
                await lora.listed()
            assert not lost

    asyncio.run(main())


def test_an_answer_without_log_probabilities_proves_nothing():
    async def main():
        async with engine() as (vllm, lora):

            async def plain(body, writer):
                return 200, {"model": "a", "choices": [{"text": "hi", "logprobs": None}]}

            vllm._complete = plain
            assert await refused(lora.show("m", "a", "hi", 4)) == "probe_failed"

    asyncio.run(main())


def test_each_api_is_asked_in_its_own_way():
    assert asked_as("vllm", "m", "a") == "a"
    assert asked_as("sglang", "m", "a") == "m:a"
    assert asked_as("sglang", "m", "") == "m"

    async def main():
        async with engine("sglang") as (vllm, lora):
            assert await refused(lora.load("a", "/a")) == "lora_disabled"  # no such endpoint there
            assert vllm.calls[-1][0] == "/load_lora_adapter"

    asyncio.run(main())
