"""The world: streams depend on seed and name only, clocks are the machine's."""

import os
import subprocess
import sys

import numpy as np

from sits.core.ports import World
from sits.sim.loop import run_virtual
from sits.world import RealWorld, stream_generator


def draws(generator, count=8):
    return generator.integers(0, 2**63, count).tolist()


def test_a_stream_is_a_function_of_seed_and_name():
    assert draws(stream_generator(7, "load")) == draws(stream_generator(7, "load"))
    assert draws(stream_generator(7, "load")) != draws(stream_generator(8, "load"))
    assert draws(stream_generator(7, "load")) != draws(stream_generator(7, "loae"))


def test_drawing_more_in_one_stream_does_not_move_another():
    quiet, busy = RealWorld(3), RealWorld(3)
    busy.rng("faults").random(10_000)
    busy.rng("another")
    assert draws(quiet.rng("load")) == draws(busy.rng("load"))


def test_a_stream_goes_on_where_it_was():
    world = RealWorld(3)
    first, second = draws(world.rng("load")), draws(world.rng("load"))
    assert first + second == draws(stream_generator(3, "load"), 16)


def test_streams_are_not_correlated():
    numbers = np.array([stream_generator(1, f"s{i}").random(2000) for i in range(8)])
    correlation = np.corrcoef(numbers) - np.eye(8)
    assert np.abs(correlation).max() < 0.1


def test_streams_do_not_depend_on_the_process():
    code = "from sits.world import stream_generator as s; print(s(5, 'load').integers(0, 2**63, 8).tolist())"
    for hash_seed in ("1", "2"):
        shown = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        )
        assert shown.stdout.strip() == str(draws(stream_generator(5, "load")))


def test_the_real_world_is_a_world_whose_clock_never_goes_back():
    world = RealWorld()
    assert isinstance(world, World)
    times = [world.now_ns() for _ in range(100)]
    assert times == sorted(times)
    assert world.wall_ns() > 1_600_000_000 * 10**9


def test_a_nonce_is_nobody_elses_and_a_virtual_worlds_repeats_itself():
    assert len({RealWorld(seed=1).nonce() for _ in range(100)}) == 100
    assert all(0 <= RealWorld().nonce() < 2**64 for _ in range(100))

    async def two(world):
        return [world.nonce(), world.nonce()]

    first, second = run_virtual(two, seed=3), run_virtual(two, seed=3)
    assert first == second != run_virtual(two, seed=4)
    assert first[0] != first[1]


def test_a_world_loads_no_numbers_before_it_draws_from_a_stream():
    code = "import sys, sits.world; sits.world.RealWorld().nonce(); print('numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
