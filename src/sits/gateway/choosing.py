"""Choosing a replica for an exchange: the stage, what a second try asks, and what it counts as in flight.

Rules: what each choice saw is kept for the decision record, and a try that comes to nothing leaves nothing there; an engine that
fails before the first byte is tried elsewhere once, and only then; a fallback arm is tried when no engine of the arm is up.

Deliberately absent: the policies (policy.route, policy.residency), and the breakers (gateway.places).
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sits.core.breakpoints import DISPATCHED, FIRST_TOKEN, ROUTED, Exactness
from sits.core.decision import Decision
from sits.core.errors import CapacityError, EngineError, EngineTimeoutError, SitsError, UnknownError
from sits.core.replica import Replica
from sits.gateway.exchange import UNKNOWN_OUTPUT_TOKENS, Exchange
from sits.gateway.relay import MEASURED
from sits.gateway.routing import groups, not_allowed
from sits.gateway.versions import aim_back, fall_back
from sits.policy.residency import Reach
from sits.policy.route import pick, route

if TYPE_CHECKING:
    from sits.gateway.pipeline import Gateway

ENGINE_POINTS = range(DISPATCHED + 1, FIRST_TOKEN)


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
    timeline.at[ROUTED], timeline.how[ROUTED] = gateway.world.now_ns(), MEASURED


def choose(gateway: "Gateway", exchange: Exchange) -> str:
    """Ask the routing policy; empty when there is no replica to choose.  What it saw is kept."""
    now_ns = gateway.world.now_ns()
    places = gateway.places
    places.refresh(now_ns)
    turn, gateway.turn = gateway.turn, gateway.turn + 1
    request, replicas = exchange.request, places.replicas
    if gateway.routing is None:
        choice, barred = _pick(gateway, exchange, replicas, now_ns, turn)
    else:
        choice, barred = "", exchange.tried
        for group in groups(reach(gateway, exchange), replicas):
            choice, barred = _pick(gateway, exchange, group, now_ns, turn)
            if choice:
                break
    if gateway.decisions is not None:
        inflight = [replica.inflight_tokens for replica in replicas]
        facts = gateway.decisions.facts(replicas, now_ns)
        seen = (now_ns, turn, request.model, request.adapter, barred, inflight, facts, choice)
        exchange.routed_on += (seen,)
    return choice


def _pick(
    gateway: "Gateway", exchange: Exchange, replicas: Sequence[Replica], now_ns: int, turn: int
) -> tuple[str, tuple[str, ...]]:
    """The choice among these replicas, and those it was kept from."""
    request, barred, places = exchange.request, exchange.tried, gateway.places
    config, need = gateway.fleet.policy.route, exchange.need_tokens
    if places.trips and (shy := places.closed_to(request.model, exchange.tenant, now_ns)):
        choice = pick(request, replicas, config, need, now_ns, turn, barred + shy)
        if choice:  # where all of them are shy of its like, any will do
            return choice, barred + shy
    return pick(request, replicas, config, need, now_ns, turn, barred), barred


def reach(gateway: "Gateway", exchange: Exchange) -> Reach:
    """Where routes, regions and residency let the exchange go, as its arm is now."""
    assert gateway.routing is not None
    return gateway.routing.reach(
        exchange.match,
        exchange.arm,
        tenant=exchange.tenant,
        asked=exchange.asked,
        region=exchange.region,
        named=exchange.target.name if exchange.target is not None else "",
    )


def why_none(gateway: "Gateway", exchange: Exchange) -> Decision:
    """The decision behind an empty choice, with its reasons."""
    return route(
        exchange.request,
        gateway.places.replicas,
        gateway.fleet.policy.route,
        need_tokens=exchange.need_tokens,
        now_ns=gateway.world.now_ns(),
        tried=exchange.tried,
    )


def take(gateway: "Gateway", exchange: Exchange) -> None:
    """Count the exchange as in flight at its replica."""
    assert exchange.replica is not None
    gateway.places.take(exchange.replica, exchange.need_tokens)
    exchange.taken = exchange.replica
    adapter = exchange.request.adapter
    if adapter and gateway.adapters is not None and adapter in gateway.adapters.desk.names:
        gateway.adapters.desk.take(adapter, exchange.replica.id, gateway.world.now_ns())
        exchange.taken_adapter = adapter


def let_go(gateway: "Gateway", exchange: Exchange) -> None:
    """Stop counting it; harmless when it was not counted."""
    if exchange.taken is not None:
        gateway.places.release(exchange.taken, exchange.need_tokens)
        if exchange.taken_adapter and gateway.adapters is not None:
            gateway.adapters.desk.let_go(exchange.taken_adapter, exchange.taken.id)
            exchange.taken_adapter = ""
        exchange.taken = None


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
