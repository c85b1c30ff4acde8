"""The shift of a running gateway: between the rows that arrive and the generation that is served.

It is there when the file plans a shift, follows it from file to file, and is asked about once a second.

Deliberately absent: judging (`app.shift.controller`), links and signals (`app.up`).
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sits.core.fleet import Fleet
from sits.core.ports import World
from sits.core.units import SECOND
from sits.telemetry.packing import Packed

if TYPE_CHECKING:
    from sits.app.shift.controller import ShiftController

LOOK_NS = SECOND
PARTS_MAX = 10_000
"""Batches kept for the next look; more are not judged by."""

LoadCounts = Callable[[], Mapping[str, tuple[int, int]]]
"""Loads ended and loads failed so far, by adapter."""


class Shifting:
    """What a keeper has to do for a shift."""

    def __init__(self, store: Path, world: World, say: Callable[[str], None], loads: LoadCounts) -> None:
        self._store = store
        self._world = world
        self._say = say
        self._loads = loads
        self._counted: Mapping[str, tuple[int, int]] = {}
        self._controller: ShiftController | None = None
        self._parts: list[Packed] = []
        self._looked_ns = 0

    def adopt(self, written: Fleet) -> None:
        """A file is served, as it is written.

        Raises:
            ConfigError: what lies in the store is no book.

        """
        if self._controller is not None:
            self._controller.adopt(written)
        elif written.shift is not None:
            from sits.app.shift.controller import ShiftController  # noqa: PLC0415  (only where it is needed)

            self._controller = ShiftController(written, self._store, self._world, self._say)
            self._counted = self._loads()

    def see(self, parts: Sequence[Packed]) -> None:
        """Rows of requests that have finished."""
        if self._controller is not None and len(self._parts) < PARTS_MAX:
            self._parts += parts

    def look(self) -> bool:
        """Whether another generation is to be served from now on; to be asked often."""
        now_ns = self._world.now_ns()
        if self._controller is None or now_ns - self._looked_ns < LOOK_NS:
            return False
        self._looked_ns = now_ns
        parts, self._parts = self._parts, []
        before, self._counted = self._counted, self._loads()
        loads = [
            (adapter, ended - before.get(adapter, (0, 0))[0], failed - before.get(adapter, (0, 0))[1])
            for adapter, (ended, failed) in self._counted.items()
        ]
        return self._controller.tick(parts, now_ns, [one for one in loads if one[1]]) is not None

    def board(self, written: Fleet) -> bytes:
        """What the board shows, as JSON."""
        from sits.app.shift.board import board_json  # noqa: PLC0415

        book = self._controller.book if self._controller is not None else None
        return board_json(written, book, self._world.wall_ns())
