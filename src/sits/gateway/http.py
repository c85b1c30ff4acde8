"""The server side of HTTP/1.1 without I/O: bytes in, events out; answers as bytes.

`HttpReader.feed` takes bytes as they come, in any split, and returns what they complete: an `Incoming` request, a
`Continue` wish, or one `Refusal`, after which the connection is to be closed.  llhttp (httptools) tokenises; this
file adds what a gateway must be strict about:

- exactly one way to know where a body ends: `Content-Length` together with `Transfer-Encoding`, two lengths, or a coding
  other than `chunked` are refused (RFC 9112, 6.1 and 6.3: request smuggling);
- a head larger than `header_limit` or of more than `HEADERS_MAX` names is refused, and so are trailers and chunk extensions
  without progress;
- a body over `body_limit` is refused by its declared length before it is read, and while chunks arrive;
- HTTP/1.1 needs exactly one `Host`; `Expect` other than `100-continue` is refused; trailers never become headers;
- whoever offers another protocol gets an answer in this one if the offer has no body, and the connection ends with it.

While a body is on its way its head is to be seen (`arriving`), so that whoever may not ask is told before he has sent all of
it: `refuse`.  Pipelined requests come out in order; answering in order is the connection's business.  The reader never looks at a
clock: the time of the first byte of a request is the time its caller passes in.

Deliberately absent: HTTP/2, upgrades (ignored, as RFC 9110 allows), content codings, and routing.
"""

from collections.abc import Iterable
from http import HTTPStatus
from typing import Any, Final

import httptools
import msgspec
import orjson

from sits.core.errors import CallerError, SitsError

REASONS: Final = {status.value: status.phrase.encode() for status in HTTPStatus}
LAST_CHUNK: Final = b"0\r\n\r\n"
HEAD_END: Final = b"\r\n\r\n"
CLOSES: Final = b"\r\nconnection: close\r\n\r\n"
"""The two ends of an answer's head."""
CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_STATUS_LINES: Final = {code: b"HTTP/1.1 %d %s\r\n" % (code, reason) for code, reason in REASONS.items()}
_STATUS_LINES[401] += b"www-authenticate: Bearer\r\n"  # a 401 names the scheme it wants (RFC 9110, 11.6.1)
LENGTH_DIGITS: Final = 18
HEADERS_MAX: Final = 128
"""Names in a head, and lines that repeat one: each costs far more memory than its bytes, and joining repeats is quadratic."""
_ONCE: Final = (b"host", b"content-length", b"transfer-encoding")
"""Headers that decide where a message begins, ends, or belongs: one of each."""
_BODYLESS: Final = (b"GET", b"HEAD", b"DELETE", b"OPTIONS")
_WITH_BODY: Final = (b"POST", b"PUT", b"PATCH")
"""Methods that are nothing without a body, so its length must be told; any other has none unless it tells."""


class ProtocolError(CallerError):
    """The bytes are not the HTTP we take; `status` says which kind of not."""

    def __init__(self, status: int, message: str, code: str = "bad_http") -> None:
        super().__init__(message, code=code)
        self.status = status


class Incoming(msgspec.Struct):
    """A complete request.  `headers` are lower-case names; `recv_ns` is when its first byte came."""

    method: bytes
    target: bytes
    version: str
    headers: dict[bytes, bytes]
    recv_ns: int
    body: bytes = b""
    keep_alive: bool = True

    @property
    def path(self) -> bytes:
        """The target without query and without scheme and authority."""
        path = self.target.partition(b"?")[0]
        if path[:1] != b"/" and b"://" in path:
            return b"/" + path.partition(b"://")[2].partition(b"/")[2]
        return path


class Continue:
    """The client waits for `100 Continue` before it sends the body."""


class Refusal:
    """The connection cannot go on: answer `error`, then close.  `request` is the head, when it was understood."""

    def __init__(self, error: SitsError, request: Incoming | None, recv_ns: int) -> None:
        self.error = error
        self.request = request
        self.recv_ns = recv_ns


Event = Incoming | Continue | Refusal


