"""Holding requests for a batching window, one holder an engine; `policy.window` decides, this waits.

Rules: requests of one window are released together; the oldest waits no longer than its window; one timer a
holder at most; a request whose client leaves drops out of the window at once.

Deliberately absent: the window's length (policy), and a bound on how many wait (admission has it).
"""

import asyncio
from itertools import islice

from sits.core.decision import Decision
from sits.core.fleet import Window
from sits.core.ports import World
from sits.core.units import SECOND
from sits.policy import window


class Holder:
    """The window in front of one engine."""

    def __init__(self, config: Window, world: World) -> None:
        self.config = config
        self.world = world
        self._waiting: dict[asyncio.Future[None], int] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._due_ns = 0
        self._last_ns = 0
        self._gap_ns = 0.0

    @property
    def pending(self) -> int:
        """Requests held right now."""
        return len(self._waiting)

    @property
    def rate_per_s(self) -> float:
        """Arrival rate as estimated so far; 0 before the first gap."""
        return SECOND / self._gap_ns if self._gap_ns else 0.0

    async def hold(self) -> Decision:
        """Wait for company as long as the policy says; returns the decision made on arrival."""
        loop = asyncio.get_running_loop()
        now_ns = self.world.now_ns()
        if self._last_ns:
            self._gap_ns = window.mean_gap(self._gap_ns, max(1, now_ns - self._last_ns))
        self._last_ns = now_ns
        waiter: asyncio.Future[None] = loop.create_future()
        self._waiting[waiter] = now_ns
        decision = window.decide(
            self.config,
            pending=len(self._waiting),
            oldest_ns=next(islice(self._waiting.values(), 1)),
            rate_per_s=self.rate_per_s,
            now_ns=now_ns,
        )
        if decision.outcome == "flush":
            self._flush()
            return decision
        self._arm(loop, decision.reasons["hold_until_ns"], now_ns)
        try:
            await waiter
        finally:
            self._waiting.pop(waiter, None)
            if not self._waiting:
                self._disarm()
        return decision

    def _arm(self, loop: asyncio.AbstractEventLoop, due_ns: int, now_ns: int) -> None:
        if self._timer is not None and self._due_ns == due_ns:
            return
        self._disarm()
        self._due_ns = due_ns
        self._timer = loop.call_later((due_ns - now_ns) / SECOND, self._flush)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _flush(self) -> None:
        self._disarm()
        waiting, self._waiting = self._waiting, {}
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)
