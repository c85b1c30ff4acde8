"""The queries of a fleet: ClickHouse over `otel_traces` answers what the store answers over its own tables."""

import json
import math

import pytest

from sits.core.breakpoints import NAMES, POINT_COUNT, Exactness
from sits.core.errors import BugError, ConfigError
from sits.telemetry.clickhouse import EXACTNESS, FLEET, POINT, TABLE, attribute_of, query
from sits.telemetry.dialects import PARAMETER
from sits.telemetry.queries import QUERIES
from sits.telemetry.store import DuckStore
from sits.telemetry.tables import REQUESTS, SPANS, columns_of
from sits.world import RealWorld

START_NS = 1_796_000_400_000_000_000
ROWS = 600
NEVER_TOLD = {"prompt_hash", "abstraction_layer"}


def one_of(dice, values):
    return values[dice.integers(len(values))]


def a_request(dice, i):
    """One row: points in order, some not seen, times that repeat, now and then a disordered one."""
    at, points, digits = 10**12 + i * 10**8, [], ""
    for _ in range(POINT_COUNT):
        at += int(dice.lognormal(13, 2))
        how = one_of(dice, (0, 1, 2, 3, 3, 3, 3))
        points.append(at if how else 0)
        digits += str(how)
    if i % 97 == 0:
        points[3], digits = 10**12 + 1, digits[:3] + "3" + digits[4:]
    values = {name: "" if kind == "VARCHAR" else 1 for name, kind in REQUESTS.items()} | dict(
        zip(NAMES, points, strict=True)
    )
    wall_ns = START_NS + i * 10**8
    return values | {
        "run_id": f"run-{i % 2}",
        "id": f"id-{i}",
        "tenant": one_of(dice, "abc"),
        "model": one_of(dice, ("m", "l")),
        "engine": one_of(dice, ("e0", "e1", "e2")),
        "arm": one_of(dice, ("", "candidate")),
        "outcome": one_of(dice, ("completed",) * 9 + ("failed",)),
        "status": one_of(dice, (200, 503)),
        "detail": one_of(dice, ("", "it's")),
        "prompt_tokens": int(dice.integers(5000)),
        "output_tokens": int(dice.integers(900)),
        "cached_tokens": 0,
        "preemptions": int(dice.integers(2)),
        "exactness": digits,
        "wall_ns": wall_ns,
        "trace_id": f"{i // 2:032x}",
        "parent_id": f"{i:016x}",
    }


def as_span(row):
    """What an exporter makes of the row."""
    offset = row["wall_ns"] - 10**12
    told = {
        attribute_of(name): str(row[name])
        for name in REQUESTS
        if name not in (*NAMES, "exactness", "wall_ns")
    }
    for name, how in zip(NAMES, row["exactness"], strict=True):
        if how != "0":
            told[POINT + name] = str(row[name] + offset)
            if how != "3" or name == "sent":  # measured need not be said
                told[EXACTNESS + name] = Exactness(int(how)).name.lower()
    return {
        "Timestamp": f"{row['wall_ns'] // 10**9}.{row['wall_ns'] % 10**9:09d}",
        "TraceId": row["trace_id"],
        "SpanId": "0" * 16,
        "ParentSpanId": row["parent_id"],
        "SpanName": "llm.request",
        "SpanKind": "Server",
        "ServiceName": "sits",
        "SpanAttributes": told,
        "Duration": 1,
    }


FOREIGN = [
    (
        *("", f"{i:032x}", f"{i:016x}", f"{i + 1:016x}", "vllm", "llm_request", "SERVER"),
        *(START_NS + i, START_NS + i + 5 * i, "OK", '{"a":"b"}'),
    )
    for i in range(20)
]


def foreign_span(span):
    named = dict(zip(SPANS, span, strict=True))
    return {
        "Timestamp": f"{named['start_wall_ns'] // 10**9}.{named['start_wall_ns'] % 10**9:09d}",
        "TraceId": named["trace_id"],
        "SpanId": named["span_id"],
        "ParentSpanId": named["parent_id"],
        "SpanName": named["name"],
        "SpanKind": named["kind"].capitalize(),
        "ServiceName": named["service"],
        "SpanAttributes": {"a": "b"},
        "Duration": named["end_wall_ns"] - named["start_wall_ns"],
        "StatusCode": named["status"].capitalize(),
    }


