"""One answer of an OpenAI-compatible server, on its way from a connection to whoever asked: pulled, pushed, or whole.

Rules: what came before an error stays valid; closing it closes the connection unless the answer is over; an answer that is over is
over, though the frame around it did not end.

Deliberately absent: what the bytes mean (the readers), and connections (engine.client, engine.openai).
"""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from sits.core.request import Chunk, Request
from sits.engine.answer import StreamReader, cut_short
from sits.engine.client import ClosedError, Connection
from sits.engine.dialect.reading import AnswerError
from sits.engine.large import WHOLE_BYTES_MAX, LargeReader
from sits.engine.translated import READERS, Reader, Translation

if TYPE_CHECKING:
    from sits.engine.openai import OpenAIEngine

JSON: Final = b"application/json"
EVENT_STREAM: Final = b"text/event-stream"

Give = Callable[[Chunk], Awaitable[None] | None]
GiveTokens = Callable[[bytes, int], Awaitable[None] | None]


class _Flow:
    """A stream that is pushed: `pump` hands over what has come to `connection`; `blocked` is what to await before more."""

    __slots__ = ("_give", "_tokens", "blocked", "connection", "reader")

    connection: Connection
    reader: Reader

    def __init__(self, give: Give, tokens: GiveTokens | None) -> None:
        self._give = give
        self._tokens = tokens
        self.blocked: Awaitable[None] | None = None

    def unblocked(self) -> Awaitable[None] | None:
        """What is to be awaited now, once."""
        waiting, self.blocked = self.blocked, None
        return waiting

    def pump(self) -> None:
        """Called when bytes have come; nothing is raised from here, as the caller is the connection."""
        connection, reader, tokens = self.connection, self.reader, self._tokens
        pieces = connection.pieces
        data, marker = pieces[0], reader.marker
        try:
            if (
                marker
                and tokens is not None
                and data.rfind(marker) >= 0  # mostly at its end
                and data.partition(b"\n")[2] == b"\n"  # one line, and the empty one after it
                and len(pieces) == 1
            ):
                del pieces[0]
                self.blocked = tokens(data, 1)
            else:
                chunk = reader.take(connection.taken())
                if chunk is not None:
                    self.blocked = self._give(chunk)
        except Exception as error:  # noqa: BLE001  (raised where the answer is awaited)
            connection.wake(error)
            return
        if self.blocked is not None or reader.problem is not None:
            connection.wake()


class OpenAIAnswer:
    """One answer as an async iterator.  (An async generator would cost its bookkeeping in the loop for each request.)"""

    _translation: Translation | None = None
    _connection: Connection | None = None
    _reader: Reader | None = None
    _over = False

    def __init__(self, engine: "OpenAIEngine", request: Request) -> None:
        self._engine = engine
        self._request = request

    def __aiter__(self) -> "OpenAIAnswer":
        return self

    async def __anext__(self) -> Chunk:
        if self._over:
            raise StopAsyncIteration
        connection = self._connection
        if connection is None:
            return await self._first()
        try:
            reader = self._reader
            assert reader is not None
            problem = reader.problem
            if problem is None:
                while data := connection.taken() or await connection.read():
                    chunk = reader.take(data)
                    if chunk is not None:
                        return chunk
                    if reader.problem is not None:
                        break
                else:
                    reader.end(cut=not connection.framed)
                    if reader.ending is not None and reader.problem is None:
                        self._end()
                        return reader.ending
        except (ClosedError, TimeoutError) as error:
            self._end()
            if (
                self._reader is None or not self._reader.done
            ):  # else all was said, only the frame around it did not end
                raise self._engine.broken(error, "died in mid-answer") from None
            raise StopAsyncIteration from None
        except BaseException:
            self._end()
            raise
        self._end()
        problem = reader.problem
        if problem is not None:
            raise self._engine.failed(*problem)
        raise StopAsyncIteration

    async def push(self, give: Give, tokens: GiveTokens | None = None) -> None:
        """Hand every chunk to `give` the moment it comes, inside the call that brings its bytes; wait where `give` says so.

        `tokens(data, count)`, when there is one, gets those that are nothing but tokens, which are nearly all of a stream.
        """
        flow = _Flow(give, tokens)
        try:
            chunk = await (self._first() if self._connection is None else self.__anext__())
            while True:
                flow.blocked = give(chunk)
                while (waiting := flow.unblocked()) is not None:
                    await waiting
                if self._over:
                    return
                if self._reader is not None and self._reader.problem is None:
                    assert self._connection is not None
                    flow.connection, flow.reader = self._connection, self._reader
                    await self._connection.flow(flow.pump)
                    while (waiting := flow.unblocked()) is not None:
                        await waiting
                chunk = await self.__anext__()
        except StopAsyncIteration:
            return
        except TimeoutError as error:
            raise self._engine.broken(error, "died in mid-answer") from None
        finally:
            self._end()

    async def aclose(self) -> None:
        """Stop: the connection is closed unless its answer is over."""
        self._end()

    async def _first(self) -> Chunk:
        """Send the request; the first chunk of a stream, or the one of an answer that comes whole."""
        chunk = await self.whole()
        return await self.__anext__() if chunk is None else chunk

    async def whole(self) -> Chunk | None:
        """Send the request; the one chunk of an answer that comes whole, None when it comes as a stream."""
        engine, request = self._engine, self._request
        try:
            while True:
                kept = engine.kept()
                connection = self._connection = kept or await engine.connected()
                connection.send(engine.head(request), request.body)
                try:
                    while not connection.headed:
                        await connection.arrival()
                    break
                except ClosedError:
                    if kept is None or connection.touched:
                        raise
                    connection.abort()  # the engine's idle timer had closed it
            if connection.status != 200 or connection.odd or connection.content_type != JSON:
                engine.check(connection)
                if self._streams(connection):
                    return None
            body = connection.all()
            if not body:
                large = connection.status < 400 and self._translation is None
                body = await connection.rest(WHOLE_BYTES_MAX if large else 0)
                if not connection.over:
                    self._reader = LargeReader(
                        connection.status, connection.content_type, body, framed=connection.framed
                    )
                    return None
            if not connection.framed and cut_short(body):
                raise ClosedError("it closed the connection inside its answer")  # noqa: TRY301
        except (ClosedError, TimeoutError) as error:
            headed = connection.headed
            self._end()
            raise engine.broken(error, "died in mid-answer" if headed else "gave no answer") from None
        except BaseException:
            self._end()
            raise
        self._over, self._connection = True, None
        engine.put_back(connection)
        chunk = engine.whole(connection, body)
        if self._translation is None:
            return chunk
        try:
            return self._translation.whole(chunk)
        except AnswerError as error:
            raise engine.failed(error.code, error.what) from None

    def _streams(self, connection: Connection) -> bool:
        """Whether the answer comes as a stream; it is followed then."""
        if connection.status >= 400 or connection.content_type[:17].lower() != EVENT_STREAM:
            return False
        content_type = EVENT_STREAM + connection.content_type[17:]
        if self._translation is not None:
            self._reader = self._translation.reader(connection.status, content_type)
        else:
            make = READERS.get(self._request.endpoint, StreamReader)
            self._reader = make(connection.status, content_type)
        self._request.body = b""  # it is not sent again
        return True

    def _end(self) -> None:
        connection, self._connection = self._connection, None
        self._over = True
        if connection is not None:
            self._engine.put_back(connection)
