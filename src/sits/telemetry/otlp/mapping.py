"""OTLP spans as JSON, read: what our probe and everybody without protobuf sends.

Rules of the mapping, where it is not that of proto3: ids are hex and not base64, names are in lowerCamelCase, enumerations are numbers.
64-bit integers are decimal texts; numbers are taken too, as the mapping asks of receivers.  What is unknown is passed over.  A body
whose shape is another one is refused whole, with the place; a span whose values cannot be used is refused by itself (`otlp.received`).

Source: OpenTelemetry Protocol 1.x, section "JSON Protobuf Encoding"; the mapping of proto3 to JSON.

Deliberately absent: writing it (`telemetry.spans_json`), events and links of spans.
"""

from collections.abc import Iterator, Mapping
from itertools import islice, repeat
from typing import Any

import orjson

from sits.core.errors import CallerError, TooLargeError
from sits.telemetry.otlp.received import (
    ATTRIBUTES_MAX,
    BEYOND,
    SPANS_MAX,
    VALUES_MAX,
    Batch,
    Received,
    checked,
    cut,
    whose,
)
from sits.telemetry.spans_json import Span

_DEPTH_MAX = 8
_KINDS = {f"SPAN_KIND_{name}": number for number, name in enumerate(
    ("UNSPECIFIED", "INTERNAL", "SERVER", "CLIENT", "PRODUCER", "CONSUMER")
)}  # fmt: skip
_STATUSES = {f"STATUS_CODE_{name}": number for number, name in enumerate(("UNSET", "OK", "ERROR"))}


def decoded(body: bytes) -> Batch:
    """The spans of one `ExportTraceServiceRequest` in JSON.

    Raises:
        CallerError: that is no JSON, or has another shape.
        TooLargeError: it has more values than `VALUES_MAX`.

    """
    if sum(map(body.count, (b",", b"{", b"["))) > VALUES_MAX:  # not fewer than there are values
        raise TooLargeError(f"more than {VALUES_MAX} values in one request", hint="send smaller batches")
    try:
        tree = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise CallerError(f"the body is no JSON: {error}", field="body") from error
    return checked(_spans(_map(tree, "body")))


def _spans(tree: Mapping[str, Any]) -> Iterator[Received]:
    count = 0
    for i, resource_spans in enumerate(_list(tree.get("resourceSpans"), "resourceSpans")):
        at = f"resourceSpans[{i}]"
        group = _map(resource_spans, at)
        resource = _attributes(_map(group.get("resource"), f"{at}.resource").get("attributes"), at)
        service, source = whose(resource)
        for j, scope_spans in enumerate(_list(group.get("scopeSpans"), f"{at}.scopeSpans")):
            inner = f"{at}.scopeSpans[{j}]"
            some = _map(scope_spans, inner)
            scope = str(_map(some.get("scope"), f"{inner}.scope").get("name") or "")
            spans = _list(some.get("spans"), f"{inner}.spans")
            room = max(SPANS_MAX - count, 0)
            count += len(spans)
            yield from repeat(BEYOND, max(len(spans) - room, 0))
            for k, span in enumerate(islice(spans, room)):
                where = f"{inner}.spans[{k}]"
                yield Received(
                    _span(_map(span, where), where), cut(service), cut(source), cut(scope)
                )  # fmt: skip


def _span(told: Mapping[str, Any], where: str) -> Span:
    status = _map(told.get("status"), f"{where}.status")
    return Span(
        trace_id=str(told.get("traceId") or "").lower(),
        span_id=str(told.get("spanId") or "").lower(),
        parent_id=str(told.get("parentSpanId") or "").lower(),
        name=cut(str(told.get("name") or "")),
        start_ns=_whole(told.get("startTimeUnixNano")),
        end_ns=_whole(told.get("endTimeUnixNano")),
        attributes=_attributes(told.get("attributes"), where),
        kind=_word(told.get("kind"), _KINDS),
        status=_word(status.get("code"), _STATUSES),
        message=cut(str(status.get("message") or "")),
        trace_state=cut(str(told.get("traceState") or "")),
    )


def _attributes(told: Any, where: str) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for pair in islice(_list(told, f"{where}.attributes"), ATTRIBUTES_MAX):
        entry = _map(pair, f"{where}.attributes")
        made[cut(str(entry.get("key") or ""))] = _value(entry.get("value"), where, _DEPTH_MAX)
    return made


def _value(told: Any, where: str, depth: int) -> Any:
    """A value as Python has it; what is nested too deep is told by no more than that."""
    value = _map(told, f"{where}.attributes.value")
    if not depth:
        return "..."
    for form, content in value.items():
        if form == "stringValue":
            return cut(str(content))
        if form == "boolValue":
            return content is True or content == "true"
        if form == "intValue":
            return _whole(content)
        if form == "doubleValue":
            return _real(content)
        if form == "arrayValue":
            values = _list(_map(content, where).get("values"), where)
            return [_value(one, where, depth - 1) for one in islice(values, ATTRIBUTES_MAX)]
        if form == "kvlistValue":
            pairs = islice(_list(_map(content, where).get("values"), where), ATTRIBUTES_MAX)
            entries = [_map(one, where) for one in pairs]
            return {cut(str(e.get("key") or "")): _value(e.get("value"), where, depth - 1) for e in entries}
        if form == "bytesValue":
            return cut(str(content))
    return None


def _whole(told: Any) -> int:
    """A 64-bit integer, as text or as number; -1 for anything else, which no time is."""
    if isinstance(told, int):
        return int(told)
    if isinstance(told, str) and len(told) <= 20 and told.removeprefix("-").isascii():
        digits = told.removeprefix("-")
        return int(told) if digits.isdigit() else -1
    return int(told) if isinstance(told, float) and told.is_integer() else -1 if told is not None else 0


def _real(told: Any) -> float:
    """A double: a number, or the words of proto3 for what is none."""
    try:
        return float(told)
    except (TypeError, ValueError, OverflowError):
        return float("nan")


def _word(told: Any, words: Mapping[str, int]) -> int:
    if isinstance(told, str):
        return words.get(told, 0)
    return told if isinstance(told, int) else 0


def _map(told: Any, where: str) -> Mapping[str, Any]:
    if told is None:
        return {}
    if not isinstance(told, dict):
        raise CallerError(f"{where} is no object", field=where, hint="OTLP in JSON is meant")
    return told


def _list(told: Any, where: str) -> list[Any]:
    if told is None:
        return []
    if not isinstance(told, list):
        raise CallerError(f"{where} is no list", field=where, hint="OTLP in JSON is meant")
    return told
