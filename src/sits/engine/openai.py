"""An OpenAI-compatible server as an Engine: vLLM, SGLang, llama.cpp, a provider, another gateway.

The body goes out as it came in, to `url` + the request's endpoint; `url` may or may not end in `/v1`.  Its answer comes
back byte for byte: a stream as blocks of whole events, anything else as one chunk.

Rules:
- 4xx answers (429 too) pass through unchanged, with `Retry-After`; 5xx become an EngineError with the engine's own text,
  and so does what is no answer: a redirect, a status without a body, a coding nobody asked for, JSON cut short.
- A stream must end as HTTP says; one that ends with its connection must have said `[DONE]`.  An error event in a stream
  (`{"error": ...}`) is an EngineError, so nobody takes half an answer for a whole one.
- Closing the iterator closes the connection at once: that is how OpenAI-compatible engines are told to stop.
- A kept connection that dies before the first byte of an answer had been closed by the engine's idle timer: the request
  is sent once more on a new one.
- `first_byte_timeout` bounds the silence before an answer (a plain answer is silent until it is whole), and between two
  pieces of it.

It marks no inner points of the timeline: what a remote engine does inside is not seen from here, and is left missing.

Deliberately absent: retries across engines (the pipeline's), proxies, HTTP/2, redirects (an engine that redirects is misconfigured).
"""

import asyncio
from collections.abc import Callable
from typing import Final
from urllib.parse import urlsplit

from sits.core.errors import ConfigError, EngineError, EngineTimeoutError
from sits.core.ports import World
from sits.core.request import Chunk, Request
from sits.core.timeline import Timeline
from sits.core.units import SECOND, show_duration
from sits.engine.answer import error_text, usage_of
from sits.engine.client import Address, ClosedError, Connection, Silence
from sits.engine.openai_answer import OpenAIAnswer
from sits.engine.translated import (
    COUNT_TOKENS,
    MESSAGES,
    Translation,
    for_anthropic_client,
    not_served,
)

POOL_MAX: Final = 256
"""Idle connections kept; more are closed."""

ENDPOINTS_MAX: Final = 16
"""Endpoints whose fixed part of a head is kept ready."""

BODILESS: Final = (204, 205)
HEADER_BYTES: Final = 256
"""The longest header value of an engine that is passed on."""


