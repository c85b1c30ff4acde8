"""Importing another gateway's configuration: what comes out, what is told, and how the command ends."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from sits.app.cli import cli
from sits.app.importing.gateway_api import read_gateway_api
from sits.app.importing.kthena import read_kthena
from sits.app.importing.litellm import read_litellm
from sits.core.config import load_fleet
from sits.core.errors import ConfigError

SAMPLES = Path(__file__).parents[1] / "data" / "importing"


def litellm(text):
    return read_litellm(text, "config.yaml")


def fate_of(made, end):
    return next(fate for fate in made.fates if fate.path.endswith(end))


def test_the_litellm_sample_becomes_engines_routes_and_fallbacks():
    fleet = load_fleet(litellm((SAMPLES / "litellm.yaml").read_text()).yaml)
    engines = {engine.name: engine for engine in fleet.engines}
    assert engines["azure-eu"].url == "https://contoso-eu.openai.azure.com/openai/v1"
    assert (engines["azure-eu"].api_key_env, engines["azure-eu"].region) == ("AZURE_EU_KEY", "eu")
    assert engines["claude-anthropic"].api_key_env == "CLAUDE_ANTHROPIC_API_KEY"
    assert type(engines["claude-anthropic"]).__name__ == "AnthropicEngine"
    assert engines["llama-hosted_vllm"].weight == 2 * engines["llama-hosted_vllm-2"].weight
    routes = {rule.name: rule for rule in fleet.routes}
    assert [(arm.name, arm.weight, arm.fallback) for arm in routes["gpt-4o"].arms] == [
        ("gpt-4o-eu", 0.6, "claude"),
        ("gpt-4o", 0.3, "claude"),
        ("claude", 0.0, "llama"),
        ("llama", 0.0, ""),
    ]
    assert routes["gpt-4.1"].arms == routes["gpt-4o"].arms
    assert routes["llama"].to.engines == ("llama-hosted_vllm", "llama-hosted_vllm-2")
    assert "text-embedding-3-small" not in routes, "the engine answers to that name itself"
    assert fleet.gateway.first_byte_timeout == 600 * 10**9
    assert fleet.policy.cache.kind == "exact"


def test_one_plain_deployment_loses_nothing():
    made = litellm(
        "model_list: [{model_name: m, litellm_params: {model: hosted_vllm/m, api_base: 'http://h:8000/v1'}}]"
    )
    assert made.lossless
    fleet = load_fleet(made.yaml)
    assert fleet.routes == ()
    assert fleet.engines[0].url == "http://h:8000/v1"


@pytest.mark.parametrize(
    ("params", "path", "verdict", "says"),
    [
        (
            "model: openai/gpt-4o, api_key: sk-live-123",
            "api_key",
            "differs",
            "put it into the variable M_OPENAI_API_KEY",
        ),
        ("model: openai/gpt-4o, api_key: os.environ/K", "api_key", "mapped", ""),
        ("model: gpt-4o", "model", "differs", "taken for OpenAI's"),
        (
            "model: meta-llama/Llama-3, api_base: 'http://h/v1'",
            "params.model",
            "differs",
            "taken for OpenAI's",
        ),
        ("model: ollama/llama3", "model", "mapped", ""),
        ("model: openai/x, order: 1", "order", "lost", "equals"),
        ("model: openai/x, timeout: never", "timeout", "lost", "no number"),
        ("model: openai/x, tpm: 80_000", "tpm", "differs", "quotas"),
        ("model: x, custom_llm_provider: openai", "custom_llm_provider", "mapped", "nothing to set"),
    ],
)
def test_each_field_of_a_deployment_is_told(params, path, verdict, says):
    made = litellm(f"model_list: [{{model_name: m, litellm_params: {{{params}}}}}]")
    fate = fate_of(made, path)
    assert fate.verdict == verdict
    assert says in fate.note
    assert "sk-live" not in made.yaml


@pytest.mark.parametrize(
    ("params", "says"),
    [
        ("model: bedrock/x", "'bedrock' has no API"),
        ("model: x, custom_llm_provider: vertex_ai", "'vertex_ai' has no API"),
        ("model: hosted_vllm/x", "needs an api_base"),
        ("model: azure/x, api_base: os.environ/BASE", "in a variable"),
        ("model: 'openai/*'", "wildcard"),
        ("api_base: 'http://h'", "no model_name, or no litellm_params.model"),
    ],
)
def test_a_deployment_that_cannot_be_served_is_lost_whole(params, says):
    good = "{model_name: g, litellm_params: {model: openai/g}}"
    made = litellm(f"model_list: [{good}, {{model_name: m, litellm_params: {{{params}}}}}]")
    fate = fate_of(made, "model_list[1]")
    assert fate.verdict == "lost"
    assert says in fate.note
    assert len(load_fleet(made.yaml).engines) == 1


def test_nothing_to_serve_and_no_such_file_are_errors_that_say_so():
    with pytest.raises(ConfigError, match="nothing in it can be served"):
        litellm("model_list: [{model_name: m, litellm_params: {model: bedrock/x}}]")
    with pytest.raises(ConfigError, match="has no model_list"):
        litellm("routes: []")
    with pytest.raises(ConfigError, match=r"config\.yaml:2.*YAML"):
        litellm("a: 1\nb: [")
    with pytest.raises(ConfigError, match="no InferencePool"):
        read_gateway_api("kind: Pod\nmetadata: {name: a}\n", "f", {})
    with pytest.raises(ConfigError, match=r"f:3: has no kind"):
        read_kthena("kind: ModelRoute\n---\nmetadata: {name: a}\n", "f", {})
    with pytest.raises(ConfigError, match=r"f:4: is a list"):
        read_kthena("kind: ModelRoute\n---\n\n[1]\n", "f", {})


def test_addresses_of_pools_are_those_of_services_unless_given():
    text = (SAMPLES / "gateway_api.yaml").read_text()
    fleet = load_fleet(read_gateway_api(text, "f", {}).yaml)
    assert [engine.url for engine in fleet.engines] == [
        "http://llama-pool.serving.svc:8000",
        "http://qwen-pool.serving.svc:8000",
    ]
    given = {"llama-pool": ["http://10.0.0.1:8000", "http://10.0.0.2:8000"]}
    made = read_gateway_api(text, "f", given)
    assert [engine.name for engine in load_fleet(made.yaml).engines] == [
        "llama-pool",
        "llama-pool-2",
        "qwen-pool",
    ]
    assert fate_of(made, "llama-pool.spec.selector").verdict == "mapped"
    assert load_fleet(made.yaml).routes[-1].to.engines == ("llama-pool", "llama-pool-2")


def test_the_gateway_api_sample_keeps_its_order():
    fleet = load_fleet(read_gateway_api((SAMPLES / "gateway_api.yaml").read_text(), "f", {}).yaml)
    told = [(rule.match.model, rule.match.endpoint, bool(rule.match.headers)) for rule in fleet.routes]
    assert told == [
        ("qwen", "/v1/chat/completions", True),
        ("", "/v1/chat/completions", True),
        ("qwen", "", False),
        ("recipes", "", False),
        ("food-review", "", False),
        ("", "", False),
    ]
    assert [(arm.name, arm.weight) for arm in fleet.routes[4].arms] == [
        ("food-review-v1", 0.9),
        ("food-review-v2", 0.1),
    ]


def test_the_kthena_sample_keeps_rules_and_limits():
    fleet = load_fleet(read_kthena((SAMPLES / "kthena.yaml").read_text(), "f", {}).yaml)
    first = fleet.routes[0]
    assert [(h.name, h.exact, h.regex) for h in first.match.headers] == [
        ("user-type", "premium", ""),
        ("x-region", "", "eu-.*"),
    ]
    assert first.to.model == "deepseek-chat"
    assert [(quota.match.model, quota.tokens, quota.per) for quota in fleet.quotas] == [
        ("deepseek", 100_000, "1m"),
        ("deepseek", 20_000, "1m"),
    ]
    assert fleet.gateway.first_byte_timeout == 90 * 10**9


def test_a_rule_that_cannot_be_said_is_lost_rather_than_widened():
    for match in (
        "uri: {regex: '.*'}",
        "headers: {authorization: {exact: x}}",
        r"headers: {a: {regex: '(a)\1'}}",
    ):
        text = (SAMPLES / "kthena.yaml").read_text().replace('uri: {regex: ".*"}', match)
        made = read_kthena(text, "f", {})
        assert "without it the rule would take more" in fate_of(made, "rules[2]").note
        assert not any("strange" in rule.name for rule in load_fleet(made.yaml).routes)


def invoke(*argv):
    result = CliRunner().invoke(cli, ["import", *map(str, argv)], standalone_mode=False)
    return result.return_value, result.stdout, result.stderr, result.exception


def test_the_command_writes_the_fleet_and_tells_the_account(tmp_path):
    out = tmp_path / "fleet.yaml"
    code, stdout, stderr, _ = invoke("litellm", SAMPLES / "litellm.yaml", "-o", out)
    assert (code, stdout) == (1, "")
    assert load_fleet(out.read_text()).name == "imported"
    assert "litellm.yaml:25: - model_list[5]: the provider 'bedrock' has no API that is spoken here" in stderr
    assert "fields mapped (=)" in stderr.splitlines()[-1]
    assert " = " not in stderr
    assert " = " in invoke("litellm", SAMPLES / "litellm.yaml", "-o", out, "--all")[2]


def test_json_holds_account_and_fleet_and_the_exit_code_says_whether_all_is_the_same(tmp_path):
    source = tmp_path / "config.yaml"
    source.write_text(
        "model_list: [{model_name: m, litellm_params: {model: hosted_vllm/m, api_base: 'http://h:8000/v1'}}]"
    )
    code, stdout, _, _ = invoke("litellm", source, "--json")
    told = json.loads(stdout)
    assert (code, told["lossless"]) == (0, True)
    assert told["fields"][0] == {
        "path": "model_list[0].model_name",
        "line": 1,
        "verdict": "mapped",
        "to": "engines[].models",
        "note": "",
    }
    assert load_fleet(told["fleet"]).engines
    source.write_text("nothing: here")
    assert isinstance(invoke("litellm", source)[3], ConfigError)


@pytest.mark.parametrize("kind", ["gateway-api", "kthena"])
def test_where_a_pool_is_can_be_said(kind):
    sample = SAMPLES / f"{kind.replace('-', '_')}.yaml"
    name = "llama-pool" if kind == "gateway-api" else "lora-host"
    code, stdout, _, _ = invoke(
        kind, sample, "--engine", f"{name}=http://10.0.0.9:1", "--engine", f"{name}=http://10.0.0.8:1"
    )
    assert code == 1
    assert {engine.url for engine in load_fleet(stdout).engines} > {"http://10.0.0.9:1", "http://10.0.0.8:1"}
    assert "not NAME=URL" in str(invoke(kind, sample, "--engine", "nonsense")[3])
