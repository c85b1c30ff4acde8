"""The CPU of one gateway process as a queue: work on `workers` cores, first come first served.

What it knows: each worker is busy until some time; new work goes to the worker that is free first and is done
`max(now, free) + work` later.  That recursion is the G/G/k queue with FIFO order (Kiefer and Wolfowitz 1955),
exact and without an event per job.  Work is conserved: a worker idles only when no work is waiting.

Work whose times are known in advance comes as a `Flow`: jobs of one size at ascending times.  It is taken up
in the order of time whenever somebody looks, so jobs whose time has not come may still be cut.  At one instant
the jobs of flows come before work charged directly, in the order their flows came.

Deliberately absent: time slicing, priorities and preemption.  A gateway process is an event loop, and an
event loop finishes a callback before it starts the next.
"""

import asyncio
import heapq

from sits.core.errors import ConfigError
from sits.core.ports import World


class Flow:
    """Jobs of `ns` each at the ascending times `at_ns`, from now on; `cut` drops the last of them."""

    __slots__ = ("at_ns", "next", "ns")

    def __init__(self, at_ns: list[int], ns: int) -> None:
        self.at_ns = at_ns
        self.ns = ns
        self.next = 0

    def cut(self, keep: int) -> None:
        """Keep the first `keep` jobs only: at least all those whose time has come, for they may have been done."""
        del self.at_ns[keep:]


class VirtualCpu:
    """FIFO work on `workers` workers; `spend` waits for its turn and its work, `charge` only adds work."""

    def __init__(self, world: World, workers: int = 1) -> None:
        if workers < 1:
            raise ConfigError(
                f"{workers} workers can do no work", field="workers", value=workers, hint="at least 1"
            )
        self.world = world
        self.workers = workers
        self._start_ns = world.now_ns()
        self._free_ns = [self._start_ns] * workers
        self._work_ns = 0
        self._flows: list[tuple[int, int, Flow]] = []
        self._flow_count = 0

    def flow(self, flow: Flow) -> Flow:
        """Take up the jobs of `flow` at their times; returns it, to be cut."""
        if flow.at_ns:
            self._flow_count += 1
            heapq.heappush(self._flows, (flow.at_ns[0], self._flow_count, flow))
        return flow

    def _catch_up(self, now_ns: int) -> None:
        """Take up all jobs of flows up to now, in the order of time.

        The busiest loop of a simulated gateway: `_add` is written out here, which saves a third of it.
        """
        flows, free_ns, single = self._flows, self._free_ns, self.workers == 1
        work_ns = 0
        while flows and flows[0][0] <= now_ns:
            at_ns, number, flow = flows[0]
            times, place, ns = flow.at_ns, flow.next, flow.ns
            if place < len(times):
                soonest = free_ns[0]
                done_ns = (at_ns if at_ns > soonest else soonest) + ns  # noqa: FURB136  (max() is a call)
                if single:
                    free_ns[0] = done_ns
                else:
                    heapq.heapreplace(free_ns, done_ns)
                work_ns += ns
                place = flow.next = place + 1
            if place < len(times):
                heapq.heapreplace(flows, (times[place], number, flow))
            else:
                heapq.heappop(flows)
        self._work_ns += work_ns

    def _add(self, at_ns: int, ns: int) -> int:
        free_ns = self._free_ns
        done_ns = max(at_ns, free_ns[0]) + ns
        if self.workers == 1:
            free_ns[0] = done_ns
        else:
            heapq.heapreplace(free_ns, done_ns)
        self._work_ns += ns
        return done_ns

    def charge(self, ns: int) -> int:
        """Add `ns` of work without waiting; returns the time it will be done, ns."""
        if ns < 0:
            raise ValueError(f"work is zero or more ns, not {ns}")
        now_ns = self.world.now_ns()
        self._catch_up(now_ns)
        return self._add(now_ns, ns)

    async def spend(self, ns: int) -> None:
        """Wait until the least-loaded worker has done what it has and then `ns` of this."""
        wait_ns = self.charge(ns) - self.world.now_ns()
        if wait_ns > 0:
            await asyncio.sleep(wait_ns / 1e9)

    def backlog_ns(self) -> int:
        """How long new work would wait before a worker takes it, ns."""
        now_ns = self.world.now_ns()
        self._catch_up(now_ns)
        return max(0, self._free_ns[0] - now_ns)

    def busy_ns(self) -> int:
        """Worker time spent so far, ns: all work charged, less what lies in the future."""
        now_ns = self.world.now_ns()
        self._catch_up(now_ns)
        return self._work_ns - sum(max(0, free - now_ns) for free in self._free_ns)

    def busy_share(self) -> float:
        """Share of worker time that was busy since this was made, 0..1; 0 when no time has passed."""
        passed = self.world.now_ns() - self._start_ns
        return self.busy_ns() / (passed * self.workers) if passed else 0.0
