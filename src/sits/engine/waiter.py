"""A Waiter: something to await whose wake-up runs the one who waits at once, not in the loop's next round.

An asyncio future hands its waiter to the loop, which runs it a round later: a handle, an empty poll of the sockets and a
task step for each piece of an answer.  On the byte path that is a third of the cost of a streamed chunk.  A Waiter calls
its one call-back itself.  It can be waited for again and again, by one at a time.

Rules: whoever passes no `context` to `add_done_callback` (`gateway.strand`) is called from inside `wake`; an asyncio task, which
always passes one, is handed to the loop as it expects, so engines work under tasks as well.

Deliberately absent: results (what was waited for is looked up), more than one waiter, thread safety.
"""

import asyncio
from collections.abc import Callable, Generator
from contextvars import Context
from typing import Any


class Waiter:
    """Awaitable; `wake` ends the wait, with an error if one is given."""

    __slots__ = ("_asyncio_future_blocking", "_callback", "_context", "_error")

    def __init__(self) -> None:
        self._asyncio_future_blocking = False
        self._callback: Callable[[Any], object] | None = None
        self._context: Context | None = None
        self._error: BaseException | None = None

    @property
    def waiting(self) -> bool:
        """Whether somebody waits, and has not been woken."""
        return self._callback is not None

    def __await__(self) -> Generator[Any, None, None]:
        """Wait for the next `wake`."""
        self._asyncio_future_blocking = True
        try:
            yield self
            if self._error is not None:
                raise self._error  # noqa: TRY301  (there is no inner function to go to: this is the wait)
        except BaseException:
            self._callback = self._error = None
            raise

    def wake(self, error: BaseException | None = None) -> None:
        """End the wait; nothing when nobody waits, or when it was ended already."""
        callback, self._callback = self._callback, None
        if callback is None:
            return
        self._error = error
        if self._context is None:
            callback(self)
        else:
            asyncio.get_running_loop().call_soon(callback, self, context=self._context)

    # -- what asyncio's tasks ask of a future --------------------------------------------------------------------

    def add_done_callback(self, callback: Callable[[Any], object], *, context: Context | None = None) -> None:
        """Who waits."""
        self._callback = callback
        self._context = context

    def remove_done_callback(self, callback: Callable[[Any], object]) -> int:
        """Who no longer waits."""
        gone = self._callback == callback
        if gone:
            self._callback = None
        return int(gone)

    def cancel(self, msg: object = None) -> bool:
        """End the wait with CancelledError."""
        if self._callback is None:
            return False
        self.wake(asyncio.CancelledError(*(() if msg is None else (msg,))))
        return True

    def result(self) -> None:
        """What a task asks for before it goes on."""
        if self._error is not None:
            raise self._error

    def get_loop(self) -> asyncio.AbstractEventLoop:
        """The loop it is used on."""
        return asyncio.get_running_loop()
