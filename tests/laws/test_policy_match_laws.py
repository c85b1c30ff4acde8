"""Laws of matching: the tree decides as trying every route from the top does; a route told as shadowed never decides."""

import itertools
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sits.core.caller import Caller, Claims
from sits.core.fleet import Fleet, OpenAIEngine
from sits.core.fleet_inject import Injection
from sits.core.fleet_routes import (
    ClaimMatch,
    HeaderMatch,
    Regions,
    RouteArm,
    RouteMatch,
    RouteRule,
    Target,
)
from sits.policy import match as room
from sits.policy.criteria import NO_ROUTE
from sits.policy.inject import Injector
from sits.policy.match import Matcher
from sits.policy.shadow import shadowed, warnings

WORDS = ("a", "b")
REGEXES = ("a|b", "[bc]", "a.*", "(a|b)+c?", ".*")
NAMES = ("x-one", "x-two")
FEW = {
    "model": WORDS,
    "adapter": ("l1",),
    "adapter_digest": ("d1",),
    "tenant": WORDS,
    "team": ("t1",),
    "region": ("eu",),
    "endpoint": ("/v1/embeddings",),
}
name, word = st.sampled_from(NAMES), st.sampled_from(WORDS)
HEADERS = st.one_of(
    st.builds(HeaderMatch, name=name, exact=word),
    st.builds(HeaderMatch, name=name, prefix=st.sampled_from(("a", "ab"))),
    st.builds(HeaderMatch, name=name, regex=st.sampled_from(REGEXES)),
    st.builds(HeaderMatch, name=name, present=st.just(True)),
)
CLAIMS = st.one_of(
    st.builds(ClaimMatch, name=name, exact=word),
    st.builds(ClaimMatch, name=name, one_of=st.lists(word, min_size=1, max_size=2).map(tuple)),
    st.builds(ClaimMatch, name=name, regex=st.sampled_from(REGEXES)),
)
TEXTS = st.sampled_from([(field, value) for field, values in FEW.items() for value in values])
CRITERIA = st.one_of(TEXTS, TEXTS, HEADERS.map(lambda h: ("headers", h)), CLAIMS.map(lambda c: ("claims", c)))


def match_of(criteria):
    """Few criteria, so that several routes take one request."""
    given = {field: value for field, value in criteria if field in FEW}
    lists = {field: tuple(v for f, v in criteria if f == field) for field in ("headers", "claims")}
    return RouteMatch(**given, **lists)


MATCHES = st.lists(CRITERIA, max_size=3).map(match_of)
ROUTES = st.lists(MATCHES, min_size=1, max_size=10).map(
    lambda matches: tuple(RouteRule(name=f"r{i}", match=match) for i, match in enumerate(matches))
)
VALUES = st.sampled_from(("a", "b", "ab", "c"))
REQUESTS = st.fixed_dictionaries(
    {
        **{field: st.sampled_from((*values, "z")) for field, values in FEW.items()},
        "headers": st.fixed_dictionaries({}, optional=dict.fromkeys(NAMES, VALUES)),
        "claims": st.fixed_dictionaries(
            {}, optional=dict.fromkeys(NAMES, st.one_of(VALUES, st.lists(VALUES, max_size=3).map(tuple)))
        ),
    }
)


def fleet_of(rules, **more):
    return Fleet(name="f", engines=(OpenAIEngine(name="e", url="http://h"),), routes=rules, **more)


def asked(matcher, request):
    return matcher.match(
        Caller(tenant=request["tenant"], team=request["team"], claims=Claims(request["claims"])),
        request["model"],
        request["adapter"],
        request["endpoint"],
        {name.encode(): value.encode() for name, value in request["headers"].items()},
        region=request["region"],
        digest=request["adapter_digest"],
    ).route


def takes(match, request):
    """The rules as they are written down, with nothing precomputed, and Python's own `re`."""
    for field in FEW:
        if getattr(match, field) and getattr(match, field) != request[field]:
            return False
    for header in match.headers:
        value = request["headers"].get(header.name)
        if value is None:
            return False
        if header.exact and value != header.exact:
            return False
        if header.prefix and not value.startswith(header.prefix):
            return False
        if header.regex and not re.fullmatch(header.regex, value):
            return False
    for claim in match.claims:
        told = request["claims"].get(claim.name, ())
        texts = told if isinstance(told, tuple) else (told,)
        wanted = claim.one_of or (claim.exact,)
        if not any(re.fullmatch(claim.regex, t) if claim.regex else t in wanted for t in texts):
            return False
    return True


def first_that_takes(rules, request):
    return next((rule.name for rule in rules if takes(rule.match, request)), "")


@settings(max_examples=150)
@given(ROUTES, st.lists(REQUESTS, min_size=1, max_size=12))
def test_the_tree_decides_as_trying_every_route_from_the_top(rules, requests):
    matcher = Matcher(fleet_of(rules))
    for request in [*requests, *requests]:
        assert asked(matcher, request) == first_that_takes(rules, request)


