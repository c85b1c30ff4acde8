"""Spans on their way out: what is posted, what is tried again, what is dropped, and what a process that ends still sends."""

import base64
import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import sits
from otlp_receiver import Received, otlp_receiver
from sits.telemetry.spans_json import ERROR, SERVER, Event, Span, encoded
from sits.telemetry.spans_out import Answer, SpansOut, endpoint_of, headers_of

TRACE, SPAN, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7", "1111111111111111"


def a_span(name="work", **more):
    return Span(TRACE, SPAN, PARENT, name, 1_000, 2_000, **more)


def test_an_independent_reader_of_the_protocol_understands_what_is_sent():
    json_format = pytest.importorskip("google.protobuf.json_format")
    service = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")
    attributes = {
        "n": 2**53 + 1,
        "huge": 2**70,
        "yes": True,
        "share": 0.25,
        "nan": float("nan"),
        "list": ["a", 1, [2]],
        "none": None,
        "odd": "\ud800é",
    }
    span = a_span(
        attributes=attributes,
        kind=SERVER,
        status=ERROR,
        message="out of room",
        events=[Event("exception", 1_500, {"exception.type": "ValueError"})],
        trace_state="a=b",
    )
    body = json.loads(encoded({"service.name": "rag"}, [span]))
    for one in Received.spans_of(body):
        for field in ("traceId", "spanId", "parentSpanId"):
            one[field] = base64.b64encode(bytes.fromhex(one[field])).decode()
    message = json_format.ParseDict(body, service.ExportTraceServiceRequest())
    resource = message.resource_spans[0]
    assert resource.resource.attributes[0].value.string_value == "rag"
    read = resource.scope_spans[0].spans[0]
    assert (read.trace_id.hex(), read.span_id.hex(), read.parent_span_id.hex()) == (TRACE, SPAN, PARENT)
    assert (read.start_time_unix_nano, read.end_time_unix_nano, read.kind) == (1_000, 2_000, SERVER)
    assert (read.status.code, read.status.message, read.trace_state) == (ERROR, "out of room", "a=b")
    assert read.events[0].name == "exception"
    values = {one.key: one.value for one in read.attributes}
    assert values["n"].int_value == 2**53 + 1
    assert values["huge"].string_value == str(2**70)
    assert values["yes"].bool_value is True
    assert values["share"].double_value == 0.25
    assert values["nan"].string_value == "nan"
    assert [v.WhichOneof("value") for v in values["list"].array_value.values] == [
        "string_value",
        "int_value",
        "string_value",
    ]
    assert "none" not in values
    assert values["odd"].string_value == "?é"


def test_an_attribute_that_cannot_be_shown_costs_only_itself():
    class Odd:
        def __str__(self):
            raise RuntimeError("no")

    sent = Received.spans_of(json.loads(encoded({}, [a_span(attributes={"odd": Odd(), "fine": 1})])))
    assert sent[0]["attributes"] == [
        {"key": "odd", "value": {"stringValue": "<Odd: RuntimeError>"}},
        {"key": "fine", "value": {"intValue": "1"}},
    ]


def test_spans_arrive_over_real_http_with_the_headers_asked_for():
    with otlp_receiver() as received:
        out = SpansOut(f"{received.url}/v1/traces", {"service.name": "rag"}, headers={"x-tenant": "a"})
        assert out.put(a_span())
        assert out.flush(20)
        status, body = received.next()
        out.close()
    assert (status, Received.spans_of(body)[0]["name"]) == (200, "work")
    assert (received.headers[0]["x-tenant"], received.headers[0]["content-type"]) == ("a", "application/json")
    assert (out.sent, out.dropped, out.failed) == (1, 0, 0)
    assert not out.put(a_span()), "no span is taken after the end"


def test_a_receiver_that_is_busy_is_asked_again_and_one_that_refuses_is_not():
    with otlp_receiver(503, 429, 200, 400) as received:
        out = SpansOut(f"{received.url}/v1/traces", {}, period_s=0.001)
        out.put(a_span("first"))
        assert out.flush(20)
        assert [received.next()[0] for _ in range(3)] == [503, 429, 200]
        assert (out.sent, out.failed) == (1, 0)
        out.put(a_span("second"))
        assert out.flush(20)
        assert received.next()[0] == 400
        assert (out.sent, out.failed) == (1, 1)
        out.close()


