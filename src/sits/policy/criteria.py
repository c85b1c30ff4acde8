"""Criteria: what a route asks of a request, and what it leads to, made ready when the configuration is loaded.

A request is asked three kinds of facts: a text it always has (`FACTS`, by index), a header by name, a claim by name.  A
criterion is either a set of values, which a table can answer, or a test (a prefix, a pattern, mere presence).  A claim that is
a list holds when one member does.

Deliberately absent: the order routes are tried in (`policy.match`).
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec

from sits.core.decision import Decision
from sits.core.fleet import Arm, Release
from sits.core.fleet_routes import ClaimMatch, HeaderMatch, RouteRule, Target
from sits.core.pattern import Pattern
from sits.core.route_rules import merge

FACTS = ("model", "adapter", "adapter_digest", "tenant", "team", "region", "endpoint")
"""Criteria that are one text each, in the order of the facts of a request."""

Values = str | tuple[str, ...] | None


class Fact(NamedTuple):
    """Something a request can be asked: one of `FACTS` by index, a header, or a claim."""

    kind: int
    key: Any


TEXT, HEADER, CLAIM = range(3)


class Criterion(NamedTuple):
    """One criterion: `fact` is one of `values`, or `holds` of it."""

    fact: Fact
    values: frozenset[Any] | None
    holds: Callable[[Any], bool]


class Match(msgspec.Struct, frozen=True, kw_only=True):
    """What a route leads to.

    Attributes:
        route: its name; empty when no route took the request.
        target: where to, while the route has no arms.
        release: the route's own arms, to be assigned as those of any release; None = it has none.
        targets: of each arm, where to.  Its name is `route/arm`, for rows tell arms by their names.
        residency: the regions the route allows; empty = all.
        decision: for the record.

    """

    route: str = ""
    target: Target = Target()
    release: Release | None = None
    targets: Mapping[str, Target] = {}
    residency: tuple[str, ...] = ()
    decision: Decision = Decision(policy="match", outcome="no_route")


NO_ROUTE = Match()


class Compiled(NamedTuple):
    """A route: all that it asks, and what it leads to."""

    criteria: tuple[Criterion, ...]
    match: Match


def compiled(rule: RouteRule, index: int) -> Compiled:
    """The route of a rule, the `index`-th from the top."""
    match = rule.match
    tests = [
        _values(Fact(TEXT, k), frozenset({getattr(match, name)}))
        for k, name in enumerate(FACTS)
        if getattr(match, name)
    ]
    tests += [_header(header) for header in match.headers]
    tests += [_claim(claim) for claim in match.claims]
    targets = {arm_label(rule.name, arm.name): merge(rule.to, arm.to) for arm in rule.arms}
    decision = Decision(
        policy="match", outcome="matched", choice=rule.name, reasons={"route": index, "criteria": len(tests)}
    )
    found = Match(
        route=rule.name,
        target=rule.to,
        release=release_of(rule),
        targets=targets,
        residency=rule.residency,
        decision=decision,
    )
    return Compiled(tuple(tests), found)


def arm_label(route: str, arm: str) -> str:
    """The name of a route's arm in rows and releases; an arm's own name where there is no route."""
    return f"{route}/{arm}" if route else arm


def release_of(rule: RouteRule) -> Release | None:
    """The arms of a route as a release; None when it has none."""
    if not rule.arms:
        return None
    arms = tuple(
        Arm(
            name=arm_label(rule.name, arm.name),
            weight=arm.weight,
            model=arm.to.model or rule.to.model,
            artefact=arm.artefact,
            fallback=arm_label(rule.name, arm.fallback) if arm.fallback else "",
        )
        for arm in rule.arms
    )
    return Release(model=rule.match.model, unit=rule.unit, salt=rule.salt or rule.name, arms=arms)


def _values(fact: Fact, values: frozenset[Any]) -> Criterion:
    def holds(value: Any) -> bool:
        return any(one in values for one in value) if isinstance(value, tuple) else value in values

    return Criterion(fact, values, holds)


def _header(header: HeaderMatch) -> Criterion:
    fact = Fact(HEADER, header.name.encode())
    if header.exact:
        return _values(fact, frozenset({header.exact.encode()}))
    if header.prefix:
        prefix = header.prefix.encode()
        return Criterion(fact, None, lambda value: value is not None and value.startswith(prefix))
    if header.regex:
        matches = Pattern(header.regex).matches
        return Criterion(fact, None, lambda value: value is not None and matches(value))
    return Criterion(fact, None, lambda value: value is not None)


def _claim(claim: ClaimMatch) -> Criterion:
    fact = Fact(CLAIM, claim.name)
    if not claim.regex:
        return _values(fact, frozenset(claim.one_of or (claim.exact,)))
    matches = Pattern(claim.regex).matches

    def holds(value: Values) -> bool:
        texts = value if isinstance(value, tuple) else () if value is None else (value,)
        return any(matches(text.encode()) for text in texts)

    return Criterion(fact, None, holds)
