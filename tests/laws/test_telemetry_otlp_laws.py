"""Laws of OTLP: what is written is read again, in both encodings, and nothing that comes from outside is more than an error."""

import gzip
import json
import zlib

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sits.core.errors import CallerError, TooLargeError
from sits.telemetry.otlp import mapping, protobuf
from sits.telemetry.otlp.received import ATTRIBUTES_MAX, BODY_MAX, checked, inflated, span_columns
from sits.telemetry.otlp.sighted import sighting_columns
from sits.telemetry.spans_json import Span, encoded

KNOWN = protobuf.messages()

hexes = st.sampled_from("0123456789abcdef")
trace_ids = st.text(hexes, min_size=32, max_size=32).filter(lambda t: t.strip("0"))
span_ids = st.text(hexes, min_size=16, max_size=16).filter(lambda t: t.strip("0"))
texts = st.text(st.characters(codec="utf-8"), max_size=20)
scalars = st.one_of(
    texts,
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.lists(texts, max_size=3),
)


@st.composite
def spans(draw):
    start, status = draw(st.integers(1, 2**62)), draw(st.integers(0, 2))
    return Span(
        draw(trace_ids),
        draw(span_ids),
        draw(st.one_of(st.just(""), span_ids)),
        draw(texts),
        start,
        start + draw(st.integers(0, 2**40)),
        draw(st.dictionaries(texts, scalars, max_size=5)),
        draw(st.integers(0, 5)),
        status,
        draw(texts) if status else "",
    )


def same(mine, theirs):
    assert mine._replace(attributes={}, events=()) == theirs._replace(attributes={}, events=())
    assert dict(mine.attributes) == dict(theirs.attributes)


@given(st.lists(spans(), max_size=4))
@settings(max_examples=60)
def test_what_is_written_is_read_again(some):
    resource = {"service.name": "s", "service.instance.id": "i"}
    by_protobuf = protobuf.decoded(protobuf.traces(resource, some, KNOWN).SerializeToString(), KNOWN)
    by_json = mapping.decoded(encoded(resource, some))
    for batch in (by_protobuf, by_json):
        assert not batch.refused
        assert len(batch.spans) == len(some)
        for mine, theirs in zip(some, batch.spans, strict=True):
            same(mine, theirs.span)
            assert (theirs.service, theirs.source) == ("s", "s@i")


@given(st.binary(max_size=300))
@example(b"\x0a\x02\x12\x00")
def test_any_bytes_are_a_batch_or_an_error_of_the_caller(body):
    for decoded in (lambda b: protobuf.decoded(b, KNOWN), mapping.decoded):
        try:
            batch = decoded(body)
        except CallerError:
            continue
        span_columns("r", batch.spans)
        sighting_columns("r", batch.spans)


any_json = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**70), 2**70),
        st.floats(allow_nan=False),
        st.text(max_size=5),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)
fields = {
    "traceId": st.one_of(trace_ids, any_json),
    "spanId": st.one_of(span_ids, any_json),
    "parentSpanId": any_json,
    "name": st.one_of(st.sampled_from(("llm_request", "Req 1", "tokenize")), any_json),
    "kind": any_json,
    "startTimeUnixNano": st.one_of(st.just("1796037783281114368"), any_json),
    "endTimeUnixNano": st.one_of(st.just(1796037783281114369), any_json),
    "attributes": st.one_of(
        any_json,
        st.lists(
            st.fixed_dictionaries({"key": st.sampled_from(("sits.bp.queued", "a")), "value": any_json}),
            max_size=3,
        ),
    ),
    "status": any_json,
}


@given(st.lists(st.fixed_dictionaries({}, optional=fields), max_size=3))
@settings(max_examples=100)
def test_any_span_in_json_is_kept_counted_or_an_error_of_the_caller(some):
    body = json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": some}]}]}).encode()
    try:
        batch = mapping.decoded(body)
    except CallerError as error:
        assert error.field  # noqa: PT017
        return
    assert len(batch.spans) + batch.rejected == len(some)
    assert bool(batch.reason) == bool(batch.rejected)
    kept = span_columns("r", batch.spans)
    assert all(isinstance(json.loads(text), dict) for text in kept["attributes"])
    sighting_columns("r", batch.spans)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"trace_id": "0" * 32}, "no valid trace id"),
        ({"trace_id": "ab"}, "no valid trace id"),
        ({"span_id": ""}, "no valid span id"),
        ({"span_id": "0" * 16}, "no valid span id"),
        ({"parent_id": "xyz"}, "no valid parent id"),
        ({"start_ns": 0}, "no valid time"),
        ({"start_ns": -5}, "no valid time"),
        ({"end_ns": 2**63}, "no valid time"),
        ({"end_ns": 1}, "an end before its start"),
    ],
)
def test_a_span_that_cannot_be_used_is_refused_by_itself(change, why):
    from sits.telemetry.otlp.received import Received

    good = Span("ab" * 16, "cd" * 8, "", "x", 10, 20)
    batch = checked([Received(good), Received(good._replace(**change)), Received(good)])
    assert (len(batch.spans), dict(batch.refused)) == (2, {why: 1})
    assert batch.reason == f"1 with {why}"


def test_a_million_attributes_cost_their_bytes_and_no_more():
    body = b'{"key":"a","value":{"intValue":1}},' * 10**5 + b'{"key":"z"}'
    start = (
        b'{"resourceSpans":[{"scopeSpans":[{"spans":[{"traceId":"' + b"ab" * 16 + b'","spanId":"' + b"cd" * 8
    )
    start += b'","startTimeUnixNano":"1","endTimeUnixNano":"2","attributes":['
    batch = mapping.decoded(start + body + b"]}]}]}]}")
    assert len(batch.spans) == 1
    pairs = {f"k{i}": i for i in range(10**5)}
    request = protobuf.traces({}, [Span("ab" * 16, "cd" * 8, "", "x", 1, 2, pairs)], KNOWN)
    (kept,) = protobuf.decoded(request.SerializeToString(), KNOWN).spans
    assert len(kept.span.attributes) == ATTRIBUTES_MAX
    with pytest.raises(TooLargeError):
        inflated(b" " * (36 * 10**6), "")


def test_a_bomb_is_no_more_than_its_limit():
    bomb = gzip.compress(b"\0" * (BODY_MAX + 1))
    assert len(bomb) < 20_000
    with pytest.raises(TooLargeError):
        inflated(bomb, "gzip")
    assert len(inflated(gzip.compress(b"\0" * BODY_MAX), "gzip")) == BODY_MAX
    assert inflated(zlib.compress(b"abc"), "deflate") == b"abc"


@pytest.mark.parametrize("body", [b"", b"abc", gzip.compress(b"abc" * 99, mtime=0)[:-9]])
def test_what_is_not_compressed_as_it_says_is_an_error_of_the_caller(body):
    with pytest.raises(CallerError):
        inflated(body, "gzip")
    with pytest.raises(CallerError):
        inflated(body, "br")


def test_json_that_is_nested_without_end_is_an_error_of_the_caller():
    with pytest.raises(CallerError):
        mapping.decoded(b"[" * 10**6)
    value = {"stringValue": "x"}
    for _ in range(60):
        value = {"arrayValue": {"values": [value]}}
    span = {"traceId": "AB" * 16, "spanId": "cd" * 8, "startTimeUnixNano": 1, "endTimeUnixNano": 2.0}
    span["attributes"] = [{"key": "deep", "value": value}]
    body = json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}).encode()
    (kept,) = mapping.decoded(body).spans
    assert kept.span.trace_id == "ab" * 16
    assert json.dumps(kept.span.attributes).count("[") == 8
