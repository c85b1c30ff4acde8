"""What the sampling profiler costs and how true its shares are: `python benchmarks/bench_profile.py [--py-spy PATH]`.

Cost: CPU seconds (user + system, of the process) of fixed work, with and without sampling, alternating, the minimum of each; pinned to one
core.  The work is 25 frames deep, as a gateway's is.  `own` is what the sampler says of itself; the difference of minima has the noise of
the machine in it, which is told as that between two halves of the runs without sampling.

Truth: three kinds of work (Python, a C function that lets go of the interpreter, one that does not) whose CPU time is measured by the
thread's clock around each call; beside it what each way of sampling says: this profiler, a thread that asks
`sys._current_frames()`, one sample a handled `ITIMER_PROF`, and py-spy where there is one.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from pathlib import Path

from sits.telemetry.profile import folded
from sits.telemetry.profile.sampler import Sampler

BLOB = bytes(range(256)) * 24
TEXT = "[" + "1," * 500 + "1]"


def python():
    total = 0
    for i in range(15_000):
        total += i * i
    return total


def releasing():
    for _ in range(10):
        zlib.compress(BLOB, 6)


def holding():
    for _ in range(30):
        json.loads(TEXT)


def long_call():
    sum(range(1_500_000))


KINDS = (python, releasing, holding, long_call)


def deep(function, depth=20):
    return deep(function, depth - 1) if depth else function()


def work(rounds, used=None):
    for number in range(rounds):
        for kind in KINDS if number % 20 == 0 else KINDS[:3]:
            since = time.thread_time_ns()
            deep(kind)
            if used is not None:
                used[kind.__name__] = used.get(kind.__name__, 0) + time.thread_time_ns() - since


def shares(seen):
    total = sum(seen.values()) or 1
    return {kind.__name__: seen.get(kind.__name__, 0) / total for kind in KINDS}


def by_sampler(rounds):
    sampler, used = Sampler(100), {}
    sampler.start()
    work(rounds, used)
    sampler.stop()
    batch, seen, count = sampler.take(), {}, 0
    for ns, times, _, _, places in batch["samples"]:
        count += times
        for kind in KINDS:
            if any(batch["frames"][place][0] == kind.__name__ for place in places):
                seen[kind.__name__] = seen.get(kind.__name__, 0) + ns
    return used, seen, count


def note(seen, frame):
    while frame is not None:
        if frame.f_code.co_name in {kind.__name__ for kind in KINDS}:
            seen[frame.f_code.co_name] = seen.get(frame.f_code.co_name, 0) + 1
        frame = frame.f_back


def by_thread(rounds):
    used, seen, stop, main = {}, {}, threading.Event(), threading.main_thread().ident

    def look():
        while not stop.wait(0.01):
            note(seen, sys._current_frames()[main])

    thread = threading.Thread(target=look)
    thread.start()
    work(rounds, used)
    stop.set()
    thread.join()
    return used, seen, sum(seen.values())


def by_itimer(rounds):
    used, seen = {}, {}
    signal.signal(signal.SIGPROF, lambda _, frame: note(seen, frame))
    signal.setitimer(signal.ITIMER_PROF, 0.01, 0.01)
    work(rounds, used)
    signal.setitimer(signal.ITIMER_PROF, 0)
    signal.signal(signal.SIGPROF, signal.SIG_IGN)
    return used, seen, sum(seen.values())


def by_py_spy(rounds, py_spy):
    with tempfile.TemporaryDirectory() as place:
        out, told = Path(place, "raw"), Path(place, "used")
        command = [py_spy, "record", "-r", "100", "-f", "raw", "-o", str(out), "--", sys.executable, __file__]
        subprocess.run(
            [*command, "--only-work", str(rounds), "--told", str(told)], check=True, capture_output=True
        )
        rows = [row for row in out.read_text().split("\n") if row.rpartition(" ")[2].isdecimal()]
        profile, seen = folded.decode("\n".join(rows)), {}
        for sample in profile.samples:
            for kind in KINDS:
                if any(frame.function == kind.__name__ for frame in sample.stack):
                    seen[kind.__name__] = seen.get(kind.__name__, 0) + sample.count
        return json.loads(told.read_text()), seen, sum(seen.values())


def cost(rounds, repeats, hz):
    plain, with_it, own = [], [], []
    for _ in range(repeats):
        since = time.process_time_ns()
        work(rounds)
        plain.append(time.process_time_ns() - since)
        sampler = Sampler(hz)
        sampler.start()
        since = time.process_time_ns()
        work(rounds)
        sampler.take()
        with_it.append(time.process_time_ns() - since)
        own.append(sampler.own_ns or 0)
        sampler.stop()
    return plain, with_it


def cost_own(rounds, hz):
    sampler = Sampler(hz)
    sampler.start()
    since = time.process_time_ns()
    work(rounds)
    used = time.process_time_ns() - since
    before = time.process_time_ns()
    own = sampler.take()["own_ns"]
    taking = time.process_time_ns() - before
    sampler.stop()
    return own / used, taking / used


def main():
    options = argparse.ArgumentParser()
    options.add_argument("--py-spy", default=shutil.which("py-spy"))
    options.add_argument("--repeats", type=int, default=12)
    options.add_argument("--only-work", type=int)
    options.add_argument("--told")
    given = options.parse_args()
    if given.only_work:
        used = {}
        work(given.only_work, used)
        Path(given.told).write_text(json.dumps(used))
        return
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    for hz in (100, 1000):
        plain, with_it = cost(150, given.repeats, hz)
        halves = abs(min(plain[::2]) / min(plain[1::2]) - 1)
        own, taking = cost_own(500, hz)
        print(
            f"{hz:5} Hz: {min(with_it) / min(plain) - 1:+.2%} CPU (minima of {given.repeats} x {min(plain) / 1e9:.2f} s; "
            f"two halves without sampling differ by {halves:.2%}); at ticks {own:.2%}, names {taking:.2%}"
        )
    print(
        "shares, %:        " + "".join(f"{kind.__name__:>14}" for kind in KINDS) + "   largest error, points"
    )
    ways = {"this profiler": by_sampler, "thread": by_thread, "ITIMER_PROF": by_itimer}
    if given.py_spy:
        ways["py-spy"] = lambda rounds: by_py_spy(rounds, given.py_spy)
    for name, way in ways.items():
        used, seen, count = way(2500)
        true, said = shares(used), shares(seen)
        worst = max(abs(true[kind] - said[kind]) for kind in true)
        print(f"{'true':18}" + "".join(f"{value:14.1%}" for value in true.values()))
        print(
            f"  {name:16}"
            + "".join(f"{value:14.1%}" for value in said.values())
            + f"{100 * worst:10.1f}   ({count} samples)"
        )


if __name__ == "__main__":
    main()
