"""Our simulator on a trace, in a process of its own; prints one JSON line.

    python ours_replay.py TRACE.csv MAX_SEQS [PROFILE]

With PROFILE (what the names of a GPU's layer tables have in common): step times from the tables, asynchronous scheduling, prefix
caching, as in the accuracy page.  Without: a step time in coefficients and the host's chain of stages.
"""

import csv
import json
import sys
import time
from pathlib import Path

import numpy as np

from sits.predict.prepare import Rank
from sits.predict.profile import load_profile
from sits.predict.steptime import StepTime
from sits.sim.forecast import engine
from sits.sim.model import compile_kernel, simulate
from sits.sim.spec import EngineSpec

ROUNDS = 7


def peak_mb():
    """Most memory this program ever had; `ru_maxrss` would count what its parent had before it started this."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) // 1024


def coefficients(max_seqs):
    """About an 8B model on one A100: the size of the steps, not of the time they take to simulate, depends on it."""
    return EngineSpec(
        step=StepTime(
            source="round figures",
            dense_tokens=(1.0, 64.0, 256.0, 2048.0),
            dense_us=(9_000.0, 9_500.0, 16_000.0, 88_000.0),
            head_seqs=(1.0, 128.0),
            head_us=(350.0, 700.0),
            prefill_us=90.0,
            prefill_us_per_token=0.6,
            prefill_us_per_token_kv=0.0012,
            decode_us=250.0,
            decode_us_per_seq=3.0,
            decode_us_per_kv_token=0.09,
            skew=0.02,
            overhead_us=300.0,
            eager_us=1_500.0,
            noise_cv=0.0,
        ),
        ranks=(Rank(bandwidth=24e9),),
        blocks=27_000,
        max_num_seqs=max_seqs,
    )


def main(trace, max_seqs, profile=""):
    with Path(trace).open() as lines:
        rows = list(csv.DictReader(lines))
    arrivals = np.array([round(float(row["Time"]) * 1e9) for row in rows])
    prompts = np.array([int(row["PromptTokenCount"]) for row in rows])
    outputs = np.array([int(row["CompletionTokenCount"]) for row in rows])
    spec = coefficients(int(max_seqs))
    if profile:
        spec = engine(
            load_profile(profile, 32, eager_us=25_000.0),
            blocks=27_000,
            block_size=16,
            max_num_seqs=int(max_seqs),
            max_num_batched_tokens=2048,
            prefix_caching=True,
            async_scheduling=True,
        )
    compile_kernel()
    seconds = []
    for _ in range(ROUNDS):
        start = time.process_time()
        done = simulate(arrivals, prompts, outputs, None, spec)
        seconds.append(time.process_time() - start)
    print(
        json.dumps(
            {
                "cpu_s": float(np.median(seconds)),
                "cpu_s_range": [min(seconds), max(seconds)],
                "rss_mb": peak_mb(),
                "simulated_s": done.end_ns / 1e9,
                "steps": done.steps,
            }
        )
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
