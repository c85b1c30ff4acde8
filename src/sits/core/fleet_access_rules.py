"""What the section `access` needs beyond the types of its fields.

Rules: whatever a key, an issuer or a policy names exists; whatever identifies somebody is unique; nothing is written down
that would let somebody in by mistake (a digest of nothing, a key set over plain http, an issuer for every tenant by
accident).  Secrets are never shown.

Deliberately absent: whether an issuer answers, and what its keys are; that is seen when the gateway starts.
"""

import datetime as dt
import hashlib
import re
from collections import Counter
from collections.abc import Iterable
from urllib.parse import urlsplit

from sits.core import access_policies
from sits.core.access_names import ANONYMOUS, legacy_keys, names_of, tenants_of
from sits.core.errors import ConfigError
from sits.core.fleet import Fleet
from sits.core.fleet_access import Access, Issuer, Key
from sits.core.problems import Report, join, near
from sits.core.units import SECOND

NAME_CHARACTERS = 200
SKEW_MAX_NS = 300 * SECOND
REFRESH_MIN_NS = 10 * SECOND

_NAME = re.compile(r"\w[\w.:@+ -]*")
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_HEADER = re.compile(r"[a-z0-9!#$%&'*+.^_`|~-]+")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_SECRET_HEADERS = frozenset({"authorization", "proxy-authorization", "x-api-key", "cookie"})
_NOTHING = hashlib.sha256(b"").hexdigest()
_NAME_HINT = f"letters, digits and . _ : @ + - and spaces, at most {NAME_CHARACTERS} characters"


def check_access(fleet: Fleet, path: str, report: Report) -> None:
    """Report everything in `fleet.access` that cannot be used."""
    at, access = join(path, "access"), fleet.access
    _check_tenants(access, at, report)
    _check_names(access.roles, join(at, "roles"), "role", report)
    _check_keys(fleet, path, report)
    _check_issuers(fleet, at, report)
    _check_headers(access.headers, join(at, "headers"), report)
    if access.policies and report.sound_within(at) and report.sound_within(join(path, "engines")):
        _check_policies(fleet, join(at, "policies"), report)


def _name(name: str, path: str, what: str, report: Report) -> None:
    if not _NAME.fullmatch(name) or name != name.strip() or len(name) > NAME_CHARACTERS:
        report.add(path, f"{name[:40]!r} cannot be the name of a {what}", value=name, hint=_NAME_HINT)


def _check_names(names: Iterable[str], path: str, what: str, report: Report) -> None:
    seen: set[str] = set()
    for i, name in enumerate(names):
        inner = f"{path}[{i}]"
        _name(name, inner, what, report)
        if name in seen:
            report.add(inner, f"the {what} {name!r} is listed twice", value=name, hint="list each once")
        seen.add(name)


def _check_tenants(access: Access, at: str, report: Report) -> None:
    seen: set[str] = set()
    for i, tenant in enumerate(access.tenants):
        inner = f"{join(at, 'tenants')}[{i}]"
        _name(tenant.name, join(inner, "name"), "tenant", report)
        if tenant.name in seen:
            message = f"the tenant {tenant.name!r} is listed twice"
            report.add(join(inner, "name"), message, value=tenant.name, hint="list each once")
        seen.add(tenant.name)
        _check_names(tenant.teams, join(inner, "teams"), "team", report)


def _known(name: str, known: Iterable[str], what: str, path: str, report: Report) -> None:
    words = set(known)
    if name not in words:
        report.add(path, f"there is no {what} {name!r}", value=name, hint=near(name, words))


def _check_keys(fleet: Fleet, path: str, report: Report) -> None:
    access, at = fleet.access, join(path, "access.keys")
    digests = {hashlib.sha256(secret.encode()).hexdigest(): name for name, _, secret in legacy_keys(fleet)}
    ids: dict[str, str] = {ANONYMOUS: "callers without a key"}
    for i, key in enumerate(access.keys):
        inner = f"{at}[{i}]"
        if key.id in ids:
            message, hint = f"the key id {key.id!r} is taken", f"it is what {ids[key.id]} is called"
            report.add(join(inner, "id"), message, value=key.id, hint=hint)
        ids.setdefault(key.id, inner)
        if key.sha256 in digests:
            message = f"is the key of {digests[key.sha256]} already"
            report.add(join(inner, "sha256"), message, hint="a key tells one caller from another")
        digests.setdefault(key.sha256, inner)
        check_key(key, access, inner, report)
    for name, tenant, _ in legacy_keys(fleet):
        if access.tenants:
            _known(tenant, tenants_of(fleet), "tenant", join(path, name), report)


