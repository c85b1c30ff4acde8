"""The places a request can go: the fleet's engines as Replicas, what is in flight there, and who is down.

Rules:
- In-flight counts are exact: `take` on dispatch, `release` once on the way out, whatever happened in between.
- The breaker opens after `BREAKER_FAILURES` failures in a row of the *connection* to an engine (refused, reset, garbage).
  An answered 5xx and a time-out do not count: one tenant's poison request must not close an engine for all.
- An open breaker lets a request through again after `BREAKER_OPEN_NS`; success closes it, failure opens it anew.
- Retries are bounded by a budget: each request earns `RETRY_SHARE` of a retry, at most `RETRY_BUDGET_MAX` are saved up.

Deliberately absent: the choice (policy.route), and scraping (who scrapes an engine calls `observe`).
"""

from collections.abc import Iterable

from sits.core.errors import EngineError
from sits.core.fleet import Adapters, EmulatedEngine, Fleet, OpenAIEngine
from sits.core.replica import Replica
from sits.core.units import SECOND

BREAKER_FAILURES = 5
BREAKER_OPEN_NS = SECOND
BREAKER_CODES = frozenset({"engine_unreachable", "engine_died", "engine_garbage"})
"""Error codes of an `EngineError` that speak about the connection, not about the request."""

RETRY_SHARE = 0.1
RETRY_BUDGET_MAX = 10.0


def replicas_of(fleet: Fleet, names: Iterable[str]) -> tuple[Replica, ...]:
    """One Replica for each engine of the fleet whose name is in `names`, in the fleet's order."""
    wanted = set(names)
    families = {family.name: family for family in fleet.adapters}
    return tuple(_replica(engine, families) for engine in fleet.engines if engine.name in wanted)


def _replica(engine: EmulatedEngine | OpenAIEngine, families: dict[str, Adapters]) -> Replica:
    adapters: list[str] = []
    for name in engine.adapters:
        family = families.get(name)
        adapters += [f"{name}-{i}" for i in range(family.count)] if family else [name]
    if isinstance(engine, OpenAIEngine):
        models, region, weight = engine.models, engine.region, engine.weight
    else:
        models, region, weight = (engine.model,), "", 1.0
    return Replica(id=engine.name, models=models, adapters=tuple(adapters), region=region, weight=weight)


def catalog(replicas: Iterable[Replica]) -> dict[str, tuple[str, str]]:
    """Every name a caller may ask for -> (model, adapter).  A model's own name beats an adapter's."""
    names: dict[str, tuple[str, str]] = {}
    models: dict[str, tuple[str, str]] = {}
    for replica in replicas:
        models.update((model, (model, "")) for model in replica.models)
        for adapter in replica.adapters:
            for model in replica.models[:1]:
                names.setdefault(adapter, (model, adapter))
    return names | models


class Places:
    """The replicas, kept up to date by the gateway."""

    def __init__(self, replicas: Iterable[Replica]) -> None:
        self.replicas = tuple(replicas)
        self.by_id = {replica.id: replica for replica in self.replicas}
        self.inflight_requests = 0
        self.inflight_tokens = 0
        self.retries = 0
        self._budget = RETRY_BUDGET_MAX
        self._failures = dict.fromkeys(self.by_id, 0)
        self._open_until_ns: dict[str, int] = {}

    def take(self, replica: Replica, tokens: int) -> None:
        """Count a request of `tokens` as in flight at `replica`."""
        replica.inflight_requests += 1
        replica.inflight_tokens += tokens
        self.inflight_requests += 1
        self.inflight_tokens += tokens

    def release(self, replica: Replica, tokens: int) -> None:
        """Undo one `take`."""
        replica.inflight_requests -= 1
        replica.inflight_tokens -= tokens
        self.inflight_requests -= 1
        self.inflight_tokens -= tokens

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

    def refresh(self, now_ns: int) -> None:
        """Let a probe through to replicas whose breaker has been open long enough."""
        if not self._open_until_ns:
            return
        for name, until_ns in list(self._open_until_ns.items()):
            if now_ns >= until_ns:
                del self._open_until_ns[name]
                self.by_id[name].healthy = True

    def succeeded(self, replica: Replica) -> None:
        """The engine answered: its breaker closes, and the retry budget grows a little."""
        self._failures[replica.id] = 0
        if self._budget < RETRY_BUDGET_MAX:
            self._budget = min(RETRY_BUDGET_MAX, self._budget + RETRY_SHARE)

    def failed(self, replica: Replica, error: EngineError, now_ns: int) -> None:
        """The engine failed; opens the breaker when its connection failed too often in a row."""
        if error.code not in BREAKER_CODES:
            return
        self._failures[replica.id] += 1
        if self._failures[replica.id] >= BREAKER_FAILURES:
            replica.healthy = False
            self._open_until_ns[replica.id] = now_ns + BREAKER_OPEN_NS

    def may_retry(self) -> bool:
        """Spend one retry of the budget, if there is one."""
        if self._budget < 1.0:
            return False
        self._budget -= 1.0
        self.retries += 1
        return True
