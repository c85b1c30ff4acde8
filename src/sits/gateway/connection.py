"""One client connection: bytes in, exchanges one after the other, answers out in order.

Rules:
- One exchange at a time; pipelined requests wait their turn, in a queue bounded in number and in bytes.  Beyond it reading
  stops until the queue is shorter.  A socket that is not read does not tell that its client has left, so it is asked; and as its
  leaving may be behind bytes we do not take, after `CROWDED_NS` what else is pipelined is refused, and dropped as it comes.
- A client that leaves cancels its exchange at once, wherever that is: in a window, waiting for the engine, in mid-stream.
  An end-of-file from the client counts as leaving, as with nginx.
- Back-pressure: when the client does not read, the sink's `write` waits, so the engine is not read either; and no next
  request of its is begun, so that pages it asks for and never reads do not pile up.
- A stream is sent chunk by chunk, each in one write; a plain answer in one write with its length.
- A request that is not all here is looked at as soon as its head is: who may not ask, or asks for more than there is room for,
  is told before his body is read.  What is held of it is charged to `gateway.bodies`.
- After a refusal of bytes that are still coming the connection lingers: it takes and drops them for a while, because closing
  a socket with unread bytes resets it, and the client would never read why.

Deliberately absent: what a request means (gateway.server reads it, gateway.pipeline answers it), and HTTP's grammar (gateway.http).
"""

import asyncio
import select
from collections import deque
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Final, cast

from sits.core.errors import CapacityError, SitsError
from sits.core.units import SECOND
from sits.gateway.bodies import COUNTED_BYTES, no_room
from sits.gateway.endpoints import PARSERS
from sits.gateway.http import (
    CONTINUE,
    Continue,
    Event,
    HttpReader,
    Incoming,
    Refusal,
    error_answer,
    head,
)
from sits.gateway.sink import HttpSink
from sits.gateway.strand import Strand

if TYPE_CHECKING:
    from sits.gateway.server import Page, Server

PIPELINED_MAX: Final = 16
PIPELINED_BYTES: Final = 2**20
"""Complete requests waiting behind the one being answered on a connection, and the bytes of their bodies; beyond this,
reading stops."""

REQUEST_BYTES: Final = 1024
"""What a request that waits is charged beside its body: a packet can hold thousands, and each takes more than its bytes."""

WRITE_BUFFER_BYTES: Final = 256 * 1024
"""Bytes a client may be behind before its engine is held back."""

LOOK_OUT_NS, CROWDED_NS = SECOND // 20, 5 * SECOND
"""How often a client that sends more than is taken is asked whether it is still there, and how long until no more is taken."""

LINGER_NS: Final = 2 * SECOND
LINGER_MAX: Final = 512
"""How long bytes are still taken after a refusal, and on how many connections at once; more are closed without."""


