"""Where in which trace the code is that asks: a context variable, headers, and opentelemetry where that is loaded.

```
headers ─ extract ─> Context ─ enter ─> current, labels ─ inject ─> headers
```
Rules:
- The innermost wins, ours or opentelemetry's: its current span is the parent of ours, and ours of those it begins, so both make one tree.
- What comes in headers is theirs to get wrong: no valid `traceparent` is none, and a `tracestate` that no header can carry is left out.
- `labels` may interrupt anything, as a sampler's signal does: it takes no lock and raises nothing of ours.

Source: W3C Trace Context, level 1.

Deliberately absent: spans, and where they go.
"""

import re
import sys
from collections.abc import Mapping, MutableMapping
from contextvars import ContextVar, Token
from typing import Any, NamedTuple

from sits.telemetry.tracing_export import tell_once

_PARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")


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


class Begun(Context):
    """The context of a span of ours."""

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
            tell_once("opentelemetry", error)
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


class Entered(NamedTuple):
    """What is needed to leave a context again: our token, and opentelemetry's."""

    ours: Token[Context | None]
    theirs: Any


def enter(context: Context) -> Entered:
    """Make it the current one, for opentelemetry as well."""
    return Entered(_CURRENT.set(context), _attached(context))


def leave(entered: Entered, context: Context | None) -> None:
    """Make current again what was before `context` was entered."""
    _reset(entered.ours, context)
    _detached(entered.theirs)


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
        tell_once("opentelemetry", error)
        return None


def _detached(token: Any) -> None:
    if token is not None:
        import opentelemetry.context  # noqa: PLC0415  # it is loaded already

        opentelemetry.context.detach(token)