@pytest.fixture(scope="module", params=[(1.0,), (1.0, 10.0, 10 / 3)], ids=["all", "thinned"])
def both(request, tmp_path_factory):
    chdb = pytest.importorskip("chdb.session", reason="chdb is a dependency of development alone")
    dice = RealWorld(5).rng("rows")
    rows = [a_request(dice, i) | {"weight": request.param[i % len(request.param)]} for i in range(ROWS)]
    store = DuckStore()
    store.append("requests", columns_of(REQUESTS, [[row[name] for name in REQUESTS] for row in rows]))
    store.append("spans", columns_of(SPANS, FOREIGN))
    session = chdb.Session(str(tmp_path_factory.mktemp("clickhouse")))
    session.query(TABLE)
    lines = "\n".join(json.dumps(span) for span in [*map(as_span, rows), *map(foreign_span, FOREIGN)])
    session.query(f"INSERT INTO otel_traces FORMAT JSONEachRow {lines}")
    yield store, session
    session.close()


def plain(rows):
    """Values to compare: points become times since the first one seen, because the two have different clocks."""
    made = []
    for told in rows:
        row = {k: v for k, v in told.items() if k not in NEVER_TOLD | {"start_ns", "end_ns"}}
        if "api_recv" in row:
            base = min((row[name] for name in NAMES if row[name]), default=0)
            row |= {name: row[name] - base for name in NAMES if row[name]}
        made.append(row)
    return made


def same(ours, theirs):
    if isinstance(ours, float) or isinstance(theirs, float):
        return (
            ours is not None
            and theirs is not None
            and math.isclose(float(ours), float(theirs), rel_tol=1e-9, abs_tol=1e-9)
        )
    return ours == theirs


NOTHING = "\\N"  # as ClickHouse takes NULL for a parameter
WINDOW = {"since_wall_ns": START_NS + 5 * 10**9, "until_wall_ns": START_NS + 50 * 10**9}
ASKED = [(name, {}) for name in FLEET] + [
    ("stage_quantiles", {**WINDOW, "model": "m"}),
    ("slow_e2e_stages", {**WINDOW, "engine": "e1", "run_id": "run-1"}),
    ("requests_window", WINDOW),
    ("slowest", {"limit": 7}),
    ("trace", {"trace_id": f"{7:032x}"}),
    ("trace_spans", {"trace_id": f"{7:032x}"}),
    ("request", {"id": "id-8"}),
    ("spans_window", {"service": "vllm", "since_wall_ns": START_NS + 4}),
]


@pytest.mark.parametrize(("name", "given"), ASKED)
def test_both_answer_the_same(both, name, given):
    store, session = both
    ours = store.scan(name, **given)
    parameters = {key: given.get(key, NOTHING) for key in PARAMETER.findall(QUERIES[name])}
    told = session.query(
        FLEET[name] + " SETTINGS output_format_json_quote_64bit_integers = 0", "JSON", params=parameters
    )
    theirs = json.loads(str(told))["data"]
    assert len(ours) == len(theirs)
    for left, right in zip(plain(ours), plain(theirs), strict=True):
        wrong = {key: (left[key], right.get(key)) for key in left if not same(left[key], right.get(key))}
        assert not wrong


def test_every_query_of_requests_has_rows_to_compare(both):
    store, _ = both
    needed = {
        "request": {"id": "id-8"},
        "trace": {"trace_id": f"{7:032x}"},
        "trace_spans": {"trace_id": f"{7:032x}"},
    }
    assert all(store.scan(name, **needed.get(name, {})) for name in FLEET)


def test_a_query_can_be_had_as_text():
    assert "otel_traces" in query("trace", "clickhouse")
    assert "$trace_id" in query("trace", "duckdb")
    with pytest.raises(ConfigError, match="otel_traces holds no more"):
        query("steps_window", "clickhouse")
    with pytest.raises(ConfigError, match="no dialect"):
        query("trace", "oracle")
    with pytest.raises(BugError, match="no query named"):
        query("tracer", "duckdb")
