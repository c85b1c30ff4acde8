"""Hours of the store that are over are merged and indexed by a process of their own, of the lowest priority (`telemetry.tending`).

One at a time, begun when the clock has come into another hour and a few minutes have passed; what an earlier gateway left is done then, too.
One that ends with troubles is counted; `sitsctl store tend` does the same by hand and names them.

Deliberately absent: what is done.
"""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from sits.core.ports import World
from sits.telemetry.parts import HOUR_NS

AFTER_NS = 3 * 60 * 10**9
"""So long after the end of an hour: rows of it are all written by then."""

COMMAND = (sys.executable, "-m", "sits.telemetry.tending")


class Tending:
    """Tends the store in `path` while somebody calls `look` now and then.

    Attributes:
        failures: times that hours could not be tended, or not all of them.
        share: of ordinary requests, what is kept: spans of others are thinned to it.

    """

    def __init__(self, path: Path, world: World, command: Sequence[str] = COMMAND) -> None:
        self._path = path
        self._world = world
        self._command = command
        self._hour = self._now()
        self._process: subprocess.Popen[bytes] | None = None
        self.failures = 0
        self.share = 1.0

    def look(self) -> None:
        """Begin when it is time."""
        if self._process is not None and (ended := self._process.poll()) is not None:
            self.failures += ended != 0
            self._process = None
        hour = self._now()
        if hour > self._hour and self._process is None:
            self._hour = hour
            self._process = subprocess.Popen(  # noqa: S603 - our own module
                [*self._command, str(self._path), str(self.share)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )

    def stop(self) -> None:
        """End what is being done; it is begun again another time, and nothing half-done is ever read."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _now(self) -> int:
        return (self._world.wall_ns() - AFTER_NS) // HOUR_NS
