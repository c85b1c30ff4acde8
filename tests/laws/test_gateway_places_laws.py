"""Counters of several workers: they never leak, never multiply, and add up, whoever is killed and whatever is reloaded."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sits.core.errors import ConfigError, EngineError
from sits.core.replica import Replica
from sits.core.units import MS, SECOND
from sits.gateway.places import BREAKER_FAILURES, BREAKER_OPEN_NS, Place, Places
from sits.gateway.shared import TOKENS_MAX, Shared, assign_slots
from sits.policy.ease import LOWEST, RAMP_NS, eased

WORKERS, SLOTS = 3, 6
ENGINES = ("a", "b", "c", "d", "e")
TOKENS = st.one_of(st.integers(0, 5000), st.sampled_from((TOKENS_MAX, TOKENS_MAX + 1, 2**62, 2**70)))


class SeveralWorkers(RuleBasedStateMachine):
    """The model: per worker a list of (generation's places, replica, tokens) that are in flight."""

    @initialize(engines=st.sets(st.sampled_from(ENGINES), min_size=1))
    def begin(self, engines):
        self.now_ns = SECOND
        self.shared = Shared(WORKERS, SLOTS)
        self.slots = assign_slots(self.shared, {}, sorted(engines))
        self.workers = [self.places(worker, None) for worker in range(WORKERS)]
        self.flying = [[] for _ in range(WORKERS)]

    def places(self, worker, before):
        return Places(
            [Replica(id=name, models=("m",)) for name in self.slots],
            Place(self.shared, worker, self.slots),
            before=before,
            now_ns=self.now_ns,
        )

    def worker(self, data):
        return data.draw(st.integers(0, WORKERS - 1))

    @rule(data=st.data(), tokens=TOKENS)
    def take(self, data, tokens):
        worker = self.worker(data)
        places = self.workers[worker]
        replica = data.draw(st.sampled_from(places.replicas))
        places.refresh(self.now_ns)
        places.take(replica, tokens)
        self.flying[worker].append((places, replica, tokens))

    @precondition(lambda self: any(self.flying))
    @rule(data=st.data())
    def release(self, data):
        worker = data.draw(st.sampled_from([w for w, flying in enumerate(self.flying) if flying]))
        places, replica, tokens = self.flying[worker].pop(
            data.draw(st.integers(0, len(self.flying[worker]) - 1))
        )
        places.release(replica, tokens)

    @rule(data=st.data())
    def kill(self, data):
        """kill -9: whoever sees it dead clears its row, and a new one begins."""
        worker = self.worker(data)
        self.flying[worker] = []
        self.shared.clear(worker)
        self.workers[worker] = self.places(worker, None)

    @rule(engines=st.sets(st.sampled_from(ENGINES), min_size=1))
    def reload(self, engines):
        """A new generation, while requests of the old one are in flight."""
        try:
            self.slots = assign_slots(self.shared, self.slots, sorted(engines))
        except ConfigError:  # removed engines still have something in flight, so their slots are not free
            kept = {slot for name, slot in self.slots.items() if name in engines}
            lingering = {slot for slot in range(SLOTS) if self.shared.inflight(slot)[0]} - kept
            assert len(lingering) + len(engines) > SLOTS
            return
        self.workers = [self.places(worker, before) for worker, before in enumerate(self.workers)]

    @rule(data=st.data(), code=st.sampled_from(("engine_unreachable", "engine_died", "engine_500")))
    def fail(self, data, code):
        places = self.workers[self.worker(data)]
        places.failed(data.draw(st.sampled_from(places.replicas)), EngineError("x", code=code), self.now_ns)

    @rule(data=st.data())
    def answer(self, data):
        places = self.workers[self.worker(data)]
        replica = data.draw(st.sampled_from(places.replicas))
        places.reached(replica, self.now_ns)
        places.succeeded(replica, "m", "t")

    @rule(ns=st.sampled_from((1, MS, 100 * MS, SECOND, 20 * SECOND)))
    def later(self, ns):
        self.now_ns += ns
        for places in self.workers:
            places.refresh(self.now_ns)

    def counted(self):
        mine = [min(tokens, TOKENS_MAX) for flying in self.flying for _, _, tokens in flying]
        return len(mine), sum(mine)

    @invariant()
    def everybody_sees_the_same_totals_and_they_are_right(self):
        expected = self.counted()
        assert self.shared.inflight() == expected
        for places in self.workers:
            assert places.inflight() == (places.inflight_requests, places.inflight_tokens) == expected

    @invariant()
    def slots_add_up_to_the_total_and_none_is_negative(self):
        each = [self.shared.inflight(slot) for slot in range(SLOTS)]
        assert all(requests >= 0 and tokens >= 0 for requests, tokens in each)
        assert tuple(map(sum, zip(*each, strict=True))) == self.shared.inflight()
        assert len(set(self.slots.values())) == len(self.slots)

    @invariant()
    def a_worker_that_looks_sees_what_all_have_at_an_engine(self):
        self.now_ns += 10 * MS
        for places in self.workers:
            places.refresh(self.now_ns)
            for replica in places.replicas:
                assert replica.inflight_tokens == self.shared.inflight(self.slots[replica.id])[1]

    @invariant()
    def weights_are_shares_of_the_configured_one(self):
        for places in self.workers:
            assert all(LOWEST <= replica.weight <= 1.0 for replica in places.replicas)

    def teardown(self):
        """Nothing leaks: when all is released and the dead are cleared, every count is zero; down engines come back."""
        if not hasattr(self, "workers"):
            return
        for flying in self.flying:
            for places, replica, tokens in flying:
                places.release(replica, tokens)
        assert self.shared.inflight() == (0, 0)
        assert all(self.shared.inflight(slot) == (0, 0) for slot in range(SLOTS))
        for places in self.workers:
            places.refresh(self.now_ns + 2 * BREAKER_OPEN_NS)
            assert all(replica.healthy for replica in places.replicas)


SeveralWorkers.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
test_counters_of_several_workers = SeveralWorkers.TestCase


def fleet(workers=2, names=("a", "b")):
    shared = Shared(workers, 8)
    slots = assign_slots(shared, {}, names)
    return shared, [
        Places([Replica(id=n, models=("m",)) for n in names], Place(shared, w, slots)) for w in range(workers)
    ]


def refused(places, name="a", now_ns=SECOND, code="engine_unreachable", **whose):
    places.failed(places.by_id[name], EngineError("no", code=code), now_ns, **whose)


def healthy(places, now_ns, name="a"):
    places.refresh(now_ns)
    return places.by_id[name].healthy


def test_failures_of_all_workers_count_together_and_close_the_engine_to_all():
    _, workers = fleet()
    for i in range(BREAKER_FAILURES):
        assert healthy(workers[1], SECOND + i * 10 * MS)
        refused(workers[i % 2], now_ns=SECOND + i * 10 * MS)
    assert [healthy(w, SECOND + 60 * MS) for w in workers] == [False, False]
    assert all(healthy(w, SECOND + 60 * MS, "b") for w in workers)


def test_failures_that_an_idle_worker_had_long_ago_are_forgotten():
    _, workers = fleet()
    for _ in range(BREAKER_FAILURES - 1):
        refused(workers[0])
    refused(workers[1], now_ns=SECOND + 11 * SECOND)
    assert healthy(workers[1], 13 * SECOND)
    refused(workers[0], now_ns=13 * SECOND)
    assert healthy(workers[0], 13 * SECOND), "its own four are as old"


def test_one_probe_goes_and_the_others_wait_for_it_then_the_engine_is_eased_in():
    _, (one, two) = fleet()
    for _ in range(BREAKER_FAILURES):
        refused(one)
    assert not healthy(two, 2 * SECOND - 1)
    now_ns = 2 * SECOND + MS
    assert healthy(one, now_ns)
    assert healthy(two, now_ns)
    one.take(one.by_id["a"], 10)
    assert not healthy(one, now_ns + 2 * MS)
    assert not healthy(two, now_ns + 2 * MS), "nobody follows a probe"
    one.reached(one.by_id["a"], now_ns + 3 * MS)
    assert healthy(one, now_ns + 3 * MS)
    assert one.by_id["a"].weight == LOWEST
    one.refresh(now_ns + 3 * MS + RAMP_NS // 2)
    assert one.by_id["a"].weight == pytest.approx((1 + LOWEST) / 2)
    one.refresh(now_ns + 3 * MS + RAMP_NS)
    assert one.by_id["a"].weight == 1.0
    assert one.by_id["b"].weight == 1.0


def test_a_failed_probe_closes_it_again_at_once():
    _, (one, two) = fleet()
    for _ in range(BREAKER_FAILURES):
        refused(one)
    now_ns = 3 * SECOND
    assert healthy(two, now_ns)
    two.take(two.by_id["a"], 1)
    refused(two, now_ns=now_ns + MS)
    two.release(two.by_id["a"], 1)
    assert not healthy(two, now_ns + BREAKER_OPEN_NS)
    assert healthy(two, now_ns + BREAKER_OPEN_NS + 2 * MS)


def test_killed_connections_close_the_engine_to_that_tenant_and_model_only():
    _, (one, _) = fleet()
    for _ in range(BREAKER_FAILURES):
        refused(one, code="engine_died", model="m", tenant="t")
    assert healthy(one, SECOND + 5 * MS)
    assert one.closed_to("m", "t", SECOND + MS) == ("a",)
    assert one.closed_to("m", "other", SECOND + MS) == ()
    assert one.closed_to("n", "t", SECOND + MS) == ()
    assert one.closed_to("m", "t", SECOND + BREAKER_OPEN_NS) == (), "then it is tried again"
    refused(one, code="engine_garbage", model="m", tenant="t", now_ns=3 * SECOND)
    assert one.closed_to("m", "t", 3 * SECOND + MS) == ("a",)
    one.succeeded(one.by_id["a"], "m", "t")
    refused(one, code="engine_died", model="m", tenant="t", now_ns=5 * SECOND)
    assert one.closed_to("m", "t", 5 * SECOND) == ()


def test_tenants_that_kill_connections_cannot_fill_the_memory():
    _, (one, _) = fleet()
    for i in range(10_000):
        refused(one, code="engine_died", model="m", tenant=f"t{i}")
    assert len(one.trips) <= 4096


def test_a_new_engine_is_eased_in_and_a_known_one_goes_on():
    shared = Shared(1, 8)
    slots = assign_slots(shared, {}, ["a", "gone"])
    old = Places([Replica(id=n) for n in ("a", "gone")], Place(shared, 0, slots))
    old.observe("a", running=3, waiting=2, kv_usage=0.5, now_ns=SECOND, capacity_tokens=99)
    old.take(old.by_id["a"], 7)
    old.take(old.by_id["gone"], 5)
    slots = assign_slots(shared, slots, ["new", "a"])
    new = Places(
        [Replica(id=n) for n in ("a", "new")], Place(shared, 0, slots), before=old, now_ns=2 * SECOND
    )
    a = new.by_id["a"]
    assert (a.running, a.waiting, a.kv_usage, a.observed_ns, a.capacity_tokens) == (3, 2, 0.5, SECOND, 99)
    assert (a.inflight_tokens, a.weight) == (7, 1.0)
    assert new.by_id["new"].weight == LOWEST
    assert new.inflight() == (2, 12), "what the old generation still has in flight counts"
    old.release(old.by_id["a"], 7)
    old.release(old.by_id["gone"], 5)
    new.refresh(2 * SECOND + 2 * MS)
    assert (a.inflight_tokens, new.inflight()) == (0, (0, 0))


def test_an_engine_too_many_is_refused_by_name_of_the_field():
    shared = Shared(1, 2)
    with pytest.raises(ConfigError, match="room for 2") as caught:
        assign_slots(shared, {}, ["a", "b", "c"])
    assert caught.value.field == "engines"


def test_a_slot_is_given_on_only_when_it_is_empty_and_clean():
    shared = Shared(1, 2)
    slots = assign_slots(shared, {}, ["a", "b"])
    old = Places([Replica(id=n) for n in ("a", "b")], Place(shared, 0, slots))
    old.take(old.by_id["b"], 3)
    with pytest.raises(ConfigError):
        assign_slots(shared, slots, ["a", "c"])
    old.release(old.by_id["b"], 3)
    for _ in range(BREAKER_FAILURES):
        refused(old, "b")
    slots = assign_slots(shared, slots, ["a", "c"])
    new = Places([Replica(id=n) for n in ("a", "c")], Place(shared, 0, slots), before=old, now_ns=SECOND)
    assert healthy(new, SECOND + 2 * MS, "c"), "b was down, c is not b"


@pytest.mark.parametrize("age_ns", [-SECOND, 0, RAMP_NS // 3, RAMP_NS - 1, RAMP_NS, 99 * RAMP_NS])
def test_easing_in_is_monotone_and_bounded(age_ns):
    share = eased(10 * SECOND, 10 * SECOND + age_ns)
    assert LOWEST <= share <= 1.0
    assert share <= eased(10 * SECOND, 10 * SECOND + age_ns + MS)


def test_what_many_requests_met_together_is_counted_once_and_once_for_each_tenant():
    _, (one, _) = fleet()
    for code in ("engine_unreachable", "engine_died"):
        error = EngineError("no", code=code)
        error.counted = set()
        for i in range(4 * BREAKER_FAILURES):
            one.failed(one.by_id["a"], error, SECOND, model="m", tenant=f"t{i % 2}")
    assert healthy(one, SECOND + 5 * MS)
    assert {key: trips["a"].failures for key, trips in one.trips.items()} == {("m", "t0"): 1, ("m", "t1"): 1}
