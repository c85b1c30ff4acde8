"""The guide to routes: its example loads, and says what the text says it does."""

import re
from pathlib import Path

from sits.core.caller import Caller, Claims
from sits.core.config import load_fleet
from sits.policy.match import Matcher
from sits.policy.shadow import warnings
from sits.policy.shift import plan_of

TEXT = (Path(__file__).parents[2] / "docs/routes.md").read_text(encoding="utf-8")
AROUND = """
name: guide
access:
  tenants: [{name: acme}, {name: beta}]
  jwt: [{name: corp, issuer: "https://id.acme.com", audience: [sits], jwks: "https://id.acme.com/k", tenant: acme, claims: [{name: plan}]}]
engines:
- {kind: openai, name: h100-0, url: "http://127.0.0.1:1", models: [llama-70b], region: eu-west}
- {kind: openai, name: l4-0, url: "http://127.0.0.1:2", models: [llama-8b], adapters: [chat-v2], region: eu-north}
- {kind: openai, name: l4-1, url: "http://127.0.0.1:3", models: [llama-8b], adapters: [chat-v2], region: us-east}
"""


def test_the_example_loads_and_decides_as_the_text_says():
    example, *_ = re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)
    fleet = load_fleet(AROUND + example)
    assert warnings(fleet) == []
    matcher = Matcher(fleet)
    pro = Caller(tenant="acme", claims=Claims(plan="pro"))

    def taken(caller, tier):
        return matcher.match(caller, "chat", "", "/v1/chat/completions", {b"x-tier": tier}).route

    assert taken(pro, b"gold") == "gold"
    assert taken(pro, b"golden") == "chat"
    assert taken(Caller(tenant="beta"), b"gold") == "chat"
    plan = plan_of(fleet)
    assert plan.tests == ("p99", "worse_errors", "error_rate", "adapter_loads")
    assert plan.steps == (0.01, 0.05, 0.25, 1.0)


def test_every_criterion_has_a_line():
    from sits.core.fleet_routes import RouteMatch

    rows = re.findall(r"^\| (`\w+`.*?) \|", TEXT[TEXT.index("| criterion |") :], re.MULTILINE)
    told = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert told == set(RouteMatch.__struct_fields__)
