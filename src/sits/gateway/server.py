"""The socket side of the gateway: connections in, exchanges through the pipeline, answers out in order.

Rules:
- One exchange at a time on a connection; pipelined requests wait their turn, in a bounded queue (beyond it, reading stops).
- A client that leaves cancels its exchange at once, wherever that is: in a window, waiting for the engine, in mid-stream.
  An end-of-file from the client counts as leaving, as with nginx.
- Back-pressure: when the client does not read, the sink's `write` waits, so the engine is not read either.
- A stream is sent chunk by chunk, each in one write; a plain answer in one write with its length.
- After a refusal of bytes that are still coming the connection lingers: it takes and drops them for a while, because closing
  a socket with unread bytes resets it, and the client would never read why.
- A client that does not read for `STALL_NS`, sends nothing for `IDLE_NS`, or takes over `REQUEST_NS` for a request is cut off.
- `drain` stops listening, lets what runs finish within `drain_timeout`, and cancels the rest.

Endpoints: POST /v1/chat/completions, /v1/completions, /v1/embeddings; GET /v1/models, /healthz (alive), /readyz (some engine is up
and we are not draining), /metrics.  Keys guard /v1; health and metrics are open, as scrapers expect.

Deliberately absent: TLS (terminate it in front), several processes on one port, and any decision about a request.
"""

import asyncio
import gc
import signal
from collections import deque
from collections.abc import Callable
from hashlib import blake2b
from typing import cast

from sits.core.breakpoints import API_RECV, PARSED
from sits.core.errors import CallerError, SitsError, UnknownError
from sits.core.fleet import Fleet
from sits.core.request import Request
from sits.core.timeline import Timeline
from sits.core.units import SECOND
from sits.gateway.exchange import Headers
from sits.gateway.http import (
    CONTINUE,
    LAST_CHUNK,
    Continue,
    Event,
    HttpReader,
    Incoming,
    ProtocolError,
    chunk,
    error_answer,
    head,
)
from sits.gateway.openai_api import PARSERS, Parsed, models_page
from sits.gateway.pipeline import Gateway
from sits.gateway.trace import Ids, continued

PIPELINED_MAX = 16
"""Complete requests waiting behind the one being answered on a connection; beyond this, reading stops."""

WRITE_BUFFER_BYTES = 256 * 1024
"""Bytes a client may be behind before its engine is held back."""

IDLE_NS = 300 * SECOND
REQUEST_NS = 120 * SECOND
STALL_NS = 120 * SECOND
LINGER_NS = 2 * SECOND
SWEEP_NS = 5 * SECOND
"""How often silent, slow and stalled connections are looked for."""

BACKLOG = 4096

GC_THRESHOLDS = (20_000, 20, 20)
"""Requests free what they take by reference counts; only closed connections are cycles, so collections can be rare.
Python's 700 costs a fifth of the CPU of a plain request."""
_JSON = b"application/json"
_PROMETHEUS = b"text/plain; version=0.0.4; charset=utf-8"


