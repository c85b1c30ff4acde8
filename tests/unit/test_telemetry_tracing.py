"""`sits.span` and its company: contexts in and out, what is recorded of errors, ASGI, and beside the OpenTelemetry SDK."""

import asyncio
import inspect
import math
import os
import subprocess
import sys
import threading

import numpy as np
import pytest

import sits
from otlp_receiver import Received, otlp_receiver
from sits.telemetry import tracing_export
from sits.telemetry.spans_json import CLIENT, ERROR, SERVER, UNSET, Span, encoded, kept

TRACE, CALLER = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = f"00-{TRACE}-{CALLER}-01"


@pytest.fixture
def sent(monkeypatch):
    """Spans as they are handed to the exporter."""
    spans = []

    class Out:
        def put(self, span):
            spans.append(span)
            return True

    monkeypatch.setattr(tracing_export, "_EXPORTER", tracing_export._Exporter())
    tracing_export._EXPORTER.outs.append(Out())
    return spans


def test_spans_make_a_tree_and_contexts_go_out(sent):
    assert sits.current() is None
    assert sits.inject() == {}
    with sits.span("answer", tenant="acme") as outer:
        with sits.span("retrieve", kind="client") as inner:
            headers = sits.inject({"accept": "x"})
            inner.set(documents=3).event("cache miss", key="k")
        assert sits.current() == outer.context
    assert sits.current() is None
    first, second = sent
    assert (first.name, first.kind, first.parent_id) == ("retrieve", CLIENT, second.span_id)
    assert (first.trace_id, second.parent_id) == (second.trace_id, "")
    assert headers == {"accept": "x", "traceparent": f"00-{first.trace_id}-{first.span_id}-01"}
    assert (first.attributes, second.attributes) == ({"documents": 3}, {"tenant": "acme"})
    assert [event.name for event in first.events] == ["cache miss"]
    assert second.start_ns <= first.start_ns <= first.end_ns <= second.end_ns


def test_a_context_that_comes_in_is_gone_on_with(sent):
    headers = {"TraceParent": PARENT, "tracestate": "vendor=1"}
    with sits.span("answer", parent=sits.extract(headers)):
        out = sits.inject()
    assert (sent[0].trace_id, sent[0].parent_id, sent[0].trace_state) == (TRACE, CALLER, "vendor=1")
    assert out["tracestate"] == "vendor=1"


@pytest.mark.parametrize(
    "traceparent",
    [
        "",
        "00",
        PARENT + "-x",
        PARENT.upper(),
        "ff" + PARENT[2:],
        PARENT.replace(TRACE, "0" * 32),
        f"{PARENT}\n{PARENT}",
    ],
)
def test_what_is_no_context_begins_a_new_trace(traceparent):
    assert sits.extract({"traceparent": traceparent}) is None


def test_a_version_to_come_may_say_more():
    assert sits.extract({"traceparent": "01" + PARENT[2:] + "-what"}).trace_id == TRACE


def test_a_trace_its_caller_does_not_sample_is_passed_on_and_not_sent(sent):
    with sits.span("answer", parent=sits.extract({"traceparent": PARENT[:-1] + "0"})):
        assert sits.inject()["traceparent"].endswith("-00")
    assert sent == []


def test_an_exception_is_recorded_and_goes_on(sent):
    with pytest.raises(KeyError, match="no-such"), sits.span("look up"):
        raise KeyError("no-such")
    (span,) = sent
    assert (span.status, span.message) == (ERROR, "KeyError: 'no-such'")
    assert span.attributes["error.type"] == "KeyError"
    (event,) = span.events
    assert "test_telemetry_tracing.py" in event.attributes["exception.stacktrace"]


def test_being_cancelled_is_no_error(sent):
    async def main():
        async def work():
            async with sits.span("work"):
                started.set()
                await asyncio.Event().wait()

        started = asyncio.Event()
        task = asyncio.create_task(work())
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert (sent[0].status, sent[0].attributes) == (UNSET, {"cancelled": True})


def test_a_decorator_of_every_kind_of_function(sent):
    @sits.span("plain", a=1)
    def plain(x):
        """Says it."""
        return x + 1

    @sits.span("items")
    def items():
        yield from (1, 2)

    @sits.span("awaited")
    async def awaited():
        return 5

    @sits.span("stream")
    async def stream():
        yield 7

    async def main():
        return await awaited(), [one async for one in stream()]

    assert (plain(1), plain(2), plain.__doc__) == (2, 3, "Says it.")
    assert list(items()) == [1, 2]
    assert asyncio.run(main()) == (5, [7])
    assert [span.name for span in sent] == ["plain", "plain", "items", "awaited", "stream"]
    assert len({span.span_id for span in sent}) == 5, "each call has a span of its own"


