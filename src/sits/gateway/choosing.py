"""Choosing a replica for an exchange: the stage, what a second try asks, and what it counts as in flight.

Rules: what each choice saw is kept for the decision record, and a try that comes to nothing leaves nothing there; an engine that
fails before the first byte is tried elsewhere once, and only then; a fallback arm is tried when no engine of the arm is up.

Deliberately absent: the policies (policy.route, policy.residency), and the breakers (gateway.places).
"""

from collections.abc import Iterable
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from sits.core.breakpoints import DISPATCHED, FIRST_TOKEN, ROUTED, Exactness
from sits.core.decision import Decision
from sits.core.errors import CapacityError, EngineError, EngineTimeoutError, SitsError, UnknownError
from sits.core.replica import Replica
from sits.gateway.adapters.service import Adapters
from sits.gateway.exchange import UNKNOWN_OUTPUT_TOKENS, Exchange
from sits.gateway.relay import MEASURED
from sits.gateway.routing import groups, not_allowed
from sits.gateway.versions import aim_back, fall_back
from sits.policy.residency import Reach
from sits.policy.route import Candidates, candidates_of, pick, route

if TYPE_CHECKING:
    from sits.gateway.pipeline import Gateway

ENGINE_POINTS: Final = range(DISPATCHED + 1, FIRST_TOKEN)
_INFLIGHT_TOKENS: Final = attrgetter("inflight_tokens")


def choose_replica(gateway: "Gateway", exchange: Exchange) -> None:
    """Which replica?  Filter, score, pick."""
    request = exchange.request
    exchange.need_tokens = request.prompt_tokens + (request.output_tokens_max or UNKNOWN_OUTPUT_TOKENS)
    choice = choose(gateway, exchange)
    if not choice:
        why = why_none(gateway, exchange)
        while not choice and fall_back(gateway, exchange):
            choice = choose(gateway, exchange)
        if not choice:
            raise _no_replica(gateway, exchange, why)
    exchange.replica = gateway.places.by_id[choice]
    timeline = exchange.timeline
    timeline.at[ROUTED], timeline.how[ROUTED] = gateway.now_ns(), MEASURED


def choose(gateway: "Gateway", exchange: Exchange) -> str:
    """Ask the routing policy; empty when there is no replica to choose.  What it saw is kept."""
    now_ns, places, decisions = gateway.now_ns(), gateway.places, gateway.decisions
    if now_ns >= places.due_ns:
        places.refresh(now_ns)
    gateway.turn = turn = gateway.turn + 1
    found = exchange.standing.able.get(exchange.arm)
    if found is None or found[0] != places.version:
        found = _able(gateway, exchange)
    request, choice, barred = exchange.request, "", exchange.tried
    if barred or places.trips:
        choice, barred = _choose_among_few(gateway, exchange, found[1], turn, now_ns)
    else:
        config, need = gateway.fleet.policy.route, exchange.need_tokens
        for candidates in found[1]:
            choice = pick(request, candidates, config, need, now_ns, turn)
            if choice:
                break
    if decisions is not None:
        if decisions.places_version != places.version:
            decisions.learn(places, now_ns)
        inflight = [*map(_INFLIGHT_TOKENS, places.replicas)]
        seen = (now_ns, turn, request.model, request.adapter, barred, inflight, decisions.version, choice)
        exchange.routed_on += (seen,)
    return choice


def _able(gateway: "Gateway", exchange: Exchange) -> tuple[int, tuple[Candidates, ...]]:
    """The replicas to choose from, nearest first, as long as the places stay as they are."""
    request, places = exchange.request, gateway.places
    among: Iterable[Iterable[Replica]] = (places.replicas,)
    if gateway.routing is not None:
        among = groups(reach(gateway, exchange), places.replicas)
    found = tuple(candidates_of(group, request.model, request.adapter) for group in among)
    able = exchange.standing.able[exchange.arm] = (places.version, found)
    return able


def _choose_among_few(
    gateway: "Gateway", exchange: Exchange, able: Iterable[Candidates], turn: int, now_ns: int
) -> tuple[str, tuple[str, ...]]:
    """The choice where some replicas are barred, because they have failed this request or its like; and those."""
    request, barred, places = exchange.request, exchange.tried, gateway.places
    config, need = gateway.fleet.policy.route, exchange.need_tokens
    shy = places.closed_to(request.model, exchange.tenant, now_ns) if places.trips else ()
    for candidates in able:
        for names in (
            (barred + shy, barred) if shy else (barred,)
        ):  # where all are shy of its like, any will do
            choice = pick(request, candidates.without(names), config, need, now_ns, turn)
            if choice:
                return choice, names
    return "", barred