@settings(max_examples=50)
@given(ROUTES, st.lists(REQUESTS, min_size=1, max_size=8))
def test_a_tree_that_may_not_grow_decides_the_same(rules, requests):
    kept, room.NODES_MAX = room.NODES_MAX, 1
    try:
        matcher = Matcher(fleet_of(rules))
        assert [asked(matcher, r) for r in requests] == [first_that_takes(rules, r) for r in requests]
        assert matcher._nodes == 1
    finally:
        room.NODES_MAX = kept


def aimed_at(match, request):
    """The request, changed to meet what `match` demands as far as that is a value."""
    facts = {field: getattr(match, field) or request[field] for field in FEW}
    headers = {h.name: h.exact or h.prefix or "a" for h in match.headers}
    claims = {c.name: c.exact or (*c.one_of, "a")[0] for c in match.claims}
    return facts | {"headers": request["headers"] | headers, "claims": request["claims"] | claims}


def singles():
    """Every match of one criterion, from a small world; and the match of everything."""
    yield RouteMatch()
    for field, values in FEW.items():
        yield from (RouteMatch(**{field: value}) for value in values)
    ways = [{"exact": "a"}, {"exact": "b"}, {"prefix": "a"}, {"prefix": "ab"}, {"present": True}]
    ways += [{"regex": text} for text in REGEXES]
    yield from (RouteMatch(headers=(HeaderMatch(name=n, **way),)) for n in NAMES for way in ways)
    ways = [
        {"exact": "a"},
        {"one_of": ("a", "b")},
        {"one_of": ("b", "c")},
        *({"regex": text} for text in REGEXES),
    ]
    yield from (RouteMatch(claims=(ClaimMatch(name=n, **way),)) for n in NAMES for way in ways)


def everyone():
    """Requests that tell any two criteria of the small world apart."""
    plain = dict.fromkeys(FEW, "z") | {"headers": {}, "claims": {}}
    one_fact = [{field: value} for field, values in FEW.items() for value in values]
    texts = ("a", "b", "ab", "c")
    headers = [{"headers": {n: text}} for n in NAMES for text in texts]
    claims = [{"claims": {n: told}} for n in NAMES for told in (*texts, ("a",), ("b", "c"), ())]
    return [plain, *(plain | change for change in [*one_fact, *headers, *claims])]


def test_of_any_two_criteria_what_the_shadowed_takes_the_other_takes_too():
    matches, requests = list(singles()), everyone()
    headers = [match.headers[0] for match in matches if match.headers]
    pairs = [RouteMatch(headers=pair) for pair in itertools.combinations(headers, 2)]
    told = 0
    for wide in [*matches, *pairs]:
        for narrow in matches:
            rules = (RouteRule(name="wide", match=wide), RouteRule(name="narrow", match=narrow))
            if list(shadowed(rules)):
                told += 1
                assert all(takes(wide, request) or not takes(narrow, request) for request in requests), (
                    wide,
                    narrow,
                )
    assert told > 2 * len(matches)


@settings(max_examples=60)
@given(ROUTES, st.lists(REQUESTS, min_size=1, max_size=6))
def test_a_shadowed_route_never_decides(rules, requests):
    hidden = {j: i for i, j in shadowed(rules)}
    assert all(i < j for j, i in hidden.items())
    for request in [*requests, *(aimed_at(rules[j].match, request) for j in hidden for request in requests)]:
        assert first_that_takes(rules, request) not in {rules[j].name for j in hidden}


@given(MATCHES, st.lists(MATCHES, max_size=4))
def test_the_same_route_again_is_always_told(match, between):
    rules = tuple(RouteRule(name=f"r{i}", match=one) for i, one in enumerate([match, *between, match]))
    assert len(rules) - 1 in {j for _, j in shadowed(rules)}


def test_a_route_without_criteria_hides_what_is_below_it():
    rules = (
        RouteRule(name="first", match=RouteMatch(model="a")),
        RouteRule(name="all"),
        RouteRule(name="late", match=RouteMatch(model="a", tenant="b")),
    )
    assert list(shadowed(rules)) == [(0, 2)]
    assert list(shadowed(rules[1:])) == [(0, 1)]
    (line,) = warnings(fleet_of(rules))
    assert "routes[2] 'late' never gets a request" in line


