"""The keeper: the process that remembers, watches and answers questions, so that workers need not.

```
rows of workers ──> metrics (a fold) and store (a thread of its own)      engines ──scrape──> states to workers, signals to store
questions of workers ──> the metrics page, and the services (app.up.services)
```
It is the only one with numpy and duckdb.  It may die: workers go on answering, hold what they can and count what they must drop, and the
next keeper goes on with their links.  Its counters begin anew then, as counters of processes do.  When the supervisor is gone it stays
until the last worker has drained and left.

Files in the store besides the tables: `fleet-<generation>.yaml`, each configuration that was served, so that `why` knows the objective.

Deliberately absent: requests, and starting or stopping anybody.
"""

import asyncio
import functools
import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from sits.app.up.generation import Generation, unpack
from sits.app.up.link import Link
from sits.app.up.services import Services
from sits.app.up.watch import Watch
from sits.core.config import dump_fleet
from sits.core.errors import SitsError
from sits.core.ports import World
from sits.core.units import SECOND
from sits.gateway.metrics import FAMILIES, Metrics, Vitals, added, engine_vitals, page
from sits.gateway.shared import Shared
from sits.telemetry.packing import Packed
from sits.telemetry.rows import Arrivals, plain_columns, request_columns
from sits.telemetry.store import DuckStore
from sits.telemetry.tables import TABLES
from sits.telemetry.writer import StoreWriter

WRITE_S = 2.0
"""How often the store is written.  A write costs about 15 ms a table, however few rows it has, and 3 us a row; what a keeper that
is killed loses is what came since."""

ROWS_MAX = 200_000
"""Rows of a table that wait for a store that cannot write, beyond what the store itself holds."""

RETAIN_NS = 7 * 24 * 3600 * SECOND
"""Raw rows are kept for seven days."""


class About(msgspec.Struct, frozen=True):
    """What the supervisor tells of the processes: told anew, whole, with each change."""

    workers: dict[int, int] = {}
    """Process ids of the workers, by number."""
    restarts: dict[str, int] = {}
    reloads: dict[str, int] = {}
    generation: int = 1


class Desk(msgspec.Struct, frozen=True):
    """Where the keeper sits: its ends of the links (one a worker), its link to the supervisor, the shared table."""

    workers: tuple[socket.socket, ...]
    supervisor: socket.socket
    shared: Shared


