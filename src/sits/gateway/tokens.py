"""Tokens: JSON Web Tokens (RFC 7519) of OpenID Connect providers, verified.

Rules, in this order, so that what is cheap to refuse costs no signature check:
1. three parts of strict base64url, header and payload JSON objects, no `crit`;
2. an algorithm some issuer allows (`none` and HMAC can never be one: they are not in the configuration's words);
3. `iss` and `aud` name exactly one configured issuer, and that issuer allows the algorithm;
4. `exp` is there and ahead, `nbf` and `iat` are not, give or take `clock_skew`;
5. the issuer's key of the header's `kid`, which must be of the algorithm's kind, has signed the bytes;
6. subject, tenant, team, roles and claims are of the expected type, and the tenant is one this issuer may speak for.

`jku`, `x5u` and `jwk` in a header are never followed: keys come from the configuration alone.  No error repeats any part
of a token.

Deliberately absent: encrypted tokens, opaque tokens with introspection, and revocation lists; a token holds until it ends.
"""

import binascii
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from sits.core.access_names import roles_of, teams_of, tenants_of
from sits.core.caller import Caller, Claims
from sits.core.errors import AccessError, AuthError, ConfigError, SitsError
from sits.core.fleet import Fleet
from sits.core.fleet_access import Claim, Issuer
from sits.core.units import SECOND
from sits.gateway.keys import Held
from sits.gateway.signing_keys import SigningKeys

TOKEN_MAX = 16 * 2**10
TEXT_MAX = 256
LIST_MAX = 256
END_OF_TIME_S = 2**34
"""Seconds since the epoch beyond which no clock of ours will count."""


class _Scope(NamedTuple):
    """Which tenants, teams (`tenant/team`) and roles tokens may name; None = any."""

    tenants: frozenset[str] | None
    teams: frozenset[str] | None
    roles: frozenset[str]


class Tokens:
    """Verifies the tokens of the issuers of one configuration."""

    def __init__(self, fleet: Fleet, signing: SigningKeys, wall_ns: Callable[[], int]) -> None:
        listed = bool(fleet.access.tenants)
        self._issuers = fleet.access.jwt
        self._signing = signing
        self._wall_ns = wall_ns
        self._scope = _Scope(
            tenants_of(fleet) if listed else None,
            teams_of(fleet.access) if listed else None,
            roles_of(fleet.access),
        )
        allowed = {name for issuer in fleet.access.jwt for name in issuer.algorithms}
        self._algorithms = {name: one for name, one in _library().items() if name in allowed}

    def verify(self, token: bytes) -> Held:
        """Who the token's bearer is, and until when.

        Raises:
            AuthError: it proves nothing; `code` says why.  AccessError: its tenant or team is not one of ours.
            CapacityError: its issuer's keys are not at hand yet.

        """
        header, payload, signed, signature = _parts(token)
        algorithm = header.get("alg")
        if not isinstance(algorithm, str) or algorithm not in self._algorithms:
            raise _refused("the token's algorithm is not allowed", "algorithm_not_allowed")
        issuer = self._issuer(payload)
        if algorithm not in issuer.algorithms:
            raise _refused("the token's algorithm is not allowed", "algorithm_not_allowed")
        until_ns = _times(payload, issuer.clock_skew, self._wall_ns())
        kid = header.get("kid", "")
        if not isinstance(kid, str):
            raise _refused("the token's 'kid' is not text", "malformed_token")
        key = self._signing.find(issuer.jwks, kid, algorithm)
        if not self._algorithms[algorithm].verify(signed, key.public, signature):
            raise _refused("the token's signature is not its issuer's", "invalid_signature")
        return _caller(payload, issuer, self._scope), until_ns

    def _issuer(self, payload: dict[str, Any]) -> Issuer:
        name, audience = payload.get("iss"), payload.get("aud")
        audiences = [audience] if isinstance(audience, str) else audience
        ours = [issuer for issuer in self._issuers if issuer.issuer == name]
        if not ours:
            raise _refused("the token's issuer is not known here", "unknown_issuer")
        if not isinstance(audiences, list) or not all(isinstance(one, str) for one in audiences):
            raise _refused("the token says for nobody it is meant", "wrong_audience")
        meant = [issuer for issuer in ours if not set(issuer.audience).isdisjoint(audiences)]
        if not meant:
            raise _refused("the token is meant for another service", "wrong_audience")
        if len(meant) > 1:
            raise _refused("the token is meant for several services at once", "wrong_audience")
        return meant[0]


def _library() -> dict[str, Any]:
    try:
        from jwt.algorithms import get_default_algorithms, has_crypto  # noqa: PLC0415  # 16 MB only tokens need
    except ImportError:
        has_crypto = False
    if not has_crypto:
        raise ConfigError(
            "tokens need packages that are not installed: pyjwt, cryptography",
            field="access.jwt",
            hint="pip install 'sitsctl[jwt]'",
        )
    return dict(get_default_algorithms())


def _refused(message: str, code: str) -> AuthError:
    return AuthError(message, field="authorization", code=code, hint="sign in again for a new token")


