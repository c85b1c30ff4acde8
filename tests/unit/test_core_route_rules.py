"""The sections `routes`, `regions`, `residency` and `shift`: what is good comes back as written, what is not is told with the way out."""

import pytest

from sits.core.config import digest, dump_fleet, load_fleet, patch
from sits.core.errors import ConfigErrors
from sits.core.fleet_routes import Target
from sits.core.route_rules import merge

GOOD = """
name: t
access:
  tenants: [{name: acme, teams: [research]}, {name: beta}]
  jwt: [{name: corp, issuer: "https://id.acme.com", audience: [sits], jwks: "https://id.acme.com/k", tenant: acme, claims: [{name: plan}]}]
engines:
- {kind: openai, name: e0, url: "http://127.0.0.1:1", models: [llama-8b, llama-70b], adapters: [lora-2], region: eu-west}
- {kind: openai, name: e1, url: "http://127.0.0.1:2", models: [llama-8b], region: us-east}
routes:
- name: gold
  match:
    model: chat
    tenant: acme
    team: research
    region: eu-west
    endpoint: /v1/chat/completions
    headers: [{name: x-tier, regex: "gold|platinum"}]
    claims: [{name: plan, exact: pro}]
  to: {model: llama-70b, engines: [e0]}
- name: chat
  match: {model: chat}
  to: {model: llama-8b}
  arms: [{name: stable, weight: 95}, {name: canary, weight: 5, fallback: stable, to: {model: lora-2}}]
  residency: [eu-west]
regions: {here: eu-west, header: x-region, claim: plan, latency: {eu-west: {eu-north: 25ms, us-east: 85ms}}}
residency: [{name: gdpr, tenants: [acme], models: [chat], regions: [eu-west]}]
shift: {route: chat, arm: canary, steps: [2%, 5%, 25%, 100%], hold: 10min}
"""

WRONG = [
    ("engines: [e0]}", "engines: [e9]}", "routes[0].to.engines[0]", "did you mean 'e1'?"),
    ("model: llama-70b,", "model: lama-70b,", "routes[0].to.model", "did you mean 'llama-70b'?"),
    ("engines: [e0]}", "engines: [e1]}", "routes[0].to", "those that serve it: e0"),
    ("tenant: acme\n", "tenant: acmee\n", "routes[0].match.tenant", "did you mean 'acme'?"),
    ("team: research", "team: reserch", "routes[0].match.team", "did you mean 'research'?"),
    ("region: eu-west\n", "region: eu-wset\n", "routes[0].match.region", "did you mean 'eu-west'?"),
    ("endpoint: /v1", "endpoint: v1", "routes[0].match.endpoint", "write the path"),
    ("name: plan, exact", "name: plam, exact", "routes[0].match.claims[0].name", "did you mean 'plan'?"),
    ("exact: pro", "exact: pro, regex: p.*", "routes[0].match.claims[0]", "one of exact, one_of, regex"),
    ("gold|platinum", "(gold", "routes[0].match.headers[0].regex", "write \\( for the character"),
    ("name: x-tier, regex", "name: x-tier, present: true, regex", "routes[0].match.headers[0]", "one of exact"),
    ("name: x-tier", "name: X-Tier", "routes[0].match.headers[0].name", "lower case"),
    ("name: x-tier", "name: authorization", "routes[0].match.headers[0].name", "route by tenant, team or claim"),
    ("match: {model: chat}", "match: {model: chat, adapter: lora-3}", "routes[1].match.adapter", "did you mean 'lora-2'?"),
    ("match: {model: chat}", "match: {model: chat, adapter_digest: ab}", "routes[1].match.adapter_digest", "64 hex"),
    ("  to: {model: llama-8b}\n", "", "routes[1].arms[0].to.model", "'to.model' what it stands for"),
    ("weight: 95}, {name: canary, weight: 5", "weight: 0}, {name: canary, weight: 0", "routes[1].arms", "above 0"),
    ("fallback: stable", "fallback: stabl", "routes[1].arms[1].fallback", "did you mean 'stable'?"),
    ("weight: 95}", "weight: 95, fallback: canary}", "routes[1].arms[0].fallback", "have no fallback"),
    ("name: canary, w", "name: stable, w", "routes[1].arms[1].name", "first on line"),
    ("name: chat\n", "name: gold\n", "routes[1].name", "first on line"),
    ("  residency: [eu-west]", "  residency: [eu-wst]", "routes[1].residency[0]", "did you mean 'eu-west'?"),
    ("  residency: [eu-west]", "  residency: [us-east]", "routes[1].arms[1].to", "those that serve it: e0"),
    ("here: eu-west", "here: eu-wst", "regions.here", "did you mean 'eu-west'?"),
    ("{eu-north: 25ms", "{eu-west: 25ms", "regions.latency.eu-west.eu-west", "leave it out"),
    ("us-east: 85ms}}", "us-east: 85ms}, us-east: {eu-west: 9ms}}", "regions.latency.eu-west.us-east", "each pair once"),
    ("claim: plan, l", "claim: plann, l", "regions.claim", "did you mean 'plan'?"),
    ("header: x-region", "header: cookie", "regions.header", "route by tenant"),
    ("tenants: [acme], m", "tenants: [acm], m", "residency[0].tenants[0]", "did you mean 'acme'?"),
    ("models: [chat]", "models: [chatt]", "residency[0].models[0]", "did you mean 'chat'?"),
    ("models: [chat], regions: [eu-west]", "regions: []", "residency[0].regions", "name a region"),
    ("arm: canary", "arm: canry", "shift.arm", "did you mean 'canary'?"),
    ("shift: {route: chat", "shift: {route: chatt", "shift.route", "did you mean 'chat'?"),
    ("shift: {route: chat, arm: canary", "shift: {arm: stable", "shift.arm", "two arms"),
    ("shift: {route: chat", "shift: {route: chat, model: llama-8b", "shift.model", "leave one out"),
    ("shift: {route: chat", "shift: {model: llama-8b", "shift.model", "there are none"),
    ("[2%, 5%, 25%, 100%]", "[2%, 2%, 100%]", "shift.steps[1]", "each step is larger"),
    ("[2%, 5%, 25%, 100%]", "[]", "shift.steps", "1 to 100"),
    ("[2%, 5%, 25%, 100%]", "[0%, 5%]", "shift.steps[0]", "each step is larger"),
    ("hold: 10min", "hold: 10min, halt: {alpha: 0%}", "shift.halt.alpha", "1% is usual"),
    ("hold: 10min", "hold: 10min, min_requests: 0", "shift.min_requests", "within"),
]  # fmt: skip


