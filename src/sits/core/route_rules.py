"""What routes, regions, residency and a shift need beyond the types of their fields.

Rules: whatever is named exists (engines, models, adapters, tenants, teams, regions, claims, arms), else the near name is
told; a header or a claim has one way to be compared; a pattern is one that is matched in linear time; every target is
served by an engine it may use, within the regions its own route allows.  Headers that carry secrets are no criteria:
what a decision was made of is recorded.

Deliberately absent: names and ranges that all lists share (`core.fleet_rules`), and routes that never get a request (those
work, so they are told as warnings: `policy.shadow`).
"""

import re
from collections.abc import Collection, Iterator
from typing import NamedTuple

from sits.core import fleet as tree
from sits.core.access_names import Names, names_of
from sits.core.adapter_rules import loadable_into
from sits.core.errors import ConfigError
from sits.core.fleet_routes import ClaimMatch, HeaderMatch, Regions, RouteArm, RouteRule, Shift, Target
from sits.core.inherit import refer
from sits.core.pattern import Pattern
from sits.core.problems import Report, join, near

ROUTES_MAX = 10_000
STEPS_MAX = 100
SECRET_HEADERS = frozenset({"authorization", "proxy-authorization", "x-api-key", "cookie"})
_HEADER = re.compile(r"[a-z0-9!#$%&'*+.^_`|~-]+")


class _World(NamedTuple):
    """What may be named.  `served` has the names each engine answers to, `regions` the region of each engine."""

    names: Names
    served: dict[str, frozenset[str]]
    regions: dict[str, str]
    places: frozenset[str]


def region_of(fleet: tree.Fleet, engine: tree.AnyEngine) -> str:
    """Where an engine stands: its own region, or its node's; empty when nobody says."""
    if isinstance(engine, tree.RemoteEngine):
        return engine.region
    return next((node.region for node in fleet.nodes if node.name == engine.node), "")


def check_routes(fleet: tree.Fleet, path: str, report: Report) -> None:
    """Report everything in `routes`, `regions`, `residency` and `shift` that cannot be used."""
    if not (fleet.routes or fleet.residency or fleet.shift or fleet.regions != Regions()):
        return
    world = world_of(fleet)
    _check_regions(fleet, world, join(path, "regions"), report)
    _check_residency(fleet, world, join(path, "residency"), report)
    at = join(path, "routes")
    if len(fleet.routes) > ROUTES_MAX:
        report.add(at, f"has {len(fleet.routes)} entries", hint=f"at most {ROUTES_MAX}")
        return
    engines_sound = report.sound_within(join(path, "engines"))
    for i, rule in enumerate(fleet.routes):
        inner = f"{at}[{i}]"
        check_match(rule, world, join(inner, "match"), report)
        if engines_sound:
            _check_target(rule.to, rule, world, join(inner, "to"), report, whole=not rule.arms)
            for k, arm in enumerate(rule.arms):
                merged = merge(rule.to, arm.to)
                place = join(f"{join(inner, 'arms')}[{k}]", "to")
                _check_target(merged, rule, world, place, report, whole=True)
        _check_arms(rule, join(inner, "arms"), report)
        for k, region in enumerate(rule.residency):
            refer(region, world.places, "region", f"{join(inner, 'residency')}[{k}]", report)
    if fleet.shift is not None:
        _check_shift(fleet.shift, fleet, join(path, "shift"), report)


def merge(base: Target, own: Target) -> Target:
    """`base`, but for what `own` says itself."""
    return Target(
        model=own.model or base.model,
        engines=own.engines or base.engines,
        regions=own.regions or base.regions,
    )


def arms_of(fleet: tree.Fleet, shift: Shift) -> tuple[RouteArm, ...] | tuple[tree.Arm, ...]:
    """The arms a shift is about; empty when it names a route or release that is not there."""
    if shift.route:
        return next((rule.arms for rule in fleet.routes if rule.name == shift.route), ())
    if shift.model:
        return next((one.arms for one in fleet.policy.releases if one.model == shift.model), ())
    return fleet.policy.release.arms


def world_of(fleet: tree.Fleet) -> _World:
    """What routes of `fleet` may name."""
    families = {family.name: family for family in fleet.adapters}
    served, regions = {}, {}
    for engine in fleet.engines:
        names = set(engine.models if isinstance(engine, tree.RemoteEngine) else (engine.model,))
        for name in engine.adapters:
            family = families.get(name)
            names.update((f"{name}-{i}" for i in range(family.count)) if family else (name,))
        names.update(loadable_into(fleet, engine.name, names))
        served[engine.name] = frozenset(names)
        regions[engine.name] = region_of(fleet, engine)
    places = {region for region in regions.values() if region}
    return _World(names_of(fleet), served, regions, frozenset(places))


