"""The section `access`: what can be written there, and what each mistake is told."""

import hashlib
import re
from pathlib import Path

import pytest

import sits
from core_fleets import at
from sits.core.access_names import ACTIONS, GROUPS, names_of, schema_text
from sits.core.access_policies import compile_policies, read
from sits.core.caller import Caller, Claims
from sits.core.config import digest, dump_fleet, load_fleet
from sits.core.errors import ConfigError, ConfigErrors
from sits.core.remember import Remember
from sits.policy.access import AccessPolicy

A, B = "a" * 64, "b" * 64
REST = """
adapters: [{name: fam, model: llama, count: 12}]
models: [{name: llama, layers: 2, hidden: 8, heads: 2, kv_heads: 2, head_dim: 4, intermediate: 8, vocab: 9, weights: 1kB}]
nodes: [{name: n, gpu: g, gpus: 1, gpu_numa: [0], gpu_memory: 80GiB, region: eu}]
engines:
  - {name: e, kind: emulated, node: n, gpus: [0], model: llama, adapters: [fam]}
  - {name: o, kind: openai, url: 'http://127.0.0.1:1', models: [qwen], adapters: [lone], region: us}
"""
WHOLE = f"""\
name: f
gateway: {{keys: ['acme:plain-secret']}}
access:
  tenants: [{{name: acme, teams: [research, support]}}, {{name: beta}}]
  roles: [operator, viewer]
  keys:
    - {{id: ci, tenant: acme, team: research, roles: [viewer], sha256: {A}, expires: 2027-01-31}}
  jwt:
    - name: corp
      issuer: https://id.acme.com
      audience: [sits, gateway]
      jwks: https://id.acme.com/keys
      algorithms: [RS256, EdDSA]
      tenant_claim: tid
      tenants: [acme]
      team_claim: team
      roles_claim: realm_access.roles
      claims: [{{name: plan}}, {{name: groups, claim: 'https://acme.com/groups', kind: list}}]
      clock_skew: 10s
      refresh: 1min
  headers: [x-project]
  policies:
    - |
      // two in one text
      @id("research") permit(principal in Team::"acme/research", action in Action::"use", resource in Model::"llama");
      forbid(principal, action, resource == Adapter::"fam-11");
    - permit(principal == User::"corp/ann", action == Action::"admin", resource == Gateway::"f");
"""


def told(text):
    with pytest.raises(ConfigErrors) as caught:
        load_fleet(text)
    return [f"{one.field}: {one}" for one in caught.value.errors]


def with_(section):
    return f"name: f\naccess:\n  {section}\n{REST}"


def test_all_of_it_is_read_and_written_back():
    fleet = load_fleet(WHOLE + REST)
    again = load_fleet(dump_fleet(fleet))
    assert again == fleet
    assert digest(again) == digest(fleet)
    assert digest(load_fleet(WHOLE.replace("clock_skew: 10s", "clock_skew: 11s") + REST)) != digest(fleet)
    names = names_of(fleet)
    assert names.tenants == {"acme", "beta"}
    assert names.teams == {"acme/research", "acme/support"}
    assert (names.models, names.adapters) == ({"llama", "qwen"}, {"lone"})
    assert names.regions == {"eu", "us"}
    assert [names.has_adapter(name) for name in ("fam-11", "fam-12", "fam-01", "lone", "fam")] == [
        True,
        False,
        False,
        True,
        False,
    ]
    compiled = compile_policies(fleet.access.policies, names)
    assert list(compiled.ids.values()) == ["research", "policies[0].1", "policies[1]"]
    assert 'claims: {"groups"?: Set<String>, "plan"?: String}' in schema_text(names)


