"""A child process of the supervisor: forked, heard over a control socket, started again with a growing pause when it dies.

Rules: what a child inherits and is not its own is closed at once, so that a socket's end is gone when its owner is; a child never returns
into the supervisor's code; its signals are its own business from the first line on.

Deliberately absent: which children there are, and what they are told.
"""

import os
import select
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import msgspec

from sits.app.up.link import FRAME_BYTES, Assembler, frames
from sits.core.units import MS, SECOND

PAUSE_NS = 50 * MS
PAUSE_MAX_NS = 5 * SECOND
LIVED_NS = 10 * SECOND
"""A child that lived so long did not die of its start: the next pause is the shortest again."""

SEND_S = 2.0
"""How long a child may take to take a message; it only has to read its socket."""


class Closes(Protocol):
    """A socket or file."""

    def close(self) -> None:
        """Let it go."""


class StuckError(Exception):
    """A child does not read what it is told."""


class Child:
    """One process, in all its lives.

    Attributes:
        pid: 0 while there is none; ready: whether this life has begun to work.
        lives: how often it was started; due_ns: when it is to be started again.

    """

    def __init__(
        self, name: str, control: tuple[socket.socket, socket.socket], work: Callable[[], None]
    ) -> None:
        self.name = name
        self.ours, self.theirs = control
        self.work = work
        self.pid = 0
        self.ready = False
        self.lives = 0
        self.due_ns = 0
        self._since_ns = 0
        self._pause_ns = PAUSE_NS
        self._assembler = Assembler()

    def start(self, now_ns: int, foreign: Iterable[Closes]) -> None:
        """Fork; the child closes `foreign` and works."""
        while self.heard() is not None:
            continue
        self.lives += 1
        self.ready = False
        self._since_ns = now_ns
        self._assembler = Assembler()
        pid = os.fork()
        if pid:
            self.pid = pid
            return
        code = 70
        try:
            for one in (signal.SIGINT, signal.SIGHUP):
                signal.signal(one, signal.SIG_IGN)
            for one in (signal.SIGTERM, signal.SIGCHLD):
                signal.signal(one, signal.SIG_DFL)
            signal.set_wakeup_fd(-1)
            for other in foreign:
                other.close()
            self.work()
            code = 0
        except BaseException:  # noqa: BLE001  (a child ends here, whatever it was; the supervisor's stack is not its own)
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)

    def died(self, now_ns: int) -> int:
        """It is no more; returns the pause before the next life, ns."""
        self.pid = 0
        self._pause_ns = (
            PAUSE_NS if now_ns - self._since_ns > LIVED_NS else min(PAUSE_MAX_NS, 2 * self._pause_ns)
        )
        self.due_ns = now_ns + self._pause_ns
        return self._pause_ns

    def tell(self, kind: str, body: Any = None) -> None:
        """Send a message.

        Raises:
            StuckError: it does not take it.

        """
        for frame in frames(msgspec.msgpack.encode((kind, 0, body))):
            if not select.select([], [self.ours], [], SEND_S)[1]:
                raise StuckError(self.name)
            self.ours.send(frame)

    def heard(self) -> tuple[str, Any] | None:
        """The next message, if one is whole now."""
        try:
            frame = self.ours.recv(FRAME_BYTES + 1)
        except (BlockingIOError, InterruptedError):
            return None
        message = self._assembler.take(frame) if frame else None
        if message is None:
            return None
        kind, _, body = msgspec.msgpack.decode(message)
        return kind, body

    def signal(self, number: int) -> None:
        """Send a signal, if it lives."""
        if self.pid:
            os.kill(self.pid, number)
