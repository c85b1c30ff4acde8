"""The keys issuers sign with (JWKS, RFC 7517): read from a file or an https URL, and kept fresh beside the requests.

Rules:
- No request waits for a fetch.  A token whose key is not known asks for one, and is told to come back (503, `Retry-After`);
  a key still unknown after that is nobody's (401).  Fetches of one source are at least `SPACING_NS` apart, further after
  failures, so made-up key ids cannot make us call an issuer often.
- Keys are renewed every `refresh` before anybody misses them.  While a source fails, its last keys hold, for `MAX_AGE_NS`.
- A set is believed as a whole or not at all; redirects are not followed; a body over `BODY_MAX` is not read.
- Only public keys for signatures count, RSA from 2048 bits.  Symmetric keys are left out, so is a key that does not say what
  it is; a *private* key in a public place makes the set unusable, for whoever reads it can sign.

Deliberately absent: discovery (`/.well-known/openid-configuration`).  The file names the set, and one fetch less can fail.
"""

import asyncio
import urllib.parse
import weakref
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from sits.core.errors import AuthError, CapacityError, ConfigError
from sits.core.fleet_access import Issuer
from sits.core.ports import World
from sits.core.units import SECOND

SPACING_NS = 10 * SECOND
BACKOFF_MIN_NS, BACKOFF_MAX_NS = SECOND, 300 * SECOND
MAX_AGE_NS = 24 * 3600 * SECOND
FETCH_S = 5.0
BODY_MAX = 2**20
KEYS_MAX = 256
RSA_BITS_MIN = 2048

KINDS = {
    **dict.fromkeys(("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"), ("RSA",)),
    "ES256": ("P-256",),
    "ES384": ("P-384",),
    "ES512": ("P-521",),
    "EdDSA": ("Ed25519", "Ed448"),
}
"""The kinds of key each algorithm takes; a key fits no other, so no algorithm can be talked into a foreign key."""


class SigningKey(NamedTuple):
    """One public key: `alg` is the only algorithm it is for, empty = any of its kind."""

    kid: str
    kind: str
    alg: str
    public: Any

    def fits(self, algorithm: str) -> bool:
        """Whether signatures of `algorithm` may be checked with it."""
        return self.kind in KINDS.get(algorithm, ()) and self.alg in ("", algorithm)


def parse_jwks(data: bytes) -> tuple[SigningKey, ...]:
    """The usable keys of a JWKS document.

    Raises:
        ConfigError: it is none, holds a private key, or nothing in it can be used.

    """
    try:
        found = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"the key set is not JSON: {error}") from error
    entries = found.get("keys") if isinstance(found, dict) else None
    if not isinstance(entries, list) or len(entries) > KEYS_MAX:
        raise ConfigError(f"the key set has no list 'keys' of at most {KEYS_MAX}")
    keys = [key for entry in entries if isinstance(entry, dict) and (key := _key(entry)) is not None]
    if not keys:
        raise ConfigError(
            "the key set has no usable key", hint="RSA of 2048 bits or more, P-256..P-521, Ed25519"
        )
    return tuple(keys)


def _key(entry: dict[str, Any]) -> SigningKey | None:
    """A key of the set; None when it is not for us."""
    from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm  # noqa: PLC0415  # 16 MB only tokens need

    kid, use, alg = entry.get("kid", ""), entry.get("use", "sig"), entry.get("alg", "")
    if "d" in entry or "p" in entry:
        raise ConfigError(
            f"the key {str(kid)[:80]!r} of the key set is a private one",
            hint="publish public keys only, and replace it",
        )
    operations = entry.get("key_ops", ["verify"])
    if not all(isinstance(text, str) for text in (kid, use, alg)) or use != "sig":
        return None
    if not isinstance(operations, list) or "verify" not in operations:
        return None
    kind = "RSA" if entry.get("kty") == "RSA" else entry.get("crv")
    makers: dict[str, Any] = {"RSA": RSAAlgorithm, "EC": ECAlgorithm, "OKP": OKPAlgorithm}
    maker = makers.get(str(entry.get("kty")))
    if maker is None or not isinstance(kind, str) or not any(kind in kinds for kinds in KINDS.values()):
        return None
    try:
        public = maker.from_jwk(entry)
    except Exception as error:  # whatever the library makes of a broken key: the set is not believed
        raise ConfigError(f"the key {kid[:80]!r} of the key set is broken: {error}") from error
    if kind == "RSA" and public.key_size < RSA_BITS_MIN:
        return None
    return SigningKey(kid, kind, alg, public)


