"""The client side of HTTP/1.1 on one TCP connection: send a message, await the head, read the body.

Rules: one answer at a time; the body is handed over in the pieces it came in, joined when several wait; reading from the
socket stops while more than `BUFFER_BYTES` wait (back-pressure); the silence before the head and between pieces is
bounded by one coarse clock an engine, not by a timer a request.  A connection may be used again only when the request was
written and the answer read to their ends, the engine keeps it open, and nothing waits in the socket: bytes that came
uninvited must not become the answer to the next request.  What is not body (heads, announcements, trailers) is bounded,
because llhttp keeps a header until it ends.

Deliberately absent: pools and retries (engine.openai), what the bytes mean, proxies, upgrades.
"""

import asyncio
import select
import ssl
from collections.abc import Callable
from typing import Any, Final, cast

import httptools

from sits.core.ports import World
from sits.core.units import SECOND
from sits.engine.waiter import Waiter

BUFFER_BYTES: Final = 256 * 1024
ANSWER_BYTES_MAX: Final = 256 * 2**20
"""A plain answer larger than this is refused: it is held in memory until it is whole."""

HEAD_BYTES_MAX: Final = 256 * 1024
"""Bytes without a byte of body, a head or a trailer, after which an answer is garbage."""

JOIN_BYTES: Final = 64 * 1024

_LOWER: Final = {
    b"content-type": "type",
    b"content-length": "length",
    b"transfer-encoding": "transfer",
    b"content-encoding": "coding",
    b"retry-after": "retry",
    **dict.fromkeys((b"date", b"server", b"connection", b"keep-alive"), ""),
}
_HEADERS: Final = _LOWER | {
    b"-".join(word.capitalize() for word in name.split(b"-")): what for name, what in _LOWER.items()
}
"""In the two spellings that servers use; any other is looked up in small letters."""


class ClosedError(Exception):
    """The connection ended before the answer did.  `garbage`: because it was not HTTP."""

    def __init__(self, text: str, *, garbage: bool = False) -> None:
        super().__init__(text)
        self.garbage = garbage


class Silence:
    """Bounds the waiting of an engine's connections, with one coarse clock for all of them.

    A wait costs no timer and no look at the clock: it begins at `now_ns`, which is set `TICKS` times within the limit
    while anything is watched.  So a wait ends within an eighth of the limit, before or after.
    """

    TICKS = 8

    def __init__(self, limit_ns: int, world: World) -> None:
        self.limit_ns = limit_ns
        self.world = world
        self.now_ns = 0
        self.watched: set[Connection] = set()
        self.timer: asyncio.TimerHandle | None = None

    def tick(self) -> None:
        """Look after the connections in `watched`, which have sent a request; again while there are any."""
        self.timer = None
        now_ns = self.now_ns = self.world.now_ns()
        for connection in list(self.watched):
            connection.expire(now_ns - self.limit_ns)
        if self.watched:
            step_s = self.limit_ns / self.TICKS / SECOND
            self.timer = asyncio.get_running_loop().call_later(step_s, self.tick)


class Address:
    """Where an engine listens."""

    def __init__(self, host: str, port: int, netloc: str, tls: bool) -> None:
        self.host = host
        self.port = port
        self.netloc = netloc
        self.tls = tls
        self._context: ssl.SSLContext | None = None

    async def connect(self, silence: Silence) -> "Connection":
        """A new connection.  Raises OSError."""
        if self.tls and self._context is None:
            self._context = ssl.create_default_context()
        loop = asyncio.get_running_loop()
        connection = Connection(silence)
        await loop.create_connection(lambda: connection, self.host, self.port, ssl=self._context)
        return connection


