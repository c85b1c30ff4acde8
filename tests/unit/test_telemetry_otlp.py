"""Rows become spans that others understand, and spans of other programs become what we know of a request."""

import numpy as np
import pytest

from otlp_cases import MS, WALL, recorded_vllm, request_id, requests, row, whole
from sits.core import otel_names as names
from sits.core.breakpoints import INDEX, NAMES
from sits.core.errors import CallerError, TooLargeError
from sits.core.otel_aliases import ALIASES, alias_of
from sits.telemetry.joining import completed
from sits.telemetry.otlp import mapping, protobuf
from sits.telemetry.otlp.emitted import server_span_id, spans_of
from sits.telemetry.otlp.received import SPANS_MAX, VALUES_MAX, Received, checked, span_columns
from sits.telemetry.otlp.sighted import sighting_columns
from sits.telemetry.spans_json import CLIENT, ERROR, INTERNAL, SERVER, UNSET, Span

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


def emitted(*rows, convention=names.CORE_1_41):
    (spans,) = spans_of(requests(*rows), convention, {"a": "vllm"}).values()
    return {span.name: span for span in spans}, spans


def span(name, start, end, n=1, parent="", attributes=None, service="engine", scope=""):
    """A span of an engine, ms."""
    ids = f"{n:016x}"
    made = Span(TRACE, ids, parent, name, WALL + round(start * MS), WALL + round(end * MS), attributes or {})
    return Received(made, service, f"{service}@1", scope)


def seen(columns, i=0):
    """What row `i` of sightings tells: ms and exactness by name."""
    digits = columns["exactness"][i]
    return {
        name: ((int(columns[name][i]) - WALL) / MS, int(digits[INDEX[name]]))
        for name in NAMES
        if digits[INDEX[name]] != "0"
    }


# -- out -------------------------------------------------------------------------------------------------------


def test_a_request_is_a_server_span_with_our_call_below_it():
    by_name, spans = emitted(row(0, whole(), trace_id=TRACE, parent_id="00f067aa0ba902b7"))
    server, call = spans[:2]
    assert (server.kind, server.parent_id, server.trace_id) == (SERVER, "00f067aa0ba902b7", TRACE)
    assert server.name == "POST /v1/chat/completions"
    assert (call.kind, call.name, call.parent_id) == (CLIENT, "chat llama", server.span_id)
    assert call.span_id == request_id(0)[16:], "what the engine was given in `traceparent`"
    assert (server.start_ns, server.end_ns) == (WALL, WALL + 201 * MS)
    assert (call.start_ns, call.end_ns) == (WALL + 4 * MS, WALL + 200 * MS)
    assert by_name["decode"].parent_id == call.span_id
    assert by_name["respond"].parent_id == server.span_id
    assert {one.kind for one in spans[2:]} == {INTERNAL}
    assert len({one.span_id for one in spans}) == len(spans)


def test_names_follow_the_convention_and_the_stage_is_an_attribute():
    every = {name: 10.0 * i for i, name in enumerate(NAMES)}
    by_name, spans = emitted(row(0, every))
    assert [one.attributes["sits.stage"] for one in spans if "sits.stage" in one.attributes] == [
        "llm.request", "route", "llm.tokenization", "engine_queue", "llm.inference", "llm.decoding", "llm.response",
    ]  # fmt: skip
    call = by_name["chat llama"].attributes
    assert call["gen_ai.operation.name"] == "chat"
    assert call["gen_ai.provider.name"] == "vllm"
    assert (call["gen_ai.usage.input_tokens"], call["gen_ai.usage.output_tokens"]) == (100, 11)
    assert by_name["decode"].attributes["llm.generated_tokens"] == 11
    assert by_name["tokenize"].attributes["llm.input_tokens"] == 100
    for one in spans:
        unknown = [
            key for key in one.attributes if key.startswith("gen_ai.") and key not in vars(names).values()
        ]
        assert not unknown, "names of the convention are not ours to make"
        assert not one.events
    told = {
        key: value for one in spans for key, value in one.attributes.items() if key.startswith("sits.bp.")
    }
    assert told == {f"sits.bp.{name}": WALL + round(ms * MS) for name, ms in every.items()}


