"""Residency and nearness: which engines may answer a request, and in which order of distance they are tried.

```
allowed = engines of the target  ∩  regions of the target  ∩  regions of the route  ∩  regions of every clause that holds
classes = allowed, cut by distance from the caller: a class begins at the nearest engine left and takes all within `slack`
```
Rules: residency is a rule, never a weight.  An engine outside `allowed` is in no class, so no failure, retry, fallback or hint
leads there; an engine whose region nobody states is in none as soon as any region is demanded.  When the allowed engines are
down the request is refused (`refused_residency`), with the clause that kept it from the others.
A nearer class is always tried first, a farther one only while no engine of the nearer ones can take the request.
Distance to a region with no stated latency is unknown, and unknown is farthest.

Deliberately absent: the load of engines (`policy.route` scores within a class), and where the caller is (`policy.match`).
"""

import math
from collections.abc import Callable, Mapping, Sequence

import msgspec

from sits.core.decision import Decision
from sits.core.errors import AccessError, CapacityError, SitsError
from sits.core.fleet import Fleet
from sits.core.fleet_routes import Regions, Residency, Target
from sits.core.remember import Remember
from sits.core.route_rules import region_of
from sits.policy.criteria import NO_ROUTE, Match

REMEMBERED = 32_768
"""Reaches kept.  Nothing that callers choose is part of their key, only names of the configuration."""

RETRY_S = 5.0


class Reach(msgspec.Struct, frozen=True, kw_only=True):
    """Where a request may go.

    Attributes:
        classes: engine names, nearest class first; all of them together are what is allowed.
        regions: what is demanded; None = nothing is.
        clauses: who demands it: names of residency clauses, `route NAME`.
        decisions: what is recorded when a class took the request, one each, and at the end when none did.

    """

    classes: tuple[tuple[str, ...], ...]
    regions: tuple[str, ...] | None
    clauses: tuple[str, ...]
    decisions: tuple[Decision, ...]


class Reaches:
    """The reach of every request of one configuration, remembered by what it depends on.

    Args:
        places: engine -> region, empty where nobody states one.
        regions: distances; clauses: residency.

    """

    def __init__(self, places: Mapping[str, str], regions: Regions, clauses: Sequence[Residency]) -> None:
        self._places = dict(places)
        self._regions = regions
        self._clauses = tuple(clauses)
        self._tenants = frozenset(name for clause in clauses for name in clause.tenants)
        self._models = frozenset(name for clause in clauses for name in clause.models)
        self._known: Remember[tuple[str, ...], Reach] = Remember(REMEMBERED)

    @classmethod
    def of(cls, fleet: Fleet) -> "Reaches":
        """Those of a fleet."""
        places = {engine.name: region_of(fleet, engine) for engine in fleet.engines}
        return cls(places, fleet.regions, fleet.residency)

    def reach(
        self,
        target: Target,
        match: Match = NO_ROUTE,
        arm: str = "",
        *,
        tenant: str,
        asked: str,
        region: str,
        named: str = "",
    ) -> Reach:
        """Where a request of `tenant` in `region` may go, that asked for the name `asked` and was matched to `target`.

        `target` is the match's own, or that of its `arm`; `named` is the name engines are asked for.  A clause about models
        holds for the name asked for and for the name it became.
        """
        who = tenant if tenant in self._tenants else ""
        what = asked if asked in self._models else ""
        name = named or target.model
        became = name if name in self._models else ""
        key = match.route, arm, who, what, became, region
        found = self._known.young.get(key) or self._known.get(key)
        if found is None:
            found = self._made(target, match, who, {what, became}, region)
            self._known.put(key, found)
        return found

    def _made(self, target: Target, match: Match, tenant: str, names: set[str], region: str) -> Reach:
        holding = [
            clause
            for clause in self._clauses
            if (not clause.tenants or tenant in clause.tenants)
            and (not clause.models or not names.isdisjoint(clause.models))
        ]
        demands = [frozenset(clause.regions) for clause in holding]
        demands += [frozenset(regions) for regions in (match.residency, target.regions) if regions]
        regions = frozenset.intersection(*demands) if demands else None
        engines = [
            name
            for name, place in self._places.items()
            if (not target.engines or name in target.engines)
            and (regions is None or (place and place in regions))
        ]
        clauses = tuple(clause.name for clause in holding) + (f"route {match.route}",) * bool(match.residency)
        demanded = None if regions is None else tuple(sorted(regions))
        classes = tuple(self._classes(engines, region))
        reasons = {"region": region, "allowed": demanded, "clauses": clauses}
        outcomes = ["near", *["spilled"] * len(classes)][: len(classes)]
        outcomes.append("refused_unavailable" if demanded is None else "refused_residency")
        decisions = tuple(
            Decision(policy="residency", outcome=outcome, reasons={**reasons, "class": i})
            for i, outcome in enumerate(outcomes)
        )
        return Reach(classes=classes, regions=demanded, clauses=clauses, decisions=decisions)

    def _classes(self, names: Sequence[str], region: str) -> list[tuple[str, ...]]:
        """The engines by distance from `region`; all in one class where no distance is known."""
        far = {name: self._distance(region, self._places[name]) for name in names}
        classes: list[tuple[str, ...]] = []
        left = sorted(names, key=lambda name: (far[name], name))
        while left:
            nearest = far[left[0]]
            within = [name for name in left if far[name] <= nearest + self._regions.slack]
            classes.append(tuple(within))
            left = left[len(within) :]
        return classes

    def _distance(self, one: str, other: str) -> float:
        if one == other and one:
            return 0.0
        latency = self._regions.latency
        return latency.get(one, {}).get(other, latency.get(other, {}).get(one, math.inf))


def nearest(reach: Reach, take: Callable[[tuple[str, ...]], str]) -> tuple[str, Decision]:
    """The engine that takes a request, and what was decided; empty when none may.

    `take` chooses among the engines of one class, empty when none of them can take it (it does not serve the model, is down,
    was tried); it is asked class by class, nearest first, and never about an engine that is not allowed.
    """
    for names, decision in zip(reach.classes, reach.decisions, strict=False):
        chosen = take(names)
        if chosen:
            return chosen, decision
    return "", reach.decisions[-1]


def refusal(reach: Reach, *, served: bool) -> SitsError | None:
    """What to answer when no allowed engine takes a request; None when residency has nothing to do with it.

    `served`: at least one allowed engine serves what was asked for, so that a later try may succeed.
    """
    if reach.regions is None:
        return None
    who = " and ".join(reach.clauses) or "the route's target"
    where = ", ".join(reach.regions) or "no region at all"
    allows = f"residency: {who} allows this request only in {where}, and no engine there"
    if not reach.classes or not served:
        hint = "ask for a model that is served there"
        return AccessError(f"{allows} serves it", code="refused_residency", hint=hint)
    hint = "it is not sent elsewhere; try again later"
    return CapacityError(
        f"{allows} can take it now", code="refused_residency", retry_after_s=RETRY_S, hint=hint
    )
