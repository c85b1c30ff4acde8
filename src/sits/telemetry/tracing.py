"""`sits.span`: spans of your own services, in the traces that the gateway and its engines take part in.

```
traceparent of the caller ─> Middleware, or `extract` ─> the current span (a context variable) ─> `inject` ─> traceparent to the gateway
                                                           └─ when it ends ─> telemetry.spans_out ─> OTLP/HTTP
```
Rules:
- Where nobody says where spans go (`telemetry.tracing_export`), contexts are passed on all the same.  A trace that its caller does not sample is
  passed on and not sent.
- Nothing here raises into the code it times: what goes wrong with a span costs that span.
- An exception that leaves a span makes it an error, with type, message and stack; being cancelled is noted and is none.
- Durations are monotonic; a span begins by the wall clock.

Source: OpenTelemetry's specification of recording exceptions.

Deliberately absent: metrics and logs (the libraries for them are good), and sampling here: the head of a trace decides, the gateway keeps the rest.
"""

import functools
import traceback
from collections.abc import Callable
from typing import Any, Self, TypeVar

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
from sits.telemetry.tracing_context import (
    Begun,
    Context,
    Entered,
    current,
    enter,
    extract,
    inject,
    leave,
)
from sits.telemetry.tracing_export import configure, flush, send, tell_once
from sits.telemetry.tracing_wraps import timed_by
from sits.world import RealWorld

KINDS = {"internal": INTERNAL, "server": SERVER, "client": CLIENT, "producer": PRODUCER, "consumer": CONSUMER}
EVENTS_MAX = 32
_WORLD = RealWorld()
_LEFT = ("CancelledError", "GeneratorExit")
"""By name: asyncio is not loaded for those who do without."""

F = TypeVar("F", bound=Callable[..., Any])


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
        self._came: Entered | None = None
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
            tell_once("span", RuntimeError(f"{self.name!r} is begun twice; each needs a span of its own"))
            self.go()
        parent = self._given if isinstance(self._given, Context) else current()
        self._parent = parent.span_id if parent is not None else ""
        trace_id = (
            parent.trace_id if parent is not None else f"{_WORLD.nonce():016x}{_WORLD.nonce() | 1:016x}"
        )
        mine = f"{_WORLD.nonce() or 1:016x}"
        self.context = (
            Begun(trace_id, mine) if parent is None else Begun(trace_id, mine, parent.sampled, parent.state)
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
            send(
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
            tell_once("span", failure)

    def come(self) -> None:
        """Be the current span; a generator's is, while it runs."""
        if self.context is not None and self._came is None:
            self._came = enter(self.context)

    def go(self) -> None:
        """Be it no more."""
        if self._came is not None:
            came, self._came = self._came, None
            leave(came, self.context)

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


__all__ = ["ERROR", "OK", "Context", "configure", "current", "extract", "flush", "inject", "span"]
