"""One answer on its way to a client, as HTTP/1.1.

Rules: a stream is sent piece by piece, each in one write, as chunks; a plain answer in one write with its length, unless it is too
large to be held (`in_pieces`).  The head leaves with the first bytes of the body.

Deliberately absent: the connection and what else is asked on it (gateway.connection).
"""

import asyncio
from typing import TYPE_CHECKING, Final

from sits.gateway.http import CLOSES, HEAD_END, LAST_CHUNK, status_line

if TYPE_CHECKING:
    from sits.gateway.connection import Connection

_SAID: Final = b"%b\r\nx-request-id: %b\r\nx-sits-decision-id: %b"
"""The generation, and the names under which an answer says the request's id."""


class HttpSink:
    """The answer of one exchange on a connection."""

    __slots__ = ("_body", "_connection", "_head", "_said", "_streaming", "chunked", "close")

    def __init__(self, connection: "Connection", request_id: str, close: bool, chunked: bool) -> None:
        name = request_id.encode()
        self._connection = connection
        self._said = _SAID % (
            connection.server.stamp,
            name,
            name,
        )  # now: it ends on the generation it begins on
        self._body = b""
        self._streaming = False
        self.close = close
        self.chunked = chunked

    def name_for_anthropic(self) -> None:
        """Say the request's id also by the name Anthropic's clients look for."""
        self._said += b"\r\nrequest-id: " + self._said.rpartition(b" ")[2]

    def in_pieces(self) -> None:
        """Send what is written as it comes, whatever it is."""
        self._streaming = True

    def start(self, status: int, content_type: bytes, lines: bytes = b"") -> None:
        """Prepare the head; it leaves with the first piece of the body."""
        self._head = b"%bcontent-type: %b%b%b" % (status_line(status), content_type, self._said, lines)
        self._said = b""
        if self._streaming or content_type.startswith(b"text/event-stream"):
            self._streaming = True
            self._connection.begun()
            self.close = self.close or not self.chunked or self._connection.server.draining
            if self.chunked:
                self._head += b"\r\ntransfer-encoding: chunked"
            self._head += CLOSES if self.close else HEAD_END

    def write(self, data: bytes) -> "asyncio.Future[None] | None":
        """Send a piece of a stream; keep a piece of a plain answer until its length is known."""
        if not self._streaming:
            self._body = self._body + data if self._body else data
            return None
        if self.chunked:
            if not data:  # an empty chunk would end the body
                return None
            data = b"%x\r\n%b\r\n" % (len(data), data)
        if self._head:
            data, self._head = self._head + data, b""
        connection = self._connection
        connection.transport.write(data)
        return connection.paused

    def finish(self) -> "asyncio.Future[None] | None":
        """Send what ends the answer."""
        connection, head, body = self._connection, self._head, self._body
        if self._streaming:
            end = head + LAST_CHUNK if self.chunked else head
        else:
            self.close = self.close or connection.server.draining
            end = b"%b\r\ncontent-length: %d%b" % (head, len(body), CLOSES if self.close else HEAD_END)
            end += body
        connection.transport.write(end)
        return connection.paused

    def abort(self) -> None:
        """Cut the connection: the length promised, or the last chunk, will be missing."""
        self._connection.transport.abort()
