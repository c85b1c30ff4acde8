"""`sits.span`: spans of your own services, in the traces that the gateway and its engines take part in.

```
traceparent of the caller ─> Middleware, or `extract` ─> the current span (a context variable) ─> `inject` ─> traceparent to the gateway
                                                           └─ when it ends ─> telemetry.spans_out ─> OTLP/HTTP
```
Rules:
- Where spans go is said by `configure`, or by the variables of OpenTelemetry; where neither says, nothing is sent and contexts are passed
  on all the same.  A trace that its caller does not sample is passed on and not sent.
- Nothing here raises into the code it times: what goes wrong with a span is told once to the log `sits`, and costs that span.
- An exception that leaves a span makes it an error, with type, message and stack; being cancelled is noted and is none.
- Where opentelemetry is loaded, its current span is the parent of ours, and ours of those it begins: both make one tree.  Durations are monotonic; a span begins by the wall clock.

One process has one exporter: the only state of this module, made by the first span that ends or by `configure`.

Source: W3C Trace Context, level 1; OpenTelemetry's specification of SDK variables and of recording exceptions.

Deliberately absent: metrics and logs (the libraries for them are good), and sampling here: the head of a trace decides, the gateway keeps the rest.
"""

import functools
import logging
import os
import re
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, MutableMapping
from contextvars import ContextVar, Token
from typing import Any, NamedTuple, Self, TypeVar

from sits.telemetry.spans_json import (
    CLIENT,
    CONSUMER,
    ERROR,
    INTERNAL,
    OK,
    PRODUCER,
    SERVER,
    UNSET,
    Event,
    Span,
    kept,
    text_of,
)
from sits.telemetry.spans_out import SpansOut, endpoint_of, headers_of, pairs
from sits.telemetry.tracing_wraps import timed_by
from sits.world import RealWorld

KINDS = {"internal": INTERNAL, "server": SERVER, "client": CLIENT, "producer": PRODUCER, "consumer": CONSUMER}
EVENTS_MAX = 32
_PARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_WORLD = RealWorld()
_LEFT = ("CancelledError", "GeneratorExit")
"""By name: asyncio is not loaded for those who do without."""

F = TypeVar("F", bound=Callable[..., Any])


class Context(NamedTuple):
    """Where in which trace one is.  `sampled`: whether its spans are sent; `state`: the `tracestate`, unread."""

    trace_id: str
    span_id: str
    sampled: bool = True
    state: str = ""

    @property
    def traceparent(self) -> str:
        """As a header says it."""
        return f"00-{self.trace_id}-{self.span_id}-{'01' if self.sampled else '00'}"


class _Begun(Context):
    name: str  # of the span, for whoever samples what the process does


_CURRENT: ContextVar[Context | None] = ContextVar("sits_span", default=None)


def current() -> Context | None:
    """Where the code that asks is; None outside of any span."""
    mine = _CURRENT.get()
    otel = sys.modules.get("opentelemetry.trace")
    if otel is not None:
        try:
            found = otel.get_current_span().get_span_context()
            if found.is_valid and (mine is None or f"{found.span_id:016x}" != mine.span_id):
                state = found.trace_state.to_header() if found.trace_state else ""
                return Context(
                    f"{found.trace_id:032x}", f"{found.span_id:016x}", bool(found.trace_flags & 1), state
                )
        except Exception as error:  # noqa: BLE001  # somebody else's version of a library is not our caller's trouble
            _tell_once("opentelemetry", error)
    return mine


def labels() -> tuple[str, str]:
    """Trace of where the code that asks is, and the name of its innermost span; empty where there is none.  It may interrupt anything."""
    mine = _CURRENT.get()
    get = getattr(sys.modules.get("opentelemetry.trace"), "get_current_span", None)
    if get is not None:  # the module is there, and all of it
        found = (theirs := get()).get_span_context()
        if found.is_valid and (mine is None or f"{found.span_id:016x}" != mine.span_id):
            return f"{found.trace_id:032x}", str(getattr(theirs, "name", ""))
    return ("", "") if mine is None else (mine.trace_id, str(getattr(mine, "name", "")))


def extract(headers: Mapping[str, str] | Any) -> Context | None:
    """The context that headers (of any case) bring; None when they bring none that is valid.

    >>> extract({"Traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}).span_id
    '00f067aa0ba902b7'
    """
    if not isinstance(headers, Mapping):
        return None
    named = {_read(name).lower(): _read(value) for name, value in headers.items()}
    match = _PARENT.fullmatch(named.get("traceparent", "").strip())
    if match is None or (match[4] and match[0].startswith("00")):
        return None
    state = named.get("tracestate", "")[:512]
    if not (state.isascii() and state.isprintable()):  # it goes into the headers of the next call
        state = ""
    return Context(match[1], match[2], bool(int(match[3], 16) & 1), state)


