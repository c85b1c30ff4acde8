import asyncio

import pytest

from sits.core.errors import BugError
from sits.core.ports import World
from sits.sim.loop import EPOCH_NS, START_NS, DeadlockError, VirtualLoop, VirtualWorld, run_virtual


def test_time_jumps_to_whole_nanoseconds():
    async def main(world):
        seen = []
        for ns in (1, 999_999_999, 86_400_000_000_000, 3):
            await asyncio.sleep(ns / 1e9)
            seen.append(world.now_ns())
        return seen

    assert run_virtual(main) == [
        START_NS + 1,
        START_NS + 10**9,
        START_NS + 86_401_000_000_000,
        START_NS + 86_401_000_000_003,
    ]


def test_timers_one_nanosecond_apart_run_apart_and_in_order():
    async def main(world):
        order = []
        loop = asyncio.get_running_loop()
        start = 100_000 * 10**9  # a day later, where floats are coarser
        for ns in (3, 1, 2, 0):
            loop.call_at_ns(start + ns, lambda n=ns: order.append((n, world.now_ns() - start)))
        await asyncio.sleep(200_000)
        return order

    assert run_virtual(main) == [(0, 0), (1, 1), (2, 2), (3, 3)]


def test_time_stands_still_while_anything_can_run():
    async def main(world):
        before = world.now_ns()
        for _ in range(100):
            await asyncio.sleep(0)
        return world.now_ns() - before

    assert run_virtual(main) == 0


def test_cancelled_timers_do_not_move_time():
    async def main(world):
        loop = asyncio.get_running_loop()
        loop.call_later(5, lambda: None).cancel()
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(loop.create_future(), 9)
        return world.now_ns()

    assert run_virtual(main) == START_NS + 9 * 10**9


def test_a_deadlock_says_who_waits_where():
    async def stuck():
        await asyncio.get_running_loop().create_future()

    async def main(world):
        task = asyncio.create_task(stuck(), name="the-stuck-one")
        await asyncio.sleep(2)
        await task

    with pytest.raises(DeadlockError, match=r"virtual 3\.0.* the-stuck-one \(.*stuck line \d+\)"):
        run_virtual(main)


def test_errors_and_results_come_through_and_leftovers_are_cancelled():
    seen = []

    async def background():
        try:
            await asyncio.sleep(1e6)
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    async def main(world):
        world.task = asyncio.create_task(background())
        await asyncio.sleep(1)
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        run_virtual(main)
    assert seen == ["cancelled"]


def test_async_generators_are_closed():
    seen = []

    async def numbers():
        try:
            yield 1
            yield 2
        finally:
            seen.append("closed")

    async def main(world):
        world.kept = numbers()
        return await anext(world.kept)

    assert run_virtual(main) == 1
    assert seen == ["closed"]


def test_the_world_is_a_world_and_its_dice_are_named():
    async def main(world):
        assert isinstance(world, World)
        assert world.wall_ns() == EPOCH_NS + world.now_ns()
        world.rng("other").random(10)
        return world.rng("a").random(), world.rng("a") is world.rng("a")

    first = run_virtual(main, seed=4)
    assert first == run_virtual(main, seed=4)
    assert first[0] != run_virtual(main, seed=5)[0]
    assert first[1]


def test_the_same_program_runs_in_the_same_order():
    async def main(world):
        log = []

        async def worker(name):
            for _ in range(20):
                await asyncio.sleep(float(world.rng("naps").integers(0, 3)))
                log.append((name, world.now_ns()))

        await asyncio.gather(*(worker(n) for n in range(10)))
        return log

    assert run_virtual(main, 1) == run_virtual(main, 1)
    assert run_virtual(main, 1) != run_virtual(main, 2)


def test_time_beyond_a_floats_nanoseconds_is_refused():
    async def main(world):
        await asyncio.sleep(1e8)

    with pytest.raises(BugError, match="virtual time would pass"):
        run_virtual(main)


def test_a_world_can_be_made_for_a_loop_of_ones_own():
    loop = VirtualLoop()
    try:
        world = VirtualWorld(loop, seed=3)
        loop.run_until_complete(asyncio.sleep(1.5))
        assert world.now_ns() == START_NS + 1_500_000_000
        assert loop.jumps == 1
    finally:
        loop.close()
