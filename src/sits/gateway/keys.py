"""API keys: a secret, and whose it is.

Rules: only digests are kept.  A presented secret is hashed and looked up by its digest, which is then compared in constant
time; what an attacker can time depends on a hash he cannot steer, so it tells nothing about a secret.  SHA-256 without salt
and without a cost factor is right for keys that are random (see `core.fleet_access`) and for nothing else.

Deliberately absent: rights (policy.access), memory of what was presented (gateway.access), and making keys (`sitsctl keys`).
"""

import hashlib
import hmac
from collections.abc import Iterable

from sits.core.access_names import legacy_keys
from sits.core.caller import Caller
from sits.core.errors import AuthError, ConfigError
from sits.core.fleet import Fleet
from sits.core.fleet_access_rules import until_ns

Held = tuple[Caller, int]
"""A caller and until when, ns since the epoch; 0 = as long as the configuration stands."""


class KeyRing:
    """The API keys of one configuration."""

    def __init__(self, entries: Iterable[tuple[bytes, Caller, int]] = ()) -> None:
        self._by_digest: dict[bytes, tuple[bytes, Held]] = {}
        for digest, caller, until in entries:
            self._by_digest[digest] = (digest, (caller, until))

    def __len__(self) -> int:
        return len(self._by_digest)

    def find(self, secret: bytes, wall_ns: int) -> Held | None:
        """Whose the secret is; None when it is nobody's.

        Raises:
            AuthError: it was somebody's, and has expired.

        """
        digest = hashlib.sha256(secret).digest()
        known, held = self._by_digest.get(digest, (b"", None))
        if held is None or not hmac.compare_digest(known, digest):
            return None
        if held[1] and wall_ns >= held[1]:
            raise AuthError(
                f"the API key {held[0].key_id!r} has expired",
                field="authorization",
                code="expired_api_key",
                hint="ask whoever runs this gateway for a new one",
            )
        return held


def key_ring(fleet: Fleet) -> KeyRing:
    """The keys of `access.keys`, and the plain ones of `gateway.keys`.

    Raises:
        ConfigError: an entry is empty or not a digest (a file that was checked at load has none such).

    """
    entries = []
    for name, tenant, secret in legacy_keys(fleet):
        if not tenant or not secret:
            hint = "write 'tenant:secret' or 'secret'"
            raise ConfigError("an API key entry is empty", field=name, hint=hint)
        caller = Caller(tenant=tenant, key_id=name, kind="key")
        entries.append((hashlib.sha256(secret.encode()).digest(), caller, 0))
    for key in fleet.access.keys:
        roles = tuple(sorted(set(key.roles)))
        caller = Caller(tenant=key.tenant, team=key.team, key_id=key.id, kind="key", roles=roles)
        entries.append((bytes.fromhex(key.sha256), caller, until_ns(key) or 0))
    return KeyRing(entries)


_SCHEME = b"bearer "


class Keys:
    """The plain keys alone."""

    def __init__(self, entries: Iterable[str] = ()) -> None:
        self._tenants: dict[bytes, tuple[bytes, str]] = {}
        for entry in entries:
            tenant, colon, secret = entry.partition(":")
            if not colon:
                tenant, secret = "default", entry
            if not secret or not tenant:
                raise ConfigError(
                    "an API key entry is empty",
                    field="gateway.keys",
                    hint="write 'tenant:secret' or 'secret'",
                )
            digest = hashlib.sha256(secret.encode()).digest()
            self._tenants[digest] = (digest, tenant)

    def tenant(self, authorization: bytes | None, otherwise: str) -> str:
        """The tenant of an `Authorization` header value; `otherwise` when no keys are configured.

        Raises:
            AuthError: no key, not a bearer key, or one we do not know.

        """
        if not self._tenants:
            return otherwise
        if authorization is None:
            raise AuthError(
                "no API key",
                field="authorization",
                code="missing_api_key",
                hint="send 'Authorization: Bearer KEY'",
            )
        secret = authorization[len(_SCHEME) :].strip() if authorization[:7].lower() == _SCHEME else b""
        digest = hashlib.sha256(secret).digest()
        known, tenant = self._tenants.get(digest, (b"", ""))
        if not hmac.compare_digest(known, digest):
            raise AuthError("unknown API key", field="authorization", code="invalid_api_key")
        return tenant
