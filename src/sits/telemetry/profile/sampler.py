"""The sampler: at each tick of CPU time it notes what every Python thread does, and how much processor that thread used since.

```
tick (signal, main thread, between two bytecodes) ─> stacks + CPU ns of threads ─> `take`: names, lines, counts
```
Rules:
- A sample weighs as many periods as have ended since the one before, so nothing is lost while a long call into C keeps Python from
  handling ticks.  Threads share it by the CPU time each used, by its own clock; what no Python thread used (threads of libraries)
  is `elsewhere_ns`.  Samples + elsewhere + dropped = CPU time of the process, to a period; `own_ns` of it the sampler itself took.
- At a tick a stack is copied as it is (code objects and offsets); names and lines are made by `take`, outside of the signal.
- A sample at the first instruction of a function belongs to whoever called it: the function has done nothing yet.  So what an event
  loop in C did before it called a callback is the loop's.
- `carriers` says of which functions a frame knows the trace it works for, `context` what the interrupted context knows: both are
  asked only at a tick, so a program pays nothing for labels while it is not sampled.
- At most `PENDING_MAX` samples wait for `take`; more are counted in `dropped_ns`.

A thread that asks `sys._current_frames()` from time to time would need none of the signals, but gets its turn when others
let go of the interpreter: it saw the one of three functions that compresses, and nothing else (decision 0023).

Deliberately absent: anything but Python's own library (see `ticks`), and time that passes without being used.
"""

import signal
import sys
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Mapping
from dis import opmap
from types import CodeType, FrameType
from typing import Any

from .ticks import Ticks

PENDING_MAX = 4096
DEPTH_MAX = 128
CODES_MAX = 16_384
"""Functions whose names are remembered; then all are forgotten."""

RESUME = opmap.get("RESUME", -1)

Label = tuple[str, str]
"""Trace and operation; empty where unknown."""

NOTHING: Label = ("", "")


