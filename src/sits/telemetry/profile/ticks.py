"""A timer that signals the main thread each time the process has used so much processor time.

Source: timer_create(2) with `SIGEV_THREAD_ID` and `CLOCK_PROCESS_CPUTIME_ID` (Linux).  `setitimer(ITIMER_PROF)`, which Python has, signals
the thread that happens to run; where that is not the main one, a main thread that waits for it (a lock, a join) is never
interrupted, and Python handlers run nowhere else: of a second of work in another thread it ticked once instead of a hundred times
(Linux 6.18).

Rules: a process that does nothing gets no signals; a fork inherits no timer.  This file and `sampler` need nothing but Python's own library,
because they also run inside programs that know nothing of us.

Deliberately absent: what is done at a tick.
"""

import ctypes
import os
import time

SIGEV_THREAD_ID = 4


class _Event(ctypes.Structure):
    """`struct sigevent` of 64-bit Linux."""

    _fields_ = (
        ("value", ctypes.c_void_p),
        ("number", ctypes.c_int),
        ("notify", ctypes.c_int),
        ("thread", ctypes.c_int),
        ("padding", ctypes.c_char * 44),
    )


class _Times(ctypes.Structure):
    """`struct itimerspec`: the period and the first time, each seconds and ns."""

    _fields_ = tuple((name, ctypes.c_long) for name in ("period_s", "period_ns", "first_s", "first_ns"))


class Ticks:
    """Signal `number` to the main thread every `period_ns` of the process's CPU time, until `close`.

    Raises:
        OSError: the kernel gives no such timer.

    """

    def __init__(self, number: int, period_ns: int) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._timer = ctypes.c_void_p()
        # The main thread's number is the process's, after a fork too; `native_id` is then still that of the parent.
        event = _Event(None, int(number), SIGEV_THREAD_ID, os.getpid())
        clock = time.CLOCK_PROCESS_CPUTIME_ID
        self._call("timer_create", clock, ctypes.byref(event), ctypes.byref(self._timer))
        seconds, ns = divmod(period_ns, 10**9)
        times = _Times(seconds, ns, seconds, ns)
        self._call("timer_settime", self._timer, 0, ctypes.byref(times), None)

    def close(self) -> None:
        """No more signals; one may be on its way."""
        self._call("timer_delete", self._timer)

    def _call(self, name: str, *arguments: object) -> None:
        try:
            function = getattr(self._libc, name)
        except AttributeError:  # a C library that has its timers elsewhere (glibc before 2.34)
            function = getattr(ctypes.CDLL("librt.so.1", use_errno=True), name)
        if function(*arguments):
            number = ctypes.get_errno()
            raise OSError(number, f"{name}: {os.strerror(number)}")
