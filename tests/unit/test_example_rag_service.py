"""examples/rag_service.py as its own page starts it: its spans and the gateway's request make one trace, also when the engine is down."""

import http.client
import json
import os
import re
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from app_processes import GatedEngine, serving
from otlp_receiver import otlp_receiver
from sits.app.cli import cli
from sits.telemetry.otlp.mapping import decoded
from sits.telemetry.otlp.received import span_columns
from sits.telemetry.store import DuckStore

EXAMPLES = Path(__file__).parents[2] / "examples"
FLEET = """\
name: behind
gateway: {{listen: "127.0.0.1:0", store: "{store}"}}
engines:
  - {{kind: openai, name: e0, url: "{url}", models: [m]}}
"""


@contextmanager
def service(gateway, otlp):
    """The example under uvicorn; asks it, and ends it so that it sends what it has."""
    env = {**os.environ, "GATEWAY": gateway, "MODEL": "m", "OTEL_EXPORTER_OTLP_ENDPOINT": otlp}
    process = subprocess.Popen(
        [sys.executable, "-m", "uvicorn", "--app-dir", EXAMPLES, "rag_service:app", "--port", "0"],
        env=env,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        port = next(
            int(found[1]) for line in process.stderr if (found := re.search(r"127\.0\.0\.1:(\d+)", line))
        )

        def ask(question):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            try:
                connection.request("GET", f"/ask?q={question}", headers={"x-tenant": "acme"})
                answer = connection.getresponse()
                return answer.status, answer.getheader("x-trace-id"), json.loads(answer.read())
            finally:
                connection.close()

        yield ask
        process.terminate()
        process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def trace(store, trace_id):
    result = CliRunner().invoke(
        cli, ["trace", trace_id, "--store", str(store), "--json"], standalone_mode=False
    )
    assert result.exception is None
    return json.loads(result.output)


@pytest.mark.parametrize("up", [True, False])
def test_its_spans_and_the_gateways_request_are_one_trace(tmp_path, up):
    store = tmp_path / "store"
    with GatedEngine().serving() as engine, otlp_receiver() as received:
        url = engine.url if up else "http://127.0.0.1:1"
        with serving(tmp_path, FLEET, url=url) as gateway:
            with service(gateway.url, received.url) as ask:
                status, trace_id, said = ask("blue+light")
            gateway.stop()
        bodies = [received.next()[1]]
        while not received.bodies.empty():
            bodies.append(received.next()[1])
    with DuckStore(store) as opened:
        for body in bodies:
            opened.append("spans", span_columns("r", decoded(json.dumps(body).encode()).spans))
    found = trace(store, trace_id)
    spans = {span["name"]: span for span in found["spans"]}
    (request,) = found["requests"]
    assert set(spans) == {"GET /ask", "retrieve", "rerank", "answer"}
    root = spans["GET /ask"]
    assert {span["parent_id"] for name, span in spans.items() if name != "GET /ask"} == {root["span_id"]}
    assert request["parent_id"] == spans["answer"]["span_id"], "the gateway's request is the answer's child"
    assert root["attributes"]["tenant"] == "acme"
    assert root["service"].startswith("rag@")
    if up:
        assert (status, request["outcome"]) == (200, "completed")
        assert said["sources"] == [
            "Air scatters short waves of light more than long ones.",
            "The sea is blue because water absorbs red light.",
        ]
    else:
        assert (status, request["outcome"], request["detail"]) == (503, "failed", "engine_unreachable")
        assert spans["answer"]["status"].startswith("ERROR: urllib.error.HTTPError")
        assert root["status"] == "ERROR: status 503"
