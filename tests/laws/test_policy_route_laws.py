"""Laws of routing: filter, score, pick."""

from hypothesis import given
from hypothesis import strategies as st

from sits.core.fleet import Route
from sits.core.replica import Replica
from sits.core.request import Request
from sits.policy.route import candidates_of, pick, route

NOW = 10**12
STALE = Route().stale_after


def replica(name, **more):
    return Replica(id=name, models=("m",), **more)


REPLICA = st.builds(
    Replica,
    id=st.just("x"),
    models=st.sampled_from([("m",), ("other",), ("m", "other")]),
    adapters=st.sampled_from([(), ("a",), ("a", "b")]),
    weight=st.sampled_from([0.0, 0.5, 1.0, 2.0]),
    healthy=st.booleans(),
    inflight_tokens=st.integers(0, 10**6),
    waiting=st.integers(0, 50),
    kv_usage=st.floats(0, 1),
    observed_ns=st.sampled_from([0, NOW - 2 * STALE, NOW - STALE // 2, NOW]),
)
FLEETS = st.lists(REPLICA, max_size=6).map(
    lambda rs: [
        Replica(**{**{f: getattr(r, f) for f in r.__struct_fields__}, "id": f"e{i}"})
        for i, r in enumerate(rs)
    ]
)
ROUTES = st.builds(
    Route,
    kind=st.sampled_from(["round_robin", "least_tokens"]),
    adapter_affinity=st.sampled_from([0.0, 1.0, 5.0]),
    prefix_affinity=st.sampled_from([0.0, 1.0, 5.0]),
    load_bound=st.sampled_from([1.0, 1.25, 2.0]),
)
REQUESTS = st.builds(
    Request,
    id=st.just("r"),
    model=st.sampled_from(["m", "other", "none"]),
    adapter=st.sampled_from(["", "a", "b", "c"]),
    prefix=st.sampled_from(["", "p1", "p2"]),
)


def ask(request, fleet, config, need=100, now=NOW, turn=None, tried=()):
    return route(request, fleet, config, need_tokens=need, now_ns=now, turn=turn, tried=tried)


@given(REQUESTS, FLEETS, ROUTES, st.integers(0, 10**6), st.integers(0, 9))
def test_the_chosen_one_can_serve_and_a_refusal_is_true(request_, fleet, config, need, turn):
    decision = ask(request_, fleet, config, need, turn=turn)
    able = [
        r
        for r in fleet
        if request_.model in r.models
        and (not request_.adapter or request_.adapter in r.adapters)
        and r.healthy
        and r.weight > 0
    ]
    if able:
        assert decision.outcome == "chosen"
        assert decision.choice in {r.id for r in able}
        assert {row["id"] for row in decision.reasons["candidates"]} == {r.id for r in able}
    else:
        assert decision.outcome.startswith("refused_")
        served = any(request_.model in r.models for r in fleet)
        assert (decision.outcome == "refused_model") == (not served)
    assert len(decision.reasons["filtered"]) == len(fleet) - len(able)


@given(REQUESTS, FLEETS, ROUTES, st.integers(0, 99), st.randoms())
def test_the_order_of_the_fleet_decides_nothing(request_, fleet, config, turn, shuffle):
    shuffled = fleet[:]
    shuffle.shuffle(shuffled)
    assert ask(request_, fleet, config, turn=turn).choice == ask(request_, shuffled, config, turn=turn).choice


@given(REQUESTS, FLEETS, ROUTES)
def test_stale_is_the_same_as_never_seen(request_, fleet, config):
    def aged(observed):
        fields = {r.id: {f: getattr(r, f) for f in r.__struct_fields__} for r in fleet}
        return [Replica(**{**fields[r.id], "observed_ns": observed}) for r in fleet]

    assert ask(request_, aged(0), config).choice == ask(request_, aged(NOW - STALE - 1), config).choice


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=6), st.integers(0, 10**5))
def test_with_nothing_scraped_the_least_tokens_win(tokens, need):
    fleet = [replica(f"e{i}", inflight_tokens=t) for i, t in enumerate(tokens)]
    decision = ask(Request(id="r", model="m"), fleet, Route(), need)
    assert decision.choice == f"e{tokens.index(min(tokens))}"


@given(st.integers(0, 10**5), st.integers(0, 40), st.integers(1, 40))
def test_equal_load_here_goes_to_the_engine_that_waits_less(tokens, waiting, more):
    busy = replica("a", inflight_tokens=tokens, waiting=waiting + more, observed_ns=NOW)
    free = replica("b", inflight_tokens=tokens, waiting=waiting, observed_ns=NOW)
    assert ask(Request(id="r", model="m"), [busy, free], Route()).choice == "b"


