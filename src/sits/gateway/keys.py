"""API keys: who is calling.

Rules: an entry of the configuration is `tenant:secret` or a bare `secret` (tenant `default`); no entries = open, everyone
is who the request says.  Only digests are kept in memory; a presented key is looked up by its digest and compared in
constant time, so timing tells nothing about a secret.

Deliberately absent: rights (the access policy's business), rotation and storage of keys.
"""

import hashlib
import hmac
from collections.abc import Iterable

from sits.core.errors import AuthError, ConfigError

_SCHEME = b"bearer "


class Keys:
    """The known callers."""

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
