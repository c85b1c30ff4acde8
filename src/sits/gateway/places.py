"""The places a request can go: the fleet's engines as Replicas, what is in flight there, and who is down.

Rules:
- In-flight counts are exact: `take` on dispatch, `release` once on the way out, whatever happened in between.  They
  are kept in the table all workers share (`gateway.shared`): what is chosen and admitted by looks at the whole gateway, as of
  `REFRESH_NS` ago per engine, as of now in total.
- What speaks about the *connection* to an engine counts against it: refused, reset, garbage.  An answered 5xx and a
  time-out do not: one tenant's poison request must not close an engine for all.
- An engine that cannot be reached `BREAKER_FAILURES` times in a row, counted over all workers, is closed to all for `BREAKER_OPEN_NS`.
  One that is reached and then dies or babbles so often is closed to that tenant's requests for that model, as long as another engine
  can take them: the connection may well have died of them, so others do not suffer for it, and nobody is refused for it.
- After that time one request a worker goes there as a probe, and the others wait for what becomes of it as long again.
  Success closes the breaker, and the engine is eased in (`policy.ease`), as one that a reload has added is; failure opens it anew.
- Retries are bounded by a budget (`gateway.retry_budget`).

Deliberately absent: the choice (policy.route), what the fleet has (gateway.catalog), and scraping (who scrapes an engine calls `observe`).
"""

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from sits.core.errors import EngineError
from sits.core.replica import Replica
from sits.core.units import MS, SECOND
from sits.gateway.retry_budget import RetryBudget
from sits.gateway.shared import (
    FAILED_NS,
    FAILURES,
    INFLIGHT,
    ONE,
    OPEN_NS,
    REACHED_NS,
    TOKENS_MAX,
    Shared,
    assign_slots,
    column,
    room_for,
)
from sits.policy.ease import eased

BREAKER_FAILURES: Final = 5
BREAKER_OPEN_NS: Final = SECOND
BREAKER_WINDOW_NS: Final = 10 * SECOND
"""Failures in a row longer ago than this, of a worker that has had nothing to do with the engine since, are forgotten."""

UNREACHABLE: Final = "engine_unreachable"
BREAKER_CODES: Final = frozenset({UNREACHABLE, "engine_died", "engine_garbage"})
"""Error codes of an `EngineError` that speak about the connection, not about the request."""

REFRESH_NS: Final = MS
REFRESH_ENGINE_NS: Final = MS // 10
"""How old the other workers' counts of an engine may be, at least, and more with many engines: looking costs about half a
microsecond an engine.  The totals that admission looks at are never old."""

NEVER_NS: Final = 2**62

TRIPS_MAX: Final = 4096


class Place(NamedTuple):
    """Where a worker counts: the table, its row, and each engine's slot."""

    shared: Shared
    worker: int
    slots: Mapping[str, int]


class _Trip:
    """The breaker between one replica and one tenant's requests for one model."""

    __slots__ = ("failures", "open_ns")

    def __init__(self) -> None:
        self.failures = 0
        self.open_ns = 0


class _Engine:
    """What is kept about one replica beside what policies see of it."""

    __slots__ = ("cell", "eased_ns", "inflight", "opens", "reached", "state", "weight")

    CLOSED = 0
    OPEN = 1
    PROBE = 2

    def __init__(self, replica: Replica, shared: Shared, slot: int) -> None:
        self.weight = replica.weight
        self.cell = column(slot, INFLIGHT)
        self.inflight = shared.over_workers(self.cell)
        self.opens = shared.over_workers(column(slot, OPEN_NS))
        self.reached = shared.over_workers(column(slot, REACHED_NS))
        self.state = self.CLOSED
        self.eased_ns = 0