def test_tasks_that_run_together_keep_their_own_contexts(sent):
    async def one(name):
        async with sits.span(name) as mine:
            for _ in range(3):
                await asyncio.sleep(0)
                assert sits.current() == mine.context
            with sits.span(f"in {name}"):
                await asyncio.sleep(0)

    async def main():
        with sits.span("all"):
            await asyncio.gather(*(one(str(i)) for i in range(10)))

    asyncio.run(main())
    by_id = {span.span_id: span for span in sent}
    for span in sent:
        if span.name.startswith("in "):
            assert by_id[span.parent_id].name == span.name[3:]
        elif span.name != "all":
            assert by_id[span.parent_id].name == "all"


def test_loops_of_several_threads_make_trees_of_their_own_and_all_arrives(monkeypatch):
    """The first spans of all threads end at the same moment: one sender is made, and none is lost before it is."""
    together = threading.Barrier(6)

    async def one(name):
        async with sits.span(name):
            await asyncio.sleep(0)
            async with sits.span(f"in {name}"):
                together.wait(20)
                await asyncio.sleep(0)

    async def main(thread):
        async with sits.span(f"all of {thread}"):
            await asyncio.gather(one(f"{thread} first"))
            await asyncio.gather(*(one_more(f"{thread} {i}") for i in range(20)))

    async def one_more(name):
        async with sits.span(name):
            await asyncio.sleep(0)
            with sits.span(f"in {name}"):
                await asyncio.sleep(0)

    monkeypatch.setattr(tracing_export, "_EXPORTER", tracing_export._Exporter())
    with otlp_receiver() as received:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", received.url)
        threads = [threading.Thread(target=asyncio.run, args=(main(str(nth)),)) for nth in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sits.flush(20)
        (*_, out) = tracing_export._EXPORTER.outs
        out.close()
        spans = [span for _, body in list(received.bodies.queue) for span in Received.spans_of(body)]
    assert (out.sent, out.dropped, out.failed, len(spans)) == (6 * 43, 0, 0, 6 * 43)
    by_id = {span["spanId"]: span for span in spans}
    assert len({span["traceId"] for span in spans}) == 6
    for span in spans:
        above = by_id.get(span.get("parentSpanId", ""), {}).get("name", "")
        if span["name"].startswith("in "):
            assert above == span["name"][3:]
        elif not span["name"].startswith("all"):
            assert above == f"all of {span['name'].split()[0]}"


def test_what_a_process_says_of_itself_stays_though_a_first_span_ends_meanwhile(monkeypatch):
    """A thread that has begun to ask the variables is no reason to send elsewhere than `configure` says."""
    monkeypatch.setattr(tracing_export, "_EXPORTER", tracing_export._Exporter())
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9/variables")
    made, said = tracing_export._resource, []

    def interrupted(service, attributes):
        if not said:
            said.append(None)
            said[0] = sits.configure("mine", endpoint="http://127.0.0.1:9/said")
        return made(service, attributes)

    monkeypatch.setattr(tracing_export, "_resource", interrupted)
    with sits.span("first"):
        pass
    assert tracing_export._EXPORTER.outs[-1] is said[0]
    with said[0]._turn:
        assert len(said[0]._queue) + said[0]._taken == 1
    said[0].close(0)
    assert sits.configure() is not said[0]
    assert len(tracing_export._EXPORTER.outs) == 1


def test_a_child_that_is_forked_while_the_first_span_ends_does_not_wait_for_ever(monkeypatch):
    code = """
import os, signal, sits
from sits.telemetry import tracing_export
made, forked = tracing_export._resource, []
def interrupted(*told):
    if not forked:
        forked.append(0)
        forked[0] = os.fork()
        if not forked[0]:
            signal.alarm(20)  # ends who waits
            with sits.span("child's"):
                pass
            os._exit(0)
    return made(*told)
tracing_export._resource = interrupted
with sits.span("parent's"):
    pass
print(os.waitstatus_to_exitcode(os.waitpid(forked[0], 0)[1]))
os._exit(0)
"""
    env = {**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env, timeout=60
    )
    assert done.stdout == "0\n", done.stderr


def test_nothing_here_raises_into_the_code_it_times(monkeypatch, caplog):
    class Broken:
        def put(self, _):
            raise RuntimeError("no")

    monkeypatch.setattr(tracing_export, "_EXPORTER", tracing_export._Exporter())
    tracing_export._EXPORTER.outs.append(Broken())
    with caplog.at_level("WARNING", logger="sits"):
        for _ in range(3):
            with sits.span("work"):
                pass
    assert len(caplog.records) == 1


async def _call(app, headers=(), path="/x", method="GET"):
    sent = []

    async def send(message):
        sent.append(message)

    async def receive():
        return {"type": "http.request"}

    scope = {"type": "http", "method": method, "path": path, "headers": list(headers)}
    await app(scope, receive, send)
    return sent


def test_the_middleware_makes_a_span_of_a_request(sent):
    async def app(scope, receive, send):
        scope["route"] = type("Route", (), {"path": "/answers/{id}"})()
        with sits.span("inside"):
            await send({"type": "http.response.start", "status": 503, "headers": []})
            await send({"type": "http.response.body", "body": b"a", "more_body": True})
            await send({"type": "http.response.body", "body": b"b"})

    wrapped = sits.SpanMiddleware(app, attributes=lambda scope: {"tenant": "acme"}, skip=("/healthz",))
    messages = asyncio.run(_call(wrapped, [(b"traceparent", PARENT.encode())], "/answers/7"))
    assert len(messages) == 3
    inside, outer = sent
    assert (outer.trace_id, outer.parent_id, inside.parent_id) == (TRACE, CALLER, outer.span_id)
    assert (outer.name, outer.kind, outer.status) == ("GET /answers/{id}", SERVER, ERROR)
    assert outer.attributes == {
        "http.request.method": "GET",
        "url.path": "/answers/7",
        "tenant": "acme",
        "http.response.status_code": 503,
        "http.route": "/answers/{id}",
    }
    assert [event.name for event in outer.events] == ["first byte"]
    asyncio.run(_call(wrapped, path="/healthz"))
    assert [span.name for span in sent[2:]] == ["inside"], "a path that is skipped has no span of its own"


def test_an_application_that_raises_and_attributes_that_do(sent):
    async def app(scope, receive, send):
        raise ValueError("broken")

    def about(scope):
        raise RuntimeError("no tenant")

    with pytest.raises(ValueError, match="broken"):
        asyncio.run(_call(sits.SpanMiddleware(app, attributes=about)))
    assert (sent[0].name, sent[0].status, sent[0].message) == ("GET", ERROR, "ValueError: broken")
    assert [event.name for event in sent[0].events] == ["attributes failed", "exception"]


def test_beside_the_sdk_of_opentelemetry_both_make_one_tree():
    pytest.importorskip("opentelemetry.sdk.trace")
    code = """
import sys
from opentelemetry import trace, propagate
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
import sits
theirs = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(theirs))
tracer = provider.get_tracer("x")
sits.configure("mine", endpoint=sys.argv[1])
with tracer.start_as_current_span("outer"):
    with sits.span("ours"):
        with tracer.start_as_current_span("inner"):
            with sits.span("deep"):
                carrier = {}
                propagate.inject(carrier)
                assert carrier["traceparent"] == sits.inject()["traceparent"], carrier
    assert trace.get_current_span().name == "outer"
for span in theirs.get_finished_spans():
    print(span.name, f"{span.context.span_id:016x}", f"{span.parent.span_id:016x}" if span.parent else "-")
assert sits.flush(20)
"""
    with otlp_receiver() as received:
        done = subprocess.run(
            [sys.executable, "-c", code, received.url],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert (done.returncode, done.stderr) == (0, "")
        body = received.next()[1]
    ours = {span["name"]: span for span in Received.spans_of(body)}
    theirs = {name: (own, parent) for name, own, parent in map(str.split, done.stdout.splitlines())}
    assert ours["ours"]["parentSpanId"] == theirs["outer"][0]
    assert theirs["inner"][1] == ours["ours"]["spanId"]
    assert ours["deep"]["parentSpanId"] == theirs["inner"][0]
    resource = {
        pair["key"]: pair["value"]["stringValue"]
        for pair in body["resourceSpans"][0]["resource"]["attributes"]
    }
    assert resource["service.name"] == "mine"


def test_variables_configure_a_process_that_says_nothing():
    code = "import sits\nwith sits.span('work'): pass\n"
    with otlp_receiver() as received:
        env = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": received.url,
            "OTEL_SERVICE_NAME": "rag",
            "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment.name=prod",
            "OTEL_EXPORTER_OTLP_HEADERS": "authorization=Bearer%20k",
            "PYTHONPATH": str(sits.__path__[0]).removesuffix("/sits"),
        }
        subprocess.run([sys.executable, "-c", code], check=True, env=env, timeout=60)
        body = received.next()[1]
    resource = {
        pair["key"]: pair["value"]["stringValue"]
        for pair in body["resourceSpans"][0]["resource"]["attributes"]
    }
    assert (resource["service.name"], resource["deployment.environment.name"]) == ("rag", "prod")
    assert received.headers[0]["authorization"] == "Bearer k"


def test_importing_sits_loads_nothing_and_spans_load_the_standard_library_alone():
    code = """
import sys
before = set(sys.modules)
import sits
print([name for name in set(sys.modules) - before if name not in ("sits", "typing")])
sits.span
ours = {name.partition(".")[0] for name in set(sys.modules) - before} - {"sits"}
print(sorted(ours - set(sys.stdlib_module_names)), "asyncio" in ours, "http" in ours)
"""
    path = str(sits.__path__[0]).removesuffix("/sits")
    done = subprocess.run(
        [sys.executable, "-S", "-c", f"import sys, typing; sys.path.insert(0, {path!r})\n{code}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == ["[]", "[] False False"]


def test_an_unknown_name_is_told():
    with pytest.raises(AttributeError, match="no attribute 'spam'"):
        sits.spam  # noqa: B018


def test_a_generators_span_is_current_only_while_it_runs_and_it_hears_what_is_sent(sent):
    @sits.span("steps")
    def steps():
        got = []
        try:
            while True:
                got.append((yield sits.current().span_id))
        except KeyError:
            yield got
        return "end"

    one, two = steps(), steps()
    ids = next(one), next(two)
    assert ids[0] != ids[1]
    assert sits.current() is None, "what is between two steps is not inside of it"
    one.send("hi")
    assert one.throw(KeyError) == ["hi"]
    with pytest.raises(StopIteration, match="end"):
        next(one)
    two.close()
    assert sits.current() is None

    @sits.span("async steps")
    async def async_steps():
        got = yield 1
        try:
            yield got
        except KeyError:
            yield "caught"

    async def main():
        assert inspect.isasyncgenfunction(async_steps)
        made = async_steps()
        assert (await anext(made), sits.current()) == (1, None)
        assert await made.asend("S") == "S"
        assert await made.athrow(KeyError) == "caught"
        await made.aclose()

    asyncio.run(main())
    assert [one.name for one in sent] == ["steps", "steps", "async steps"]


def test_misuse_is_told_and_never_raised(sent):
    used = sits.span("twice")
    with used, used:
        pass
    used.__exit__(None, None, None)
    sits.span("never begun").__exit__(None, None, None)
    for parent in ("00-x", 5):
        with sits.span("x", parent=parent, kind="nope"):
            pass
    with pytest.raises(SystemExit), sits.span("ends well") as one:
        raise SystemExit(0)
    assert one._status == 0
    assert sits.current() is None
    for headers in (None, [("traceparent", "x")], {"traceparent": 5}):
        assert sits.extract(headers) is None
    parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    assert sits.extract({b"TraceParent": parent.encode()}).span_id == "00f067aa0ba902b7"
    assert sits.extract({"traceparent": parent, "tracestate": "a=\r\nX: 1"}).state == ""


def test_attributes_and_exceptions_of_any_kind_are_bounded_and_cost_only_themselves(sent):
    class Odd(Exception):
        def __str__(self):
            raise SystemExit(3)

    ring = []
    ring.append(ring)
    made = kept({"odd": Odd(), "ring": ring, "huge": "x" * 10**6, "list": list(range(10**5)), "np": np.int64(7),
                 "nan": math.nan, "yes": np.bool_(True), **{f"k{i}": i for i in range(1000)}})  # fmt: skip
    assert (made["odd"], made["np"], made["yes"]) == ("<Odd: SystemExit>", 7, True)
    assert (len(made), len(made["huge"]), len(made["list"])) == (128, 4096, 128)
    assert len(encoded({}, [Span("a" * 32, "b" * 16, "", "x", 0, 1, made)])) < 20_000
    with pytest.raises(Odd), sits.span("odd") as one:
        raise Odd
    assert one._message.endswith("<Odd: SystemExit>")


def test_methods_keep_their_kind_and_signature(sent):
    class Shop:
        @sits.span("a")
        @classmethod
        def of_class(cls):
            return cls

        @staticmethod
        @sits.span("b")
        def free(x: int, *, y: str = "z") -> str:
            """Doc."""
            return y * x

    class Later:
        async def __call__(self):
            return sits.current()

    assert Shop.of_class() is Shop
    assert (Shop.free(2), Shop.free.__doc__, str(inspect.signature(Shop.free))) == (
        "zz",
        "Doc.",
        "(x: int, *, y: str = 'z') -> str",
    )
    assert asyncio.run(sits.span("c")(Later())()) is not None
    assert inspect.iscoroutinefunction(sits.span("c")(Later()))


def test_a_websocket_closed_by_a_failure_is_an_error_and_headers_of_any_kind_are_read(sent):
    async def app(scope, receive, send):
        await send({"type": "websocket.accept"})
        await send({"type": "websocket.close", "code": scope["code"]})

    async def send(_):
        return None

    for code in (1000, 1011):
        scope = {"type": "websocket", "path": "/w", "code": code, "headers": [("traceparent", PARENT)]}
        asyncio.run(sits.SpanMiddleware(app)(scope, None, send))
    assert [(one.trace_id, one.status) for one in sent] == [(TRACE, 0), (TRACE, 2)]
