"""examples/rag_service.py as its own page starts it: its spans, taken by the gateway's admin port, and the gateway's request make one trace, also when the engine is down."""

import http.client
import json
import os
import re
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

from click.testing import CliRunner

from app_processes import GatedEngine, serving
from sits.app.cli import cli

EXAMPLES = Path(__file__).parents[2] / "examples"
FLEET = """\
name: behind
gateway: {{listen: "127.0.0.1:0", store: "{store}"}}
admin: {{listen: "127.0.0.1:0"}}
engines:
  - {{kind: openai, name: e0, url: "{url}", models: [m]}}
  - {{kind: openai, name: gone, url: "http://127.0.0.1:1", models: [lost]}}
"""


@contextmanager
def service(gateway, otlp, model):
    """The example under uvicorn; asks it, and ends it so that it sends what it has."""
    env = {**os.environ, "GATEWAY": gateway, "MODEL": model, "OTEL_EXPORTER_OTLP_ENDPOINT": otlp}
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


def test_its_spans_and_the_gateways_request_are_one_trace(tmp_path):
    with GatedEngine().serving() as engine, serving(tmp_path, FLEET, url=engine.url) as gateway:
        admin = re.search(r"board on (http://[\d.:]+)/", gateway.hear("board on"))[1]
        answers = {}
        for model in ("m", "lost"):
            with service(gateway.url, admin, model) as ask:
                answers[model] = ask("blue+light")
        gateway.stop()
    for model, (status, trace_id, said) in answers.items():
        _one_trace(trace(tmp_path / "store", trace_id), status, said, up=model == "m")


def _one_trace(found, status, said, *, up):
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
