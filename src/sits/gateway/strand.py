"""A Strand: one coroutine that runs at once, as far as it can, and goes on the moment what it waits for is there.

An asyncio task starts in the loop's next round and continues a round after each wake-up.  A Strand starts inside its
constructor and, waiting for an `engine.waiter.Waiter`, continues inside the call that brought the bytes: an answer that
comes in one packet costs one pass through Python.  Waiting for a plain future works as in a task.

Rules: `done(error)` is called exactly once, when the coroutine has ended (`error` None: it returned); that may be
before the constructor returns, and `ended` tells.  `cancel` throws
`CancelledError` at where it waits, at once; a strand that is cancelled while it runs gets it at its next wait, so like a task
it never is interrupted between two waits.

Deliberately absent: a result, a name, contextvars of its own, `asyncio.current_task()`: what needs the latter
(`asyncio.timeout`, task groups) must run in a task, which a strand may await.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


class Strand:
    """Runs `coroutine`, beginning now; tells `done` how it ended."""

    __slots__ = ("_cancelled", "_coroutine", "_done", "_running", "_waits_for", "ended")

    def __init__(
        self, coroutine: Coroutine[Any, Any, Any], done: Callable[[BaseException | None], None]
    ) -> None:
        self._coroutine = coroutine
        self._done = done
        self._waits_for: Any = None
        self._cancelled: asyncio.CancelledError | None = None
        self._running = False
        self.ended = False
        self._step()

    def cancel(self, why: str = "") -> None:
        """End it where it waits."""
        said = (why,) if why else ()
        if self._running and not self.ended:
            self._cancelled = self._cancelled or asyncio.CancelledError(*said)
            return
        waits_for, self._waits_for = self._waits_for, None
        if waits_for is not None:
            waits_for.remove_done_callback(self._wake)
            waits_for.cancel()
            self._step(asyncio.CancelledError(*said))  # in no name of ours: it will hold this frame

    def _wake(self, waited_for: object) -> None:
        if waited_for is not self._waits_for:  # it was cancelled with this call in the loop's queue already
            return
        self._waits_for = None
        self._step()

    def _step(self, error: BaseException | None = None) -> None:
        self._running = True
        while True:
            try:
                waits_for = self._coroutine.send(None) if error is None else self._coroutine.throw(error)
            except StopIteration:
                self.ended, error = True, None
                self._done(None)
                return
            except (Exception, asyncio.CancelledError) as how:  # noqa: BLE001  (told to `done`)
                self.ended, error = True, None  # what was thrown must not hold the frame that holds it
                self._done(how)
                return
            if self._cancelled is None:
                break
            error, self._cancelled = self._cancelled, None
        self._running = False
        if waits_for is None:  # asyncio.sleep(0)
            waits_for = asyncio.get_running_loop().create_future()
            waits_for.set_result(None)
        else:
            waits_for._asyncio_future_blocking = False  # the protocol between futures and who awaits them
        self._waits_for = waits_for
        waits_for.add_done_callback(self._wake)
