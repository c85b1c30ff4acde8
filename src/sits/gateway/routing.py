"""Where a request may go by the routes, regions and residency of a configuration, live and when it is decided again.

Rules: a route's target or arm names what engines are asked for; the engines that may be asked come in classes, nearest first, and no
failure, retry or fallback leads out of them (`policy.residency`).  A fleet that has none of the three has no `Routing`, and none of
this is on its path.

Deliberately absent: the choice within a class (policy.route).
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from sits.core.caller import Caller
from sits.core.errors import SitsError
from sits.core.fleet import Fleet
from sits.core.fleet_routes import Regions
from sits.core.replica import Replica
from sits.policy.criteria import Match, release_of
from sits.policy.match import Headers, Matcher
from sits.policy.release import Assigner
from sits.policy.residency import Reach, Reaches, refusal

if TYPE_CHECKING:
    from sits.gateway.exchange import Exchange


class Routing:
    """The routes of one configuration, ready to be asked.  `assigners` are of the routes that have arms."""

    def __init__(self, fleet: Fleet, catalog: Mapping[str, tuple[str, str]]) -> None:
        self.matcher = Matcher(fleet)
        self.assigners = {
            rule.name: Assigner(release, (), catalog)
            for rule in fleet.routes
            if (release := release_of(rule)) is not None
        }
        self._reaches = Reaches.of(fleet)

    def reach(self, match: Match, arm: str, *, tenant: str, asked: str, region: str, named: str) -> Reach:
        """Where a request may go that took this route, and that arm of it, so that engines are asked for `named`."""
        target = match.target if match.release is None else match.targets.get(arm, match.target)
        return self._reaches.reach(target, match, arm, tenant=tenant, asked=asked, region=region, named=named)


def routing_of(fleet: Fleet, catalog: Mapping[str, tuple[str, str]]) -> Routing | None:
    """The routing of a configuration; None when it routes by model names alone."""
    if not fleet.routes and not fleet.residency and fleet.regions == Regions():
        return None
    return Routing(fleet, catalog)


def assigned_by(routing: Routing | None, default: Assigner, match: Match, asked: str) -> tuple[Assigner, str]:
    """Who assigns the arm of a request that took this route, and under which name it is asked for."""
    if routing is None or not match.route:
        return default, asked
    if match.release is not None:
        return routing.assigners[match.route], asked
    return default, match.target.model or asked


def region_of(routing: Routing | None, caller: Caller, headers: Headers) -> str:
    """Where a caller is, as far as anybody cares."""
    return "" if routing is None else routing.matcher.region_of(caller, headers)


def groups(reach: Reach, replicas: Sequence[Replica]) -> Iterator[list[Replica]]:
    """The replicas of each class, nearest first."""
    for names in reach.classes:
        yield [replica for replica in replicas if replica.id in names]


def not_allowed(reach: Reach, exchange: "Exchange", replicas: Sequence[Replica]) -> SitsError | None:
    """What to answer when none of the allowed replicas takes the request; None when nothing but load or names is to blame."""
    model = exchange.request.model
    if not any(model in replica.models for replica in replicas):
        return None  # nobody serves it anywhere, so it is no matter of where
    served = any(model in replica.models for group in groups(reach, replicas) for replica in group)
    return refusal(reach, served=served)
