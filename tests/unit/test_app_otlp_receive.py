"""Our receivers, sent to by the OpenTelemetry SDK's own exporters and by people who mean no good."""

import gzip
import http.client
import json
from urllib.parse import urlsplit

import duckdb
import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as traces
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.trace import SpanKind

from otlp_servers import receivers
from sits.app.otlp import rpc_status
from sits.app.otlp.receiving_grpc import SERVICE
from sits.core.breakpoints import INDEX
from sits.telemetry.otlp.protobuf import messages
from sits.telemetry.otlp.protobuf import traces as encoded
from sits.telemetry.otlp.received import BODY_MAX
from sits.telemetry.spans_json import Span
from sits.telemetry.spans_json import encoded as encoded_json
from sits.telemetry.store import DuckStore
from sits.telemetry.writer import StoreWriter

KNOWN = messages()
SPAN = Span("ab" * 16, "cd" * 8, "", "llm_request", 10**18, 10**18 + 5, {"gen_ai.latency.e2e": 1.0})


def exporters(server):
    return {
        "grpc": GrpcExporter(endpoint=server.grpc, insecure=True),
        "grpc, gzip": GrpcExporter(endpoint=server.grpc, insecure=True, compression=grpc.Compression.Gzip),
        "http": HttpExporter(endpoint=f"{server.url}/v1/traces"),
        "http, gzip": HttpExporter(endpoint=f"{server.url}/v1/traces", compression=Compression.Gzip),
    }


def post(server, body, headers, path="/v1/traces"):
    connection = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=20)
    try:
        connection.request("POST", path, body, headers)
        answer = connection.getresponse()
        return answer.status, dict(answer.headers), answer.read()
    finally:
        connection.close()


JSON, PROTOBUF = {"content-type": "application/json"}, {"content-type": "application/x-protobuf"}


def test_spans_of_the_sdk_come_in_by_every_way_and_reach_the_store(tmp_path):
    with receivers() as server:
        for name, exporter in exporters(server).items():
            provider = TracerProvider(resource=Resource({"service.name": name, "service.instance.id": "i"}))
            provider.add_span_processor(SimpleSpanProcessor(exporter))
            tracer = provider.get_tracer("vllm.tracing.otel")
            with tracer.start_as_current_span("gateway", kind=SpanKind.CLIENT):
                about = {"gen_ai.latency.time_to_first_token": 0.5, "tags": ["a", "b"], "ok": True}
                tracer.start_span("llm_request", kind=SpanKind.SERVER, attributes=about).end()
            provider.shutdown()
        assert (server.inbox.requests, server.inbox.spans, server.inbox.rejected) == (8, 8, 0)
        with DuckStore(tmp_path) as store:
            StoreWriter(store, server.inbox.sources).write()
        assert server.inbox.held == 0

    def rows(table, columns):
        return duckdb.sql(f"SELECT {columns} FROM read_parquet('{tmp_path}/{table}/*/*.parquet')").fetchall()

    spans = rows("spans", "service, name, kind, status, attributes, trace_id, span_id, parent_id")
    seen = rows("sightings", "source, scheme, exactness, trace_id, parent_id")
    assert {service for service, *_ in spans} == {
        f"{name}@i" for name in ("grpc", "grpc, gzip", "http", "http, gzip")
    }
    mine = [row for row in spans if row[1] == "llm_request"]
    assert {(kind, status) for _, _, kind, status, *_ in mine} == {("SERVER", "UNSET")}
    assert json.loads(mine[0][4]) == {
        "gen_ai.latency.time_to_first_token": 0.5,
        "tags": ["a", "b"],
        "ok": True,
    }
    parents = {row[6]: row for row in spans}
    assert all(parents[row[7]][1] == "gateway" for row in mine)
    assert len(seen) == 4
    assert {(scheme, exactness[INDEX["engine_recv"]]) for _, scheme, exactness, *_ in seen} == {("vllm", "3")}
    assert {(row[3], row[4]) for row in seen} == {(row[5], row[7]) for row in mine}


def test_json_of_a_probe_comes_in_and_is_answered_in_json():
    with receivers() as server:
        bad = SPAN._replace(start_ns=0)
        status, headers, body = post(server, encoded_json({}, [SPAN, bad]), JSON)
        assert (status, headers["content-type"]) == (200, "application/json")
        assert json.loads(body) == {
            "partialSuccess": {"rejectedSpans": "1", "errorMessage": "1 with no valid time"}
        }
        assert json.loads(post(server, encoded_json({}, [SPAN]), JSON)[2]) == {}
        body = gzip.compress(encoded_json({}, [SPAN]))
        assert post(server, body, {**JSON, "content-encoding": "gzip"})[0] == 200
        assert len(server.stored()["spans"]["trace_id"]) == 3


def test_a_part_refused_is_told_in_protobuf_over_both():
    request = encoded({}, [SPAN, SPAN._replace(trace_id="0" * 32), SPAN], KNOWN)
    with receivers() as server:
        status, _, body = post(server, request.SerializeToString(), PROTOBUF)
        told = [traces.ExportTraceServiceResponse.FromString(body)]
        with grpc.insecure_channel(server.grpc) as channel:
            told.append(call(channel, request.SerializeToString()))
    assert status == 200
    for answer in told:
        assert answer.partial_success.rejected_spans == 1
        assert answer.partial_success.error_message == "1 with no valid trace id"


