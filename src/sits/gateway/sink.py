"""One answer on its way to a client, as HTTP/1.1.

Rules: a stream is sent piece by piece, each in one write, as chunks; a plain answer in one write with its length, unless it is too
large to be held (`in_pieces`).  The head leaves with the first bytes of the body.

Deliberately absent: the connection and what else is asked on it (gateway.connection).
"""

import asyncio
from typing import TYPE_CHECKING

from sits.gateway.exchange import Headers
from sits.gateway.http import CLOSES, HEAD_END, LAST_CHUNK, chunk_size, status_line

if TYPE_CHECKING:
    from sits.gateway.connection import Connection

ID_NAMES: tuple[bytes, ...] = (b"\r\nx-request-id: ", b"\r\nx-sits-decision-id: ")
"""The names under which an answer says the request's id."""


class HttpSink:
    """The answer of one exchange on a connection."""

    __slots__ = (
        "_body",
        "_connection",
        "_name",
        "_names",
        "_parts",
        "_stamp",
        "_streaming",
        "chunked",
        "close",
    )

    def __init__(self, connection: "Connection", request_id: str, close: bool, chunked: bool) -> None:
        self._connection = connection
        self._name = request_id.encode()
        self._names = ID_NAMES
        self._stamp = connection.server.stamp  # now: it ends on the generation it begins on
        self._body = b""
        self._streaming = False
        self.close = close
        self.chunked = chunked

    def name_for_anthropic(self) -> None:
        """Say the request's id also by the name Anthropic's clients look for."""
        self._names = (*ID_NAMES, b"\r\nrequest-id: ")

    def in_pieces(self) -> None:
        """Send what is written as it comes, whatever it is."""
        self._streaming = True

    def start(self, status: int, content_type: bytes, headers: Headers = ()) -> None:
        """Prepare the head; it leaves with the first piece of the body."""
        name, server = self._name, self._connection.server
        parts = [status_line(status), b"content-type: ", content_type, self._stamp]
        for what in self._names:
            parts += (what, name)
        for what, value in headers:
            parts += (b"\r\n", what, b": ", value)
        if self._streaming or content_type.startswith(b"text/event-stream"):
            self._streaming = True
            self.close = self.close or not self.chunked or server.draining
            if self.chunked:
                parts.append(b"\r\ntransfer-encoding: chunked")
            parts.append(CLOSES if self.close else HEAD_END)
        self._parts = parts

    def write(self, data: bytes) -> "asyncio.Future[None] | None":
        """Send a piece of a stream; keep a piece of a plain answer until its length is known."""
        if not self._streaming:
            self._body = self._body + data if self._body else data
            return None
        if self.chunked:
            if not data:  # an empty chunk would end the body
                return None
            data = b"".join((chunk_size(len(data)), data, b"\r\n"))
        if self._parts:
            self._parts.append(data)
            data = b"".join(self._parts)
            self._parts.clear()
        connection = self._connection
        connection.transport.write(data)
        return connection.paused

    def finish(self) -> "asyncio.Future[None] | None":
        """Send what ends the answer."""
        connection, parts = self._connection, self._parts
        if self._streaming:
            if self.chunked:
                parts.append(LAST_CHUNK)
            connection.transport.write(b"".join(parts))
            return connection.paused
        body = self._body
        self.close = self.close or connection.server.draining
        ending = CLOSES if self.close else HEAD_END
        parts += (b"\r\ncontent-length: ", str(len(body)).encode(), ending, body)
        connection.transport.write(b"".join(parts))
        return connection.paused

    def abort(self) -> None:
        """Cut the connection: the length promised, or the last chunk, will be missing."""
        self._connection.transport.abort()
