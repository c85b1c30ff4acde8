"""What a worker says of its own strain, once a second: the share of one processor it used, and how late its loop was.

```
gateway_cpu_share   = (user + system CPU of this process) / time passed         getrusage(2), all its threads
gateway_backlog_ms  = the longest that a tick came later than asked for         of the ticks in that second
```
Signals of source `worker-N`.  A worker is one thread of requests, so a share near 1 is a worker with no CPU left, however many processors
the machine has; a tick that was late waited behind all that was ready in the loop, as a request that came then did.

Rules: off the path of requests, between two flushes; the first second tells nothing, for it has nothing to be compared with; a processor
taken away by others makes ticks late but no share high.  A share above 1 is other threads' work, and is told as 1.

Deliberately absent: the machine as a whole (`telemetry.host.machine`), and what is to blame (`diagnose.causes.gateway_saturation`).
"""

import resource
from collections.abc import Callable

from sits.core.ports import World
from sits.core.units import MS, SECOND

Add = Callable[[str, tuple[int, str, str, float]], None]


def cpu_ns() -> int:
    """CPU time this process has used, user and system."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return round((used.ru_utime + used.ru_stime) * SECOND)


class Effort:
    """The strain of one worker.

    Args:
        world: the clock.
        source: whose signals these are.
        period_ns: how long after a tick the next one is asked for.
        used_ns: CPU time used so far.

    """

    def __init__(
        self, world: World, source: str, period_ns: int, used_ns: Callable[[], int] = cpu_ns
    ) -> None:
        self._world = world
        self._source = source
        self._period_ns = period_ns
        self._used_ns = used_ns
        self._since_ns = self._ticked_ns = 0
        self._used_before_ns = 0
        self._late_ns = 0

    def tick(self, add: Add) -> None:
        """To be called every `period_ns`; `add` is given table and row."""
        now_ns = self._world.now_ns()
        if self._since_ns:
            self._late_ns = max(self._late_ns, now_ns - self._ticked_ns - self._period_ns)
        self._ticked_ns = now_ns
        if self._since_ns and now_ns - self._since_ns < SECOND:
            return
        used_ns = self._used_ns()
        if self._since_ns:
            share = (used_ns - self._used_before_ns) / (now_ns - self._since_ns)
            add("signals", (now_ns, self._source, "gateway_cpu_share", min(1.0, max(0.0, share))))
            add("signals", (now_ns, self._source, "gateway_backlog_ms", self._late_ns / MS))
        self._since_ns, self._used_before_ns, self._late_ns = now_ns, used_ns, 0
