"""CPU nanoseconds one `Recorder.record` takes, in a loop on one pinned core.

usage: python benchmarks/bench_recorder.py [rows] [repeats]

Thread CPU time over `rows` calls (what a busy worker records between two flushes) with a worker's settings of the garbage
collector, best and median of `repeats`; an empty loop of the
same shape is subtracted.  Also the cost of marking 17 points, of packing a row for the keeper and of making it columns.
"""

import gc
import os
import statistics
import sys
import time

import msgspec

from sits.app.up.pauses import THRESHOLDS
from sits.core.timeline import Timeline
from sits.telemetry.packing import pack
from sits.telemetry.recorder import LABELS, Recorder
from sits.telemetry.tables import REQUESTS
from sits.world import RealWorld


def cpu_ns_a_call(call, rows):
    start = time.thread_time_ns()
    for _ in range(rows):
        call()
    full = time.thread_time_ns() - start
    start = time.thread_time_ns()
    for _ in range(rows):
        pass
    return (full - (time.thread_time_ns() - start)) / rows


def main():
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 2_000
    repeats = int(sys.argv[2]) if len(sys.argv) > 2 else 100
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    line = Timeline()
    for point in range(20):
        line.mark(point, 10**15 + point * 1000)

    def mark_all():
        other = Timeline()
        for point in range(17):
            other.mark(point, 10**15)

    record_ns, pack_ns, drain_ns = [], [], []
    encode = msgspec.msgpack.Encoder().encode
    recorder = Recorder(rows, RealWorld(), "bench")

    labels = {name: 0 if REQUESTS[name] == "INTEGER" else "default" for name in LABELS}
    row = tuple({**labels, "id": "req-000001", "model": "llama-3-70b", "outcome": "completed"}.values())

    def one():
        recorder.record((*row, line.at.tobytes(), line.how))

    for _ in range(repeats):
        record_ns.append(cpu_ns_a_call(one, rows))
        taken = recorder.take()
        start = time.thread_time_ns()
        for first in range(0, rows, 160):
            encode(("rows", 0, ("requests", "bench", pack(taken[first : first + 160]))))
        pack_ns.append((time.thread_time_ns() - start) / rows)
        for _ in range(rows):
            one()
        start = time.thread_time_ns()
        drained = recorder.drain()
        drain_ns.append((time.thread_time_ns() - start) / rows)
        assert len(drained["id"]) == rows
    mark_ns = [cpu_ns_a_call(mark_all, rows // 10) for _ in range(repeats)]
    print(
        f"record      {min(record_ns):7.0f} ns best  {statistics.median(record_ns):7.0f} ns median  (bar 700)"
    )
    print(f"17 marks    {min(mark_ns):7.0f} ns best  {statistics.median(mark_ns):7.0f} ns median")
    print(
        f"pack a row  {min(pack_ns):7.0f} ns best  {statistics.median(pack_ns):7.0f} ns median  (off the path, for the keeper)"
    )
    print(
        f"drain a row {min(drain_ns):7.0f} ns best  {statistics.median(drain_ns):7.0f} ns median  (off the path)"
    )
    print(f"dropped     {recorder.dropped}")


if __name__ == "__main__":
    main()
