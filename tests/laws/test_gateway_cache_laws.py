"""Laws of release consistency and the response cache: whoever gets an answer, it is the answer to that question, of that version.

The suite draws some 10^4 cases; with SITS_SOAK=1 10^6.
"""

import os

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from release_cases import (
    CONTROLS,
    HINTS,
    KEYS,
    NAMES,
    QUESTIONS,
    RAMP,
    SESSIONS,
    TENANTS,
    TTL,
    USERS,
    House,
    everyone,
    live,
    release,
)
from sits.core.fleet import ResponseCache
from sits.core.request import Usage
from sits.gateway import cached as stage
from sits.gateway.cache import OVERHEAD_BYTES, Answer, Cache
from sits.policy import cachekey
from sits.world import stream_generator

SOAK = os.environ.get("SITS_SOAK") == "1"
CASES = 500_000 if SOAK else 8_000


def config(scope):
    return ResponseCache(kind="exact", ttl=TTL, scope=scope, tools=True, memory=2**19, entries=600)


@pytest.mark.timeout(3600 if SOAK else 120)
@pytest.mark.parametrize("scope", ["tenant", "unit"])
def test_no_answer_crosses_tenants_units_releases_adapters_or_versions(scope):
    house = House(config(scope))
    live(house, stream_generator(7, scope), CASES)
    total = sum(house.outcomes.values())
    assert total == CASES
    told = " ".join(house.outcomes)
    for must in (
        "hit",
        "hit_other_form",
        "fallback",
        "kept_primary",
        "refused",
        "bypass_no_store",
        "refresh",
    ):
        assert must in told, f"no case of {must}: the law was not tried"
    hits = house.outcomes["hit"] + house.outcomes["hit_other_form"]
    assert hits > CASES // (4 if scope == "tenant" else 20)
    if SOAK:
        print(scope, total, house.outcomes)


@pytest.mark.parametrize(
    "broken",
    ["question", "tenant", "artefact", "unit", "endpoint", "fields", "form", "target", "flip"],
)
def test_the_cases_find_a_gateway_that_mixes_answers_up(monkeypatch, broken):
    """Each way of being careless is found within the suite's cases; else the law above would say nothing."""
    right, whole = cachekey.key_of, stage.Cached.keep
    house = House(config("tenant" if broken in ("tenant", "target", "endpoint") else "unit"))
    if broken == "question":
        monkeypatch.setattr(stage, "key_of", lambda *parts: right(*parts[:4], b""))
    elif broken == "unit":
        monkeypatch.setattr(stage, "key_of", lambda tenant, _, *parts: right(tenant, "", *parts))
    elif broken in ("tenant", "artefact", "endpoint"):
        place = {"tenant": 0, "artefact": 2, "endpoint": 3}[broken]
        monkeypatch.setattr(stage, "key_of", lambda *parts: right(*parts[:place], "", *parts[place + 1 :]))
        monkeypatch.setattr(Cache, "look_up", unfenced)
    elif broken == "fields":
        monkeypatch.setattr(cachekey, "IGNORED", (*cachekey.IGNORED, "logit_bias"))
    elif broken == "form":
        monkeypatch.setattr("sits.policy.cacheable.form_of", lambda *_: b"plain")
        monkeypatch.setattr(stage, "_SSE", b"never")
        monkeypatch.setattr(stage, "is_whole", lambda *_, **__: True)
    elif broken == "target":
        monkeypatch.setattr(stage.Cached, "keep", keep_as_primary(whole, house))
    else:
        monkeypatch.setattr("sits.policy.release._Plan.assignment", flipping())
    kind, words = FOUND.get(broken, (AssertionError, "got the answer of"))
    with pytest.raises(kind, match=words):
        live(house, stream_generator(7, "broken"), 20_000)


FOUND = {
    "form": ((AssertionError, KeyError, ValueError), None),  # a client that cannot read its answer
    "endpoint": ((KeyError, ValueError), None),
    "flip": (AssertionError, "disagree|flipped"),
}


def unfenced(cache, key, _tenant, _artefact, now_ns, age_ns=2**63):
    """A look-up without the two fences behind the key."""
    part = cache._ages.get(key)
    if part is None or now_ns - part.answers[key].stored_ns >= min(TTL, age_ns):
        return None
    return part.answers[key]


def keep_as_primary(keep, house):
    """An answer kept as the one that was asked for, whoever gave it."""

    def kept(cached, lookup, target, **more):
        primary = house.assigners[0].assign("llama", lookup.tenant, hint="canary").target
        return keep(cached, lookup, primary if target.arm == "stable" else target, **more)

    return kept


def flipping():
    from sits.policy.release import _Plan

    right, turns = _Plan.assignment, iter(range(10**9))

    def assignment(plan, kind, tenant, unit, hint):
        return right(plan, kind, tenant, f"{unit}{next(turns)}", hint)

    return assignment


