import asyncio

import pytest

from sits.core.errors import ConfigError
from sits.sim.cpu import VirtualCpu
from sits.testing.loop import run_virtual


def test_one_worker_serves_in_order_and_knows_its_backlog():
    async def main(world):
        cpu = VirtualCpu(world)
        start = world.now_ns()
        cpu.charge(400)
        assert cpu.backlog_ns() == 400
        await asyncio.gather(*(cpu.spend(ns) for ns in (100, 200)))
        assert world.now_ns() - start == 700
        assert cpu.busy_share() == 1.0
        await asyncio.sleep(700e-9)
        assert cpu.busy_share() == 0.5

    run_virtual(main)


def test_two_workers_share_the_work():
    async def main(world):
        cpu = VirtualCpu(world, workers=2)
        start = world.now_ns()
        done = []
        await asyncio.gather(*(_timed(cpu, world, ns, done) for ns in (300, 100, 100, 100)))
        assert [t - start for t in done] == [100, 200, 300, 300]

    async def _timed(cpu, world, ns, done):
        await cpu.spend(ns)
        done.append(world.now_ns())

    run_virtual(main)


def test_work_in_the_future_is_not_busy_yet():
    async def main(world):
        cpu = VirtualCpu(world)
        cpu.charge(1000)
        await asyncio.sleep(250e-9)
        return cpu.busy_ns()

    assert run_virtual(main) == 250


def test_wrong_arguments_name_themselves():
    async def main(world):
        with pytest.raises(ConfigError, match="at least 1"):
            VirtualCpu(world, 0)
        with pytest.raises(ValueError, match="-5"):
            VirtualCpu(world).charge(-5)

    run_virtual(main)
