"""Laws of access: what Cedar decides is what the words say, whatever is remembered, dropped or put in another order.

The oracle below reads the same policies in plain Python: it knows the tree of entities and the few conditions drawn here,
and nothing of how the product turns them into Cedar.  With SITS_SOAK=1 the number of cases grows fifty-fold.
"""

import os
from dataclasses import dataclass

import msgspec
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from sits.core.access_names import ACTIONS, GROUPS, names_of
from sits.core.access_policies import Compiled, read
from sits.core.caller import Caller, Claims
from sits.core.config import load_fleet
from sits.gateway.access import Access
from sits.policy.access import AccessPolicy

SOAK = 50 if os.environ.get("SITS_SOAK") == "1" else 1

FLEET = load_fleet(
    """
name: f
access:
  tenants: [{name: acme, teams: [red, blue]}, {name: beta, teams: [red]}, {name: gamma}]
  roles: [admin, dev, ops]
  headers: [x-a, x-b]
  keys:
    - {id: k1, tenant: acme, sha256: "DIGEST1"}
    - {id: k2, tenant: beta, sha256: "DIGEST2"}
  jwt: [{name: corp, issuer: i, audience: [a], jwks: "https://x.example/k", tenant: acme,
         claims: [{name: plan}, {name: groups, kind: list}]}]
nodes: [{name: n, gpu: g, gpus: 2, gpu_numa: [0, 0], gpu_memory: 80GiB, region: eu}]
models: [{name: m1, layers: 2, hidden: 8, heads: 2, kv_heads: 2, head_dim: 4, intermediate: 8, vocab: 9, weights: 1kB}]
adapters: [{name: fam, model: m1, count: 3}]
engines:
  - {name: e1, kind: emulated, node: n, gpus: [0], model: m1, adapters: [fam]}
  - {name: e2, kind: openai, url: "http://127.0.0.1:1", models: [m2, m3], adapters: [lone], region: us}
""".replace("DIGEST1", "a" * 64).replace("DIGEST2", "b" * 64)
)
NAMES = names_of(FLEET)
ENDPOINTS = ["/v1/completions", "/v1/embeddings"]
PLACES = {"fam-0": "m1", "fam-2": "m1", "lone": "m2"}


@dataclass(frozen=True)
class Rule:
    """One policy: effect, scope and condition, each as data that the oracle reads and the text is made of."""

    effect: str
    principal: tuple
    action: tuple
    resource: tuple
    when: tuple

    def text(self, name):
        scope = ", ".join(
            f"{variable}{_scope(*what)}"
            for variable, what in (
                ("principal", self.principal),
                ("action", self.action),
                ("resource", self.resource),
            )
        )
        return f'@id("{name}") {self.effect}({scope}){_when(*self.when)};'

    def matches(self, asked):
        return (
            _fits(self.principal, asked.principals())
            and _fits(self.action, [("Action", asked.action), ("Action", GROUPS.get(asked.action))])
            and _fits(self.resource, asked.resources())
            and _holds(self.when, asked)
        )


def _scope(how, kind="", name=""):
    if how == "any":
        return ""
    return f" is {kind}" if how == "is" else f' {how} {kind}::"{name}"'


def _when(how="true", *what):
    texts = {
        "true": "",
        "region": 'context has region && context.region == Region::"{0}"',
        "endpoint": 'context has endpoint && context.endpoint == Endpoint::"{0}"',
        "has region": "context has region",
        "header": 'context.headers has "{0}" && context.headers["{0}"] like "{1}*"',
        "plan": 'principal.claims has plan && principal.claims.plan == "{0}"',
        "group": 'principal.claims has groups && principal.claims.groups.contains("{0}")',
        "team": 'principal has team && principal.team == Team::"{0}"',
        "in team": "principal has team && principal.team in principal.tenant",
        "not tenant": 'principal.tenant != Tenant::"{0}"',
        "within": 'resource in Model::"{0}"',
    }
    text = texts[how].format(*what)
    return f" when {{ {text} }}" if text else ""