class Service(RuleBasedStateMachine):
    """The same world with its steps chosen, and shrunk, by hypothesis."""

    @initialize(scope=st.sampled_from(("tenant", "unit")))
    def begin(self, scope):
        self.house = House(config(scope))
        self.share = 0.01
        self.units = [
            (t, u, s, k, "") for t in TENANTS[:4] for u in USERS[:4] for s in ("", "1") for k in ("",)
        ]
        self.dealt = self.deal()

    def deal(self):
        assign = self.house.assigners[0].assign
        return {who: assign("llama", *who).target.arm for who in self.units}

    @rule(
        case=st.tuples(st.integers(0, 1), st.integers(0, 30), st.integers(0, 3), st.sampled_from(NAMES)),
        who=st.tuples(*(st.sampled_from(pool) for pool in (TENANTS, USERS, SESSIONS, KEYS, HINTS))),
        way=st.integers(0, 7),
        control=st.integers(0, len(CONTROLS) - 1),
        fate=st.integers(0, 8),
    )
    def request(self, case, who, way, control, fate):
        self.house.request(*case, who, way, control, fate)

    @rule(question=st.integers(0, len(QUESTIONS) - 1), form=st.integers(0, 3), who=st.sampled_from(TENANTS))
    def asked_twice(self, question, form, who):
        """The second time the answer is there, unless it could not be kept at all."""
        person = (who, "ann", "s", "k", "")
        first = self.house.request(0, question, form, "llama", person)
        again = self.house.request(0, question, form, "llama", person, way=5)
        if first.startswith(("hit", "kept_primary")):
            assert again.startswith("hit")

    @rule(share=st.sampled_from((*RAMP, 0.0)))
    def ramp(self, share):
        """Only the delta moves, and only the way the weights went; the old share brings back the old assignment."""
        before, self.share = self.share, share
        self.house.turn_to(release(share), everyone())
        now = self.deal()
        for who, arm in now.items():
            if arm != self.dealt[who]:
                assert arm == ("canary" if share > before else "stable")
        self.dealt = now
        self.house.turn_to(release(before), everyone())
        back = self.deal()
        self.house.turn_to(release(share), everyone())
        assert self.deal() == now
        assert all(
            back[who] == now[who] or now[who] == ("canary" if share > before else "stable") for who in now
        )

    @rule(artefacts=st.sampled_from((("v1", "v2"), ("v2", "v1"), ("v2", "v3"))))
    def swap_artefacts(self, artefacts):
        self.house.turn_to(release(self.share, artefacts=artefacts), everyone())

    @rule(what=st.sampled_from((("llama-next", "canary"), ("llama", "stable"))))
    def outage(self, what):
        self.house.down ^= {what}

    @rule(seconds=st.sampled_from((1, 30, 61)))
    def wait(self, seconds):
        self.house.now_ns += seconds * 1_000_000_000

    @rule(tenant=st.sampled_from((None, *TENANTS)), worker=st.integers(0, 1))
    def purge(self, tenant, worker):
        cache = self.house.caches[worker].cache
        cache.purge(tenant=tenant)
        assert not cache.held() if tenant is None else tenant not in cache.held()

    @invariant()
    def bounded(self):
        for cached in self.house.caches if hasattr(self, "house") else ():
            check_books(cached.cache)