class Places:
    """The replicas, kept up to date by the gateway.

    Args:
        replicas: of this generation of the configuration.
        place: where to count; left out, in a table of one row.
        before: the places of the generation before this one, in the same worker; what is known about engines of the same name
            goes on, others are new.
        now_ns: when this generation begins, for `before`.

    Attributes:
        replicas, by_id: what policies see; version: counts the states of it, as far as it is not what is in flight.
        budget: of retries.
        due_ns: when the next `refresh` has something to do.
        suspects: replicas of which not all is well; trips: breakers of a tenant and model.  Both are empty when all is well, so
            that the live path need not ask.

    """

    def __init__(
        self,
        replicas: Iterable[Replica],
        place: Place | None = None,
        *,
        before: "Places | None" = None,
        now_ns: int = 0,
    ) -> None:
        self.replicas = tuple(replicas)
        self.by_id = {replica.id: replica for replica in self.replicas}
        self.place = place or self._alone_with(before)
        self._shared = self.place.shared
        self._row = self._shared.row(self.place.worker)
        self._inflight = self._shared.over_workers(INFLIGHT)
        self._engines = {r.id: _Engine(r, self._shared, self.place.slots[r.id]) for r in self.replicas}
        self.version = self.due_ns = 0
        self.trips: dict[tuple[str, str], dict[str, _Trip]] = {}
        self.suspects: set[str] = set()
        self._easing: set[str] = set()
        self._refreshed_ns = 0
        self._every_ns = max(REFRESH_NS, REFRESH_ENGINE_NS * len(self.replicas))
        self._alone = self._shared.workers == 1 and before is None
        self.budget = RetryBudget()
        if before is not None:
            self._continue(before, now_ns)

    def changed(self) -> None:
        """Say that something about a replica is other than it was, besides what is in flight there."""
        self.version += 1
        self.due_ns = 0

    def inflight(self) -> tuple[int, int]:
        """Requests in flight and their tokens, of all workers, as of now."""
        return divmod(sum(self._inflight), ONE)

    @property
    def inflight_requests(self) -> int:
        """Requests in flight."""
        return self.inflight()[0]

    @property
    def inflight_tokens(self) -> int:
        """Their tokens."""
        return self.inflight()[1]

    def take(self, replica: Replica, tokens: int) -> None:
        """Count a request of `tokens` as in flight at `replica`."""
        if tokens > TOKENS_MAX:  # noqa: PLR1730  # `min` costs a call
            tokens = TOKENS_MAX
        engine, row = self._engines[replica.id], self._row
        one = ONE + tokens
        row[0] += one
        row[engine.cell] += one
        replica.inflight_tokens += tokens
        if engine.state:  # the probe: while it is out, nobody follows
            self._open(replica, self._refreshed_ns)

    def release(self, replica: Replica, tokens: int) -> None:
        """Undo one `take`."""
        if tokens > TOKENS_MAX:  # noqa: PLR1730  # `min` costs a call
            tokens = TOKENS_MAX
        row, one = self._row, ONE + tokens
        row[0] -= one
        row[self._engines[replica.id].cell] -= one
        replica.inflight_tokens -= tokens

    def observe(
        self,
        engine: str,
        *,
        running: int,
        waiting: int,
        kv_usage: float,
        now_ns: int,
        capacity_tokens: int = 0,
    ) -> None:
        """Keep what was scraped from an engine at `now_ns`."""
        replica = self.by_id[engine]
        replica.running, replica.waiting, replica.kv_usage = running, waiting, kv_usage
        replica.observed_ns = now_ns
        replica.capacity_tokens = capacity_tokens or replica.capacity_tokens
        self.changed()

    def refresh(self, now_ns: int) -> None:
        """Look at what the other workers counted, let probes through where it is time, ease in who came back; if it is due."""
        if now_ns < self.due_ns:
            return
        self._refreshed_ns = now_ns
        for replica in self.replicas:
            self._look_at(replica, now_ns)
        calm = self._alone and not self.suspects and not self._easing
        self.due_ns = NEVER_NS if calm else now_ns + self._every_ns

    def closed_to(self, model: str, tenant: str, now_ns: int) -> tuple[str, ...]:
        """Replicas that a tenant's requests for a model have killed connections of too often just now."""
        trips = self.trips.get((model, tenant)) if self.trips else None
        return tuple(name for name, trip in trips.items() if trip.open_ns > now_ns) if trips else ()

    def reached(self, replica: Replica, now_ns: int) -> None:
        """The engine began to answer: it can be reached, and nobody need wait any longer."""
        if replica.id not in self.suspects:
            return
        self.suspects.discard(replica.id)
        engine, row = self._engines[replica.id], self._row
        row[engine.cell + FAILURES], row[engine.cell + OPEN_NS], row[engine.cell + REACHED_NS] = 0, 0, now_ns
        if engine.state:
            engine.state = engine.CLOSED
            replica.healthy = True
            self._ease(replica, now_ns)

    def succeeded(self, replica: Replica, model: str = "", tenant: str = "") -> None:
        """The engine answered to the end: the breaker of the likes of it closes, and the retry budget grows a little."""
        if self.trips and (trips := self.trips.get((model, tenant))) is not None:
            trips.pop(replica.id, None)
            if not trips:
                del self.trips[model, tenant]
        self.budget.earn()

    def failed(
        self, replica: Replica, error: EngineError, now_ns: int, model: str = "", tenant: str = ""
    ) -> None:
        """The engine failed; opens a breaker when its connection failed too often in a row.  A failure of many requests is one."""
        if error.counted is not None:
            whom = UNREACHABLE if error.code == UNREACHABLE else (model, tenant)
            if whom in error.counted:
                return
            error.counted.add(whom)
        if error.code == UNREACHABLE:
            self._unreachable(replica, now_ns)
        elif error.code in BREAKER_CODES:
            trips = self.trips.get((model, tenant))
            if trips is None:
                if len(self.trips) >= TRIPS_MAX:
                    del self.trips[next(iter(self.trips))]
                trips = self.trips[model, tenant] = {}
            trip = trips.setdefault(replica.id, _Trip())
            trip.failures += 1
            if trip.failures >= BREAKER_FAILURES:
                trip.open_ns = now_ns + BREAKER_OPEN_NS

    def may_retry(self) -> bool:
        """Spend one retry of the budget, if there is one."""
        return self.budget.spend()

    def _alone_with(self, before: "Places | None") -> Place:
        """A table of one row for a gateway of one process; over reloads it stays the same one."""
        names = [replica.id for replica in self.replicas]
        if before is None:
            shared = Shared(1, room_for(len(names)))
            return Place(shared, 0, assign_slots(shared, {}, names))
        shared, worker, slots = before.place
        return Place(shared, worker, assign_slots(shared, slots, names))

    def _look_at(self, replica: Replica, now_ns: int) -> None:
        engine = self._engines[replica.id]
        replica.inflight_tokens = sum(engine.inflight) % ONE
        if (until_ns := max(engine.opens)) > now_ns:
            if replica.healthy:
                self.changed()
            engine.state = engine.OPEN
            replica.healthy = False
            self.suspects.add(replica.id)
        elif engine.state == engine.OPEN:
            engine.state = engine.PROBE
            replica.healthy = True
            self.changed()
        if until_ns and until_ns - BREAKER_OPEN_NS >= max(engine.reached):
            self.suspects.add(replica.id)  # so that the first answer is noted, whichever worker has it
        if replica.id in self._easing:
            share = eased(engine.eased_ns, now_ns)
            replica.weight = engine.weight * share
            self.changed()
            if share >= 1.0:
                self._easing.discard(replica.id)

    def _unreachable(self, replica: Replica, now_ns: int) -> None:
        row, cell = self._row, self._engines[replica.id].cell
        self.suspects.add(replica.id)
        self.due_ns = 0
        if now_ns - row[cell + FAILED_NS] > BREAKER_WINDOW_NS:
            row[cell + FAILURES] = 0
        row[cell + FAILURES] += 1
        row[cell + FAILED_NS] = now_ns
        counts, times = (self._shared.over_workers(cell + what) for what in (FAILURES, FAILED_NS))
        in_a_row = sum(
            count for count, at_ns in zip(counts, times, strict=True) if now_ns - at_ns <= BREAKER_WINDOW_NS
        )
        if in_a_row >= BREAKER_FAILURES:
            self._open(replica, now_ns)

    def _open(self, replica: Replica, now_ns: int) -> None:
        engine = self._engines[replica.id]
        self._row[engine.cell + OPEN_NS] = now_ns + BREAKER_OPEN_NS
        engine.state = engine.OPEN
        replica.healthy = False
        self.changed()

    def _ease(self, replica: Replica, now_ns: int) -> None:
        engine = self._engines[replica.id]
        engine.eased_ns = now_ns
        replica.weight = engine.weight * eased(now_ns, now_ns)
        self._easing.add(replica.id)
        self.changed()

    def _continue(self, before: "Places", now_ns: int) -> None:
        self.budget = before.budget
        self.trips = before.trips
        self.suspects |= before.suspects & self.by_id.keys()
        self._easing |= before._easing & self.by_id.keys()
        for replica in self.replicas:
            known = before.by_id.get(replica.id)
            if known is None:
                self._ease(replica, now_ns)
                continue
            engine, old = self._engines[replica.id], before._engines[replica.id]
            for name in ("running", "waiting", "kv_usage", "observed_ns", "capacity_tokens", "healthy"):
                setattr(replica, name, getattr(known, name))
            engine.state, engine.eased_ns = old.state, old.eased_ns
        for replica in self.replicas:
            self._look_at(replica, now_ns)
        self._refreshed_ns = now_ns
