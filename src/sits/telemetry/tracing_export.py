"""The process's way out for its spans: made when the first one ends, or by `configure`.

Rules: one process has one exporter, and it is the only state here.  Where neither `configure` nor the variables of OpenTelemetry name a place, nothing is
sent.  What goes wrong with spans is told in the log `sits`, once of each kind, and raised to nobody.

Source: OpenTelemetry's specification of SDK variables.

Deliberately absent: queue and thread (`telemetry.spans_out`).
"""

import logging
import os
import socket
from collections.abc import Mapping
from typing import Any

from sits.telemetry.spans_json import Span
from sits.telemetry.spans_out import INSTANCE, LAST_S, PERIOD_S, SpansOut, endpoint_of, headers_of, pairs


class _Exporter:
    """The process's one: the last of `outs`, None where nothing is to be sent; there are none before the first span ends.

    There is no lock, which a fork might take along for ever: each change is one step of the interpreter.  What `configure` says is put at the end and what the
    variables say at the start, so that neither a race nor a late first span replaces what was said.
    """

    def __init__(self) -> None:
        self.outs: list[SpansOut | None] = []
        self.told: set[str] = set()


_EXPORTER = _Exporter()


def configure(
    service: str = "",
    *,
    endpoint: str = "",
    headers: Mapping[str, str] | None = None,
    attributes: Mapping[str, Any] | None = None,
    period_s: float = PERIOD_S,
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
    out = _made(service, endpoint, headers or {}, attributes or {}, period_s)
    _EXPORTER.outs.append(out)
    before = _EXPORTER.outs[:-1]
    del _EXPORTER.outs[: len(before)]
    for one in before:
        if one is not None:
            one.close()
    return out


def flush(timeout_s: float = LAST_S) -> bool:
    """Send what waits, now; False when it could not all be sent in time."""
    out = _EXPORTER.outs[-1] if _EXPORTER.outs else None
    return out is None or out.flush(timeout_s)


def send(made: Span) -> None:
    """Send a span that has ended."""
    if not _EXPORTER.outs:
        first = None
        try:
            first = _made("", "", {}, {}, PERIOD_S)
        finally:
            _EXPORTER.outs.insert(0, first)
    out = _EXPORTER.outs[-1]
    if out is not None:
        out.put(made)


def tell_once(what: str, error: Exception) -> None:
    """Tell what went wrong, if nothing of `what` has before."""
    if what not in _EXPORTER.told:
        _EXPORTER.told.add(what)
        logging.getLogger("sits").warning("spans: %s: %s: %s", what, type(error).__name__, error)


def _made(
    service: str, endpoint: str, headers: Mapping[str, str], attributes: Mapping[str, Any], period_s: float
) -> SpansOut | None:
    place = endpoint.rstrip("/") if endpoint else endpoint_of(os.environ)
    if not place:
        return None
    if endpoint and not place.endswith("/v1/traces"):
        place += "/v1/traces"
    resource = _resource(service, attributes)
    return SpansOut(place, resource, headers={**headers_of(os.environ), **headers}, period_s=period_s)


def _resource(service: str, attributes: Mapping[str, Any]) -> dict[str, Any]:
    told = pairs(os.environ.get("OTEL_RESOURCE_ATTRIBUTES", ""))
    name = service or os.environ.get("OTEL_SERVICE_NAME", "") or told.get("service.name", "")
    host = socket.gethostname()
    return {
        "host.name": host,
        INSTANCE: f"{host}:{os.getpid()}",
        "telemetry.sdk.name": "sits",
        "telemetry.sdk.language": "python",
        **told,
        **attributes,
        "service.name": name or "unknown_service:python",
    }
