"""Laws of the virtual CPU: work is conserved, order is first come first served."""

import asyncio
from bisect import bisect_right

from hypothesis import given, settings
from hypothesis import strategies as st

from sits.sim.cpu import Flow, VirtualCpu
from sits.testing.loop import run_virtual

jobs = st.lists(st.tuples(st.integers(0, 2_000), st.integers(0, 3_000)), min_size=1, max_size=40)


@settings(max_examples=150, deadline=None)
@given(jobs, st.integers(1, 4))
def test_a_worker_idles_only_when_no_work_waits(work, workers):
    """Compared with a list of workers looked up one by one: the textbook G/G/k recursion."""

    async def main(world):
        cpu = VirtualCpu(world, workers)
        start = world.now_ns()
        free = [start] * workers
        for gap, ns in work:
            await asyncio.sleep(gap / 1e9)
            now = world.now_ns()
            soonest = min(range(workers), key=free.__getitem__)
            assert cpu.backlog_ns() == max(0, free[soonest] - now)
            free[soonest] = max(now, free[soonest]) + ns
            assert cpu.charge(ns) == free[soonest]
        end = max(free)
        await asyncio.sleep((end - world.now_ns()) / 1e9)
        assert cpu.busy_ns() == sum(ns for _, ns in work)
        assert cpu.backlog_ns() == 0
        assert 0.0 <= cpu.busy_share() <= 1.0

    run_virtual(main)


@settings(max_examples=100, deadline=None)
@given(jobs, st.integers(1, 3))
def test_spending_waits_for_exactly_the_charged_time(work, workers):
    async def main(world):
        cpu, twin = VirtualCpu(world, workers), VirtualCpu(world, workers)
        ends: list[tuple[int, int]] = []

        async def job(number, ns):
            due = twin.charge(ns)
            await cpu.spend(ns)
            assert world.now_ns() == due
            ends.append((world.now_ns(), number))

        running = []
        for number, (gap, ns) in enumerate(work):
            await asyncio.sleep(gap / 1e9)
            running.append(asyncio.ensure_future(job(number, ns)))
            await asyncio.sleep(0)
        await asyncio.gather(*running)
        if workers == 1:
            assert [number for _, number in sorted(ends)] == list(range(len(work)))

    run_virtual(main)


# Few nanoseconds, so that jobs, charges and looks often meet.
flows = st.lists(
    st.tuples(
        st.integers(0, 30),  # when it comes
        st.lists(st.integers(0, 9), min_size=1, max_size=12),  # its gaps
        st.integers(0, 9),  # work of a job
        st.none() | st.tuples(st.integers(0, 90), st.integers(0, 4)),  # cut so late, keeping so many more
    ),
    max_size=5,
)
charges = st.lists(st.tuples(st.integers(0, 90), st.integers(0, 12)), max_size=12)
looks = st.lists(st.integers(0, 120), max_size=8)


@settings(max_examples=300, deadline=None)
@given(flows, charges, looks, st.integers(1, 4))
def test_a_flow_is_the_same_work_charged_at_its_times(flows, charges, looks, workers):
    """Compared with the recursion over all jobs in order of time, cuts known beforehand; whoever looks, and when."""
    jobs = []  # time, flows before charges, number, work
    coming = []
    for number, (begin, gaps, ns, cut) in enumerate(sorted(flows, key=lambda flow: flow[0])):
        times, at = [], begin + 1
        for gap in gaps:
            at += gap
            times.append(at)
        kept = times
        if cut is not None and cut[0] >= begin:
            kept = times[: bisect_right(times, cut[0]) + cut[1]]
            coming.append((cut[0], 1, number, len(kept)))
        coming.append((begin, 0, number, (times, ns)))
        jobs += [(at, 0, number, ns) for at in kept]
    charges = sorted(charges)
    jobs += [(at, 1, number, ns) for number, (at, ns) in enumerate(charges)]
    coming += [(at, 2, number, ns) for number, (at, ns) in enumerate(charges)]
    coming += [(at, 3, number, 0) for number, at in enumerate(looks)]
    jobs.sort()

    def expected(now):
        """Free times, and work done, of the jobs up to `now`."""
        free, work = [0] * workers, 0
        for at, _, _, ns in jobs:
            if at <= now:
                soonest = min(range(workers), key=free.__getitem__)
                free[soonest] = max(at, free[soonest]) + ns
                work += ns
        return max(0, min(free) - now), work - sum(max(0, f - now) for f in free)

    async def main(world):
        cpu, begun = VirtualCpu(world, workers), world.now_ns()
        made = {}

        async def at(ns):
            wait_ns = begun + ns - world.now_ns()
            if wait_ns > 0:
                await asyncio.sleep(wait_ns / 1e9)

        for due, kind, number, what in sorted(coming, key=lambda event: event[:3]):
            await at(due)
            if kind == 0:
                times, ns = what
                made[number] = cpu.flow(Flow([begun + t for t in times], ns))
            elif kind == 1:
                made[number].cut(what)
            elif kind == 2:
                cpu.charge(what)
            else:
                assert (cpu.backlog_ns(), cpu.busy_ns()) == expected(due)
        await at(60_000)
        assert (cpu.backlog_ns(), cpu.busy_ns()) == (0, sum(ns for *_, ns in jobs))

    run_virtual(main)