def _parts(token: bytes) -> tuple[dict[str, Any], dict[str, Any], bytes, bytes]:
    """Header, payload, the bytes that were signed, and the signature."""
    parts = token.split(b".")
    if len(token) > TOKEN_MAX or len(parts) != 3:
        raise _refused("the token is not a signed JSON Web Token", "malformed_token")
    header, payload = _object(_base64url(parts[0])), _object(_base64url(parts[1]))
    if "crit" in header or "b64" in header:
        raise _refused("the token asks for extensions that are not known here", "malformed_token")
    return header, payload, token[: len(parts[0]) + 1 + len(parts[1])], _base64url(parts[2])


def _base64url(text: bytes) -> bytes:
    """Decoded; only the one spelling of it that encoding gives is taken."""
    plain = text.translate(_URL_SAFE, b"=+/")
    try:
        data = binascii.a2b_base64(plain + b"=" * (-len(plain) % 4), strict_mode=True)
    except binascii.Error:
        data = b""
    if len(plain) != len(text) or binascii.b2a_base64(data, newline=False).rstrip(b"=") != plain:
        raise _refused("the token is not base64url", "malformed_token")
    return data


_URL_SAFE = bytes.maketrans(b"-_", b"+/")


def _object(data: bytes) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _refused("the token does not hold JSON", "malformed_token") from error
    if not isinstance(found, dict):
        raise _refused("the token does not hold JSON objects", "malformed_token")
    return found


def _times(payload: dict[str, Any], skew_ns: int, wall_ns: int) -> int:
    """When the token ends, ns since the epoch."""
    if "exp" not in payload:
        raise _refused("the token does not say when it ends", "invalid_claim")
    for name in ("nbf", "iat"):
        if name in payload and _instant_ns(payload[name], name) > wall_ns + skew_ns:
            raise _refused("the token is not valid yet", "token_not_yet_valid")
    until_ns = _instant_ns(payload["exp"], "exp") + skew_ns
    if wall_ns >= until_ns:
        raise _refused("the token has expired", "token_expired")
    return until_ns


def _instant_ns(value: Any, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise _refused(f"the token's {name!r} is not a time", "invalid_claim")
    return round(max(0, min(value, END_OF_TIME_S)) * SECOND)


def _caller(payload: dict[str, Any], issuer: Issuer, scope: _Scope) -> Caller:
    subject = _word(payload.get("sub"), "sub")
    tenant = issuer.tenant or _word(_at(payload, issuer.tenant_claim), issuer.tenant_claim)
    allowed = issuer.tenants or scope.tenants
    if (allowed is not None and tenant not in allowed) or "/" in tenant:
        raise _foreign("tenant")
    team = _at(payload, issuer.team_claim) if issuer.team_claim else None
    name = "" if team is None else _word(team, issuer.team_claim)
    if "/" in name or (name and scope.teams is not None and f"{tenant}/{name}" not in scope.teams):
        raise _foreign("team")
    roles = _words(_at(payload, issuer.roles_claim), issuer.roles_claim) if issuer.roles_claim else ()
    return Caller(
        tenant=tenant,
        team=name,
        key_id=f"{issuer.name}/{subject}",
        kind="user",
        roles=tuple(sorted(scope.roles.intersection(roles))),
        claims=_claims(payload, issuer.claims),
    )


def _foreign(what: str) -> SitsError:
    hint = "it is not one of those this gateway serves; list it in 'access.tenants' if it should be"
    return AccessError(
        f"the token's {what} is not known here", field="authorization", code=f"unknown_{what}", hint=hint
    )


def _at(payload: dict[str, Any], path: str) -> Any:
    """A claim by its whole name or, where it is nested, by its path; None when it is not there."""
    if path in payload:
        return payload[path]
    here: Any = payload
    for part in path.split("."):
        here = here.get(part) if isinstance(here, dict) else None
    return here


def _word(value: Any, name: str) -> str:
    if (
        not isinstance(value, str)
        or not value.strip()
        or value != value.strip()
        or not value.isprintable()
        or len(value) > TEXT_MAX
    ):
        raise _refused(f"the token's {name!r} is missing or not a short line of text", "invalid_claim")
    return value


def _words(value: Any, name: str) -> tuple[str, ...]:
    """Texts of a list, or of a line with spaces between them, as `scope` is written."""
    found = value.split() if isinstance(value, str) else [] if value is None else value
    if not isinstance(found, list) or len(found) > LIST_MAX:
        raise _refused(f"the token's {name!r} is not a list of at most {LIST_MAX}", "invalid_claim")
    return tuple(sorted({_word(one, name) for one in found}))


def _claims(payload: dict[str, Any], wanted: tuple[Claim, ...]) -> Claims:
    found: dict[str, str | tuple[str, ...]] = {}
    for claim in wanted:
        path = claim.claim or claim.name
        value = _at(payload, path)
        if value is None:
            continue
        if claim.kind == "list":
            found[claim.name] = _words(value, path)
        elif isinstance(value, bool):
            found[claim.name] = "true" if value else "false"
        else:
            found[claim.name] = str(value) if isinstance(value, int) else _word(value, path)
    return Claims(found)