@pytest.mark.parametrize(
    ("section", "field", "says"),
    [
        (f"keys: [{{id: k, tenant: t, sha256: {A[:-1]}}}]", "keys[0].sha256", "not a SHA-256 digest"),
        ("keys: [{id: k, tenant: t, sha256: sits-pasted-the-key-itself}]", "keys[0].sha256", "never the key itself"),
        (f"keys: [{{id: k, tenant: t, sha256: {A.upper()}}}]", "keys[0].sha256", "lower case"),
        (f"keys: [{{id: k, tenant: t, sha256: {hashlib.sha256(b'').hexdigest()}}}]", "keys[0].sha256", "of nothing"),
        (f"keys: [{{id: k, tenant: t, sha256: {A}}}, {{id: k, tenant: t, sha256: {B}}}]", "keys[1].id", "taken"),
        (f"keys: [{{id: k, tenant: t, sha256: {A}}}, {{id: l, tenant: t, sha256: {A}}}]", "keys[1].sha256", "already"),
        (f"keys: [{{id: anonymous, tenant: t, sha256: {A}}}]", "keys[0].id", "taken"),
        (f"keys: [{{id: k/1, tenant: t, sha256: {A}}}]", "keys[0].id", "cannot be the name"),
        (f"keys: [{{id: k, tenant: t, team: a/b, sha256: {A}}}]", "keys[0].team", "cannot be the name"),
        (f"keys: [{{id: k, tenant: '', sha256: {A}}}]", "keys[0].tenant", "cannot be the name"),
        (f"keys: [{{id: k, tenant: t, sha256: {A}, expires: 31.1.2027}}]", "keys[0].expires", "2027-01-31"),
        (f"tenants: [{{name: acme}}]\n  keys: [{{id: k, tenant: acne, sha256: {A}}}]", "keys[0].tenant", "'acme'"),
        (f"tenants: [{{name: acme, teams: [red]}}]\n  keys: [{{id: k, tenant: acme, team: rad, sha256: {A}}}]", "keys[0].team", "'red'"),
        (f"roles: [dev]\n  keys: [{{id: k, tenant: t, roles: [dve], sha256: {A}}}]", "keys[0].roles[0]", "'dev'"),
        ("tenants: [{name: a}, {name: a}]", "tenants[1].name", "twice"),
        ("tenants: [{name: a, teams: [x, x]}]", "tenants[0].teams[1]", "twice"),
        ("roles: [a, a]", "roles[1]", "twice"),
        ("headers: [X-Project]", "headers[0]", "lower case"),
        ("headers: [authorization]", "headers[0]", "secrets"),
        ("headers: [x-a, x-a]", "headers[1]", "twice"),
        ("kyes: []", "kyes", "did you mean 'keys'?"),
    ],
)  # fmt: skip
def test_mistakes_in_keys_and_names(section, field, says):
    (problem,) = told(with_(section))
    assert problem.startswith(f"access.{field}: ")
    assert says in problem
    assert "pasted" not in problem


ISSUER = {"name": "corp", "issuer": "i", "audience": "[a]", "jwks": "https://id.example/k", "tenant": "t"}


@pytest.mark.parametrize(
    ("change", "field", "says"),
    [
        ({"audience": "[]"}, "audience", "made for another service"),
        ({"issuer": "''"}, "issuer", "'iss'"),
        ({"name": "a/b"}, "name", "cannot be the name"),
        ({"jwks": "http://id.example/k"}, "jwks", "use https"),
        ({"jwks": "https://user:pw@id.example/k"}, "jwks", "user or a password"),
        ({"jwks": "ftp://id.example/k"}, "jwks", "not an https URL"),
        ({"jwks": "'https://[/k'"}, "jwks", "not a URL"),
        ({"jwks": "https://id.example:99999/k"}, "jwks", "not a URL"),
        ({"jwks": "''"}, "jwks", "is empty"),
        ({"algorithms": "[]"}, "algorithms", "is empty"),
        ({"algorithms": "[RS256, RS256]"}, "algorithms", "twice"),
        ({"algorithms": "[HS256]"}, "algorithms[0]", "not one of its words"),
        ({"algorithms": "[none]"}, "algorithms[0]", "not one of its words"),
        ({"tenant": "''"}, "tenant", "no tenant is given"),
        ({"tenant_claim": "tid"}, "tenant", "both"),
        ({"tenants": "[t]"}, "tenants", "no meaning"),
        ({"claims": "[{name: a.b}]"}, "claims[0].name", "cannot be a name"),
        ({"claims": "[{name: a}, {name: a}]"}, "claims[1].name", "twice"),
        ({"clock_skew": "6min"}, "clock_skew", "0s to 5m"),
        ({"refresh": "1s"}, "refresh", "at least 10s"),
    ],
)
def test_mistakes_in_issuers(change, field, says):
    entry = ", ".join(f"{key}: {value}" for key, value in (ISSUER | change).items())
    (problem,) = told(with_(f"jwt: [{{{entry}}}]"))
    assert problem.startswith(f"access.jwt[0].{field}: ")
    assert says in problem


