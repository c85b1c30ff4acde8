"""Spans on their way from receivers to the store: tables `spans` and `sightings`, bounded in bytes and rows.

Rules: a request is taken whole or refused whole (`CapacityError`, come again): nothing of one is lost silently.  What it weighs is the size of
its body, decompressed, from the moment it is being read until the store has it.  Receivers add, the writer's thread drains.

Deliberately absent: connections, and the store.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence

from sits.core.errors import CapacityError
from sits.telemetry.otlp.received import Batch, Received, span_columns
from sits.telemetry.otlp.sighted import sighting_columns
from sits.telemetry.tables import Columns

BYTES_MAX = 64 * 2**20
ROWS_MAX = 200_000
AGAIN_S = 2.0
"""When to come again; the store is written as often."""


class Waiting:
    """What waits for one table; a source of a `StoreWriter`."""

    def __init__(self, columns: Callable[[Sequence[Received]], Columns], done: Callable[[int], None]) -> None:
        self._columns = columns
        self._done = done
        self._batches: deque[tuple[Batch, int]] = deque()
        self.rows = 0

    def add(self, batch: Batch, weight: int) -> None:
        """Keep a batch."""
        self._batches.append((batch, weight))
        self.rows += len(batch.spans)

    def drain(self) -> Columns:
        """Hand out what waits, as columns, and forget it."""
        taken = [self._batches.popleft() for _ in range(len(self._batches))]
        self.rows -= sum(len(batch.spans) for batch, _ in taken)
        self._done(sum(weight for _, weight in taken))
        return self._columns([one for batch, _ in taken for one in batch.spans])


class Inbox:
    """What was received and is not in the store.

    Attributes:
        requests, spans, rejected, refused: requests taken, spans of theirs kept and not kept, requests there was no room for.
        one_at_a_time: held while a body is decoded, for in memory it is many times as large as it weighs.

    """

    def __init__(self, run_id: str, *, bytes_max: int = BYTES_MAX, rows_max: int = ROWS_MAX) -> None:
        self.requests = self.spans = self.rejected = self.refused = 0
        self._bytes_max, self._rows_max = bytes_max, rows_max
        self._held = 0
        self.one_at_a_time = asyncio.Lock()
        self._lock = threading.Lock()
        self._spans = Waiting(lambda some: span_columns(run_id, some), self.release)
        self._sightings = Waiting(lambda some: sighting_columns(run_id, some), lambda _: None)

    @property
    def sources(self) -> dict[str, Waiting]:
        """By table."""
        return {"spans": self._spans, "sightings": self._sightings}

    @property
    def held(self) -> int:
        """Bytes that are being read, or wait."""
        return self._held

    def reserve(self, weight: int) -> None:
        """Make room for so many bytes.

        Raises:
            CapacityError: there is none now.

        """
        with self._lock:
            full = self._held + weight > self._bytes_max or self._spans.rows >= self._rows_max
            if full:
                self.refused += 1
            else:
                self._held += weight
        if full:
            raise CapacityError(
                "there is no room for more spans until the store has taken these",
                retry_after_s=AGAIN_S,
                code="otlp_full",
            )

    def release(self, weight: int) -> None:
        """Give that room back."""
        with self._lock:
            self._held -= weight

    def add(self, batch: Batch, weight: int) -> None:
        """Keep what a request of `weight` reserved bytes brought; they are given back when the store has it."""
        self.requests += 1
        self.spans += len(batch.spans)
        self.rejected += batch.rejected
        self._sightings.add(batch, 0)
        self._spans.add(batch, weight)