class Sampler:
    """Samples from `start` to `stop`; main thread only.

    Args:
        hz: ticks a second of CPU time.
        carriers: reads the trace from a frame of a function, by the `id` of its code.
        context: reads trace and operation of what was interrupted; for the main thread.
        restart: system calls of libraries go on after a tick.  A main thread that waits for a lock then hears no ticks meanwhile, so it
            is for processes whose main thread runs a loop.

    Attributes:
        failures: ticks that could not be noted, each a bug of ours or of a label.

    """

    def __init__(
        self,
        hz: int = 100,
        *,
        carriers: Mapping[int, Callable[[FrameType], str]] | None = None,
        context: Callable[[], Label] | None = None,
        restart: bool = False,
    ) -> None:
        self.hz = hz
        self.own_ns = self.elsewhere_ns = self.dropped_ns = self.failures = 0
        self._carriers = dict(carriers or {})
        self._context = context
        self._restart = restart
        self._pending: list[tuple[int, Label, bool, list[Any]]] = []
        self._known: dict[int, tuple[CodeType, str, str, list[int], list[int]]] = {}
        self._used: dict[int, int] = {}
        self._period_ns = 10**9 // hz
        self._start_ns = self._process_ns = 0
        self._ticks: Ticks | None = None

    @property
    def running(self) -> bool:
        """Whether it samples."""
        return self._ticks is not None

    def start(self) -> None:
        """Sample from now on.

        Raises:
            ValueError: this is not the main thread.
            OSError: there is no timer.

        """
        if self._ticks is not None:
            return
        signal.signal(signal.SIGPROF, self._tick)
        signal.siginterrupt(signal.SIGPROF, not self._restart)
        self._used = {ident: _used_ns(ident) for ident in sys._current_frames()}
        self._process_ns = 0
        self._start_ns = time.clock_gettime_ns(time.CLOCK_PROCESS_CPUTIME_ID)
        self._ticks = Ticks(signal.SIGPROF, self._period_ns)

    def stop(self) -> None:
        """Sample no more; what was sampled stays for `take`."""
        if self._ticks is not None:
            self._ticks.close()
            self._ticks = None
            # Not the default again: that ends the process, and a last tick may be on its way.
            signal.signal(signal.SIGPROF, signal.SIG_IGN)

    def take(self) -> dict[str, Any]:
        """What was sampled since the last call, as plain lists and numbers.

        `frames`: `[function, file, line]`, line the one that ran; `samples`: `[cpu_ns, count, trace, op, frames]`, the frames as indices, the
        innermost first; `elsewhere_ns`, `own_ns`, `dropped_ns`, as above, since the last call.
        """
        pending, self._pending = self._pending, []
        frames: dict[tuple[str, str, int], int] = {}
        samples: dict[tuple[Any, ...], list[int]] = {}
        for used_ns, label, cut, stack in pending:
            places = [
                frames.setdefault(place, len(frames))
                for place in self._places(stack, cut)
                if place is not None
            ]
            seen = samples.setdefault((*label, *places), [0, 0])
            seen[0] += used_ns
            seen[1] += 1
        rest = {name: getattr(self, name) for name in ("elsewhere_ns", "own_ns", "dropped_ns")}
        self.elsewhere_ns = self.own_ns = self.dropped_ns = 0
        return {
            "frames": [list(frame) for frame in frames],
            "samples": [[ns, count, key[0], key[1], list(key[2:])] for key, (ns, count) in samples.items()],
            **rest,
        }

    # -- at a tick -----------------------------------------------------------------------------------------------

    def _tick(self, _number: int, frame: FrameType | None) -> None:
        """Python runs this in the main thread, between two bytecodes of what it interrupts; nothing may come out of it."""
        since_ns = time.clock_gettime_ns(time.CLOCK_THREAD_CPUTIME_ID)
        try:
            self._note(frame)
        except Exception:  # noqa: BLE001  (a profiler does not break what it looks at; told in `failures`)
            self.failures += 1
        self.own_ns += time.clock_gettime_ns(time.CLOCK_THREAD_CPUTIME_ID) - since_ns

    def _note(self, frame: FrameType | None) -> None:
        used_ns = time.clock_gettime_ns(time.CLOCK_PROCESS_CPUTIME_ID) - self._start_ns
        ticks = used_ns // self._period_ns - self._process_ns // self._period_ns
        if not ticks:
            return
        whole_ns, due_ns = used_ns - self._process_ns, ticks * self._period_ns
        self._process_ns = used_ns
        main, before, now, left_ns = threading.main_thread().ident, self._used, {}, due_ns
        for ident, its in sys._current_frames().items():
            now[ident] = thread_ns = _used_ns(ident)
            past_ns = before.get(ident, 0)
            if past_ns <= thread_ns:  # else its number was another thread's
                thread_ns -= past_ns
            at = frame if ident == main else its
            weight_ns = min(due_ns * thread_ns // whole_ns, left_ns)
            if weight_ns and at is not None:
                left_ns -= weight_ns
                self._keep(weight_ns, at, mine=ident == main)
        self._used = now
        self.elsewhere_ns += left_ns

    def _keep(self, used_ns: int, frame: FrameType, *, mine: bool) -> None:
        """Copy a stack: code and offset of each frame, the innermost first."""
        if len(self._pending) >= PENDING_MAX:
            self.dropped_ns += used_ns
            return
        stack: list[Any] = []
        trace, op = self._context() if mine and self._context is not None else NOTHING
        carriers, at, left = self._carriers, frame, DEPTH_MAX
        while left and at is not None:
            code = at.f_code
            stack += (code, at.f_lasti)
            if not trace and id(code) in carriers:
                trace = carriers[id(code)](at)
            at = at.f_back  # type: ignore[assignment]
            left -= 1
        self._pending.append((used_ns, (trace, op), at is not None, stack))

    # -- later ---------------------------------------------------------------------------------------------------

    def _places(self, stack: list[Any], cut: bool) -> list[tuple[str, str, int]]:
        """Function, file and line of each frame."""
        pairs = list(zip(stack[::2], stack[1::2], strict=True))
        if len(pairs) > 1 and _at_its_start(*pairs[0]):
            pairs = pairs[1:]
        made = [self._place(code, offset) for code, offset in pairs]
        return [*made, ("(deeper)", "", 0)] if cut else made

    def _place(self, code: CodeType, offset: int) -> tuple[str, str, int]:
        known = self._known.get(id(code))
        if known is None:
            if len(self._known) >= CODES_MAX:
                self._known.clear()
            lines = [(start, line) for start, _, line in code.co_lines() if line is not None]
            name = getattr(code, "co_qualname", code.co_name)
            known = (
                code,
                _plain(name),
                _plain(_short(code.co_filename)),
                [s for s, _ in lines],
                [n for _, n in lines],
            )
            self._known[id(code)] = known  # holds the code, so that its id is nobody else's
        _, name, file, starts, numbers = known
        index = bisect_right(starts, offset) - 1
        return name, file, numbers[index] if index >= 0 else code.co_firstlineno


def _used_ns(ident: int) -> int:
    """CPU time of a thread that lives (it holds an interpreter state, so it does)."""
    return time.clock_gettime_ns(time.pthread_getcpuclockid(ident))


def _at_its_start(code: CodeType, offset: int) -> bool:
    opcodes = code.co_code
    return 0 <= offset < len(opcodes) - 1 and opcodes[offset] == RESUME and not opcodes[offset + 1] & 3


def _plain(text: str) -> str:
    """Without half characters, which nothing can carry."""
    return text.encode("utf-8", "replace").decode()


def _short(file: str) -> str:
    """A file's name as an import would have it: without the directory it was found in."""
    roots = [root for root in sys.path if root and file.startswith(root.rstrip("/") + "/")]
    return file[len(max(roots, key=len).rstrip("/")) + 1 :] if roots else file
