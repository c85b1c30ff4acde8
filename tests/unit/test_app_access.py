"""`sitsctl keys` and `sitsctl access`: what is printed works in a file, and questions are answered as the gateway would."""

import hashlib
import json

import pytest
from click.testing import CliRunner

from access_tokens import jwk, jwks, token
from sits.app.cli import cli, run_command
from sits.core.config import load_fleet
from sits.gateway.access import Access
from sits.world import RealWorld

ENGINES = "engines: [{name: e, kind: openai, url: 'http://127.0.0.1:1', models: [llama, qwen], adapters: [mine], region: eu}]\n"
FLEET = """
name: demo
access:
  tenants: [{name: acme, teams: [research]}, {name: beta}]
  roles: [operator]
  headers: [x-project]
  keys: [{id: ci, tenant: acme, team: research, roles: [operator], sha256: "%s"}]
  jwt:
    - {name: corp, issuer: https://id.example, audience: [sits], jwks: JWKS, algorithms: [ES256], tenant: acme,
       claims: [{name: plan}, {name: groups, kind: list}]}
  policies:
    - '@id("research") permit(principal in Team::"acme/research", action in Action::"use", resource in Model::"llama");'
    - '@id("gold") permit(principal is User, action, resource) when { principal.claims has plan && principal.claims.plan == "gold" };'
    - '@id("mine") forbid(principal, action, resource == Adapter::"mine") unless { principal in Role::"operator" };'
    - '@id("project") permit(principal, action == Action::"embed", resource) when {
        context has region && context.region == Region::"eu" && context.headers has "x-project" };'
    - '@id("ops") permit(principal in Role::"operator", action == Action::"admin", resource);'
""" % hashlib.sha256(b"a secret of ci").hexdigest()  # fmt: skip  # noqa: UP031  # braces belong to YAML and Cedar


@pytest.fixture
def sitsctl(tmp_path):
    """Run the command line; `(exit code, stdout)`, and everything said in the latter with `--json` parsed."""
    (tmp_path / "keys").write_bytes(jwks(jwk("ES256", "k1")))
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text((FLEET + ENGINES).replace("JWKS", str(tmp_path / "keys")))

    def call(*argv, stdin=""):
        words = [str(fleet) if word == "FLEET" else word for word in argv]
        result = CliRunner().invoke(cli, words, input=stdin, standalone_mode=False)
        if result.exception is not None:
            return run_command(lambda: (_ for _ in ()).throw(result.exception)), str(result.exception)
        out = json.loads(result.stdout) if "--json" in argv else result.stdout
        return result.return_value, out

    return call


def served(entry):
    """A gateway that has this key."""
    fleet = load_fleet(f"name: f\n{ENGINES}access: {{keys: [{entry}]}}\n")
    return Access(fleet, RealWorld())


def test_a_new_key_opens_the_gateway_its_entry_is_pasted_into(sitsctl):
    code, out = sitsctl("keys", "new", "--tenant", "acme", "--team", "red", "--role", "b", "--role", "a")
    secret = out.split("\n")[1].strip()
    entry = out.rpartition("  - ")[2]
    assert code == 0
    assert secret not in entry
    caller = served(entry).identify(b"Bearer " + secret.encode())
    assert (caller.tenant, caller.team, caller.roles) == ("acme", "red", ("a", "b"))
    assert len(secret) == len("sits-") + 43
    first, second = (sitsctl("keys", "new", "--tenant", "acme", "--json")[1] for _ in range(2))
    assert first["secret"] != second["secret"]
    assert first["entry"]["sha256"] == hashlib.sha256(first["secret"].encode()).hexdigest()


def test_an_existing_key_is_hashed_if_it_can_be_random(sitsctl):
    secret = "0123456789abcdef" * 2
    code, out = sitsctl(
        "keys", "hash", "--tenant", "acme", "--id", "old", "--expires", "2999-12-31", stdin=secret + "\n"
    )
    assert code == 0
    assert secret not in out
    assert served(out.rpartition("  - ")[2]).identify(None, secret.encode()).key_id == "old"
    assert "secret" not in sitsctl("keys", "hash", "--tenant", "acme", "--json", stdin=secret)[1]


@pytest.mark.parametrize(
    ("secret", "what"),
    [
        ("hunter2", "too short"),
        ("correcthorsebattery", "too short"),
        ("a" * 60, "too even"),
        ("0101010101010101010101010101", "too even"),
        ("with a space in it, and long enough", "cannot be sent"),
        ("schlüssel-schlüssel-schlüssel", "cannot be sent"),
        ("", "nothing came"),
    ],
)
def test_what_a_person_would_think_of_is_refused(sitsctl, secret, what):
    code, out = sitsctl("keys", "hash", "--tenant", "acme", stdin=secret)
    assert code == 2
    assert what in out
    assert not secret or secret not in out


@pytest.mark.parametrize(
    ("option", "what"),
    [
        ("--tenant=a/b", "tenant"),
        ("--team=a/b", "team"),
        ("--expires=soon", "not a day"),
        ("--id= ", "name of a key"),
    ],
)
def test_entries_that_no_file_would_take(sitsctl, option, what):
    code, out = sitsctl(
        "keys", "new", *([] if option.startswith("--tenant") else ["--tenant", "acme"]), option
    )
    assert code == 2
    assert what in out


