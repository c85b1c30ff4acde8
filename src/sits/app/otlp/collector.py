"""A configuration of the OpenTelemetry Collector that fits a fleet: between engines and gateway on one side, backends on the other.

```
otlp (gateway, engines) ─┬─ memory_limiter, transform, tail_sampling, batch ──> clickhouse, Jaeger by OTLP
                         └─ memory_limiter, filter (not our own), batch ─────> the gateway's own receiver: `sightings`
prometheus (gateway, engines) + otlp metrics ── memory_limiter, batch ─────> clickhouse
```
Sampling is by trace, when it is over: all with an error, all over the objective, all of an incident, and a share of the rest.  The objective
of the time to the first token is held against `sits.ttft` of our own span, for no policy knows it otherwise; that of the end-to-end time against
the trace's duration.  What our receiver gets is not sampled, for it completes rows.  Old names of attributes are given their new ones beside them.

Rules: secrets are variables of the Collector's environment.  Components are those of the contrib distribution; keys are held against its
published schemas by a test, and the header says what was not done: no Collector was run with it.

Source: the components' `config.schema.yaml` and README files, contrib distribution of 2026; their names as in the fixture of the tests.

Deliberately absent: deployment (Kubernetes, systemd), and `resourcedetection`.
"""

from typing import Any

import yaml

from sits.app.alerts.servers import metrics_address, scrape_key
from sits.core.fleet import AnyEngine, Fleet, OpenAIEngine
from sits.core.otel_names import INCIDENT, SERVICE, TTFT

HEADER = """\
# OpenTelemetry Collector (contrib distribution) for the fleet {name}.
# Made by `sitsctl otel collector`; keys are checked against the components' published schemas.
# It could not be run where it was made: before the first use, run
#   otelcol-contrib validate --config=FILE
# Variables of its environment: CLICKHOUSE_PASSWORD{token}.
"""
ALIASES = (
    ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens"),
    ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens"),
    ("gen_ai.provider.name", "gen_ai.system"),
    ("gen_ai.usage.cache_read.input_tokens", "gen_ai.usage.cached_tokens"),
)
"""Today's name, and the one that engines still use."""


def collector(fleet: Fleet, *, clickhouse: str, jaeger: str, sample_percent: float) -> dict[str, Any]:
    """The configuration as a tree; a backend whose address is empty is left out."""
    exporters, traces = _backends(clickhouse, jaeger)
    receivers: dict[str, Any] = {
        "otlp": {"protocols": {"grpc": {"endpoint": "0.0.0.0:4317"}, "http": {"endpoint": "0.0.0.0:4318"}}}
    }
    receivers["prometheus"] = {"config": {"scrape_configs": _scrapes(fleet)}}
    processors: dict[str, Any] = {
        "memory_limiter": {"check_interval": "1s", "limit_percentage": 80, "spike_limit_percentage": 20},
        "transform/names": {"error_mode": "ignore", "trace_statements": [{"context": "span", "statements": _statements()}]},
        "tail_sampling": {
            "decision_wait": "15s",
            "num_traces": 100_000,
            "expected_new_traces_per_sec": 1000,
            "policies": _policies(fleet, sample_percent),
        },
        "batch": {"send_batch_size": 8192, "timeout": "2s"},
    }  # fmt: skip
    pipelines: dict[str, Any] = {}
    if traces:
        steps = ["memory_limiter", "transform/names", "tail_sampling", "batch"]
        pipelines["traces"] = {"receivers": ["otlp"], "processors": steps, "exporters": traces}
    if fleet.admin.listen and fleet.telemetry.otlp.receive.http:
        ours = f'resource.attributes["{SERVICE}"] == "sits"'
        processors["filter/others"] = {"error_mode": "ignore", "traces": {"span": [ours]}}
        exporters["otlphttp/sits"] = _back(fleet)
        steps = ["memory_limiter", "filter/others", "batch"]
        pipelines["traces/sits"] = {
            "receivers": ["otlp"],
            "processors": steps,
            "exporters": ["otlphttp/sits"],
        }
    if clickhouse:
        pipelines["metrics"] = {
            "receivers": ["otlp", "prometheus"],
            "processors": ["memory_limiter", "batch"],
            "exporters": ["clickhouse"],
        }
    used = {name for pipeline in pipelines.values() for names in pipeline.values() for name in names}
    return {
        "receivers": {name: told for name, told in receivers.items() if name in used},
        "processors": {name: told for name, told in processors.items() if name in used},
        "exporters": exporters,
        "service": {"pipelines": pipelines},
    }


