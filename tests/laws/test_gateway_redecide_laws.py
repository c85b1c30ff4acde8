"""What was decided live is decided again from its record, bit for bit, whatever happened around it.

With SITS_SOAK=1 there are 10^6 decisions.
"""

import asyncio
import hashlib
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sits.core.config import load_fleet
from sits.core.errors import CallerError, EngineError
from sits.core.fleet import Admit, Arm, Fleet, OpenAIEngine, Policies, Release, Route
from sits.core.recorded import facts, recorded
from sits.core.request import Chunk, Request, Usage
from sits.core.timeline import Timeline
from sits.gateway.pipeline import Gateway
from sits.gateway.redecide import Redecider, as_recorded
from sits.sim.loop import run_virtual

SOAK = os.environ.get("SITS_SOAK") == "1"
CASES = 100_000 if SOAK else 60
"""Of some ten decisions each."""

MODELS = ("m", "n", "m-next")


class Flaky:
    """An engine that takes its time, and sometimes fails before its first byte."""

    def __init__(self, name, fails, takes_ms):
        self.name, self.fails, self.takes_ms, self.asked = name, fails, takes_ms, 0

    async def generate(self, request, timeline):
        self.asked += 1
        await asyncio.sleep(self.takes_ms / 1000)
        if self.fails and self.asked % self.fails == 0:
            raise EngineError(f"engine {self.name!r} fell over", code="engine_unreachable")
        yield Chunk(data=b"{}", tokens=1, last=True, usage=Usage(input=1, output=1))

    async def close(self):
        pass


class Silent:
    def start(self, status, content_type, lines=b""):
        pass

    def write(self, data):
        pass

    def finish(self):
        pass

    def abort(self):
        pass


ENGINES = st.lists(
    st.tuples(
        st.sets(st.sampled_from(MODELS), min_size=1), st.sampled_from([0, 0, 2, 3]), st.integers(0, 30)
    ),
    min_size=1,
    max_size=4,
)
ASKED = st.lists(
    st.tuples(
        st.integers(0, 20),
        st.sampled_from(MODELS),
        st.sampled_from(["", "ann", "bob", "cyd"]),
        st.integers(1, 500),
        st.sampled_from(["", "p1", "p2"]),
        st.sampled_from([0, 0, 40]),
    ),
    max_size=25,
)
SCRAPES = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 9), st.integers(0, 9), st.floats(0, 1)), max_size=6
)


def fleet_of(engines, kind, prefix, most):
    served = {name for models, _, _ in engines for name in models}
    arms = (Arm(name="stable", weight=3.0),)
    if "m-next" in served:
        arms += (Arm(name="next", weight=1.0, model="m-next", fallback="stable"),)
    return Fleet(
        name="t",
        policy=Policies(
            release=Release(arms=arms),
            route=Route(kind=kind, prefix_affinity=prefix),
            admit=Admit(max_inflight=most),
        ),
        engines=tuple(
            OpenAIEngine(name=f"e{i}", models=tuple(sorted(models)), weight=1.0 + i)
            for i, (models, _, _) in enumerate(engines)
        ),
    )


@pytest.mark.timeout(14_400 if SOAK else 120)
@settings(max_examples=CASES, deadline=None)
@given(
    ENGINES,
    ASKED,
    SCRAPES,
    st.sampled_from(["least_tokens", "round_robin"]),
    st.sampled_from([0.0, 2.0]),
    st.sampled_from([3, 1024]),
)
def test_every_recorded_decision_is_made_again(engines, asked, scrapes, kind, prefix, most):
    fleet = fleet_of(engines, kind, prefix, most)
    rows = {"decisions": [], "facts": []}

    async def main(world):
        made = {f"e{i}": Flaky(f"e{i}", fails, ms) for i, (_, fails, ms) in enumerate(engines)}
        gateway = Gateway(world, fleet, made, record=lambda table, row: rows[table].append(row))

        async def ask(i, wait_ms, model, user, tokens, prefix_id, deadline_ms):
            await asyncio.sleep(wait_ms / 1000)
            for engine, running, waiting, usage in scrapes[i % 3 : i % 3 + 1]:
                if f"e{engine}" in made:
                    gateway.places.observe(
                        f"e{engine}", running=running, waiting=waiting, kv_usage=usage, now_ns=world.now_ns()
                    )
            request = Request(
                id=f"r{i}",
                model=model,
                unit=user,
                prompt_tokens=tokens,
                prefix=prefix_id,
                stream=False,
                deadline_ns=world.now_ns() + deadline_ms * 1_000_000 if deadline_ms else 0,
            )
            await gateway.handle(request, Timeline(), Silent())

        await asyncio.gather(*(ask(i, *fields) for i, fields in enumerate(asked)))
        again = Redecider(fleet, world)
        known = {one.version: one for one in (facts(row[2]) for row in rows["facts"])}
        records = [recorded(row[2]) for row in rows["decisions"]]
        assert sorted(record.id for record in records) == sorted(f"r{i}" for i in range(len(asked)))
        for record in records:
            assert again.decide(record, known) == as_recorded(record)
            told = again.explain(record, known)
            assert told.verdict == as_recorded(record)
            assert [d.choice for d in told.decisions if d.policy == "route"] == [
                r.choice for r in record.routed
            ]

    run_virtual(main)