def _fits(what, chain):
    how, *rest = what
    if how == "any":
        return True
    if how == "is":
        return chain[0][0] == rest[0]
    return tuple(rest) in (chain[:1] if how == "==" else chain)


def _holds(when, asked):
    how, *what = when
    claims = asked.caller.claims
    team = f"{asked.caller.tenant}/{asked.caller.team}"
    headers = dict(zip(("x-a", "x-b"), asked.headers, strict=True))
    return {
        "true": lambda: True,
        "region": lambda: asked.region == what[0],
        "has region": lambda: bool(asked.region),
        "endpoint": lambda: asked.endpoint == what[0],
        "header": lambda: (headers[what[0]] or "").startswith(what[1]) and headers[what[0]] is not None,
        "plan": lambda: claims.get("plan") == what[0],
        "group": lambda: what[0] in claims.get("groups", ()),
        "team": lambda: bool(asked.caller.team) and team == what[0],
        "in team": lambda: bool(asked.caller.team),
        "not tenant": lambda: asked.caller.tenant != what[0],
        "within": lambda: ("Model", what[0]) in asked.resources(),
    }[how]()


@dataclass(frozen=True)
class Asked:
    """One request."""

    caller: Caller
    action: str
    model: str
    adapter: str
    region: str
    endpoint: str
    headers: tuple

    def principals(self):
        one = self.caller
        own = ("Key" if one.kind == "key" else "User", one.key_id or "anonymous")
        team = [("Team", f"{one.tenant}/{one.team}")] if one.team else []
        return [own, ("Tenant", one.tenant), *team, *(("Role", role) for role in one.roles)]

    def resources(self):
        if self.action == "admin":
            return [("Gateway", "f")]
        if not self.adapter:
            return [("Model", self.model)]
        family = [("Family", "fam")] if self.adapter.startswith("fam-") else []
        return [("Adapter", self.adapter), *family, ("Model", self.model)]

    def decide(self, decider):
        return decider.decide(
            self.caller,
            self.action,
            self.model,
            self.adapter,
            region=self.region,
            endpoint=self.endpoint,
            headers=self.headers,
        )


def oracle(rules, asked):
    """`outcome` and the names of the rules that decided."""
    fired = {name: rule.effect for name, rule in rules.items() if rule.matches(asked)}
    forbidden = sorted(name for name, effect in fired.items() if effect == "forbid")
    if forbidden:
        return "denied_by_policy", tuple(forbidden)
    return ("allowed", tuple(sorted(fired))) if fired else ("denied_by_default", ())


TENANTS, TEAMS, ROLES = ["acme", "beta", "gamma"], ["", "red", "blue"], ["admin", "dev", "ops"]
sets = st.lists(st.sampled_from(ROLES), unique=True, max_size=2).map(sorted).map(tuple)
claims = st.fixed_dictionaries(
    {},
    optional={
        "plan": st.sampled_from(["gold", "free"]),
        "groups": st.lists(st.sampled_from("abc"), unique=True, max_size=2).map(tuple),
    },
).map(Claims)
keys = st.builds(
    Caller, tenant=st.sampled_from(TENANTS), team=st.sampled_from(TEAMS), key_id=st.sampled_from(["k1", "k2"]),
    kind=st.just("key"), roles=sets,
)  # fmt: skip
users = st.builds(
    Caller, tenant=st.sampled_from(TENANTS), team=st.sampled_from(TEAMS),
    key_id=st.sampled_from(["corp/ann", "corp/bob", "corp/k1"]), kind=st.just("user"), roles=sets, claims=claims,
)  # fmt: skip
callers = st.one_of(keys, users, st.builds(Caller, tenant=st.sampled_from(TENANTS)))
resources = st.one_of(
    st.tuples(st.sampled_from(["m1", "m2", "m3", "made-up"]), st.just("")),
    st.sampled_from([(model, adapter) for adapter, model in PLACES.items()]),
)
requests = st.builds(
    lambda caller, action, resource, *more: Asked(caller, action, *resource, *more),
    callers,
    st.sampled_from([*ACTIONS, "infer", "infer", "embed"]),
    resources,
    st.sampled_from(["", "eu", "us", "nowhere"]),
    st.sampled_from(["", *ENDPOINTS]),
    st.tuples(*[st.sampled_from([None, "", "v1", "w2"])] * 2),
)

