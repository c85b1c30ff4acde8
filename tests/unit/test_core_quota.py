"""The sections `quotas` and `ledger`: what they say is kept, and what cannot hold is an error that names the way out."""

import re
from pathlib import Path

import pytest

from sits.core.config import digest, dump_fleet, load_fleet
from sits.core.errors import ConfigErrors
from sits.core.fleet_quota import EmbeddedLedger, Quota, QuotaMatch, RedisLedger, period_ns
from sits.core.units import MS, SECOND
from sits.gateway.ledger import quotas as quotas_module
from sits.gateway.metrics import FAMILIES

DIGEST = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
FLEET = f"""
name: f
access:
  tenants: [{{name: acme, teams: [web, ops]}}, {{name: beta, teams: [web]}}]
  keys:
    - {{id: acme-ci, tenant: acme, team: web, sha256: {DIGEST}}}
  jwt: [{{name: corp, issuer: "https://id.acme.com", audience: [sits], jwks: "https://id.acme.com/keys", tenant: acme}}]
routes: [{{name: chat, match: {{model: chat}}, to: {{model: llama}}}}]
engines: [{{kind: openai, name: e, url: "http://127.0.0.1:8000", models: [llama], adapters: [support]}}]
"""


def load(quotas="", ledger=""):
    return load_fleet(
        FLEET + (f"quotas: {quotas}\n" if quotas else "") + (f"ledger: {ledger}\n" if ledger else "")
    )


def problems(quotas="", ledger=""):
    with pytest.raises(ConfigErrors) as caught:
        load(quotas, ledger)
    return [(error.field, str(error)) for error in caught.value.errors]


def test_what_is_written_is_kept_and_written_back():
    quotas = """[
      {name: day, match: {tenant: acme}, tokens: 2_000_000, per: 1d, weights: {output: 4, cached: 0.1}},
      {name: minute, parent: day, each: [key, model], tokens: 60000, requests: 600, per: 1m},
      {name: trial, match: {key: acme-ci, model: chat}, requests: 5, per: total},
    ]"""
    fleet = load(
        quotas,
        "{kind: redis, url: 'rediss://user@redis.acme.com:6380/2', password_env: PW, lease: 5s, on_outage: open}",
    )
    assert fleet.quotas[1] == Quota(
        name="minute", parent="day", each=("key", "model"), tokens=60_000, requests=600, per="1m"
    )
    assert fleet.quotas[2].match == QuotaMatch(key="acme-ci", model="chat")
    assert isinstance(fleet.ledger, RedisLedger)
    assert (fleet.ledger.lease, fleet.ledger.wait) == (5 * SECOND, 250 * MS)
    again = load_fleet(dump_fleet(fleet))
    assert again == fleet
    assert digest(again) == digest(fleet)


def test_without_a_word_the_ledger_is_embedded_and_nobody_is_limited():
    fleet = load()
    assert fleet.quotas == ()
    assert fleet.ledger == EmbeddedLedger()


@pytest.mark.parametrize(
    ("match", "field", "says"),
    [
        ("{tenant: acmee}", "tenant", "did you mean 'acme'?"),
        ("{tenant: acme, team: wep}", "team", "did you mean 'web'?"),
        ("{tenant: beta, team: ops}", "team", "no team of 'beta' named 'ops'"),
        ("{team: web}", "team", "write 'tenant' as well"),
        ("{key: acme-cd}", "key", "did you mean 'acme-ci'?"),
        ("{key: corpse/bob}", "key", "no key named 'corpse/bob'"),
        ("{key: acme-ci, tenant: beta}", "key", "matches nobody"),
        ("{key: acme-ci, tenant: acme, team: ops}", "key", "matches nobody"),
        ("{model: lama}", "model", "did you mean 'llama'?"),
        ("{modell: llama}", "modell", "did you mean 'model'?"),
    ],
)
def test_a_quota_that_names_something_unknown_does_not_load(match, field, says):
    ((where, text),) = problems(f"[{{name: q, tokens: 1, match: {match}}}]")
    assert where == f"quotas[0].match.{field}"
    assert says in text


@pytest.mark.parametrize(
    "match", ["{key: corp/bob}", "{model: support}", "{model: chat}", "{tenant: acme, team: ops}"]
)
def test_users_of_a_known_issuer_adapters_and_routes_can_be_named(match):
    assert load(f"[{{name: q, tokens: 1, match: {match}}}]").quotas


