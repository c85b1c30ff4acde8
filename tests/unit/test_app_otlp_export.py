"""Our spans and metrics at a receiver that is not ours, over both protocols and by both tables of names."""

import os

import grpc
import pytest

from otlp_cases import request_id, requests, row, whole
from otlp_peers import attributes, grpc_peer, http_peer
from scripted_sockets import drips, hangs, says, scripted
from sits.app.otlp.exporting import BATCH_ROWS, Exporter, providers_of
from sits.app.otlp.progress import Progress
from sits.app.otlp.sending import sender_of
from sits.app.otlp.target import target_of
from sits.core import otel_names as names
from sits.core.errors import ConfigError
from sits.core.fleet_otlp import Export, Header
from sits.core.units import SECOND
from sits.telemetry.otlp.protobuf import messages
from sits.telemetry.store import DuckStore
from sits.world import RealWorld

PEERS = {"grpc": grpc_peer, "http/protobuf": http_peer}
PER = 5
"""Spans of one whole row: the request, the call, route, decode, respond."""
RESOURCE = {"service.name": "sits", "deployment.environment.name": "prod"}


class Patient(RealWorld):
    """A world whose dice make waits short: what is tested is the order of things, not how long they take."""

    def rng(self, stream):
        return self

    def uniform(self, low, high):
        return low * 0.002


def exporter(path, url, protocol, world=None, **told):
    world = world or Patient()
    export = Export(endpoint=url, protocol=protocol, **told)
    target = target_of(export, {}, RESOURCE)
    known = messages()
    return Exporter(path, export, target, sender_of(target, known), known, {"a": "vllm"}, world, look_s=0.01)


def write(path, *rows):
    with DuckStore(path) as store:
        store.append("requests", requests(*rows))


@pytest.mark.parametrize("protocol", PEERS)
@pytest.mark.parametrize("semconv", names.CONVENTIONS)
def test_spans_and_metrics_arrive_as_the_conventions_have_them(protocol, semconv, tmp_path):
    with PEERS[protocol]() as peer:
        write(tmp_path, row(99, whole()))  # from before
        headers = (Header(name="authorization", value="Bearer x"),)
        one = exporter(tmp_path, peer.url, protocol, semconv=semconv, headers=headers)
        write(
            tmp_path,
            row(0, whole(), parent_id="00f067aa0ba902b7"),
            row(1, whole(5), outcome="failed", status=502, detail="d"),
        )
        one.round()
        one._send_metrics()
        found = peer.spans(2 * PER)
        assert (one.sent, one.dropped, one.trouble) == (len(found), 0, "")
        (resource,) = {tuple(sorted(attributes(resource.attributes).items())) for resource, _, _ in found}
        assert dict(resource) == {**RESOURCE, "sits.run_id": "run-1"}
        by_id = {span.span_id: span for _, _, span in found}
        server = by_id[bytes.fromhex(request_id(0)[:16])]
        call = by_id[bytes.fromhex(request_id(0)[16:])]
        assert server.parent_span_id.hex() == "00f067aa0ba902b7"
        assert (call.parent_span_id, call.name, call.kind) == (server.span_id, "chat llama", 3)
        assert attributes(call.attributes)["gen_ai.provider.name"] == "vllm"
        assert by_id[bytes.fromhex(request_id(1)[16:])].status.code == 2
        assert {schema for _, schema, _ in found} == {names.CONVENTIONS[semconv].schema_url}
        assert {key.lower(): v for key, v in peer.asked[0].items()}["authorization"] == "Bearer x"
        (group,) = peer.metrics.get(timeout=20).resource_metrics
        told = {metric.name: metric for metric in group.scope_metrics[0].metrics}
        assert {"gen_ai.server.request.duration", "gen_ai.server.time_to_first_token"} <= set(told)
        assert names.CONVENTIONS[semconv].duration in told
        other = next(v for k, v in names.CONVENTIONS.items() if k != semconv)
        assert other.duration not in told
        (ttft,) = told["gen_ai.server.time_to_first_token"].histogram.data_points
        assert tuple(ttft.explicit_bounds) == names.TTFT_BUCKETS
        assert (ttft.count, round(ttft.sum, 6)) == (1, 0.1)
        assert list(ttft.bucket_counts).index(1) == names.TTFT_BUCKETS.index(0.1), (
            "a value on a bound is below it"
        )
        durations = told["gen_ai.server.request.duration"].histogram.data_points
        assert sorted(attributes(point.attributes).get("error.type", "") for point in durations) == ["", "d"]


