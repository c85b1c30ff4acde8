"""Runs a Python program as Python itself would, and samples it: `python child.py RESULT HZ [-m] PROGRAM [ARGUMENTS]`.

`RESULT` is where `Sampler.take` goes, as JSON, when the program ends, however it ends short of being killed.

Rules: needs nothing but Python 3.11 and the two files beside it, so that any interpreter of any environment can run it; the program
sees its own `sys.argv`, its own directory first in `sys.path`, its own `__main__`, and none of our names.  Where the program uses
`sits.span` or OpenTelemetry, samples carry the trace and the name of the span they interrupt.

Deliberately absent: programs the program starts.
"""

import importlib
import json
import os
import runpy
import sys
import time
import types
from pathlib import Path
from typing import Any


def main(result: str, hz: str, *program: str) -> None:
    """Run `program`, and write `result`."""
    package = types.ModuleType("_sits_profiler")
    package.__path__ = [str(Path(__file__).parent)]
    sys.modules[package.__name__] = package
    sampler = importlib.import_module("_sits_profiler.sampler").Sampler(int(hz), context=_span)
    module = program[0] == "-m"
    name, arguments = (program[1], program[2:]) if module else (program[0], program[1:])
    sys.argv = [name, *arguments]
    sys.path[0] = os.getcwd() if module else str(Path(name).resolve().parent)  # noqa: PTH109
    begun_ns = time.clock_gettime_ns(time.CLOCK_REALTIME)
    owner = os.getpid()
    sampler.start()
    try:
        if module:
            runpy.run_module(name, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(name, run_name="__main__")
    finally:
        if os.getpid() == owner:  # a fork of the program that ends here has nothing to tell
            sampler.stop()
            ended_ns = time.clock_gettime_ns(time.CLOCK_REALTIME)
            told = {"wall_ns": begun_ns, "duration_ns": ended_ns - begun_ns, "batch": sampler.take()}
            Path(result).write_text(json.dumps(told | {"failures": sampler.failures}))


def _span() -> tuple[str, str]:
    """Trace and name of the span that is current in what was interrupted."""
    ours: Any = sys.modules.get("sits.telemetry.tracing_context")
    if hasattr(ours, "labels"):  # it knows spans of both kinds, and which is the inner one
        found: tuple[str, str] = ours.labels()
        return found
    trace: Any = sys.modules.get("opentelemetry.trace")
    if trace is None or not hasattr(trace, "get_current_span"):  # not there, or not yet all of it
        return "", ""
    span = trace.get_current_span()
    context = span.get_span_context()
    return (f"{context.trace_id:032x}" if context.trace_id else ""), getattr(span, "name", "")


if __name__ == "__main__":
    main(*sys.argv[1:])
