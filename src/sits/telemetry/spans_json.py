"""A span that is over, and the OTLP/JSON of a batch of them: what is posted to `/v1/traces`.

Rules: the JSON mapping of OTLP 1.x: ids are lower-case hex (not base64), 64-bit integers are decimal strings, enumerations are numbers, names are
in lowerCamelCase.  An attribute whose value has no form there (an object) is sent as its text; one that is None is not sent.  Texts are cut
at `TEXT_MAX` characters, lists at `LIST_MAX` values, and a span has `ATTRIBUTES_MAX` attributes: an attribute must not cost the batch it is in.
`kept` does that when a span ends, so that a queue of spans holds no large object of somebody's, and sends what a value was then.  The standard library only: this runs inside other
people's processes (an engine's plug-in, a user's service).

Source: OpenTelemetry Protocol 1.x, section "JSON Protobuf Encoding"; opentelemetry-proto `trace.proto`.

Deliberately absent: links, dropped counts, and who sends it (`telemetry.spans_out`).
"""

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

INTERNAL, SERVER, CLIENT, PRODUCER, CONSUMER = 1, 2, 3, 4, 5
"""Kinds of span, as OTLP numbers them."""

UNSET, OK, ERROR = 0, 1, 2
"""Status codes, as OTLP numbers them."""

TEXT_MAX = 4096
LIST_MAX = ATTRIBUTES_MAX = 128
_INT64 = 2**63
_AS_IS = frozenset((bool, int, float, type(None)))


class Event(NamedTuple):
    """Something that happened at `wall_ns` while a span ran."""

    name: str
    wall_ns: int
    attributes: Mapping[str, Any]


class Span(NamedTuple):
    """A span that is over.

    Attributes:
        trace_id: 32 hex digits; span_id, parent_id: 16 hex digits, the parent's empty at the root.
        start_ns, end_ns: wall clock, ns since the epoch; the end not before the start.
        status: `UNSET`, `OK` or `ERROR`; message: what went wrong.
        trace_state: the caller's `tracestate`, unread.

    """

    trace_id: str
    span_id: str
    parent_id: str
    name: str
    start_ns: int
    end_ns: int
    attributes: Mapping[str, Any] = {}
    kind: int = INTERNAL
    status: int = UNSET
    message: str = ""
    events: Sequence[Event] = ()
    trace_state: str = ""


def kept(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes as they are now, of bounded size, of plain types only; it never raises.

    >>> kept({"n": 7, "text": "a" * 5000, "set": {1}})["set"]
    '{1}'
    """
    if len(attributes) > ATTRIBUTES_MAX:
        attributes = dict(itertools.islice(attributes.items(), ATTRIBUTES_MAX))
    return {key: value if value.__class__ in _AS_IS else _kept(value) for key, value in attributes.items()}


def _kept(value: Any) -> Any:
    if value.__class__ is str:
        return value if len(value) <= TEXT_MAX else value[:TEXT_MAX]
    try:
        if isinstance(value, list | tuple):
            return [one if one.__class__ in _AS_IS else _flat(one) for one in value[:LIST_MAX]]
        return _flat(value)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001  # somebody's own methods: they must not cost the code that is timed
        return f"<{type(value).__name__}: {type(error).__name__}>"


def _flat(value: Any) -> Any:
    """A single value: numbers of numpy and the like as Python's own, anything else as its text."""
    if isinstance(value, bool | int | float):
        return value
    if getattr(value, "ndim", None) == 0 and isinstance(plain := value.item(), bool | int | float):
        return plain
    return text_of(value)


def encoded(resource: Mapping[str, Any], spans: Sequence[Span], scope: str = "sits") -> bytes:
    """The body of one `POST /v1/traces`: `spans` of one process, which `resource` describes (`service.name`, ...).

    >>> encoded({}, [])
    b'{"resourceSpans":[{"resource":{"attributes":[]},"scopeSpans":[{"scope":{"name":"sits"},"spans":[]}]}]}'
    """
    body = {
        "resourceSpans": [
            {
                "resource": {"attributes": _attributes(resource)},
                "scopeSpans": [{"scope": {"name": scope}, "spans": [_span(span) for span in spans]}],
            }
        ]
    }
    return json.dumps(body, separators=(",", ":")).encode()


def _span(span: Span) -> dict[str, Any]:
    made: dict[str, Any] = {
        "traceId": span.trace_id,
        "spanId": span.span_id,
        "name": _text(span.name),
        "kind": span.kind,
        "startTimeUnixNano": str(span.start_ns),
        "endTimeUnixNano": str(max(span.start_ns, span.end_ns)),
        "attributes": _attributes(span.attributes),
    }
    if span.parent_id:
        made["parentSpanId"] = span.parent_id
    if span.trace_state:
        made["traceState"] = span.trace_state
    if span.events:
        made["events"] = [
            {"timeUnixNano": str(at), "name": _text(name), "attributes": _attributes(more)}
            for name, at, more in span.events
        ]
    if span.status:
        made["status"] = {
            "code": span.status,
            **({"message": _text(span.message)} if span.message else {}),
        }
    return made


def _attributes(named: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{"key": _text(key), "value": _value(value)} for key, value in named.items() if value is not None]


def _value(value: Any) -> dict[str, Any]:
    """An `AnyValue`.

    >>> _value(True), _value(7), _value(0.5), _value(["a", 1])
    ({'boolValue': True}, {'intValue': '7'}, {'doubleValue': 0.5}, {'arrayValue': {'values': [{'stringValue': 'a'}, {'intValue': '1'}]}})
    """
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int) and -_INT64 <= value < _INT64:
        return {"intValue": str(int(value))}
    if isinstance(value, float) and math.isfinite(value):
        return {"doubleValue": float(value)}
    if isinstance(value, list | tuple):  # flat, as attributes are: a list in a list is sent as its text
        plain = (_text(one) if isinstance(one, list | tuple) else one for one in value)
        return {"arrayValue": {"values": [_value(one) for one in plain]}}
    return {"stringValue": _text(value)}


def text_of(value: Any) -> str:
    """As a text, cut; it never raises."""
    try:
        return str(value)[:TEXT_MAX]
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001  # somebody's own `__str__`: it must not cost the spans beside it
        return f"<{type(value).__name__}: {type(error).__name__}>"


def _text(value: Any) -> str:
    """As a text that is valid Unicode: half a surrogate pair would cost the whole batch."""
    text = text_of(value)
    return text if text.isascii() else text.encode("utf-8", "replace").decode()
