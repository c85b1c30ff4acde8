"""Faults injected into live traffic: whom they meet, how long they wait, what they answer."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway_heads import head_lines
from sits.core.breakpoints import AUTHORIZED, ROUTED
from sits.core.caller import ANONYMOUS
from sits.core.config import load_fleet
from sits.core.errors import ConfigErrors
from sits.core.fleet_inject import Injection
from sits.core.request import Chunk, Request
from sits.core.timeline import Timeline
from sits.core.units import MS
from sits.gateway.pipeline import Gateway
from sits.policy.inject import Injector, drawn
from sits.sim.loop import run_virtual

FLEET = """
name: t
injections:
  - {name: slow, match: {headers: [{name: x-chaos, exact: slow}]}, delay: 50ms}
  - {name: dead, match: {headers: [{name: x-chaos, exact: dead}]}, abort: 503}
  - {name: both, match: {headers: [{name: x-chaos, exact: both}]}, delay: 20ms, abort: 429}
  - {name: some, match: {endpoint: /v1/embeddings}, share: 25%, abort: 500}
engines:
  - {kind: openai, name: e, url: "http://a", models: [m]}
"""


class Engine:
    name = "e"

    def __init__(self):
        self.asked = 0

    async def generate(self, request, timeline):
        self.asked += 1
        yield Chunk(data=b"{}", tokens=1, last=True, content_type=b"application/json")

    async def close(self):
        pass


class Answer:
    def start(self, status, content_type, lines=b""):
        self.status, self.headers = status, head_lines(lines)

    def write(self, data):
        self.data = data

    def finish(self):
        pass


@pytest.mark.parametrize(
    ("chaos", "status", "waits_ms", "asked"),
    [
        (b"slow", 200, 50, 1),
        (b"dead", 503, 0, 0),
        (b"both", 429, 20, 0),
        (b"calm", 200, 0, 1),
        (b"", 200, 0, 1),
    ],
)
def test_a_request_waits_and_is_refused_as_ordered(chaos, status, waits_ms, asked):
    async def main(world):
        engine = Engine()
        gateway = Gateway(world, load_fleet(FLEET, "f"), {"e": engine})
        answer, line, start_ns = Answer(), Timeline(), world.now_ns()
        exchange = await gateway.handle(
            Request(id="8" * 32, model="m", stream=False), line, answer, headers={b"x-chaos": chaos}
        )
        assert (answer.status, world.now_ns() - start_ns, engine.asked) == (status, waits_ms * MS, asked)
        if status == 200:
            assert line.span_ns(AUTHORIZED, ROUTED) == waits_ms * MS
            assert answer.headers.get(b"x-sits-injected") == (b"slow" if waits_ms else None)
        else:
            assert b'"injected_fault"' in answer.data
            assert exchange.outcome == "failed"
            assert not line.has(ROUTED)

    run_virtual(main)


def test_without_injections_the_stage_is_not_there():
    async def main(world):
        gateway = Gateway(
            world,
            load_fleet(FLEET.split("injections", maxsplit=1)[0] + FLEET[FLEET.index("engines") :], "f"),
            {},
        )
        assert "inject_faults" not in [stage.__name__ for stage in gateway.stages]

    run_virtual(main)


@given(st.integers(0, 2**128 - 1))
def test_the_share_is_of_the_ids_and_each_id_is_always_treated_alike(number):
    injector = Injector(load_fleet(FLEET, "f"))
    draw = drawn(f"{number:032x}")
    told = {injector.decide(ANONYMOUS, "m", "", "/v1/embeddings", {}, draw).outcome for _ in range(2)}
    assert told == {"injected" if number < 2**126 else "none"}


@pytest.mark.parametrize(
    ("share", "draws"),
    [
        (0.0, []),
        (2.0**-33, [0.0]),
        (0.5, [0.0, 0.25]),
        (1.0, [0.0, 0.25, 0.5, 1 - 2**-32]),
        (float("nan"), []),
    ],
    ids=str,
)
def test_of_a_share_so_many_draws_are_met(share, draws):
    fleet = load_fleet(FLEET, "f")
    fleet = msgspec.structs.replace(fleet, injections=(Injection(name="x", share=share, abort=500),))
    injector = Injector(fleet)
    met = [
        draw
        for draw in (0.0, 0.25, 0.5, 1 - 2**-32)
        if injector.decide(ANONYMOUS, "m", "", "/v1/embeddings", {}, draw).choice
    ]
    assert met == draws


@pytest.mark.parametrize(
    ("line", "field", "hint"),
    [
        ("{name: x}", "injections[0]", "a delay, an abort"),
        ("{name: x, abort: 200}", "injections[0].abort", "400..599"),
        ("{name: x, delay: 1h}", "injections[0].delay", "10min"),
        ("{name: x, abort: 500, match: {region: mars}}", "injections[0].match.region", ""),
    ],
)
def test_what_cannot_work_is_refused_by_name(line, field, hint):
    with pytest.raises(ConfigErrors) as told:
        load_fleet(f"name: t\ninjections: [{line}]\n{FLEET[FLEET.index('engines') :]}", "f")
    assert any(one.field == field and hint in (one.hint or "") for one in told.value.errors)
