"""What the workers of one gateway count together: a table of int64 in memory they share, one row a worker.

```
row of a worker:  in flight | in flight, failures, failed_ns, open_ns, reached_ns | ... one group a slot
```
A slot belongs to one engine by name, in every generation of the configuration that has it, so that what an old generation
still has in flight is counted where the new one looks.  `in flight` is requests and tokens in one number, requests x 2^41 + tokens,
because a request then costs two additions instead of four and nobody sees one without the other.

Rules:
- Only worker `w` writes row `w`; everybody reads all of them and adds up.  So nothing is locked, and nothing is lost when
  a worker is killed: whoever sees it dead clears its row.
- A cell is eight aligned bytes, written by one store: a reader sees the old value or the new one.
- A reader may be a store behind.  What is limited by a sum may be exceeded by what the other workers let in at that very
  moment, at most one request each; it never multiplies by their number.

The memory is anonymous and inherited by fork; a gateway of one process has a table of one row of its own.

Deliberately absent: what the counts decide (gateway.places), and histograms (they are folds over rows).
"""

import mmap
from collections.abc import Iterable, Mapping

from sits.core.errors import BugError, ConfigError

ONE = 1 << 41
"""One request in flight; tokens are below."""

TOKENS_MAX = 1 << 22
"""What one request counts at most: callers may ask for any number, and half a million of these fit below `ONE`."""

INFLIGHT = 0
"""Column of the whole row, and of each slot."""

FAILURES, FAILED_NS, OPEN_NS, REACHED_NS = 1, 2, 3, 4
"""More columns of a slot: failures in a row, when the last one was, until when the breaker is open, when the engine answered first after trouble."""

HEAD, WIDTH = 1, 5


class Shared:
    """The table.  `workers` rows, room for `slots` engines."""

    def __init__(self, workers: int, slots: int) -> None:
        if workers < 1 or slots < 1:
            raise BugError(f"a table of {workers} workers and {slots} slots holds nothing")
        self.workers = workers
        self.slots = slots
        self._stride = HEAD + WIDTH * slots
        self._cells = memoryview(mmap.mmap(-1, 8 * self._stride * workers)).cast("q")

    def row(self, worker: int) -> memoryview:
        """Row of `worker`, to be written by it alone; index it by `column`."""
        start = worker * self._stride
        return self._cells[start : start + self._stride]

    def over_workers(self, column: int) -> memoryview:
        """One column of all rows, for adding up."""
        return self._cells[column :: self._stride]

    def inflight(self, slot: int | None = None) -> tuple[int, int]:
        """Requests in flight and their tokens, over all workers; of one slot or of everything."""
        total = sum(self.over_workers(INFLIGHT if slot is None else column(slot, INFLIGHT)))
        return total // ONE, total % ONE

    def clear(self, worker: int) -> None:
        """Forget what a dead worker counted."""
        row = self.row(worker)
        row[:] = memoryview(bytes(8 * len(row))).cast("q")

    def clear_slot(self, slot: int) -> None:
        """Forget a slot's past, before another engine gets it; nobody may be using it."""
        for worker in range(self.workers):
            row = self.row(worker)
            for what in range(WIDTH):
                row[column(slot, what)] = 0


def column(slot: int, what: int) -> int:
    """Where in a row a slot keeps `what`."""
    return HEAD + WIDTH * slot + what


def room_for(engines: int) -> int:
    """How many slots a gateway that starts with so many engines has, for those that reloads bring."""
    return max(64, 4 * engines)


def assign_slots(shared: Shared, before: Mapping[str, int], engines: Iterable[str]) -> dict[str, int]:
    """A slot for each engine: the one it had, or one that nobody uses and nothing is in flight in.

    Raises:
        ConfigError: more engines than the table has room for.

    """
    names = list(engines)
    slots = {name: before[name] for name in names if name in before}
    kept = set(slots.values())
    free = (slot for slot in range(shared.slots) if slot not in kept and not shared.inflight(slot)[0])
    for name in names:
        if name in slots:
            continue
        slot = next(free, None)
        if slot is None:
            raise ConfigError(
                f"{len(names)} engines, and this gateway started with room for {shared.slots}",
                field="engines",
                value=len(names),
                hint="restart it: the room is four times the engines it starts with, and no less than 64",
            )
        shared.clear_slot(slot)
        slots[name] = slot
    return slots
