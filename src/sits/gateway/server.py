"""The gateway on a TCP port: which request is an exchange, which is a page, and how serving begins and ends.

Rules:
- A request's head and body become a `Request`; what cannot be read goes through the pipeline all the same, as a refusal.
- A client that does not read for `STALL_NS`, sends nothing for `IDLE_NS`, or takes over `HEAD_NS` for a head or `REQUEST_NS` for a whole
  request is cut off.
- Of a request whose body is still coming the head is judged: the key, the path, and whether there is room for it.
- `drain` stops listening, lets what runs finish within `drain_timeout`, and cancels the rest.
- `swap` replaces the configuration between two requests: what runs ends on the gateway it began on, what comes next begins on the new one,
  and every answer says which (`x-sits-generation`).

Endpoints: POST /v1/chat/completions, /v1/completions, /v1/embeddings, and /v1/messages, /v1/messages/count_tokens of Anthropic;
GET /v1/models (of either), /healthz (alive), /readyz (some engine is up and we are not draining), /metrics.
Keys guard /v1; health is open, and metrics are, as scrapers expect, unless `gateway.metrics` says otherwise.

Deliberately absent: TLS (terminate it in front), the other processes on the port (app.up), and any decision about a request.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from hashlib import blake2b
from typing import Any, Final, cast

from sits.core.breakpoints import API_RECV, PARSED
from sits.core.errors import BugError, CallerError, SitsError, UnknownError
from sits.core.fleet import Fleet
from sits.core.request import Request
from sits.core.timeline import Timeline
from sits.core.units import SECOND
from sits.gateway.anthropic_api import forwarded
from sits.gateway.anthropic_api import models_page as anthropic_models_page
from sits.gateway.bodies import Bodies, no_room
from sits.gateway.connection import Connection
from sits.gateway.endpoints import ANTHROPIC, PARSERS, hint, prompt_hash, shown_elsewhere
from sits.gateway.exchange import Exchange
from sits.gateway.http import (
    Incoming,
    ProtocolError,
)
from sits.gateway.metrics import Vitals, added, engine_label, page
from sits.gateway.openai_api import models_page
from sits.gateway.pipeline import Gateway
from sits.gateway.relay import MEASURED
from sits.gateway.sink import HttpSink
from sits.gateway.trace import Ids, begun, continued, state_line

IDLE_NS: Final = 300 * SECOND
HEAD_NS: Final = 20 * SECOND
REQUEST_NS: Final = 120 * SECOND
STALL_NS: Final = 120 * SECOND
SWEEP_NS: Final = 5 * SECOND
"""How often silent, slow and stalled connections are looked for."""

BACKLOG: Final = 4096

PAGE_BODY_BYTES: Final = 16 * 1024
"""A body nobody reads, that of a request for a page, may be announced to be so long."""

DRAIN_POLL_S: Final = 0.01
RETIRE_S: Final = 0.1
"""How often it is looked whether a swapped-out gateway has ended its last request; only while there is one."""

DEADLINE_DIGITS: Final = 15

_ENDPOINTS: Final = {path: path.decode() for path in PARSERS}
_HEALTH: Final = (b"/healthz", b"/readyz")
_JSON: Final = b"application/json"
_PROMETHEUS: Final = b"text/plain; version=0.0.4; charset=utf-8"

Page = tuple[int, bytes, bytes]
"""Status, content type and body of what is not an exchange."""

Pages = Mapping[bytes, Callable[[], Page | Awaitable[Page]]]
NO_PAGES: Pages = {}


class Server:
    """The gateway on a TCP port.

    `await start()` listens and returns the address, `await drain()` ends well.  Port 0 picks a free one.  `metrics` gives the Prometheus page where this process is not all of the gateway,
    `pages` what else can be got, by path.
    """

    def __init__(
        self,
        gateway: Gateway,
        fleet: Fleet,
        metrics: Callable[[], Awaitable[bytes]] | None = None,
        pages: Pages = NO_PAGES,
    ) -> None:
        self.now_ns = gateway.world.now_ns
        self.connections: set[Connection] = set()
        self.draining = False
        self.bad_requests = 0
        self.lingering = 0
        self.bodies = Bodies(fleet.gateway.body_memory)
        self.loop: asyncio.AbstractEventLoop = cast("asyncio.AbstractEventLoop", None)
        self._listeners: list[Any] = []  # asyncio's servers, or uvloop's, which are none of asyncio's class
        self._leaving: list[Gateway] = []
        self._retiring: asyncio.Task[None] | None = None
        self._ids = Ids(gateway.world)
        self._sweeper: asyncio.TimerHandle | None = None
        self._metrics = metrics
        self._adopt(gateway, fleet)
        self._pages: Pages = {
            **pages,
            b"/healthz": lambda: (200, _JSON, b'{"status":"alive"}'),
            b"/readyz": self._ready,
            b"/metrics": self._metrics_page,
        }

    async def start(self, sockets: Sequence[socket.socket] = ()) -> tuple[str, int]:
        """Listen, on sockets that listen already if there are some; returns host and port.

        Raises:
            OSError: the address cannot be had.
            CallerError: `gateway.listen` is not host:port.

        """
        self.loop = asyncio.get_running_loop()
        make, listen = lambda: Connection(self), self.loop.create_server
        if sockets:
            self._listeners = [await listen(make, sock=one, backlog=BACKLOG) for one in sockets]
        else:
            host, port = address_of(self.fleet.gateway.listen)
            self._listeners = [await listen(make, host, port, backlog=BACKLOG)]
        self.gateway.start()
        self._sweep()
        bound = self._listeners[0].sockets[0].getsockname()
        return bound[0], bound[1]

    def swap(self, gateway: Gateway) -> None:
        """From the next request on, `gateway` answers; the one before ends what it has begun, then it is closed."""
        gateway.start()
        self._leaving.append(self.gateway)
        self._adopt(gateway, gateway.fleet)
        if self._retiring is None or self._retiring.done():
            self._retiring = self.loop.create_task(self._retire())
        for connection in self.connections:
            connection.reader.header_limit = self.fleet.gateway.header_limit
            connection.reader.body_limit = self.fleet.gateway.body_limit

    def _adopt(self, gateway: Gateway, fleet: Fleet) -> None:
        self.gateway = gateway
        self.fleet = fleet
        self.bodies.limit = fleet.gateway.body_memory
        name = gateway.generation
        self.stamp = b"\r\nx-sits-generation: %b" % name.encode() if name else b""
        self._prefixes = fleet.policy.route.prefix_affinity > 0
        self._hashes = fleet.gateway.prompt_hash

    @property
    def gateways(self) -> tuple[Gateway, ...]:
        """The one that answers, and those that have something left to do."""
        return (self.gateway, *self._leaving)

    async def _retire(self) -> None:
        """Close the gateways that were swapped out and have nothing left to do, with the engines only they have."""
        while self._leaving:
            for old in [gateway for gateway in self._leaving if gateway.idle]:
                await self._close(old)
            await asyncio.sleep(RETIRE_S)

    async def _close(self, old: Gateway) -> None:
        self._leaving.remove(old)
        staying = {id(engine) for gateway in self.gateways for engine in gateway.engines.values()}
        await old.close([engine for engine in old.engines.values() if id(engine) not in staying])

    async def drain(self) -> None:
        """Stop listening, let what runs finish within `drain_timeout`, cancel the rest, close the engines."""
        self.draining = True
        for listener in self._listeners:
            listener.close()
        if self._sweeper is not None:
            self._sweeper.cancel()
        for connection in list(self.connections):
            if connection.task is None and connection.reader.idle:
                connection.transport.close()
        await self._finish(self.fleet.gateway.drain_timeout / SECOND)
        self.cancel_all()
        await self._finish(1.0)
        for connection in list(self.connections):
            connection.transport.close()
        if self._retiring is not None:
            self._retiring.cancel()
        for old in list(self._leaving):
            await self._close(old)
        await self.gateway.close(self.gateway.engines.values())

    def exchange(
        self, connection: Connection, incoming: Incoming, path: bytes, problem: SitsError | None
    ) -> tuple[HttpSink, SitsError | None, Coroutine[Any, Any, Exchange]]:
        """One request made ready for the pipeline: where its answer goes, what is wrong with it, and the work to run."""
        request_id = self._ids.new()
        timeline = Timeline()
        request = None
        if problem is None:
            try:
                request = self._request(request_id, incoming, path)
            except CallerError as error:
                problem = error
                error.__traceback__ = error.__cause__ = error.__context__ = None  # their frames hold this one
            except Exception as error:  # noqa: BLE001  (before the pipeline's fence: the request would be lost without an answer)
                what = f"bug while reading request {request_id}"
                self.loop.call_exception_handler({"message": what, "exception": error})
                problem = BugError("internal error", code="bug")
        if request is None:  # its trace is told all the same
            _, trace_id, parent_id = continued(incoming.headers.get(b"traceparent", b""), request_id)
            request = Request(
                id=request_id,
                model="",
                endpoint=path.decode(),
                stream=False,
                arrival_ns=incoming.recv_ns,
                trace_id=trace_id,
                parent_id=parent_id,
                body=incoming.body,
            )
        at, how = timeline.at, timeline.how
        at[API_RECV], at[PARSED] = incoming.recv_ns, self.now_ns()
        how[API_RECV] = how[PARSED] = MEASURED
        sink = HttpSink(connection, request_id, not incoming.keep_alive, incoming.version == "1.1")
        if path in ANTHROPIC:
            sink.name_for_anthropic()
        work = self.gateway.handle(request, timeline, sink, headers=incoming.headers, problem=problem)
        return sink, problem, work

    def judge(self, head: Incoming, now_ns: int) -> None:
        """Do nothing if the rest of this request may come.

        Raises:
            AuthError, AccessError, UnknownError, ProtocolError: it would be refused anyway.
            CapacityError: there is no room for what it announces.

        """
        path, told = head.path, head.headers.get(b"content-length")
        size = int(told or 0)
        if path in PARSERS and head.method == b"POST":
            self.gateway.access.identify(head.headers.get(b"authorization"), head.headers.get(b"x-api-key"))
        else:
            self._check_page(head, path)
            if told is None or size > PAGE_BODY_BYTES:
                shown = path.decode(errors="replace")
                raise ProtocolError(413, f"a request for {shown} needs no body", "body_too_large")
        if not self.bodies.fits(size, now_ns):
            self.bodies.refused += 1
            raise no_room()

    def page(self, incoming: Incoming, path: bytes) -> Page | Awaitable[Page]:
        """One of the pages that are not exchanges.

        Raises:
            UnknownError: no such path.  ProtocolError: 405.  AuthError: /v1/models without a key.
            AccessError: a page that the admin process shows instead.

        """
        self._check_page(incoming, path)
        if path == b"/v1/models":
            page_of = anthropic_models_page if b"anthropic-version" in incoming.headers else models_page
            return 200, _JSON, page_of(self._models(incoming.headers))
        if self.fleet.gateway.metrics == "admin" and path not in _HEALTH:
            raise shown_elsewhere(path.decode())
        return self._pages[path]()

    def _check_page(self, incoming: Incoming, path: bytes) -> None:
        known = path in self._pages or path == b"/v1/models"
        if path in PARSERS or (known and incoming.method not in (b"GET", b"HEAD")):
            raise ProtocolError(
                405,
                f"{incoming.method.decode()} is not how {path.decode(errors='replace')} is asked",
                "method",
            )
        if not known:
            shown = path.decode(errors="replace")[:80]
            raise UnknownError(f"no such path: {shown}", code="unknown_path", hint=hint(path))

    def _models(self, headers: Mapping[bytes, bytes]) -> list[str]:
        """The names a caller may ask for.  Raises AuthError."""
        access = self.gateway.access
        caller = access.identify(headers.get(b"authorization"), headers.get(b"x-api-key"))
        return access.visible(caller, self.gateway.catalog.items(), "", access.chosen(headers))

    def _request(self, request_id: str, incoming: Incoming, path: bytes) -> Request:
        """What body and headers say.  Raises CallerError."""
        headers = incoming.headers
        parsed = PARSERS[path](incoming.body)
        model, adapter = self.gateway.catalog.get(parsed.model, (parsed.model, ""))
        prefix = ""
        if self._prefixes and (begins := parsed.prefix):
            prefix = blake2b(begins, digest_size=16).hexdigest()
        told, tracestate = headers.get(b"traceparent"), ""
        if told is None:
            traceparent, trace_id, parent_id = begun(request_id), "", ""
        else:
            traceparent, trace_id, parent_id = continued(told, request_id)
            if trace_id:
                tracestate = state_line(headers.get(b"tracestate"))
        within = headers.get(b"x-sits-deadline-ms")
        return Request(
            id=request_id,
            model=model,
            adapter=adapter,
            unit=parsed.user,
            endpoint=_ENDPOINTS[path],
            stream=parsed.stream,
            prompt_tokens=parsed.prompt_tokens,
            output_tokens_max=parsed.output_tokens_max,
            prefix=prefix,
            prompt_hash=prompt_hash(parsed.model, parsed.prompt) if self._hashes else "",
            arrival_ns=incoming.recv_ns,
            deadline_ns=0 if within is None else incoming.recv_ns + _deadline_ns(within),
            traceparent=traceparent,
            trace_id=trace_id,
            parent_id=parent_id,
            tracestate=tracestate,
            dialect_headers=forwarded(headers) if path in ANTHROPIC else "",
            body=incoming.body,
        )

    def _metrics_page(self) -> Page | Awaitable[Page]:
        if self._metrics is None:
            return 200, _PROMETHEUS, page(self.vitals())
        return self._asked_metrics(self._metrics())

    async def _asked_metrics(self, metrics: Awaitable[bytes]) -> Page:
        text = await metrics
        return 200, _PROMETHEUS, text

    def vitals(self) -> Vitals:
        """What this process counts, by family and labels; what outlives a generation is told by the newest."""
        mine: Vitals = {
            "sits_connections": {"": len(self.connections)},
            "sits_bad_requests_total": {"": self.bad_requests},
            "sits_request_bytes": {"": self.bodies.held},
            "sits_requests_without_room_total": {"": self.bodies.refused},
        }
        held: list[Vitals] = [
            {"sits_window_pending": {engine_label(name): n for name, n in old.pending().items()}}
            for old in self._leaving
        ]
        return added((mine, self.gateway.vitals(), *held))

    def _ready(self) -> Page:
        self.gateway.places.refresh(self.now_ns())
        up = any(replica.healthy for replica in self.gateway.places.replicas)
        if self.draining or not up:
            return 503, _JSON, b'{"status":"draining"}' if self.draining else b'{"status":"no engine is up"}'
        return 200, _JSON, b'{"status":"ready"}'

    def cancel_all(self) -> None:
        """End every running exchange now."""
        for connection in list(self.connections):
            connection.cancel("gateway_draining")

    async def _finish(self, within_s: float) -> None:
        """Wait for the running exchanges, for so long."""
        until_ns = self.now_ns() + round(within_s * SECOND)
        # a poll, while draining only: strands have no future to wait for, and need none otherwise
        while self.now_ns() < until_ns and any(c.task for c in self.connections):  # noqa: ASYNC110
            await asyncio.sleep(DRAIN_POLL_S)

    def _sweep(self) -> None:
        """Close connections that have been silent, slow with a request, or not reading, for too long."""
        now_ns = self.now_ns()
        for connection in list(self.connections):
            leaving = connection.transport.is_closing() and now_ns - connection.since_ns > STALL_NS
            if leaving or (connection.paused is not None and now_ns - connection.paused_ns > STALL_NS):
                connection.transport.abort()  # closing waits for the last bytes to be read, for ever if need be
                continue
            since_ns, reader = now_ns - connection.since_ns, connection.reader
            limit_ns = HEAD_NS if reader.arriving is None else REQUEST_NS
            if reader.idle:
                if connection.task is None and since_ns > IDLE_NS:
                    connection.transport.close()
            elif since_ns > limit_ns and connection.reading:
                shown = f"the request took over {limit_ns // SECOND} s to arrive"
                connection.refuse(ProtocolError(408, shown, "timeout"))
        self._sweeper = self.loop.call_later(SWEEP_NS / SECOND, self._sweep)


def _deadline_ns(within: bytes) -> int:
    """The caller's patience, ns."""
    if not within.isdigit() or len(within) > DEADLINE_DIGITS:
        raise CallerError(
            f"x-sits-deadline-ms is {within[:40].decode('latin-1')!r}",
            field="x-sits-deadline-ms",
            hint=f"milliseconds from now, a whole number of at most {DEADLINE_DIGITS} digits",
        )
    return int(within) * 1_000_000


def address_of(listen: str) -> tuple[str, int]:
    """Host and port of `gateway.listen`.  Raises CallerError."""
    host, _, port = listen.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise CallerError(
            f"{listen!r} is not an address", field="gateway.listen", value=listen, hint="write host:port"
        )
    return host.strip("[]"), int(port)