HEADER_ONE = HeaderMatch(name="x-one", exact="a")
PAIRS = {
    "nothing is asked": (RouteMatch(), RouteMatch(model="a"), True),
    "twice the same": (RouteMatch(tenant="a"), RouteMatch(tenant="a"), True),
    "one criterion more": (RouteMatch(model="a"), RouteMatch(model="a", headers=(HEADER_ONE,)), True),
    "one criterion fewer": (RouteMatch(model="a", headers=(HEADER_ONE,)), RouteMatch(model="a"), False),
    "nothing is asked below": (RouteMatch(model="a"), RouteMatch(), False),
    "another value": (RouteMatch(model="a"), RouteMatch(model="b"), False),
    "another fact": (RouteMatch(model="a"), RouteMatch(tenant="a"), False),
    "both overlap": (RouteMatch(model="a", tenant="a"), RouteMatch(model="a", team="t1"), False),
    "a prefix of it": (
        RouteMatch(headers=(HeaderMatch(name="x-one", prefix="a"),)),
        RouteMatch(headers=(HeaderMatch(name="x-one", exact="ab"),)),
        True,
    ),
    "some of the values": (
        RouteMatch(claims=(ClaimMatch(name="x-one", one_of=("a", "b")),)),
        RouteMatch(claims=(ClaimMatch(name="x-one", one_of=("b", "c")),)),
        False,
    ),
}


@pytest.mark.parametrize("pair", PAIRS)
def test_an_injection_that_can_never_fire_is_told_and_no_other(pair):
    early, late, told = PAIRS[pair]
    both = (
        Injection(name="early", match=early, share=0.01, delay=1),
        Injection(name="late", match=late, abort=503),
    )
    fleet = fleet_of((), injections=both)
    hidden = "injections[1] 'late' never fires: injections[0] 'early' takes all its requests first"
    assert [line.startswith(hidden) for line in warnings(fleet)] == [True] * told
    injector, fired = Injector(fleet), set()
    for request in [*everyone(), *(aimed_at(late, one) for one in everyone())]:
        caller = Caller(tenant=request["tenant"], team=request["team"], claims=Claims(request["claims"]))
        headers = {name.encode(): value.encode() for name, value in request["headers"].items()}
        asked_for = (request["model"], request["adapter"], request["endpoint"])
        fired |= {injector.decide(caller, *asked_for, headers, draw).choice for draw in (0.0, 0.5)}
    assert ("late" in fired) is not told


def test_many_routes_on_patterns_alone_are_told():
    rules = tuple(
        RouteRule(name=f"r{i}", match=RouteMatch(headers=(HeaderMatch(name="x-a", regex=f"v{i}.*"),)))
        for i in range(21)
    )
    (line,) = warnings(fleet_of(rules))
    assert line.startswith("21 routes ask for nothing but prefixes and patterns")


def test_hostile_names_grow_nothing():
    rules = tuple(RouteRule(name=f"r{i}", match=RouteMatch(model=f"m{i}", tenant="a")) for i in range(50))
    matcher = Matcher(fleet_of(rules))
    for i in range(2_000):
        assert matcher.match(Caller(tenant="a"), f"made-up-{i}", "", "/v1/completions", {}) is NO_ROUTE
    assert matcher._nodes == 1
    assert matcher.match(Caller(tenant="a"), "m7", "", "/v1/completions", {}).route == "r7"


def test_a_match_carries_the_arms_as_a_release_and_each_arms_target():
    rule = RouteRule(
        name="chat",
        match=RouteMatch(model="chat"),
        to=Target(model="big", regions=("eu",)),
        arms=(
            RouteArm(name="stable", weight=3),
            RouteArm(
                name="canary",
                weight=1,
                artefact="sha256:1",
                fallback="stable",
                to=Target(model="lora", engines=("e",)),
            ),
        ),
        unit="session",
        residency=("eu",),
    )
    found = Matcher(fleet_of((rule,))).match(Caller(), "chat", "", "/v1/completions", {})
    assert found.targets == {
        "chat/stable": Target(model="big", regions=("eu",)),
        "chat/canary": Target(model="lora", engines=("e",), regions=("eu",)),
    }
    assert (found.release.unit, found.release.salt) == ("session", "chat")
    assert [(arm.name, arm.weight, arm.model, arm.fallback) for arm in found.release.arms] == [
        ("chat/stable", 3, "big", ""),
        ("chat/canary", 1, "lora", "chat/stable"),
    ]
    assert found.residency == ("eu",)
    assert found.decision.choice == "chat"
    assert found.decision.reasons == {"route": 0, "criteria": 1}


@given(
    st.sampled_from(("", "eu", "us", "mars")),
    st.one_of(st.none(), st.sampled_from(("eu", "us", "mars")), st.just(("eu", "us"))),
)
def test_a_caller_is_where_the_header_says_then_the_claim_then_here(header, claim):
    regions = Regions(here="us", header="x-region", claim="where", latency={"eu": {"us": 1}})
    matcher = Matcher(fleet_of((), regions=regions))
    claims = Claims({} if claim is None else {"where": claim})
    found = matcher.region_of(Caller(claims=claims), {b"x-region": header.encode()} if header else {})
    known = [word for word in (header, claim) if word in ("eu", "us")]
    assert found == (known[0] if known else "us")
    assert {b"x-region"} == matcher.headers
    assert {"where"} == matcher.claims
