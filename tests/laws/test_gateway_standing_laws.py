"""What is remembered of a caller is what would be found out anew: whoever asks, for whatever, in whatever order, at whatever time."""

import functools
import hashlib

from hypothesis import given, settings
from hypothesis import strategies as st

from access_tokens import NOW_S
from sits.core.config import load_fleet
from sits.core.errors import CallerError, SitsError
from sits.core.request import Request
from sits.core.timeline import Timeline
from sits.gateway.exchange import Exchange
from sits.gateway.pipeline import Gateway
from sits.gateway.standing import authorize

SECOND = 10**9
SHA = {name: hashlib.sha256(name.encode()).hexdigest() for name in ("alpha", "beta", "brief")}
FLEET = f"""
name: t
access:
  keys:
    - {{id: a, tenant: acme, sha256: {SHA["alpha"]}}}
    - {{id: b, tenant: beta, sha256: {SHA["beta"]}}}
    - {{id: c, tenant: acme, sha256: {SHA["brief"]}, expires: 2027-01-16}}
  headers: [x-purpose]
  policies:
    - 'permit(principal in Tenant::"acme", action in Action::"use", resource);'
    - 'permit(principal in Tenant::"beta", action == Action::"infer", resource == Model::"small");'
    - 'forbid(principal, action, resource) when {{ context.headers has "x-purpose" && context.headers["x-purpose"] == "play" }};'
routes:
  - {{name: gold, match: {{model: chat, headers: [{{name: x-tier, exact: gold}}]}}, to: {{model: big}}}}
  - {{name: plain, match: {{model: chat, tenant: acme}}, to: {{model: small}}}}
regions: {{here: eu, header: x-region}}
engines:
  - {{kind: openai, name: e0, url: "http://a", models: [small, big], adapters: [ad], region: eu}}
  - {{kind: openai, name: e1, url: "http://b", models: [small], region: us}}
"""
OPEN = FLEET[: FLEET.index("access:")] + FLEET[FLEET.index("routes:") :].replace("acme", "default")


class Clock:
    wall_s = NOW_S

    def now_ns(self):
        return SECOND

    def wall_ns(self):
        return self.wall_s * SECOND

    def nonce(self):
        return 1


def header(name, *values):
    return st.fixed_dictionaries({}, optional={name: st.sampled_from(values)})


BEARERS = header(b"authorization", b"Bearer alpha", b"Bearer beta", b"Bearer brief", b"Bearer no", b"Basic x")
API_KEYS = header(b"x-api-key", b"alpha", b"beta", b"brief")
LOOKED_AT = header(b"x-purpose", b"play", b"work"), header(b"x-tier", b"gold", b"tin")
HEADERS = st.tuples(BEARERS, API_KEYS | st.just({}), *LOOKED_AT, header(b"x-region", b"us", b"mars")).map(
    lambda all_: {name: value for some in all_ for name, value in some.items()}
)
ASKED = st.lists(
    st.tuples(
        st.sampled_from([0, 0, 0, 86_400]),
        HEADERS,
        st.sampled_from(["small", "big", "chat", "made-up", ""]),
        st.sampled_from(["", "", "ad"]),
        st.sampled_from(["/v1/chat/completions", "/v1/embeddings"]),
        st.sampled_from(["default", "other"]),
        st.sampled_from([False, False, False, True]),
    ),
    max_size=30,
)


@functools.cache
def fleet_of(text):
    return load_fleet(text, "f.yaml")


def gateway_of(text, clock):
    return Gateway(clock, fleet_of(text), {"e0": None, "e1": None})


def found_by(gateway, headers, model, adapter, endpoint, tenant, broken):
    request = Request(id="1" * 32, model=model, adapter=adapter, endpoint=endpoint, tenant=tenant)
    problem = CallerError("cannot be read", code="broken") if broken else None
    exchange = Exchange(request, Timeline(), None, headers, problem, model, tenant)
    try:
        authorize(gateway, exchange)
    except SitsError as error:
        end = (type(error), error.code, str(error))
    else:
        end = ()
    at = exchange.standing
    access = None if at.access is None else at.access.outcome
    return end, exchange.tenant, at.caller, access, at.region, at.match, at.asked, at.name


@settings(max_examples=150, deadline=None)
@given(st.sampled_from([FLEET, OPEN]), ASKED)
def test_what_is_remembered_is_what_would_be_found_out(text, asked):
    clock = Clock()
    gateway, forgetful = gateway_of(text, clock), gateway_of(text, clock)
    assert gateway.access.open == (text is OPEN)
    for later_s, *what in asked:
        clock.wall_s += later_s
        forgetful.access.forget()
        known, before = found_by(gateway, *what), len(gateway.standings)
        assert known == found_by(forgetful, *what)
        assert known == found_by(gateway, *what)
        assert len(gateway.standings) == before
    assert len(gateway.standings) <= len(asked)


def test_only_names_that_are_served_and_callers_who_may_are_remembered():
    clock = Clock()
    gateway = gateway_of(FLEET, clock)
    place = ("", "/v1/chat/completions", "default", False)
    alpha, beta = {b"authorization": b"Bearer alpha"}, {b"authorization": b"Bearer beta"}
    for headers, model in ((alpha, "made-up"), (beta, "big"), ({b"authorization": b"Bearer no"}, "small")):
        found_by(gateway, headers, model, *place)
        assert not len(gateway.standings)
    found_by(gateway, alpha, "small", *place)
    found_by(gateway, beta, "small", *place)
    assert len(gateway.standings) == 2
    gateway.access.forget()
    assert not len(gateway.standings)


def test_what_is_remembered_ends_with_the_credential():
    clock = Clock()
    gateway = gateway_of(FLEET, clock)
    brief = ({b"authorization": b"Bearer brief"}, "small", "", "/v1/chat/completions", "default", False)
    assert found_by(gateway, *brief)[0] == ()
    assert len(gateway.standings) == 1
    clock.wall_s += 2 * 86_400
    assert found_by(gateway, *brief)[0][1] == "expired_api_key"
    assert not len(gateway.standings)
