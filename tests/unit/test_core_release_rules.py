"""Rules of releases and of the response cache: what refers to nothing is told at its line, with a way out."""

import pytest

from sits.core.config import dump_fleet, load_fleet
from sits.core.errors import ConfigErrors
from sits.core.fleet import Release, ResponseCache

HEAD = "name: f\npolicy:\n"
TAIL = """\
engines:
  - {name: e0, kind: openai, url: "http://h:1", models: [llama, llama-next], adapters: [support]}
"""


def load(policy):
    return load_fleet(HEAD + policy + TAIL)


def test_what_was_valid_stays_valid_and_defaults_are_off():
    fleet = load("  release: {unit: session, salt: r7, arms: [{name: a, weight: 1}]}\n")
    assert fleet.policy.release.unit == "session"
    assert (fleet.policy.releases, fleet.policy.cache) == ((), ResponseCache())
    assert ResponseCache().kind == "none"


def test_releases_of_one_name_each_and_a_cache():
    fleet = load(
        "  releases:\n"
        "    - model: llama\n"
        "      honour_version_hint: [qa]\n"
        "      arms:\n"
        "        - {name: stable, weight: 0.95, artefact: 'sha256:aa'}\n"
        "        - {name: canary, weight: 0.05, model: llama-next, artefact: 'sha256:bb', fallback: stable}\n"
        "    - {model: support, unit: tenant, arms: [{name: only, weight: 1}]}\n"
        "  cache: {kind: exact, scope: unit, ttl: 5min, memory: 8MiB, models: [llama, support]}\n"
    )
    first, second = fleet.policy.releases
    assert (first.arms[1].fallback, first.honour_version_hint, second.unit) == ("stable", ("qa",), "tenant")
    assert fleet.policy.cache.ttl == 300_000_000_000
    assert fleet.policy.release == Release()
    assert load_fleet(dump_fleet(fleet)) == fleet


ARMS = "arms: [{name: a, weight: 1"


@pytest.mark.parametrize(
    ("policy", "field", "says"),
    [
        (f"  release: {{{ARMS}, model: lama}}]}}\n", "policy.release.arms[0].model", "did you mean 'llama'"),
        (f"  release: {{model: llama, {ARMS}}}]}}\n", "policy.release.model", "policy.releases"),
        (f"  releases: [{{{ARMS}}}]}}]\n", "policy.releases[0].model", "no served model or adapter is given"),
        (f"  releases: [{{model: suport, {ARMS}}}]}}]\n", "policy.releases[0].model", "did you mean 'support'"),
        (
            f"  releases:\n    - {{model: llama, {ARMS}}}]}}\n    - {{model: llama, {ARMS}}}]}}\n",
            "policy.releases[1].model",
            "first on line 4",
        ),
        (f"  releases: [{{model: llama, {ARMS}, fallback: b}}]}}]\n", "policy.releases[0].arms[0].fallback", "other"),
        (f"  release: {{{ARMS}, fallback: a}}]}}\n", "policy.release.arms[0].fallback", "no other arm"),
        (
            f"  release: {{{ARMS}, fallback: b}}, {{name: b, weight: 0, fallback: a}}]}}\n",
            "policy.release.arms[0].fallback",
            "circle: a -> b -> a",
        ),
        (f"  release: {{{ARMS}, artefact: 'a b'}}]}}\n", "policy.release.arms[0].artefact", "not a digest"),
        (f"  releases: [{{model: llama, {ARMS}e-9}}]}}]\n", "policy.releases[0].arms[0].weight", "at least"),
        ("  releases: [{model: llama, arms: [{name: a, weight: 0}]}]\n", "policy.releases[0].arms", "any weight"),
        ("  cache: {kind: exact, models: [llama, lama]}\n", "policy.cache.models[1]", "did you mean 'llama'"),
        ("  cache: {kind: exact, memory: 1KiB}\n", "policy.cache.memory", "out of range"),
        ("  cache: {kind: semantic}\n", "policy.cache.kind", "known: exact, none"),
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_told_at_its_field(policy, field, says):
    with pytest.raises(ConfigErrors) as caught:
        load(policy)
    first = caught.value.errors[0]
    assert first.field == field
    assert says in str(first)


def test_a_circle_is_told_at_each_arm_in_it_and_not_at_one_that_only_leads_there():
    arms = "{name: a, weight: 1, fallback: b}, {name: b, weight: 1, fallback: c}, {name: c, weight: 1, fallback: b}"
    with pytest.raises(ConfigErrors) as caught:
        load(f"  release: {{arms: [{arms}]}}\n")
    fields = [error.field for error in caught.value.errors]
    assert fields == ["policy.release.arms[1].fallback", "policy.release.arms[2].fallback"]


def test_engines_with_problems_of_their_own_make_no_name_unserved():
    with pytest.raises(ConfigErrors) as caught:
        load_fleet(
            HEAD + f"  release: {{{ARMS}, model: llama}}]}}\n" + TAIL.replace("[llama, llama-next]", "[1]")
        )
    assert [error.field for error in caught.value.errors] == ["engines[0].models[0]"]