def check_key(key: Key, access: Access, path: str, report: Report) -> None:
    """Report what is wrong with one key by itself."""
    _name(key.id, join(path, "id"), "key", report)
    at = join(path, "sha256")
    if not _DIGEST.fullmatch(key.sha256):
        # The value is not shown: whoever gets this wrong may have pasted the key itself.
        hint = "64 hexadecimal digits in lower case, as `sitsctl keys new` prints them; never the key itself"
        report.add(at, "is not a SHA-256 digest", hint=hint)
    elif key.sha256 == _NOTHING:
        report.add(at, "is the digest of nothing", hint="make a key: `sitsctl keys new`")
    _check_owner(key, access, path, report)


def _check_owner(key: Key, access: Access, inner: str, report: Report) -> None:
    teams = {tenant.name: tenant.teams for tenant in access.tenants}
    if access.tenants:
        _known(key.tenant, teams, "tenant", join(inner, "tenant"), report)
        if key.team and key.tenant in teams:
            _known(key.team, teams[key.tenant], f"team of {key.tenant!r} named", join(inner, "team"), report)
    _name(key.tenant, join(inner, "tenant"), "tenant", report)
    if key.team:
        _name(key.team, join(inner, "team"), "team", report)
    _check_names(key.roles, join(inner, "roles"), "role", report)
    if access.roles:
        for k, role in enumerate(key.roles):
            _known(role, access.roles, "role", f"{join(inner, 'roles')}[{k}]", report)
    if key.expires and until_ns(key) is None:
        message = f"{key.expires[:40]!r} is not a day"
        report.add(join(inner, "expires"), message, value=key.expires, hint="write it like 2027-01-31")


def until_ns(key: Key) -> int | None:
    """When a key stops working: the end of its last day in UTC, ns since the epoch; 0 = never, None = not a day.

    >>> until_ns(Key(id="k", tenant="t", sha256="", expires="1970-01-01")) // 10**9
    86400
    """
    if not key.expires:
        return 0
    try:
        day = dt.date.fromisoformat(key.expires)
    except ValueError:
        return None
    return (day.toordinal() + 1 - dt.date(1970, 1, 1).toordinal()) * 86_400 * SECOND


def _check_issuers(fleet: Fleet, at: str, report: Report) -> None:
    kinds: dict[str, str] = {}
    for i, issuer in enumerate(fleet.access.jwt):
        inner = f"{join(at, 'jwt')}[{i}]"
        _name(issuer.name, join(inner, "name"), "issuer", report)
        others = fleet.access.jwt[:i]
        if any(issuer.name == other.name for other in others):
            hint = "users are called issuer/subject, so issuers need names of their own"
            report.add(
                join(inner, "name"), f"the name {issuer.name!r} is taken", value=issuer.name, hint=hint
            )
        if not issuer.issuer.strip() or not issuer.issuer.isprintable():
            hint = "write what the tokens say in 'iss'"
            report.add(join(inner, "issuer"), "no issuer is given", value=issuer.issuer, hint=hint)
        _check_audience(issuer, others, inner, report)
        _check_jwks(issuer.jwks, join(inner, "jwks"), report)
        _check_lists(issuer, inner, report)
        _check_tenant(issuer, fleet, inner, report)
        _check_claims(issuer, kinds, inner, report)
        if not 0 <= issuer.clock_skew <= SKEW_MAX_NS:
            message, hint = "is out of range", "0s to 5m: clocks are kept closer than that"
            report.add(join(inner, "clock_skew"), message, value=issuer.clock_skew, hint=hint)
        if issuer.refresh < REFRESH_MIN_NS:
            report.add(join(inner, "refresh"), "is out of range", value=issuer.refresh, hint="at least 10s")


def _check_audience(issuer: Issuer, others: tuple[Issuer, ...], inner: str, report: Report) -> None:
    at = join(inner, "audience")
    if not issuer.audience or not all(one.strip() for one in issuer.audience):
        hint = "without it, a token made for another service opens this one: write what tokens say in 'aud'"
        report.add(at, "no audience is given", value=list(issuer.audience), hint=hint)
    for other in others:
        both = set(issuer.audience) & set(other.audience)
        if issuer.issuer == other.issuer and both:
            message = f"{min(both)!r} of this issuer is read by {other.name!r} already"
            report.add(at, message, value=min(both), hint="a token is read in one way only")