GUARDED = """
name: t
access:
  keys:
    - {{id: ours, tenant: acme, sha256: {0}}}
    - {{id: theirs, tenant: globex, sha256: {1}}}
  policies: ['permit(principal in Tenant::"acme", action in Action::"use", resource);']
quotas: [{{name: few, match: {{key: ours}}, requests: 4, per: 1d}}]
injections: [{{name: broken, match: {{headers: [{{name: x-break, exact: "1"}}]}}, share: 1, abort: 503}}]
routes: [{{name: chat, match: {{model: m}}}}]
engines: [{{kind: openai, name: e0, url: "http://a", models: [m]}}]
"""


def test_requests_that_end_before_an_engine_is_asked_are_decided_again_too():
    """No key, no permission, nothing that can be read, a fault, no such model, no quota, a client that leaves."""
    keys = [hashlib.sha256(key).hexdigest() for key in (b"sk-ours", b"sk-theirs")]
    fleet = load_fleet(GUARDED.format(*keys), "f.yaml")
    rows = {"decisions": [], "facts": []}
    ours, theirs = {b"authorization": b"Bearer sk-ours"}, {b"authorization": b"Bearer sk-theirs"}

    async def main(world):
        gateway = Gateway(
            world, fleet, {"e0": Flaky("e0", 0, 1)}, record=lambda table, row: rows[table].append(row)
        )
        for i, (headers, model, problem) in enumerate(
            [
                ({}, "m", None),
                ({b"authorization": b"Bearer sk-made-up"}, "m", None),
                (theirs, "m", None),
                (ours, "", CallerError("no JSON", code="invalid_json")),
                (ours | {b"x-break": b"1"}, "m", None),
                (ours, "made-up", None),
                *[(ours, "m", None)] * 6,
            ]
        ):
            request = Request(id=f"{i:032x}", model=model, prompt_tokens=9, stream=False)
            await gateway.handle(request, Timeline(), Silent(), headers=headers, problem=problem)
        left = Request(id="f" * 32, model="m", prompt_tokens=9, stream=False)
        leaving = asyncio.ensure_future(gateway.handle(left, Timeline(), Silent(), headers=ours))
        await asyncio.sleep(0)
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)
        known = {one.version: one for one in (facts(row[2]) for row in rows["facts"])}
        records = [recorded(row[2]) for row in rows["decisions"]]
        ends = {record.detail for record in records}
        assert ends >= {
            "",
            "missing_api_key",
            "invalid_api_key",
            "access_denied",
            "invalid_json",
            "injected_fault",
            "quota_exceeded",
        }
        again = Redecider(fleet, world)
        for record in records:
            assert again.decide(record, known) == as_recorded(record), record
        broken = next(record for record in records if record.detail == "injected_fault")
        told = {
            record.id: [
                one.choice for one in again.explain(record, known).decisions if one.policy == "inject"
            ]
            for record in records
        }
        assert {name for name, choices in told.items() if choices} == {broken.id}
        assert told[broken.id] == ["broken"]
        assert {record.detail for record in records if as_recorded(record).end == "denied"} == {
            "access_denied"
        }

    run_virtual(main)


def test_another_configuration_decides_otherwise():
    """The law above would hold for a re-decider that copies the record; this one shows that it decides."""
    engines = [({"m"}, 0, 1), ({"m"}, 0, 1)]
    fleet = fleet_of(engines, "round_robin", 0.0, 1024)
    rows = {"decisions": [], "facts": []}

    async def main(world):
        made = {f"e{i}": Flaky(f"e{i}", 0, 1) for i in range(2)}
        gateway = Gateway(world, fleet, made, record=lambda table, row: rows[table].append(row))
        for i in range(8):
            request = Request(id=f"r{i}", model="m", prompt_tokens=9, stream=False)
            await gateway.handle(request, Timeline(), Silent())
        known = {one.version: one for one in (facts(row[2]) for row in rows["facts"])}
        records = [recorded(row[2]) for row in rows["decisions"]]
        other = Redecider(fleet_of(engines[:1], "round_robin", 0.0, 1024), world)
        assert {other.decide(record, known).engine for record in records} == {"e0"}
        assert {as_recorded(record).engine for record in records} == {"e0", "e1"}
        full = Redecider(
            Fleet(name="t", policy=Policies(admit=Admit(max_inflight=1)), engines=fleet.engines), world
        )
        records[0].inflight_requests = 1
        assert full.decide(records[0], known).end == "refused_inflight"

    run_virtual(main)
