"""What the sections `quotas` and `ledger` need beyond the types of their fields.

Rules: a tenant, team, key or model that a quota names exists, for a quota that matches nobody is a limit that silently does
not hold; a quota limits something; a parent exists, fits, and leaves its child room for what the child grants.

Deliberately absent: whether the limits are wise, and whether a ledger answers; that is seen when the gateway starts.
"""

import re
from urllib.parse import urlsplit

from sits.core.access_names import Names, legacy_keys, names_of
from sits.core.errors import ConfigError
from sits.core.fleet import Fleet
from sits.core.fleet_quota import (
    FIELDS,
    EmbeddedLedger,
    Quota,
    QuotaMatch,
    QuotaWeights,
    RedisLedger,
    inherited,
    period_ns,
)
from sits.core.inherit import refer
from sits.core.problems import Report, join
from sits.core.release_rules import served_names
from sits.core.units import SECOND, show_duration

REPORTS_A_LEASE = 4
LEASE_MAX_NS = 60 * SECOND
"""The bound is that of `gateway.ledger.authority`: an ended window is kept longer than any lease."""

_LEDGER: dict[str, tuple[float, float]] = {
    "lease": (SECOND, LEASE_MAX_NS),
    "report": (SECOND // 100, 10 * SECOND),
    "wait": (0, 10 * SECOND),
}
QUOTA_RANGES: dict[type, dict[str, tuple[float, float]]] = {
    Quota: {"tokens": (0, 2**53), "requests": (0, 2**53)},
    QuotaWeights: {"input": (0, 1000), "output": (0, 1000), "cached": (0, 1000)},
    EmbeddedLedger: _LEDGER,
    RedisLedger: _LEDGER,
}
"""Lowest and highest allowed values, as in `core.fleet_rules`.  Redis counts in doubles, exact up to 2^53."""

_ENV = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PREFIX = re.compile(r"[\w.:-]{1,64}", re.ASCII)


def check_quotas(fleet: Fleet, path: str, report: Report) -> None:
    """Report what of `fleet.quotas` and `fleet.ledger` cannot be used."""
    known = asked_names(fleet) if report.sound_within(join(path, "engines")) else None
    names = names_of(fleet) if report.sound_within(join(path, "access")) else None
    by_name = {quota.name: quota for quota in fleet.quotas}
    for i, quota in enumerate(fleet.quotas):
        inner = f"{join(path, 'quotas')}[{i}]"
        _check_limits(quota, inner, report)
        if names is not None:
            _check_caller(fleet, quota.match, inherited(quota, by_name), names, join(inner, "match"), report)
        if known is not None and quota.match.model:
            refer(
                quota.match.model, known, "model that callers can ask for", join(inner, "match.model"), report
            )
        if quota.parent:
            _check_parent(quota, by_name, inner, report)
    _check_ledger(fleet.ledger, join(path, "ledger"), report)


def asked_names(fleet: Fleet) -> frozenset[str]:
    """The names callers can ask for: what engines serve or can load, and what routes and releases take."""
    routes = {rule.match.model for rule in fleet.routes}
    releases = {release.model for release in fleet.policy.releases}
    return frozenset({*served_names(fleet)} | routes | releases) - {""}


def _check_limits(quota: Quota, path: str, report: Report) -> None:
    try:
        period_ns(quota.per)
    except ConfigError as error:
        report.add(join(path, "per"), error.message, value=quota.per, hint=error.hint)
    if not quota.tokens and not quota.requests and report.sound_within(path):
        report.add(path, "limits nothing", hint="give it 'tokens', 'requests', or both")
    if len(set(quota.each)) < len(quota.each):
        report.add(join(path, "each"), "names a field twice", value=list(quota.each), hint="once is enough")
    weights = quota.weights
    if weights.cached > weights.input:
        hint = "a reservation counts the whole prompt as input, and must cover what is settled"
        report.add(join(path, "weights.cached"), "is above 'input'", value=weights.cached, hint=hint)


def _check_caller(
    fleet: Fleet, match: QuotaMatch, whole: QuotaMatch, names: Names, path: str, report: Report
) -> None:
    """`whole` is the match with what its parents say."""
    if match.tenant:
        refer(match.tenant, names.tenants, "tenant", join(path, "tenant"), report)
    if match.team and not whole.tenant:
        hint = "teams of two tenants may have one name: write 'tenant' as well"
        report.add(join(path, "team"), "has no tenant", value=match.team, hint=hint)
    elif match.team and whole.tenant in names.tenants:
        teams = {name.partition("/")[2] for name in names.teams if name.partition("/")[0] == whole.tenant}
        refer(match.team, teams, f"team of {whole.tenant!r}", join(path, "team"), report)
    if match.key:
        _check_key(fleet, whole, names, join(path, "key"), report)


def _check_key(fleet: Fleet, match: QuotaMatch, names: Names, path: str, report: Report) -> None:
    issuer, slash, subject = match.key.partition("/")
    if match.key not in names.keys and slash and subject and issuer in names.issuers:
        return
    if not refer(match.key, names.keys, "key", path, report):
        return
    owners = {key.id: (key.tenant, key.team) for key in fleet.access.keys}
    owners |= {name: (tenant, "") for name, tenant, _ in legacy_keys(fleet)}
    tenant, team = owners[match.key]
    if (match.tenant and match.tenant != tenant) or (match.team and match.team != team):
        whose = f"{tenant}/{team}" if team else tenant
        hint = "leave tenant and team out, the key has its own"
        report.add(
            path, f"{match.key!r} is a key of {whose!r}, so this matches nobody", value=match.key, hint=hint
        )


def _check_parent(quota: Quota, by_name: dict[str, Quota], path: str, report: Report) -> None:
    at = join(path, "parent")
    others = [name for name in by_name if name != quota.name]
    if not refer(quota.parent, others, "other quota", at, report):
        return
    chain, here = [quota.name], quota
    while here.parent in by_name and here.parent not in chain:
        here = by_name[here.parent]
        chain.append(here.name)
    if here.parent == quota.name:
        shown = " -> ".join([*chain, quota.name])
        report.add(at, f"goes in a circle: {shown}", value=quota.parent, hint="one of them has no parent")
        return
    parent = by_name[quota.parent]
    whole = inherited(parent, by_name)
    for name in FIELDS:
        mine, theirs = getattr(quota.match, name), getattr(whole, name)
        if mine and theirs and mine != theirs:
            message = f"{mine!r} is not within {parent.name!r}, which counts {theirs!r} only"
            hint = "leave it out: what a child leaves open is its parent's"
            report.add(join(path, f"match.{name}"), message, value=mine, hint=hint)
    if report.sound_within(path):
        _check_room(quota, parent, path, report)


def _check_room(quota: Quota, parent: Quota, path: str, report: Report) -> None:
    """A child that grants more than its parent, in no longer a time, grants what nobody can get."""
    try:
        mine, theirs = period_ns(quota.per), period_ns(parent.per)
    except ConfigError:
        return  # told already, where it stands
    if theirs and (not mine or mine > theirs):
        return
    for unit in ("tokens", "requests"):
        limit, most = getattr(quota, unit), getattr(parent, unit)
        if most and limit > most and (unit == "requests" or quota.weights == parent.weights):
            message = f"{limit:,} per {quota.per} are more than its parent's {most:,} per {parent.per}"
            report.add(
                join(path, unit), message, value=limit, hint=f"at most {most}, or raise {parent.name!r}"
            )


def _check_ledger(ledger: EmbeddedLedger | RedisLedger, path: str, report: Report) -> None:
    if ledger.lease < REPORTS_A_LEASE * ledger.report:
        hint = f"at least {show_duration(REPORTS_A_LEASE * ledger.report)}: {REPORTS_A_LEASE} reports"
        report.add(join(path, "lease"), "is too short for its reports", value=ledger.lease, hint=hint)
    if isinstance(ledger, EmbeddedLedger):
        if not ledger.dir.isprintable():
            hint = "write the path of a directory"
            report.add(join(path, "dir"), f"{ledger.dir!r} is not a path", value=ledger.dir, hint=hint)
        return
    _check_url(ledger.url, join(path, "url"), report)
    if ledger.password_env and not _ENV.fullmatch(ledger.password_env):
        hint = "name the variable that holds the password; never the password itself"
        report.add(join(path, "password_env"), "is not the name of an environment variable", hint=hint)
    if not _PREFIX.fullmatch(ledger.prefix):
        hint = "1 to 64 letters, digits and . _ : -"
        report.add(
            join(path, "prefix"), f"{ledger.prefix[:40]!r} cannot begin a key", value=ledger.prefix, hint=hint
        )


def _check_url(url: str, path: str, report: Report) -> None:
    hint = "write it like 'redis://127.0.0.1:6379/0', 'rediss://...' or 'unix:///run/redis.sock'"
    try:
        parts = urlsplit(url)
        good = bool(parts.path if parts.scheme == "unix" else parts.hostname) and parts.port != 0
        good = good and parts.scheme in ("redis", "rediss", "unix") and url.isprintable() and " " not in url
    except ValueError:
        good = False
    if good and parts.password is not None:
        report.add(path, "holds a password", hint="name a variable in 'password_env' instead")
    elif not good:
        # What cannot be parsed may hold a password all the same, so it is not shown.
        report.add(path, "is not the URL of a Redis", hint=hint)