def _check_regions(fleet: tree.Fleet, world: _World, at: str, report: Report) -> None:
    regions = fleet.regions
    known = world.places | regions.latency.keys()
    known |= {name for row in regions.latency.values() for name in row}
    if regions.here and regions.here not in known:
        refer(regions.here, known, "region", join(at, "here"), report)
    for name, row in regions.latency.items():
        inner = join(join(at, "latency"), name)
        if name in row:
            report.add(join(inner, name), "a region is no way from itself", hint="leave it out")
        for other, ns in row.items():
            back = regions.latency.get(other, {}).get(name, ns)
            if back != ns and name < other:
                hint = "write each pair once"
                report.add(join(inner, other), "differs from the way back", value=other, hint=hint)
    if regions.header:
        _check_header_name(regions.header, join(at, "header"), report)
    if regions.claim:
        refer(regions.claim, world.names.claims, "claim in access.jwt", join(at, "claim"), report)


def _check_residency(fleet: tree.Fleet, world: _World, at: str, report: Report) -> None:
    served = frozenset[str]().union(*world.served.values()) | {
        rule.match.model for rule in fleet.routes if rule.match.model
    }
    for i, clause in enumerate(fleet.residency):
        inner = f"{at}[{i}]"
        if not clause.regions:
            report.add(join(inner, "regions"), "is empty, so nothing would be allowed", hint="name a region")
        for field, known, what in (
            ("regions", world.places, "region"),
            ("tenants", world.names.tenants, "tenant"),
            ("models", served, "served model or adapter"),
        ):
            for k, name in enumerate(getattr(clause, field)):
                refer(name, known, what, f"{join(inner, field)}[{k}]", report)


def check_match(rule: RouteRule, world: _World, at: str, report: Report) -> None:
    """Report every criterion of `rule` that can never hold."""
    match, names = rule.match, world.names
    if match.adapter and not names.has_adapter(match.adapter):
        known = sorted({name for served in world.served.values() for name in served} - names.models)
        refer(match.adapter, known, "adapter", join(at, "adapter"), report)
    if match.adapter_digest and not re.fullmatch(r"(sha256:)?[0-9a-f]{64}", match.adapter_digest):
        hint = "64 hex digits, as `sha256sum` prints them"
        report.add(
            join(at, "adapter_digest"), "is not a SHA-256 digest", value=match.adapter_digest, hint=hint
        )
    if match.tenant:
        refer(match.tenant, names.tenants, "tenant", join(at, "tenant"), report)
    if match.team:
        _check_team(match.tenant, match.team, names, join(at, "team"), report)
    if match.region:
        refer(match.region, world.places, "region", join(at, "region"), report)
    if match.endpoint and not match.endpoint.startswith("/"):
        hint = "write the path, like /v1/chat/completions"
        report.add(join(at, "endpoint"), f"{match.endpoint!r} is no path", value=match.endpoint, hint=hint)
    for k, header in enumerate(match.headers):
        _check_header(header, f"{join(at, 'headers')}[{k}]", report)
    for k, claim in enumerate(match.claims):
        _check_claim(claim, names, f"{join(at, 'claims')}[{k}]", report)


def _check_team(tenant: str, team: str, names: Names, path: str, report: Report) -> None:
    known = {name.partition("/")[2] for name in names.teams if not tenant or name.startswith(f"{tenant}/")}
    refer(team, known, f"team of tenant {tenant!r}" if tenant else "team", path, report)


def _check_header_name(name: str, path: str, report: Report) -> None:
    if name in SECRET_HEADERS:
        hint = "route by tenant, team or claim"
        report.add(path, f"{name!r} carries a secret, and criteria are recorded", value=name, hint=hint)
    elif not _HEADER.fullmatch(name):
        report.add(path, f"{name[:40]!r} is not a header's name", value=name, hint="lower case, like x-tier")


def _check_header(header: HeaderMatch, at: str, report: Report) -> None:
    _check_header_name(header.name, join(at, "name"), report)
    ways = [bool(header.exact), bool(header.prefix), bool(header.regex), header.present]
    if sum(ways) != 1:
        report.add(
            at, f"gives {sum(ways)} ways to compare", hint="one of exact, prefix, regex, present: true"
        )
    _check_pattern(header.regex, join(at, "regex"), report)


