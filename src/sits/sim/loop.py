"""A virtual asyncio loop: time jumps to the next timer, so an hour of waiting costs nothing.

The rules: `VirtualLoop` is asyncio's own event loop whose one turn (`_run_once`) never sleeps and never looks at
a file descriptor.  When no callback is ready, time becomes exactly the time of the next timer; timers are
whole nanoseconds, kept in order of (time, creation), so `VirtualWorld.now_ns()` is exact and ties are first come
first served.  The same program with the same seed runs the same callbacks in the same order.  When nothing is ready and no timer is left while the main
coroutine is unfinished, nothing can ever happen again: `DeadlockError` says so and names the waiting tasks.

The idea is trio's `MockClock(autojump_threshold=0)`.  Time starts at one second, not at zero, because a time
of 0 means "missing" in timelines and tables.

Deliberately absent: sockets, subprocesses and threads.  Code that waits for one of them on this loop is
reported as a deadlock, because virtual time cannot wait for real time.
"""

import asyncio
import heapq
import selectors
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from contextvars import Context
from itertools import count
from typing import Any, TypeVar

import numpy as np

from sits.core.errors import BugError
from sits.world import stream_generator

T = TypeVar("T")

START_NS = 1_000_000_000
"""Virtual time when a loop is made."""

EPOCH_NS = 1_767_225_600_000_000_000
"""Wall clock at virtual time 0: 2026-01-01T00:00:00Z; for display only."""

END_NS = 2**21 * 1_000_000_000
"""Latest virtual time: up to 2^21 s the spacing of floats is under half a nanosecond."""


class DeadlockError(BugError):
    """Nothing is scheduled on a virtual loop, and what it should finish is not finished."""


class BlindSelector(selectors.BaseSelector):
    """A selector for a loop that never selects: it only remembers the loop's own wake-up pipe."""

    def __init__(self) -> None:
        self._keys: dict[int, selectors.SelectorKey] = {}

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        """Remember `fileobj`; it is never polled."""
        fd = fileobj if isinstance(fileobj, int) else fileobj.fileno()
        key = self._keys[fd] = selectors.SelectorKey(fileobj, fd, events, data)
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        """Forget `fileobj`; raises KeyError when it is not registered."""
        return self._keys.pop(fileobj if isinstance(fileobj, int) else fileobj.fileno())

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Never ready."""
        return []

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        """Registered descriptors."""
        return self._keys


class VirtualLoop(asyncio.SelectorEventLoop):
    """asyncio on a clock that jumps.  `time()` is virtual seconds; `now_ns()` the same in whole ns.

    `jumps` counts how often time moved.
    """

    def __init__(self) -> None:
        self._now_ns = START_NS
        self._due: list[tuple[int, int, asyncio.TimerHandle]] = []
        self._created = count()
        self.jumps = 0
        super().__init__(BlindSelector())

    def time(self) -> float:
        """Virtual seconds."""
        return self._now_ns / 1e9

    def now_ns(self) -> int:
        """Virtual time in whole ns."""
        return self._now_ns

    def call_at(  # type: ignore[override]  # typeshed's variadic form says no more
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """`asyncio.loop.call_at`, with `when` rounded to a whole nanosecond."""
        return self.call_at_ns(round(when * 1e9), callback, *args, context=context)

    def call_at_ns(
        self, when_ns: int, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Run `callback(*args)` when virtual time is `when_ns`; at once (in turn) when that has passed."""
        if when_ns > END_NS:
            raise BugError(
                f"virtual time would pass {END_NS / 1e9:,.0f} s, where a float no longer tells nanoseconds apart",
                field="when_ns",
                value=when_ns,
                hint="split the run",
            )
        timer = asyncio.TimerHandle(when_ns / 1e9, callback, args, self, context)
        heapq.heappush(self._due, (max(when_ns, self._now_ns), next(self._created), timer))
        return timer

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Nothing to count: cancelled timers are dropped when they come due."""

    def _run_once(self) -> None:
        """One turn: what is ready, or, when nothing is, what is due next."""
        ready = self._ready  # type: ignore[attr-defined]
        if not ready:
            self._jump(ready)
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle._cancelled:
                handle._run()

    def _jump(self, ready: "deque[asyncio.Handle]") -> None:
        due = self._due
        while due and due[0][2].cancelled():
            heapq.heappop(due)
        if not due:
            raise DeadlockError(
                _deadlock_text(self), hint="wake what they wait for, or give the wait a timeout"
            )
        self.jumps += 1
        now_ns = self._now_ns = due[0][0]
        while due and due[0][0] == now_ns:
            ready.append(heapq.heappop(due)[2])


def _deadlock_text(loop: VirtualLoop) -> str:
    waiting = sorted(f"{task.get_name()} ({_where(task)})" for task in asyncio.all_tasks(loop))
    listed = "; ".join(waiting[:5]) + (f"; and {len(waiting) - 5} more" if len(waiting) > 5 else "")
    return (
        f"deadlock at virtual {loop.time():.6f} s: no timer is scheduled and {len(waiting)} task(s) wait "
        f"for each other, for a thread or for a socket: {listed}"
    )


def _where(task: "asyncio.Task[Any]") -> str:
    """The innermost coroutine a task waits in."""
    inner: Any = task.get_coro()
    while getattr(getattr(inner, "cr_await", None), "cr_frame", None) is not None:
        inner = inner.cr_await
    frame = getattr(inner, "cr_frame", None)
    return repr(inner) if frame is None else f"{inner.__qualname__} line {frame.f_lineno}"


class VirtualWorld:
    """Virtual clock and seeded dice: the `World` of code that runs on a `VirtualLoop`."""

    def __init__(self, loop: VirtualLoop, seed: int = 0) -> None:
        self.loop = loop
        self.seed = seed
        self.now_ns: Callable[[], int] = loop.now_ns
        self._streams: dict[str, np.random.Generator] = {}

    def wall_ns(self) -> int:
        """A fixed epoch plus virtual time."""
        return EPOCH_NS + self.loop.now_ns()

    def rng(self, stream: str) -> np.random.Generator:
        """The named stream, created on first use; depends on the seed and the name only."""
        found = self._streams.get(stream)
        if found is None:
            found = self._streams[stream] = stream_generator(self.seed, stream)
        return found

    def nonce(self) -> int:
        """64 bits of the stream `nonce`: a virtual world repeats itself, its identities too."""
        return int(self.rng("nonce").integers(0, 2**63))


def run_virtual(main: Callable[[VirtualWorld], Awaitable[T]], seed: int = 0) -> T:
    """Run `main(world)` on a fresh virtual loop until it returns, and return what it returned.

    Tasks that are still running then are cancelled, as `asyncio.run` does.

    >>> async def nap(world):
    ...     before = world.now_ns()
    ...     await asyncio.sleep(3600)
    ...     return world.now_ns() - before
    >>> run_virtual(nap)
    3600000000000

    Raises:
        DeadlockError: `main` waits for something that can never happen.
        RuntimeError: called from inside a running loop.

    """
    loop = VirtualLoop()
    try:
        return loop.run_until_complete(_main(main, VirtualWorld(loop, seed)))
    finally:
        try:
            _cancel_rest(loop)
            loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            loop.close()


async def _main(main: Callable[[VirtualWorld], Awaitable[T]], world: VirtualWorld) -> T:
    return await main(world)


def _cancel_rest(loop: VirtualLoop) -> None:
    tasks = asyncio.all_tasks(loop)
    if not tasks:
        return
    for task in tasks:
        task.cancel()
    loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