def call(channel, body, **more):
    export = channel.unary_unary(f"/{SERVICE}/Export", bytes, traces.ExportTraceServiceResponse.FromString)
    return export(body, timeout=20, **more)


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (b"\xff\xff\xff garbage", PROTOBUF, 400),
        (b"{", JSON, 400),
        (b'{"resourceSpans": 7}', JSON, 400),
        (b"not gzip", {**JSON, "content-encoding": "gzip"}, 400),
        (b"x", {**JSON, "content-encoding": "zstd"}, 400),
        (gzip.compress(b"\0" * (BODY_MAX + 1), mtime=0), {**PROTOBUF, "content-encoding": "gzip"}, 413),
        (b"{}", {"content-type": "text/plain"}, 415),
        (b"{}", {}, 415),
    ],
)
def test_what_is_no_otlp_is_refused_and_nothing_is_held(body, headers, status):
    with receivers() as server:
        got, answered, text = post(server, body, headers)
        assert got == status
        assert text
        if status != 415:
            assert answered["content-type"] == headers["content-type"]
        assert (server.inbox.held, server.inbox.spans) == (0, 0)
        assert post(server, b"{}", JSON)[0] == 200, "and the next one is taken"


def test_a_body_beyond_the_limit_is_not_read_to_its_end():
    with receivers() as server:
        assert post(server, b"", {**JSON, "content-length": str(BODY_MAX + 1)})[0] == 413
        assert server.inbox.held == 0


def test_no_room_is_come_again_later_over_both():
    body = encoded({}, [SPAN], KNOWN).SerializeToString()
    with receivers(bytes_max=len(body)) as server, grpc.insecure_channel(server.grpc) as channel:
        assert post(server, body, PROTOBUF)[0] == 200
        status, headers, _ = post(server, body, PROTOBUF)
        assert (status, headers["retry-after"]) == (429, "2")
        with pytest.raises(grpc.RpcError) as caught:
            call(channel, body)
        assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        ((_, details),) = [one for one in caught.value.trailing_metadata() if one[0] == rpc_status.KEY]
        assert_asks_for_two_seconds(details)
        assert server.inbox.refused == 2
        server.stored()
        assert post(server, body, PROTOBUF)[0] == 200


def assert_asks_for_two_seconds(details):
    """As the package of those messages reads them."""
    from google.rpc.error_details_pb2 import RetryInfo
    from google.rpc.status_pb2 import Status

    told, info = Status.FromString(details), RetryInfo()
    assert told.code == grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]
    assert told.details[0].Unpack(info)
    assert (info.retry_delay.seconds, info.retry_delay.nanos) == (2, 0)


@given(st.binary(max_size=60))
def test_details_that_are_none_ask_for_nothing(body):
    assert rpc_status.retry_after_s(body) >= 0


@given(st.integers(0, 20), st.text(max_size=300), st.integers(1, 10**13))
@settings(max_examples=30)
def test_details_are_read_as_they_were_written(code, message, nanos):
    assert rpc_status.retry_after_s(rpc_status.status(code, message, nanos / 1e9)) == pytest.approx(
        nanos / 1e9
    )


def test_rows_have_a_bound_as_well():
    with receivers(rows_max=1) as server:
        assert post(server, encoded_json({}, [SPAN, SPAN]), JSON)[0] == 200
        assert post(server, encoded_json({}, [SPAN]), JSON)[0] == 429


def test_garbage_over_grpc_is_an_invalid_argument_and_a_bomb_is_none_either():
    with receivers() as server, grpc.insecure_channel(server.grpc) as channel:
        for body, code, more in (
            (b"\xff\xff\xff", grpc.StatusCode.INVALID_ARGUMENT, {}),
            (
                b"\0" * (BODY_MAX + 1),
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                {"compression": grpc.Compression.Gzip},
            ),
        ):
            with pytest.raises(grpc.RpcError) as caught:
                call(channel, body, **more)
            assert caught.value.code() == code
        assert server.inbox.held == 0
        assert call(channel, b"").partial_success.rejected_spans == 0


def test_a_token_is_asked_for_over_both():
    with receivers(token="s3cret") as server, grpc.insecure_channel(server.grpc) as channel:
        assert post(server, b"{}", JSON)[0] == 401
        assert post(server, b"{}", {**JSON, "authorization": "Bearer other"})[0] == 401
        assert post(server, b"{}", {**JSON, "authorization": "Bearer s3cret"})[0] == 200
        with pytest.raises(grpc.RpcError) as caught:
            call(channel, b"")
        assert caught.value.code() == grpc.StatusCode.UNAUTHENTICATED
        call(channel, b"", metadata=(("authorization", "Bearer s3cret"),))


@pytest.mark.parametrize("path", ["/v1/metrics", "/v1/logs"])
def test_what_is_not_stored_is_not_taken(path):
    with receivers() as server:
        status, _, text = post(server, b"", PROTOBUF, path)
    assert status == 404
    assert b"sitsctl otel collector" in text


def test_the_refusal_in_protobuf_is_a_status_that_others_can_read():
    from google.rpc.status_pb2 import Status

    with receivers() as server:
        status, _, body = post(server, b"\xff\xff", PROTOBUF)
    assert status == 400
    assert "no ExportTraceServiceRequest" in Status.FromString(body).message
