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
from scripted_sockets import drips, hangs, says, scripted
from sits.telemetry.posting import Answer
from sits.telemetry.spans_json import ERROR, SERVER, Event, Span, encoded
from sits.telemetry.spans_out import SpansOut, endpoint_of, headers_of

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


OK = says("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")


@pytest.mark.parametrize(
    ("first", "told"),
    [
        (says("HTTP/1.1 500 Oops\r\ncontent-length: 0\r\n\r\n"), "answers 500"),
        (says("HTTP/1.1 404 None\r\ncontent-length: 0\r\n\r\n"), "answers 404"),
        (
            says("HTTP/1.1 308 Moved\r\nlocation: http://127.0.0.1:9/x\r\ncontent-length: 0\r\n\r\n"),
            "answers 308: the answer points to http://127.0.0.1:9/x; redirects are not followed",
        ),
    ],
    ids=["500", "404", "308"],
)
def test_what_the_protocol_does_not_try_again_is_lost_counted_and_told_and_the_next_batch_goes(
    first, told, caplog
):
    with scripted(first, OK) as (port, came), caplog.at_level("WARNING", logger="sits"):
        out = SpansOut(f"http://127.0.0.1:{port}/v1/traces", {}, period_s=0.001)
        out.put(a_span("first"))
        assert out.flush(20)
        assert (out.sent, out.failed, len(came)) == (0, 1, 1)
        out.put(a_span("last"))
        out.close(20)
        assert (out.sent, out.failed, len(came)) == (1, 1, 2), (
            "who answers is waited for at the end, though he refused before"
        )
    said = [record.message for record in caplog.records]
    assert told in said[0]
    assert (
        said[1]
        == "spans: 1 spans lost: 0 dropped, for the queue of 4096 was full; 1 refused or not delivered"
    )
    assert len(said) == 2


@pytest.mark.parametrize(
    "first", [hangs, drips(b"HTTP/1.1 200 OK\r\nx: "), drips(b"")], ids=["hangs", "drips a header", "drips"]
)
def test_a_receiver_that_never_ends_its_answer_is_left_and_asked_again(first):
    with scripted(first, OK) as (port, came):
        out = SpansOut(f"http://127.0.0.1:{port}/v1/traces", {}, period_s=0.001, timeout_s=0.2)
        out.put(a_span())
        assert out.flush(20)
        assert (out.sent, out.failed) == (1, 0)
        assert len(came) >= 2
        out.close()


def test_spans_that_a_receiver_rejected_of_a_batch_it_took_are_not_sent_again(caplog):
    body = json.dumps({"partialSuccess": {"rejectedSpans": "2", "errorMessage": "too old\n"}})
    with scripted(says(f"HTTP/1.1 200 OK\r\ncontent-length: {len(body)}\r\n\r\n{body}")) as (port, came):
        out = SpansOut(f"http://127.0.0.1:{port}/v1/traces", {}, period_s=600)
        for _ in range(3):
            out.put(a_span())
        assert out.flush(20)
        out.close()
        assert (out.sent, out.failed, len(came)) == (1, 2, 1)
    assert r"rejected 2 of 3 spans: too old\n" in caplog.text


def test_a_wait_that_is_asked_for_is_kept_and_others_grow(monkeypatch):
    waits, answers = [], [Answer(503), Answer(503, 240.0), Answer(0), Answer(502), Answer(200)]
    out = SpansOut("http://nowhere.invalid", {}, period_s=4.0, post=lambda *_: answers.pop(0))
    monkeypatch.setattr(out._turn, "wait_for", lambda _, timeout: waits.append(timeout))
    out._deliver([a_span()])
    spread = waits[0] / 4
    assert 0.75 <= spread <= 1.25
    assert waits == [4 * spread, 240.0, 16 * spread, 30 * spread]
    assert (out.sent, out.failed) == (1, 0)


def test_many_threads_put_and_each_span_is_sent_or_counted(caplog):
    gate, entered = threading.Event(), threading.Event()

    def post(*_):
        entered.set()
        gate.wait(20)
        return Answer(200)

    out = SpansOut("http://nowhere.invalid", {}, capacity=100, period_s=0.001, post=post)
    out.put(a_span())
    assert entered.wait(20)
    taken = []
    threads = [
        threading.Thread(target=lambda: taken.append(sum(out.put(a_span()) for _ in range(2000))))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 100 <= sum(taken) <= 100 + len(threads), "the bound may be overshot by a span each"
    assert sum(taken) + out.dropped == 16_000
    gate.set()
    assert out.flush(20)
    assert out.sent == 1 + sum(taken)
    out.close()
    lost = [record.message for record in caplog.records]
    assert lost == [
        f"spans: {out.dropped} spans lost: {out.dropped} dropped, for the queue of 100 was full; 0 refused or not delivered"
    ]


def test_a_forked_child_counts_and_tells_for_itself_and_a_closed_sender_stays_closed():
    code = """
import logging, os, sys
from sits.telemetry.spans_json import Span
from sits.telemetry.spans_out import SpansOut
logging.basicConfig(format="%(message)s", stream=sys.stdout)
span = Span("ab" * 16, "cd" * 8, "", "x", 1, 2)
out = SpansOut(sys.argv[1], {"service.instance.id": f"h:{os.getpid()}"}, period_s=0.001, capacity=1)
closed = SpansOut(sys.argv[1], {})
closed.close()
out.put(span)
out.flush(20)
def told(who):
    print(who, out.sent, out.dropped, out.failed, sorted(out._told), closed.put(span), out.resource["service.instance.id"] == f"h:{os.getpid()}", flush=True)
told("parent")
sys.stdout.flush()
pid = os.fork()
if pid == 0:
    told("child")
    out.put(span)
    out.flush(20)
    told("child")
    os._exit(0)
os.waitpid(pid, 0)
told("parent")
os._exit(0)
"""
    with scripted(says("HTTP/1.1 500 Oops\r\ncontent-length: 0\r\n\r\n")) as (port, _):
        url = f"http://127.0.0.1:{port}/v1/traces"
        done = subprocess.run(
            [sys.executable, "-c", code, url], check=True, timeout=60, capture_output=True, text=True
        )
    trouble = [
        f"spans: {url} answers 500: ",
        "spans: 1 spans lost: 0 dropped, for the queue of 1 was full; 1 refused or not delivered",
    ]
    assert done.stdout.splitlines() == [
        *trouble,
        "parent 0 0 1 ['answers 500'] False True",
        "child 0 0 0 [] False True",
        *trouble,
        "child 0 0 1 ['answers 500'] False True",
        "parent 0 0 1 ['answers 500'] False True",
    ]


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
