"""The cache's two halves in the pipeline: what is asked on the way in, what is kept on the way out."""

import orjson
import pytest

from release_cases import CHAT, answer_of, provenance
from sits.core.fleet import Arm, Release, ResponseCache
from sits.core.request import Usage
from sits.gateway.cached import Cached
from sits.policy.release import Assigner

BODY = orjson.dumps({"model": "llama", "messages": [], "temperature": 0})
STREAM = orjson.dumps({"model": "llama", "messages": [], "temperature": 0, "stream": True})
RELEASE = Release(
    arms=(Arm(name="stable", weight=1, fallback="old"), Arm(name="old", weight=0, model="llama-1"))
)


class House:
    def __init__(self, **config):
        self.cached = Cached(ResponseCache(kind="exact", **config))
        self.assigner = Assigner(RELEASE)
        self.given = self.assigner.assign("llama", "t", "ann")

    def ask(self, body=BODY, given=None, **more):
        return self.cached.ask(body, CHAT, asked="llama", tenant="t", assignment=given or self.given, **more)

    def answer(self, lookup, form=0, target=None, cut=None, **more):
        data, content_type = answer_of(["mine"], CHAT, form)
        self.cached.take(lookup, data[:40])
        self.cached.take(lookup, data[40:cut])
        told = {"status": 200, "content_type": content_type, "usage": Usage(3, 5), "engine": "e", "now_ns": 0}
        return self.cached.keep(lookup, target or self.given.target, **{**told, **more})


def test_asked_answered_and_given_again_byte_for_byte():
    house = House()
    first = house.ask()
    assert house.cached.find(first, house.given.target, 0) is None
    assert (first.verdict, first.header) == ("miss", b"miss")
    assert house.answer(first)
    again = house.ask()
    found = house.cached.find(again, house.given.target, 5_000_000_000)
    assert (found.data, found.content_type) == answer_of(["mine"], CHAT, 0)
    assert (again.verdict, again.header, found.stored_ns, found.arm, found.engine) == (
        "hit",
        b"hit",
        0,
        "stable",
        "e",
    )
    assert found.usage_again == Usage(3, 5, 3)
    assert {k: n for k, n in house.cached.counts.items() if n} == {"miss": 1, "hit": 1}


def test_a_plain_answer_given_again_as_a_stream_and_not_the_other_way_without_usage():
    house = House()
    first = house.ask()
    house.cached.find(first, house.given.target, 0)
    house.answer(first)
    again = house.ask(STREAM)
    found = house.cached.find(again, house.given.target, 0)
    assert (again.verdict, found.content_type) == ("hit_other_form", b"text/event-stream")
    assert provenance(found.data, CHAT, 1) == ["mine"]

    other = House()
    first = other.ask(STREAM)
    other.cached.find(first, other.given.target, 0)
    assert other.answer(first, form=1)
    assert other.cached.find(other.ask(), other.given.target, 0) is None


def test_an_answer_of_a_fallback_is_the_fallbacks():
    house = House()
    (old,) = house.given.fallbacks
    first = house.ask()
    assert house.cached.find(first, house.given.target, 0) is None
    assert house.cached.find(first, old, 0) is None
    assert house.answer(first, target=old)
    again = house.ask()
    assert house.cached.find(again, house.given.target, 0) is None
    found = house.cached.find(again, old, 0)
    assert (again.verdict, found.arm) == ("hit", "old")


@pytest.mark.parametrize(
    "more",
    [
        {"status": 201}, {"status": 503}, {"usage": None}, {"cut": -9}, {"content_type": b"text/event-stream"}, {"form": 1},
    ],
)  # fmt: skip
def test_what_is_not_a_whole_answer_in_the_form_that_was_asked_is_not_kept(more):
    house = House()
    first = house.ask()
    house.cached.find(first, house.given.target, 0)
    assert not house.answer(first, **more)
    assert house.cached.copying == len(house.cached.cache) == 0


def test_wishes():
    house = House()
    first = house.ask()
    house.cached.find(first, house.given.target, 0)
    house.answer(first)
    fresh = house.ask(cache_control=b"no-cache")
    assert house.cached.find(fresh, house.given.target, 1) is None
    assert (fresh.verdict, fresh.header) == ("refresh", b"miss")
    assert house.answer(fresh, now_ns=10_000_000_000)
    late = house.ask(cache_control=b"max-age=3")
    assert house.cached.find(late, house.given.target, 12_000_000_000).stored_ns == 10_000_000_000
    later = house.ask(cache_control=b"max-age=3")
    assert house.cached.find(later, house.given.target, 14_000_000_000) is None
    never = house.ask(cache_control=b"no-store")
    assert house.cached.find(never, house.given.target, 0) is None
    assert (never.copy, never.header) == (None, b"bypass")


def test_shared_by_unit_an_answer_needs_that_unit():
    house = House(scope="unit")
    nobody = house.assigner.assign("llama", "t", key="k")
    assert house.ask(given=nobody).verdict == "bypass_no_unit"
    first = house.ask()
    house.cached.find(first, house.given.target, 0)
    house.answer(first)
    bob = house.assigner.assign("llama", "t", "bob")
    assert house.cached.find(house.ask(given=bob), bob.target, 0) is None
    assert house.cached.find(house.ask(), house.given.target, 0) is not None


def test_copies_are_bounded_one_by_one_and_together():
    house = House(answer_limit=1000, memory=2**16)
    first = house.ask()
    house.cached.find(first, house.given.target, 0)
    house.cached.take(first, b"x" * 1001)
    assert (first.copy, house.cached.copying) == (None, 0)
    assert not house.answer(first)
    lookups = [house.ask() for _ in range(100)]
    for lookup in lookups:
        house.cached.find(lookup, house.given.target, 0)
        house.cached.take(lookup, b"x" * 900)
        assert house.cached.copying <= 2**16
    assert sum(lookup.copy is not None for lookup in lookups) == 2**16 // 900
    for lookup in lookups:
        house.cached.leave(lookup)
    assert house.cached.copying == 0