# Flat lists, so that every choice is as likely as another and "any" is frequent: most books then decide something.
principals = st.sampled_from(
    [("any",)] * 6
    + [("is", "Key"), ("is", "User"), ("is", "User")]
    + [
        ("==", "Key", "k1"),
        ("==", "User", "corp/ann"),
        ("==", "User", "corp/k1"),
        ("==", "User", "anonymous"),
    ]
    + [("in", "Tenant", name) for name in ("acme", "beta", "gamma")]
    + [("in", "Team", name) for name in ("acme/red", "acme/blue", "beta/red")]
    + [("in", "Role", name) for name in ("admin", "dev", "ops")]
)
scopes = st.sampled_from(
    [("any",)] * 6
    + [("is", "Model"), ("is", "Adapter")]
    + [(how, "Model", name) for how in ("==", "in") for name in ("m1", "m2")]
    + [(how, "Adapter", name) for how in ("==", "in") for name in ("fam-0", "lone")]
    + [("in", "Family", "fam"), ("in", "Family", "fam")]
)
actions = st.sampled_from(
    [("any",)] * 5
    + [("==", "Action", name) for name in ACTIONS if name != "admin"]
    + [("in", "Action", "use"), ("in", "Action", "use"), ("in", "Action", "manage")]
)
conditions = st.sampled_from(
    [("true",)] * 5
    + [("has region",), ("in team",), ("in team",), ("region", "eu"), ("region", "us")]
    + [("endpoint", name) for name in ENDPOINTS]
    + [("header", "x-a", ""), ("header", "x-a", "v"), ("header", "x-b", "w2")]
    + [("plan", "gold"), ("plan", "free"), ("group", "a"), ("group", "b")]
    + [("team", "acme/red"), ("team", "beta/red"), ("not tenant", "acme"), ("within", "m1"), ("within", "m2")]
)
effects = st.sampled_from(["permit", "permit", "forbid"])
rules = st.builds(Rule, effects, principals, actions, scopes, conditions)
admin_rules = st.builds(
    Rule, effects, principals, st.just(("==", "Action", "admin")), st.just(("any",)), st.just(("true",))
)
rulebooks = st.lists(st.one_of(rules, rules, rules, admin_rules), min_size=1, max_size=5).map(
    lambda all_: {f"p{i}": rule for i, rule in enumerate(all_)}
)


def aimed(asked, rule):
    """The request, changed so that the rule's scope and condition mostly hold: few would meet by chance."""
    one, how, what = asked.caller, *_padded(rule.principal)
    if how == "==":
        name = "" if what[1] == "anonymous" else what[1]
        kind = "key" if what[0] == "Key" else "user" if name else "anonymous"
        one = msgspec.structs.replace(one, key_id=name, kind=kind)
    elif how == "in":
        tenant, _, team = what[1].partition("/")
        given = {
            "Tenant": {"tenant": tenant},
            "Team": {"tenant": tenant, "team": team},
            "Role": {"roles": (tenant,)},
        }
        one = msgspec.structs.replace(one, **given[what[0]])
    _, what = _padded(rule.action)
    action = {"use": "embed", "manage": "deploy", None: asked.action}.get(what[1], what[1])
    how, what = _padded(rule.resource)
    model, adapter = {
        "Model": (what[1], ""),
        "Adapter": (PLACES.get(what[1], ""), what[1]),
        "Family": ("m1", "fam-2"),
    }.get(what[0], (asked.model, asked.adapter))
    how, *what = rule.when
    claims = {"plan": {"plan": what[0]}, "group": {"groups": (what[0],)}}.get(how) if what else None
    if claims and one.kind == "user":
        one = msgspec.structs.replace(one, claims=Claims(claims))
    if how in ("team", "in team"):
        tenant, _, team = (what or ["beta/blue"])[0].partition("/")
        one = msgspec.structs.replace(one, tenant=tenant, team=team)
    return Asked(
        one,
        action,
        model or asked.model,
        adapter or "",
        what[0] if how == "region" else asked.region,
        what[0] if how == "endpoint" else asked.endpoint,
        ("v1", "w2") if how == "header" else asked.headers,
    )