def _check_jwks(jwks: str, at: str, report: Report) -> None:
    hint = "an https URL, or the path of a file"
    if not jwks.strip() or not jwks.isprintable():
        report.add(at, "is empty", value=jwks, hint=hint)
    if "://" not in jwks:
        return
    try:
        parts = urlsplit(jwks)
        host, user = parts.hostname or "", parts.username or parts.password
        _ = parts.port
    except ValueError:
        report.add(at, f"{jwks!r} is not a URL", value=jwks, hint=hint)
        return
    local = host in ("localhost", "127.0.0.1", "::1")
    if user is not None:
        report.add(at, "holds a user or a password", hint="key sets are public; leave it out")
    elif not host or not jwks.isascii() or " " in jwks or parts.scheme not in ("https", "http"):
        report.add(at, f"{jwks!r} is not an https URL", value=jwks, hint=hint)
    elif parts.scheme == "http" and not local:
        hint = "use https: whoever answers for this address decides who comes in"
        report.add(at, f"{jwks!r} can be answered by anybody on the way", value=jwks, hint=hint)


def _check_lists(issuer: Issuer, inner: str, report: Report) -> None:
    for field in ("algorithms", "tenants", "audience"):
        twice = [one for one, count in Counter(getattr(issuer, field)).items() if count > 1]
        if twice:
            report.add(
                join(inner, field), f"{twice[0]!r} is listed twice", value=twice[0], hint="list each once"
            )
    if not issuer.algorithms:
        report.add(
            join(inner, "algorithms"), "is empty", hint="list what the issuer signs with, like [RS256]"
        )


def _check_tenant(issuer: Issuer, fleet: Fleet, inner: str, report: Report) -> None:
    if bool(issuer.tenant) == bool(issuer.tenant_claim):
        hint = "write 'tenant' when the issuer is one tenant's, 'tenant_claim' when its tokens say whose they are"
        what = "both 'tenant' and 'tenant_claim' are given" if issuer.tenant else "no tenant is given"
        report.add(join(inner, "tenant"), what, value=issuer.tenant, hint=hint)
    if issuer.tenant:
        _name(issuer.tenant, join(inner, "tenant"), "tenant", report)
    if issuer.tenants and not issuer.tenant_claim:
        hint = "it limits what 'tenant_claim' may say"
        report.add(join(inner, "tenants"), "has no meaning without 'tenant_claim'", hint=hint)
    for k, name in enumerate(issuer.tenants):
        _name(name, f"{join(inner, 'tenants')}[{k}]", "tenant", report)
    if fleet.access.tenants:
        for k, name in enumerate(issuer.tenants):
            _known(name, tenants_of(fleet), "tenant", f"{join(inner, 'tenants')}[{k}]", report)
        if issuer.tenant:
            _known(issuer.tenant, tenants_of(fleet), "tenant", join(inner, "tenant"), report)


def _check_claims(issuer: Issuer, kinds: dict[str, str], inner: str, report: Report) -> None:
    seen: set[str] = set()
    for k, claim in enumerate(issuer.claims):
        at = f"{join(inner, 'claims')}[{k}]"
        if not _IDENTIFIER.fullmatch(claim.name):
            hint = "a letter, then letters, digits and _; 'claim' says what it is called in the token"
            report.add(join(at, "name"), f"{claim.name[:40]!r} cannot be a name", value=claim.name, hint=hint)
        if claim.name in seen:
            message = f"the claim {claim.name!r} is listed twice"
            report.add(join(at, "name"), message, value=claim.name, hint="list each once")
        seen.add(claim.name)
        if kinds.setdefault(claim.name, claim.kind) != claim.kind:
            message = f"{claim.name!r} is a {kinds[claim.name]} with another issuer"
            report.add(join(at, "kind"), message, value=claim.kind, hint="policies need one kind for it")


def _check_headers(headers: tuple[str, ...], at: str, report: Report) -> None:
    seen: set[str] = set()
    for i, name in enumerate(headers):
        inner = f"{at}[{i}]"
        if not _HEADER.fullmatch(name):
            report.add(inner, f"{name[:40]!r} is not a header", value=name, hint="write it in lower case")
        elif name in _SECRET_HEADERS:
            report.add(
                inner, f"{name!r} holds secrets", value=name, hint="policies see who is calling anyway"
            )
        elif name in seen:
            report.add(inner, f"the header {name!r} is listed twice", value=name, hint="list each once")
        seen.add(name)


def _check_policies(fleet: Fleet, at: str, report: Report) -> None:
    try:
        _, problems = access_policies.read(fleet.access.policies, names_of(fleet))
    except ConfigError as error:
        report.add(at, error.message, hint=error.hint)
        return
    for problem in problems:
        report.add(f"{at}[{problem.number}]", problem.message, value=problem.value, hint=problem.hint)