def test_mistakes_between_issuers():
    one = ", ".join(f"{key}: {value}" for key, value in ISSUER.items())
    other = one.replace("name: corp", "name: corp2")
    assert "read by 'corp' already" in told(with_(f"jwt: [{{{one}}}, {{{other}}}]"))[0]
    problems = told(
        with_(
            f"jwt: [{{{one}, claims: [{{name: a}}]}}, {{{one.replace('[a]', '[b]')}, claims: [{{name: a, kind: list}}]}}]"
        )
    )
    assert ["is taken" in problems[0], "one kind" in problems[1]] == [True, True]
    load_fleet(with_(f"jwt: [{{{one}}}, {{{other.replace('[a]', '[b]')}}}]"))
    load_fleet(with_(f"jwt: [{{{one.replace('https://id.example/k', 'http://localhost:8080/k')}}}]"))


def test_plain_keys_are_of_listed_tenants_and_not_listed_again():
    listed = "gateway: {keys: ['acme:s3cret', 'lone']}\naccess:\n  tenants: [{name: acme}]\n"
    (problem,) = told(f"name: f\n{listed}{REST}")
    assert problem.startswith("gateway.keys[1]: ")
    assert "there is no tenant 'default'" in problem
    twice = f"keys: [{{id: k, tenant: t, sha256: {hashlib.sha256(b's3cret').hexdigest()}}}]"
    (problem,) = told(f"name: f\ngateway: {{keys: ['acme:s3cret']}}\naccess:\n  {twice}\n{REST}")
    assert "is the key of gateway.keys[0] already" in problem


POLICY = "permit(principal, action, resource)"


@pytest.mark.parametrize(
    ("policy", "says"),
    [
        ('permit(principal in Tenant::"acne", action, resource);', "there is no Tenant 'acne' (did you mean 'acme'?"),
        ('permit(principal in Team::"research", action, resource);', "did you mean 'acme/research'?"),
        ('permit(principal in Role::"viewr", action, resource);', "did you mean 'viewer'?"),
        ('permit(principal == Key::"cj", action, resource);', "there is no Key 'cj'"),
        ('permit(principal == User::"ann", action, resource);', "a user is issuer/subject"),
        ('permit(principal == User::"crp/ann", action, resource);', "did you mean 'corp/...'?"),
        ('permit(principal, action, resource == Model::"lama");', "did you mean 'llama'?"),
        ('permit(principal, action, resource == Adapter::"fam-12");', "there is no Adapter 'fam-12'"),
        ('permit(principal, action, resource in Family::"fan");', "did you mean 'fam'?"),
        ('permit(principal, action == Action::"inferr", resource);', "did you mean 'infer'?"),
        ('permit(principal in Tenants::"acme", action, resource);', "did you mean 'Tenant'?"),
        ('permit(principal, action, resource == Gateway::"g");', "there is no Gateway 'g'"),
        (POLICY + ' when { principal.tennant == Tenant::"acme" };', "did you mean 'tenant'?"),
        (POLICY + ' when { principal has tema };', "did you mean 'team'?"),
        (POLICY + ' when { principal.claims has pln };', "did you mean 'plan'?"),
        (POLICY + ' when { context.headers has "x-projct" };', "did you mean 'x-project'?"),
        (POLICY + ' when { context has region && context.region == Region::"eux" };', "did you mean 'eu'?"),
        (POLICY + ' when { context has endpoint && context.endpoint == Endpoint::"/v1/chat" };', "there is no Endpoint"),
        (POLICY + ' when { principal.region == Region::"eu" };', "attribute `region` on entity type"),
        (POLICY + ' when { principal.team == Team::"acme/research" };', "ask first whether it is there"),
        (POLICY + ' when { principal.claims.plan + 1 == 2 };', "optional attribute"),
        ('permit(principal in Model::"llama", action, resource);', "principals are Key and User"),
        ('permit(principal == ?principal, action, resource);', "template"),
        ('permit(principal, action, resource', "is not Cedar"),
        ('allow(principal, action, resource);', "is not Cedar"),
        ('// nothing', "holds no policy"),
        ('@id("x") permit(principal, action, resource); @id("x") forbid(principal, action, resource);', "'x' is taken"),
    ],
)  # fmt: skip
def test_mistakes_in_policies(policy, says):
    head = WHOLE[: WHOLE.index("  policies:")]
    indented = policy.replace("\n", "\n      ")
    text = f"{head}  policies:\n    - {POLICY};\n    - |\n      {indented}\n{REST}"
    with pytest.raises(ConfigErrors) as caught:
        load_fleet(text, "fleet.yaml")
    (problem,) = caught.value.errors
    assert problem.field == "access.policies[1]"
    assert problem.where == f"fleet.yaml:{at(text, '    - |')}"
    assert says in str(problem)


