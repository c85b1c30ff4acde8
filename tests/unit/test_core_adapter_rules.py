"""The section `runtime_adapters` of a fleet file: what cannot be used is said with its line and the way out."""

import pytest

from sits.core.config import dump_fleet, load_fleet
from sits.core.errors import ConfigErrors
from sits.core.fingerprint import fingerprint
from sits.core.release_rules import served_names

FLEET = """\
name: lora
runtime_adapters:
  wait: 1500ms
  probe: {{tolerance: 0.2, every: 30s}}
  engines:
    - {{engine: g0, slots: 4}}
    - {{engine: g1, slots: 2, api: sglang}}
  adapters:
    - {{name: sql, model: llama, path: /adapters/sql-v3, copies: 2}}
    - {{name: own, model: llama}}
    - {adapter}
engines:
  - {{name: g0, kind: openai, url: "http://g0:8000", models: [llama], adapters: [fixed]}}
  - {{name: g1, kind: openai, url: "http://g1:8000", models: [llama]}}
  - {{name: other, kind: openai, url: "http://g2:8000", models: [mistral]}}
"""
GOOD = "{name: legal, model: llama, path: /adapters/legal}"


def problems(adapter=GOOD, **changes):
    text = FLEET.format(adapter=adapter)
    for old, new in changes.values():
        assert old in text
        text = text.replace(old, new)
    with pytest.raises(ConfigErrors) as raised:
        load_fleet(text, "f.yaml")
    return str(raised.value)


def test_a_good_one_reads_and_writes_and_its_names_are_served():
    fleet = load_fleet(FLEET.format(adapter=GOOD))
    assert load_fleet(dump_fleet(fleet)) == fleet
    assert {"sql", "own", "legal"} <= set(served_names(fleet))


@pytest.mark.parametrize(
    ("adapter", "told"),
    [
        (
            "{name: legal, model: lama, path: /a}",
            "f.yaml:11: runtime_adapters.adapters[2].model: there is no model these engines serve named 'lama' (did you",
        ),
        ("{name: legal, model: mistral, path: /a}", "no model these engines serve named 'mistral'"),
        ("{name: llama, model: llama, path: /a}", "is the name of a model"),
        ("{name: fixed, model: llama, path: /a}", "is a fixed adapter already"),
        ("{name: sql, model: llama, path: /a}", "the name 'sql' is taken"),
        ("{name: legal, model: llama, path: /a, copies: 3}", "3 copies, and 2 of these engines"),
        ("{name: legal, model: llama, copies: 1}", "cannot be loaded without a path"),
        ("{name: legal, model: llama, path: /a, digest: abc}", "is not a digest"),
        ("{name: legal, model: llama, path: /a, fingerprint: abc}", "is not a fingerprint"),
        ("{name: legal, model: llama, path: /a, tolerance: 11}", "out of range"),
        ("{name: legal, model: llama, pth: /a}", "did you mean 'path'"),
    ],
)
def test_adapters(adapter, told):
    assert told in problems(adapter)


def test_engines():
    assert "no engine named 'g9'" in problems(one=("engine: g1,", "engine: g9,"))
    assert "'g0' is listed twice" in problems(one=("engine: g1,", "engine: g0,"))
    assert "slots: 0 is out of range" in problems(one=("slots: 4", "slots: 0"))
    assert "'vllm'" in problems(one=("api: sglang", "api: vlm"))
    assert "in 2 slots" in problems(
        "{name: legal, model: llama, path: /a, copies: 1}",
        one=("slots: 4", "slots: 1"),
        two=("slots: 2", "slots: 1"),
    )


def test_a_fingerprint_of_another_prompt_is_refused():
    other = fingerprint("another prompt", ["a"], [{"a": -1.0}])
    assert "is of another prompt" in problems(
        f'{{name: legal, model: llama, path: /a, fingerprint: "{other}"}}'
    )
    load_fleet(
        FLEET.format(
            adapter=f'{{name: legal, model: llama, path: /a, prompt: another prompt, fingerprint: "{other}"}}'
        )
    )


def test_routes_may_send_to_them():
    text = FLEET.format(adapter=GOOD)
    load_fleet(text + "routes: [{name: r, match: {model: llama}, to: {model: legal, engines: [g0]}}]\n")
    with pytest.raises(ConfigErrors):
        load_fleet(
            text + "routes: [{name: r, match: {model: llama}, to: {model: legal, engines: [other]}}]\n"
        )
