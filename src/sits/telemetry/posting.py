"""One HTTP POST from a thread that must come back: to a Collector, a gateway, a Pyroscope server.

```
post ─> Connection ─> request, answer ─────> Answer(status, retry_after_s, text)
          └─ Deadline: `timeout_s` after it began the socket is shut, whoever it waits for
```
Rules: nothing is raised for what a network or a header does; the answer says it, with status 0 where there was none.  A socket's own timeout is per
read, so a server that sends a byte now and then would hold a thread for ever: the deadline is over the whole, and ends a TLS handshake too.
While the interpreter ends no thread can begin that looks to it; then the reads' own timeouts remain.  Redirects are not followed: the
headers, which may hold a key, are for the place that was configured, and a POST that became a GET would be lost in silence; the answer says where it points.
What a server said is cut, printed plainly and without what looks like a key, for it ends in a log.

Sources: OpenTelemetry Protocol 1.x, "OTLP/HTTP Response" and "OTLP/HTTP Throttling"; RFC 9110, 10.2.3 (`Retry-After`: seconds, or a date, which
is held against the answer's own `Date`, so that nobody's clock matters).

Deliberately absent: trying again, connections that are kept, proxies.
"""

import http.client
import socket
import threading
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from types import TracebackType
from typing import NamedTuple, Self
from urllib.parse import urlsplit

from sits.core.plain_text import plain
from sits.telemetry.secrets import text_without_secrets

TEXT_MAX = 4096
RETRY_AFTER_MAX_S = 3600.0
LATER = frozenset({429, 502, 503, 504})
"""What OTLP says is to be tried again; all else, 500 too, must not be."""


class Answer(NamedTuple):
    """What the receiver said: its status (0: nobody answered, or not in HTTP), how long it wants to be left alone, and what it said or what went wrong."""

    status: int
    retry_after_s: float = 0.0
    text: str = ""


class Connection(http.client.HTTPConnection):
    """A connection that another thread can end, also in the middle of a handshake: its socket is known twice."""

    twin: socket.socket | None = None
    over = False

    def connect(self) -> None:
        """Open it."""
        super().connect()
        self.twin = self.sock.dup()
        if self.over:
            raise TimeoutError

    def cut(self) -> None:
        """End it, from any thread."""
        self.over = True
        twin = self.twin
        try:
            if twin is not None:
                twin.shutdown(socket.SHUT_RDWR)
        except OSError:
            self.over = True  # it ended by itself

    def close(self) -> None:
        """Close it; it may be opened again."""
        super().close()
        if self.twin is not None:
            self.twin.close()
            self.twin = None


class _Secure(http.client.HTTPSConnection, Connection):
    """The same with TLS."""


def connection_to(scheme: str, netloc: str, timeout_s: float) -> Connection:
    """A connection, not open yet, for a `Deadline`."""
    return (_Secure if scheme == "https" else Connection)(netloc.rpartition("@")[2], timeout=timeout_s)


class Deadline:
    """Ends `connection` after `timeout_s`; what comes out of the block then is a `TimeoutError`."""

    def __init__(self, connection: Connection, timeout_s: float) -> None:
        self._connection = connection
        self._timeout_s = timeout_s
        self._timer = threading.Timer(timeout_s, connection.cut)
        self._timer.daemon = True

    def __enter__(self) -> Self:
        try:
            self._timer.start()
        except RuntimeError:  # the interpreter is ending
            self._timer.cancel()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()
        if self._connection.over:
            raise TimeoutError(f"no whole answer within {self._timeout_s:g} s") from error


def post(url: str, body: bytes, headers: Mapping[str, str], timeout_s: float) -> Answer:
    """One POST over a connection of its own, `timeout_s` in all once the address is resolved and reached."""
    try:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            return Answer(0, 0.0, "no address like http://host:4318/v1/traces")
        opened = connection_to(parts.scheme, parts.netloc, timeout_s)
        try:
            with Deadline(opened, timeout_s):
                path = f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/"
                opened.request("POST", path, body, dict(headers))
                response = opened.getresponse()
                said = response.read(TEXT_MAX)
        finally:
            opened.close()
    except (OSError, http.client.HTTPException) as error:
        return Answer(
            0, 0.0, shown(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)
        )
    except ValueError:  # its words hold the header, which may be a key
        return Answer(
            0, 0.0, "a header or the address cannot be sent (a line break, or letters beyond Latin-1)"
        )
    if 300 <= response.status < 400:
        return Answer(response.status, 0.0, moved(response.getheader("location")))
    later_s = after_s(response.getheader("retry-after"), response.getheader("date"))
    return Answer(response.status, later_s, shown(said.decode("utf-8", "replace")))


def moved(location: str | None) -> str:
    """What is said of a redirect."""
    where = f"points to {shown(location)}" if location else "points nowhere"
    return f"the answer {where}; redirects are not followed: name the address itself if it is to be used"


def after_s(told: str | None, date: str | None) -> float:
    """`Retry-After` in seconds, at most an hour; 0 where it says nothing that can be used.

    >>> after_s("7", None), after_s("Tue, 01 Dec 2026 00:01:30 GMT", "Tue, 01 Dec 2026 00:00:00 GMT"), after_s("soon", None)
    (7.0, 90.0, 0.0)
    """
    text = (told or "").strip()
    if text.isascii() and text.isdecimal():
        return min(float(text), RETRY_AFTER_MAX_S)
    try:
        until, now = (_moment(one) for one in (text, date or ""))
    except (TypeError, ValueError, OverflowError):
        return 0.0
    return min(max(0.0, (until - now).total_seconds()), RETRY_AFTER_MAX_S)


def _moment(said: str) -> datetime:
    when = parsedate_to_datetime(said)
    return when if when.tzinfo else when.replace(tzinfo=UTC)


def shown(text: str) -> str:
    """What somebody answered, as it may stand in a log."""
    return plain(text_without_secrets(text).strip())
