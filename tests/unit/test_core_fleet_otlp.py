"""Section `telemetry.otlp`: what is refused, and with which way out."""

import pytest

from sits.core.config import dump_fleet, load_fleet
from sits.core.errors import ConfigErrors

HEAD = "name: t\nengines: [{kind: openai, name: a, url: 'http://127.0.0.1:1', models: [m]}]\n"
ADMIN = "admin: {listen: '127.0.0.1:8081'}\n"


def load(otlp, admin=ADMIN):
    return load_fleet(f"{HEAD}{admin}telemetry: {{otlp: {otlp}}}\n", "f.yaml")


def test_both_directions_come_back_as_written():
    fleet = load(
        "{export: {endpoint: 'https://c:4317', protocol: grpc, semconv: genai-0.1.0, timeout: 5s, "
        "headers: [{name: authorization, env: TOKEN}, {name: x-tenant, value: a}]}, receive: {grpc: '0.0.0.0:4317', token_env: T}}"
    )
    assert fleet.telemetry.otlp.export.headers[0].env == "TOKEN"
    assert load_fleet(dump_fleet(fleet), "again.yaml") == fleet


@pytest.mark.parametrize(
    ("otlp", "field", "says"),
    [
        ("{export: {endpoint: 'c:4317'}}", "endpoint", "no URL"),
        ("{export: {endpoint: 'http://u:p@c:4317'}}", "endpoint", "password"),
        ("{export: {endpoint: 'http://[::1'}}", "endpoint", "no URL"),
        ("{export: {protocol: thrift}}", "protocol", "thrift"),
        ("{export: {semconv: '1.50'}}", "semconv", "1.50"),
        ("{export: {headers: [{name: A b, value: x}]}}", "name", "no header"),
        ("{export: {headers: [{name: a, value: x, env: Y}]}}", "headers[0]", "either"),
        ("{export: {headers: [{name: a}]}}", "headers[0]", "either"),
        ("{export: {headers: [{name: a, env: '1x'}]}}", "env", "environment variable"),
        ("{export: {timeout: 0s}}", "timeout", "out of range"),
        ("{receive: {grpc: '4317'}}", "grpc", "host:port"),
        ("{receive: {grpc: '0.0.0.0:4317'}}", "grpc", "everybody"),
        ("{receive: {token_env: 'a b'}}", "token_env", "environment variable"),
        ("{receive: {gprc: '127.0.0.1:1'}}", "gprc", "grpc"),
    ],
)
def test_what_cannot_be_used_is_refused_by_its_place(otlp, field, says):
    with pytest.raises(ConfigErrors) as caught:
        load(otlp)
    (error,) = caught.value.errors
    assert field in error.field
    assert says in str(error)


@pytest.mark.parametrize("otlp", ["{export: {}}", "{receive: {grpc: '127.0.0.1:4317'}}"])
def test_neither_runs_without_the_admin_process(otlp):
    with pytest.raises(ConfigErrors, match="admin"):
        load(otlp, admin="")
    assert load("{receive: {http: false}}", admin="").telemetry.otlp.export is None
