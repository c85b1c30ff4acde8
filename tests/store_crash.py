"""A process that writes a store until it is killed with kill -9, at a step of writing that is chosen beforehand.

`python store_crash.py STORE FLUSHES`: appends five rows and flushes, again and again; says the number of each flush that was acknowledged
on a line of its own.  It is for others to kill.

`python store_crash.py ROOT FLUSHES STEP...`: the same in a store `ROOT/STEP` for each step, one after the other, in a process that kills itself
before the STEP-th thing it does with a file (open, rename, delete, make a directory: Python's own audit events); what was acknowledged is
in `ROOT/STEP.txt`.
"""

import os
import signal
import sys

from sits.telemetry.rowlog import SignalLog
from sits.telemetry.store import DuckStore

ROWS = 5
STEPS = frozenset({"open", "os.rename", "os.remove", "os.mkdir"})


def kill_before(step: int, path: str) -> None:
    """Kill this process before its `step`-th event in the store."""
    left = step

    def hook(event: str, told: tuple) -> None:
        nonlocal left
        if event in STEPS and str(told[0]).startswith(path):
            left -= 1
            if not left:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def write(path: str, flushes: int, out: int) -> None:
    """Write; narrow files are swept as soon as they are merged."""
    with DuckStore(path, grace_ns=-(10**18)) as store:
        for flush in range(flushes):
            log = SignalLog(ROWS, "r")
            for row in range(ROWS):
                log.append((flush, "s", f"{os.getpid()}-{flush}-{row}", 0.0))
            store.append("signals", log.drain())
            store.flush()
            os.write(out, f"{os.getpid()} {flush}\n".encode())


def killed_in_turn(root: str, flushes: int, steps: list[int]) -> None:
    """Fork a writer for each step: what it imports is imported once."""
    for step in steps:
        child = os.fork()
        if not child:
            out = os.open(f"{root}/{step}.txt", os.O_CREAT | os.O_WRONLY)
            kill_before(step, f"{root}/{step}")
            write(f"{root}/{step}", flushes, out)
            os._exit(0)
        os.waitpid(child, 0)


if __name__ == "__main__":
    if sys.argv[3:]:
        killed_in_turn(sys.argv[1], int(sys.argv[2]), list(map(int, sys.argv[3:])))
    else:
        write(sys.argv[1], int(sys.argv[2]), 1)
