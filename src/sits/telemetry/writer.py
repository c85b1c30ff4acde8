"""The thread that moves records from memory to the store, off the request path.

Every `period_s` it drains its sources (recorder, step log, signal log) into the store and flushes.  When the store
cannot write (disk full), rows wait in the store up to `max_pending` and then in the sources, which drop and count: the
request path never waits and memory stays bounded.  A failure is kept in `last_error` and counted, and writing resumes
by itself.

Deliberately absent: any knowledge of what the rows mean.
"""

import threading
from collections.abc import Mapping
from typing import Protocol

from sits.core.errors import SitsError
from sits.telemetry.store import DuckStore
from sits.telemetry.tables import Columns


class Source(Protocol):
    """Something that can be drained: `Recorder`, `StepLog`, `SignalLog`."""

    def drain(self) -> Columns:
        """Hand out all rows as columns and forget them."""


RETAIN_ROUNDS = 30
"""Retention looks at every hour there is (2,000 for 90 days), so not each time."""


class StoreWriter:
    """Drains `sources` (table name -> source) into `store` every `period_s` seconds, on a thread of its own.

    Attributes:
        written: rows made durable.
        failures: flushes that failed; `last_error` is the text of the latest.
        retain_ns: how long rows are kept, 0 for ever; may be set anew at any time.
        figures_ns: the same of tables of figures; None: as long as rows.

    """

    def __init__(
        self,
        store: DuckStore,
        sources: Mapping[str, Source],
        *,
        period_s: float = 0.5,
        retain_ns: int = 0,
        figures_ns: int | None = None,
        max_pending: int = 200_000,
    ) -> None:
        self.written = 0
        self.failures = 0
        self.last_error = ""
        self._store = store
        self._sources = dict(sources)
        self._period_s = period_s
        self.retain_ns = retain_ns
        self.figures_ns = figures_ns
        self._max_pending = max_pending
        self._rounds = 0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sits-store-writer", daemon=True)

    def start(self) -> None:
        """Begin writing."""
        self._thread.start()

    def stop(self) -> None:
        """Write what is left and end the thread; the store stays open."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join()
        self.write()

    def write(self) -> None:
        """One round: drain, append, flush, now and then retain.  Called by the thread; also fine to call by hand without one."""
        try:
            if self._store.pending_rows < self._max_pending:
                for table, source in self._sources.items():
                    self._store.append(table, source.drain())
            self.written += self._store.flush()
            if self.retain_ns and not self._rounds % RETAIN_ROUNDS:
                self._store.retain(self.retain_ns, self.figures_ns)
            self._rounds += 1
        except (SitsError, OSError) as error:
            self.failures += 1
            self.last_error = str(error)

    def _run(self) -> None:
        while not self._stopping.wait(self._period_s):
            self.write()