class Connection(asyncio.Protocol):
    """One connection to an engine.

    `status`, `content_type`, `coding` (of content or transfer, when there is one), `retry_after` are the head's
    once `headed`; `touched`: some byte of an answer came; `framed`: the answer has a length or chunks, else its end and the
    engine's death look the same; `free`: a next message can be sent, as the last one and its answer are over and the engine
    keeps the connection; `odd`: something about the message or its answer is not as with nearly all; `ended` is told when the
    connection has ended.
    """

    ended: "Callable[[Connection], None] | None" = None

    def __init__(self, silence: Silence) -> None:
        self._silence = silence
        self._watched = silence.watched
        self._transport: asyncio.Transport = cast("asyncio.Transport", None)
        self._waiter = Waiter()
        self._pump: Callable[[], None] | None = None
        self._since_ns = 0
        self._lost: ClosedError | None = None
        self._reading = True
        self._ended = self.free = True
        self.odd = False
        self._forget()
        self._parser: Any = httptools.HttpResponseParser(self)  # begins anew by itself after each answer

    # -- for the engine -----------------------------------------------------------------------------------------

    @property
    def descriptor(self) -> int:
        """The number of the open socket, -1 when there is none (any more)."""
        if self._lost is not None or self._transport.is_closing():
            return -1
        number: int = self._transport.get_extra_info("socket").fileno()
        return number

    @property
    def quiet(self) -> bool:
        """Whether nothing waits in the socket that the loop has not told us yet: an end, or bytes nobody asked for."""
        return not self.poll(0)

    def send(self, head: bytes, body: bytes) -> None:
        """Send a whole request; the answer's reading begins."""
        self.free = self.touched = self._ended = self.headed = self.framed = False
        self.content_type = b""
        if self.odd or self.pieces:
            self._forget()
        if self._lost is not None:  # it ended before it was asked anything: who waits for the answer is told
            return
        self._watched.add(self)
        if self._silence.timer is None:
            self._silence.tick()
        if len(body) < JOIN_BYTES:
            self._transport.write(head + body)
        else:  # a large body is not copied once more
            self.odd = self._large = True
            self._transport.write(head)
            self._transport.write(body)

    def _forget(self) -> None:
        """Let go of what the last message and its answer left behind, where they were odd."""
        self.odd = self._large = False
        self._buffered = self._bodiless = 0
        self.coding = self.retry_after = b""
        self.pieces: list[bytes] = []

    async def head(self) -> None:
        """Wait for the head of the answer.  Raises ClosedError, TimeoutError."""
        while not self.headed:
            await self.arrival()

    def arrival(self) -> Waiter:
        """To be awaited: the next bytes.  Raises ClosedError; TimeoutError when awaited."""
        if self._lost is not None:  # a new one: what is raised holds the frames it passed, and so us
            raise ClosedError(str(self._lost), garbage=self._lost.garbage)
        self._since_ns = self._silence.now_ns
        return self._waiter

    def taken(self) -> bytes:
        """The bytes of the body that are here, empty when none are."""
        pieces = self.pieces
        if not pieces:
            return b""
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        self._buffered = self._bodiless = 0
        if not self._reading:
            self._reading = True
            self._transport.resume_reading()
        return data

    def all(self) -> bytes:
        """The body when all of it is here, else empty."""
        if not self._ended:
            return b""
        pieces = self.pieces
        return self.taken() if self.odd or len(pieces) != 1 else pieces.pop()

    async def read(self) -> bytes:
        """The next bytes of the body; empty at its end.  Raises ClosedError, TimeoutError."""
        while not self.pieces:
            if self._ended:
                return b""
            await self.arrival()
        return self.taken()

    async def flow(self, pump: Callable[[], None]) -> None:
        """Call `pump` at each arrival of bytes, until the answer's end or a `wake`; nothing when bytes are here already.

        Raises:
            Whatever `wake` is given; TimeoutError.

        """
        if self.pieces or self._ended or self._lost is not None:
            return
        self._pump = pump
        try:
            await self.arrival()
        finally:
            self._pump = None

    def wake(self, error: BaseException | None = None) -> None:
        """End a `flow`."""
        self._waiter.wake(error)

    @property
    def over(self) -> bool:
        """Whether the answer has ended and all of it was taken."""
        return self._ended and not self.pieces

    async def rest(self, most: int = 0) -> bytes:
        """The whole body, or (`most` > 0) what is here of it once that is more.  Raises ClosedError, TimeoutError."""
        whole = bytearray()
        while data := await self.read():
            whole += data
            if most and len(whole) > most:
                break
            if len(whole) > ANSWER_BYTES_MAX:
                raise ClosedError(f"its answer is over {ANSWER_BYTES_MAX} bytes")
        return bytes(whole)

    def abort(self) -> None:
        """Close at once, whatever is under way."""
        self.free = False
        self._watched.discard(self)
        self._transport.abort()

    def expire(self, before_ns: int) -> None:
        """End a wait that began before `before_ns` with TimeoutError."""
        if self._waiter.waiting and self._since_ns < before_ns:
            self._waiter.wake(TimeoutError())

    # -- from the loop ------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Connected."""
        self._transport = cast("asyncio.Transport", transport)
        poll = select.poll()
        poll.register(transport.get_extra_info("socket").fileno(), select.POLLIN)
        self.poll = poll.poll

    def data_received(self, data: bytes) -> None:
        """Bytes of the answer; bytes nobody asked for end the connection."""
        unasked = self._ended
        if unasked:
            self._lose(ClosedError("it sent bytes without being asked", garbage=True))
            self._transport.abort()
            return
        self.touched = True
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._lose(ClosedError(f"it does not speak HTTP/1.1 ({error})", garbage=True))
            self._transport.abort()
            return
        if self._ended:
            self._waiter.wake()
        elif self._pump is not None and self.pieces:
            self._since_ns = self._silence.now_ns
            self._pump()
        else:
            self._arrived(len(data))

    def _arrived(self, size: int) -> None:
        """Bytes came that nobody takes at once: bound what waits, tell who waits."""
        self.odd = True
        if self.pieces:
            self._bodiless = 0
            self._buffered += size
        else:
            self._bodiless += size
        if self._bodiless > HEAD_BYTES_MAX + size:
            self._lose(ClosedError(f"it sent over {HEAD_BYTES_MAX} bytes without a body", garbage=True))
            self._transport.abort()
            return
        if self._buffered > BUFFER_BYTES and self._reading:
            self._reading = False
            self._transport.pause_reading()
        if self.headed:
            self._since_ns = self._silence.now_ns
            if self._pump is None:
                self._waiter.wake()

    def connection_lost(self, exc: Exception | None) -> None:
        """The end of the connection ends an answer that has no other end."""
        self._watched.discard(self)
        if not self._ended and self.headed and not self.framed and exc is None:
            self._ended = True
        self._lose(ClosedError(str(exc) if exc else "the connection was closed"))
        self._parser = None  # it holds us
        if self.ended is not None:
            self.ended(self)

    def _lose(self, error: ClosedError) -> None:
        self.free = False
        if self._lost is None:
            self._lost = error
        self._waiter.wake()

    # -- from llhttp --------------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """A second answer nobody asked for: whatever it is, it is not for the next request."""
        if self._ended:
            self.free = False
            self._lost = ClosedError("it sent more than one answer", garbage=True)

    def on_header(self, name: bytes, value: bytes) -> None:
        """The few headers that matter here."""
        what = _HEADERS.get(name)
        if what is None:
            what = _HEADERS.get(name.lower(), "")
        if not what or self.headed:  # the second: a trailer
            return
        if what == "type":
            self.content_type = value
        elif what == "length":
            self.framed = True
        elif what == "retry":
            self.retry_after, self.odd = value, True
        elif what == "coding":
            self.coding, self.odd = value, True
        else:
            if self.framed or value.lower() != b"chunked":
                # a coding below the chunks, or chunks in chunks: llhttp takes off one layer
                self.coding, self.odd = value, True
            self.framed = True

    def on_headers_complete(self) -> None:
        """The head is whole; a 1xx is only an announcement of it."""
        if not self._ended:
            self.status = status = self._parser.get_status_code()
            if status >= 200:
                self.headed = True
            else:
                self._announced()

    def _announced(self) -> None:
        """A 1xx: nothing it says is about the answer, and it has no body, though llhttp would read one."""
        if self.framed:
            raise ClosedError("an announcement has a body")
        self.content_type = self.coding = self.retry_after = b""

    def on_body(self, data: bytes) -> None:
        """A piece of the body."""
        if not self._ended:
            self.pieces.append(data)

    def on_message_complete(self) -> None:
        """The answer is whole."""
        if self._ended or not self.headed:
            return
        self._ended = True
        self._watched.discard(self)
        if not self._parser.should_keep_alive():  # only right inside this call-back
            self._lost = self._lost or ClosedError("the engine closes after each answer")
        elif self._lost is None:
            self.free = not self._large or not self._transport.get_write_buffer_size()
