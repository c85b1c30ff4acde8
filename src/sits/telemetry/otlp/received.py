"""A span as somebody sent it, what is wrong with one, and the rows of table `spans` they become.

Rules: a span without a usable id or time is refused by itself and counted with the reason, its neighbours are kept; of what is kept everything has a
bound (attributes, their texts, names), and what is beyond it is cut, not refused.  Bodies that are no OTLP at all are a `CallerError`, bodies
over the limit a `TooLargeError`: neither is looked at further.

Source: OpenTelemetry Protocol 1.x; W3C Trace Context for what an id is.

Deliberately absent: the two encodings (`otlp.protobuf`, `otlp.mapping`), and what a span says about a request (`otlp.sighted`).
"""

import json
import math
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from sits.core.errors import CallerError, TooLargeError
from sits.core.otel_names import HOST, INSTANCE, SERVICE
from sits.telemetry.spans_json import Span
from sits.telemetry.tables import SPANS, Columns, columns_of

BODY_MAX = 16 * 2**20
"""Bytes of one request, decompressed."""
SPANS_MAX, ATTRIBUTES_MAX, TEXT_MAX = 50_000, 128, 4096
VALUES_MAX = 2_000_000
"""JSON values of one request: objects of two bytes become objects of a hundred in memory."""
KINDS = ("UNSPECIFIED", "INTERNAL", "SERVER", "CLIENT", "PRODUCER", "CONSUMER")
STATUSES = ("UNSET", "OK", "ERROR")

_LAST_NS = 2**63 - 1
_HEX = frozenset("0123456789abcdef")


class Received(NamedTuple):
    """One span and who sent it: `service` as the resource names it, `source` that process of it (a clock of its own), `scope` the library."""

    span: Span
    service: str = ""
    source: str = ""
    scope: str = ""


BEYOND = Received(Span("", "", "", "", 0, 0))
"""Stands for each span after the first `SPANS_MAX` of a request: those are counted, and not looked at."""


class Batch(NamedTuple):
    """What one request brought: the spans kept, and how many were not, by why."""

    spans: Sequence[Received]
    refused: Mapping[str, int]

    @property
    def rejected(self) -> int:
        """How many spans were not kept."""
        return sum(self.refused.values())

    @property
    def reason(self) -> str:
        """Why, in one line; empty when all were kept."""
        return ", ".join(f"{count} with {why}" for why, count in sorted(self.refused.items()))


def checked(spans: Iterable[Received]) -> Batch:
    """Keep the spans that can be used, and count the others."""
    kept: list[Received] = []
    refused: Counter[str] = Counter()
    for one in spans:
        if one is BEYOND:
            refused[f"more than {SPANS_MAX} before them"] += 1
        elif problem := problem_of(one.span):
            refused[problem] += 1
        else:
            kept.append(one)
    return Batch(kept, refused)


def problem_of(span: Span) -> str:
    """What makes a span unusable, in a few words; empty when nothing does."""
    if not _is_id(span.trace_id, 32):
        return "no valid trace id"
    if not _is_id(span.span_id, 16):
        return "no valid span id"
    if span.parent_id and not _is_id(span.parent_id, 16):
        return "no valid parent id"
    if not 0 < span.start_ns <= _LAST_NS or not 0 < span.end_ns <= _LAST_NS:
        return "no valid time"
    return "an end before its start" if span.end_ns < span.start_ns else ""


def _is_id(text: str, digits: int) -> bool:
    return len(text) == digits and _HEX.issuperset(text) and text != "0" * digits


def whose(resource: Mapping[str, Any]) -> tuple[str, str]:
    """Service and source of a resource: the source is the instance where it is told, for two instances have two clocks.

    >>> whose({"service.name": "vllm", "service.instance.id": "a1"})
    ('vllm', 'vllm@a1')
    """
    service = str(resource.get(SERVICE, "") or "unknown_service")
    instance = resource.get(INSTANCE) or resource.get(HOST) or ""
    return service, f"{service}@{instance}" if instance else service


def cut(text: str) -> str:
    """`text`, at most `TEXT_MAX` characters of it."""
    return text if len(text) <= TEXT_MAX else text[:TEXT_MAX]


def inflated(body: bytes, encoding: str) -> bytes:
    """The body as it was before it was compressed.

    Raises:
        TooLargeError: it is, or would become, larger than `BODY_MAX`.
        CallerError: it is not what `encoding` says, or that is neither gzip nor deflate.

    """
    if encoding in ("", "identity"):
        if len(body) > BODY_MAX:
            raise _too_large()
        return body
    if encoding not in ("gzip", "deflate"):
        raise CallerError(f"content-encoding {encoding!r} is not read here", hint="gzip, deflate or none")
    unpack = zlib.decompressobj(wbits=47)  # either header
    try:
        plain = unpack.decompress(body, BODY_MAX + 1)
    except zlib.error as error:
        raise CallerError(f"the body is no {encoding}: {error}") from error
    if len(plain) > BODY_MAX:
        raise _too_large()
    if not unpack.eof:
        raise CallerError(f"the body is {encoding} that ends too early")
    return plain


def _too_large() -> TooLargeError:
    return TooLargeError(f"more than {BODY_MAX} bytes in one request", hint="send smaller batches")


def span_columns(run_id: str, spans: Sequence[Received]) -> Columns:
    """Columns of table `spans`, in the order they came."""
    return columns_of(SPANS, [_row(run_id, one) for one in spans])


def _row(run_id: str, one: Received) -> tuple[Any, ...]:
    span = one.span
    return (
        run_id,
        span.trace_id,
        span.span_id,
        span.parent_id,
        one.source,
        span.name,
        KINDS[span.kind] if 0 <= span.kind < len(KINDS) else KINDS[0],
        span.start_ns,
        span.end_ns,
        _status(span),
        json.dumps({key: _finite(value) for key, value in span.attributes.items()}, separators=(",", ":")),
    )


def _status(span: Span) -> str:
    word = STATUSES[span.status] if 0 <= span.status < len(STATUSES) else STATUSES[0]
    return f"{word}: {span.message}" if span.message else word


def _finite(value: Any) -> Any:
    """JSON has no word for what is not finite."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
