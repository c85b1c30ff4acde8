"""A Link: messages between two processes over one SEQPACKET socket, in order, bounded, never waited for.

```
message = [kind, number, body] as msgpack, cut into frames;  frame = 1 byte of flags + up to 64 KiB
```
`send` tells; `ask` asks, and its answer comes back as a future; who is asked gives a function for each kind.

Rules:
- Sending never blocks: what the kernel does not take waits here, up to `BACKLOG_BYTES`; beyond it a message is refused (`send`
  returns False, `ask` fails) and counted in `refused`.
- A frame arrives whole or not at all, so a sender killed at any moment leaves at most the beginning of a message, which the
  next message's first frame makes void.
- The socket outlives the processes at its ends (the supervisor holds it); an end that is started again goes on with it.

Deliberately absent: what messages mean, and any trust: both ends are ours.
"""

import asyncio
import itertools
import socket
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from sits.core.errors import CapacityError, SitsError

FRAME_BYTES = 64 * 1024
BACKLOG_BYTES = 8 * 2**20
"""What may wait for a slow reader; about 25,000 rows."""

ROUNDS = 64
"""Frames read in one go, before the loop's other business has its turn."""

AWAY_S = 2.0
"""When to ask again: a process that died is there by then."""

FIRST, LAST = 1, 2
ANSWER, ERROR = "=", "!"

Serve = Callable[[Any], Awaitable[Any]]
Hear = Callable[[Any], None]


class AwayError(CapacityError):
    """The other process does not take or answer messages; it is being started again."""

    kind = "internal_error"

    def __init__(self, message: str, *, retry_after_s: float = AWAY_S, **more: Any) -> None:
        super().__init__(message, retry_after_s=retry_after_s, **more)


def pair() -> tuple[socket.socket, socket.socket]:
    """Two ends of a link's socket."""
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in ends:
        end.setblocking(False)
    return ends


def frames(message: bytes) -> list[bytes]:
    """A message as it goes over the socket."""
    count = len(message)
    return [
        bytes(((FIRST if start == 0 else 0) | (LAST if start + FRAME_BYTES >= count else 0),))
        + message[start : start + FRAME_BYTES]
        for start in range(0, count, FRAME_BYTES)
    ]


class Assembler:
    """Puts frames together again."""

    def __init__(self) -> None:
        self._parts: list[memoryview] = []

    def take(self, frame: bytes) -> bytes | memoryview | None:
        """The message this frame is the last of; None while it is not whole."""
        flags = frame[0]
        if flags & FIRST:
            self._parts = []
        elif not self._parts:
            return None  # the middle of a message whose beginning died with its reader
        self._parts.append(memoryview(frame)[1:])
        if not flags & LAST:
            return None
        parts, self._parts = self._parts, []
        return parts[0] if len(parts) == 1 else b"".join(parts)


class Link:
    """One end.

    Args:
        end: of a `pair`.
        first: number of the first question; no predecessor at this end may have come near it.
        hears: what to call for messages of a kind; serves: what to await for questions of a kind.
        ended: called when all holders of the other end are gone.

    Attributes:
        refused: messages that found the backlog full.

    """

    def __init__(
        self,
        end: socket.socket,
        hears: dict[str, Hear] | None = None,
        serves: dict[str, Serve] | None = None,
        ended: Callable[[], None] | None = None,
        first: int = 1,
    ) -> None:
        self.refused = 0
        self._end = end
        self._hears = hears or {}
        self._serves = serves or {}
        self._ended = ended
        self._loop = asyncio.get_running_loop()
        self._encode = msgspec.msgpack.Encoder().encode
        self._backlog: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._assembler = Assembler()
        self._numbers = itertools.count(first)
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._serving: set[asyncio.Task[None]] = set()
        self._loop.add_reader(end, self._readable)

    @property
    def empty(self) -> bool:
        """Whether everything sent was handed to the kernel."""
        return not self._backlog

    def send(self, kind: str, body: Any = None) -> bool:
        """Tell the other end; False when it is too far behind."""
        return self._send(kind, 0, body)

    def ask(self, kind: str, body: Any = None) -> "asyncio.Future[Any]":
        """Ask the other end; the future fails with a SitsError when it cannot or will not answer."""
        number = next(self._numbers)
        answer = self._loop.create_future()
        if self._send(kind, number, body):
            self._asked[number] = answer
            answer.add_done_callback(lambda _: self._asked.pop(number, None))
        else:
            answer.set_exception(AwayError("the keeper is too far behind to be asked", code="keeper_behind"))
        return answer

    def drop_questions(self, why: str) -> None:
        """Fail all that was asked: whoever was asked is gone, and its successor knows nothing of it."""
        for answer in list(self._asked.values()):
            if not answer.done():
                answer.set_exception(AwayError(why, code="keeper_gone"))

    def drain(self) -> None:
        """Hear everything that is in the socket now."""
        more = True
        while more:
            more = self._receive()

    def close(self) -> None:
        """Hear and send no more; the socket itself stays with its owner."""
        self._loop.remove_reader(self._end)
        if self._backlog:
            self._loop.remove_writer(self._end)
        for task in self._serving:
            task.cancel()
        self.drop_questions("the link is closed")

    def _send(self, kind: str, number: int, body: Any) -> bool:
        message = self._encode((kind, number, body))
        if self._waiting_bytes + len(message) > BACKLOG_BYTES:
            self.refused += 1
            return False
        for frame in frames(message):
            self._put(frame)
        return True

    def _put(self, frame: bytes) -> None:
        if not self._backlog:
            try:
                self._end.send(frame)
            except (BlockingIOError, InterruptedError):
                self._loop.add_writer(self._end, self._writable)
            except OSError:  # nobody holds the other end any more; the reader is told so too
                self.refused += 1
                return
            else:
                return
        self._backlog.append(frame)
        self._waiting_bytes += len(frame)

    def _writable(self) -> None:
        backlog = self._backlog
        try:
            while backlog:
                self._end.send(backlog[0])
                self._waiting_bytes -= len(backlog.popleft())
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self.refused += len(backlog)
            backlog.clear()
            self._waiting_bytes = 0
        self._loop.remove_writer(self._end)

    def _readable(self) -> None:
        for _ in range(ROUNDS):
            if not self._receive():
                return

    def _receive(self) -> bool:
        """Take one frame, if there is one."""
        try:
            frame = self._end.recv(FRAME_BYTES + 1)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            frame = b""
        if not frame:
            self._loop.remove_reader(self._end)
            self.drop_questions("the other process is gone")
            if self._ended is not None:
                self._ended()
            return False
        message = self._assembler.take(frame)
        if message is not None:
            self._hear(message)
        return True

    def _hear(self, message: bytes | memoryview) -> None:
        kind, number, body = msgspec.msgpack.decode(message)
        if kind in (ANSWER, ERROR):
            answer = self._asked.pop(number, None)
            if answer is None or answer.done():
                return
            if kind == ANSWER:
                answer.set_result(body)
            else:
                answer.set_exception(AwayError(body, code="keeper_refused"))
        elif number:
            task = self._loop.create_task(self._answer(self._serves[kind], number, body))
            self._serving.add(task)
            task.add_done_callback(self._serving.discard)
        else:
            self._hears[kind](body)

    async def _answer(self, serve: Serve, number: int, body: Any) -> None:
        try:
            answer = await serve(body)
        except SitsError as error:
            self._send(ERROR, number, str(error))
        else:
            self._send(ANSWER, number, answer)