class Keeper:
    """Keeps from `run` until it is told to finish."""

    def __init__(self, desk: Desk, world: World, pid: int, say: Callable[[str], None]) -> None:
        self.desk = desk
        self.world = world
        self.metrics = Metrics()
        self._pid = pid
        self._say = say
        self._about = About()
        self._unfolded: list[Packed] = []
        self._known: dict[int, Vitals] = {}
        self._past: Vitals = {}
        makers = {name: functools.partial(plain_columns, name) for name in TABLES}
        makers["requests"] = functools.partial(request_columns, world=world)
        self._arrivals = {name: Arrivals(ROWS_MAX, make) for name, make in makers.items()}

    async def run(self, first: Generation) -> None:
        """Keep.

        Raises:
            SitsError: the store cannot be opened.

        """
        finished = asyncio.Event()
        alive = set(range(len(self.desk.workers)))

        def ended(worker: int) -> None:  # nobody holds the other end: that happens only without a supervisor
            alive.discard(worker)
            if not alive:
                finished.set()

        supervisor = Link(
            self.desk.supervisor,
            {"generation": self._adopt, "about": self._hear_about, "finish": lambda _: finished.set()},
        )
        path = Path(first.fleet.gateway.store)
        services = self._services = Services(
            self.world, path, lambda worker, kind, body: links[worker].send(kind, body)
        )
        links = [
            Link(
                end,
                {
                    "rows": self._rows,
                    "vitals": functools.partial(self._vitals, worker),
                    "adapters": functools.partial(services.hear_adapters, worker),
                },
                {"page": self._page},
                functools.partial(ended, worker),
            )
            for worker, end in enumerate(self.desk.workers)
        ]
        with DuckStore(path, world=self.world) as store:
            self._writer = writer = StoreWriter(store, self._arrivals, period_s=WRITE_S, retain_ns=RETAIN_NS)
            self._watch = Watch(self.world, functools.partial(self._observed, links), self._say)
            self._path = path
            self._serve(first)
            writer.start()
            supervisor.send("ready")
            await finished.wait()
            self._watch.stop()
            for link in links:
                link.drain()
            await services.close()
            self._fold()
            await asyncio.to_thread(writer.stop)
        supervisor.send("drained", (self.metrics.completed, self._dropped(), writer.last_error))

    def _adopt(self, packed: bytes) -> None:
        try:
            self._serve(unpack(packed))
        except SitsError as error:  # workers serve it all the same; what is missing here refuses for itself
            self._say(f"keeper: {error}")

    def _serve(self, new: Generation) -> None:
        self._generation = new
        (self._path / f"fleet-{new.name}.yaml").write_text(dump_fleet(new.fleet))
        self._watch.adopt(new.fleet)
        self._services.adopt(new.fleet)

    def _rows(self, body: Sequence[Any]) -> None:
        table, run_id, rows = body
        if table == "requests":
            rows = Packed(*rows)
            self._unfolded.append(rows)
        self._arrivals[table].add(run_id, rows)

    def _fold(self) -> None:
        """Count what has come; not batch by batch, for the more at once, the cheaper."""
        parts, self._unfolded = self._unfolded, []
        self.metrics.fold(parts)

    def _vitals(self, worker: int, vitals: Vitals) -> None:
        self._known[worker] = vitals
        self._fold()  # once a second, for each worker tells them so often

    def _hear_about(self, body: Any) -> None:
        """What workers that are no more had counted stays counted."""
        now = msgspec.convert(body, About)
        for worker, pid in self._about.workers.items():
            if now.workers.get(worker) != pid and worker in self._known:
                self._past = added((self._past, _counters(self._known.pop(worker))))
            if now.workers.get(worker) != pid:
                self._services.lost(worker)
        self._about = now

    def _observed(
        self, links: Sequence[Link], name: str, now_ns: int, values: Mapping[str, float], capacity: int
    ) -> None:
        rows = [(now_ns, name, signal_name, value) for signal_name, value in values.items()]
        self._arrivals["signals"].add(self._generation.run_id, rows)
        if "requests_running" in values:
            running, waiting = int(values["requests_running"]), int(values.get("requests_waiting", 0))
            state = (name, now_ns, running, waiting, values.get("kv_usage", 0.0), capacity)
            for link in links:
                link.send("state", state)

    def _dropped(self) -> int:
        total = added((self._past, *self._known.values())).get("sits_rows_dropped_total", {}).get("", 0)
        return int(total) + sum(arrivals.dropped for arrivals in self._arrivals.values())

    async def _page(self, _: object) -> bytes:
        """The metrics page of the whole gateway."""
        self._fold()
        about, pids = self._about, {"keeper": self._pid}
        pids |= {f"worker-{worker}": pid for worker, pid in sorted(about.workers.items())}
        mine: Vitals = {
            "sits_rows_dropped_total": {"": sum(arrivals.dropped for arrivals in self._arrivals.values())},
            "sits_rows_stored_total": {"": self._writer.written},
            "sits_store_failures_total": {"": self._writer.failures},
            "sits_workers": {"": len(about.workers)},
            "sits_restarts_total": {f'process="{name}"': count for name, count in about.restarts.items()},
            "sits_reloads_total": {f'result="{how}"': count for how, count in about.reloads.items()},
            "sits_generation": {f'name="{self._generation.name}"': about.generation},
            "sits_resident_memory_bytes": {
                f'process="{name}"': resident_bytes(pid) for name, pid in pids.items()
            },
        }
        engines = engine_vitals(self.desk.shared, self._generation.slots, self.world.now_ns())
        parts = (mine, engines, self.metrics.vitals(), self._services.vitals(), self._past)
        return page(added((*parts, *self._known.values())))


def resident_bytes(pid: int) -> int:
    """Resident memory of a process; 0 when it is gone."""
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
    except OSError:
        return 0
    return 0


def _counters(vitals: Vitals) -> Vitals:
    """What of somebody's numbers stays true when they are gone."""
    return {
        name: samples for name, samples in vitals.items() if FAMILIES.get(name, ("counter",))[0] == "counter"
    }
