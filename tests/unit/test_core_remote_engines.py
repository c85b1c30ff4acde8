"""Engines at a URL in a configuration: what each kind has, and what cannot be used."""

import pytest

from sits.core.config import dump_fleet, load_fleet
from sits.core.errors import ConfigErrors
from sits.core.fleet import AnthropicEngine, OpenAIEngine
from sits.engine.anthropic import AnthropicEngine as AnthropicClient
from sits.engine.translated import CHAT, COUNT_TOKENS, MESSAGES
from sits.wire import build_engine, served
from sits.world import RealWorld


def load(engine):
    return load_fleet(f"name: t\nengines:\n  - {{name: e, models: [m], {engine}}}\n")


def test_anthropics_api_needs_nothing_but_its_models():
    fleet = load("kind: anthropic")
    (engine,) = fleet.engines
    assert isinstance(engine, AnthropicEngine)
    assert (engine.url, engine.max_tokens) == ("https://api.anthropic.com", 4096)
    assert served(fleet, engine) == ("m",)
    assert load_fleet(dump_fleet(fleet)) == fleet
    client = build_engine(fleet, engine, RealWorld(), lengths=lambda request: 1)
    assert isinstance(client, AnthropicClient)


def test_a_server_that_speaks_both_is_never_translated_for():
    def translated(engine):
        fleet = load(engine)
        return set(build_engine(fleet, fleet.engines[0], RealWorld(), lengths=lambda request: 1).translations)

    assert translated('kind: openai, url: "http://h:1"') == {MESSAGES, COUNT_TOKENS}
    assert translated('kind: openai, url: "http://h:1", speaks: [openai, anthropic]') == set()
    assert CHAT in translated("kind: anthropic")
    assert load('kind: openai, url: "http://h:1"').engines[0] == OpenAIEngine(
        name="e", models=("m",), url="http://h:1"
    )


@pytest.mark.parametrize(
    ("field", "engine"),
    [
        ("adapters", "kind: anthropic, adapters: [a]"),
        ("metrics", "kind: anthropic, metrics: 'http://h'"),
        ("max_tokens", "kind: anthropic, max_tokens: 0"),
        ("version", 'kind: anthropic, version: "2023\\r\\nx: y"'),
        ("version", 'kind: anthropic, version: ""'),
        ("url", "kind: anthropic, url: nowhere"),
        ("speaks", 'kind: openai, url: "http://h:1", speaks: [anthropic]'),
        ("speaks", 'kind: openai, url: "http://h:1", speaks: []'),
        ("speaks[1]", 'kind: openai, url: "http://h:1", speaks: [openai, antropic]'),
        ("kind", "kind: antropic"),
    ],
)
def test_what_cannot_be_used_is_told_with_its_place(field, engine):
    with pytest.raises(ConfigErrors) as told:
        load(engine)
    assert [error.field for error in told.value.errors] == [f"engines[0].{field}"]
    if "antropic" in engine:
        assert "anthropic" in str(told.value)
