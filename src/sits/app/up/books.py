"""The books of a gateway: every row of every worker, on its way to the store and counted.

The heavy half of the keeper (numpy, duckdb): opened in a thread, so that questions are answered meanwhile.

Rules: one thread adds, the writer's thread drains; what the store cannot take waits, bounded, then is dropped and counted.

Rows enter the store thinned to the share of the environment (`telemetry.thinning`), after all of them were counted.

Deliberately absent: links, and whose rows they are.
"""

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sits.app.up.tending import Tending
from sits.core.decode import tag_of
from sits.core.fleet import Fleet
from sits.core.fleet_environment import profile_of
from sits.core.otel_names import PROVIDERS
from sits.core.ports import World
from sits.gateway.conventional import Conventional
from sits.gateway.metrics import Metrics, Vitals
from sits.policy.sample import REASONS, Keep, Sampler
from sits.telemetry.packing import Packed
from sits.telemetry.rows import Arrivals, plain_columns
from sits.telemetry.sketches import Sketches, Taken
from sits.telemetry.store import DuckStore
from sits.telemetry.tables import FIGURES, TABLES, Columns
from sits.telemetry.thinning import Thinning
from sits.telemetry.writer import StoreWriter

WRITE_S = 1.0
"""How often the store is written.  A write costs about 12 ms a table that has rows, however few, and 15 us a row with all its merges; what
a keeper that is killed loses is what came since."""

ROWS_MAX = 200_000
"""Rows of a table that wait for a store that cannot write, beyond what the store itself holds."""


class Books:
    """The store in `path`, open and written to from now on.  `see` is shown the rows of requests, once each.

    Raises:
        SitsError: it cannot be opened.

    """

    def __init__(
        self, path: Path, world: World, see: Callable[[Sequence[Packed]], None], fleet: Fleet
    ) -> None:
        makers: dict[str, Callable[[Any], Columns]]
        makers = {name: functools.partial(plain_columns, name) for name in TABLES.keys() - FIGURES}
        self._thinning = thinning = Thinning(Sampler(keep_of(fleet)), world)
        makers |= {"requests": thinning.requests, "decisions": thinning.decisions}
        self._arrivals = {name: Arrivals(ROWS_MAX, make) for name, make in makers.items()}
        self._unfolded: list[Packed] = []
        self._see = see
        self._metrics = Metrics()
        self._conventional = Conventional()
        self._sketches = sketches = Sketches(world)
        figures = {"minutes": Taken(sketches.minutes), "outcomes_minutes": Taken(sketches.outcomes)}
        self._store = DuckStore(path, world=world)
        self.writer = StoreWriter(self._store, {**self._arrivals, **figures}, period_s=WRITE_S)
        self._tending = Tending(path, world)
        self.adopt(fleet)
        self.writer.start()

    def adopt(self, fleet: Fleet) -> None:
        """Keep the share of rows that another configuration wants, and judge by its objective; what is known of the slowest stays."""
        self._thinning.sampler.keep = keep_of(fleet)
        self._tending.share = self._thinning.sampler.keep.share
        self._retain(fleet)
        self._judge(fleet)

    def _retain(self, fleet: Fleet) -> None:
        profile = profile_of(fleet.telemetry)
        self.writer.retain_ns, self.writer.figures_ns = profile.traces_kept, profile.metrics_kept

    def _judge(self, fleet: Fleet) -> None:
        engines = [engine.name for engine in fleet.engines]
        self._metrics.judge(fleet.objective.metric, fleet.objective.p99, engines)
        self._conventional.providers = {
            engine.name: PROVIDERS.get(tag_of(type(engine))[1], "openai") for engine in fleet.engines
        }

    def add(self, table: str, run_id: str, rows: Sequence[Any]) -> None:
        """Enter rows as they were sent."""
        if table == "requests":
            packed = Packed(*rows)
            self._unfolded.append(packed)
            self._arrivals[table].add(run_id, packed)
        else:
            self._arrivals[table].add(run_id, rows)

    def fold(self) -> None:
        """Count what has come; not batch by batch, for the more at once, the cheaper."""
        parts, self._unfolded = self._unfolded, []
        if (batch := self._metrics.fold(parts)) is not None:
            self._conventional.fold(batch)
        self._sketches.fold(parts)
        self._see(parts)
        self._tending.look()

    @property
    def completed(self) -> int:
        """Requests answered."""
        return self._metrics.completed

    @property
    def dropped(self) -> int:
        """Rows that came and found no room."""
        return sum(arrivals.dropped for arrivals in self._arrivals.values())

    @property
    def trouble(self) -> str:
        """Why the store could not be written the last time it could not; empty when it always could."""
        return self.writer.last_error

    def vitals(self) -> Vitals:
        """What is counted here."""
        self.fold()
        return {
            **self._metrics.vitals(),
            **self._conventional.vitals(),
            "sits_rows_dropped_total": {"": self.dropped},
            "sits_rows_kept_total": {
                f'why="{why}"': rows for why, rows in zip(REASONS, self._thinning.kept, strict=True)
            },
            "sits_rows_thinned_total": {"": self._thinning.thinned},
            "sits_rows_stored_total": {"": self.writer.written},
            "sits_store_failures_total": {"": self.writer.failures},
            "sits_store_tending_failures_total": {"": self._tending.failures},
        }

    def close(self) -> None:
        """Write what is left; takes as long as that takes."""
        self.fold()
        self._sketches.ending = True
        self._tending.stop()
        self.writer.stop()
        self._store.close()


def keep_of(fleet: Fleet) -> Keep:
    """Which rows a configuration wants kept."""
    pinned = fleet.telemetry.pinned
    return Keep(
        share=profile_of(fleet.telemetry).sampling,
        metric=fleet.objective.metric,
        objective_ns=fleet.objective.p99,
        tenants=frozenset(pinned.tenants),
        models=frozenset(pinned.models),
        engines=frozenset(pinned.engines),
        traces=frozenset(pinned.traces),
    )