LATER = {
    "grpc": [
        (grpc.StatusCode.UNAVAILABLE, 0),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, 0.01),
        (grpc.StatusCode.DEADLINE_EXCEEDED, 0),
    ],
    "http/protobuf": [(503, {}), (429, {"retry-after": "0"}), (502, {}), (504, {})],
}
NEVER = {
    "grpc": [(grpc.StatusCode.INVALID_ARGUMENT, 0), (grpc.StatusCode.PERMISSION_DENIED, 0)],
    "http/protobuf": [(400, {}), (401, {}), (500, {})],
}


@pytest.mark.parametrize("protocol", PEERS)
def test_what_is_refused_for_now_is_sent_again(protocol, tmp_path):
    with PEERS[protocol](*LATER[protocol]) as peer:
        one = exporter(tmp_path, peer.url, protocol)
        write(tmp_path, row(0, whole()))
        one.round()
        assert (one.retries, one.dropped, one.trouble) == (len(LATER[protocol]), 0, "")
        assert len(peer.spans(PER)) == one.sent


@pytest.mark.parametrize("protocol", PEERS)
def test_what_is_refused_for_good_is_dropped_and_counted_and_the_next_one_goes(protocol, tmp_path):
    for refusal in NEVER[protocol]:
        with PEERS[protocol](refusal) as peer:
            path = tmp_path / str(refusal[0]).replace(".", "-")
            one = exporter(path, peer.url, protocol)
            write(path, *(row(n, whole(n)) for n in range(BATCH_ROWS + 1)))
            one.round()
            assert one.dropped == BATCH_ROWS * PER
            assert one.sent == PER
            assert one.retries == 0


def test_a_batch_is_tried_for_so_long_and_then_given_up(tmp_path):
    with http_peer(*[(503, {})] * 4) as peer:
        one = exporter(tmp_path, peer.url, "http/protobuf", retry_for=0)
        write(tmp_path, row(0, whole()))
        one.round()
        assert (one.sent, one.dropped, one.retries) == (0, PER, 0)
        assert "HTTP 503: not now" in one.trouble


def test_a_receiver_may_refuse_a_part(tmp_path):
    with http_peer() as peer:
        peer.rejects = 3
        one = exporter(tmp_path, peer.url, "http/protobuf")
        write(tmp_path, row(0, whole()))
        one.round()
        assert (one.sent, one.rejected) == (PER - 3, 3)


@pytest.mark.parametrize("protocol", PEERS)
def test_a_restart_loses_nothing_and_repeats_nothing(protocol, tmp_path):
    with PEERS[protocol]() as peer:
        one = exporter(tmp_path, peer.url, protocol)
        write(tmp_path, *(row(n, whole(n)) for n in range(3)))
        one.round()
        write(tmp_path, *(row(n, whole(n)) for n in range(3, 5)))
        exporter(tmp_path, peer.url, protocol).round()
        calls = [span.span_id.hex() for _, _, span in peer.spans(5 * PER) if span.kind == 3]
        assert sorted(calls) == sorted(request_id(n)[16:] for n in range(5))


def test_a_death_between_batches_repeats_no_batch_that_was_over(tmp_path):
    n = BATCH_ROWS * 3
    with http_peer() as peer:
        one = exporter(tmp_path, peer.url, "http/protobuf")
        write(tmp_path, *(row(i, whole(i)) for i in range(n)))
        sends, send = [], one._sender.send

        def die():
            raise SystemExit

        one._sender.send = lambda *what: (sends.append(1), send(*what))[1] if len(sends) < 2 else die()
        with pytest.raises(SystemExit):
            one.round()
        again = exporter(tmp_path, peer.url, "http/protobuf")
        again.round()
        calls = [span.span_id for _, _, span in peer.spans(n * PER) if span.kind == 3]
        assert len(calls) == len(set(calls)) == n
        again.round()
        assert again.sent == BATCH_ROWS * PER
        assert not (tmp_path / "otlp-export.sent").exists()


