"""The recorder: one row a finished request, kept as the tuple it comes as.

```
event loop: record -> deque --take-> outbox of a worker (msgpack, to the keeper)
                            --drain-> columns of table `requests` (a thread that writes a store, a simulation)
```
A row is the request's labels, its 20 times as bytes, and their 20 exactness digits.  Neither side waits for the other: adding
to and taking from a deque are single steps.  A full recorder drops the new row and counts it in `dropped`: losing a
record is better than delaying a request.

Rules: a recorded timeline is the recorder's, and is marked no more.  This module loads no numpy: a gateway worker records
and sends, and only who makes columns of rows (`telemetry.rows`) needs it.

Deliberately absent: folding, percentiles, files.
"""

from collections import deque
from typing import TYPE_CHECKING, Any, Final

from sits.core.errors import BugError
from sits.core.ports import World
from sits.core.timeline import Timeline

if TYPE_CHECKING:
    from sits.telemetry.tables import Columns

LABELS: Final = (
    "id",
    "tenant",
    "model",
    "adapter",
    "engine",
    "arm",
    "outcome",
    "status",
    "detail",
    "prompt_tokens",
    "output_tokens",
    "cached_tokens",
    "preemptions",
    "prompt_hash",
    "abstraction_layer",
    "trace_id",
    "parent_id",
)
"""What a row begins with, in this order: columns of table `requests`.  After them come the times and their exactness."""

NUMBERS: Final = ("prompt_tokens", "output_tokens", "cached_tokens", "preemptions")
OWN_TEXTS: Final = ("id", "prompt_hash", "trace_id", "parent_id")
"""Labels that are numbers, and texts that are another one in each row; the others are of few kinds."""

AT, HOW = len(LABELS), len(LABELS) + 1

Row = tuple[Any, ...]
"""The labels, `timeline.at.tobytes()`, and `timeline.how`."""


def row_of(timeline: Timeline, **labels: Any) -> Row:
    """The row of a finished request, for those who have time to name its labels.

    `outcome` is `completed`, `failed`, `cancelled` or `refused`; `status` the HTTP status; `detail` a refusal or error label;
    token counts in tokens; `trace_id` empty where the trace began here, and then is the id.
    """
    return (*(labels[name] for name in LABELS), timeline.at.tobytes(), timeline.how)


class Recorder:
    """Collects finished requests of run `run_id` until somebody takes them.

    Attributes:
        dropped: requests not recorded because it was full.

    """

    def __init__(self, capacity: int, world: World, run_id: str) -> None:
        if capacity < 1:
            raise BugError(f"a recorder of {capacity} rows holds nothing", field="capacity", value=capacity)
        self.capacity = capacity
        self.run_id = run_id
        self.dropped = 0
        self._world = world
        self._rows: deque[Row] = deque()

    def __len__(self) -> int:
        """Rows recorded and not taken yet."""
        return len(self._rows)

    def record(self, row: Row) -> bool:
        """Store one finished request; False when there was no room and the row was dropped."""
        rows = self._rows
        if len(rows) >= self.capacity:
            self.dropped += 1
            return False
        rows.append(row)
        return True

    def take(self) -> list[Row]:
        """Hand out all rows in the order recorded, and forget them."""
        rows = self._rows
        return [rows.popleft() for _ in range(len(rows))]

    def drain(self) -> "Columns":
        """Hand out all rows as columns of table `requests`, in the order recorded, and forget them."""
        from sits.telemetry.packing import pack  # noqa: PLC0415
        from sits.telemetry.rows import request_columns  # noqa: PLC0415  # numpy, which a worker never loads

        return request_columns([(self.run_id, pack(self.take()))], self._world)
