"""The Collector's configuration: every key is one that its component takes, every name leads somewhere."""

import json
import re
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from sits.app.otlp.collector import ALIASES, collector, written
from sits.app.otlp.commands import otel
from sits.core.config import load_fleet

KNOWN = yaml.safe_load((Path(__file__).parents[1] / "data" / "otel_collector_components.yaml").read_text())
FLEET = """
name: t
objective: {{metric: {metric}, p99: 1500ms}}
admin: {{listen: '127.0.0.1:8081'}}
telemetry: {{otlp: {{receive: {{token_env: OTLP_TOKEN}}}}}}
engines:
  - {{kind: openai, name: a, url: 'http://10.0.0.1:8000', models: [m]}}
  - {{kind: openai, name: b, url: 'https://h/x', metrics: 'https://h:9/m', models: [m]}}
  - {{kind: anthropic, name: c, models: [k]}}
"""


def tree(metric="ttft", **told):
    fleet = load_fleet(FLEET.format(metric=metric), "f.yaml")
    asked = {"clickhouse": "tcp://ch:9000", "jaeger": "j:4317", "sample_percent": 10.0, **told}
    return yaml.safe_load(written(fleet, collector(fleet, **asked)))


def problems(value, wanted, at):
    """Where `value` is not what the schema wants."""
    if wanted == "any":
        return []
    if isinstance(wanted, dict):
        if not isinstance(value, dict):
            return [f"{at} is no object"]
        found = [f"{at}.{key} is not taken" for key in value if key not in wanted]
        return found + [
            one for key in value if key in wanted for one in problems(value[key], wanted[key], f"{at}.{key}")
        ]
    if isinstance(wanted, list):
        if not isinstance(value, list):
            return [f"{at} is no list"]
        return [one for i, item in enumerate(value) for one in problems(item, wanted[0], f"{at}[{i}]")]
    if wanted == "duration":
        return [] if re.fullmatch(r"(\d+(ms|s|m|h))+", str(value)) else [f"{at} is no duration"]
    kinds = {"str": str, "bool": bool, "int": int, "float": (int, float)}
    return [] if isinstance(value, kinds[wanted]) else [f"{at} is no {wanted}"]


def of(component):
    return component.partition("/")[0]


@pytest.mark.parametrize("metric", ["ttft", "e2e"])
@pytest.mark.parametrize("told", [{}, {"clickhouse": ""}, {"jaeger": ""}, {"clickhouse": "", "jaeger": ""}])
def test_every_key_is_taken_and_every_name_leads_somewhere(metric, told):
    made = tree(metric, **told)
    for kind in ("receivers", "processors", "exporters"):
        for name, value in made[kind].items():
            assert of(name) in KNOWN[kind], name
            assert problems(value, KNOWN[kind][of(name)], name) == []
    used = {kind: set() for kind in ("receivers", "processors", "exporters")}
    for pipeline in made["service"]["pipelines"].values():
        assert pipeline["processors"][0] == "memory_limiter"
        assert pipeline["processors"][-1] == "batch"
        for kind, names in pipeline.items():
            assert names
            used[kind] |= set(names)
    assert {kind: set(made[kind]) for kind in used} == used


def test_the_checker_can_fail():
    assert problems({"endpont": "x"}, KNOWN["exporters"]["otlp"], "otlp") == ["otlp.endpont is not taken"]
    assert problems({"timeout": 5}, KNOWN["exporters"]["otlp"], "otlp") == ["otlp.timeout is no duration"]


def test_errors_slow_ones_and_incidents_are_all_kept():
    policies = {one["name"]: one for one in tree()["processors"]["tail_sampling"]["policies"]}
    assert policies["errors"]["status_code"]["status_codes"] == ["ERROR"]
    assert policies["slow"]["ottl_condition"]["span"] == [
        'attributes["sits.ttft"] != nil and attributes["sits.ttft"] > 1.500000'
    ]
    assert policies["incident"]["string_attribute"]["key"] == "sits.incident"
    assert policies["rest"]["probabilistic"]["sampling_percentage"] == 10
    (slow,) = (one for one in tree("e2e")["processors"]["tail_sampling"]["policies"] if one["name"] == "slow")
    assert slow["latency"]["threshold_ms"] == 1500
    assert all(set(one) == {"name", "type", one["type"]} for one in policies.values())


def test_engines_are_scraped_where_they_have_a_page():
    jobs = {one["job_name"]: one for one in tree()["receivers"]["prometheus"]["config"]["scrape_configs"]}
    assert set(jobs) == {"sits", "engine-a", "engine-b"}
    a, b = jobs["engine-a"], jobs["engine-b"]
    assert (a["scheme"], a["static_configs"][0]["targets"], a["metrics_path"]) == (
        "http",
        ["10.0.0.1:8000"],
        "/metrics",
    )
    assert (b["scheme"], b["static_configs"][0]["targets"], b["metrics_path"]) == ("https", ["h:9"], "/m")


def test_the_gateway_is_scraped_where_it_shows_its_page():
    guarded = "name: f\ngateway: {keys: ['sits-one-0123456789abcdef'], metrics: admin}\nadmin: {listen: '10.0.0.9:8081'}\nengines: [{kind: openai, name: e, url: 'http://h', models: [m]}]\n"
    (job,) = (
        one
        for one in collector(load_fleet(guarded), clickhouse="tcp://ch:9000", jaeger="", sample_percent=10.0)[
            "receivers"
        ]["prometheus"]["config"]["scrape_configs"]
        if one["job_name"] == "sits"
    )
    assert job["static_configs"][0]["targets"] == ["10.0.0.9:8081"]
    assert job["authorization"]["credentials_file"] == "sits-admin.key"


def test_secrets_are_variables_and_our_own_spans_do_not_come_back():
    made = tree()
    assert made["exporters"]["clickhouse"]["password"] == "${env:CLICKHOUSE_PASSWORD}"
    assert made["exporters"]["otlphttp/sits"]["headers"] == {"authorization": "Bearer ${env:OTLP_TOKEN}"}
    assert made["processors"]["filter/others"]["traces"]["span"] == [
        'resource.attributes["service.name"] == "sits"'
    ]
    assert "tail_sampling" not in made["service"]["pipelines"]["traces/sits"]["processors"]
    (statements,) = made["processors"]["transform/names"]["trace_statements"]
    assert len(statements["statements"]) == len(ALIASES)


def test_the_command_writes_it_and_says_that_it_was_not_run(tmp_path):
    file = tmp_path / "fleet.yaml"
    file.write_text(FLEET.format(metric="ttft"))
    shown = CliRunner().invoke(otel, ["collector", str(file)], standalone_mode=False)
    assert shown.exception is None
    assert "could not be run" in shown.stdout
    assert "OTLP_TOKEN" in shown.stdout
    as_json = CliRunner().invoke(otel, ["collector", str(file), "--json"], standalone_mode=False)
    assert yaml.safe_load(shown.stdout) == json.loads(as_json.stdout)
    CliRunner().invoke(
        otel, ["collector", str(file), "--out", str(tmp_path / "c.yaml")], standalone_mode=False
    )
    assert (tmp_path / "c.yaml").read_text() == shown.stdout
