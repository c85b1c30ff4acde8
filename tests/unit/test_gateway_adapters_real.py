"""Runtime adapters in a real vLLM: what it answers, and the whole life of an adapter through a gateway before it.

Skipped where there is none (`tests/real_vllm.py` says how to name one).  The facts asserted in the first test are the reasons why
the keeper is as it is: if a new vLLM changes one, the reason is to be looked at again.
"""

import asyncio
import json
import shutil
import urllib.request

import orjson
import pytest
from click.testing import CliRunner

from lora_files import write_adapter
from real_vllm import RealVllm, config, missing
from sits.core.config import dump_fleet
from sits.core.fleet import Fleet, OpenAIEngine
from sits.core.fleet import Gateway as GatewayConfig
from sits.core.fleet_adapters import AdapterEngine, AdapterProbe, RuntimeAdapter, RuntimeAdapters
from sits.core.units import MS, SECOND
from sits.engine.openai import OpenAIEngine as Engine
from sits.gateway.pipeline import Gateway
from sits.gateway.server import Server
from sits.world import RealWorld

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(missing()), reason=missing()),
    pytest.mark.timeout(1500),
]

FLAGS = ("--enable-lora", "--max-loras", "2", "--max-lora-rank", "8")


@pytest.fixture(scope="module")
def disk(tmp_path_factory):
    """Adapters: three good ones, one whose modules the model has not, one of too high a rank."""
    root = tmp_path_factory.mktemp("adapters")
    shape = config()
    for seed, name in enumerate(("a", "b", "c")):
        write_adapter(root / name, shape, seed=seed)
    write_adapter(root / "elsewhere", shape, seed=9, prefix="base_model.model.language_model.layers")
    write_adapter(root / "rank16", shape, seed=9, rank=16)
    return root


@pytest.fixture(scope="module")
def vllm(tmp_path_factory):
    log = tmp_path_factory.mktemp("vllm") / "log"
    with RealVllm(
        log, *FLAGS, VLLM_ALLOW_RUNTIME_LORA_UPDATING="True", VLLM_SKIP_MODEL_NAME_VALIDATION="1"
    ) as engine:
        yield engine


