"""What the vLLM plug-in costs inside a real vLLM: time its wrappers add to each step, in the engine core and the worker.

usage: SITS_VLLM=VENV python benchmarks/bench_probe_real.py [--users 8] [--seconds 40]

A `sitecustomize` in vLLM's processes reads the clock outside each wrapper and again around the function within; the difference is
the wrapper's own time, with the caches as the engine leaves them and whatever else the machine does (means, not minima), and with
two of the four readings of the clock, so it is an upper bound.  The load is a closed loop of users who ask for 32 tokens; the
share is of the wall time of the loop over its steps.
"""

import argparse
import http.client
import json
import random
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from real_vllm import RealVllm, installed, missing  # noqa: E402

INSIDE = """
import functools, inspect, json, os, threading, time
import sits.telemetry.probe.patching as patching, sits.telemetry.probe.plugin as plugin
clock, rows, function_of, started = time.perf_counter_ns, {}, patching.Patches._function, plugin.started

def tell():
    def run():
        while True:
            time.sleep(1)
            with open(f"%s/{os.getpid()}.json", "w") as file:
                json.dump(rows, file)
    threading.Thread(target=run, daemon=True).start()

def _function(self, site, module, wrap):
    row = rows.setdefault(str(site), [0, 0])
    def made(function):
        if inspect.iscoroutinefunction(function):
            return wrap(function)
        @functools.wraps(function)
        def within(*a, **k):
            began = clock()
            try:
                return function(*a, **k)
            finally:
                row[1] -= clock() - began
        wrapped = wrap(within)
        def outside(*a, **k):
            began = clock()
            try:
                return wrapped(*a, **k)
            finally:
                row[1] += clock() - began
                row[0] += 1
        return outside
    return function_of(self, site, module, made)

def _started(*a):
    probe = started(*a)
    tell()
    os.register_at_fork(after_in_child=tell)
    return probe

patching.Patches._function, plugin.started = _function, _started
"""


def user(port, seed, end):
    dice = random.Random(seed)
    connection = http.client.HTTPConnection("127.0.0.1", port)
    while time.perf_counter() < end:
        prompt = [dice.randrange(5, 900) for _ in range(64)]
        body = {"model": "tiny", "prompt": prompt, "max_tokens": 32, "min_tokens": 32, "ignore_eos": True}
        connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
        connection.getresponse().read()


def load(port, users, seconds):
    end = time.perf_counter() + seconds
    threads = [threading.Thread(target=user, args=(port, seed, end)) for seed in range(users)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    time.sleep(2)  # each process writes its figures once a second


def figures(folder):
    total = {}
    for path in folder.glob("*.json"):
        for site, (calls, own_ns) in json.loads(path.read_text()).items():
            before = total.get(site, (0, 0))
            total[site] = before[0] + calls, before[1] + own_ns
    return total


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--users", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=40.0)
    options = parser.parse_args()
    if missing():
        raise SystemExit(missing())
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "sitecustomize.py").write_text(INSIDE % folder)
        with RealVllm(folder / "log", PYTHONPATH=installed(folder), SITS_PROBE_FILE="/dev/null") as vllm:
            load(vllm.port, options.users, 5)
            before = figures(folder)
            load(vllm.port, options.users, options.seconds)
            after = figures(folder)
    moved = {
        site: (calls - before.get(site, (0, 0))[0], own - before.get(site, (0, 0))[1])
        for site, (calls, own) in after.items()
    }
    for site, (calls, own_ns) in moved.items():
        if calls:
            print(f"{own_ns / calls / 1000:8.2f} us in each of {calls:6d} calls of {site}")
    [steps] = {calls for site, (calls, _) in moved.items() if site.endswith("Scheduler.schedule")}
    starts = next(calls for site, (calls, _) in moved.items() if site.endswith("assign_request_id"))
    of = "core.", "worker."
    core, worker = (
        sum(own for site, (_, own) in moved.items() if part in site) / steps / 1000 for part in of
    )
    step_us = options.seconds * 1e6 / steps
    print(
        f"{steps} steps of {step_us / 1000:.2f} ms with {starts / steps:.2f} starts each: {core:.1f} us in the engine core and"
        f" {worker:.1f} us in the worker are {100 * (core + worker) / step_us:.2f} % of a step"
    )


if __name__ == "__main__":
    main()
