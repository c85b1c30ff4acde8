"""Routes, regions and residency through the whole pipeline: where requests really go, what they are asked for, and records of it."""

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from sits.core.config import load_fleet
from sits.core.errors import EngineError
from sits.core.recorded import facts, recorded
from sits.core.request import Chunk, Request, Usage
from sits.core.timeline import Timeline
from sits.gateway.pipeline import Gateway
from sits.gateway.redecide import Redecider, as_recorded
from sits.sim.loop import run_virtual

FLEET = """
name: t
access:
  keys:
    - {id: a, tenant: acme, sha256: 780c00844f279a58fce645ca8e6fc1e36611198b7ed0ccefdbfb401dec997b97}
    - {id: g, tenant: globex, sha256: cac422eee4bd6113bfaae9f21c4f0e7c733aa46e9d4e135b6f8e590164d5baee}
routes:
  - {name: gold, match: {model: chat, headers: [{name: x-tier, exact: gold}]}, to: {model: big}}
  - name: split
    match: {model: chat}
    to: {model: small}
    arms: [{name: stable, weight: 3}, {name: next, weight: 1, to: {model: big}, fallback: stable}]
  - {name: only-here, match: {model: small, headers: [{name: x-here, present: true}]}, to: {engines: [eu-0]}}
regions: {here: eu, header: x-region, latency: {eu: {us: 80ms}}}
residency: [{name: gdpr, tenants: [acme], regions: [eu]}]
engines:
  - {kind: openai, name: eu-0, url: "http://a", models: [small], region: eu}
  - {kind: openai, name: eu-1, url: "http://b", models: [big], region: eu}
  - {kind: openai, name: us-0, url: "http://c", models: [small, big], region: us}
  - {kind: openai, name: us-1, url: "http://d", models: [small], region: us}
"""
KEYS = {"acme": b"Bearer sk-bench-key", "globex": b"Bearer sk-other-key"}
EU = {"eu-0", "eu-1"}


class Engine:
    def __init__(self, name, fails):
        self.name, self.fails, self.asked = name, fails, []

    async def generate(self, request, timeline):
        self.asked.append(request)
        await asyncio.sleep(0.001 * len(self.asked))
        if self.fails:
            raise EngineError(f"engine {self.name!r} is gone", code="engine_unreachable")
        yield Chunk(data=b"{}", tokens=1, last=True, usage=Usage(input=1, output=1))

    async def close(self):
        pass


class Answer:
    status = 0

    def start(self, status, content_type, lines=b""):
        self.status = status

    def write(self, data):
        self.data = data

    def finish(self):
        pass


HEADERS = st.fixed_dictionaries(
    {},
    optional={
        b"x-tier": st.sampled_from([b"gold", b"tin"]),
        b"x-here": st.just(b"1"),
        b"x-region": st.sampled_from([b"us", b"eu", b"mars"]),
    },
)
ASKED = st.lists(
    st.tuples(
        st.sampled_from(["acme", "globex"]),
        st.sampled_from(["chat", "small", "big", "none"]),
        st.sampled_from(["", "ann", "bob", "cyd", "dee"]),
        HEADERS,
    ),
    min_size=1,
    max_size=20,
)


@settings(max_examples=60, deadline=None)
@given(ASKED, st.sets(st.sampled_from(["eu-0", "eu-1", "us-0"])))
def test_requests_stay_where_they_may_be_and_records_say_why(asked, down):
    fleet = load_fleet(FLEET, "f.yaml")
    rows = {"decisions": [], "facts": []}

    async def main(world):
        engines = {one.name: Engine(one.name, one.name in down) for one in fleet.engines}
        gateway = Gateway(world, fleet, engines, record=lambda table, row: rows[table].append(row))

        async def ask(i, tenant, model, user, headers):
            await asyncio.sleep(0.002 * i)
            request = Request(
                id=f"{i:032x}", model=model, unit=user, stream=False, body=b'{"model":"%b"}' % model.encode()
            )
            answer = Answer()
            exchange = await gateway.handle(
                request, Timeline(), answer, headers={**headers, b"authorization": KEYS[tenant]}
            )
            return tenant, model, headers, exchange, answer

        ended = await asyncio.gather(*(ask(i, *fields) for i, fields in enumerate(asked)))
        for tenant, model, headers, exchange, answer in ended:
            went = {
                name
                for name, engine in engines.items()
                if exchange.request.id in {r.id for r in engine.asked}
            }
            if tenant == "acme":
                assert went <= EU  # whatever failed, and wherever the caller says to be
                if not went and model != "none":
                    assert answer.status in (403, 503)
                    assert b"residency: gdpr" in answer.data or b"model" in answer.data
            if model == "small" and b"x-here" in headers:
                assert went <= {"eu-0"}
            if model == "chat" and headers.get(b"x-tier") == b"gold":
                assert all(
                    r.model == "big" for e in engines.values() for r in e.asked if r.id == exchange.request.id
                )
            if model == "none":
                assert (went, answer.status) == (set(), 404)
            if (
                model == "small"
                and headers.get(b"x-region") == b"us"
                and tenant == "globex"
                and b"x-here" not in headers
            ):
                assert "us-1" in went or "us-0" in went  # the nearest first
        again = Redecider(fleet, world)
        known = {one.version: one for one in (facts(row[2]) for row in rows["facts"])}
        for record in (recorded(row[2]) for row in rows["decisions"]):
            assert again.decide(record, known) == as_recorded(record)

    run_virtual(main)


def test_the_body_asks_for_the_name_the_route_leads_to():
    async def main(world):
        fleet = load_fleet(FLEET, "f.yaml")
        engines = {one.name: Engine(one.name, fails=False) for one in fleet.engines}
        gateway = Gateway(world, fleet, engines)
        assert "chat" in gateway.catalog
        request = Request(id="1" * 32, model="chat", stream=False, body=b'{"model":"chat","x":1.50}')
        headers = {b"authorization": KEYS["globex"], b"x-tier": b"gold"}
        exchange = await gateway.handle(request, Timeline(), Answer(), headers=headers)
        assert (exchange.standing.match.route, exchange.replica.id) == ("gold", "eu-1")
        assert engines["eu-1"].asked[0].body == b'{"model":"big","x":1.50}'

    run_virtual(main)
