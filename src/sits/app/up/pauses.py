"""How long garbage collections hold everything up, as a histogram, and when they may happen.

Rules: what was loaded before serving is frozen, so that no collection looks at it again; requests free what they take by reference
counts, only closed connections are cycles, so collections can be rare.  Each one is timed by Python's own call-backs.

Deliberately absent: switching collection off; a leak of cycles would then have no end.
"""

import gc
from typing import Any

from sits.core.ports import World
from sits.gateway.metrics import PAUSE_BUCKETS_S, Histogram

THRESHOLDS = (20_000, 20, 20)
"""Python's own 700 costs a fifth of the CPU of a plain request."""


def collect_rarely() -> None:
    """Freeze what is there, and set the thresholds."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)


class Pauses:
    """Times collections from `begin` to `end`; `histogram` has them."""

    def __init__(self, world: World) -> None:
        self.histogram = Histogram(PAUSE_BUCKETS_S)
        self._now_ns = world.now_ns
        self._since_ns = 0

    def begin(self) -> None:
        """Freeze what is there, set the thresholds, and time from now on."""
        collect_rarely()
        gc.callbacks.append(self._hear)

    def end(self) -> None:
        """Time no more."""
        gc.callbacks.remove(self._hear)

    def _hear(self, phase: str, _: dict[str, Any]) -> None:
        if phase == "start":
            self._since_ns = self._now_ns()
        else:
            self.histogram.observe(self._now_ns() - self._since_ns)
