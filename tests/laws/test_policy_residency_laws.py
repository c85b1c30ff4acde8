"""Laws of residency: nothing leads out of the allowed regions, and a nearer engine that can is always asked first."""

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from sits.core.errors import AccessError, CapacityError
from sits.core.fleet import Fleet, Node, OpenAIEngine
from sits.core.fleet_routes import Regions, Residency, Target
from sits.core.replica import Replica
from sits.core.request import Request
from sits.policy.criteria import Match
from sits.policy.residency import Reaches, nearest, refusal
from sits.policy.route import Route, route

REGIONS = ("eu", "us", "ap")
ENGINES = tuple(f"e{i}" for i in range(6))
SOME = st.lists(st.sampled_from(REGIONS), min_size=1, max_size=2, unique=True).map(tuple)
PLACES = st.fixed_dictionaries({name: st.sampled_from((*REGIONS, "")) for name in ENGINES})
CLAUSES = st.lists(
    st.builds(
        Residency,
        name=st.sampled_from(("gdpr", "bank", "state")),
        regions=SOME,
        tenants=st.sampled_from(((), ("acme",), ("acme", "beta"))),
        models=st.sampled_from(((), ("m",), ("asked",))),
    ),
    max_size=3,
)
LATENCY = st.dictionaries(
    st.sampled_from(REGIONS),
    st.dictionaries(st.sampled_from(REGIONS), st.integers(1, 100), max_size=3),
    max_size=3,
)
TARGETS = st.builds(
    Target,
    model=st.sampled_from(("", "m")),
    engines=st.one_of(
        st.just(()), st.lists(st.sampled_from(ENGINES), min_size=1, max_size=4, unique=True).map(tuple)
    ),
    regions=st.one_of(st.just(()), SOME),
)
UP = st.sets(st.sampled_from(ENGINES))


def allows(clauses, tenant, names, target, match, engine, place):
    """The rules as they are written down."""
    if target.engines and engine not in target.engines:
        return False
    for clause in clauses:
        of_tenant = not clause.tenants or tenant in clause.tenants
        of_model = not clause.models or any(name in clause.models for name in names)
        if of_tenant and of_model and place not in clause.regions:
            return False
    return all(place in demanded for demanded in (target.regions, match.residency) if demanded)


ASKED = st.tuples(
    TARGETS,
    st.one_of(st.just(()), SOME),
    st.sampled_from(("acme", "beta", "other")),
    st.sampled_from(("asked", "plain")),
    st.sampled_from((*REGIONS, "")),
)


@settings(max_examples=250)
@given(PLACES, CLAUSES, LATENCY, st.integers(0, 60), st.lists(ASKED, min_size=1, max_size=6), UP)
def test_whoever_is_up_the_request_stays_where_it_is_allowed(places, clauses, latency, slack, requests, up):
    reaches = Reaches(places, Regions(latency=latency, slack=slack), clauses)
    for target, allowed, tenant, asked, region in [*requests, *requests]:
        # A route of one name has one target and one list of regions: the configuration says so.
        match = Match(route=f"{target}{allowed}", residency=allowed)
        may = {
            name
            for name, place in places.items()
            if allows(clauses, tenant, (asked, target.model), target, match, name, place)
        }
        reach = reaches.reach(target, match, tenant=tenant, asked=asked, region=region)
        assert {name for names in reach.classes for name in names} == may
        assert sum(map(len, reach.classes)) == len(may)
        assert_nearest_first(reach, places, latency, slack, region)
        chosen, decision = nearest(reach, lambda names: next((n for n in names if n in up), ""))
        assert chosen in (may & up or {""})
        assert decision.outcome.startswith("refused") == (chosen == "")


def distance(places, latency, region, name):
    place = places[name]
    if place == region and place:
        return 0
    return latency.get(region, {}).get(place, latency.get(place, {}).get(region, float("inf")))


def assert_nearest_first(reach, places, latency, slack, region):
    far = [[distance(places, latency, region, name) for name in names] for names in reach.classes]
    assert all(max(one) < min(two) for one, two in itertools.pairwise(far))
    assert all(max(one) <= min(one) + slack for one in far)


@settings(max_examples=120)
@given(PLACES, LATENCY, st.integers(0, 60), UP, st.sampled_from(REGIONS))
def test_no_farther_engine_while_a_nearer_one_can(places, latency, slack, up, region):
    reach = Reaches(places, Regions(latency=latency, slack=slack), ()).reach(
        Target(), tenant="t", asked="m", region=region
    )

    chosen, _ = nearest(reach, lambda names: max((n for n in names if n in up), default=""))
    if chosen:
        far = {name: distance(places, latency, region, name) for name in up}
        assert far[chosen] <= min(far.values()) + slack