def load(vllm, name, path):
    return vllm.call("/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(path)})


def unload(vllm, name):
    return vllm.call("/v1/unload_lora_adapter", {"lora_name": name})


def listed(vllm):
    return {card["id"]: card["root"] for card in vllm.call("/v1/models")[1]["data"]}


def answer(vllm, name):
    """Who signed, and the likeliest first tokens."""
    asked = {
        "model": name,
        "prompt": "The capital of Italy is",
        "max_tokens": 1,
        "temperature": 0,
        "logprobs": 5,
    }
    told = vllm.call("/v1/completions", asked)[1]
    return told["model"], told["choices"][0]["logprobs"]["top_logprobs"][0]


def test_what_vllm_answers(vllm, disk):
    base = answer(vllm, "tiny")
    assert load(vllm, "a", disk / "a")[0] == 200
    assert listed(vllm)["a"] == str(disk / "a")
    signed, top = answer(vllm, "a")
    assert (signed, top != base[1]) == ("a", True)

    status, told = load(vllm, "a", disk / "a")
    assert (status, "already been loaded" in told["error"]["message"]) == (400, True)
    status, told = load(vllm, "none", "/does/not/exist")
    assert (status, "No adapter found" in told["error"]["message"]) == (404, True)
    status, told = load(vllm, "big", disk / "rank16")
    assert (status, "rank 16" in told["error"]["message"]) == (500, True)

    # A 200, a place in the list, a signature: and the base model's answer.
    assert load(vllm, "elsewhere", disk / "elsewhere")[0] == 200
    assert "elsewhere" in listed(vllm)
    assert answer(vllm, "elsewhere") == ("elsewhere", base[1])

    # More names than slots: nothing is refused, and nothing said.
    assert load(vllm, "b", disk / "b")[0] == load(vllm, "c", disk / "c")[0] == 200

    # Unloaded, and asked for all the same: 200, by the base model (VLLM_SKIP_MODEL_NAME_VALIDATION).
    assert unload(vllm, "a")[0] == 200
    assert unload(vllm, "a")[0] == 404
    assert answer(vllm, "a") == ("tiny", base[1])
    for name in ("elsewhere", "b", "c"):
        unload(vllm, name)
    assert list(listed(vllm)) == ["tiny"]


class House:
    """A gateway before the real engine."""

    def __init__(self, vllm, disk, store, **control):
        fields = {
            "wait": 20 * SECOND,
            "watch": 500 * MS,
            "probe": AdapterProbe(tolerance=0.005),
            "adapters": tuple(
                RuntimeAdapter(name=name, model="tiny", path=str(disk / name))
                for name in ("a", "b", "c", "elsewhere")
            ),
        }
        self.fleet = Fleet(
            name="real",
            gateway=GatewayConfig(listen="127.0.0.1:0", store=str(store), drain_timeout=SECOND),
            runtime_adapters=RuntimeAdapters(
                engines=(AdapterEngine(engine="v", slots=2),), **(fields | control)
            ),
            engines=(OpenAIEngine(name="v", url=vllm.url, models=("tiny",)),),
        )
        self.vllm = vllm

    async def __aenter__(self):
        world = RealWorld()
        self.gateway = Gateway(world, self.fleet, {"v": Engine("v", self.vllm.url, world=world)})
        self.server = Server(self.gateway, self.fleet)
        self.host, self.port = await self.server.start()
        return self

    async def __aexit__(self, *_):
        await self.server.drain()

    def ready(self, name):
        return name in self.gateway.places.by_id["v"].adapters

    async def until(self, true, within_s=60):
        async with asyncio.timeout(within_s):
            while not true():  # noqa: ASYNC110
                await asyncio.sleep(0.02)

    async def ask(self, name, **more):
        """Status and JSON of an answer."""
        return await asyncio.to_thread(self._ask, name, more)

    def _ask(self, name, more):
        body = {"model": name, "prompt": "The capital of Italy is", "max_tokens": 4, "temperature": 0} | more
        request = urllib.request.Request(
            f"http://{self.host}:{self.port}/v1/completions", json.dumps(body).encode()
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as told:
                return told.status, orjson.loads(told.read())
        except urllib.error.HTTPError as error:
            return error.code, orjson.loads(error.read())


def test_the_life_of_an_adapter(vllm, disk, tmp_path):
    async def main():
        async with House(vllm, disk, tmp_path) as house:
            texts = {}
            for name in ("tiny", "a", "b"):
                status, told = await house.ask(name)
                assert (status, told["model"]) == (200, name)
                texts[name] = told["choices"][0]["text"]
            assert len(set(texts.values())) == 3
            keeper = house.gateway.adapters.keeper
            assert keeper.counts.success_share() == 1.0

            # Two slots: the one used longest ago makes room.
            assert (await house.ask("c"))[0] == 200
            assert sorted(listed(vllm)) == ["b", "c", "tiny"]

            # Listed, signed, and the base model's answer: never routed.
            status, told = await house.ask("elsewhere")
            assert (status, told["error"]["code"]) == (503, "adapter_not_ready")
            assert "answers as the base model does" in told["error"]["message"]

            # Unloaded behind our back: the base model would answer for it with 200; its signature gives it away.
            await house.until(lambda: house.ready("c"))
            unload(vllm, "c")
            status, told = await house.ask("c")
            assert status == 503 or told["model"] == "c"
            status, told = await house.ask("c")
            assert (status, told["model"]) == (200, "c")

            # Files that change under a loaded adapter: vLLM would read them again one day, and never say so.
            kept = shutil.copytree(disk / "c", tmp_path / "kept")
            shutil.copytree(disk / "a", disk / "c", dirs_exist_ok=True)
            await house.until(lambda: not house.ready("c"), 10)
            status, told = await house.ask("c")
            assert (status, "under the same path" in told["error"]["message"]) == (503, True)
            shutil.copytree(kept, disk / "c", dirs_exist_ok=True)
            for name in ("a", "b", "c"):
                unload(vllm, name)

    asyncio.run(main())


def test_by_hand(vllm, disk, tmp_path):
    from sits.app.cli import cli

    house = House(vllm, disk, tmp_path)
    path = tmp_path / "fleet.yaml"
    path.write_text(dump_fleet(house.fleet))

    def run(*words):
        told = CliRunner().invoke(cli, ["adapters", words[0], str(path), *words[1:]], standalone_mode=False)
        assert told.exception is None, told.output
        return told.return_value, told.output

    assert "absent" in run("status")[1]
    code, text = run("load", "a")
    assert (code, "proven" in text) == (0, True), text
    code, text = run("load", "elsewhere")
    assert (code, "answers as the base model does" in text) == (1, True), text
    code, text = run("fingerprint", "a")
    assert (code, "fingerprint: fp1:" in text, "digest: sha256:" in text) == (0, True, True)
    assert run("fingerprint", "elsewhere")[0] == 1
    assert run("unload", "a")[0] == 0
    run("unload", "elsewhere")
    assert list(listed(vllm)) == ["tiny"]


def test_a_restart_is_noticed_at_once_and_survived(vllm, disk, tmp_path):
    async def main():
        async with House(vllm, disk, tmp_path) as house:
            status, told = await house.ask("a")
            assert (status, told["model"]) == (200, "a")
            text = told["choices"][0]["text"]
            await asyncio.to_thread(vllm.stop)
            await house.until(lambda: not house.ready("a"), 5)
            assert (await house.ask("a"))[0] == 503
            await asyncio.to_thread(vllm.start)
            await house.until(lambda: house.ready("a"), 60)
            status, told = await house.ask("a")
            assert (status, told["model"], told["choices"][0]["text"]) == (200, "a", text)

    asyncio.run(main())