class OpenAIEngine:
    """Client of one OpenAI-compatible server.

    Args:
        name: as in the configuration.
        url: `http(s)://host[:port][/base][/v1]`.
        api_key: sent as a bearer token when not empty.
        models: what it serves (for whoever asks; routing has its own list).
        speaks: its dialects; requests of another are translated (`engine.translated`).
        key_header: how the key is sent.
        connect_timeout: ns to a connection; first_byte_timeout: ns of silence.
        world: the clock.

    Raises:
        ConfigError: `url` is not one, or `api_key` cannot be sent.

    """

    def __init__(
        self,
        name: str,
        url: str,
        *,
        world: World,
        api_key: str = "",
        models: tuple[str, ...] = (),
        connect_timeout: int = 2 * SECOND,
        first_byte_timeout: int = 60 * SECOND,
        speaks: tuple[str, ...] = ("openai",),
        key_header: str = "Authorization: Bearer ",
    ) -> None:
        self.translations: dict[str, Callable[[Request], Translation]] = {}
        if "anthropic" not in speaks:
            self.translations = {MESSAGES: for_anthropic_client, COUNT_TOKENS: not_served}
        self.name = name
        self.url = url
        self.models = models
        self.connect_timeout = connect_timeout
        self.first_byte_timeout = first_byte_timeout
        self.address, self._base = _address(name, url)
        self._silence = Silence(first_byte_timeout, world)
        self._pool: list[Connection] = []
        self._room = POOL_MAX
        self._closed = False
        self._starts: dict[str, str] = {}
        if not (api_key.isascii() and api_key.isprintable()) or " " in api_key:
            raise ConfigError(
                f"engine {name!r}: its key holds a space, a line end or another character no header takes",
                field="api_key_env",
                hint="a key is printable ASCII; does the variable end with a newline?",
            )
        key = f"{key_header}{api_key}\r\n" if api_key else ""
        self._fixed = f"Host: {self.address.netloc}\r\n{key}Content-Type: application/json\r\nAccept-Encoding: identity\r\n"

    def generate(self, request: Request, timeline: Timeline) -> OpenAIAnswer:
        """Answer `request`; see the module's rules for what becomes of failures.

        Raises:
            CallerError: it is of another dialect and cannot be said in the engine's, or not served at all.
        While it is read:
            EngineError: unreachable, dead, garbage, or an answer of 5xx.
            EngineTimeoutError: silent for too long.

        """
        translate = self.translations.get(request.endpoint)
        if translate is None:
            return OpenAIAnswer(self, request)
        translation = translate(request)
        answer = OpenAIAnswer(self, translation.request)
        answer._translation = translation
        return answer

    async def close(self) -> None:
        """Close all connections; answers under way and to come end with an EngineError."""
        self._closed, self._room = True, 0
        pool, self._pool = self._pool, []
        for connection in (*pool, *self._silence.watched):
            connection.abort()

    def head_of(self, method: str, path: str, length: int) -> bytes:
        """The head of a message that is no request of a caller's: a listing, a load."""
        return (
            f"{method} {self._base}{path} HTTP/1.1\r\n{self._fixed}Content-Length: {length}\r\n\r\n".encode(
                "latin-1"
            )
        )

    def head(self, request: Request) -> bytes:
        """The head of a caller's request."""
        start = self._starts.get(request.endpoint) or self._start(request.endpoint)
        trace = f"\r\ntraceparent: {request.traceparent}{request.tracestate}" if request.traceparent else ""
        return (
            f"{start}{request.id}{trace}\r\n{request.dialect_headers}Content-Length: {len(request.body)}\r\n\r\n"
        ).encode("latin-1")

    def _start(self, endpoint: str) -> str:
        start = f"POST {self._base}{endpoint} HTTP/1.1\r\n{self._fixed}x-request-id: "
        if len(self._starts) < ENDPOINTS_MAX:
            self._starts[endpoint] = start
        return start

    def kept(self) -> Connection | None:
        """A connection that the engine keeps open, if there is one."""
        pool = self._pool
        while pool:
            connection = pool.pop()
            if connection.free and not connection.poll(0):
                return connection
            connection.abort()
        return None

    async def connected(self) -> Connection:
        """A new connection, made in a task of its own: `asyncio.timeout` needs one, and whoever waits may be none."""
        if self._closed:
            raise self.failed("engine_closed", "was closed")
        connecting = asyncio.ensure_future(self._connect())
        try:
            return await connecting
        except asyncio.CancelledError:
            connecting.add_done_callback(_abandon)
            raise

    async def _connect(self) -> Connection:
        try:
            async with asyncio.timeout(self.connect_timeout / SECOND):
                return await self.address.connect(self._silence)
        except TimeoutError:
            shown = show_duration(self.connect_timeout)
            raise self.failed("engine_unreachable", f"did not accept a connection in {shown}") from None
        except (
            OSError,
            ValueError,
        ) as error:  # TLS failures are OSErrors too; a name none can have is a ValueError
            raise self.failed("engine_unreachable", f"cannot be reached: {error}") from None

    @property
    def connections(self) -> tuple[Connection, ...]:
        """Those that are open: under way and kept."""
        return (*self._silence.watched, *self._pool)

    def put_back(self, connection: Connection) -> None:
        """Keep the connection for the next request, if it can have one; else close it."""
        pool = self._pool
        if connection.free and len(pool) < self._room:
            pool.append(connection)
        else:
            connection.abort()

    def check(self, connection: Connection) -> None:
        """Raise for a head that no caller can take for the beginning of an answer."""
        status, coding = connection.status, connection.coding
        if 300 <= status < 400 or status in BODILESS:
            raise self.failed(f"engine_{status}", f"answered {status}, which is no answer to a request")
        if len(connection.content_type) > HEADER_BYTES or len(connection.retry_after) > HEADER_BYTES:
            raise self.failed("engine_garbage", f"sent a header of over {HEADER_BYTES} bytes to pass on")
        if coding and coding.lower() != b"identity":
            shown = coding[:40].decode("latin-1")
            raise self.failed("engine_coding", f"answered in the coding {shown!r}, though asked for none")

    def whole(self, connection: Connection, body: bytes) -> Chunk:
        """The one chunk of a plain answer, or the error it stands for."""
        status = connection.status
        if status >= 400:
            if status >= 500:
                raise self.failed(f"engine_{status}", f"answered {status}: {error_text(body)}")
            return Chunk(body, 0, True, None, status, connection.content_type, connection.retry_after)
        usage = usage_of(body)
        tokens = usage.output or 1 if usage else 1
        return Chunk(body, tokens, True, usage, status, connection.content_type)

    def broken(self, error: ClosedError | TimeoutError, when: str) -> EngineError:
        """The error that stands for a connection that ended or was silent."""
        if isinstance(error, ClosedError):
            return self.failed("engine_garbage" if error.garbage else "engine_died", f"{when}: {error}")
        shown = show_duration(self.first_byte_timeout)
        text = f"engine {self.name!r} at {self.url} was silent for {shown}"
        return EngineTimeoutError(text, code="engine_timeout")

    def failed(self, code: str, what: str) -> EngineError:
        """An error of this engine."""
        return EngineError(f"engine {self.name!r} at {self.url} {what}", code=code)


def _abandon(connecting: "asyncio.Task[Connection]") -> None:
    """Close the connection that came after nobody waited for it any more."""
    if not connecting.cancelled() and connecting.exception() is None:
        connecting.result().abort()


def _address(name: str, url: str) -> tuple[Address, str]:
    """Where to connect, and the path in front of the endpoints."""
    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError:
        port = -1
    if parts.scheme not in ("http", "https") or not parts.hostname or port == -1:
        raise ConfigError(
            f"engine {name!r}: {url!r} is not an http(s) URL",
            field="url",
            value=url,
            hint="like http://10.0.0.7:8000/v1",
        )
    tls = parts.scheme == "https"
    base = parts.path.rstrip("/").removesuffix("/v1")
    netloc = parts.netloc.rpartition("@")[2]
    return Address(parts.hostname, port or (443 if tls else 80), netloc, tls), base
