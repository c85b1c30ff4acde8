"""Requests for runtime adapters through a whole gateway, on sockets, before engines that lie."""

import asyncio

import orjson
import pytest

from gateway_upstream import Rows, live, until
from lora_mock import BASE, LyingVllm
from sits.core.fleet import Fleet, OpenAIEngine
from sits.core.fleet import Gateway as GatewayConfig
from sits.core.fleet_adapters import AdapterEngine, AdapterProbe, RuntimeAdapter, RuntimeAdapters
from sits.core.units import MS, SECOND
from sits.engine.openai import OpenAIEngine as Engine
from sits.gateway.pipeline import Gateway
from sits.gateway.server import Server
from sits.world import RealWorld

NAMES = ("a", "b", "c")


def fleet_of(engines, store, **control):
    fields = {
        "wait": 5 * SECOND,
        "watch": 300 * MS,
        "backoff": 20 * MS,
        "backoff_max": 100 * MS,
        "probe": AdapterProbe(tolerance=0.05),
        "adapters": tuple(RuntimeAdapter(name=name, model="m", path=f"/disk/{name}") for name in NAMES),
    }
    return Fleet(
        name="t",
        gateway=GatewayConfig(listen="127.0.0.1:0", drain_timeout=SECOND, store=str(store)),
        runtime_adapters=RuntimeAdapters(
            engines=tuple(AdapterEngine(engine=name, slots=2) for name in engines), **(fields | control)
        ),
        engines=tuple(OpenAIEngine(name=name, url=one.url, models=("m",)) for name, one in engines.items()),
    )


class House:
    """A gateway before lying engines."""

    def __init__(self, store, count=1, **control):
        self.store, self.count, self.control = store, count, control

    async def __aenter__(self):
        disk = {f"/disk/{name}": name for name in NAMES}
        self.vllm = {f"e{i}": await LyingVllm(disk).start() for i in range(self.count)}
        self.world = RealWorld()
        self.rows = Rows()
        self.gateway = self.made(fleet_of(self.vllm, self.store, **self.control))
        self.server = Server(self.gateway, self.gateway.fleet)
        self.host, self.port = await self.server.start()
        return self

    def made(self, fleet, before=None):
        engines = {name: Engine(name, one.url, world=self.world) for name, one in self.vllm.items()}
        return Gateway(self.world, fleet, engines, self.rows, before=before)

    async def __aexit__(self, *_):
        await self.server.drain()
        for one in self.vllm.values():
            await one.stop()

    @property
    def keeper(self):
        return self.gateway.adapters.keeper

    def ready(self, name):
        return [r.id for r in self.gateway.places.replicas if name in r.adapters]

    async def ask(self, name, path="/v1/chat/completions", **more):
        """Status, headers and body of a request's answer."""
        body = orjson.dumps(
            {"model": name, "messages": [{"role": "user", "content": "hi"}], "prompt": "hi"} | more
        )
        reader, writer = await asyncio.open_connection(self.host, self.port)
        writer.write(
            f"POST {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n".encode()
            + body
        )
        head, _, rest = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
        lines = head.decode().split("\r\n")
        headers = {k.lower(): v.strip() for k, v in (line.split(":", 1) for line in lines[1:])}
        return int(lines[0].split()[1]), headers, rest

    async def text(self, name, **more):
        """The weights that answered a plain request."""
        status, _, body = await self.ask(name, **more)
        assert status == 200, body
        return orjson.loads(body)["choices"][0]["message"]["content"]


@live
async def test_a_request_waits_for_its_adapter_and_is_answered_by_it(tmp_path):
    async with House(tmp_path) as house:
        assert await house.text("a") == "[a]"
        assert await house.text("m") == f"[{BASE}]"
        status, headers, body = await house.ask("a", stream=True)
        assert (status, headers["x-sits-engine"]) == (200, "e0")
        assert b"[a]" in body
        assert b"[DONE]" in body
        assert sum(path == "/v1/load_lora_adapter" for path, _ in house.vllm["e0"].calls) == 1