def _padded(what):
    return what[0], (*what[1:], None, None)


@st.composite
def cases(draw, most=8):
    """A rule book, and requests of which most are aimed at one of its rules."""
    book = draw(rulebooks)
    asked = []
    for one in draw(st.lists(requests, min_size=4, max_size=most)):
        target = draw(st.sampled_from([None, *book.values(), *book.values()]))
        asked.append(one if target is None else aimed(one, target))
    return book, asked


def compiled(book):
    """The policies of a rule book; books that the validator refuses (a scope no action has) are skipped."""
    found, problems = read(tuple(rule.text(name) for name, rule in book.items()), NAMES)
    assume(not problems)
    return AccessPolicy(NAMES, found)


def told(decision):
    return decision.outcome, decision.reasons["policies"]


@settings(max_examples=80 * SOAK)
@given(cases())
def test_cedar_decides_what_the_words_say(case):
    book, asked = case
    policy = compiled(book)
    for one in asked:
        assert told(one.decide(policy)) == oracle(book, one)


class _Everything:
    """Says of every entity that some policy names it."""

    def __contains__(self, _):
        return True


@settings(max_examples=30 * SOAK)
@given(cases())
def test_what_policies_cannot_see_changes_nothing(case):
    book, asked = case
    policy = compiled(book)
    known: Compiled = policy._compiled._replace(named=_Everything(), asked=frozenset({"claims", "context"}))
    whole = AccessPolicy(NAMES, known)
    for one in asked:
        assert told(one.decide(policy)) == told(one.decide(whole))


@settings(max_examples=30 * SOAK)
@given(cases(), st.randoms(use_true_random=False))
def test_the_order_of_policies_means_nothing(case, random):
    book, asked = case
    names = list(book)
    random.shuffle(names)
    one, other = compiled(book), compiled({name: book[name] for name in names})
    for request in asked:
        assert told(request.decide(one)) == told(request.decide(other))


@settings(max_examples=30 * SOAK)
@given(cases(), rules)
def test_a_forbid_only_takes_and_a_permit_only_gives(case, more):
    book, asked = case
    before, after = compiled(book), compiled(book | {"more": more})
    for one in asked:
        allowed = [told(one.decide(policy))[0] == "allowed" for policy in (before, after)]
        assert allowed[0] >= allowed[1] if more.effect == "forbid" else allowed[0] <= allowed[1]


class _World:
    def wall_ns(self):
        return 0

    now_ns = wall_ns


@settings(max_examples=30 * SOAK)
@given(cases(), st.data())
def test_what_is_remembered_is_what_would_be_decided(case, data):
    book, asked = case
    policy = compiled(book)
    access = Access(
        msgspec.structs.replace(FLEET, access=msgspec.structs.replace(FLEET.access, jwt=())), _World()
    )
    access.policy = policy
    access._served = NAMES.models
    small = data.draw(st.sampled_from([1500, 10**6]), label="memory, bytes")
    access._decisions._half = access._seen._half = small
    for i in data.draw(st.lists(st.integers(0, len(asked) - 1), min_size=5, max_size=40), label="order"):
        one = asked[i]
        got = access.decide(
            one.caller, one.action, one.model, one.adapter, one.region, one.endpoint, one.headers
        )
        assert told(got) == oracle(book, one)
    assert len(access._decisions) * 800 <= 2 * small


@settings(max_examples=100)
@given(st.sampled_from(sorted(NAMES.models)), st.integers(-2, 5), st.sampled_from(["fam", "fa", "fam-", ""]))
def test_families_are_told_by_name(model, number, family):
    name = f"{family}-{number}"
    assert NAMES.family_of(name) == ("fam" if family == "fam" and 0 <= number < 3 else "")
    assert NAMES.family_of(f"fam-0{number}") == ""
    assert not NAMES.has_adapter(model)
