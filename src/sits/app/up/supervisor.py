"""The supervisor: reads the file, holds the port, starts the others, and starts them again.

```
read, check ─> listen ─> fork workers ─> they answer: fork keeper ─> "serving" (fork admin) ─┬─ SIGHUP or a changed file: next generation, or why not
                                                                                ├─ a child died: clear its row, start another
                                                                                └─ SIGINT, SIGTERM: workers drain, keeper writes, end
```
Rules:
- It has no loop, no threads and none of the heavy libraries, so that what it forks is small, at the start and an hour later.
- It holds every worker's listening socket and both ends of every link: connections that come while a worker is being started again wait
  for it, and what is in a link is read by its successor.  A worker that keeps dying gives its sockets up.
- A new file is read as strictly as the first one, and tried out here; if anything is wrong with it, everything is told and the
  generation in use goes on.  A worker that cannot take a generation is started again with it.

Deliberately absent: requests, rows, and anything that could fail for long.
"""

import functools
import os
import selectors
import signal
import socket
from pathlib import Path
from typing import Any

from sits.app.up.children import Child, StuckError
from sits.app.up.files import raise_file_limit
from sits.app.up.generation import Generation, check_change, generation, pack, read
from sits.app.up.lines import Lines, farewell
from sits.app.up.link import pair
from sits.app.up.notice import Board, Notice
from sits.app.up.ports import listening
from sits.app.up.roles import administer, keep, serve
from sits.app.up.trial import signature, tried_out
from sits.core.errors import BugError, ConfigError, ConfigErrors, SitsError
from sits.core.fleet import Fleet
from sits.core.ports import World
from sits.core.units import SECOND
from sits.gateway.shared import Shared, assign_slots, room_for
from sits.telemetry.logs import Log

LOOK_NS = SECOND
"""How often a watched file is looked at."""

PATIENCE_NS = 5 * SECOND
"""How much longer than its own limits a child may take to end."""

NEVER_NS = 2**62
SLEEP_S = 60.0

GIVE_UP_NS = SECOND // 2
"""A pause before the next life from which on waiting connections are better off elsewhere."""