@settings(max_examples=100)
@given(
    PLACES,
    CLAUSES.filter(bool),
    st.lists(st.sampled_from(ENGINES), max_size=6),
    UP,
    UP,
    st.sampled_from(REGIONS),
)
def test_retries_through_the_real_router_never_leave_the_allowed_regions(
    places, clauses, tried, up, serving, region
):
    replicas = {
        name: Replica(
            id=name, models=("m",) if name in serving else ("other",), healthy=name in up, region=place
        )
        for name, place in places.items()
    }
    request = Request(id="1", model="m", tenant="acme")
    reach = Reaches(places, Regions(), clauses).reach(Target(), tenant="acme", asked="m", region=region)
    seen = list(tried)
    while True:
        chosen, decision = nearest(
            reach,
            lambda names: (
                route(
                    request, [replicas[n] for n in names], Route(), need_tokens=1, now_ns=0, tried=seen
                ).choice
            ),
        )
        if not chosen:
            break
        assert allows(clauses, "acme", ("m", ""), Target(), Match(), chosen, places[chosen])
        assert chosen not in seen
        seen.append(chosen)
    applies = any(not c.tenants or "acme" in c.tenants for c in clauses if not c.models or "m" in c.models)
    assert decision.outcome == ("refused_residency" if applies else "refused_unavailable")


def test_a_refusal_names_the_clause_and_says_whether_to_try_again():
    places = {"a": "us", "b": "eu"}
    clause = Residency(name="gdpr", regions=("eu",), tenants=("acme",))
    reaches = Reaches(places, Regions(), [clause])
    reach = reaches.reach(Target(), tenant="acme", asked="m", region="us")
    assert reach.classes == (("b",),)
    down = refusal(reach, served=True)
    assert isinstance(down, CapacityError)
    assert (down.status, down.code) == (503, "refused_residency")
    assert down.retry_after_s
    assert "gdpr allows this request only in eu" in str(down)
    never = refusal(reach, served=False)
    assert isinstance(never, AccessError)
    nowhere = refusal(
        reaches.reach(Target(engines=("a",)), Match(route="x"), tenant="acme", asked="m", region=""),
        served=True,
    )
    assert isinstance(nowhere, AccessError)
    assert nowhere.status == 403
    assert refusal(reaches.reach(Target(), tenant="other", asked="m", region="us"), served=True) is None
    both = reaches.reach(Target(), Match(route="r", residency=("us",)), tenant="acme", asked="m", region="us")
    assert both.classes == ()
    assert both.clauses == ("gdpr", "route r")
    assert "no region at all" in str(refusal(both, served=True))


def test_the_places_of_a_fleet_are_its_engines_and_nodes_regions():
    fleet = Fleet(
        name="f",
        engines=(OpenAIEngine(name="a", url="http://h", region="eu"), OpenAIEngine(name="b", url="http://h")),
    )
    reach = Reaches.of(fleet).reach(Target(regions=("eu",)), tenant="t", asked="m", region="")
    assert reach.classes == (("a",),)
    assert Node(name="n", gpu="g", gpus=1, gpu_numa=(0,), gpu_memory=1, region="eu").region == "eu"


def test_what_callers_choose_is_not_remembered():
    reaches = Reaches(
        {"a": "eu"}, Regions(), [Residency(name="g", regions=("eu",), tenants=("acme",), models=("m",))]
    )
    for i in range(500):
        reaches.reach(Target(), tenant=f"t{i}", asked=f"made-up-{i}", region="eu")
    assert len(reaches._known) == 1


def test_a_clause_about_a_model_holds_for_what_the_request_became_too():
    """An arm of a release asks engines for another name; what that name may not do, the request may not do."""
    clause = Residency(name="g", regions=("eu",), models=("secret",))
    reaches = Reaches({"a": "us", "b": "eu"}, Regions(), [clause])

    def reach(asked, named="", model=""):
        return reaches.reach(Target(model=model), tenant="t", asked=asked, region="us", named=named).classes

    assert reach("chat") == (("a",), ("b",))
    assert reach("secret") == (("b",),)
    assert reach("chat", named="secret") == (("b",),)
    assert reach("chat", model="secret") == (("b",),)
    assert reach("chat", named="chat") == (("a",), ("b",))
