"""Routes and injections that never get a request, because one above them takes all they could take; and routes that cost.

A route is shadowed when each criterion of an earlier one follows from its own: the same fact with the same value or a
narrower set of values; a prefix or a pattern that the demanded value has; presence, from any demand on the header.

Injections go by the same criteria and the same order, and one whose share leaves a request alone has taken it all the same: so a share hides as
much as 100% does.

Rules: what is told is certain.  Deliberately absent: routes shadowed only by several others together, and whether one
pattern is contained in another (both would need a search, for a case that is rare).
"""

from collections.abc import Iterator

from sits.core.fleet import Fleet
from sits.core.fleet_routes import ClaimMatch, HeaderMatch, RouteMatch, RouteRule
from sits.core.pattern import Pattern
from sits.policy.criteria import FACTS

PATTERNS_ALONE_MAX = 20
"""Routes on patterns alone are tried one after the other, some 0.6 us each; so many are not worth a word."""


def warnings(fleet: Fleet) -> list[str]:
    """What is wrong with the order of the routes and of the injections, one line each."""
    found = [
        f"routes[{j}] {fleet.routes[j].name!r} never gets a request: routes[{i}] {fleet.routes[i].name!r} takes all of them first"
        for i, j in shadowed(fleet.routes)
    ]
    alone = [rule.name for rule in fleet.routes if _by_patterns_alone(rule.match)]
    if len(alone) > PATTERNS_ALONE_MAX:
        found.append(
            f"{len(alone)} routes ask for nothing but prefixes and patterns, and each request tries them in turn; "
            "give them a model, a tenant or an exact value"
        )
    faults = fleet.injections
    found += [
        f"injections[{j}] {faults[j].name!r} never fires: injections[{i}] {faults[i].name!r} takes all its requests first, "
        "whatever its share; put the narrower one first"
        for i, j in shadowed(tuple(RouteRule(name=one.name, match=one.match) for one in faults))
    ]
    return found


def shadowed(rules: tuple[RouteRule, ...]) -> Iterator[tuple[int, int]]:
    """`(i, j)`: of each route `j` that never gets a request, the first route `i` that takes them all."""
    by_model: dict[str, list[int]] = {}
    for j, rule in enumerate(rules):
        before = sorted(
            by_model.get("", []) + (by_model.get(rule.match.model, []) if rule.match.model else [])
        )
        first = next((i for i in before if _covers(rules[i].match, rule.match)), None)
        if first is not None:
            yield first, j
        by_model.setdefault(rule.match.model, []).append(j)


def _covers(wide: RouteMatch, narrow: RouteMatch) -> bool:
    """Whether whatever `narrow` takes, `wide` takes too."""
    return (
        all(getattr(wide, fact) in ("", getattr(narrow, fact)) for fact in FACTS)
        and all(any(_header_follows(one, own) for own in narrow.headers) for one in wide.headers)
        and all(any(_claim_follows(one, own) for own in narrow.claims) for one in wide.claims)
    )


def _header_follows(wanted: HeaderMatch, given: HeaderMatch) -> bool:
    """Whether a value with `given` always has `wanted`."""
    if wanted.name != given.name:
        return False
    if wanted.present or wanted == given:
        return True
    if wanted.prefix:
        return (given.exact or given.prefix).startswith(wanted.prefix)
    if wanted.regex and given.exact:
        return Pattern(wanted.regex).matches(given.exact.encode())
    return False


def _claim_follows(wanted: ClaimMatch, given: ClaimMatch) -> bool:
    if wanted.name != given.name:
        return False
    values = given.one_of or ((given.exact,) if given.exact else ())
    if wanted.regex:
        pattern = Pattern(wanted.regex)
        return wanted == given or (bool(values) and all(pattern.matches(value.encode()) for value in values))
    return bool(values) and set(values) <= set(wanted.one_of or (wanted.exact,))


def _by_patterns_alone(match: RouteMatch) -> bool:
    values = any(getattr(match, fact) for fact in FACTS)
    values = values or any(header.exact for header in match.headers)
    values = values or any(not claim.regex for claim in match.claims)
    return not values and bool(match.headers or match.claims)