def test_stopped_while_the_receiver_is_away_it_goes_on_the_next_time(tmp_path):
    with http_peer(*[(503, {"retry-after": "60"})] * 2) as peer:
        one = exporter(tmp_path, peer.url, "http/protobuf", metrics_every=0)
        write(tmp_path, row(0, whole()))
        one.start()
        assert peer.came.wait(20)
        one.stop()
        assert not one._thread.is_alive()
        assert (one.sent, one.dropped) == (0, 0)
        peer.refusals.clear()
        exporter(tmp_path, peer.url, "http/protobuf").round()
        assert len(peer.spans(PER)) == PER


def test_nobody_there_is_worth_another_try(tmp_path):
    for protocol in PEERS:
        one = exporter(tmp_path / protocol, "http://127.0.0.1:9", protocol, retry_for=0)
        write(tmp_path / protocol, row(0, whole()))
        one.round()
        assert one.dropped == PER
        assert one.trouble


@pytest.mark.parametrize("script", [hangs, drips(b"HTTP/1.1 200 OK\r\nx: ")], ids=["hangs", "drips"])
def test_a_receiver_that_never_ends_its_answer_holds_nobody(script):
    with scripted(script) as (port, _):
        export = Export(endpoint=f"http://127.0.0.1:{port}", protocol="http/protobuf", timeout=SECOND // 5)
        target = target_of(export, {}, RESOURCE)
        known = messages()
        sender = sender_of(target, known)
        answer = sender.send("traces", known.traces.ExportTraceServiceRequest())
        sender.close()
    assert (answer.taken, answer.later) == (False, True)
    assert "within 0.2 s" in answer.text or "timed out" in answer.text


def test_a_date_to_come_again_is_held_against_the_answers_own_date():
    dates = "date: Tue, 01 Dec 2026 00:00:00 GMT\r\nretry-after: Tue, 01 Dec 2026 00:01:30 GMT"
    with scripted(says(f"HTTP/1.1 503 Busy\r\n{dates}\r\ncontent-length: 0\r\n\r\n")) as (port, _):
        target = target_of(
            Export(endpoint=f"http://127.0.0.1:{port}", protocol="http/protobuf"), {}, RESOURCE
        )
        known = messages()
        sender = sender_of(target, known)
        answer = sender.send("traces", known.traces.ExportTraceServiceRequest())
        sender.close()
    assert (answer.taken, answer.later, answer.after_s) == (False, True, 90.0)


def test_a_redirect_is_told_and_not_followed():
    moved = says("HTTP/1.1 307 Go\r\nlocation: https://collector/v1/traces\r\ncontent-length: 0\r\n\r\n")
    with scripted(moved) as (port, _):
        target = target_of(
            Export(endpoint=f"http://127.0.0.1:{port}", protocol="http/protobuf"), {}, RESOURCE
        )
        known = messages()
        sender = sender_of(target, known)
        answer = sender.send("traces", known.traces.ExportTraceServiceRequest())
        sender.close()
    assert (answer.taken, answer.later) == (False, False)
    assert (
        "HTTP 307: the answer points to https://collector/v1/traces; redirects are not followed"
        in answer.text
    )


def test_another_receiver_begins_with_what_is_new(tmp_path):
    with http_peer() as peer:
        exporter(tmp_path, peer.url, "http/protobuf")
        write(tmp_path, row(0, whole()))
        other = exporter(tmp_path, f"{peer.url}/", "http/protobuf")
        assert Progress(tmp_path, other._target.shown).cursor is not None


# -- where to --------------------------------------------------------------------------------------------------


def test_what_the_fleet_leaves_open_the_variables_say():
    environ = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318/",
        "OTEL_EXPORTER_OTLP_HEADERS": "a=1,b=x%20y",
        "OTEL_EXPORTER_OTLP_TIMEOUT": "2500",
        "OTEL_SEMCONV_STABILITY_OPT_IN": "gen_ai_latest_experimental",
        "OTEL_RESOURCE_ATTRIBUTES": "team=t",
        "OTEL_SERVICE_NAME": "edge",
    }
    told = target_of(Export(headers=(Header(name="b", value="z"),)), environ, RESOURCE)
    assert told.urls == {"traces": "http://c:4318/v1/traces", "metrics": "http://c:4318/v1/metrics"}
    assert told.headers == {"a": "1", "b": "z"}
    assert (told.timeout_s, told.convention.version) == (2.5, "genai-0.1.0")
    assert told.resource == {"team": "t", "service.name": "edge", "deployment.environment.name": "prod"}
    exact = {
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://t:1/x",
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
    }
    assert target_of(Export(), exact, {}).urls["traces"] == "http://t:1/x"
    assert (
        target_of(Export(), {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, {}).urls["traces"]
        == "http://localhost:4317"
    )
    assert target_of(Export(endpoint="http://e:1"), exact, {}).urls["traces"] == "http://e:1/v1/traces"


@pytest.mark.parametrize(
    ("export", "environ", "says"),
    [
        (Export(headers=(Header(name="a", env="NO_SUCH"),)), {}, "NO_SUCH"),
        (Export(), {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"}, "http/json"),
        (Export(), {"OTEL_EXPORTER_OTLP_ENDPOINT": "c:4318"}, "no URL"),
        (Export(), {"OTEL_EXPORTER_OTLP_TIMEOUT": "10s"}, "TIMEOUT"),
    ],
)
def test_what_cannot_be_is_told(export, environ, says):
    with pytest.raises(ConfigError, match=says):
        target_of(export, environ, {})


def test_who_made_what_answers():
    class Engine:
        def __init__(self, name):
            self.name = name

    kinds = ["anthropic", "emulated", "openai"]
    assert providers_of([Engine(k) for k in kinds], lambda e: e.name) == {
        "anthropic": "anthropic", "emulated": "sits", "openai": "openai",
    }  # fmt: skip
    assert os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT") is None


@pytest.mark.parametrize(
    "endpoint", ["http://me:secret@collector:4318", "https://secret@collector", "secret@collector:4317"]
)
def test_a_password_in_an_endpoint_is_refused_and_not_shown(endpoint):
    protocol = "grpc" if "://" not in endpoint else "http/protobuf"
    with pytest.raises(ConfigError, match="as a header") as refusal:
        target_of(Export(protocol=protocol), {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint}, RESOURCE)
    assert "secret" not in str(refusal.value)
    assert "secret" not in repr(vars(refusal.value))


def test_a_header_that_no_request_can_carry_is_told_at_the_start_without_its_value():
    told = {"OTEL_EXPORTER_OTLP_HEADERS": "authorization=Bearer%20x%0A"}
    assert target_of(Export(), told, RESOURCE).headers == {"authorization": "Bearer x"}, (
        "as a file of it ends"
    )
    for said in ("authorization=hid%0D%0Aden", "authorization=hid\u20acden", "a%20b:=hidden"):
        with pytest.raises(ConfigError, match="no request can carry") as refusal:
            target_of(Export(), {"OTEL_EXPORTER_OTLP_HEADERS": said}, RESOURCE)
        assert "den" not in str(refusal.value)


def test_a_bug_in_sending_is_told_and_the_rows_go_the_next_time(tmp_path):
    with http_peer() as peer:
        one = exporter(tmp_path, peer.url, "http/protobuf", metrics_every=0)
        write(tmp_path, row(0, whole()))
        send, one._sender.send = one._sender.send, lambda *_: 1 / 0
        one.round()
        assert one.failures == 1
        assert "ZeroDivisionError" in one.trouble
        one._sender.send = send
        one.round()
        assert one.sent == PER