ASKED = [
    (["--key", "ci", "--model", "llama"], 0, "allowed", ["research"]),
    (["--key", "ci", "--model", "mine"], 0, "allowed", ["research"]),
    (["--tenant", "acme", "--team", "research", "--model", "mine"], 1, "denied_by_policy", ["mine"]),
    (["--key", "ci", "--action", "admin"], 0, "allowed", ["ops"]),
    (["--tenant", "acme", "--team", "research", "--model", "llama", "--action", "embed"], 0, "allowed", ["research"]),
    (["--tenant", "acme", "--team", "research", "--model", "qwen"], 1, "denied_by_default", []),
    (["--tenant", "beta", "--model", "llama"], 1, "denied_by_default", []),
    (["--user", "corp/ann", "--tenant", "acme", "--claim", "plan=gold", "--model", "qwen"], 0, "allowed", ["gold"]),
    (["--user", "corp/ann", "--tenant", "acme", "--claim", "plan=gold", "--model", "mine"], 1, "denied_by_policy", ["mine"]),
    (["--tenant", "beta", "--model", "qwen", "--action", "embed", "--region", "eu"], 1, "denied_by_default", []),
    (
        ["--tenant", "beta", "--model", "qwen", "--action", "embed", "--region", "eu", "--header", "x-project=1"],
        0,
        "allowed",
        ["project"],
    ),
]  # fmt: skip


@pytest.mark.parametrize(("options", "code", "outcome", "policies"), ASKED)
def test_questions(sitsctl, options, code, outcome, policies):
    told, out = sitsctl("access", "check", "FLEET", *options, "--json")
    assert (told, out["outcome"], out["policies"], out["allowed"]) == (code, outcome, policies, code == 0)
    told, text = sitsctl("access", "check", "FLEET", *options)
    assert told == code
    assert text.startswith("allowed: " if code == 0 else "denied: ")
    assert all(name in text for name in policies)


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        (["--tenant", "acm", "--model", "llama"], "did you mean 'acme'?"),
        (["--tenant", "acme", "--model", "lama"], "did you mean 'llama'?"),
        (["--tenant", "acme", "--model", "llama", "--action", "infr"], "did you mean 'infer'?"),
        (["--tenant", "acme", "--team", "reserch", "--model", "llama"], "did you mean 'acme/research'?"),
        (["--tenant", "acme", "--role", "oprator", "--model", "llama"], "did you mean 'operator'?"),
        (["--user", "crp/ann", "--model", "llama"], "did you mean 'corp'?"),
        (["--key", "cj", "--model", "llama"], "did you mean 'ci'?"),
        (["--key", "ci", "--tenant", "acme", "--model", "llama"], "a key says whose it is"),
        (["--tenant", "acme", "--model", "llama", "--claim", "plan"], "not NAME=VALUE"),
        (["--tenant", "acme", "--model", "llama", "--header", "x-projct=1"], "did you mean 'x-project'?"),
        (["--tenant", "acme", "--model", "llama", "--region", "us"], "did you mean 'eu'?"),
        (["--tenant", "acme", "--model", "llama", "--endpoint", "/v1/chat"], "/v1/chat/completions"),
        ([], "there is no model ''"),
    ],
)
def test_questions_about_what_is_not_there(sitsctl, options, hint):
    code, out = sitsctl("access", "check", "FLEET", *options)
    assert code == 2
    assert hint in out


def test_without_policies_everything_is_allowed(sitsctl, tmp_path):
    bare = tmp_path / "bare.yaml"
    bare.write_text("name: f\n" + ENGINES)
    code, out = sitsctl("access", "check", str(bare), "--model", "qwen")
    assert code == 0
    assert "no policies" in out
    assert "somebody of tenant default" in out


def test_who_a_credential_is(sitsctl):
    now_s = RealWorld().wall_ns() // 10**9
    good = token(iat=now_s, exp=now_s + 60, plan="gold", groups=["b", "a"]).decode()
    code, out = sitsctl("access", "whoami", "FLEET", stdin=f"Bearer {good}\n")
    assert (code, out) == (0, "user corp/ann of tenant acme; plan gold; groups a, b\n")
    assert sitsctl("access", "whoami", "FLEET", "--json", stdin=good)[1]["caller"]["key_id"] == "corp/ann"
    old = token(iat=now_s - 99, exp=now_s - 50).decode()
    code, out = sitsctl("access", "whoami", "FLEET", "--json", stdin=old)
    assert (code, out["known"], out["code"]) == (1, False, "token_expired")
    code, out = sitsctl("access", "whoami", "FLEET", stdin="no secret of ci")
    assert (code, out.partition(": ")[0]) == (1, "refused (401 invalid_api_key)")
    assert "key ci of tenant acme" in sitsctl("access", "whoami", "FLEET", stdin="a secret of ci")[1]


def test_the_schema_is_what_policies_are_checked_against(sitsctl):
    cedarpy = pytest.importorskip("cedarpy")
    code, out = sitsctl("access", "schema", "FLEET")
    assert code == 0
    policies = "".join(load_fleet((FLEET + ENGINES).replace("JWKS", "keys")).access.policies)
    assert cedarpy.validate_policies(policies, out).validation_passed
    assert not cedarpy.validate_policies(
        'permit(principal == Usr::"x", action, resource);', out
    ).validation_passed
