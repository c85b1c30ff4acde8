"""Routing: filter -> score -> pick over replicas.

Filters take away: `unhealthy`, `drained` (weight 0), `model` (does not serve it), `adapter` (may not serve it),
`tried` (the caller excludes it).  Scorers give parts in 0..1, higher is better:

`load`     1 - l_i / max(l),  l_i = (in-flight tokens sent by this gateway + this request's) / weight: exact, local.
`engine`   free KV share / (1 + waiting), as scraped; only while younger than `stale_after`.  Stale is *unknown*, not saturated:
           an unknown engine gets the mean of the known ones, so silence is neither punished nor rewarded.
`adapter`, `prefix`  1 for the first replica of the key's rendezvous order whose l_i <= load_bound x mean(l) (consistent
           hashing with bounded loads, Mirrokni et al. 2018), else 0.

total = load + ENGINE_WEIGHT x engine + adapter_affinity x adapter + prefix_affinity x prefix.  Pick the highest; a
tie goes to the lower l_i (what rounding has made equal is not), then by id, or by the caller's `turn`.  `round_robin` filters alike and then takes turns; it looks at no load.

Deliberately absent: dice, clocks, and the replica's state itself (the gateway counts, a scraper observes).
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from math import fsum
from typing import Any, Final

from sits.core.decision import Decision
from sits.core.fleet import Route
from sits.core.replica import Replica
from sits.core.request import Request
from sits.policy.rendezvous import score as claim

ENGINE_WEIGHT: Final = 0.5
"""Scraped state counts half of what was counted here a moment ago."""


def route(
    request: Request,
    replicas: Sequence[Replica],
    config: Route,
    *,
    need_tokens: int,
    now_ns: int,
    turn: int | None = None,
    tried: Collection[str] = (),
) -> Decision:
    """Choose a replica for `request`.

    Outcomes: `chosen` (choice = replica id), `refused_model` (nobody serves it), `refused_adapter` (nobody may serve
    it), `refused_unhealthy` (those who could are down).  `reasons["candidates"]` holds each candidate's score parts
    and the age of what was known about it; `reasons["filtered"]` why the others were out.
    """
    candidates: list[Replica] = []
    filtered: dict[str, str] = {}
    for replica in replicas:
        why = _why_not(request, replica, tried)
        if why:
            filtered[replica.id] = why
        else:
            candidates.append(replica)
    if not candidates:
        return Decision(policy="route", outcome=_refusal(filtered), reasons={"filtered": filtered})
    if config.kind == "round_robin":
        return _take_turns(candidates, filtered, turn or 0)
    rows = _score(request, candidates, config, need_tokens, now_ns)
    return Decision(
        policy="route",
        outcome="chosen",
        choice=_pick(rows, turn),
        reasons={"candidates": rows, "filtered": filtered},
    )


class Candidates:
    """The replicas that can take requests for one model and adapter, made ready to be picked from again and again.

    `replicas`, in the order of their `ids`; `only`: the answer where there is no choice, None where there is one; `observed_ns`: of
    the newest scraped state among them, 0 where nothing was scraped.
    """

    __slots__ = ("ids", "observed_ns", "only", "replicas")

    def __init__(self, replicas: Iterable[Replica]) -> None:
        self.replicas = tuple(sorted(replicas, key=lambda replica: replica.id))
        self.ids = tuple(replica.id for replica in self.replicas)
        self.only = None if len(self.ids) > 1 else "".join(self.ids)
        self.observed_ns = max((replica.observed_ns for replica in self.replicas), default=0)

    def without(self, barred: Collection[str]) -> "Candidates":
        """Those that are not `barred`."""
        return Candidates(replica for replica in self.replicas if replica.id not in barred)


def candidates_of(
    replicas: Iterable[Replica], model: str, adapter: str, tried: Collection[str] = ()
) -> Candidates:
    """The first step of `route` alone; good as long as nothing about the replicas changes but what is in flight there."""
    return Candidates(
        replica
        for replica in replicas
        if replica.healthy
        and model in replica.models
        and replica.weight > 0.0
        and (not adapter or adapter in replica.adapters)
        and (not tried or replica.id not in tried)
    )


def pick(
    request: Request,
    candidates: Candidates,
    config: Route,
    need_tokens: int,
    now_ns: int,
    turn: int | None = None,
) -> str:
    """The choice of `route` alone, empty when it refuses: what the live path asks for each request.

    Same arithmetic, without the account of it; a law holds the two together.
    """
    if candidates.only is not None:
        return candidates.only
    ids, need = candidates.ids, need_tokens or 1
    if config.kind == "round_robin":
        return ids[(turn or 0) % len(ids)]
    loads = [(replica.inflight_tokens + need) / replica.weight for replica in candidates.replicas]
    ranks: list[Any] = loads  # the lower, the better
    observed_ns = candidates.observed_ns
    if request.adapter or request.prefix or (observed_ns and observed_ns >= now_ns - config.stale_after):
        totals = _totals(request, candidates.replicas, loads, config, now_ns)
        ranks = [(-total, load) for total, load in zip(totals, loads, strict=True)]
    best = min(ranks)
    ties = ranks.count(best)
    if ties == 1:
        return ids[ranks.index(best)]
    tied: Sequence[str] = ids
    if ties < len(ids):
        tied = [name for name, rank in zip(ids, ranks, strict=True) if rank == best]
    return tied[turn % ties] if turn is not None else tied[0]


def _totals(
    request: Request, replicas: Sequence[Replica], loads: Sequence[float], config: Route, now_ns: int
) -> list[float]:
    """The total of each candidate, where more is to be looked at than loads."""
    highest = max(loads)
    totals = _free(replicas, config.stale_after, now_ns)
    for i, load in enumerate(loads):
        totals[i] = 1.0 - load / highest + ENGINE_WEIGHT * totals[i]
    if request.adapter or request.prefix:
        _add_homes(totals, request, replicas, loads, config)
    return totals


def _add_homes(
    totals: list[float],
    request: Request,
    candidates: Sequence[Replica],
    loads: Sequence[float],
    config: Route,
) -> None:
    """Give the homes of the request's adapter and prefix their bonus."""
    wishes = ((request.adapter, config.adapter_affinity), (request.prefix, config.prefix_affinity))
    for key, wish in wishes:
        home = _home(key, wish, candidates, loads, config.load_bound)
        if home:
            for i, replica in enumerate(candidates):
                totals[i] += wish * (replica.id == home)


