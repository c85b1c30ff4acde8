"""A strand runs at once, goes on inside the wake-up, and ends once; a Waiter serves strands and tasks alike."""

import asyncio

import pytest

from sits.engine.waiter import Waiter
from sits.gateway.strand import Strand


def live(test):
    def run():
        asyncio.run(test())

    run.__name__ = test.__name__
    return run


class Told(list):
    def __call__(self, error):
        self.append(error)


@live
async def test_it_runs_at_once_and_goes_on_inside_the_wake_up():
    waiter, steps, told = Waiter(), [], Told()

    async def work():
        steps.append(1)
        await waiter
        steps.append(2)
        await waiter
        steps.append(3)

    strand = Strand(work(), told)
    assert (steps, told) == ([1], [])
    waiter.wake()
    assert steps == [1, 2]
    waiter.wake()
    assert (steps, told, strand.ended) == ([1, 2, 3], [None], True)
    waiter.wake()  # nobody waits
    strand.cancel()  # over
    assert told == [None]


@live
async def test_an_error_of_the_wait_is_raised_where_it_waits():
    waiter, told = Waiter(), Told()

    async def work():
        with pytest.raises(TimeoutError):
            await waiter
        await waiter

    Strand(work(), told)
    waiter.wake(TimeoutError())
    assert told == []
    waiter.wake()  # the error was for one wait
    assert told == [None]


@pytest.mark.parametrize("kind", ["waiter", "future", "sleep"])
def test_a_cancelled_one_ends_at_once_and_nothing_wakes_it_later(kind):
    @live
    async def run():
        waiter, told, ended = Waiter(), Told(), []
        future = asyncio.get_running_loop().create_future()

        async def work():
            try:
                await (asyncio.sleep(60) if kind == "sleep" else {"waiter": waiter, "future": future}[kind])
            finally:
                ended.append(True)

        strand = Strand(work(), told)
        strand.cancel("left")
        assert ended == [True]
        assert isinstance(told[0], asyncio.CancelledError)
        assert told[0].args == ("left",)
        waiter.wake()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert len(told) == 1

    run()


@live
async def test_cancelled_while_it_runs_it_gets_it_at_its_next_wait():
    told, waiter, seen = Told(), Waiter(), []
    holder = []

    async def work():
        await waiter
        holder[0].cancel("now")
        seen.append("still running")
        await waiter
        seen.append("never")

    holder.append(Strand(work(), told))
    waiter.wake()
    assert seen == ["still running"]
    assert isinstance(told[0], asyncio.CancelledError)


@live
async def test_futures_and_bare_yields_are_waited_for():
    told, loop = Told(), asyncio.get_running_loop()
    future = loop.create_future()

    async def work():
        await asyncio.sleep(0)
        assert await future == 7
        raise ValueError("x")

    Strand(work(), told)
    loop.call_soon(future.set_result, 7)
    while not told:  # noqa: ASYNC110
        await asyncio.sleep(0)
    assert isinstance(told[0], ValueError)


@live
async def test_a_task_waits_for_a_waiter_as_for_a_future():
    waiter, seen = Waiter(), []

    async def work():
        await waiter
        seen.append(1)

    task = asyncio.ensure_future(work())
    await asyncio.sleep(0)
    waiter.wake()
    assert seen == []  # not inside the call
    await task
    assert seen == [1]
    task = asyncio.ensure_future(work())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not waiter.waiting