def test_policies_wait_for_what_they_speak_of():
    """A mistyped engine is told without every policy that names its model."""
    text = WHOLE + REST.replace("model: llama, adapters: [fam]}", "model: lama, adapters: [fam]}")
    assert {problem.partition("[")[0] for problem in told(text)} == {"engines"}


def test_without_the_package_the_way_to_it_is_told(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "cedarpy", None)
    (problem,) = told(WHOLE + REST)
    assert "pip install cedarpy" in problem
    load_fleet(WHOLE[: WHOLE.index("  policies:")] + REST)


def test_a_policy_that_fails_while_it_is_evaluated_denies():
    """Cedar skips it, and would let through what a failed forbid was there to stop."""
    names = names_of(load_fleet(WHOLE + REST))
    texts = (
        '@id("all") permit(principal, action, resource);',
        '@id("broken") forbid(principal, action, resource) when { 9223372036854775807 + 1 > 0 };',
    )
    compiled, problems = read(texts, names)
    assert problems == []
    decision = AccessPolicy(names, compiled).decide(Caller(), "infer", "llama")
    assert decision.outcome == "denied_by_error"
    assert decision.reasons["policies"] == ("all",)
    assert "overflow" in decision.reasons["errors"][0]


def test_texts_that_went_wrong_are_not_compiled():
    names = names_of(load_fleet(WHOLE + REST))
    with pytest.raises(ConfigError, match=r"policies\[0\]: there is no Model 'x'"):
        compile_policies(('permit(principal, action, resource == Model::"x");',), names)


def test_callers_are_values():
    one = Caller(tenant="a", kind="user", claims=Claims(plan="x", groups=("a",)))
    same = Caller(tenant="a", kind="user", claims=Claims(groups=("a",), plan="x"))
    assert one == same
    assert hash(one) == hash(same)
    assert one != Caller(tenant="a", kind="key", claims=one.claims)
    for change in (
        lambda c: c.update(a="1"),
        lambda c: c.pop("plan"),
        lambda c: c.setdefault("z", "1"),
        lambda c: c.clear(),
    ):
        with pytest.raises(TypeError):
            change(one.claims)


def test_memory_keeps_what_is_used_and_is_bounded():
    memory = Remember(10)
    for i in range(100):
        memory.put(i, str(i))
        assert memory.get(0) == "0"  # used all the time, so never dropped
        assert len(memory) <= 10
    assert memory.get(50) is None
    memory.put("big", "x", weight=6)
    assert memory.get("big") is None
    memory.put("half", "y", weight=5)
    assert memory.get("half") == "y"
    memory.forget("half")
    assert memory.get("half") is None
    memory.clear()
    assert len(memory) == 0


GUIDE = Path(__file__).parents[2] / "docs" / "access.md"


def test_the_guides_example_is_a_configuration():
    block = re.search(r"```yaml\n(.+?)```", GUIDE.read_text(), re.DOTALL)[1]
    served = (
        REST.replace("llama", "llama-70b")
        .replace("name: fam", "name: experimental")
        .replace("[fam]", "[experimental]")
    )
    assert len(load_fleet(f"name: f\n{block}{served}").access.policies) == 2


def test_the_guides_codes_are_those_of_the_source():
    told = {
        code
        for row in re.findall(r"^\| (`.+?) \|", GUIDE.read_text(), re.MULTILINE)
        for code in re.findall(r"`([a-z_]+)`", row)
    }
    told -= {*ACTIONS, *GROUPS.values()}
    modules = ("keys", "tokens", "signing_keys", "access")
    source = "".join((Path(sits.__file__).parent / f"gateway/{name}.py").read_text() for name in modules)
    used = set(re.findall(r'(?:code=|(?:_refused|_unknown)\([^()]*?, )"([a-z_]+)"', source, re.DOTALL))
    assert told == (used | {"unknown_tenant", "unknown_team"}) - {"access_denied"}
