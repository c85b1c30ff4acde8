"""What the vLLM plug-in costs: CPU nanoseconds it adds to a step and to a request, against steps a real vLLM was recorded to take.

usage: python benchmarks/bench_probe.py [--rounds 40]

The wrappers run around functions that do nothing, with and without them in turn, in a package with vLLM's names (`tests/vllm_fake.py`);
the difference of the minima is theirs.  `a step` starts no request, as most do; `a request` is all three processes of one, its spans queued.
Their JSON is made in threads beside (`json`, counted as well: it competes for the interpreter).  Shares are of the recorded steps of
`tests/data/engines/recordings`: of the shortest tenth, a median one, and all of them with the requests they started.
"""

import argparse
import asyncio
import csv
import gzip
import importlib
import sys
import tempfile
import time
from pathlib import Path

from sits.telemetry.probe.known import VERSIONS
from sits.telemetry.probe.plugin import started
from sits.telemetry.spans_json import encoded

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

import vllm_fake  # noqa: E402

HEADERS = {"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}
DECODING = 16


def cpu_ns(call, times):
    start = time.thread_time_ns()
    for _ in range(times):
        call()
    return (time.thread_time_ns() - start) / times


class Engine:
    """The small vLLM, with `DECODING` requests that only decode."""

    def __init__(self):
        def of(module, name):
            return getattr(importlib.import_module(f"vllm.v1.{module}"), name)

        self.core = of("core.sched.scheduler", "Scheduler")()
        self.runner = of("worker.gpu_model_runner", "GPUModelRunner")()
        self.llm = of("engine.async_llm", "AsyncLLM")(self.core)
        self.loop = asyncio.new_event_loop()
        self.prompt = {"type": "token", "prompt_token_ids": [1], "arrival_time": time.time()}
        for number in range(DECODING):
            self.ask(f"first-{number}")
        self.step()

    def ask(self, name):
        self.loop.run_until_complete(self.llm.add_request(name, self.prompt, None, trace_headers=HEADERS))

    def step(self):
        output = self.core.schedule()
        self.runner.execute_model(output)
        self.core.update_from_output(output, None)

    def request(self):
        """One request and the step that starts it."""
        self.ask("next")
        self.step()
        self.core.running.pop()


def steps():
    """Recorded steps: (ms, requests started), by recording."""
    for path in sorted((ROOT / "tests/data/engines/recordings").glob("*/steps.csv.gz")):
        with gzip.open(path, "rt") as file:
            rows = [(float(row["elapsed_ms"]), int(row["ctx_reqs"])) for row in csv.DictReader(file)]
        yield path.parent.name, rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=40)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as folder:
        vllm_fake.write(Path(folder))
        sys.path.insert(0, folder)
        engine = Engine()
        spans = []
        best = dict.fromkeys(("step", "step probed", "request", "request probed"), float("inf"))
        for _ in range(rounds):
            best["step"] = min(best["step"], cpu_ns(engine.step, 300))
            best["request"] = min(best["request"], cpu_ns(engine.request, 300))
            probe = started(VERSIONS["0.32"], "0.32.0", {"SITS_PROBE_FILE": "/dev/null"})
            probe.seeing.put = spans.append
            spans.clear()
            best["step probed"] = min(best["step probed"], cpu_ns(engine.step, 300))
            best["request probed"] = min(best["request probed"], cpu_ns(engine.request, 300))
            probe.patches.undo()
        of_one = spans[-3:]
        json_ns = min(cpu_ns(lambda: encoded({}, of_one * 20), 20) / 20 for _ in range(rounds))
    a_step = best["step probed"] - best["step"]
    a_request = best["request probed"] - best["request"] - a_step
    print(f"a step of {DECODING} decoding requests: {a_step / 1000:.2f} us in two processes")
    print(
        f"a request: {a_request / 1000:.1f} us in three processes, and {json_ns / 1000:.1f} us of JSON in their threads"
    )
    for name, rows in steps():
        times = sorted(ms for ms, _ in rows)
        cost_ms = (a_step * len(rows) + (a_request + json_ns) * sum(started for _, started in rows)) / 1e6
        tenth, median = times[len(times) // 10], times[len(times) // 2]
        shares = [f"{a_step / 1e4 / ms:.3f} % of {ms:.1f} ms" for ms in (tenth, median)]
        print(
            f"{name}: {len(rows)} steps: a step costs {shares[0]} (shortest tenth), {shares[1]} (median);"
            f" with {sum(s for _, s in rows)} starts {100 * cost_ms / sum(times):.3f} % of all step time"
        )


if __name__ == "__main__":
    main()
