"""What the simulator costs: one pinned core, CPU seconds, best of several rounds.

    python benchmarks/bench_sim.py [--cold] [--beside [--json FILE] [--page FILE]]

Prints the start of a process that has the compiled kernel on disk (and, with `--cold`, of one that has not),
`simulate` on 10,000 generated requests at three loads, and the emulated engine on the virtual loop, step by step
and coasting (uneventful stretches of steps in one call).  The engine's
figures are round numbers of the size of an 8B model on one A100; they set how long steps take, not how long
simulating them takes.

`--beside` runs only the comparison with Vidur and DynoSim (`benchmarks/sim/beside.py`).
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from sim.beside import compare, figures, page, table

from sits.core.request import Request
from sits.core.timeline import Timeline
from sits.engine.emulated import EmulatedEngine
from sits.predict.prepare import Rank
from sits.predict.steptime import StepTime
from sits.sim.cpu import Flow, VirtualCpu
from sits.sim.loop import run_virtual
from sits.sim.model import compile_kernel, simulate
from sits.sim.spec import EngineSpec
from sits.world import stream_generator

SPEC = EngineSpec(
    step=StepTime(
        source="round figures",
        dense_tokens=(1.0, 64.0, 256.0, 2048.0),
        dense_us=(9_000.0, 9_500.0, 16_000.0, 118_000.0),
        head_seqs=(1.0, 128.0),
        head_us=(350.0, 700.0),
        prefill_us=90.0,
        prefill_us_per_token=0.6,
        prefill_us_per_token_kv=0.0012,
        decode_us=250.0,
        decode_us_per_seq=3.0,
        decode_us_per_kv_token=0.09,
        skew=0.055,
        overhead_us=300.0,
        eager_us=1_500.0,
        noise_cv=0.05,
    ),
    ranks=(Rank(bandwidth=24e9),),
    blocks=27_000,
)

START = """
import time; cpu, wall = time.process_time(), time.perf_counter()
import numba; numba_s = time.process_time() - cpu
from sits.sim.model import compile_kernel
compile_kernel()
print(f"{time.process_time() - cpu:.2f} CPU-s ({numba_s:.2f} of them import numba), {time.perf_counter() - wall:.2f} s")
"""


def workload(count, per_second):
    """Lengths of the size of public conversation traces (log-normal, prompts up to 4,096), Poisson arrivals."""
    rng = stream_generator(1, "bench")
    arrivals = np.cumsum(rng.exponential(1e9 / per_second, count)).astype(np.int64)
    prompts = np.clip(rng.lognormal(6.4, 1.1, count), 1, 4096).astype(np.int64)
    outputs = np.clip(rng.lognormal(4.9, 0.9, count), 1, 1500).astype(np.int64)
    return arrivals, prompts, outputs


def best(run, rounds=5):
    """Least CPU seconds of several rounds, and the last result."""
    least, result = float("inf"), None
    for _ in range(rounds):
        start = time.process_time()
        result = run()
        least = min(least, time.process_time() - start)
    return least, result


def start_up(cache):
    env = os.environ | ({"NUMBA_CACHE_DIR": cache} if cache else {})
    return subprocess.run(
        [sys.executable, "-c", START], env=env, capture_output=True, text=True, check=True
    ).stdout.strip()


def compiled_loop():
    for per_second in (1, 3, 20):
        arrivals, prompts, outputs = workload(10_000, per_second)
        seconds, done = best(lambda a=arrivals, p=prompts, o=outputs: simulate(a, p, o, None, SPEC))
        print(
            f"simulate, 10,000 requests at {per_second}/s: {seconds:.3f} CPU-s, {10_000 / seconds:,.0f} requests/CPU-s, "
            f"{done.steps:,} steps, {done.steps / seconds / 1e6:.2f} M steps/CPU-s, {done.preemptions.sum()} preemptions"
        )


def outputs_of(count):
    return int(workload(count, 1)[2].sum())


def virtual_loop(count, per_second, interval, output_max=10_000, coasting=False):
    """CPU seconds, and what they bought: steps, or stretches of them and other steps when coasting."""
    arrivals, prompts, outputs = workload(count, per_second)
    outputs = np.minimum(outputs, output_max)

    def run():
        steps = []

        async def main(world):
            cpu = VirtualCpu(world)

            def stretch(ends_ns, tokens):
                steps.append(len(ends_ns))
                return cpu.flow(Flow(ends_ns, tokens * 1_000))

            engine = EmulatedEngine(
                "e",
                SPEC,
                world,
                lambda r: int(r.unit),
                on_step=None if coasting else steps.append,
                on_tokens=lambda tokens: cpu.charge(tokens * 1_000),
                on_flow=stretch,
                stream_interval=interval,
            )
            start = world.now_ns()

            async def one(i):
                request = Request(id=str(i), model="m", prompt_tokens=int(prompts[i]), unit=str(outputs[i]))
                async for _ in engine.generate(request, Timeline()):
                    pass

            tasks = []
            for i in range(count):
                wait = start + int(arrivals[i]) - world.now_ns()
                if wait > 0:
                    await asyncio.sleep(wait / 1e9)
                tasks.append(asyncio.ensure_future(one(i)))
            await asyncio.gather(*tasks)

        run_virtual(main)
        return len(steps)

    return best(run, rounds=3)


def engine_on_the_virtual_loop():
    # Answers of one token give the cost of a request with its one or two steps; long ones the cost of a step.
    count = 3_000
    short, short_steps = virtual_loop(count, 1, 0, output_max=1)
    long, long_steps = virtual_loop(count, 1, 0)
    print(
        f"virtual loop, {count:,} requests at 1/s: {short / count * 1e6:.0f} us a request of one token with its "
        f"{short_steps / count:.1f} steps; {(long - short) / (long_steps - short_steps) * 1e6:.1f} us a further step"
    )
    for per_second in (1, 6):
        single, steps = virtual_loop(count, per_second, 0)
        coasted, stretches = virtual_loop(count, per_second, 0, coasting=True)
        print(
            f"at {per_second}/s: {single:.2f} CPU-s step by step ({steps:,} steps), {coasted:.2f} coasting "
            f"({stretches:,} stretches): {single / coasted:.1f} times as fast, {count / coasted:,.0f} requests/CPU-s"
        )
    every, steps = virtual_loop(count, 6, 1)
    print(
        f"at 6/s with a chunk for every token: {every:.2f} CPU-s, {steps:,} steps, {outputs_of(count):,} tokens"
    )


def timers():
    async def main(world):
        loop, count = asyncio.get_running_loop(), 100_000
        done = loop.create_future()

        def tick(left):
            if left:
                loop.call_at_ns(world.now_ns() + 1_000, tick, left - 1)
            else:
                done.set_result(None)

        start = time.process_time()
        tick(count)
        await done
        timer = (time.process_time() - start) / count
        start = time.process_time()
        for _ in range(count):
            await asyncio.sleep(1e-6)
        return timer * 1e6, (time.process_time() - start) / count * 1e6

    timer, sleep = min(run_virtual(main) for _ in range(3))
    print(f"virtual loop: {timer:.1f} us a timer, {sleep:.1f} us a sleep")


def start_cpu_s():
    """CPU seconds of a process that has the compiled kernel on disk, until it can simulate."""
    return float(start_up("").split()[0])


def beside(options):
    compile_kernel()
    rows = figures(compare())
    start_s = start_cpu_s()
    print(table(rows))
    print(f"start of a process, compiled kernel on disk: {start_s:.2f} CPU-s")
    if options.json:
        Path(options.json).write_text(json.dumps({"rows": rows, "start_cpu_s": start_s}, indent=1) + "\n")
    if options.page:
        Path(options.page).write_text(page(rows, start_s))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--cold", action="store_true", help="also time a process that has to compile the kernel"
    )
    parser.add_argument("--beside", action="store_true", help="Vidur and DynoSim instead; installs them")
    parser.add_argument("--json", help="write what --beside measured to this file")
    parser.add_argument("--page", help="write docs/benchmark-sim.md to this file")
    options = parser.parse_args()
    if options.beside:
        beside(options)
        sys.exit()
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    compile_kernel()
    print("start, compiled code on disk:", start_up(""))
    if options.cold:
        with tempfile.TemporaryDirectory() as cache:
            print("start, nothing on disk:", start_up(cache))
    timers()
    compiled_loop()
    engine_on_the_virtual_loop()
