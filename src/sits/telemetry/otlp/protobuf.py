"""OTLP as protobuf: spans and metrics written, spans read.

The messages are those of the package opentelemetry-proto, of the extra `otlp`: without it a `ConfigError` says what to install.  It is
imported when it is first needed, for it and protobuf are half a second and 15 MB.

Rules: reading keeps what `otlp.received` bounds; a value that has no form is written as its text.

Source: opentelemetry-proto 1.x.

Deliberately absent: JSON (`otlp.mapping`), connections (`app.otlp`).
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, repeat
from types import ModuleType
from typing import Any, NamedTuple

from sits.core.errors import CallerError, ConfigError, TooLargeError
from sits.telemetry.otlp.counting import more_than
from sits.telemetry.otlp.received import (
    ATTRIBUTES_MAX,
    BEYOND,
    SPANS_MAX,
    Batch,
    Received,
    checked,
    cut,
    whose,
)
from sits.telemetry.spans_json import Span

INSTALL = 'pip install "sitsctl[otlp]"'
_DEPTH_MAX = 8
_INT64 = 2**63


class Messages(NamedTuple):
    """The modules of opentelemetry-proto that are used."""

    traces: ModuleType
    metrics: ModuleType
    trace: ModuleType
    metric: ModuleType
    common: ModuleType


def messages() -> Messages:
    """Load them.

    Raises:
        ConfigError: the extra `otlp` is not installed.

    """
    try:
        from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as metrics  # noqa: PLC0415
        from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as traces  # noqa: PLC0415
        from opentelemetry.proto.common.v1 import common_pb2 as common  # noqa: PLC0415
        from opentelemetry.proto.metrics.v1 import metrics_pb2 as metric  # noqa: PLC0415
        from opentelemetry.proto.trace.v1 import trace_pb2 as trace  # noqa: PLC0415
    except ImportError as error:
        raise ConfigError(
            f"OTLP as protobuf needs a package that is not installed: {error.name or error}",
            field="telemetry.otlp",
            hint=f"{INSTALL}; spans in JSON are received without it",
        ) from error
    return Messages(traces, metrics, trace, metric, common)


def decoded(body: bytes, known: Messages) -> Batch:
    """The spans of one serialized `ExportTraceServiceRequest`.

    Raises:
        CallerError: it is none.
        TooLargeError: it has far more spans than are kept of one request.

    """
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # noqa: PLC0415

    if more_than(body, 4 * SPANS_MAX):
        raise TooLargeError(f"far more than {SPANS_MAX} spans in one request", hint="send smaller batches")
    request = known.traces.ExportTraceServiceRequest()
    try:
        request.ParseFromString(body)
    except DecodeError as error:
        raise CallerError(f"the body is no ExportTraceServiceRequest: {error}", field="body") from error
    return received(request)


def received(request: Any) -> Batch:
    """The spans of one `ExportTraceServiceRequest`."""
    return checked(_spans(request))


def _spans(request: Any) -> Iterator[Received]:
    count = 0
    for group in request.resource_spans:
        service, source = whose(_read(group.resource.attributes))
        for some in group.scope_spans:
            room = max(SPANS_MAX - count, 0)
            count += len(some.spans)
            yield from repeat(BEYOND, max(len(some.spans) - room, 0))
            for span in islice(some.spans, room):
                yield Received(_span(span), cut(service), cut(source), cut(some.scope.name))


def _span(told: Any) -> Span:
    return Span(
        trace_id=told.trace_id.hex(),
        span_id=told.span_id.hex(),
        parent_id=told.parent_span_id.hex(),
        name=cut(told.name),
        start_ns=told.start_time_unix_nano,
        end_ns=told.end_time_unix_nano,
        attributes=_read(told.attributes),
        kind=told.kind,
        status=told.status.code,
        message=cut(told.status.message),
        trace_state=cut(told.trace_state),
    )


def _read(pairs: Any) -> dict[str, Any]:
    return {cut(pair.key): _value(pair.value, _DEPTH_MAX) for pair in islice(pairs, ATTRIBUTES_MAX)}


def _value(told: Any, depth: int) -> Any:
    form = told.WhichOneof("value")
    if not depth:
        return "..."
    if form == "array_value":
        return [_value(one, depth - 1) for one in islice(told.array_value.values, ATTRIBUTES_MAX)]
    if form == "kvlist_value":
        pairs = islice(told.kvlist_value.values, ATTRIBUTES_MAX)
        return {cut(pair.key): _value(pair.value, depth - 1) for pair in pairs}
    if form is None:
        return None
    value = getattr(told, form)
    if isinstance(value, bytes):
        return cut(value.hex())
    return cut(value) if isinstance(value, str) else value


def traces(resource: Mapping[str, Any], spans: Sequence[Span], known: Messages, schema_url: str = "") -> Any:
    """An `ExportTraceServiceRequest` of spans of one process, which `resource` describes."""
    request = known.traces.ExportTraceServiceRequest()
    group = request.resource_spans.add()
    write_attributes(group.resource.attributes, resource)
    some = group.scope_spans.add()
    some.scope.name, some.schema_url = "sits", schema_url
    for span in spans:
        made = some.spans.add(
            trace_id=bytes.fromhex(span.trace_id),
            span_id=bytes.fromhex(span.span_id),
            parent_span_id=bytes.fromhex(span.parent_id),
            name=span.name,
            kind=span.kind,
            start_time_unix_nano=span.start_ns,
            end_time_unix_nano=span.end_ns,
            trace_state=span.trace_state,
        )
        write_attributes(made.attributes, span.attributes)
        if span.status or span.message:
            made.status.code, made.status.message = span.status, span.message
    return request


def write_attributes(into: Any, attributes: Mapping[str, Any]) -> None:
    """Add `attributes` to a repeated `KeyValue`; those that are None are not sent."""
    for key, value in attributes.items():
        if value is not None:
            _write(into.add(key=key).value, value)


def _write(into: Any, value: Any) -> None:
    if isinstance(value, bool):
        into.bool_value = value
    elif isinstance(value, int) and -_INT64 <= value < _INT64:
        into.int_value = value
    elif isinstance(value, float):
        into.double_value = value
    elif isinstance(value, list | tuple):
        into.array_value.SetInParent()
        for one in value:
            _write(into.array_value.values.add(), one)
    elif isinstance(value, Mapping):
        into.kvlist_value.SetInParent()
        for key, one in value.items():
            _write(into.kvlist_value.values.add(key=str(key)).value, one)
    else:
        into.string_value = _text(value)


def _text(value: Any) -> str:
    """Half a character (a lone surrogate) is no UTF-8, and must not cost the batch."""
    return cut(str(value)).encode("utf-8", "replace").decode()
