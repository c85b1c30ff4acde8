"""The room itself: who may send, what is told, and what of a bad configuration still works."""

from types import SimpleNamespace

import pytest
from starlette.applications import Starlette

from otlp_cases import request_id
from sits.app.otlp.room import OtlpRoom
from sits.core.config import load_fleet
from sits.core.errors import ConfigError
from sits.telemetry.spans_json import Span, encoded
from sits.telemetry.store import DuckStore
from sits.world import RealWorld

JSON = [(b"content-type", b"application/json")]


def room(tmp_path, otlp, address="127.0.0.1:8081"):
    text = (
        f"name: t\ngateway: {{store: {tmp_path}}}\nadmin: {{listen: '{address}'}}\ntelemetry: {{otlp: {otlp}}}\n"
        "engines: [{kind: openai, name: a, url: 'http://127.0.0.1:1', models: [m]}]\n"
    )
    fleet, said, told = load_fleet(text, "f.yaml"), [], []
    house = SimpleNamespace(
        generation=SimpleNamespace(fleet=fleet, run_id="run-1"), world=RealWorld(), store=tmp_path,
        address=address, say=said.append, tell=told.append,
    )  # fmt: skip
    return OtlpRoom(house), said, told


async def ask(one, method, path, body=b"", headers=()):
    """Status and body of one answer of the room's paths."""
    scope = {
        "type": "http", "method": method, "path": path, "raw_path": path.encode(), "query_string": b"",
        "headers": list(headers), "http_version": "1.1", "scheme": "http", "root_path": "",
    }  # fmt: skip
    sent = []

    async def receive():
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message):
        sent.append(message)

    await Starlette(routes=list(one.routes()))(scope, receive, send)
    return sent[0]["status"], b"".join(message.get("body", b"") for message in sent[1:])


def run(made):
    import asyncio

    return asyncio.run(made)


def test_spans_reach_the_store_and_are_counted(tmp_path):
    one, said, _ = room(tmp_path, "{}")

    async def main():
        await one.start()
        body = encoded({"service.name": "vllm"}, [Span(request_id(0), "cd" * 8, "", "llm_request", 10, 20)])
        assert (await ask(one, "POST", "/v1/traces", body, JSON))[0] == 200
        status, counts = await ask(one, "GET", "/otlp.json")
        assert (status, b'"spans":1' in counts) == (200, True)
        assert one.vitals()["sits_otlp_spans_total"]['result="received"'] == 1
        await one.close()

    run(main())
    assert said == []
    with DuckStore(tmp_path) as store:
        assert [row["engine_recv"] for row in store.scan("trace_sightings", trace_id=request_id(0))] == [10]


def test_without_a_token_nobody_elsewhere_may_send(tmp_path):
    one, said, _ = room(tmp_path, "{}", "0.0.0.0:8081")

    async def main():
        await one.start()
        assert (await ask(one, "POST", "/v1/traces", b"{}", JSON))[0] == 401
        assert (await ask(one, "GET", "/otlp.json"))[0] == 401
        await one.close()

    run(main())
    assert "no loopback" in said[0]


def test_a_token_opens_it_and_one_that_is_not_set_is_told(tmp_path, monkeypatch):
    monkeypatch.delenv("OTLP_T", raising=False)
    one, _, _ = room(tmp_path, "{receive: {token_env: OTLP_T}}", "0.0.0.0:8081")
    with pytest.raises(ConfigError, match="OTLP_T"):
        run(one.start())
    monkeypatch.setenv("OTLP_T", "s")
    one, said, _ = room(tmp_path, "{receive: {token_env: OTLP_T}}", "0.0.0.0:8081")

    async def main():
        await one.start()
        headers = [*JSON, (b"authorization", b"Bearer s")]
        assert (await ask(one, "POST", "/v1/traces", b"{}", headers))[0] == 200
        await one.close()

    run(main())
    assert said == []


def test_a_receiver_that_cannot_be_used_leaves_the_rest_standing(tmp_path, monkeypatch):
    monkeypatch.delenv("NO_SUCH", raising=False)
    export = "{export: {headers: [{name: a, env: NO_SUCH}]}, receive: {grpc: '127.0.0.1:0'}}"
    one, said, _ = room(tmp_path, export)

    async def main():
        await one.start()
        assert one.grpc.port > 0
        assert (await ask(one, "POST", "/v1/traces", b"{}", JSON))[0] == 200
        await one.close()

    run(main())
    assert "NO_SUCH" in said[1]
    assert one.exporter is None