@live
async def test_a_hundred_at_once_load_it_once(tmp_path):
    async with House(tmp_path, count=3) as house:
        for one in house.vllm.values():
            one.slow_s = 0.05
        assert set(await asyncio.gather(*(house.text("a") for _ in range(100)))) == {"[a]"}
        loads = [
            path for one in house.vllm.values() for path, _ in one.calls if path == "/v1/load_lora_adapter"
        ]
        assert len(loads) == 1


@live
async def test_an_adapter_that_cannot_be_proven_is_refused_with_its_reason_and_a_time(tmp_path):
    async with House(tmp_path, wait=300 * MS) as house:
        engine = house.vllm["e0"]
        engine.lies.add("load_ok")
        engine.disk.clear()
        status, headers, body = await house.ask("a")
        error = orjson.loads(body)["error"]
        assert (status, error["code"], error["param"]) == (503, "adapter_not_ready", "model")
        assert "e0: " in error["message"]  # it may be tried once more by now
        assert "it answers as the base model does" in error["message"]
        assert int(headers["retry-after"]) >= 1
        assert engine.asked == []  # nothing of a caller's ever went there
        row = house.rows[-1]
        assert (row["outcome"], row["adapter"], row["status"]) == ("refused", "a", 503)


@live
async def test_an_engine_that_has_lost_it_denies_it_once_and_another_answers(tmp_path):
    adapters = (RuntimeAdapter(name="a", model="m", path="/disk/a", copies=2),)
    async with House(tmp_path, count=2, adapters=adapters, watch=60 * SECOND) as house:
        await until(lambda: len(house.ready("a")) == 2)
        house.vllm["e0"].loaded.clear()
        for _ in range(4):
            assert await house.text("a") == "[a]"
        assert house.keeper.counts.withdrawn["e0", "a", "denied"] == 1
        assert [row["outcome"] for row in house.rows] == ["completed"] * 4
        await until(lambda: len(house.ready("a")) == 2)  # and it is loaded there again


@live
async def test_the_only_engine_that_has_lost_it_gives_a_clear_error_and_gets_it_back(tmp_path):
    async with House(tmp_path, watch=60 * SECOND) as house:
        assert await house.text("a") == "[a]"
        house.vllm["e0"].loaded.clear()
        status, headers, body = await house.ask("a")
        error = orjson.loads(body)["error"]
        assert (status, error["code"]) == (503, "adapter_not_ready")
        assert "does not exist" in error["message"]
        assert "retry-after" in headers
        assert await house.text("a") == "[a]"


@live
@pytest.mark.parametrize("stream", [False, True])
async def test_an_engine_that_answers_for_an_adapter_with_its_base_is_never_believed(tmp_path, stream):
    """VLLM_SKIP_MODEL_NAME_VALIDATION: after a restart, an unknown name is answered by the base model with 200."""
    async with House(tmp_path, watch=60 * SECOND) as house:
        engine = house.vllm["e0"]
        engine.lies.add("skips")
        assert await house.text("a") == "[a]"
        engine.loaded.clear()
        status, _, body = await house.ask("a", stream=stream)
        assert status == 503, body
        assert BASE.encode() not in body
        assert b"signed 'm'" in body
        assert house.keeper.counts.withdrawn["e0", "a", "names_base"] == 1
        assert await house.text("a") == "[a]"


@live
async def test_a_restart_takes_everything_out_at_once(tmp_path):
    async with House(tmp_path, watch=1 * SECOND) as house:
        assert await house.text("a") == "[a]"
        house.vllm["e0"].lies.add("skips")
        house.vllm["e0"].restart()
        # By the line that broke, or by the next look; it may be ready again before anybody has seen that it was not.
        await until(lambda: sum(house.keeper.counts.withdrawn.values()) == 1)
        assert await house.text("a") == "[a]"
        assert sum(house.keeper.counts.withdrawn.values()) == 1
        assert all(weights == "a" for name, weights in house.vllm["e0"].asked if name == "a")