@pytest.mark.parametrize(
    ("quotas", "field", "says"),
    [
        ("[{name: q}]", "quotas[0]", "limits nothing"),
        ("[{name: q, tokens: -1}]", "quotas[0].tokens", "out of range"),
        ("[{name: q, tokens: 9007199254740993}]", "quotas[0].tokens", "out of range"),
        ("[{name: q, tokens: 1, per: 1x}]", "quotas[0].per", "not a unit"),
        ("[{name: q, tokens: 1, per: 500ms}]", "quotas[0].per", "whole seconds"),
        ("[{name: q, tokens: 1, per: '60'}]", "quotas[0].per", "no unit"),
        ("[{name: q, tokens: 1, each: [keys]}]", "quotas[0].each[0]", "did you mean 'key'?"),
        ("[{name: q, tokens: 1, each: [key, key]}]", "quotas[0].each", "names a field twice"),
        ("[{name: q, tokens: 1, weights: {cached: 2}}]", "quotas[0].weights.cached", "above 'input'"),
        ("[{name: q, tokens: 1}, {name: q, tokens: 2}]", "quotas[1].name", "is taken"),
        ("[{name: q, tokens: 1, parent: p}]", "quotas[0].parent", "no other quota named 'p'"),
        ("[{name: q, tokens: 1, parent: q}]", "quotas[0].parent", "no other quota named 'q'"),
        (
            "[{name: a, tokens: 9, match: {tenant: acme}}, {name: b, tokens: 1, parent: a, match: {tenant: beta}}]",
            "quotas[1].match.tenant",
            "not within 'a'",
        ),
        (
            (
                "[{name: a, tokens: 9, match: {tenant: acme}}, {name: b, tokens: 9, parent: a},"
                " {name: c, tokens: 1, parent: b, match: {tenant: beta}}]"
            ),
            "quotas[2].match.tenant",
            "not within 'b', which counts 'acme' only",
        ),
        (
            "[{name: a, tokens: 9, match: {tenant: beta}}, {name: b, tokens: 1, parent: a, match: {team: ops}}]",
            "quotas[1].match.team",
            "no team of 'beta' named 'ops'",
        ),
        (
            "[{name: a, tokens: 9, match: {tenant: beta}}, {name: b, tokens: 1, parent: a, match: {key: acme-ci}}]",
            "quotas[1].match.key",
            "matches nobody",
        ),
        (
            "[{name: a, tokens: 9, per: 1d}, {name: b, tokens: 10, per: 1h, parent: a}]",
            "quotas[1].tokens",
            "more than its parent's 9 per 1d",
        ),
        (
            "[{name: a, requests: 9, per: total}, {name: b, requests: 10, tokens: 1, per: 1h, parent: a}]",
            "quotas[1].requests",
            "more than its parent's 9 per total",
        ),
    ],
)
def test_what_cannot_hold_is_told_where_it_stands(quotas, field, says):
    found = problems(quotas)
    assert [where for where, _ in found] == [field]
    assert says in found[0][1]


def test_parents_in_a_circle_are_told_with_their_circle():
    found = problems(
        "[{name: a, tokens: 1, parent: b}, {name: b, tokens: 1, parent: c}, {name: c, tokens: 1, parent: a}]"
    )
    assert {where for where, _ in found} == {f"quotas[{i}].parent" for i in range(3)}
    assert "a -> b -> c -> a" in found[0][1]


@pytest.mark.parametrize(
    "quotas",
    [
        "[{name: a, tokens: 9, per: 1h}, {name: b, tokens: 100, per: 1d, parent: a}]",  # a longer time
        "[{name: a, tokens: 9, weights: {output: 3}}, {name: b, tokens: 10, parent: a}]",  # another measure
        "[{name: a, requests: 9}, {name: b, tokens: 10, parent: a}]",
    ],
)
def test_a_child_may_grant_more_where_that_can_be_had(quotas):
    assert load(quotas).quotas


@pytest.mark.parametrize(
    ("ledger", "field", "says"),
    [
        ("{kind: redis}", "ledger.url", "missing"),
        ("{kind: rediss, url: 'redis://x'}", "ledger.kind", "did you mean 'redis'?"),
        ("{kind: redis, url: 'http://x'}", "ledger.url", "not the URL of a Redis"),
        ("{kind: redis, url: 'redis://'}", "ledger.url", "not the URL of a Redis"),
        ("{kind: redis, url: 'redis://x:0'}", "ledger.url", "not the URL of a Redis"),
        ("{kind: redis, url: 'redis://u:hunter2@x'}", "ledger.url", "password_env"),
        (
            "{kind: redis, url: 'redis://x', password_env: 'hunter 2'}",
            "ledger.password_env",
            "never the password",
        ),
        ("{kind: redis, url: 'redis://x', prefix: 'a b'}", "ledger.prefix", "cannot begin a key"),
        ("{kind: embedded, lease: 1s, report: 1s}", "ledger.lease", "too short for its reports"),
        ("{kind: embedded, lease: 500ms}", "ledger.lease", "out of range"),
        ("{kind: embedded, lease: 10min}", "ledger.lease", "out of range"),
        ("{kind: embedded, on_outage: opn}", "ledger.on_outage", "did you mean 'open'?"),
    ],
)
def test_a_ledger_that_cannot_be_used_is_told(ledger, field, says):
    found = problems(ledger=ledger)
    assert [where for where, _ in found] == [field]
    assert says in found[0][1]
    assert "hunter" not in found[0][1]


def test_the_guide_is_true():
    text = (Path(__file__).parents[2] / "docs/quotas.md").read_text()
    first, second = re.findall(r"```yaml\n(.+?)```", text, re.DOTALL)
    known = FLEET.replace("models: [llama]", "models: [llama, llama-70b]")
    fleet = load_fleet(known + first)
    assert [quota.name for quota in fleet.quotas] == ["acme-day", "acme-key", "large", "trial"]
    assert load_fleet(known + second).ledger.on_outage == "spend_lease"
    assert set(re.findall(r"`(sits_\w+)`", text)) <= set(FAMILIES)
    source = (Path(quotas_module.__file__)).read_text()
    codes = re.findall(r"^\| \d+ `(\w+)`", text, re.MULTILINE)
    assert len(codes) == 3
    assert all(f'code="{code}"' in source for code in codes)


def test_periods():
    assert [period_ns(text) // SECOND for text in ("1m", "1h", "1d", "30d", "total")] == [
        60,
        3600,
        86_400,
        2_592_000,
        0,
    ]
