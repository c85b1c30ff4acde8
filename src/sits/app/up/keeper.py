"""The keeper: the process that remembers, watches and answers questions, so that workers need not.

```
rows of workers ──> books: metrics (a fold) and store     engines ──scrape──> states to workers, signals to the books
questions of workers ──> the pages, and the services (app.up.services)      a shift that has come to other weights ──> the supervisor
```
Questions are answered from the first moment; books and watch (numpy, duckdb) are opened in a thread meanwhile, and rows wait for them.
It may die: workers go on answering, hold what they can and count what they must drop, and the next keeper goes on with their links.  Its
counters begin anew then, as counters of processes do.  When the supervisor is gone it stays until the last worker has drained and left.

Files in the store besides the tables: `fleet-<generation>.yaml`, each configuration that was served, so that `why` knows the objective.

Deliberately absent: requests, and starting or stopping anybody.
"""

import asyncio
import functools
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from sits import __version__
from sits.app.shift.shifting import Shifting
from sits.app.up.early import Early
from sits.app.up.generation import Generation, unpack
from sits.app.up.link import Hear, Link, Serve
from sits.app.up.profiling import Desk as Profiles
from sits.app.up.services import Services
from sits.app.up.states import States
from sits.app.up.telling import Telling
from sits.core.config import dump_fleet
from sits.core.errors import SitsError
from sits.core.ports import World
from sits.gateway.metrics import FAMILIES, Vitals, added, engine_vitals, escaped, page
from sits.gateway.shared import Shared
from sits.telemetry.logs import Log
from sits.telemetry.packing import Packed

if TYPE_CHECKING:
    from sits.app.up.books import Books
    from sits.app.up.watch import Watch


class About(msgspec.Struct, frozen=True):
    """What the supervisor tells of the processes: told anew, whole, with each change."""

    workers: dict[int, int] = {}
    """Process ids of the workers, by number."""
    restarts: dict[str, int] = {}
    reloads: dict[str, int] = {}
    generation: int = 1


class Desk(msgspec.Struct, frozen=True):
    """Where the keeper sits: its ends of the links (one a worker, and the admin process's), its link to the supervisor, the shared table."""

    workers: tuple[socket.socket, ...]
    admin: socket.socket
    supervisor: socket.socket
    shared: Shared