class Supervisor:
    """Runs one gateway until it is told to stop.

    Raises:
        ConfigError: the fleet cannot be served, or the address not be had.

    """

    def __init__(
        self, path: Path, fleet: Fleet, world: World, say: Log, *, workers: int | None = None
    ) -> None:
        self.path = path
        self.world = world
        self.say = say
        self._override = workers
        count = fleet.gateway.workers
        names = [engine.name for engine in fleet.engines]
        self.shared = Shared(count, room_for(len(names)))
        self.current = generation(1, fleet, assign_slots(self.shared, {}, names), world)
        tried_out(self.current, world)
        self._address, self._listeners = listening(fleet.gateway.listen, count)
        self._links = [pair() for _ in range(count)]
        self.keeper = Child("keeper", pair(), self._keep)
        self.workers = [
            Child(f"worker-{index}", pair(), functools.partial(self._serve, index)) for index in range(count)
        ]
        self.admin = Child("admin", pair(), self._administer)
        self._admin_link = pair()
        at = fleet.admin.listen
        self._admin_at, some = listening(at, 1, field="admin.listen") if at else ("", [()])
        self._admin_listeners = some[0]
        self._children = (self.keeper, *self.workers, *([self.admin] if self._admin_at else []))
        self._board = Board(Path(fleet.gateway.store), self._address.rpartition(":")[2])
        say.keep = Lines(self.keeper, self._tell)
        self._problems: tuple[str, ...] = ()
        self._restarts: dict[str, int] = {}
        self._reloads = dict.fromkeys(("taken", "refused", "unchanged"), 0)
        self._serving: set[Child] = set()
        self._signals: list[int] = []
        self._started = False
        self._stopping = False
        self._stop_by_ns = 0
        self._refused: SitsError | None = None
        self._last_words: tuple[int, int, str] | None = None
        self._seen = signature(path)
        self._look_ns = world.now_ns() + LOOK_NS

    def run(self) -> None:
        """Start everything, and look after it until it has ended."""
        raise_file_limit()
        self._selector = selector = selectors.DefaultSelector()
        self._wake = socket.socketpair()
        for end in self._wake:
            end.setblocking(False)
        selector.register(self._wake[0], selectors.EVENT_READ)
        for child in self._children:
            selector.register(child.ours, selectors.EVENT_READ, child)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, lambda *_: None)
        signal.set_wakeup_fd(self._wake[1].fileno(), warn_on_full_buffer=False)
        try:
            for worker in self.workers:
                self._start(worker)
            while any(child.pid for child in self._children):
                self._round()
        finally:
            signal.set_wakeup_fd(-1)
            for child in self._children:
                child.signal(signal.SIGKILL)
            self._board.take_down()
        if self._refused is not None:
            raise self._refused
        self.say(farewell(self._last_words, self.current.fleet.gateway.store))

    # -- the loop ------------------------------------------------------------------------------------------------

    def _round(self) -> None:
        for key, _ in self._selector.select(self._sleep_s()):
            if key.data is None:
                self._signals += self._wake[0].recv(4096)
            else:
                self._listen_to(key.data)
        signals, self._signals = self._signals, []
        for number in signals:
            if number in (signal.SIGINT, signal.SIGTERM):
                self._stop()
            elif number == signal.SIGHUP:
                self._reload()
        self._reap()
        now_ns = self.world.now_ns()
        for child in self._children:
            if not child.pid and not self._stopping and self._due_ns(child) <= now_ns:
                self._start(child)
        if self._stopping and now_ns > self._stop_by_ns:
            for child in self._children:
                child.signal(signal.SIGKILL)
        if self.current.fleet.gateway.reload == "watch" and now_ns >= self._look_ns:
            self._look_ns = now_ns + LOOK_NS
            if signature(self.path) != self._seen:
                self._reload()

    def _sleep_s(self) -> float:
        """Until something is due."""
        due = [self._look_ns] if self.current.fleet.gateway.reload == "watch" else []
        if self._stopping:
            due.append(self._stop_by_ns)
        else:
            due += [self._due_ns(child) for child in self._children if not child.pid]
        return min(SLEEP_S, max(0.0, (min(due) - self.world.now_ns()) / SECOND)) if due else SLEEP_S

    def _due_ns(self, child: Child) -> int:
        """When a child that does not run is to be started: at the beginning workers have the processor to themselves."""
        served = all(worker.ready for worker in self.workers)
        goes = {self.keeper: served, self.admin: self._started}.get(child, True)
        return child.due_ns if goes or child.lives else NEVER_NS

    def _listen_to(self, child: Child) -> None:
        while (message := child.heard()) is not None:
            kind, body = message
            if kind == "ready":
                child.ready = True
                if child.lives > 1 or child is self.admin:
                    self._put_notice()
                if child is self.admin:
                    self.say(f"board on http://{self._admin_at}/ (process {child.pid})")
                elif child.lives > 1:
                    self.say(f"{child.name} works again (process {child.pid})")
                self._all_ready()
                self._serves(child, self.current.number)
            elif kind == "serving":
                self._serves(child, body)
            elif kind == "cannot":
                text, field, value, hint = body
                if child is self.admin:
                    self.say(f"admin: {text}", "error")
                    continue
                self._refused = ConfigError(text, field=field, value=value, hint=hint)
                self._stop()
            elif kind == "refused":
                number, why = body
                self.say(f"{child.name} cannot take generation {number} and starts again: {why}", "warning")
                child.signal(signal.SIGTERM)
            elif kind == "reload":  # a shift has come to other weights
                self._reload()
            elif kind == "drained":
                self._last_words = tuple(body)

    def _serves(self, child: Child, number: int) -> None:
        """A worker serves a generation; when all serve the newest, that is told."""
        if child not in self.workers or number != self.current.number or child in self._serving:
            return
        self._serving.add(child)
        if number > 1 and len(self._serving) == len(self.workers):
            self._put_notice()
            self.say(f"generation {number} ({self.current.name}) serves")

    # -- children ------------------------------------------------------------------------------------------------

    def _start(self, child: Child) -> None:
        if child in self.workers and child.lives:
            index = self.workers.index(child)
            self.shared.clear(index)
            if not self._listeners[index]:
                self._listeners[index] = listening(self._address, 1, ours=True)[1][0]
        mine = self._sockets_of(child)
        every = [s for each in (*self._children, self.admin) for s in (each.ours, each.theirs)]
        every += [end for ends in (*self._links, self._admin_link) for end in ends]
        every += [one for some in (*self._listeners, self._admin_listeners) for one in some]
        child.start(self.world.now_ns(), [*(s for s in every if s not in mine), *self._wake, self._board])
        self._tell_keeper()

    def _sockets_of(self, child: Child) -> set[socket.socket]:
        if child is self.keeper:
            return {child.theirs, *(ends[1] for ends in self._links), self._admin_link[1]}
        if child is self.admin:
            return {child.theirs, self._admin_link[0], *self._admin_listeners}
        index = self.workers.index(child)
        return {child.theirs, self._links[index][0], *self._listeners[index]}

    def _serve(self, index: int) -> None:
        ends = self._links[index][0], self.workers[index].theirs
        serve(index, tuple(self._listeners[index]), *ends, self.shared, self.current, self.world, self.say)

    def _keep(self) -> None:
        ends = tuple(theirs for _, theirs in self._links), self._admin_link[1], self.keeper.theirs
        keep(*ends, self.shared, self.current, self.world, self.say)

    def _administer(self) -> None:
        ends = self._admin_listeners, self._admin_link[0], self.admin.theirs
        addresses = self._address, self._admin_at
        administer(*ends, self.shared, addresses, self.current, self.world, self.say)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            for child in self._children:
                if child.pid == pid:
                    self._listen_to(child)
                    self._mourn(child, status)

    def _mourn(self, child: Child, status: int) -> None:
        pid = child.pid
        pause_ns = child.died(self.world.now_ns())
        if self._stopping:
            self._end_last()
            return
        how = f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else f"exit {os.WEXITSTATUS(status)}"
        if not self._started:
            self._refused = BugError(f"{child.name} (process {pid}) ended while starting: {how}")
            self._stop()
            return
        self.say(
            f"{child.name} (process {pid}) died of {how}; the next one starts in {pause_ns // 10**6} ms",
            "error",
        )
        self._restarts[child.name] = self._restarts.get(child.name, 0) + 1
        if child is self.keeper:
            for worker in self.workers:
                self._tell(worker, "keeper-gone")
        if child not in self.workers:
            return
        index = self.workers.index(child)
        self.shared.clear(index)
        if pause_ns >= GIVE_UP_NS and len(self.workers) > 1:
            for one in self._listeners[index]:
                one.close()
            self._listeners[index] = ()
        self._tell_keeper()

    def _tell(self, child: Child, kind: str, body: Any = None) -> None:
        if not child.pid:
            return
        try:
            child.tell(kind, body)
        except StuckError:
            self.say(f"{child.name} (process {child.pid}) does not react and is started again", "error")
            child.signal(signal.SIGKILL)

    def _tell_keeper(self) -> None:
        about = {
            "workers": {index: worker.pid for index, worker in enumerate(self.workers) if worker.pid},
            "restarts": self._restarts,
            "reloads": self._reloads,
            "generation": self.current.number,
        }
        self._tell(self.keeper, "about", about)

    def _all_ready(self) -> None:
        if not self._started and all(child.ready for child in (self.keeper, *self.workers)):
            self._started = True
            fleet = self.current.fleet
            count = len(self.workers)
            engines = "1 engine" if len(fleet.engines) == 1 else f"{len(fleet.engines)} engines"
            by = "" if count == 1 else f" with {count} workers"
            self._put_notice()
            self.say(
                f"{fleet.name}: serving {engines} on http://{self._address}/v1{by}, "
                f"recording to {Path(fleet.gateway.store)}; Ctrl-C drains"
            )

    def _put_notice(self) -> None:
        notice = Notice(
            pid=os.getpid(),
            processes={child.name: child.pid for child in self._children},
            file=str(self.path.resolve()),
            address=self._address,
            generation=self.current.number,
            name=self.current.name,
            reloads=dict(self._reloads),
            problems=self._problems,
        )
        self._board.put(notice)

    # -- what it is told -----------------------------------------------------------------------------------------

    def _stop(self) -> None:
        """The first time: stop listening and let workers end what they have; again: cancel that."""
        if not self._stopping:
            self._stopping = True
            limits_ns = self.current.fleet.gateway.drain_timeout + SECOND
            self._stop_by_ns = self.world.now_ns() + limits_ns + PATIENCE_NS
            for some in self._listeners:
                for one in some:
                    one.close()
            self._end_last()
        for worker in self.workers:
            worker.signal(signal.SIGTERM)

    def _end_last(self) -> None:
        """When the workers have ended the keeper may, and when it has, the admin process, which then has seen everything."""
        if any(worker.pid for worker in self.workers):
            return
        if self.keeper.pid:
            self._tell(self.keeper, "finish")
        elif self.admin.pid:
            self._stop_by_ns = self.world.now_ns() + PATIENCE_NS
            self.admin.signal(signal.SIGTERM)

    def _reload(self) -> None:
        """Read the file again; the next generation, or every reason against it."""
        self._seen = signature(self.path)
        if self._stopping or not self._started:
            return
        try:
            new = self._next_generation()
        except ConfigErrors as error:
            self._keep_old([str(one) for one in error.errors])
        except SitsError as error:
            self._keep_old([str(error)])
        else:
            if new is None:
                self._reloads["unchanged"] += 1
                self.say(f"{self.path} says nothing new; generation {self.current.number} goes on")
                self._put_notice()
            else:
                self._reloads["taken"] += 1
                self.current = new
                self.say.know(generation=new.number)
                self._serving.clear()
                for child in self._children:
                    self._tell(child, "generation", pack(new))
        self._tell_keeper()

    def _next_generation(self) -> Generation | None:
        written = read(self.path, self._override)
        check_change(self.current.written, written, self.path)
        slots = assign_slots(self.shared, self.current.slots, [engine.name for engine in written.engines])
        new = generation(self.current.number + 1, written, slots, self.world)
        if new.fleet == self.current.fleet:
            return None
        tried_out(new, self.world)
        return new

    def _keep_old(self, problems: list[str]) -> None:
        self._reloads["refused"] += 1
        self._problems = tuple(problems)
        old = self.current
        self.say(f"{self.path} is refused, generation {old.number} ({old.name}) goes on:", "error")
        for problem in problems:
            self.say(f"  {problem}", "error")
        self._put_notice()