def read_source(source: str, now_ns: Callable[[], int]) -> bytes:
    """The bytes of a key set; blocks, so it runs in a thread.

    Raises:
        OSError: it cannot be had (also when it is too large or too slow).

    """
    if "://" not in source:
        with Path(source).open("rb") as file:
            return _bounded(file.read(BODY_MAX + 1))
    import http.client  # noqa: PLC0415  # 3 MB that only URLs need
    import urllib.request  # noqa: PLC0415

    class Straight(urllib.request.HTTPRedirectHandler):
        def redirect_request(self, *_: Any, **__: Any) -> None:
            return None

    deadline_ns = now_ns() + round(FETCH_S * SECOND)
    request = urllib.request.Request(source, headers={"accept": "application/json"})  # noqa: S310  # https, by load
    parts: list[bytes] = []
    try:
        with urllib.request.build_opener(Straight).open(request, timeout=FETCH_S) as answer:
            while part := answer.read1(2**16):
                parts.append(part)
                _bounded(b"".join(parts))
                if now_ns() > deadline_ns:
                    raise TimeoutError("the key set comes too slowly")
    except http.client.HTTPException as error:
        raise OSError(f"not HTTP: {error!r}") from error
    return b"".join(parts)


def _bounded(data: bytes) -> bytes:
    if len(data) > BODY_MAX:
        raise OSError(f"the key set is over {BODY_MAX} bytes")
    return data


class KeySet:
    """The keys of one source, and when to ask for them again.

    `users` are told of other keys than before: two configurations share a set while one follows the other.
    """

    def __init__(self, source: str, refresh_ns: int) -> None:
        self.source = source
        self.refresh_ns = refresh_ns
        self.keys: tuple[SigningKey, ...] = ()
        self.problem = ""
        self.fetching = False
        self.users: weakref.WeakSet[SigningKeys] = weakref.WeakSet()
        self._loaded_ns = 0
        self._next_ns = 0
        self._backoff_ns = BACKOFF_MIN_NS
        self._wanted = True

    def due_ns(self) -> int:
        """When it is to be read again."""
        if self._wanted or not self.keys:
            return self._next_ns
        return max(self._next_ns, self._loaded_ns + self.refresh_ns)

    def renewed(self, keys: tuple[SigningKey, ...], now_ns: int) -> None:
        """These are its keys now."""
        told = bool(self.keys) and keys != self.keys
        self.keys, self.problem, self._wanted = keys, "", False
        self._loaded_ns, self._next_ns, self._backoff_ns = now_ns, now_ns + SPACING_NS, BACKOFF_MIN_NS
        if told:
            self._tell()

    def failed(self, problem: str, now_ns: int) -> None:
        """It could not be read; the last keys hold until they are too old."""
        self.problem = problem
        self._next_ns = now_ns + self._backoff_ns
        self._backoff_ns = min(2 * self._backoff_ns, BACKOFF_MAX_NS)
        if self.keys and now_ns - self._loaded_ns > MAX_AGE_NS:
            self.keys = ()
            self._tell()

    def _tell(self) -> None:
        for user in list(self.users):
            user.changed()

    def find(self, kid: str, algorithm: str, now_ns: int) -> SigningKey:
        """The key a token says it was signed with.

        Raises:
            AuthError: there is none such.  CapacityError: we cannot know yet.

        """
        if not self.keys or now_ns - self._loaded_ns > MAX_AGE_NS:
            self._want(now_ns)
            raise self._unavailable(now_ns)
        own = [key for key in self.keys if key.kid == kid] if kid else list(self.keys)
        fitting = [key for key in own if key.fits(algorithm)]
        if len(fitting) == 1:
            return fitting[0]
        if fitting:
            raise _unknown(
                "the token does not say which of several keys it was signed with", "missing_key_id"
            )
        if own and kid:
            raise _unknown("the token's algorithm is not one of its key's", "signing_key_mismatch")
        self._want(now_ns)
        if self._wanted:
            raise self._unavailable(now_ns)
        raise _unknown("no key of its issuer has signed the token", "unknown_signing_key")

    def _want(self, now_ns: int) -> None:
        if self.problem or now_ns >= self._next_ns:
            self._wanted = True

    def _unavailable(self, now_ns: int) -> CapacityError:
        wait_s = max(1.0, (self._next_ns - now_ns) / SECOND)
        message = "the token's signing keys are not at hand yet"
        return CapacityError(message, code="signing_keys_unavailable", retry_after_s=wait_s)