def written(fleet: Fleet, tree: dict[str, Any]) -> str:
    """The tree as YAML, under its header."""
    token = fleet.telemetry.otlp.receive.token_env
    header = HEADER.format(name=fleet.name, token=f", {token}" if token else "")
    return header + yaml.safe_dump(tree, sort_keys=False, width=110)


def _backends(clickhouse: str, jaeger: str) -> tuple[dict[str, Any], list[str]]:
    retried = {
        "retry_on_failure": {"enabled": True, "max_elapsed_time": "10m"},
        "sending_queue": {"queue_size": 1000},
    }
    exporters: dict[str, Any] = {}
    if clickhouse:
        exporters["clickhouse"] = {
            "endpoint": clickhouse,
            "database": "otel",
            "username": "default",
            "password": "${env:CLICKHOUSE_PASSWORD}",
            "ttl": "720h",
            "create_schema": True,
            "traces_table_name": "otel_traces",
            "timeout": "10s",
            **retried,
        }
    if jaeger:
        exporters["otlp/jaeger"] = {"endpoint": jaeger, "tls": {"insecure": True}, **retried}
    return exporters, list(exporters)


def _back(fleet: Fleet) -> dict[str, Any]:
    made: dict[str, Any] = {"endpoint": f"http://{fleet.admin.listen}", "encoding": "json"}
    token = fleet.telemetry.otlp.receive.token_env
    return made | ({"headers": {"authorization": f"Bearer ${{env:{token}}}"}} if token else {})


def _statements() -> list[str]:
    return [
        f'set(attributes["{new}"], attributes["{old}"]) where attributes["{new}"] == nil and attributes["{old}"] != nil'
        for new, old in ALIASES
    ]


def _policies(fleet: Fleet, sample_percent: float) -> list[dict[str, Any]]:
    objective = fleet.objective
    slow: dict[str, Any] = {
        "name": "slow",
        "type": "latency",
        "latency": {"threshold_ms": max(1, objective.p99 // 10**6)},
    }
    if objective.metric == "ttft":
        over = f'attributes["{TTFT}"] != nil and attributes["{TTFT}"] > {objective.p99 / 1e9:.6f}'
        slow = {
            "name": "slow",
            "type": "ottl_condition",
            "ottl_condition": {"error_mode": "ignore", "span": [over]},
        }
    incident = {"key": INCIDENT, "values": [".+"], "enabled_regex_matching": True}
    return [
        {"name": "errors", "type": "status_code", "status_code": {"status_codes": ["ERROR"]}},
        slow,
        {"name": "incident", "type": "string_attribute", "string_attribute": incident},
        {"name": "rest", "type": "probabilistic", "probabilistic": {"sampling_percentage": sample_percent}},
    ]  # fmt: skip


def _scrapes(fleet: Fleet) -> list[dict[str, Any]]:
    jobs = [_job("sits", "/metrics", metrics_address(fleet)[1], "http", {}) | scrape_key(fleet)]
    for engine in fleet.engines:
        job = _engine_job(engine)
        if job is not None:
            jobs.append(job)
    return jobs


def _engine_job(engine: AnyEngine) -> dict[str, Any] | None:
    if not isinstance(engine, OpenAIEngine):
        return None  # emulated ones have no page, Anthropic none for us
    url = engine.metrics or f"{engine.url.rstrip('/')}/metrics"
    scheme, _, rest = url.partition("://")
    address, _, path = rest.partition("/")
    return _job(f"engine-{engine.name}", f"/{path}", address, scheme, {"engine": engine.name})


def _job(name: str, path: str, address: str, scheme: str, labels: dict[str, str]) -> dict[str, Any]:
    target: dict[str, Any] = {"targets": [address]}
    return {
        "job_name": name,
        "scrape_interval": "15s",
        "metrics_path": path,
        "scheme": scheme,
        "static_configs": [target | ({"labels": labels} if labels else {})],
    }