class HttpReader:
    """One connection's incoming side.  `idle`: nothing of a next request has arrived yet."""

    def __init__(self, header_limit: int, body_limit: int) -> None:
        self.header_limit = header_limit
        self.body_limit = body_limit
        self._parser: Any = httptools.HttpRequestParser(self)
        self._events: list[Event] = []
        self._now_ns = 0
        self._recv_ns = 0
        self._error: ProtocolError | None = None
        self._dead = False
        self._in_head = True
        self._raw = 0
        self._progress = False
        self._upgrades = False
        self.idle = True
        self._begin()

    @property
    def arriving(self) -> Incoming | None:
        """The head of a request whose body is not all here."""
        return self._request

    @property
    def ended(self) -> bool:
        """Nothing more comes out."""
        return self._dead

    @property
    def held(self) -> int:
        """Bytes kept of a request that is not all here."""
        return self._raw + len(self._body)

    def feed(self, data: bytes, now_ns: int = 0) -> list[Event]:
        """The events `data` completes, in order.  After a `Refusal` nothing more comes out."""
        if self._dead:
            return []
        self._now_ns = now_ns
        events: list[Event] = []
        self._events = events
        try:
            rest: bytes | memoryview = data
            while rest:
                # a piece no larger than the room, so that an endless head or trailer is noticed at the limit and not after it
                room = self.header_limit - self._raw
                piece = rest if len(rest) <= room else memoryview(rest)[: max(1, room)]
                self._parser.feed_data(piece)
                if self._progress:
                    self._progress = False
                    self._raw = 0
                else:
                    self._no_progress(len(piece))
                if piece is rest:
                    break
                rest = memoryview(rest)[len(piece) :]
        except ProtocolError as error:
            self._refuse(error, events)
        except httptools.HttpParserUpgrade:
            self._dead = True  # we do not switch: the request itself is answered, and nothing may follow it
        except httptools.HttpParserCallbackError as fault:
            shown = f"not HTTP/1.1: {fault.__context__ or fault}"
            self._refuse(self._error or ProtocolError(400, shown), events)
        except httptools.HttpParserError as fault:
            self._refuse(self._error or ProtocolError(400, f"not HTTP/1.1: {fault}"), events)
        finally:
            self._events = []  # a connection at rest does not hold its last request
        return events

    def refuse(self, error: SitsError, events: list[Event]) -> None:
        """Take no more of what is arriving: `events`, of the last `feed`, end with a `Refusal`."""
        if not self._dead:
            self._refuse(error, events)

    def close(self) -> None:
        """No more will come: let go of what has."""
        self._dead = True
        self._begin()
        self._parser = None  # it holds us

    # -- limits on what llhttp would collect without end -------------------------------------------------------

    def _no_progress(self, fed: int) -> None:
        """Count bytes of a head still open, or of framing without body."""
        self._raw += fed
        if self._raw >= self.header_limit:
            what = "the request's head is" if self._in_head else "trailers or chunk extensions are"
            raise ProtocolError(431, f"{what} over {self.header_limit} bytes", "header_too_large")
        if len(self._headers) > HEADERS_MAX:
            raise _too_many()

    # -- call-backs of llhttp -----------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """First byte of a request (llhttp skips empty lines before it)."""
        self._recv_ns = self._now_ns
        self.idle = False

    def _begin(self) -> None:
        self._url = b""
        self._headers: dict[bytes, bytes] = {}
        self._body: bytes | bytearray = b""
        self._repeats = 0
        self._request: Incoming | None = None
        self._in_head = True

    def on_url(self, url: bytes) -> None:
        """A piece of the target."""
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header, complete.  After the head these are trailers, and `_headers` a dict nobody reads."""
        name, headers = name.lower(), self._headers
        value = value.rstrip()  # llhttp leaves the space at the end
        headers[name] = self._again(name, headers[name], value) if name in headers else value

    def _again(self, name: bytes, before: bytes, value: bytes) -> bytes:
        """The value of a header that comes once more."""
        if self._in_head and name in _ONCE:
            self._fail(400, f"more than one {name.decode()} header")
        self._repeats += 1
        if self._repeats > HEADERS_MAX:
            self._error = _too_many()
            raise self._error
        return before + b", " + value

    def on_headers_complete(self) -> None:
        """The head is whole: decide whether to read on."""
        self._in_head = False
        self._progress = True
        parser, headers = self._parser, self._headers
        self._headers = {}
        method, version = parser.get_method(), parser.get_http_version()
        request = self._request = Incoming(method, self._url, version, headers, self._recv_ns)
        if version != "1.1" or b"host" not in headers:
            self._check_version(request)
        length = headers.get(b"content-length")
        self._upgrades = b"upgrade" in headers or method == b"CONNECT"
        if self._upgrades and parser.should_upgrade():
            self._check_offer(method, length, headers)
        if len(headers) > HEADERS_MAX:
            self._error = _too_many()
            raise self._error
        if length is None or b"transfer-encoding" in headers:
            self._check_framing(request, length, headers.get(b"transfer-encoding"))
        elif not length.isdigit() or len(length) > LENGTH_DIGITS:
            self._fail(400, "Content-Length is not a number")
        elif int(length) > self.body_limit:
            self._fail_too_large(int(length))
        if b"expect" in headers and version == "1.1":  # HTTP/1.0 knows no 100 (RFC 9110, 10.1.1)
            if headers[b"expect"].lower() != b"100-continue":
                self._fail(417, "the only expectation known is 100-continue")
            self._events.append(Continue())

    def _check_offer(self, method: bytes, length: bytes | None, headers: dict[bytes, bytes]) -> None:
        """From whoever offers another protocol llhttp takes no body, so none may be there."""
        if method not in _BODYLESS or length not in (None, b"0") or b"transfer-encoding" in headers:
            self._fail(501, "protocol upgrades are not served; send the request without Upgrade")

    def _check_version(self, request: Incoming) -> None:
        if request.version not in ("1.1", "1.0"):
            self._fail(505, f"HTTP/{request.version} is not served here")
        if request.version == "1.1":
            self._fail(400, "no Host header")

    def _check_framing(self, request: Incoming, length: bytes | None, coding: bytes | None) -> None:
        if coding is not None:
            if length is not None:
                self._fail(400, "both Content-Length and Transfer-Encoding")
            if coding.lower() != b"chunked" or request.version == "1.0":
                self._fail(501, "the only transfer coding known is chunked, in HTTP/1.1")
        elif request.method in _WITH_BODY:
            self._fail(411, "no Content-Length", "length_required")

    def on_body(self, data: bytes) -> None:
        """A piece of the body."""
        self._progress = True
        size = len(self._body) + len(data)
        if size > self.body_limit:
            self._fail_too_large(size)
        if not self._body:
            self._body = data
        else:  # one buffer, because a list of a caller's two-byte chunks takes thirty times their size
            if isinstance(self._body, bytes):
                self._body = bytearray(self._body)
            self._body += data

    def on_message_complete(self) -> None:
        """The request is whole."""
        request, body = self._request, self._body
        assert request is not None
        request.body = body if type(body) is bytes else bytes(body)
        # llhttp's answer is only right inside this call-back
        request.keep_alive = self._parser.should_keep_alive() and not (
            self._upgrades and self._parser.should_upgrade()
        )
        self._events.append(request)
        self._begin()
        self._progress = self.idle = True

    # -- ways to fail -------------------------------------------------------------------------------------------

    def _fail(self, status: int, message: str, code: str = "bad_http") -> None:
        self._error = ProtocolError(status, message, code)
        raise self._error

    def _fail_too_large(self, size: int) -> None:
        shown = f"the body is {size} bytes or more, over the limit of {self.body_limit}"
        self._fail(413, shown, "body_too_large")

    def _refuse(self, error: SitsError, events: list[Event]) -> None:
        self._dead = True
        events[:] = [event for event in events if isinstance(event, Incoming)]
        events.append(Refusal(error, self._request, self._recv_ns or self._now_ns))
        self._body, self._raw, self._request, self.idle = b"", 0, None, True


def _too_many() -> ProtocolError:
    return ProtocolError(431, f"the request has over {HEADERS_MAX} headers", "header_too_large")


def status_line(status: int) -> bytes:
    """The first line of an answer, with its line end."""
    return _STATUS_LINES.get(status) or b"HTTP/1.1 %d Status\r\n" % status


def head(
    status: int,
    content_type: bytes,
    *,
    length: int,
    headers: Iterable[tuple[bytes, bytes]] = (),
    close: bool = False,
) -> bytes:
    """The head of an answer with `length` bytes of body."""
    parts = [status_line(status), b"content-type: ", content_type]
    for name, value in headers:
        parts += (b"\r\n", name, b": ", value)
    parts.append(b"\r\ncontent-length: %d" % length)
    parts.append(CLOSES if close else HEAD_END)
    return b"".join(parts)


def error_answer(error: SitsError, *, close: bool, headers: Iterable[tuple[bytes, bytes]] = ()) -> bytes:
    """A whole answer that says what was wrong, as OpenAI-shaped JSON."""
    body = orjson.dumps(error.body())
    return head(error.status, b"application/json", length=len(body), headers=headers, close=close) + body