def _check_claim(claim: ClaimMatch, names: Names, at: str, report: Report) -> None:
    refer(claim.name, names.claims, "claim in access.jwt", join(at, "name"), report)
    ways = [bool(claim.exact), bool(claim.one_of), bool(claim.regex)]
    if sum(ways) != 1:
        report.add(at, f"gives {sum(ways)} ways to compare", hint="one of exact, one_of, regex")
    _check_pattern(claim.regex, join(at, "regex"), report)


def _check_pattern(text: str, path: str, report: Report) -> None:
    if not text:
        return
    try:
        Pattern(text)
    except ConfigError as error:
        report.add(path, error.message, value=text, hint=error.hint)


def _check_arms(rule: RouteRule, at: str, report: Report) -> None:
    total = sum(arm.weight for arm in rule.arms)
    if rule.arms and not total > 0 and report.sound_within(at):
        report.add(at, "no arm has any weight", value=total, hint="give one arm a weight above 0")
    after = {arm.name: arm.fallback for arm in rule.arms}
    for k, arm in enumerate(rule.arms):
        place = join(f"{at}[{k}]", "fallback")
        if arm.fallback and refer(arm.fallback, after.keys() - {arm.name}, "other arm", place, report):
            chain = [arm.name, arm.fallback]
            while after.get(chain[-1]) and chain[-1] not in chain[:-1]:
                chain.append(after[chain[-1]])
            if chain[-1] == arm.name:
                shown = " -> ".join(chain)
                hint = "let one of them have no fallback"
                report.add(place, f"goes in a circle: {shown}", value=arm.fallback, hint=hint)


def _check_target(
    target: Target, rule: RouteRule, world: _World, at: str, report: Report, *, whole: bool
) -> None:
    """`whole`: this is what requests are sent to, so an engine must be able to take them."""
    sound = True
    for k, name in enumerate(target.engines):
        sound &= refer(name, world.served, "engine", f"{join(at, 'engines')}[{k}]", report)
    for k, name in enumerate(target.regions):
        sound &= refer(name, world.places, "region", f"{join(at, 'regions')}[{k}]", report)
    asked = target.model or rule.match.adapter or rule.match.model
    if not (whole and sound and asked):
        return
    everywhere = frozenset[str]().union(*world.served.values())
    if asked not in everywhere:
        hint = near(asked, sorted(everywhere))
        if not target.model:
            hint = f"{hint.removesuffix('?')}; or say with 'to.model' what it stands for"
        report.add(join(at, "model"), f"no engine serves {asked!r}", value=asked, hint=hint)
        return
    within = list(_usable(target, rule, world))
    if not any(asked in world.served[name] for name in within):
        able = sorted(name for name, served in world.served.items() if asked in served)
        message = f"no engine this route may use serves {asked!r}"
        report.add(at, message, value=asked, hint=f"those that serve it: {', '.join(able[:10])}")


def _usable(target: Target, rule: RouteRule, world: _World) -> Iterator[str]:
    for name, region in world.regions.items():
        if target.engines and name not in target.engines:
            continue
        if _allowed(region, target.regions) and _allowed(region, rule.residency):
            yield name


def _allowed(region: str, regions: Collection[str]) -> bool:
    return not regions or region in regions


def _check_shift(shift: Shift, fleet: tree.Fleet, at: str, report: Report) -> None:
    if shift.route and shift.model:
        report.add(join(at, "model"), "a shift is of a route or of a release", hint="leave one out")
        return
    if shift.route and not refer(
        shift.route, [r.name for r in fleet.routes], "route", join(at, "route"), report
    ):
        return
    releases = [one.model for one in fleet.policy.releases]
    if shift.model and not refer(shift.model, releases, "release of model", join(at, "model"), report):
        return
    arms = [arm.name for arm in arms_of(fleet, shift)]
    if refer(shift.arm, arms, "arm", join(at, "arm"), report) and len(arms) < 2:
        report.add(join(at, "arm"), "has no other arm to take units from", hint="give the release two arms")
    steps = shift.steps
    if not steps or len(steps) > STEPS_MAX:
        report.add(
            join(at, "steps"), f"has {len(steps)} steps", hint=f"1 to {STEPS_MAX}, like [1%, 10%, 100%]"
        )
    for k in range(len(steps)):
        before = steps[k - 1] if k else 0.0
        if not before < steps[k]:
            message = f"{steps[k]:.4g} does not raise the share"
            report.add(f"{join(at, 'steps')}[{k}]", message, value=steps[k], hint="each step is larger")
    if not 0 < shift.halt.alpha <= 0.5:
        hint = "above 0, at most 50%; 1% is usual"
        report.add(join(at, "halt.alpha"), "is out of range", value=shift.halt.alpha, hint=hint)