class HttpSink:
    """The answer of one exchange on a connection."""

    __slots__ = ("_connection", "_head", "_ids", "_parts", "_streaming", "chunked", "close")

    def __init__(self, connection: "Connection", request_id: str, *, close: bool, chunked: bool) -> None:
        self._connection = connection
        name = request_id.encode()
        self._ids: list[tuple[bytes, bytes]] = [(b"x-request-id", name), (b"x-sits-decision-id", name)]
        self._head: tuple[int, bytes] = (0, b"")
        self._parts: list[bytes] = []
        self._streaming = False
        self.close = close
        self.chunked = chunked

    def start(self, status: int, content_type: bytes, headers: Headers = ()) -> None:
        """Prepare the head; it leaves with the first piece of the body."""
        self._ids += headers
        self._head = (status, content_type)
        self._streaming = content_type.startswith(b"text/event-stream")
        if self._streaming:
            self.close = self.close or not self.chunked or self._connection.server.draining
            self._parts.append(self._head_bytes(None))

    async def write(self, data: bytes) -> None:
        """Send a piece of a stream; keep a piece of a plain answer until its length is known."""
        if not self._streaming:
            self._parts.append(data)
            return
        piece = chunk(data) if self.chunked else data
        if self._parts:
            piece = self._parts.pop() + piece
        connection = self._connection
        connection.transport.write(piece)
        if connection.paused is not None:
            await connection.paused

    async def finish(self) -> None:
        """Send what ends the answer."""
        connection = self._connection
        if self._streaming:
            if self.chunked:
                self._parts.append(LAST_CHUNK)
            connection.transport.write(b"".join(self._parts))
        else:
            self.close = self.close or connection.server.draining
            body = b"".join(self._parts)
            connection.transport.write(self._head_bytes(len(body)) + body)
        if connection.paused is not None:
            await connection.paused

    def abort(self) -> None:
        """Cut the connection: the length promised, or the last chunk, will be missing."""
        self._connection.transport.abort()

    def _head_bytes(self, length: int | None) -> bytes:
        status, content_type = self._head
        return head(
            status, content_type, length=length, headers=self._ids, close=self.close, chunked=self.chunked
        )


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
        self._queue: deque[Event] = deque()
        self.task: asyncio.Task[None] | None = None
        self._reading = True

    # -- what the loop tells us ----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client is here.  (The loops set TCP_NODELAY themselves; a test looks.)"""
        self.transport = cast("asyncio.Transport", transport)
        self.transport.set_write_buffer_limits(WRITE_BUFFER_BYTES)
        self.server.connections.add(self)

    def data_received(self, data: bytes) -> None:
        """Bytes from the client."""
        now_ns = self.server.now_ns()
        if self.reader.idle:
            self.since_ns = now_ns
        events = self.reader.feed(data, now_ns)
        if events:
            self._queue += events
            self._next()
            if len(self._queue) > PIPELINED_MAX and self._reading:
                self._reading = False
                self.transport.pause_reading()

    def eof_received(self) -> None:
        """The client will send no more: it has left."""

    def connection_lost(self, exc: Exception | None) -> None:
        """Gone: so is what it asked for."""
        self.server.connections.discard(self)
        self._queue.clear()
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

    def cancel(self, why: str) -> None:
        """Cancel the running exchange, if any."""
        if self.task is not None:
            self.task.cancel(why)

    def linger(self) -> None:
        """Say that no more will come, take what still comes for a while, then close."""
        if not self.transport.is_closing():
            self.transport.write_eof()
            self.server.loop.call_later(LINGER_NS / SECOND, self.transport.close)

    # -- one request after the other -----------------------------------------------------------------------------

    def _next(self) -> None:
        while self._queue and self.task is None and not self.transport.is_closing():
            event = self._queue.popleft()
            if isinstance(event, Incoming):
                self._serve(event, None)
            elif isinstance(event, Continue):
                self.transport.write(CONTINUE)
            elif event.request is not None:
                event.request.keep_alive = False
                self._serve(event.request, event.error)
            else:
                self.server.bad_requests += 1
                self.transport.write(error_answer(event.error, close=True))
                self.linger()
        if not self._reading and len(self._queue) <= PIPELINED_MAX and not self.transport.is_closing():
            self._reading = True
            self.transport.resume_reading()

    def _serve(self, incoming: Incoming, problem: SitsError | None) -> None:
        path = incoming.path
        if path in PARSERS and incoming.method == b"POST":
            work = self.server.exchange(self, incoming, path, problem)
            self.task = self.server.loop.create_task(work)
            self.task.add_done_callback(self._done)
            return
        close = not incoming.keep_alive or self.server.draining
        try:
            if problem is not None:
                raise problem
            status, content_type, body = self.server.page(incoming, path)
        except SitsError as error:
            allow = [(b"allow", _allowed(path))] if error.status == 405 else []
            answer = error_answer(error, close=close, headers=allow)
            if incoming.method == b"HEAD":
                answer = answer[: answer.index(b"\r\n\r\n") + 4]
        else:
            answer = head(status, content_type, length=len(body), close=close)
            if incoming.method != b"HEAD":
                answer += body
        self.transport.write(answer)
        if close:
            self.transport.close()

    def _done(self, task: "asyncio.Task[None]") -> None:
        self.task = None
        self.since_ns = self.server.now_ns()
        if task.cancelled():
            self.transport.abort()
        elif task.exception() is not None:
            self.transport.abort()
            self.server.loop.call_exception_handler(
                {"message": "bug in the server", "exception": task.exception()}
            )
        elif not self.transport.is_closing():
            self._next()


