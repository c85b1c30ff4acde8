"""A worker's desk: whether an adapter is ready, waiting for one that is not, and counting what is in use.

Ready is a look into a dict.  Everything else is off the beaten path.

Rules:
- An adapter is asked for once, however many requests wait for it; they go on together when a view has it ready.
- A request waits until its own bound, `wait`; it is refused at once when nothing can come of waiting: 503, code
  `adapter_not_ready`, the engines and their reasons, and when to try again.
- What is told as asked for has somebody waiting in that moment, or was just refused: the keeper may have evicted since what was
  asked for a moment ago and served, and would load it again for nobody.
- An engine that denies an adapter to a request is out of the routes for it in the same moment, and stays so until the keeper has heard
  of it, whatever older views say.
- When the keeper is away, the last view stands: requests still find out when an engine has lost an adapter.

Deliberately absent: engines, and what to do about them (gateway.adapters.keeper).
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from sits.core.errors import CapacityError
from sits.core.fleet_adapters import RuntimeAdapters
from sits.core.ports import World
from sits.core.replica import Replica
from sits.core.units import SECOND
from sits.gateway.adapters.view import Denied, Report, Use, View, Why

WAITING_MAX = 4096
"""Requests that may wait for adapters in one worker; more are refused."""

KEPT = 2
"""Generations of replicas that are kept up to date: requests of the last one may still run."""

_UNKNOWN = Why("starting", "nothing is known of it yet", 0, hopeless=False)


class Desk:
    """The adapters as one worker's requests see them.

    Args:
        world: clock; control: the configuration.
        send: called when the keeper should hear a report now.

    `ready`: adapters that answer somewhere; `names`: all that are looked after.

    """

    def __init__(self, world: World, control: RuntimeAdapters, send: Callable[[], None]) -> None:
        self.world = world
        self.control = control
        self.send = send
        self.names = frozenset(adapter.name for adapter in control.adapters)
        self.ready: dict[str, int] = {}
        self.waiting = 0
        self.refused = 0
        self._view = View()
        self._bound: list[tuple[list[tuple[Replica, frozenset[str]]], Callable[[], object]]] = []
        self._uses: dict[tuple[str, str], Use] = {}
        self._waiters: dict[str, set[asyncio.Future[None]]] = {}
        self._wanted: set[str] = set()
        self._denied: list[tuple[int, Denied]] = []
        self._barred: dict[tuple[str, str], int] = {}
        self._doubted: set[str] = set()
        self.number = 0

    def bind(
        self, control: RuntimeAdapters, replicas: Iterable[Replica], changed: Callable[[], object] = bool
    ) -> None:
        """Keep these replicas' `adapters` up to date: what they have by configuration, and what is proven; tell `changed`."""
        self.control = control
        self.names = frozenset(adapter.name for adapter in control.adapters)
        self._bound = [*self._bound[-(KEPT - 1) :], ([(r, frozenset(r.adapters)) for r in replicas], changed)]
        self._route()

    # -- requests -----------------------------------------------------------------------------------------------

    def wait(self, adapter: str) -> Awaitable[None]:
        """To be awaited until `adapter` is ready somewhere.

        Raises:
            CapacityError: `adapter_not_ready`, at once or when awaited.

        """
        now_ns = self.world.now_ns()
        asked = adapter in self._waiters
        until_ns = now_ns + self.control.wait
        why = self._view.why.get(adapter, _UNKNOWN)
        if self.control.wait <= 0 or self.waiting >= WAITING_MAX or _in_vain(why, now_ns, until_ns):
            if not asked:
                self._wanted.add(adapter)
                self.send()
            raise self.refusal(adapter)
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        self._waiters.setdefault(adapter, set()).add(waiter)
        self.waiting += 1
        timer = loop.call_later(self.control.wait / SECOND, self._expire, adapter, waiter)
        waiter.add_done_callback(lambda _: self._waited(adapter, waiter, timer))
        if not asked:
            self.send()
        return waiter

    def refusal(self, adapter: str) -> CapacityError:
        """The error that says why `adapter` is not ready, and when to come again."""
        self.refused += 1
        why = self._view.why.get(adapter, _UNKNOWN)
        return CapacityError(
            f"the adapter {adapter!r} is not ready: {why.text or why.reason}",
            field="model",
            value=adapter,
            code="adapter_not_ready",
            retry_after_s=self.retry_after_s(adapter),
        )

    def retry_after_s(self, adapter: str) -> float:
        """When to come again for an adapter that is not ready."""
        why = self._view.why.get(adapter, _UNKNOWN)
        return max(why.retry_ns - self.world.now_ns(), self.control.retry_after) / SECOND

    def take(self, adapter: str, engine: str, now_ns: int) -> None:
        """A request for `adapter` goes to `engine`."""
        use = self._uses.get((engine, adapter))
        if use is None:
            use = self._uses[engine, adapter] = Use(engine, adapter, 0, 0)
        use.inflight += 1
        use.used_ns = now_ns

    def let_go(self, adapter: str, engine: str) -> None:
        """It has ended."""
        use = self._uses[engine, adapter]
        use.inflight -= 1
        view = self._view
        if not use.inflight and (view.crowded or adapter in view.leaving.get(engine, ())):
            self.send()

    def deny(self, adapter: str, engine: str, reason: str, detail: str) -> None:
        """An engine answered a request as if it had not the adapter: `denied`, or `names_base` when another model answered."""
        number = self.number + 1
        self._denied.append((number, Denied(engine, adapter, reason, detail)))
        self._barred[engine, adapter] = number
        self._route()
        self.send()

    def doubt(self, engine: str) -> None:
        """A request found an engine failing: what it has loaded should be looked at."""
        if engine not in self._doubted:
            self._doubted.add(engine)
            self.send()

    # -- the keeper ---------------------------------------------------------------------------------------------

    def report(self) -> Report:
        """What the keeper should hear."""
        self.number += 1
        wanted = tuple(sorted(self._wanted | self._waiters.keys()))
        self._wanted.clear()
        doubted, self._doubted = tuple(self._doubted), set()
        return Report(
            self.number,
            self._view.life,
            self._view.generation,
            wanted,
            tuple(self._uses.values()),
            tuple(denied for _, denied in self._denied),
            doubted,
        )

    def apply(self, view: View, heard: int) -> bool:
        """Go by another view, made after report number `heard`; whether it is one the keeper should know we go by."""
        news = (view.life, view.generation) != (self._view.life, self._view.generation)
        self._denied = [entry for entry in self._denied if entry[0] > heard]
        self._barred = {key: number for key, number in self._barred.items() if number > heard}
        self._view = view
        self._route()
        self._wanted -= self.ready.keys()
        now_ns = self.world.now_ns()
        for adapter in list(self._waiters):
            why = view.why.get(adapter, _UNKNOWN)
            for waiter in list(self._waiters[adapter]):
                if waiter.done():
                    continue
                if adapter in self.ready:
                    waiter.set_result(None)
                elif _in_vain(why, now_ns, now_ns + self.control.wait):
                    waiter.set_exception(self.refusal(adapter))
        return news and bool(view.leaving)

    def _route(self) -> None:
        """Give every replica the adapters it is proven to have."""
        ready: dict[str, int] = {}
        proven: dict[str, frozenset[str]] = {}
        for engine, names in self._view.ready.items():
            mine = frozenset(
                name for name in names if (engine, name) not in self._barred and name in self.names
            )
            proven[engine] = mine
            for name in mine:
                ready[name] = ready.get(name, 0) + 1
        self.ready = ready
        for replicas, changed in self._bound:
            for replica, fixed in replicas:
                replica.adapters = fixed | proven.get(replica.id, frozenset())
            changed()

    def _expire(self, adapter: str, waiter: "asyncio.Future[None]") -> None:
        if not waiter.done():
            waiter.set_exception(self.refusal(adapter))

    def _waited(self, adapter: str, waiter: "asyncio.Future[None]", timer: asyncio.TimerHandle) -> None:
        timer.cancel()
        self.waiting -= 1
        mine = self._waiters.get(adapter)
        if mine is not None:
            mine.discard(waiter)
            if not mine:
                del self._waiters[adapter]


def _in_vain(why: Why, now_ns: int, until_ns: int) -> bool:
    """Whether nothing can come of waiting until then."""
    return why.hopeless and (why.retry_ns == 0 or why.retry_ns > max(now_ns, until_ns))