def _unknown(message: str, code: str) -> AuthError:
    return AuthError(message, field="authorization", code=code, hint="sign in again for a new token")


class SigningKeys:
    """The key sets of all issuers, renewed by `keep`, which runs beside the requests.

    `changed` is called after a set has other keys than before: what was verified with the old ones is void.
    `sets` by their source; those of `previous` go on where both have them.
    """

    def __init__(
        self, issuers: Iterable[Issuer], world: World, previous: "SigningKeys | None" = None
    ) -> None:
        self.sets: dict[str, KeySet] = {}
        self.changed: Callable[[], None] = _nothing
        self._now_ns = world.now_ns
        self._wake: asyncio.Event | None = None
        for issuer in issuers:
            known = self.sets.get(issuer.jwks)
            if known is None:
                known = (previous.sets.get(issuer.jwks) if previous else None) or KeySet(
                    issuer.jwks, issuer.refresh
                )
                known.refresh_ns = issuer.refresh
            known.refresh_ns = min(known.refresh_ns, issuer.refresh)
            known.users.add(self)
            self.sets[issuer.jwks] = known

    def find(self, source: str, kid: str, algorithm: str) -> SigningKey:
        """The key `kid` of a source.  Raises as `KeySet.find`."""
        found = self.sets[source]
        try:
            return found.find(kid, algorithm, self._now_ns())
        except CapacityError:
            if self._wake is not None:
                self._wake.set()
            raise

    def load(self, *, files_only: bool = False) -> None:
        """Read every source that is due, here and now; for files at start, and for commands."""
        for found in self.sets.values():
            if found.due_ns() <= self._now_ns() and not (files_only and "://" in found.source):
                self._taken(found, *_attempt(found.source, self._now_ns))

    async def keep(self) -> None:
        """Renew what is due, for ever; fetches run in threads."""
        self._wake = asyncio.Event()
        loop = asyncio.get_running_loop()
        while True:
            self._wake.clear()
            now_ns = self._now_ns()
            resting = [found for found in self.sets.values() if not found.fetching]
            due = [found for found in resting if found.due_ns() <= now_ns]
            if due:
                await asyncio.gather(*(self._renew(found) for found in due))
                continue
            next_ns = min((found.due_ns() for found in resting), default=now_ns + SPACING_NS)
            timer = loop.call_later((next_ns - now_ns) / SECOND, self._wake.set)
            try:
                await self._wake.wait()
            finally:
                timer.cancel()

    async def _renew(self, found: KeySet) -> None:
        found.fetching = True
        try:
            self._taken(found, *await asyncio.to_thread(_attempt, found.source, self._now_ns))
        finally:
            found.fetching = False

    def _taken(self, found: KeySet, keys: tuple[SigningKey, ...], problem: str) -> None:
        if problem:
            found.failed(problem, self._now_ns())
        else:
            found.renewed(keys, self._now_ns())


def _attempt(source: str, now_ns: Callable[[], int]) -> tuple[tuple[SigningKey, ...], str]:
    """Keys and no problem, or no keys and the problem."""
    try:
        return parse_jwks(read_source(source, now_ns)), ""
    except (OSError, ValueError, ConfigError) as error:
        return (), f"{urllib.parse.urlsplit(source)._replace(query='').geturl()}: {error}"


def _nothing() -> None:
    """Nobody wants to know."""