@live
async def test_one_in_flight_keeps_its_slot(tmp_path):
    async with House(tmp_path) as house:
        engine = house.vllm["e0"]
        assert await house.text("a") == "[a]"
        assert await house.text("b") == "[b]"
        engine.go_on.clear()
        streaming = asyncio.ensure_future(house.ask("a", stream=True))
        await engine.holding.wait()
        assert await house.text("c") == "[c]"
        assert sorted(engine.loaded) == ["a", "c"]
        engine.go_on.set()
        status, _, body = await streaming
        assert (status, b"[DONE]" in body) == (200, True)
        assert all(use.inflight == 0 for use in house.gateway.adapters.desk.report().uses)


@live
async def test_a_400_of_the_callers_passes_through_and_blames_nobody(tmp_path):
    async with House(tmp_path) as house:
        assert await house.text("a") == "[a]"
        engine = house.vllm["e0"]

        async def picky(body, writer):
            return 400, {
                "error": {"message": "max_tokens is too large", "type": "BadRequestError", "code": 400}
            }

        kept, engine._complete = engine._complete, picky
        status, _, body = await house.ask("a")
        assert (status, b"too large" in body) == (400, True)
        engine._complete = kept
        assert house.ready("a") == ["e0"]


@live
async def test_answers_without_a_signature_are_taken(tmp_path):
    async with House(tmp_path) as house:
        house.vllm["e0"].lies.add("unsigned")
        assert await house.text("a") == "[a]"


@live
async def test_a_client_that_leaves_while_waiting_leaves_nothing_behind(tmp_path):
    async with House(tmp_path) as house:
        house.vllm["e0"].slow_s = 0.3
        body = b'{"model": "a", "messages": [{"role": "user", "content": "x"}]}'
        _, writer = await asyncio.open_connection(house.host, house.port)
        writer.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n%b"
            % (len(body), body)
        )
        desk = house.gateway.adapters.desk
        await until(lambda: desk.waiting == 1)
        writer.close()
        await until(lambda: desk.waiting == 0)
        await until(lambda: len(house.rows) == 1)
        assert house.rows[0]["outcome"] == "cancelled"


@live
async def test_the_list_of_models_has_them_and_the_page_tells_how_they_are(tmp_path):
    async with House(tmp_path) as house:
        await house.text("a")
        reader, writer = await asyncio.open_connection(house.host, house.port)
        writer.write(b"GET /v1/models HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
        names = {one["id"] for one in orjson.loads((await reader.read()).partition(b"\r\n\r\n")[2])["data"]}
        assert names == {"m", *NAMES}
        reader, writer = await asyncio.open_connection(house.host, house.port)
        writer.write(b"GET /metrics HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
        page = (await reader.read()).decode()
        assert 'sits_adapter_loads_succeeded_total{engine="e0",adapter="a"} 1' in page
        assert 'sits_adapter_state{engine="e0",adapter="a",state="ready"} 1' in page


@live
async def test_a_new_configuration_takes_over_what_was_proven(tmp_path):
    async with House(tmp_path) as house:
        assert await house.text("a") == "[a]"
        keeper, desk = house.keeper, house.gateway.adapters.desk
        new = (
            RuntimeAdapter(name="a", model="m", path="/disk/a"),
            RuntimeAdapter(name="b", model="m", path="/disk/c"),
        )
        old, house.gateway = (
            house.gateway,
            house.made(fleet_of(house.vllm, house.store, adapters=new), house.gateway),
        )
        assert old.adapters.desk is desk
        assert house.gateway.adapters.desk is not desk  # making one touches nothing
        house.server.swap(house.gateway)
        assert house.keeper is keeper
        assert house.ready("a") == ["e0"]
        assert await house.text("a") == "[a]"
        assert await house.text("b") == "[c]"
        assert [
            body["lora_name"] for path, body in house.vllm["e0"].calls if path == "/v1/load_lora_adapter"
        ] == ["a", "b"]
        status, _, body = await house.ask("c")
        assert (status, b"model_not_found" in body) == (404, True)


@live
async def test_no_wait_refuses_at_once_and_the_next_one_is_answered(tmp_path):
    async with House(tmp_path, wait=0) as house:
        status, _, body = await house.ask("a")
        assert (status, orjson.loads(body)["error"]["code"]) == (503, "adapter_not_ready")
        await until(lambda: house.ready("a"))
        assert await house.text("a") == "[a]"