@pytest.mark.parametrize(
    ("told", "server", "call"),
    [
        (
            {"outcome": "failed", "status": 502, "detail": "engine_error"},
            (ERROR, "engine_error"),
            (ERROR, "engine_error"),
        ),
        ({"outcome": "refused", "status": 429, "detail": "admission"}, (UNSET, ""), (UNSET, "")),
        ({"outcome": "cancelled", "status": 499, "detail": "client"}, (UNSET, ""), (UNSET, "")),
    ],
)
def test_what_counts_as_an_error(told, server, call):
    _, spans = emitted(row(0, whole(), **told))
    assert (spans[0].status, spans[0].message) == server
    assert (spans[1].status, spans[1].message) == call
    assert spans[0].attributes.get("error.type") == (told["detail"] if told["status"] >= 500 else None)


def test_a_request_that_never_left_is_one_span():
    _, spans = emitted(row(0, {"api_recv": 0, "sent": 2}, outcome="refused", status=401, model=""))
    assert [one.kind for one in spans] == [SERVER]


def test_embeddings_are_no_chat():
    _, spans = emitted(row(0, whole(), abstraction_layer="sits/0 /v1/embeddings"))
    assert spans[1].name == "embeddings llama"


def test_ids_follow_from_the_request_and_differ():
    assert server_span_id("0" * 16 + "1" * 16).strip("0")
    assert server_span_id("1" * 32) != "1" * 16
    assert emitted(row(3, whole()))[1] == emitted(row(3, whole()))[1]


def test_what_we_send_is_understood_when_it_comes_back():
    every = {name: 10.0 * i for i, name in enumerate(NAMES)}
    _, spans = emitted(row(0, every, exactness="3" * 6 + "1" * 11 + "333"))
    batch = checked([Received(one, "sits", "sits@1") for one in spans])
    assert not batch.refused
    told = sighting_columns("", batch.spans)
    assert list(told["scheme"]) == ["sits"]
    assert seen(told) == {name: (ms, 1 if 6 <= INDEX[name] <= 16 else 3) for name, ms in every.items()}


def test_the_table_of_names_is_chosen_by_configuration_then_environment():
    assert names.convention().version == "1.41"
    assert names.convention("", "http/dup, gen_ai_latest_experimental").version == "genai-0.1.0"
    assert names.convention("genai-0.1.0", "").duration == "gen_ai.client.inference.duration"
    assert names.convention("1.41", names.LATEST).duration == "gen_ai.client.operation.duration"


# -- in --------------------------------------------------------------------------------------------------------


def test_every_alias_names_points_and_is_found_by_its_name():
    for rule in ALIASES:
        assert alias_of(rule.name.replace("*", "x")) is not None
        for told in rule.tells:
            assert 5 <= told.point <= 18


def test_vllm_tells_four_points_and_the_rest_stays_outside_its_core():
    about = {
        "gen_ai.latency.time_to_first_token": 0.9,
        "gen_ai.latency.time_in_queue": 0.2,
        "gen_ai.latency.time_in_model_prefill": 0.3,
        "gen_ai.latency.e2e": 1.5,
    }
    told = seen(sighting_columns("", [span("llm_request", 10, 1520, parent="ab" * 8, attributes=about)]))
    assert told == {
        "engine_recv": (10, 3), "queued": (410, 2), "scheduled": (610, 2), "first_token": (910, 2), "last_token": (1510, 2),
    }  # fmt: skip


@pytest.mark.parametrize("value", [-1.0, float("nan"), "0.2", True, None, 1e9])
def test_a_duration_that_is_none_tells_nothing(value):
    about = {"gen_ai.latency.time_to_first_token": value}
    told = seen(sighting_columns("", [span("llm_request", 10, 20, attributes=about)]))
    assert told == {"engine_recv": (10, 3)}