def test_a_stale_saturated_engine_is_unknown_not_full():
    stale = replica("a", kv_usage=1.0, waiting=90, observed_ns=NOW - STALE - 1)
    known = replica("b", kv_usage=0.9, observed_ns=NOW, inflight_tokens=500)
    decision = ask(Request(id="r", model="m"), [stale, known], Route())
    assert decision.choice == "a"
    row = {r["id"]: r for r in decision.reasons["candidates"]}
    assert row["a"]["fresh"] is False
    assert row["a"]["age_ns"] == STALE + 1
    assert row["a"]["engine"] == row["b"]["engine"]


@given(st.text(min_size=1, max_size=8), st.lists(st.integers(0, 2000), min_size=2, max_size=6))
def test_prefix_affinity_never_picks_a_replica_over_its_bound(prefix, tokens):
    fleet = [replica(f"e{i}", inflight_tokens=t) for i, t in enumerate(tokens)]
    config = Route(prefix_affinity=100.0, load_bound=1.25)
    decision = ask(Request(id="r", model="m", prefix=prefix), fleet, config, need=100)
    loads = {row["id"]: row["load_tokens"] for row in decision.reasons["candidates"]}
    assert loads[decision.choice] <= 1.25 * sum(loads.values()) / len(loads)


@given(st.text(min_size=1, max_size=8), st.integers(2, 6))
def test_a_key_keeps_its_home_when_another_replica_leaves(prefix, count):
    fleet = [replica(f"e{i}") for i in range(count)]
    config = Route(prefix_affinity=10.0)
    request = Request(id="r", model="m", prefix=prefix)
    home = ask(request, fleet, config).choice
    for gone in fleet:
        if gone.id != home:
            assert ask(request, [r for r in fleet if r is not gone], config).choice == home


def test_round_robin_takes_turns_whatever_the_load():
    fleet = [replica("c", inflight_tokens=9), replica("a"), replica("b", inflight_tokens=10**6)]
    config = Route(kind="round_robin")
    turns = [ask(Request(id="r", model="m"), fleet, config, turn=i).choice for i in range(6)]
    assert turns == ["a", "b", "c", "a", "b", "c"]


def test_idle_replicas_share_by_turn_and_tie_by_id_without_one():
    fleet = [replica("b"), replica("a")]
    request = Request(id="r", model="m")
    assert ask(request, fleet, Route()).choice == "a"
    assert [ask(request, fleet, Route(), turn=i).choice for i in range(4)] == ["a", "b", "a", "b"]


def test_what_was_tried_is_not_tried_again():
    fleet = [replica("a"), replica("b", inflight_tokens=10**6)]
    request = Request(id="r", model="m")
    assert ask(request, fleet, Route(), tried=("a",)).choice == "b"
    assert ask(request, fleet, Route(), tried=("a", "b")).outcome == "refused_unhealthy"


@given(st.integers(2, 8))
def test_a_heavier_replica_carries_more_before_it_counts_as_fuller(factor):
    light = replica("a", inflight_tokens=1000)
    heavy = replica("b", inflight_tokens=1000 * factor, weight=float(factor))
    assert ask(Request(id="r", model="m"), [light, heavy], Route(), need=1000).choice == "b"
    full = replica("b", inflight_tokens=2000 * factor, weight=float(factor))
    assert ask(Request(id="r", model="m"), [light, full], Route(), need=1000).choice == "a"


@given(
    REQUESTS,
    FLEETS,
    ROUTES,
    st.integers(0, 10**6),
    st.none() | st.integers(0, 9),
    st.sets(st.sampled_from(["e0", "e1", "e2"])),
)
def test_the_quick_choice_is_the_explained_one(request_, fleet, config, need, turn, tried):
    explained = ask(request_, fleet, config, need, turn=turn, tried=tried).choice
    able = candidates_of(fleet, request_.model, request_.adapter, tried)
    assert pick(request_, able, config, need, NOW, turn) == explained
    fewer = candidates_of(fleet, request_.model, request_.adapter).without(tried)
    assert pick(request_, fewer, config, need, NOW, turn) == explained


def test_what_only_rounding_makes_equal_goes_to_the_lesser_load():
    fleet = [replica("a", inflight_tokens=1001), replica("b", inflight_tokens=1000)]
    fleet.append(replica("c", inflight_tokens=10**18, weight=0.001))
    request = Request(id="r", model="m")
    for turn in range(3):
        decision = ask(request, fleet, Route(), turn=turn)
        rows = {row["id"]: row["total"] for row in decision.reasons["candidates"]}
        assert (rows["a"] == rows["b"], decision.choice) == (True, "b")
        assert pick(request, candidates_of(fleet, "m", ""), Route(), 100, NOW, turn) == "b"
