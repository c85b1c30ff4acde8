"""One configuration in place of another while requests run, and pages that somebody else has to be asked for."""

import asyncio

import msgspec
import orjson
import pytest
from prometheus_client.parser import text_string_to_metric_families

from gateway_upstream import (
    CHAT,
    DONE,
    PLAIN,
    SSE_HEAD,
    STREAM,
    House,
    answer,
    chunked,
    live,
    post,
    says,
    until,
)
from sits.core.errors import CapacityError
from sits.core.fleet import Admit
from sits.engine.openai import OpenAIEngine as Engine
from sits.gateway.pipeline import Gateway
from sits.gateway.server import Server

GET = b"GET /metrics HTTP/1.1\r\nHost: h\r\n"


def next_of(house, names=None, generation="bbbb", **policy):
    """The gateway of a changed fleet; engines of the same name are taken over, a new one is where the last upstream is."""
    old = house.server.gateway
    names = names or list(old.engines)
    fleet = msgspec.structs.replace(
        old.fleet,
        policy=msgspec.structs.replace(old.fleet.policy, **policy),
        engines=tuple(msgspec.structs.replace(old.fleet.engines[0], name=name) for name in names),
    )
    engines = {
        name: old.engines.get(name) or Engine(name, house.upstreams[-1].url, world=old.world)
        for name in names
    }
    return Gateway(old.world, fleet, engines, house.rows, generation=generation, before=old)


class Gate:
    """Upstreams play bytes and numbers; this waits in between."""

    def __init__(self, house):
        self.event = asyncio.Event()
        original = house.up._play

        async def play(steps, writer):
            for step in steps:
                if step == "gate":
                    await self.event.wait()
                elif await original([step], writer) == "over":
                    return "over"
            return "next"

        house.up._play = play


SLOW = says(
    SSE_HEAD + chunked(STREAM[0]), "gate", b"".join(map(chunked, (*STREAM[1:-1], DONE))) + b"0\r\n\r\n"
)


@live
async def test_what_runs_ends_where_it_began_and_the_rest_goes_to_the_new_one():
    async with House(SLOW, None) as house:
        gate = Gate(house)
        old = house.server.gateway
        running = asyncio.ensure_future(house.raw(post(CHAT | {"stream": True}), until=DONE))
        await until(lambda: old.places.inflight_requests == 1)
        new = next_of(house, ["e0", "e2"], admit=Admit(max_inflight=1))
        house.server.swap(new)
        assert house.server.gateways == (new, old)
        assert new.places.inflight() == old.places.inflight(), "what the old one has in flight counts"
        refused = await house.raw(post(CHAT), until=b"refused_inflight")
        assert b"x-sits-generation: bbbb" in refused
        gate.event.set()
        assert (await running).endswith(DONE + b"\r\n0\r\n\r\n") or DONE in await running
        await until(lambda: house.server.gateways == (new,))
        assert new.places.inflight() == (0, 0)
        assert not house.server.gateway.engines["e0"]._closed, "it stays"
        assert old.engines["e1"]._closed, "it was removed"
        assert [row["outcome"] for row in house.rows] == ["refused", "completed"]
        page = (await house.raw(GET + b"Connection: close\r\n\r\n")).partition(b"\r\n\r\n")[2].decode()
        counts = {
            sample.labels["outcome"]: sample.value
            for family in text_string_to_metric_families(page)
            for sample in family.samples
            if sample.name == "sits_requests_total"
        }
        assert counts == {"completed": 1.0, "refused": 1.0}, "counters go on"


@live
async def test_limits_of_the_new_one_hold_on_connections_of_the_old_one():
    async with House() as house:
        reader, writer = await house.connect()
        writer.write(post(CHAT))
        await reader.readuntil(PLAIN)
        new = next_of(house)
        new.fleet = msgspec.structs.replace(
            new.fleet, gateway=msgspec.structs.replace(new.fleet.gateway, body_limit=40)
        )
        house.server.swap(new)
        writer.write(post(CHAT))
        assert b" 413 " in await reader.readline()
        writer.close()


@live
async def test_many_swaps_while_one_request_runs_leave_one_gateway():
    async with House(SLOW) as house:
        gate = Gate(house)
        running = asyncio.ensure_future(house.raw(post(CHAT | {"stream": True}), until=DONE))
        await until(lambda: house.server.gateway.places.inflight_requests == 1)
        for _ in range(10):
            house.server.swap(next_of(house))
        await until(lambda: len(house.server.gateways) == 2)
        gate.event.set()
        await running
        await until(lambda: len(house.server.gateways) == 1)


@live
async def test_draining_in_the_middle_of_a_swap_ends_both():
    async with House(SLOW, drain_timeout=20 * 10**9) as house:
        gate = Gate(house)
        running = asyncio.ensure_future(house.raw(post(CHAT | {"stream": True}), until=DONE))
        await until(lambda: house.server.gateway.places.inflight_requests == 1)
        house.server.swap(next_of(house))
        draining = asyncio.ensure_future(house.server.drain())
        await until(lambda: house.server.draining)
        gate.event.set()
        assert DONE in await running
        await draining
        assert house.rows[0]["outcome"] == "completed"


@live
async def test_a_page_that_has_to_be_asked_for_keeps_its_turn():
    async with House(says(answer(PLAIN))) as house:
        asked = asyncio.Event()

        async def page():
            asked.set()
            await go.wait()
            return b"the page\n"

        go = asyncio.Event()
        other = Server(house.gateway, house.gateway.fleet, page)
        house.host, house.port = await other.start()
        reader, writer = await house.connect()
        writer.write(GET + b"\r\n" + post(CHAT) + GET.replace(b"GET", b"HEAD") + b"\r\n")
        await asked.wait()
        assert house.up.hits == [], "the request behind it waits"
        go.set()
        assert b" 200 " in await reader.readline()
        await reader.readuntil(b"\r\n\r\nthe page\n")
        await reader.readuntil(PLAIN)
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"content-length: 9" in head
        writer.close()

        go.clear()
        reader, writer = await house.connect()
        writer.write(GET + b"\r\n")
        writer.transport.abort()
        go.set()
        await until(lambda: not other.connections)
        await other.drain()


@live
async def test_a_page_nobody_can_give_is_an_error_and_the_connection_lives_on():
    async with House() as house:

        async def page():
            raise CapacityError("the other process is gone", code="keeper_gone")

        other = Server(house.gateway, house.gateway.fleet, page)
        house.host, house.port = await other.start()
        reader, writer = await house.connect()
        writer.write(GET + b"\r\n" + GET + b"Connection: close\r\n\r\n")
        got = await reader.read()
        assert got.count(b"HTTP/1.1 503 ") == 2
        assert orjson.loads(got.rpartition(b"\r\n\r\n")[2])["error"]["code"] == "keeper_gone"
        writer.close()
        await other.drain()


@pytest.mark.parametrize("name", ["", "abc"])
def test_only_a_named_generation_is_told(name):
    @live
    async def run():
        async with House() as house:
            house.server.swap(next_of(house, generation=name))
            got = await house.raw(post(CHAT), until=PLAIN)
            assert (b"x-sits-generation" in got) is bool(name)

    run()
