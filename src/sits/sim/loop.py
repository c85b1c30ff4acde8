"""A virtual asyncio loop: time jumps to the next timer, so an hour of waiting costs nothing.

The rules: `VirtualLoop` is asyncio's own event loop with a selector that never sleeps and never looks at a
file descriptor.  When no callback is ready, time becomes exactly the time of the next timer; timers are
rounded to whole nanoseconds, so `VirtualWorld.now_ns()` is exact and integer.  The same program with the same
seed runs the same callbacks in the same order.  When nothing is ready and no timer is left while the main
coroutine is unfinished, nothing can ever happen again: `DeadlockError` says so and names the waiting tasks.

The idea is trio's `MockClock(autojump_threshold=0)`.  Time starts at one second, not at zero, because a time
of 0 means "missing" in timelines and tables.

Deliberately absent: sockets, subprocesses and threads.  Code that waits for one of them on this loop is
reported as a deadlock, because virtual time cannot wait for real time.
"""

import asyncio
import selectors
from collections.abc import Awaitable, Callable, Mapping
from contextvars import Context
from typing import Any, TypeVar

import numpy as np

from sits.core.errors import BugError
from sits.world import stream_generator

T = TypeVar("T")

START_NS = 1_000_000_000
"""Virtual time when a loop is made."""

EPOCH_NS = 1_767_225_600_000_000_000
"""Wall clock at virtual time 0: 2026-01-01T00:00:00Z; for display only."""

_END_S = float(2**21)
_SAME_TIME_S = 4e-10
"""Timers closer than this are one moment: under half a nanosecond, above a float's spacing up to `_END_S`."""


class DeadlockError(BugError):
    """Nothing is scheduled on a virtual loop, and what it should finish is not finished."""


class JumpSelector(selectors.BaseSelector):
    """A selector without descriptors: `select` asks the loop to jump instead of sleeping."""

    def __init__(self) -> None:
        self.jump: Callable[[float | None], None] = lambda timeout: None
        self._keys: dict[int, selectors.SelectorKey] = {}

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        """Remember `fileobj` (the loop's own wake-up pipe); it is never polled."""
        fd = fileobj if isinstance(fileobj, int) else fileobj.fileno()
        key = self._keys[fd] = selectors.SelectorKey(fileobj, fd, events, data)
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        """Forget `fileobj`; raises KeyError when it is not registered."""
        return self._keys.pop(fileobj if isinstance(fileobj, int) else fileobj.fileno())

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Never ready: time moves instead, unless a callback is waiting to run (`timeout` <= 0)."""
        if timeout is None or timeout > 0.0:
            self.jump(timeout)
        return []

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        """Registered descriptors."""
        return self._keys


class VirtualLoop(asyncio.SelectorEventLoop):
    """asyncio on a clock that jumps.  `time()` is virtual seconds; `now_ns()` the same in whole ns.

    `jumps` counts how often time moved.
    """

    def __init__(self) -> None:
        self._now_s = START_NS / 1e9
        self._now_ns = START_NS
        self.jumps = 0
        selector = JumpSelector()
        super().__init__(selector)
        selector.jump = self._jump
        self._clock_resolution = _SAME_TIME_S

    def time(self) -> float:
        """Virtual seconds."""
        return self._now_s

    def now_ns(self) -> int:
        """Virtual time in whole ns."""
        return self._now_ns

    def call_at(
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """`asyncio.loop.call_at`, with `when` rounded to a whole nanosecond."""
        return super().call_at(round(when * 1e9) / 1e9, callback, *args, context=context)

    def call_at_ns(self, when_ns: int, callback: Callable[..., object], *args: Any) -> asyncio.TimerHandle:
        """Run `callback(*args)` when virtual time is `when_ns`."""
        return super().call_at(when_ns / 1e9, callback, *args)

    def _jump(self, timeout: float | None) -> None:
        if timeout is None:
            raise DeadlockError(
                _deadlock_text(self), hint="wake what they wait for, or give the wait a timeout"
            )
        # asyncio has just dropped cancelled timers from the head of its heap: the head is the next live one.
        when: float = self._scheduled[0]._when  # type: ignore[attr-defined]
        if when > _END_S:
            raise BugError(
                f"virtual time would pass {_END_S:,.0f} s, where a float no longer tells nanoseconds apart",
                field="when",
                value=when,
                hint="split the run",
            )
        self.jumps += 1
        self._now_s = when
        self._now_ns = round(when * 1e9)


def _deadlock_text(loop: VirtualLoop) -> str:
    waiting = sorted(f"{task.get_name()} ({_where(task)})" for task in asyncio.all_tasks(loop))
    listed = "; ".join(waiting[:5]) + (f"; and {len(waiting) - 5} more" if len(waiting) > 5 else "")
    return (
        f"deadlock at virtual {loop.time():.6f} s: no timer is scheduled and {len(waiting)} task(s) wait "
        f"for each other, for a thread or for a socket: {listed}"
    )


def _where(task: "asyncio.Task[Any]") -> str:
    frames = task.get_stack(limit=1)
    if not frames:
        return repr(task.get_coro())
    return f"{frames[-1].f_code.co_qualname} line {frames[-1].f_lineno}"


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
