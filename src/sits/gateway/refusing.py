"""Telling a client what went wrong, in the form it can still take.

Rules: before the first byte an error is JSON of the caller's dialect; in a stream an error event and a proper end *without* `[DONE]` or
`message_stop`, so that nobody takes half an answer for a whole one; in a plain answer that has begun the connection is cut.
"""

from typing import TYPE_CHECKING

from sits.core.breakpoints import SENT
from sits.core.errors import BugError, EngineError, SitsError
from sits.gateway.endpoints import error_of, event_of
from sits.gateway.exchange import Exchange
from sits.gateway.quota import quota_head

if TYPE_CHECKING:
    from sits.gateway.pipeline import Gateway

JSON = b"application/json"


async def answer_error(gateway: "Gateway", exchange: Exchange, error: SitsError) -> None:
    """Tell the client what went wrong, in the form it can still take."""
    outcome = "failed" if isinstance(error, EngineError | BugError) else "refused"
    exchange.end(outcome, error.status, error.code or error.kind)
    sink, (status, body) = exchange.sink, error_of(error, exchange.request)
    if not exchange.started:
        lines = quota_head(gateway, exchange, error)
        if error.retry_after_s is not None:
            lines += b"\r\nretry-after: %d" % max(1, round(error.retry_after_s))
        sink.start(status, JSON, lines)
        waiting = sink.write(body)
    elif exchange.streaming:
        waiting = sink.write(event_of(body, exchange.request))
    else:
        sink.abort()
        return
    if waiting is not None:
        await waiting
    waiting = sink.finish()
    if waiting is not None:
        await waiting
    exchange.timeline.mark(SENT, gateway.world.now_ns())