def test_sglang_stages_are_boundaries_of_one_request():
    root, mine = "unified Req 7f3a", f"{1:016x}"
    spans = [
        span(root, 5, 220, 1, "ab" * 8, {"gen_ai.latency.time_to_first_token": 0.1}, "sglang"),
        span("tokenize", 6, 8, 2, mine, service="sglang"),
        span("api_server_dispatch", 8, 9, 3, mine, service="sglang"),
        span("request_process", 9, 12, 4, mine, service="sglang"),
        span("prefill_waiting", 12, 40, 5, mine, service="sglang"),
        span("prefill_forward", 41, 104, 6, mine, service="sglang"),
        span("decode_loop", 104, 150, 7, mine, service="sglang"),
        span("decode_loop", 150, 210, 8, mine, service="sglang"),
    ]
    told = sighting_columns("", spans)
    assert list(told["scheme"]) == ["sglang"]
    assert list(told["parent_id"]) == ["ab" * 8]
    assert seen(told) == {
        "engine_recv": (5, 3), "tokenized": (8, 3), "queued": (12, 3), "scheduled": (40, 3), "first_token": (104, 2), "last_token": (210, 2),
    }  # fmt: skip


def test_a_common_name_is_an_engines_only_beside_its_others_or_by_its_word():
    assert len(sighting_columns("", [span("tokenize", 1, 2)])["trace_id"]) == 0
    assert len(sighting_columns("", [span("tokenize", 1, 2, scope="sglang.srt")])["trace_id"]) == 1
    assert len(sighting_columns("", [span("http-request", 1, 2)])["trace_id"]) == 0


def test_dynamo_and_its_workers_are_two_sources_of_one_request():
    front = [
        span("http-request", 5, 199, 1, "ab" * 8, {"ttft_ms": 90.0}, "dynamo-frontend"),
        span("kv_router.compute_block_hashes", 9, 10, 2, f"{1:016x}", service="dynamo-frontend"),
        span("kv_router.find_matches", 10, 11, 3, f"{1:016x}", service="dynamo-frontend"),
        span("kv_router.schedule", 11, 12, 4, f"{1:016x}", service="dynamo-frontend"),
    ]
    worker = [
        span("handle_payload", 14, 198, 5, f"{1:016x}", service="dynamo-worker"),
        span("engine.generate", 15, 197, 6, f"{5:016x}", {"ttft_ms": 70.0}, "dynamo-worker"),
    ]
    told = sighting_columns("", front + worker)
    by_source = {told["source"][i]: seen(told, i) for i in range(2)}
    assert by_source["dynamo-frontend@1"] == {
        "engine_recv": (5, 3), "tokenized": (9, 2), "first_token": (95, 2), "last_token": (199, 2),
    }  # fmt: skip
    assert by_source["dynamo-worker@1"] == {"queued": (14, 2), "first_token": (85, 2)}
    table = requests(row(0, whole(), trace_id=TRACE))
    joined = completed(table, told).requests
    assert [joined[name][0] / MS for name in ("engine_recv", "tokenized", "queued")] == [5, 9, 14]


def test_llm_d_bounds_the_arrival_and_vllm_tells_it():
    spans = [
        span("gateway.request", 4.5, 99, 1, "ab" * 8, service="epp"),
        span("gateway.request_orchestration", 4.6, 5, 2, f"{1:016x}", service="epp"),
        span("llm_d.epp.scoring", 4.7, 4.8, 3, f"{2:016x}", service="epp"),
        span("llm_request", 7, 99, 4, f"{1:016x}", service="vllm"),
    ]
    told = sighting_columns("", spans)
    assert {told["scheme"][i]: seen(told, i) for i in range(2)} == {
        "llm-d": {"engine_recv": (5, 2)},
        "vllm": {"engine_recv": (7, 3)},
    }
    joined = completed(requests(row(0, whole(), trace_id=TRACE)), told).requests
    assert joined["engine_recv"][0] == 7 * MS, "what was measured goes first"


def test_spans_that_say_nothing_of_a_request_are_kept_as_they_are():
    _, spans = recorded_vllm()
    batch = checked(spans)
    assert not batch.refused
    kept = span_columns("", batch.spans)
    assert len(kept["name"]) == 203
    assert len(sighting_columns("", [one for one in spans if one.span.name != "llm_request"])["source"]) == 0