def reach(gateway: "Gateway", exchange: Exchange) -> Reach:
    """Where routes, regions and residency let the exchange go, as its arm is now."""
    assert gateway.routing is not None
    standing = exchange.standing
    return gateway.routing.reach(
        standing.match,
        exchange.arm,
        tenant=standing.tenant,
        asked=standing.asked,
        region=standing.region,
        named=exchange.target.name if exchange.target is not None else "",
    )


def why_none(gateway: "Gateway", exchange: Exchange) -> Decision:
    """The decision behind an empty choice, with its reasons."""
    return route(
        exchange.request,
        gateway.places.replicas,
        gateway.fleet.policy.route,
        need_tokens=exchange.need_tokens,
        now_ns=gateway.now_ns(),
        tried=exchange.tried,
    )


def take(gateway: "Gateway", exchange: Exchange) -> None:
    """Count the exchange as in flight at its replica."""
    replica = exchange.taken = exchange.replica
    assert replica is not None
    gateway.places.take(replica, exchange.need_tokens)
    if exchange.request.adapter and gateway.adapters is not None:
        _take_adapter(gateway.adapters, exchange, replica.id, gateway.now_ns())


def _take_adapter(adapters: Adapters, exchange: Exchange, engine: str, now_ns: int) -> None:
    adapter = exchange.request.adapter
    if adapter in adapters.desk.names:
        adapters.desk.take(adapter, engine, now_ns)
        exchange.taken_adapter = adapter


def let_go(gateway: "Gateway", exchange: Exchange) -> None:
    """Stop counting it; harmless when it was not counted."""
    replica = exchange.taken
    if replica is None:
        return
    exchange.taken = None
    gateway.places.release(replica, exchange.need_tokens)
    if exchange.taken_adapter and gateway.adapters is not None:
        gateway.adapters.desk.let_go(exchange.taken_adapter, replica.id)
        exchange.taken_adapter = ""


def retry_elsewhere(gateway: "Gateway", exchange: Exchange, error: EngineError) -> bool:
    """Move the exchange to another replica, if it may be tried again and there is one."""
    assert exchange.replica is not None
    if exchange.started or exchange.tried or isinstance(error, EngineTimeoutError):
        return False
    exchange.tried = (exchange.replica.id,)
    before, fallen, aimed = exchange.routed_on, exchange.fallen, exchange.target
    choice = choose(gateway, exchange)
    while not choice and fall_back(gateway, exchange):
        choice = choose(gateway, exchange)
    if not choice or not gateway.places.may_retry():  # nothing came of it, and nothing of it is recorded
        exchange.routed_on, exchange.fallen = before, fallen
        aim_back(exchange, aimed)
        return False
    for point in ENGINE_POINTS:
        exchange.timeline.mark(point, 0, Exactness.MISSING)
    let_go(gateway, exchange)
    exchange.replica = gateway.places.by_id[choice]
    take(gateway, exchange)
    return True


def say_elsewhere(gateway: "Gateway", exchange: Exchange) -> bool:
    """Move the exchange to a replica that may understand it, when this one's dialect has no words for it; nothing was sent."""
    assert exchange.replica is not None
    exchange.tried += (exchange.replica.id,)
    before = exchange.routed_on
    choice = choose(gateway, exchange)
    if not choice:
        exchange.routed_on = before
        return False
    let_go(gateway, exchange)
    exchange.replica = gateway.places.by_id[choice]
    take(gateway, exchange)
    return True


def _no_replica(gateway: "Gateway", exchange: Exchange, decision: Decision) -> SitsError:
    name, adapter, adapters = exchange.model, exchange.request.adapter, gateway.adapters
    if gateway.routing is not None:
        kept = not_allowed(reach(gateway, exchange), exchange, gateway.places.replicas)
        if kept is not None:
            return kept
    if decision.outcome == "refused_adapter" and adapters is not None and adapter in adapters.desk.names:
        return adapters.desk.refusal(adapter)
    if decision.outcome == "refused_unhealthy":
        return CapacityError(
            f"no engine that serves {name!r} is up", code="no_healthy_engine", retry_after_s=1.0
        )
    what = "adapter" if decision.outcome == "refused_adapter" else "model"
    shown = exchange.request.adapter if what == "adapter" else name
    return UnknownError(
        f"the {what} {shown!r} is not served here",
        field="model",
        code="model_not_found",
        hint="GET /v1/models lists them",
    )