def test_what_is_good_comes_back_as_written():
    fleet = load_fleet(GOOD)
    again = load_fleet(dump_fleet(fleet))
    assert again == fleet
    assert digest(again) == digest(fleet)
    assert fleet.routes[1].arms[1].to.model == "lora-2"
    assert fleet.regions.latency == {"eu-west": {"eu-north": 25_000_000, "us-east": 85_000_000}}
    assert fleet.shift.steps == (0.02, 0.05, 0.25, 1.0)


@pytest.mark.parametrize(("right", "wrong", "field", "hint"), WRONG)
def test_what_cannot_be_used_is_told_with_the_way_out(right, wrong, field, hint):
    assert right in GOOD
    with pytest.raises(ConfigErrors) as caught:
        load_fleet(GOOD.replace(right, wrong, 1))
    told = {error.field: error for error in caught.value.errors}
    assert field in told, str(caught.value)
    assert hint in (told[field].hint or ""), told[field].hint
    assert told[field].where.startswith("fleet.yaml:")


def test_an_arm_without_weight_is_no_problem_while_another_has_some():
    assert load_fleet(GOOD.replace("weight: 95", "weight: 0")).routes[1].arms[0].weight == 0


def test_a_patched_fleet_is_held_to_the_same_rules():
    fleet = load_fleet(GOOD)
    changed, _ = patch(fleet, "routes[chat].arms[canary].weight", "25")
    assert changed.routes[1].arms[1].weight == 25
    with pytest.raises(ConfigErrors, match="no engine named"):
        patch(fleet, "routes[gold].to.engines", "[nowhere]")


def test_an_arm_says_only_where_it_differs():
    base = Target(model="m", engines=("a",), regions=("eu",))
    assert merge(base, Target()) == base
    assert merge(base, Target(model="n")) == Target(model="n", engines=("a",), regions=("eu",))
    assert merge(Target(), base) == base


def test_ten_thousand_routes_are_the_most():
    with pytest.raises(ConfigErrors, match="10001 entries"):
        load_fleet(
            GOOD.replace("routes:\n", "routes:\n" + "".join(f"- {{name: r{i}}}\n" for i in range(9_999)))
        )
