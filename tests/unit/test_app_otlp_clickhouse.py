"""What our exporter sends, kept by a Collector in ClickHouse, answers the named queries as the store does: the same rows, both ways, every value.

The Collector is told here by the facts of its ClickHouse exporter (README and `exporter_traces.go`): a row a span; attributes as text, integers in decimal, whole
doubles without a point; kind and status as words, `SPAN_KIND_SERVER` and `STATUS_CODE_OK` up to 0.11x and `Server`, `Ok` since; ids in hex, empty where there
is none; the duration is end less start; the service is the resource's `service.name`.
"""

import json
import math

import pytest

from otlp_cases import requests
from sits.app.otlp.exporting import Exporter
from sits.app.otlp.sending import Answer
from sits.app.otlp.target import target_of
from sits.core.breakpoints import INDEX, NAMES
from sits.core.fleet_otlp import Export
from sits.telemetry.clickhouse import FLEET, TABLE
from sits.telemetry.dialects import PARAMETER
from sits.telemetry.otlp.protobuf import messages, traces
from sits.telemetry.otlp.received import Received, span_columns
from sits.telemetry.queries import QUERIES
from sits.telemetry.spans_json import ERROR, OK, SERVER, Span
from sits.telemetry.store import DuckStore
from sits.telemetry.tables import REQUESTS
from sits.world import RealWorld

START = 1_796_000_400_000_000_000
ROWS = 400
OFFSET = {"run-0": START - 10**12, "run-1": START - 7 * 10**11}
"""Wall clock less monotonic clock of each run."""
NOT_SENT = {"prompt_hash"}
KINDS = ("Unspecified", "Internal", "Server", "Client", "Producer", "Consumer")
STATUSES = ("Unset", "Ok", "Error")


def cases():
    dice = RealWorld(7).rng("rows")

    def one_of(values):
        return values[dice.integers(len(values))]

    made = []
    for i in range(ROWS):
        run = f"run-{i % 2}"
        wall, at, digits = START + i * 250_000_000, {}, ""
        for name in NAMES:
            digits += str(one_of((0, 1, 2, 3, 3, 3, 3, 3)) if name != "api_recv" or i % 9 == 0 else 3)
            wall += 0 if name == "api_recv" else int(dice.lognormal(13, 2))
            at[name] = wall - OFFSET[run] if digits[-1] != "0" else 0
        if i % 50 == 1:  # a disordered one: a point before the first
            at["parsed"], digits = at["api_recv"] - 10**6, digits[0] + "3" + digits[2:]
        seen = [v for v in at.values() if v]
        first = at["api_recv"] if digits[INDEX["api_recv"]] != "0" else min(seen)
        row = {name: "" if kind == "VARCHAR" else 0 for name, kind in REQUESTS.items()} | at
        row |= {
            "run_id": run,
            "id": f"{i + 1:032x}",
            "tenant": one_of(("a", "b", "")),
            "model": one_of(("m", "it's")),
            "adapter": one_of(("", "lora-1")),
            "engine": one_of(("e0", "e1", "")),
            "arm": one_of(("", "candidate")),
            "outcome": one_of(("completed",) * 8 + ("failed", "refused")),
            "status": one_of((200, 200, 503, 0)),
            "detail": one_of(("", "engine gone")),
            "prompt_tokens": int(dice.integers(5000)),
            "output_tokens": int(dice.integers(3)),
            "cached_tokens": int(dice.integers(2)) * 64,
            "preemptions": int(dice.integers(2)),
            "exactness": digits,
            "wall_ns": first + OFFSET[run],
            "abstraction_layer": one_of(("", "sits/1 /v1/completions")),
            "trace_id": f"{i // 2 + 1:032x}",
            "parent_id": one_of(("", f"{i + 7:016x}")),
            "weight": one_of((1.0, 1.0, 10.0, 2.5)),
        }
        made.append(tuple(row[name] for name in REQUESTS))
    return made


FOREIGN = [
    Received(
        Span(f"{i + 1:032x}", f"{i + 1:016x}", "", "llm_request", START + i, START + 7 * i, {"n": i}, SERVER, *told),
        "vllm",
        "vllm@h1",
    )
    for i, told in enumerate(((0, ""), (OK, ""), (ERROR, "went away")) * 5)
]  # fmt: skip


class Keeping:
    """A sender whose receiver is the Collector below."""

    def __init__(self):
        self.requests = []

    def send(self, signal, request):
        if signal == "traces":
            self.requests.append(request.SerializeToString())
        return Answer(taken=True)


def text(value):
    """An attribute's value as the exporter's map of texts has it."""
    form = value.WhichOneof("value")
    told = getattr(value, form)
    if form == "bool_value":
        return "true" if told else "false"
    if form == "double_value":
        return f"{told:.0f}" if told == int(told) else repr(told)
    assert form in ("string_value", "int_value"), form
    return str(told)