class Server:
    """The gateway on a TCP port.

    `await start()` listens and returns the address, `await drain()` ends well, `await run()` does both around SIGINT
    and SIGTERM.  Port 0 picks a free one.
    """

    def __init__(self, gateway: Gateway, fleet: Fleet) -> None:
        self.gateway = gateway
        self.fleet = fleet
        self.now_ns = gateway.world.now_ns
        self.connections: set[Connection] = set()
        self.draining = False
        self.bad_requests = 0
        self.loop: asyncio.AbstractEventLoop = cast("asyncio.AbstractEventLoop", None)
        self._listener: asyncio.Server | None = None
        self._ids = Ids(gateway.world)
        self._unit = fleet.policy.release.unit
        self._prefixes = fleet.policy.route.prefix_affinity > 0
        self._sweeper: asyncio.TimerHandle | None = None
        self._pages: dict[bytes, Callable[[], tuple[int, bytes, bytes]]] = {
            b"/v1/models": lambda: (200, _JSON, models_page(list(gateway.catalog))),
            b"/healthz": lambda: (200, _JSON, b'{"status":"alive"}'),
            b"/readyz": self._ready,
            b"/metrics": lambda: (200, _PROMETHEUS, gateway.metrics_page()),
        }

    async def start(self) -> tuple[str, int]:
        """Listen; returns host and port.

        Raises:
            OSError: the address cannot be had.
            CallerError: `gateway.listen` is not host:port.

        """
        host, port = _address(self.fleet.gateway.listen)
        self.loop = asyncio.get_running_loop()
        self._listener = await self.loop.create_server(lambda: Connection(self), host, port, backlog=BACKLOG)
        self._sweep()
        bound = self._listener.sockets[0].getsockname()
        return bound[0], bound[1]

    async def run(self, started: Callable[[str, int], None] | None = None) -> None:
        """Serve until SIGINT or SIGTERM, then drain.  `started(host, port)` is called once listening."""
        host, port = await self.start()
        stop = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            self.loop.add_signal_handler(number, stop.set)
        try:
            gc.freeze()  # what is loaded by now stays; collections need not look at it again
            gc.set_threshold(*GC_THRESHOLDS)
            if started is not None:
                started(host, port)
            await stop.wait()
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                self.loop.remove_signal_handler(number)
            await self.drain()

    async def drain(self) -> None:
        """Stop listening, let what runs finish within `drain_timeout`, cancel the rest, close the engines."""
        self.draining = True
        if self._listener is not None:
            self._listener.close()
        if self._sweeper is not None:
            self._sweeper.cancel()
        for connection in list(self.connections):
            if connection.task is None and connection.reader.idle:
                connection.transport.close()
        await self._finish(self.fleet.gateway.drain_timeout / SECOND)
        for connection in list(self.connections):
            connection.cancel("gateway_draining")
        await self._finish(1.0)
        for connection in list(self.connections):
            connection.transport.close()
        for engine in self.gateway.engines.values():
            await engine.close()

    async def exchange(
        self, connection: Connection, incoming: Incoming, path: bytes, problem: SitsError | None
    ) -> None:
        """One request through the pipeline."""
        headers = incoming.headers
        request_id = self._ids.new()
        timeline = Timeline()
        timeline.mark(API_RECV, incoming.recv_ns)
        request = Request(
            id=request_id,
            model="",
            endpoint=path.decode(),
            stream=False,
            arrival_ns=incoming.recv_ns,
            traceparent=continued(headers.get(b"traceparent"), request_id),
            body=incoming.body,
        )
        if problem is None:
            try:
                self._read(request, incoming, PARSERS[path](incoming.body))
            except CallerError as error:
                problem = error
        timeline.mark(PARSED, self.now_ns())
        sink = HttpSink(
            connection, request_id, close=not incoming.keep_alive, chunked=incoming.version == "1.1"
        )
        await self.gateway.handle(
            request, timeline, sink, credential=headers.get(b"authorization"), problem=problem
        )
        if isinstance(problem, ProtocolError):
            connection.linger()
        elif sink.close or self.draining:
            connection.transport.close()

    def page(self, incoming: Incoming, path: bytes) -> tuple[int, bytes, bytes]:
        """Status, content type and body of the pages that are not exchanges.

        Raises:
            UnknownError: no such path.  ProtocolError: 405.  AuthError: /v1/models without a key.

        """
        if path in PARSERS or (path in self._pages and incoming.method not in (b"GET", b"HEAD")):
            raise ProtocolError(
                405,
                f"{incoming.method.decode()} is not how {path.decode(errors='replace')} is asked",
                "method",
            )
        if path not in self._pages:
            shown = path.decode(errors="replace")[:80]
            raise UnknownError(f"no such path: {shown}", code="unknown_path", hint="the API is under /v1")
        if path.startswith(b"/v1/"):
            self.gateway.keys.tenant(incoming.headers.get(b"authorization"), "default")
        return self._pages[path]()

    def _read(self, request: Request, incoming: Incoming, parsed: Parsed) -> None:
        """Fill `request` with what body and headers say."""
        request.model, request.adapter = self.gateway.catalog.get(parsed.model, (parsed.model, ""))
        request.stream = parsed.stream
        request.prompt_tokens = parsed.prompt_tokens
        request.output_tokens_max = parsed.output_tokens_max
        if self._unit == "user":
            request.unit = parsed.user
        elif self._unit == "session":
            request.unit = incoming.headers.get(b"x-sits-session", b"").decode("latin-1")
        if self._prefixes and parsed.prefix:
            request.prefix = blake2b(parsed.prefix, digest_size=16).hexdigest()
        within = incoming.headers.get(b"x-sits-deadline-ms")
        if within is not None:
            if not within.isdigit():
                raise CallerError(
                    f"x-sits-deadline-ms is {within.decode('latin-1')!r}",
                    field="x-sits-deadline-ms",
                    hint="milliseconds from now, a whole number",
                )
            request.deadline_ns = incoming.recv_ns + int(within) * 1_000_000

    def _ready(self) -> tuple[int, bytes, bytes]:
        self.gateway.places.refresh(self.now_ns())
        up = any(replica.healthy for replica in self.gateway.places.replicas)
        if self.draining or not up:
            return 503, _JSON, b'{"status":"draining"}' if self.draining else b'{"status":"no engine is up"}'
        return 200, _JSON, b'{"status":"ready"}'

    async def _finish(self, within_s: float) -> None:
        """Wait for the running exchanges, for so long."""
        running = [connection.task for connection in self.connections if connection.task is not None]
        if running:
            await asyncio.wait(running, timeout=within_s)

    def _sweep(self) -> None:
        """Close connections that have been silent, slow with a request, or not reading, for too long."""
        now_ns = self.now_ns()
        for connection in list(self.connections):
            if connection.paused is not None and now_ns - connection.paused_ns > STALL_NS:
                connection.transport.abort()
            if connection.task is not None:
                continue
            idle = connection.reader.idle
            if now_ns - connection.since_ns > (IDLE_NS if idle else REQUEST_NS):
                if not idle:
                    late = ProtocolError(
                        408, f"the request took over {REQUEST_NS // SECOND} s to arrive", "timeout"
                    )
                    connection.transport.write(error_answer(late, close=True))
                connection.transport.close()
        self._sweeper = self.loop.call_later(SWEEP_NS / SECOND, self._sweep)


def _allowed(path: bytes) -> bytes:
    return b"POST" if path in PARSERS else b"GET, HEAD"


def _address(listen: str) -> tuple[str, int]:
    host, _, port = listen.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise CallerError(
            f"{listen!r} is not an address", field="gateway.listen", value=listen, hint="write host:port"
        )
    return host.strip("[]"), int(port)