def _read(part: Any) -> str:
    return part.decode("latin-1") if isinstance(part, bytes) else str(part)


def inject(headers: MutableMapping[str, str] | None = None) -> MutableMapping[str, str]:
    """Add the current context to `headers` (a new dict by default), for the next service; outside of any span nothing is added."""
    headers = {} if headers is None else headers
    here = current()
    if here is not None:
        headers["traceparent"] = here.traceparent
        if here.state:
            headers["tracestate"] = here.state
    return headers


class span:  # noqa: N801  # it is used as a verb: `with sits.span("retrieve"):`
    """Times what happens inside, as a span of the current trace, or the first one of a new trace.

    A context manager (`with` and `async with`) and a decorator of functions, coroutine functions and generators of both kinds.

    Args:
        name: of few kinds, like `rerank`; what varies is an attribute.
        kind: `internal`, `server`, `client`, `producer` or `consumer`.
        parent: a context that came by other ways than the current one, from `extract`.
        attributes: texts, numbers, truth values, or lists of them.

    """

    def __init__(
        self, name: str, /, *, kind: str = "internal", parent: Context | None = None, **attributes: Any
    ) -> None:
        self.name = name
        self.attributes = attributes
        self.context: Context | None = None
        self._kind = kind
        self._given = parent
        self._begun: Context | None = None
        self._came: tuple[Token[Context | None], Any] | None = None
        self._events: list[Event] = []
        self._status, self._message = UNSET, ""

    def set(self, **attributes: Any) -> Self:
        """Add attributes."""
        self.attributes.update(attributes)
        return self

    def event(self, name: str, /, **attributes: Any) -> Self:
        """Note that something happened now; a span keeps `EVENTS_MAX`."""
        if len(self._events) < EVENTS_MAX:
            self._events.append(Event(name, _WORLD.wall_ns(), kept(attributes)))
        return self

    def fail(self, message: str = "") -> Self:
        """It went wrong, without an exception."""
        self._status, self._message = ERROR, text_of(message)
        return self

    def __enter__(self) -> Self:
        """Begin."""
        if self._came is not None:
            _tell_once("span", RuntimeError(f"{self.name!r} is begun twice; each needs a span of its own"))
            self.go()
        parent = self._given if isinstance(self._given, Context) else current()
        self._parent = parent.span_id if parent is not None else ""
        trace_id = (
            parent.trace_id if parent is not None else f"{_WORLD.nonce():016x}{_WORLD.nonce() | 1:016x}"
        )
        mine = f"{_WORLD.nonce() or 1:016x}"
        self.context = (
            _Begun(trace_id, mine) if parent is None else _Begun(trace_id, mine, parent.sampled, parent.state)
        )
        self.context.name = self.name
        self._begun = self.context
        self.come()
        self._start_wall_ns, self._start_ns = _WORLD.wall_ns(), _WORLD.now_ns()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, stack: Any) -> None:
        """End, and send it away."""
        context, self._begun = self._begun, None
        if context is None:  # never begun, or over
            return
        end_ns = self._start_wall_ns + _WORLD.now_ns() - self._start_ns
        self.go()
        if not context.sampled:
            return
        try:
            if error is not None:
                self._left(error)
            _send(
                Span(
                    context.trace_id,
                    context.span_id,
                    self._parent,
                    self.name,
                    self._start_wall_ns,
                    end_ns,
                    kept(self.attributes),
                    KINDS.get(self._kind, INTERNAL),
                    self._status,
                    self._message,
                    tuple(self._events),
                    context.state,
                )
            )
        except Exception as failure:  # noqa: BLE001  # the code that is timed comes first
            _tell_once("span", failure)

    def come(self) -> None:
        """Be the current span; a generator's is, while it runs."""
        if self.context is not None and self._came is None:
            self._came = _CURRENT.set(self.context), _attached(self.context)

    def go(self) -> None:
        """Be it no more."""
        if self._came is not None:
            (token, theirs), self._came = self._came, None
            _reset(token, self.context)
            _detached(theirs)

    async def __aenter__(self) -> Self:
        """Begin."""
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, stack: Any
    ) -> None:
        """End."""
        self.__exit__(kind, error, stack)

    def __call__(self, function: F) -> F:
        """Time each call of `function`."""
        make = functools.partial(span, self.name, kind=self._kind, parent=self._given, **self.attributes)
        timed: F = timed_by(function, make)
        return timed

    def _left(self, error: BaseException) -> None:
        if type(error).__name__ in _LEFT or (isinstance(error, SystemExit) and not error.code):
            self.attributes["cancelled"] = True
            return
        named = f"{type(error).__module__}.{type(error).__qualname__}".removeprefix("builtins.")
        said = text_of(error)
        self._status, self._message = ERROR, f"{named}: {said}" if said else named
        self.attributes.setdefault("error.type", named)
        stack = "".join(traceback.format_exception(error, limit=-16))
        self.event(
            "exception",
            **{"exception.type": named, "exception.message": said, "exception.stacktrace": stack[-4096:]},
        )