def kept(body, known, old):
    """The rows of `otel_traces` that the Collector's exporter makes of a request."""
    request = known.traces.ExportTraceServiceRequest.FromString(body)
    for group in request.resource_spans:
        resource = {one.key: text(one.value) for one in group.resource.attributes}
        for some in group.scope_spans:
            for span in some.spans:
                told = {one.key: text(one.value) for one in span.attributes}
                kind, status = KINDS[span.kind], STATUSES[span.status.code]
                start = span.start_time_unix_nano
                yield {
                    "Timestamp": f"{start // 10**9}.{start % 10**9:09d}",
                    "TraceId": span.trace_id.hex(),
                    "SpanId": span.span_id.hex(),
                    "ParentSpanId": span.parent_span_id.hex(),
                    "TraceState": span.trace_state,
                    "SpanName": span.name,
                    "SpanKind": f"SPAN_KIND_{kind.upper()}" if old else kind,
                    "ServiceName": resource.get("service.name", ""),
                    "ResourceAttributes": resource,
                    "ScopeName": some.scope.name,
                    "SpanAttributes": told | ({"otel.scope.name": some.scope.name} if old else {}),
                    "Duration": span.end_time_unix_nano - start,
                    "StatusCode": f"STATUS_CODE_{status.upper()}" if old else status,
                    "StatusMessage": span.status.message,
                }


@pytest.fixture(scope="module", params=["old", "new"])
def both(request, tmp_path_factory):
    chdb = pytest.importorskip("chdb.session", reason="chdb is a dependency of development alone")
    path, known, world = tmp_path_factory.mktemp("store"), messages(), RealWorld()
    export = Export(endpoint="http://collector:4318", metrics_every=0)
    target = target_of(export, {}, {"service.name": "sits", "service.instance.id": "gw"})
    sender = Keeping()
    one = Exporter(path, export, target, sender, known, {"e0": "vllm"}, world)
    store = DuckStore(path)
    store.append("requests", requests(*cases()))
    store.append("spans", span_columns("", FOREIGN))
    store.flush()
    one.round()
    assert (one.dropped, one.failures, one.trouble) == (0, 0, "")
    theirs = traces({"service.name": "vllm", "host.name": "h1"}, [one.span for one in FOREIGN], known)
    bodies = [*sender.requests, theirs.SerializeToString()]
    lines = "\n".join(json.dumps(row) for body in bodies for row in kept(body, known, request.param == "old"))
    session = chdb.Session(str(tmp_path_factory.mktemp("clickhouse")))
    session.query(TABLE)
    session.query(f"INSERT INTO otel_traces FORMAT JSONEachRow {lines}")
    yield store, session
    session.close()
    store.close()


def plain(row, *, ours):
    """A row to compare: our points and times on the wall clock, and of a span's attributes their texts."""
    made = {name: value for name, value in row.items() if name not in NOT_SENT}
    if ours and "run_id" in row:
        for name in (*NAMES, "start_ns", "end_ns"):
            if made.get(name):
                made[name] += OFFSET[row["run_id"]]
    if "attributes" in made:
        told = json.loads(made["attributes"])
        made["attributes"] = {key: str(value) for key, value in told.items() if key != "otel.scope.name"}
    return made


def same(left, right):
    if isinstance(left, float) or isinstance(right, float):
        return None not in (left, right) and math.isclose(left, right, rel_tol=1e-9, abs_tol=1e-9)
    return left == right


WINDOW = {"since_wall_ns": START + 10**10, "until_wall_ns": START + 6 * 10**10}
NEEDED = {
    "request": {"id": f"{9:032x}"},
    "trace": {"trace_id": f"{4:032x}"},
    "trace_spans": {"trace_id": f"{4:032x}"},
}
ASKED = [(name, NEEDED.get(name, {})) for name in FLEET] + [
    ("requests_window", WINDOW),
    ("load_by_engine", {**WINDOW, "run_id": "run-1"}),
    ("stage_quantiles", {**WINDOW, "model": "it's"}),
    ("slow_ttft_stages", {**WINDOW, "engine": "e1"}),
    ("spans_window", {"service": "vllm@h1"}),
]


@pytest.mark.parametrize(("name", "given"), ASKED)
def test_what_is_exported_answers_as_the_store_does(both, name, given):
    store, session = both
    ours = store.scan(name, **given)
    assert ours, "there is something to compare"
    parameters = {key: given.get(key, "\\N") for key in PARAMETER.findall(QUERIES[name])}
    settings = " SETTINGS output_format_json_quote_64bit_integers = 0"
    theirs = json.loads(str(session.query(FLEET[name] + settings, "JSON", params=parameters)))["data"]
    assert len(ours) == len(theirs)
    for left, right in zip(ours, theirs, strict=True):
        mine, other = plain(left, ours=True), plain(right, ours=False)
        assert mine.keys() <= other.keys()
        assert not {key: (mine[key], other[key]) for key in mine if not same(mine[key], other[key])}
