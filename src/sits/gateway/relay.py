"""An engine's answer on its way to the client: begun with what its first chunk says, passed on byte for byte, counted and timed.

Rules:
- An answer that comes whole is one step; of a stream, chunks that are nothing but tokens take the shortest way there is,
  because they are what a gateway spends its days on.
- Only a streamed answer has a first token.  One that comes whole shows nobody its first token before its last, so
  `first_token` stays missing: its decoding must not count as TTFT.
- The longest wait between two chunks of a stream is kept (`stall_ns`): a mean between tokens hides it.
- The engine's refusals (4xx, 429) pass through.
- Once a stream has begun nobody is asked again, so what was asked (a prompt of megabytes, perhaps) is let go of.

Deliberately absent: retries and errors (gateway.pipeline), and what the bytes mean (the engine's reader).
"""

from collections.abc import AsyncIterator, Awaitable
from typing import TYPE_CHECKING, Final

from sits.core.breakpoints import API_RECV, DISPATCHED, FIRST_TOKEN, LAST_TOKEN
from sits.core.errors import EngineError
from sits.core.request import Chunk
from sits.core.timeline import MEASURED as MEASURED  # noqa: PLC0414  (also for others)
from sits.core.units import MS
from sits.gateway.adapters.stage import check_answer
from sits.gateway.exchange import NO_HEADERS, Exchange
from sits.gateway.pulling import pull
from sits.gateway.versions import copier_of

if TYPE_CHECKING:
    from sits.gateway.pipeline import Gateway

SSE: Final = b"text/event-stream; charset=utf-8"
JSON: Final = b"application/json"
_TIMED: Final = b"\r\nx-sits-engine: %b\r\nserver-timing: gateway;dur=%.2f, engine;dur=%.2f"


async def relay(gateway: "Gateway", exchange: Exchange) -> None:
    """Pass the engine's answer on, and mark the first token (of a stream) and the last."""
    request, replica, seat = exchange.request, exchange.replica, exchange.seat
    assert replica is not None
    if request.adapter and gateway.adapters is not None:
        request = gateway.adapters.as_asked(request, replica.id)
    engine = gateway.engines[replica.id]
    if seat is None:
        answer = engine.generate(request, exchange.timeline)
    else:
        answer = seat.answer(engine, request, exchange.timeline, again=bool(exchange.tried))
    whole = None if request.stream else getattr(answer, "whole", None)
    chunk: Chunk | None = None if whole is None else await whole()
    if chunk is None:
        await _relay_chunks(gateway, exchange, answer)
        return
    _start(gateway, exchange, chunk)
    exchange.sink.write(chunk.data)
    if exchange.lookup is not None and (copy := copier_of(gateway.cached, exchange)) is not None:
        copy(chunk.data)
    timeline = exchange.timeline
    if chunk.tokens:
        timeline.at[LAST_TOKEN], timeline.how[LAST_TOKEN] = gateway.now_ns(), MEASURED
    exchange.answered = True
    exchange.spent(chunk.tokens, chunk.usage)


async def _relay_chunks(gateway: "Gateway", exchange: Exchange, stream: AsyncIterator[Chunk]) -> None:
    """The same, chunk by chunk."""
    assert exchange.replica is not None
    now_ns, timeline, write = gateway.now_ns, exchange.timeline, exchange.sink.write
    tokens = last_ns = stall_ns = 0
    usage, copy = None, copier_of(gateway.cached, exchange)

    def give(chunk: Chunk) -> Awaitable[None] | None:
        nonlocal tokens, last_ns, stall_ns, usage
        if not exchange.started:
            _start(gateway, exchange, chunk)
        waiting = write(chunk.data) if chunk.data else None
        if copy is not None:
            copy(chunk.data)
        if chunk.tokens:
            before_ns, last_ns = last_ns, now_ns()
            if tokens:
                stall_ns = max(stall_ns, last_ns - before_ns)
            elif exchange.streaming:
                timeline.mark(FIRST_TOKEN, last_ns)
            tokens += chunk.tokens
        if chunk.last:
            exchange.answered = True
            exchange.preemptions = chunk.preemptions
        if chunk.usage is not None:
            usage = chunk.usage
        return waiting

    def give_tokens(data: bytes, count: int) -> Awaitable[None] | None:
        """The same for chunks in mid-stream that are nothing but tokens."""
        nonlocal tokens, last_ns, stall_ns
        before_ns, last_ns = last_ns, now_ns()
        if last_ns - before_ns > stall_ns:  # noqa: PLR1730  (`max` costs a call)
            stall_ns = last_ns - before_ns
        tokens += count
        return write(data)

    try:
        push = getattr(stream, "push", None)
        if push is not None:
            await push(give, give_tokens if copy is None else None)
        else:
            await pull(stream, give)
    finally:
        if last_ns:
            timeline.at[LAST_TOKEN], timeline.how[LAST_TOKEN] = last_ns, MEASURED
        exchange.stall_ns = stall_ns
        exchange.spent(tokens, usage)
    if not exchange.started:
        raise EngineError(f"engine {exchange.replica.id!r} ended without an answer", code="engine_died")


def _start(gateway: "Gateway", exchange: Exchange, chunk: Chunk) -> None:
    """Begin the client's answer with what the engine's first chunk says; its refusals pass through."""
    replica, status, now_ns = exchange.replica, chunk.status, gateway.now_ns()
    assert replica is not None
    if gateway.adapters is not None and exchange.request.adapter:
        check_answer(gateway.adapters, exchange, chunk)
    if gateway.places.suspects:
        gateway.places.reached(replica, now_ns)
    exchange.started = True
    exchange.status = status
    exchange.content_type = content_type = chunk.content_type or (SSE if exchange.request.stream else JSON)
    if content_type != JSON:
        exchange.streaming = content_type.startswith(b"text/event-stream")
    if exchange.streaming:
        exchange.request.body = b""
        if exchange.standing.recorded:  # else the record will begin with what they say
            exchange.headers = NO_HEADERS
    if status >= 400:
        exchange.end("refused", status, f"engine_{status}")
    at, slots = exchange.timeline.at, exchange.standing.slots
    sent_ns = at[DISPATCHED]
    lines = _TIMED % (replica.id.encode(), (sent_ns - at[API_RECV]) / MS, (now_ns - sent_ns) / MS)
    if exchange.lookup is not None:
        lines += b"\r\nx-sits-cache: " + exchange.lookup.header
    if exchange.fell_back is not None:
        lines += b"\r\nx-sits-fallback: " + exchange.arm.encode()
    if exchange.injected is not None:
        lines += b"\r\nx-sits-injected: " + exchange.injected.choice.encode()
    if slots is not None and exchange.reserved:
        lines += slots.told(now_ns)
    if chunk.retry_after:
        lines += b"\r\nretry-after: " + chunk.retry_after
    if chunk.in_pieces:
        exchange.sink.in_pieces()
    exchange.sink.start(status, content_type, lines)