def test_a_full_queue_drops_and_counts_and_nobody_waits():
    gate, entered = threading.Event(), threading.Event()

    def post(*_):
        entered.set()
        gate.wait(20)
        return Answer(200)

    out = SpansOut("http://nowhere.invalid/v1/traces", {}, capacity=3, period_s=0.001, post=post)
    out.put(a_span())
    assert entered.wait(20)
    taken = [out.put(a_span()) for _ in range(10)]
    assert (taken.count(True), out.dropped) == (3, 7)
    gate.set()
    assert out.flush(20)
    assert out.sent == 4
    out.close()


def test_nobody_there_is_told_once_and_the_end_does_not_wait_for_him(caplog):
    posts = threading.Semaphore(0)

    def post(*_):
        posts.release()
        return Answer(0, 0.0, "connection refused")

    out = SpansOut("http://127.0.0.1:1/v1/traces", {}, period_s=0.001, post=post)
    with caplog.at_level("WARNING", logger="sits"):
        out.put(a_span())
        for _ in range(3):
            assert posts.acquire(timeout=20)
        out.close(timeout_s=600)
        out._thread.join(20)
    assert out.failed == 1
    assert len([r for r in caplog.records if "connection refused" in r.message]) == 1


def test_a_process_that_ends_sends_what_waits_and_so_does_its_forked_child():
    code = """
import os, sys
import sits
from sits.telemetry.spans_json import Span
from sits.telemetry.spans_out import SpansOut
out = SpansOut(sys.argv[1] + "/v1/traces", {}, period_s=600)
def say(name):
    out.put(Span("ab" * 16, "cd" * 8, "", name, 1, 2))
say("parent")
pid = os.fork()
if pid == 0:
    say("child")
    sys.exit(0)
os.waitpid(pid, 0)
"""
    with otlp_receiver() as received:
        subprocess.run([sys.executable, "-c", code, received.url], check=True, timeout=60)
        names = [[s["name"] for s in Received.spans_of(received.next()[1])] for _ in range(2)]
    assert sorted(names) == [["child"], ["parent"]]


@pytest.mark.parametrize("how", ["fork", "spawn"])
def test_a_process_of_multiprocessing_sends_what_waits_when_it_ends(how, tmp_path):
    code = """
import multiprocessing, sys
from sits.telemetry.spans_json import Span
from sits.telemetry.spans_out import SpansOut
def work(url):
    SpansOut(url + "/v1/traces", {}, period_s=600).put(Span("ab" * 16, "cd" * 8, "", "child", 1, 2))
if __name__ == "__main__":
    process = multiprocessing.get_context(sys.argv[2]).Process(target=work, args=(sys.argv[1],))
    process.start()
    process.join()
"""
    file = tmp_path / "main.py"
    file.write_text(code)
    with otlp_receiver() as received:
        subprocess.run([sys.executable, file, received.url, how], check=True, timeout=60)
        assert Received.spans_of(received.next()[1])[0]["name"] == "child"


def test_the_variables_of_opentelemetry_say_where_to():
    assert endpoint_of({}) == ""
    base = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://a:4318"}
    assert endpoint_of(base) == "http://a:4318/v1/traces"
    assert endpoint_of({**base, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://b/x"}) == "http://b/x"
    assert endpoint_of({**base, "OTEL_SDK_DISABLED": "True"}) == ""
    assert endpoint_of({**base, "OTEL_TRACES_EXPORTER": "none"}) == ""
    assert headers_of({"OTEL_EXPORTER_OTLP_HEADERS": "a=1,b = x%20y,broken"}) == {"a": "1", "b": "x y"}


def test_importing_it_loads_nothing_but_the_standard_library_and_little_of_that():
    code = (
        "import sys; before = set(sys.modules); import sits.telemetry.spans_out; new = set(sys.modules) - before;"
        "print(sorted(n for n in new if n.partition('.')[0] not in sys.stdlib_module_names and not n.startswith('sits')),"
        " 'http.client' in new, 'ssl' in new)"
    )
    shown = subprocess.run(
        [
            sys.executable,
            "-S",
            "-c",
            f"import sys; sys.path.insert(0, {str(Path(sits.__file__).parents[1])!r}); {code}",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert shown.stdout.split() == ["[]", "False", "False"]
