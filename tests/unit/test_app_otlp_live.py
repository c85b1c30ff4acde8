"""One trace through client, gateway and engine: each sends its own spans, with its own library, and they are one tree."""

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import openai
import pytest
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.trace import SpanKind
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from app_processes import serving
from otlp_peers import attributes, grpc_peer, http_peer
from sits.bench.why import why
from sits.core.units import SECOND
from sits.telemetry.joining import completed
from sits.telemetry.store import DuckStore
from sits.world import RealWorld

FLEET = """
name: traced
gateway: {{listen: '127.0.0.1:0', store: '{store}'}}
admin: {{listen: '127.0.0.1:0'}}
telemetry:
  otlp:
    export: {{endpoint: '{sink}', protocol: {protocol}, semconv: genai-0.1.0}}
engines:
  - {{kind: openai, name: e0, url: '{engine}', models: [m]}}
"""

W3C = TraceContextTextMapPropagator()


def tracer(service, *endpoints):
    """A tracer of the SDK that sends each span at once, and the SDK's shutdown."""
    provider = TracerProvider(resource=Resource({"service.name": service, "service.instance.id": "1"}))
    for endpoint in endpoints:
        provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(endpoint=endpoint)))
    return provider.get_tracer(service), provider.shutdown


@contextmanager
def traced_engine():
    """An engine that continues the trace it is given, as vLLM does; `spans` is set to its tracer before the first request."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            self.rfile.read(int(self.headers["content-length"]))
            carrier = {name.lower(): value for name, value in self.headers.items()}
            server.states.append(carrier.get("tracestate"))
            span = server.spans.start_span("llm_request", W3C.extract(carrier), SpanKind.SERVER)
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.send_header("transfer-encoding", "chunked")
            self.end_headers()
            for content in ("a", "b"):
                chunk = {
                    "choices": [{"index": 0, "delta": {"content": content}}],
                    "object": "chat.completion.chunk",
                }
                self.piece(b"data: " + json.dumps(chunk).encode() + b"\n\n")
            span.end()  # before the answer does, as a span of an engine does
            self.piece(b"data: [DONE]\n\n")
            self.piece(b"")

        def do_GET(self):
            self.send_response(404)
            self.send_header("content-length", "0")
            self.end_headers()

        def piece(self, data):
            self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.states = []
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.mark.parametrize(("protocol", "peer"), [("http/protobuf", http_peer), ("grpc", grpc_peer)])
def test_client_gateway_and_engine_are_one_tree(protocol, peer, tmp_path):
    with peer() as sink, http_peer() as others, traced_engine() as engine:
        where = {"sink": sink.url, "protocol": protocol, "engine": f"http://127.0.0.1:{engine.server_port}"}
        with serving(tmp_path, FLEET, **where) as up:
            up.hear("otlp: spans and metrics go to")
            admin = up.hear("board on").split()[-3].rstrip("/")
            engine.spans, engine_ends = tracer("vllm", f"{others.url}/v1/traces", f"{admin}/v1/traces")
            client, client_ends = tracer("client", f"{others.url}/v1/traces")
            with client.start_as_current_span("ask", kind=SpanKind.CLIENT) as span:
                headers = {"tracestate": "congo=t61rcWkgMzE"}
                W3C.inject(headers, trace.set_span_in_context(span))
                sdk = openai.OpenAI(
                    base_url=f"{up.url}/v1", api_key="any", default_headers=headers, max_retries=0
                )
                with sdk:
                    list(
                        sdk.chat.completions.create(
                            model="m", messages=[{"role": "user", "content": "x"}], stream=True
                        )
                    )
            trace_id = f"{span.get_span_context().trace_id:032x}"
            root = f"{span.get_span_context().span_id:016x}"
            mine = {one.name: one for _, _, one in sink.spans(5)}
            engine_ends()
            client_ends()
            while not (counts := up.samples()).get(("sits_otlp_spans_total", ("sent",))):
                threading.Event().wait(0.05)
            assert counts["sits_otlp_spans_total", ("sent",)] == 5
            assert counts["sits_otlp_spans_total", ("received",)] == 1
            assert counts["sits_otlp_spans_total", ("dropped",)] == 0
            theirs = {one.name: one for _, _, one in others.spans(2)}
            up.stop()
        server, call, ran = mine["POST /v1/chat/completions"], mine["chat m"], theirs["llm_request"]
        assert {one.trace_id.hex() for one in (*mine.values(), *theirs.values())} == {trace_id}
        assert theirs["ask"].parent_span_id == b""
        assert server.parent_span_id.hex() == root
        assert call.parent_span_id == server.span_id
        assert ran.parent_span_id == call.span_id
        assert engine.states == ["congo=t61rcWkgMzE"]
        assert call.span_id.hex() == attributes(server.attributes)["sits.request_id"][16:]
        begins = [theirs["ask"], server, call, ran]
        assert [one.start_time_unix_nano for one in begins] == sorted(
            one.start_time_unix_nano for one in begins
        )
        names = {
            metric.name
            for metric in sink.metrics.get(timeout=20).resource_metrics[0].scope_metrics[0].metrics
        }
        assert {"gen_ai.server.request.duration", "gen_ai.client.inference.duration"} <= names
    with DuckStore(tmp_path / "store") as store:
        rows = store.columns("requests_window")
        seen = store.columns("sightings_window")
        joined = completed(rows, seen)
    assert list(seen["parent_id"]) == [call.span_id.hex()]
    assert [(one.comparable, one.shift_ns, one.filled) for one in joined.sources] == [(True, 0, 1)]
    assert rows["dispatched"][0] <= joined.requests["engine_recv"][0] <= rows["first_token"][0]
    with pytest.raises(Exception, match="1 completed requests"):
        why(tmp_path / "store", 900 * SECOND, RealWorld())