class Connection(asyncio.Protocol):
    """One client connection."""

    def __init__(self, server: "Server") -> None:
        self.server = server
        config = server.fleet.gateway
        self.reader = HttpReader(config.header_limit, config.body_limit)
        self.transport: asyncio.Transport = cast("asyncio.Transport", None)
        self.paused: asyncio.Future[None] | None = None
        self.paused_ns = 0
        self.since_ns = server.now_ns()
        self._queue: deque[Event] | tuple[()] = ()  # an empty deque takes more than most connections
        self.task: Strand | None = None
        self._answering: tuple[HttpSink, SitsError | None] | None = None
        self.reading = True
        self._refusing = False
        self._farewell: asyncio.TimerHandle | None = None
        self.charged = self._slack = self._waiting = self._serving = 0
        self._judged: Incoming | None = None

    # -- what the loop tells us ----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client is here.  (The loops set TCP_NODELAY themselves; a test looks.)"""
        self.transport = cast("asyncio.Transport", transport)
        self.transport.set_write_buffer_limits(WRITE_BUFFER_BYTES)
        self.server.connections.add(self)

    def data_received(self, data: bytes) -> None:
        """Bytes from the client."""
        now_ns, reader = self.server.now_ns(), self.reader
        if reader.idle:
            self.since_ns = now_ns
        events = reader.feed(data, now_ns)
        if (  # as nearly all requests come: whole, small, and nothing before or behind them
            len(events) == 1
            and reader.idle
            and not self.charged
            and len(data) <= COUNTED_BYTES
            and self._answering is None
            and self.paused is None
            and not self._queue
            and type(events[0]) is Incoming
        ):
            self._serve(events[0], None)
        else:
            self._take(events, len(data), now_ns)

    def eof_received(self) -> None:
        """The client will send no more: it has left."""

    def connection_lost(self, exc: Exception | None) -> None:
        """Gone: so is what it asked for."""
        self.server.connections.discard(self)
        self._queue = ()
        self.reader.close()
        self.server.bodies.let_go(self)
        if self._farewell is not None:
            self._farewell.cancel()  # it would hold us
            self._farewell = None
            self.server.lingering -= 1
        self.resume_writing()
        self.cancel("client_left")

    def pause_writing(self) -> None:
        """The client is behind."""
        if self.paused is None:
            self.paused = self.server.loop.create_future()
            self.paused_ns = self.server.now_ns()

    def resume_writing(self) -> None:
        """It has caught up."""
        paused, self.paused = self.paused, None
        if paused is not None and not paused.done():
            paused.set_result(None)
        self._next()

    def cancel(self, why: str) -> None:
        """Cancel the running exchange, if any."""
        if self.task is not None:
            self.task.cancel(why)

    def linger(self) -> None:
        """Say that no more will come, take what still comes for a while, then close."""
        server, transport = self.server, self.transport
        if transport.is_closing() or self._farewell is not None:
            return
        if server.lingering >= LINGER_MAX:
            transport.close()
            return
        server.lingering += 1
        transport.write_eof()
        self._farewell = server.loop.call_later(LINGER_NS / SECOND, transport.close)

    def refuse(self, error: SitsError) -> None:
        """Take no more of the request that is arriving, and say why."""
        events: list[Event] = []
        self.reader.refuse(error, events)
        self._judged, self._slack = None, 0
        self._weigh(0)
        self._line_up(events)
        self._next()

    def begun(self) -> None:
        """A stream of an answer begins: what was asked is needed no more, and not held."""
        if self.charged:
            self._serving = 0
            self._weigh(0)

    # -- requests that are not whole, not small, or not alone -------------------------------------------------------

    def _take(self, events: list[Event], size: int, now_ns: int) -> None:
        """`size` bytes came, and completed `events`: look at what is still arriving, find room for all, go on."""
        for event in events:
            if type(event) is Incoming:
                self._waiting += len(event.body) + REQUEST_BYTES
        reader = self.reader
        head = reader.arriving
        if reader.idle or head is not None:
            self._slack = 0
        elif events:
            self._slack = size  # how much of it is the beginning of the next head only llhttp knows
        if head is not None and head is not self._judged:
            try:
                self.server.judge(head, now_ns)
            except SitsError as error:
                error.__traceback__ = None
                reader.refuse(error, events)
                head = None
        self._judged = head
        if not self._weigh(now_ns):
            self._find_no_room(events, now_ns)
        self._line_up(events)
        self._next()
        if self._queue and self.reading and self._crowded() and not reader.ended:
            self.reading = False
            self.transport.pause_reading()
            self._look_out(now_ns)

    def _look_out(self, since_ns: int) -> None:
        """The socket has not been read since: is its client still there?"""
        server, transport = self.server, self.transport
        if self.reading or transport.is_closing():
            return
        if has_left(transport):
            transport.abort()
        elif server.now_ns() - since_ns > CROWDED_NS:
            self.refuse(
                CapacityError(
                    "too many requests wait on this connection", code="pipelined", retry_after_s=1.0
                )
            )
            self.reading = True
            transport.resume_reading()
        else:
            server.loop.call_later(LOOK_OUT_NS / SECOND, self._look_out, since_ns)

    def _weigh(self, now_ns: int) -> bool:
        """Charge what is held; False when there is no room."""
        reader = self.reader
        size = reader.held + self._slack + self._waiting + self._serving
        return self.server.bodies.hold(self, size, not reader.idle, now_ns)

    def _find_no_room(self, events: list[Event], now_ns: int) -> None:
        """Refuse what is arriving, or else what has just come whole."""
        self.server.bodies.refused += 1
        self._judged, self._slack = None, 0
        self.reader.refuse(no_room(), events)
        if self._weigh(now_ns):
            return
        whole = [event for event in events if type(event) is Incoming]
        for request in whole:
            self._waiting -= len(request.body) + REQUEST_BYTES
            request.body = b""
        events[:] = [Refusal(no_room(), whole[0], now_ns)]
        self._weigh(now_ns)

    # -- one request after the other -----------------------------------------------------------------------------

    def _line_up(self, events: list[Event]) -> None:
        if self._queue:
            self._queue += events
        elif events:
            self._queue = deque(events)

    def _next(self) -> None:
        while (
            self._queue
            and self._answering is None
            and self.paused is None
            and not self.transport.is_closing()
        ):
            event = self._queue.popleft()
            if isinstance(event, Incoming):
                self._serving = len(event.body) + REQUEST_BYTES
                self._waiting -= self._serving
                self._serve(event, None)
            elif isinstance(event, Continue):
                self.transport.write(CONTINUE)
            else:
                self._refusing = True
                self._say_why(event)
        if not self._queue:
            self._queue = ()
        if self.charged:
            if self._answering is None:
                self._serving = 0
            self._weigh(0)
        if not self.reading and not self._crowded() and not self.transport.is_closing():
            self.reading = True
            self.since_ns = self.server.now_ns()  # what came late by our doing is not late
            self.transport.resume_reading()

    def _say_why(self, refusal: Refusal) -> None:
        if refusal.request is not None:
            refusal.request.keep_alive = False
            self._serve(refusal.request, refusal.error)
        else:
            self.server.bad_requests += 1
            self.transport.write(error_answer(refusal.error, close=True))
            self.linger()

    def _crowded(self) -> bool:
        """Whether enough waits here already."""
        return len(self._queue) > PIPELINED_MAX or self._waiting > PIPELINED_BYTES

    def _serve(self, incoming: Incoming, problem: SitsError | None) -> None:
        path = incoming.target
        if path not in PARSERS:
            path = incoming.path
        if path in PARSERS and incoming.method == b"POST":
            sink, problem, work = self.server.exchange(self, incoming, path, problem)
            self._answering = (sink, problem)
            strand = Strand(work, self._done)
            if not strand.ended:
                self.task = strand
            return
        close = not incoming.keep_alive or self.server.draining
        try:
            if problem is not None:
                raise problem
            page = self.server.page(incoming, path)
        except SitsError as error:
            self._write_page(incoming, error, close)
        else:
            if not isinstance(
                page, tuple
            ):  # somebody else has to be asked for it; what is pipelined behind it waits
                sink = HttpSink(self, "", close=close, chunked=False)
                self._answering = (sink, None)
                strand = Strand(self._late_page(incoming, page, sink), self._done)
                if not strand.ended:
                    self.task = strand
                return
            self._write_page(incoming, page, close)
        if self._refusing:
            self.linger()
        elif close:
            self.transport.close()

    async def _late_page(self, incoming: Incoming, page: "Awaitable[Page]", sink: HttpSink) -> None:
        try:
            self._write_page(incoming, await page, sink.close)
        except SitsError as error:
            self._write_page(incoming, error, sink.close)

    def _write_page(self, incoming: Incoming, page: "Page | SitsError", close: bool) -> None:
        if isinstance(page, SitsError):
            allow = [(b"allow", _allowed(incoming.path))] if page.status == 405 else []
            answer = error_answer(page, close=close, headers=allow)
        else:
            status, content_type, body = page
            answer = head(status, content_type, length=len(body), close=close) + body
        if incoming.method == b"HEAD":
            answer = answer[: answer.index(b"\r\n\r\n") + 4]
        self.transport.write(answer)

    def _done(self, error: BaseException | None) -> None:
        assert self._answering is not None
        waited = self.task is not None  # else `_next` itself called, and goes on with the next one
        (sink, problem), self._answering, self.task = self._answering, None, None
        self.since_ns = self.server.now_ns()
        if self.charged:
            self._serving = 0
            self._weigh(0)
        if error is None and problem is None:
            if sink.close or self.server.draining:
                self.transport.close()
            elif waited and self._queue:
                self._next()
        elif isinstance(error, asyncio.CancelledError):
            self.transport.abort()
        elif error is not None:
            self.transport.abort()
            self.server.loop.call_exception_handler({"message": "bug in the server", "exception": error})
        elif self._refusing:
            self.linger()
        elif sink.close or self.server.draining:
            self.transport.close()
        elif waited and self._queue:
            self._next()


def has_left(transport: asyncio.Transport) -> bool:
    """Whether the other side has closed, at least its sending half."""
    link = transport.get_extra_info("socket")
    if link is None:
        return False
    poll = select.poll()
    poll.register(link.fileno(), select.POLLRDHUP)
    return bool(poll.poll(0))


def _allowed(path: bytes) -> bytes:
    return b"POST" if path in PARSERS else b"GET, HEAD"
