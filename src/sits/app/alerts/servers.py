"""Configurations of the two servers that carry an alert: Prometheus, which scrapes and evaluates, and Alertmanager, which tells people.

Rules: scrape and evaluation have the step that the promised delay allows (`app.alerts.delays`); an alert that pages is a group of its own, so
that it waits for no other (a group that was told once waits `group_interval` before it tells more); tickets wait and come together, and are
not told while a page says the same; ends are told too.

Deliberately absent: secrets, and receivers other than a webhook: add yours to the file.
"""

from collections.abc import Sequence
from typing import Any

from sits.app.alerts.delays import delays
from sits.app.alerts.objectives import job_of
from sits.core.access_names import is_open
from sits.core.errors import ConfigError
from sits.core.fleet import Fleet, OpenAIEngine
from sits.core.fleet_environment import profile_of

KEY_FILE = "sits-admin.key"


def prometheus_of(
    fleet: Fleet, targets: Sequence[str], alertmanagers: Sequence[str], rules_file: str
) -> dict[str, Any]:
    """`prometheus.yml`: scrapes the gateways at `targets` (host:port; empty = where the fleet listens) and its engines.

    Raises:
        ConfigError: the fleet takes a free port, and no target is given.

    """
    step = f"{delays(profile_of(fleet.telemetry).alert_within).step_s}s"
    own = _job(job_of(fleet), targets or [_reachable(fleet)], "/metrics", "http", {"fleet": fleet.name})
    jobs = [own | scrape_key(fleet)]
    for engine in fleet.engines:
        if isinstance(engine, OpenAIEngine) and engine.url:
            url = engine.metrics or f"{engine.url.rstrip('/')}/metrics"
            scheme, _, rest = url.partition("://")
            host, _, path = rest.partition("/")
            labels = {"fleet": fleet.name, "engine": engine.name}
            jobs.append(_job(f"{job_of(fleet)}-engine-{engine.name}", [host], f"/{path}", scheme, labels))
    return {
        "global": {"scrape_interval": step, "scrape_timeout": step, "evaluation_interval": step},
        "rule_files": [rules_file],
        "alerting": {"alertmanagers": [{"static_configs": [{"targets": list(alertmanagers)}]}]},
        "scrape_configs": jobs,
    }


def _job(name: str, targets: Sequence[str], path: str, scheme: str, labels: dict[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = {"job_name": name, "metrics_path": path}
    if scheme != "http":
        found["scheme"] = scheme
    return found | {"static_configs": [{"targets": list(targets), "labels": labels}]}


def metrics_address(fleet: Fleet) -> tuple[str, str]:
    """The field that says where the metrics page is, and what it says."""
    if fleet.gateway.metrics == "admin":
        return "admin.listen", fleet.admin.listen
    return "gateway.listen", fleet.gateway.listen


def scrape_key(fleet: Fleet) -> dict[str, Any]:
    """What a scrape job has besides where the page needs a key: the file `KEY_FILE` beside the configuration, which holds one that may `admin`."""
    if fleet.gateway.metrics == "open" or is_open(fleet):
        return {}
    return {"authorization": {"type": "Bearer", "credentials_file": KEY_FILE}}


def _reachable(fleet: Fleet) -> str:
    field, listen = metrics_address(fleet)
    host, _, port = listen.rpartition(":")
    if port == "0":
        raise ConfigError(
            "it takes a free port", field=field, value=listen, hint="say where it is with --target host:port"
        )
    return f"{'127.0.0.1' if host == '0.0.0.0' else '[::1]' if host == '[::]' else host}:{port}"  # noqa: S104  (read, not bound)


def alertmanager_of(fleet: Fleet, webhooks: Sequence[str]) -> dict[str, Any]:
    """`alertmanager.yml`: pages at once, tickets together, both to the webhooks."""
    lengths = delays(profile_of(fleet.telemetry).alert_within)
    receiver: dict[str, Any] = {"name": "sits"}
    if webhooks:
        receiver["webhook_configs"] = [{"url": url, "send_resolved": True} for url in webhooks]
    page = {
        "matchers": ['severity="page"'],
        "receiver": "sits",
        "group_by": ["..."],
        "group_wait": "0s",
        "group_interval": f"{lengths.step_s}s",
        "repeat_interval": "1h",
    }
    return {
        "route": {
            "receiver": "sits",
            "group_by": ["fleet", "alertname"],
            "group_wait": "30s",
            "group_interval": "5m",
            "repeat_interval": "12h",
            "routes": [page],
        },
        "inhibit_rules": [
            {
                "source_matchers": ['severity="page"', 'slo!=""'],
                "target_matchers": ['severity="ticket"'],
                "equal": ["fleet", "slo"],
            }
        ],
        "receivers": [receiver],
    }