Service.TestCase.settings = settings(
    max_examples=60 if SOAK else 12,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestService = Service.TestCase


def check_books(cache):
    parts = cache._parts
    assert cache.cost == sum(part.cost for part in parts.values()) <= cache.config.memory
    assert len(cache) == sum(len(part.answers) for part in parts.values()) <= cache.config.entries
    for tenant, part in parts.items():
        assert part.tenant == tenant
        assert part.answers
        assert part.cost == sum(cache._cost(answer) for answer in part.answers.values()) <= part.bound
        assert (-part.bound, tenant) in cache._largest
    assert len(cache._largest) <= 65 + 4 * max(1, len(parts))


def answer(tenant, size, artefact="v1", stored_ns=0):
    return Answer(b"x" * size, b"application/json", Usage(1, 1), tenant, artefact, "stable", "e", stored_ns)


class Shelf(RuleBasedStateMachine):
    """The cache against a model: a list of what is in it, in the order of use."""

    def __init__(self):
        super().__init__()
        self.cache = Cache(
            ResponseCache(kind="exact", ttl=100, memory=2**16, entries=20, answer_limit=40_000)
        )
        self.model = []  # [tenant, key, size, artefact, stored_ns], the last used last
        self.now_ns = 0

    def cost(self, size):
        return max(-(-(2**16) // 20), size + OVERHEAD_BYTES)

    @rule(
        tenant=st.sampled_from("abc"),
        key=st.integers(0, 25),
        size=st.integers(1, 30_000),
        artefact=st.sampled_from(("v1", "v2")),
    )
    def store(self, tenant, key, size, artefact):
        name = f"{tenant}{key}".encode()
        kept = self.cache.store(name, answer(tenant, size, artefact, self.now_ns), self.now_ns)
        self.model = [e for e in self.model if e[1] != name and self.now_ns - e[4] < 100]
        self.model.append([tenant, name, size, artefact, self.now_ns])
        while sum(self.cost(e[2]) for e in self.model) > 2**16:
            held = {t: sum(self.cost(e[2]) for e in self.model if e[0] == t) for t in "abc"}
            most = max(held.values())
            loser = min(t for t in "abc" if held[t] == most)
            self.model.remove(next(e for e in self.model if e[0] == loser))
        assert kept == any(e[1] == name for e in self.model)

    @rule(
        tenant=st.sampled_from("abc"),
        key=st.integers(0, 25),
        artefact=st.sampled_from(("v1", "v2")),
        age=st.sampled_from((10, 2**63)),
    )
    def look(self, tenant, key, artefact, age):
        name = f"{tenant}{key}".encode()
        found = self.cache.look_up(name, tenant, artefact, self.now_ns, age)
        entry = next((e for e in self.model if e[1] == name and e[3] == artefact), None)
        old = 0 if entry is None else self.now_ns - entry[4]
        if entry is None or old >= 100 or old > age:
            assert found is None
            if entry is not None and old >= 100:
                self.model.remove(entry)
            return
        assert len(found.data) == entry[2]
        self.model.remove(entry)
        self.model.append(entry)

    @rule(ns=st.integers(1, 60))
    def wait(self, ns):
        self.now_ns += ns

    @rule(tenant=st.sampled_from((None, "a")), artefact=st.sampled_from((None, "v1")))
    def purge(self, tenant, artefact):
        gone = [e for e in self.model if tenant in (None, e[0]) and artefact in (None, e[3])]
        assert self.cache.purge(tenant=tenant, artefact=artefact) == len(gone)
        self.model = [e for e in self.model if e not in gone]

    @invariant()
    def agrees(self):
        check_books(self.cache)
        assert {key for part in self.cache._parts.values() for key in part.answers} == {
            e[1] for e in self.model
        }


Shelf.TestCase.settings = settings(max_examples=300 if SOAK else 40, stateful_step_count=60, deadline=None)
TestShelf = Shelf.TestCase


def test_a_tenant_within_an_equal_share_loses_nothing_to_a_flood():
    cache = Cache(ResponseCache(kind="exact", memory=2**20, entries=1000))
    for i in range(200):
        assert cache.store(b"quiet%d" % i, answer("quiet", 1000), 0)
    for i in range(20_000):
        cache.store(b"loud%d" % i, answer("loud", 1000 + i % 7), 0)
    assert cache.held()["quiet"][0] == 200
    assert cache.held()["loud"][0] > 200
    check_books(cache)


def test_a_rollback_leaves_unreachable_exactly_what_no_longer_answers():
    """Before, canary, back: each version's answers are found while it answers, and only then; a re-made one has none."""
    house = House(ResponseCache(kind="exact", tools=True))
    people = [(tenant, f"u{i}", "", "", "") for tenant in ("a", "b") for i in range(30)]
    question = next(i for i, (endpoint, _) in enumerate(QUESTIONS) if endpoint == "/v1/completions")

    def ask():
        return {house.request(0, question, 0, "llama", who) for who in people}

    for artefacts, share, labels in (
        (
            ("v1", "v2"),
            0.0,
            {"kept_primary_miss", "hit"},
        ),  # the first of each tenant asks, the others find it
        (("v1", "v2"), 0.0, {"hit"}),
        (("v1", "v2"), 1.0, {"kept_primary_miss", "hit"}),
        (("v1", "v2"), 0.0, {"hit"}),  # rolled back: all of the old answers are there, none of the canary's
        (("v1", "v2"), 1.0, {"hit"}),
        (("v1", "v3"), 1.0, {"kept_primary_miss", "hit"}),  # another canary under the same names
        (("v3", "v1"), 0.0, {"kept_primary_miss", "hit"}),  # an artefact of another name is another one
        (("v1", "v2"), 0.0, {"hit"}),
    ):
        house.turn_to(release(share, artefacts=artefacts, hinted=()), everyone())
        assert ask() == labels, (artefacts, share)
    told = house.caches[0].cache
    before = len(told)
    stable = house.assigners[0].assign("llama", "a", "u0").target.artefact
    assert told.purge(artefact=stable) == 2
    assert len(told) == before - 2
    assert ask() == {"kept_primary_miss", "hit"}
