"""Runs inside DynoSim's own virtual environment: its offline replay of a trace; prints one JSON line.

python dynosim_replay.py TRACE.jsonl
"""

import json
import sys
import time
from pathlib import Path

from dynamo.replay import run_trace_replay


def peak_mb():
    """Most memory this program ever had; `ru_maxrss` would count what its parent had before it started this."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) // 1024


start = time.process_time()
report = run_trace_replay([sys.argv[1]], trace_block_size=512)
cpu_s = time.process_time() - start
print(
    json.dumps(
        {
            "cpu_s": cpu_s,
            "rss_mb": peak_mb(),
            "simulated_s": report.summary["duration_ms"] / 1000.0,
        }
    )
)