def test_a_circle_of_parents_ends():
    a, b = f"{1:016x}", f"{2:016x}"
    told = sighting_columns("", [span("llm_request", 1, 2, 1, b), span("prefill_waiting", 1, 2, 2, a)])
    assert len(told["trace_id"]) == 2


def test_rows_without_a_time_or_an_id_make_no_span():
    table = requests(row(0, {}), row(1, whole(), id="short"))
    assert not spans_of(table, names.CORE_1_41, {})
    assert not spans_of(requests(), names.CORE_1_41, {})
    assert np.array_equal(table["api_recv"], [0, 0])


def test_without_the_extra_the_error_names_it(monkeypatch):
    import sys

    from sits.core.errors import ConfigError
    from sits.telemetry.otlp import mapping, protobuf
    from sits.telemetry.spans_json import encoded

    loaded = [one for one in sys.modules if one.startswith("opentelemetry.proto")]
    for name in {*loaded, "opentelemetry.proto"}:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError, match=r"sitsctl\[otlp\]"):
        protobuf.messages()
    one = Span(TRACE, "cd" * 8, "", "x", 1, 2)
    assert len(mapping.decoded(encoded({}, [one])).spans) == 1, "JSON needs none of it"


def test_what_comes_after_the_first_spans_is_counted_and_not_looked_at():
    known = protobuf.messages()
    request = known.traces.ExportTraceServiceRequest()
    for _ in range(2):
        request.resource_spans.add().scope_spans.add().spans.extend([known.trace.Span()] * (SPANS_MAX - 10))
    inner = b'{"scopeSpans":[{"spans":[' + b",".join([b"{}"] * (SPANS_MAX - 10)) + b"]}]}"
    in_json = b'{"resourceSpans":[' + inner + b"," + inner + b"]}"
    for batch in (protobuf.decoded(request.SerializeToString(), known), mapping.decoded(in_json)):
        assert batch.refused == {
            "no valid trace id": SPANS_MAX,
            f"more than {SPANS_MAX} before them": SPANS_MAX - 20,
        }


@pytest.mark.parametrize("value", [b"{}", b"[]", b"1", b'""'])
def test_small_values_in_great_number_are_refused_before_they_are_made(value):
    body = b'{"resourceSpans":[' + b",".join([value] * (VALUES_MAX + 1)) + b"]}"
    with pytest.raises(TooLargeError, match="values in one request"):
        mapping.decoded(body)


@pytest.mark.parametrize(
    ("field", "value"), [("id", "z" * 32), ("trace_id", "no"), ("parent_id", "x"), ("wall_ns", -5)]
)
def test_a_row_that_otlp_has_no_form_for_costs_no_other(field, value):
    _, spans = emitted(row(0, whole(), **{field: value}), row(1, whole()))
    assert {one.attributes.get("sits.request_id") for one in spans} == {request_id(1), None}
    assert len(spans) == 5


@pytest.mark.parametrize("level", [0, 1, 2])
def test_empty_messages_in_great_number_are_refused_before_they_are_made(level):
    known = protobuf.messages()
    request = known.traces.ExportTraceServiceRequest()
    group = request.resource_spans.add(schema_url="x")
    some = group.scope_spans.add(schema_url="x")
    for at, into in enumerate((request.resource_spans, group.scope_spans, some.spans)):
        if at == level:
            into.extend([type(into.add())()] * (4 * SPANS_MAX))
    with pytest.raises(TooLargeError, match="spans in one request"):
        protobuf.decoded(request.SerializeToString(), known)
    hidden = b"\x0b\x0c" + bytes((0x8A, 0x00)) + b"\x00"  # a group, and a tag that is longer than it need be
    with pytest.raises(TooLargeError):
        protobuf.decoded(hidden + request.SerializeToString(), known)


@pytest.mark.parametrize(
    "body", [b"\x0a", b"\xff" * 50, b"\x0a\xff\xff\xff\xff\x7f", b"\x0a\x04\x12\x02\x12\x80"]
)
def test_what_is_no_protobuf_is_told_by_the_parser(body):
    with pytest.raises(CallerError, match="no ExportTraceServiceRequest"):
        protobuf.decoded(body, protobuf.messages())