def _reset(token: Token[Context | None], mine: Context | None) -> None:
    try:
        _CURRENT.reset(token)
    except ValueError:  # it ends in another thread or task than it began in; what is current there stays
        if _CURRENT.get() is mine:
            _CURRENT.set(None if token.old_value is Token.MISSING else token.old_value)


def _attached(context: Context) -> Any:
    """Make ours the current span of opentelemetry too, where that is loaded."""
    otel = sys.modules.get("opentelemetry.trace")
    if otel is None:
        return None
    try:
        import opentelemetry.context  # noqa: PLC0415  # it is loaded already

        known = otel.SpanContext(
            int(context.trace_id, 16), int(context.span_id, 16), False, otel.TraceFlags(int(context.sampled))
        )
        return opentelemetry.context.attach(otel.set_span_in_context(otel.NonRecordingSpan(known)))
    except Exception as error:  # noqa: BLE001  # somebody else's version of a library is not our caller's trouble
        _tell_once("opentelemetry", error)
        return None


def _detached(token: Any) -> None:
    if token is not None:
        import opentelemetry.context  # noqa: PLC0415  # it is loaded already

        opentelemetry.context.detach(token)


class _Exporter:
    """The process's way out: made when it is first needed, replaced by `configure`."""

    def __init__(self) -> None:
        self.out: SpansOut | None = None
        self.known = False
        self.first = threading.Lock()
        self.told: set[str] = set()


_EXPORTER = _Exporter()


def configure(
    service: str = "",
    *,
    endpoint: str = "",
    headers: Mapping[str, str] | None = None,
    attributes: Mapping[str, Any] | None = None,
    period_s: float = 1.0,
) -> SpansOut | None:
    """Say what this process is and where its spans go; what is not said is taken from the variables of OpenTelemetry.

    Args:
        service: its `service.name`.
        endpoint: the base of an OTLP/HTTP receiver, like the gateway's admin port `http://gateway:9090`, or a whole `.../v1/traces`.
        headers: sent with each batch, `{"authorization": "Bearer ..."}`.
        attributes: of the process, on all of its spans.
        period_s: spans wait at most this long for others to go with.

    Returns:
        Who sends them, with counts of what was `sent`, `dropped` and `failed`; None when nobody is named to send them to.

    """
    place = endpoint.rstrip("/") if endpoint else endpoint_of(os.environ)
    if place and endpoint and not place.endswith("/v1/traces"):
        place += "/v1/traces"
    old, _EXPORTER.out = _EXPORTER.out, None
    try:
        if old is not None:
            old.close()
        if place:
            _EXPORTER.out = SpansOut(
                place,
                _resource(service, attributes or {}),
                headers={**headers_of(os.environ), **(headers or {})},
                period_s=period_s,
            )
    finally:
        _EXPORTER.known = True
    return _EXPORTER.out


def flush(timeout_s: float = 3.0) -> bool:
    """Send what waits, now; False when it could not all be sent in time."""
    out = _EXPORTER.out
    return out is None or out.flush(timeout_s)


def _resource(service: str, attributes: Mapping[str, Any]) -> dict[str, Any]:
    told = pairs(os.environ.get("OTEL_RESOURCE_ATTRIBUTES", ""))
    name = service or os.environ.get("OTEL_SERVICE_NAME", "") or told.get("service.name", "")
    host = socket.gethostname()
    return {
        "host.name": host,
        "service.instance.id": f"{host}:{os.getpid()}",
        "telemetry.sdk.name": "sits",
        "telemetry.sdk.language": "python",
        **told,
        **attributes,
        "service.name": name or "unknown_service:python",
    }


def _send(made: Span) -> None:
    if not _EXPORTER.known:
        with _EXPORTER.first:  # of threads that end their first spans together one configures
            if not _EXPORTER.known:
                configure()
    if _EXPORTER.out is not None:
        _EXPORTER.out.put(made)


def _tell_once(what: str, error: Exception) -> None:
    if what not in _EXPORTER.told:
        _EXPORTER.told.add(what)
        logging.getLogger("sits").warning("spans: %s: %s: %s", what, type(error).__name__, error)


__all__ = ["ERROR", "OK", "Context", "configure", "current", "extract", "flush", "inject", "span"]