def _pick(rows: Sequence[dict[str, Any]], turn: int | None) -> str:
    """The id with the highest total; among equals that with the lowest load, then the first by id, or the `turn`-th."""
    best = min((-row["total"], row["load_tokens"]) for row in rows)
    tied: list[str] = sorted(row["id"] for row in rows if (-row["total"], row["load_tokens"]) == best)
    return tied[turn % len(tied)] if turn is not None else tied[0]


def _why_not(request: Request, replica: Replica, tried: Collection[str]) -> str:
    """Why `replica` cannot take `request`, empty when it can.  What it *is* comes before how it is."""
    if request.model not in replica.models:
        return "model"
    if request.adapter and request.adapter not in replica.adapters:
        return "adapter"
    if replica.id in tried:
        return "tried"
    if replica.weight <= 0.0:
        return "drained"
    return "" if replica.healthy else "unhealthy"


def _refusal(filtered: dict[str, str]) -> str:
    """The refusal closest to success: someone down beats someone without the adapter beats nobody at all."""
    whys = set(filtered.values())
    if whys & {"unhealthy", "drained", "tried"}:
        return "refused_unhealthy"
    return "refused_adapter" if "adapter" in whys else "refused_model"


def _take_turns(candidates: Sequence[Replica], filtered: dict[str, str], turn: int) -> Decision:
    ids = sorted(replica.id for replica in candidates)
    return Decision(
        policy="route",
        outcome="chosen",
        choice=ids[turn % len(ids)],
        reasons={"turn": turn, "candidates": [{"id": i} for i in ids], "filtered": filtered},
    )


def _score(
    request: Request, candidates: Sequence[Replica], config: Route, need_tokens: int, now_ns: int
) -> list[dict[str, Any]]:
    """One row a candidate: the score parts, their weighted total, and how old the engine's state is."""
    need = need_tokens or 1
    loads = [(replica.inflight_tokens + need) / replica.weight for replica in candidates]
    highest = max(loads)
    engines = _engine_scores(candidates, config.stale_after, now_ns)
    prefix = _home(request.prefix, config.prefix_affinity, candidates, loads, config.load_bound)
    adapter = _home(request.adapter, config.adapter_affinity, candidates, loads, config.load_bound)
    rows: list[dict[str, Any]] = []
    for i, replica in enumerate(candidates):
        age_ns, fresh, engine = engines[i]
        load = 1.0 - loads[i] / highest
        total = load + ENGINE_WEIGHT * engine
        row: dict[str, Any] = {
            "id": replica.id,
            "load_tokens": loads[i],
            "load": load,
            "engine": engine,
            "age_ns": age_ns,
            "fresh": fresh,
        }
        if adapter:
            row["adapter"] = float(replica.id == adapter)
            total += config.adapter_affinity * row["adapter"]
        if prefix:
            row["prefix"] = float(replica.id == prefix)
            total += config.prefix_affinity * row["prefix"]
        row["total"] = total
        rows.append(row)
    return rows


def _engine_scores(
    candidates: Sequence[Replica], stale_after_ns: int, now_ns: int
) -> list[tuple[int | None, bool, float]]:
    """(age, fresh, score) of each candidate."""
    scores = _free(candidates, stale_after_ns, now_ns)
    ages = [replica.age_ns(now_ns) for replica in candidates]
    return [
        (age, age is not None and age <= stale_after_ns, score)
        for age, score in zip(ages, scores, strict=True)
    ]


def _free(candidates: Sequence[Replica], stale_after_ns: int, now_ns: int) -> list[float]:
    """The engine score of each candidate; the unknown get the mean of the known, or 0 when none is known."""
    oldest_ns = max(1, now_ns - stale_after_ns)
    frees: list[float] = []
    unknown: list[int] = []
    for i, replica in enumerate(candidates):
        free = 0.0
        if replica.observed_ns >= oldest_ns:
            free = 1.0 - replica.kv_usage
            free = free / (1 + replica.waiting) if free > 0.0 else 0.0
        else:
            unknown.append(i)
        frees.append(free)
    if unknown and len(unknown) < len(frees):
        mean = fsum(frees) / (len(frees) - len(unknown))
        for i in unknown:
            frees[i] = mean
    return frees


def _home(
    key: str, weight: float, candidates: Sequence[Replica], loads: Sequence[float], bound: float
) -> str:
    """Id of the replica that `key` should stick to, empty when there is no key or no wish."""
    if not key or not weight:
        return ""
    most = bound * fsum(loads) / len(loads)
    owner: Callable[[int], tuple[float, str]] = lambda i: (  # noqa: E731  (one expression, used once)
        claim(key.encode(), candidates[i].id, candidates[i].weight),
        candidates[i].id,
    )
    allowed = [i for i in range(len(candidates)) if loads[i] <= most]
    return candidates[max(allowed, key=owner)].id if allowed else ""
