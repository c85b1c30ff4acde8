"""Configuration files that mean no good: digits of other scripts, numbers beyond 64 bits, hosts nobody can look up."""

import pytest

from core_fleets import FLEET
from sits.core.config import load_fleet
from sits.core.decode import UNKNOWN_SHOWN
from sits.core.errors import ConfigError, ConfigErrors
from sits.core.units import parse_bytes, parse_duration, parse_share
from sits.core.yaml_nodes import MAX_NODES, compose

OPEN = "name: o\ngateway: {%s}\nengines:\n- {kind: openai, name: a, models: [m], %s}\n"


def told(gateway="", engine="url: 'http://h:1/v1'"):
    """The fields of the problems of a small fleet."""
    try:
        load_fleet(OPEN % (gateway, engine))
    except ConfigErrors as errors:
        return [error.field for error in errors.errors]
    return []


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        *((parse_duration, text) for text in ("١٠ms", "１０ms", "10\u00a0ms", "1e290s", "9" * 400 + "s")),
        *((parse_bytes, text) for text in ("٨٠GiB", "1e30B", "8589934592GiB")),
        *((parse_share, text) for text in ("١٠%", "1_0%", "nan%", "inf%", "%", "1e400%")),
    ],
)
def test_a_quantity_is_ascii_and_fits_64_bits(parse, text):
    with pytest.raises(ConfigError):
        parse(text)


def test_the_largest_quantities_that_fit_are_taken():
    assert parse_duration("292y".replace("y", "d")) == 292 * 86_400 * 10**9
    assert parse_share(" 5e1 %") == 0.5


@pytest.mark.parametrize("text", ["1_", "1__0", "1_.5", "_1", "٣", "9" * 29, str(2**63)])
def test_underscores_and_sizes_of_numbers(text):
    with pytest.raises(ConfigErrors, match="weight"):
        load_fleet(OPEN % ("", f"url: 'http://h', weight: {text}"))
    with pytest.raises(ConfigErrors, match="workers"):
        load_fleet(OPEN % (f"workers: {text}", "url: 'http://h'"))


@pytest.mark.parametrize("weight", ["1e-320", "1e308", "-1"])
def test_a_weight_must_leave_numbers_to_compare(weight):
    assert told(engine=f"url: 'http://h', weight: {weight}") == ["engines[0].weight"]
    arms = f"policy: {{release: {{arms: [{{name: a, weight: {weight}}}, {{name: b, weight: {weight}}}]}}}}\n"
    with pytest.raises(ConfigErrors, match=r"arms\[0\].weight"):
        load_fleet(FLEET.split("policy:")[0] + arms + "engines: []\n")


HOSTS_BAD = (
    "a..b",
    "-h",
    "h h",
    "a\\0b",
    "é",
    "x" * 300,
    "256.1.1.1",
    "1.2.3.4.5",
    "[zz]",
    "[::1",
    "::1",
    ".",
)
HOSTS_GOOD = ("h", "a-b.c", "my_host", "10.0.0.7", "[::1]", "h.")


@pytest.mark.parametrize("host", HOSTS_BAD)
def test_hosts_nobody_can_look_up(host):
    assert told(gateway=f'listen: "{host}:80"') == ["gateway.listen"]
    assert told(engine=f'url: "http://{host}:80/v1"') == ["engines[0].url"]


@pytest.mark.parametrize("host", HOSTS_GOOD)
def test_hosts_that_can_be_looked_up(host):
    assert not told(f'listen: "{host}:80"', f'url: "http://{host}:80/v1", metrics: "http://{host}/m"')


@pytest.mark.parametrize("port", ["9" * 5000, "65536", "٨٠", "-1", "8 0", ""])
def test_ports_that_are_none(port):
    assert told(gateway=f'listen: "h:{port}"') == ["gateway.listen"]
    if port:
        assert told(engine=f'url: "http://h:{port}"') == ["engines[0].url"]


@pytest.mark.parametrize(
    "url",
    [
        "http://h/日本",
        "http://h/v1?x=1",
        "http://h/v1#f",
        "http://h:0",
        "http://h/\\r\\nX: y",
        "http://h/\\x7f",
    ],
)
def test_urls_that_cannot_be_asked(url):
    assert told(engine=f'url: "{url}"') == ["engines[0].url"]
    assert told(engine=f'url: "http://h", metrics: "{url}"') == ["engines[0].metrics"]


@pytest.mark.parametrize(
    "keys", ["''", "':a'", "'a:'", "'t: a'", "a b", "'t:é'", '"t:a\\n"', '"a\\0"', '" t:a"']
)
def test_keys_that_cannot_arrive(keys):
    assert told(gateway=f"keys: [{keys}]") == ["gateway.keys[0]"]


def test_one_key_for_two_tenants_is_told_without_showing_it():
    with pytest.raises(ConfigErrors) as caught:
        load_fleet(OPEN % ("keys: ['one:sesame', 'two:sesame']", "url: 'http://h'"))
    assert [error.field for error in caught.value.errors] == ["gateway.keys[1]"]
    assert "sesame" not in str(caught.value)
    assert not told(gateway="keys: ['t:a', 't:b', 'c:d:e']")


@pytest.mark.parametrize("store", ['""', "'  '", '"a\\0b"', '"a\\nb"'])
def test_stores_that_are_no_path(store):
    assert told(gateway=f"store: {store}") == ["gateway.store"]


@pytest.mark.parametrize("models", ["[]", '[""]', '["m\\n"]', f"[{'m' * 300}]"])
def test_an_engine_serves_models_that_can_be_asked_for(models):
    (field,) = told(engine=f"url: 'http://h'}}\n- {{kind: openai, name: b, url: 'http://h', models: {models}")
    assert field.startswith("engines[1].models")


@pytest.mark.parametrize(
    "text",
    [
        'name: "\\U99999999"',
        'name: "\\UFFFFFFFF"',
        'name: "\\ud800"',
        "%YAML " + "9" * 5000 + ".1\n---\nname: x",
        "x: [" + "a," * (MAX_NODES + 9) + "]",
        "[" * 100_000,
        "? " * 100_000,
    ],
    ids=lambda text: text[:12],
)
def test_yaml_that_breaks_parsers_is_one_error_with_its_place(text):
    with pytest.raises(ConfigErrors, match=r"fleet\.yaml:1") as caught:
        compose(text, "fleet.yaml")
    assert len(caught.value.errors) == 1


def test_ten_thousand_unknown_keys_are_told_briefly():
    with pytest.raises(ConfigErrors) as caught:
        load_fleet(OPEN % ("", "url: 'http://h'") + "".join(f"k{i}: {i}\n" for i in range(10_000)))
    assert len(caught.value.errors) == UNKNOWN_SHOWN + 1
    assert "9980 more" in str(caught.value)
