"""API keys: a secret, and whose it is.

Rules: only digests are kept.  A presented secret is hashed and looked up by its digest, which is then compared in constant
time; what an attacker can time depends on a hash he cannot steer, so it tells nothing about a secret.  SHA-256 without salt
and without a cost factor is right for keys that are random (see `core.fleet_access`) and for nothing else.

Deliberately absent: rights (policy.access), and memory of what was presented (gateway.access).
"""

import hashlib
import hmac
from collections.abc import Iterable

from sits.core.access_names import legacy_keys
from sits.core.caller import Caller
from sits.core.errors import AuthError, ConfigError
from sits.core.fleet import Fleet
from sits.core.fleet_access_rules import until_ns

PREFIX = "sits-"
"""What made keys begin with, so that scanners for lost secrets find them."""

BYTES = 32
CHARACTERS_MIN, DISTINCT_MIN = 22, 10
"""22 characters of base64url hold 128 bits; fewer than 10 different ones are no dice's work."""

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

    def owner(self, key_id: str) -> Caller:
        """Whose the key of this id is.

        Raises:
            KeyError: there is none.

        """
        return {held[0].key_id: held[0] for _, held in self._by_digest.values()}[key_id]

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


def made_secret() -> str:
    """A new secret of 256 bits from the system's own dice, which no stream of ours can repeat."""
    import secrets  # noqa: PLC0415  # only the command that makes keys needs it

    return PREFIX + secrets.token_urlsafe(BYTES)


def check_random(secret: str) -> None:
    """Refuse what cannot be a random key of 128 bits; that it is random nobody can see.

    Raises:
        ConfigError: too short, too even, or not fit for a header.

    """
    if not secret.isascii() or not secret.isprintable() or " " in secret:
        raise ConfigError("the key cannot be sent in a header", hint="printable ASCII without spaces")
    if len(secret) < CHARACTERS_MIN or len(set(secret)) < DISTINCT_MIN:
        raise ConfigError(
            "the key is too short or too even to be random, and a digest does not hide what can be guessed",
            hint=f"at least {CHARACTERS_MIN} random characters; `sitsctl keys new` makes one",
        )


def digest_of(secret: str) -> str:
    """What `access.keys` holds of a secret."""
    return hashlib.sha256(secret.encode()).hexdigest()
