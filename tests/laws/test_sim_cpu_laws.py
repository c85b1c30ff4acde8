"""Laws of the virtual CPU: work is conserved, order is first come first served."""

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from sits.sim.cpu import VirtualCpu
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