class Keeper:
    """Keeps from `run` until it is told to finish."""

    def __init__(self, desk: Desk, world: World, pid: int, say: Log) -> None:
        self.desk = desk
        self.world = world
        self._pid = pid
        self._say = say
        self._telling = Telling(world, say)
        self._states = States()
        say.keep = self._keep_line
        self._about = About()
        self._known: dict[int, Vitals] = {}
        self._past: Vitals = {}
        self._admin: Vitals = {}
        self._early = Early()
        self._books: Books | None = None
        self._watch: Watch | None = None
        self._finished = asyncio.Event()

    async def run(self, first: Generation) -> None:
        """Keep.

        Raises:
            SitsError: the store cannot be opened, or what a service keeps not be had.

        """
        self._path = path = Path(first.fleet.gateway.store)
        self._generation = first
        self._services = Services(self.world, path, self._tell)
        self._shifting = Shifting(path, self.world, self._say, self._services.adapter_loads)
        self._profiles = Profiles(self.world, path, self._tell_all, self._keep_profile, self._say)
        self._links = self._linked()
        asked = Link(
            self.desk.admin,
            {"vitals": self._hear_admin, "log": self._keep_line},
            serves={"page": self._page, "board": self._board},
        )
        self._supervisor = supervisor = Link(
            self.desk.supervisor,
            {
                "generation": self._adopt,
                "about": self._hear_about,
                "log": self._keep_line,
                "finish": lambda _: self._finished.set(),
            },
        )
        self._services.adopt(first.fleet)
        books = await asyncio.to_thread(self._open)
        self._early.hand_over(books.add)
        self._books = books
        self._serve(self._generation)
        supervisor.send("ready")
        await self._finished.wait()
        assert self._watch is not None
        self._watch.stop()
        for link in self._links:
            link.drain()
        asked.close()
        await self._services.close()
        self._profiles.close()
        books.fold()
        self._telling.close()
        await asyncio.to_thread(books.close)
        supervisor.send("drained", (books.completed, self._dropped(), books.trouble))

    def _linked(self) -> list[Link]:
        alive = set(range(len(self.desk.workers)))

        def ended(worker: int) -> None:  # nobody holds the other end: that happens only without a supervisor
            alive.discard(worker)
            if not alive:
                self._finished.set()

        def link(worker: int, end: socket.socket) -> Link:
            hears: dict[str, Hear] = {
                "rows": self._rows,
                "vitals": functools.partial(self._hear_vitals, worker),
                "adapters": functools.partial(self._services.hear_adapters, worker),
                "profile": functools.partial(self._profiles.hear, f"worker-{worker}"),
            }
            serves: dict[str, Serve] = {
                "page": self._page,
                "board": self._board,
                "lease": functools.partial(self._services.lend, worker),
            }
            return Link(end, hears, serves, functools.partial(ended, worker))

        return [link(worker, end) for worker, end in enumerate(self.desk.workers)]

    def _open(self) -> "Books":
        from sits.app.up.books import Books  # noqa: PLC0415  # numpy and duckdb, half a second
        from sits.app.up.watch import Watch  # noqa: PLC0415

        self._watch = Watch(self.world, self._observed, self._say)
        return Books(self._path, self.world, self._see, self._generation.fleet)

    def _see(self, parts: Sequence[Packed]) -> None:
        self._shifting.see(parts)
        self._telling.see(parts)

    def _keep_line(self, row: Sequence[Any]) -> None:
        """A log line goes to the store with the rows."""
        self._rows(("logs", self._generation.run_id, [row]))

    def _tell(self, worker: int, kind: str, body: Any) -> None:
        self._links[worker].send(kind, body)

    def _tell_all(self, kind: str, body: Any) -> None:
        for link in self._links:
            link.send(kind, body)

    def _keep_profile(self, row: tuple[Any, ...]) -> None:
        self._rows(("profiles", self._generation.run_id, [row]))

    def _adopt(self, packed: bytes) -> None:
        self._generation = unpack(packed)
        self._say.know(generation=self._generation.number)
        try:
            self._services.adopt(self._generation.fleet)
        except SitsError as error:  # workers serve it all the same; what is missing here refuses for itself
            self._say(f"keeper: {error}", "error")
        if self._books is not None:
            self._serve(self._generation)

    def _serve(self, new: Generation) -> None:
        assert self._watch is not None
        try:
            self._shifting.adopt(new.written)
        except SitsError as error:  # what is served goes on; the shift does not
            self._say(f"keeper: {error}", "error")
        (self._path / f"fleet-{new.name}.yaml").write_text(dump_fleet(new.fleet))
        self._watch.adopt(new.fleet)
        self._states.adopt(new.slots)
        self._profiles.adopt(new.fleet)
        if self._books is not None:
            self._books.adopt(new.fleet)

    def _rows(self, body: Sequence[Any]) -> None:
        if body[0] == "logs":
            self._telling.hear(body[2])
        elif body[0] == "signals":
            self._states.see(body[2])
        if self._books is None:
            self._early.add(body)
        else:
            self._books.add(*body)

    def _hear_vitals(self, worker: int, vitals: Vitals) -> None:
        self._known[worker] = vitals
        if self._books is not None:
            self._books.fold()  # once a second, for each worker tells them so often
            self._profiles.look()
            self._telling.look(self.desk.shared, self._generation.slots)
            if self._shifting.look():
                self._supervisor.send("reload")

    def _hear_admin(self, vitals: Vitals) -> None:
        """What the admin process counts; its counters begin anew when it does."""
        self._admin = vitals

    def _hear_about(self, body: Any) -> None:
        """What workers that are no more had counted stays counted."""
        now = msgspec.convert(body, About)
        for worker, pid in self._about.workers.items():
            if now.workers.get(worker) == pid:
                continue
            self._services.lost(worker)
            if worker in self._known:
                self._past = added((self._past, _counters(self._known.pop(worker))))
        self._about = now

    def _observed(self, name: str, now_ns: int, values: Mapping[str, float], capacity_tokens: int) -> None:
        rows = [(now_ns, name, signal_name, value) for signal_name, value in values.items()]
        self._rows(("signals", self._generation.run_id, rows))
        if "requests_running" in values:
            running, waiting = int(values["requests_running"]), int(values.get("requests_waiting", 0))
            state = (name, now_ns, running, waiting, values.get("kv_usage", 0.0), capacity_tokens)
            for link in self._links:
                link.send("state", state)

    def _dropped(self) -> int:
        total = added((self._past, *self._known.values())).get("sits_rows_dropped_total", {}).get("", 0)
        return int(total) + self._early.dropped + (self._books.dropped if self._books is not None else 0)

    async def _page(self, _: object) -> bytes:
        """The metrics page of the whole gateway."""
        about, pids = self._about, {"keeper": self._pid}
        pids |= {f"worker-{worker}": pid for worker, pid in sorted(about.workers.items())}
        environment = escaped(self._generation.fleet.telemetry.environment)
        mine: Vitals = {
            "sits_build_info": {f'environment="{environment}",version="{__version__}"': 1},
            "sits_workers": {"": len(about.workers)},
            "sits_rows_dropped_total": {"": self._early.dropped},
            "sits_restarts_total": {
                f'process="{name}"': count
                for name, count in (dict.fromkeys(pids, 0) | about.restarts).items()
            },
            "sits_reloads_total": {f'result="{how}"': count for how, count in about.reloads.items()},
            "sits_generation": {f'name="{self._generation.name}"': about.generation},
            "sits_resident_memory_bytes": {
                f'process="{name}"': resident_bytes(pid) for name, pid in pids.items()
            },
        }
        engines = engine_vitals(self.desk.shared, self._generation.slots, self.world.now_ns())
        states = self._states.vitals(self.world.now_ns())
        books = {} if self._books is None else self._books.vitals()
        beside = added((self._services.vitals(), self._profiles.vitals(), self._admin))
        return page(added((mine, engines, states, books, beside, self._past, *self._known.values())))

    async def _board(self, _: object) -> bytes:
        """What the shift board shows."""
        return self._shifting.board(self._generation.written)


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
