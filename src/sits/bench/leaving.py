"""Told to end, a command leaves by an exception, past whatever has to be ended: processes it started, folders for the while.

Rules: SIGTERM and SIGHUP, once; who asks a second time waits for the clearing up as the first one does (SIGKILL does not).  A SIGHUP that was
ignored before (`nohup`) stays ignored.  Only a main thread may ask for signals; elsewhere nothing changes.

Deliberately absent: SIGINT, which is an exception already, and commands that serve, which drain.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

TOLD = 128
"""Added to a signal's number it is the status of what ended by it, as shells have it."""


@contextmanager
def ends_when_told() -> Iterator[None]:
    """SIGTERM and SIGHUP leave by `SystemExit`, with 128 and their number."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    signs = [sign for sign in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(sign) is not signal.SIG_IGN]

    def leave(number: int, _frame: object) -> None:
        for sign in signs:
            signal.signal(sign, signal.SIG_IGN)
        raise SystemExit(TOLD + number)

    before = {sign: signal.signal(sign, leave) for sign in signs}
    try:
        yield
    finally:
        for sign, handler in before.items():
            signal.signal(sign, handler)
