"""Access at the gateway: from the headers of a request to a Caller, and from a Caller to what it may do.

```
Authorization, x-api-key --identify--> Caller --decide--> Decision        both remembered; `gateway.standing` remembers them together
```
Rules:
- A credential is an API key or a token, as `Authorization: Bearer ...` or as `x-api-key: ...` (Anthropic's clients).  Who
  sends both must be one and the same caller twice.
- What was verified is remembered by the very bytes presented until it ends, within `CREDENTIALS_BYTES`; a credential that was
  refused is never remembered.  The memory compares whole values, so no two callers can share an entry.
- Decisions are remembered twice: by value of the request, and by what policies can see of it, of which there is little.
  Names nobody serves end in the second, so asking for made-up models evicts nothing.
- Nothing configured that identifies callers: everyone is anonymous, of the tenant the request says.

A new configuration makes a new Access; given the one before, it takes over the signing keys that both use, and the compiled
policies if they are the same.

Deliberately absent: quotas, and TLS client certificates (terminated in front).
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence

from sits.core.access_names import is_open
from sits.core.caller import Caller
from sits.core.decision import Decision
from sits.core.errors import AccessError, AuthError, ConfigError
from sits.core.fleet import Fleet
from sits.core.ports import World
from sits.core.remember import Remember
from sits.gateway.keys import Held, key_ring
from sits.gateway.signing_keys import SigningKeys
from sits.gateway.tokens import Tokens
from sits.policy.access import ALLOWED, OPEN, AccessPolicy, Seen, access_policy

CREDENTIALS_BYTES = 8 * 2**20
ENTRY_BYTES = 800
"""What a remembered credential or decision takes beside the texts in it."""

DECISIONS_BYTES = 8 * 2**20
SEEN_BYTES = 2 * 2**20
TENANTS = 1_024

ACTIONS = {"/v1/embeddings": "embed"}
"""Endpoints whose action is not `infer`."""

_LISTED = ("infer", "embed", "list_models")
_SCHEME = b"bearer "


class Access:
    """Who may come in, and what they may do, under one configuration.

    Args:
        fleet: the configuration; world: the clock tokens are measured by.
        previous: the Access of the configuration before.

    `forgotten` is called when what was verified must be verified anew.

    Raises:
        ConfigError: a package is missing, or a key set in a file cannot be used.

    """

    def __init__(self, fleet: Fleet, world: World, previous: "Access | None" = None) -> None:
        self.open = is_open(fleet)
        self.policy: AccessPolicy | None = access_policy(
            fleet, previous.policy if previous is not None else None
        )
        names = self.policy.names if self.policy is not None else None
        self._served = names.models | names.aliases if names is not None else frozenset[str]()
        self._headers = tuple(name.encode() for name in fleet.access.headers)
        self._wall_ns = world.wall_ns
        self._ring = key_ring(fleet)
        self._signing: SigningKeys | None = None
        self._tokens: Tokens | None = None
        self._bearers = Remember[bytes, Held](CREDENTIALS_BYTES)
        self._bare = Remember[bytes, Held](CREDENTIALS_BYTES)
        self._anonymous = Remember[str, Caller](TENANTS)
        self._decisions = Remember[tuple[object, ...], Decision](DECISIONS_BYTES)
        self._seen = Remember[Seen, Decision](SEEN_BYTES)
        self._keeper: asyncio.Task[None] | None = None
        self.forgotten: Callable[[], object] = bool
        if fleet.access.jwt:
            self._sign(fleet, world, previous)

    def _sign(self, fleet: Fleet, world: World, previous: "Access | None") -> None:
        signing = SigningKeys(fleet.access.jwt, world, previous._signing if previous else None)
        self._tokens = Tokens(fleet, signing, world.wall_ns)
        self._signing = signing
        signing.changed = self.forget
        signing.load(files_only=True)
        for source, found in signing.sets.items():
            if found.problem and not found.keys and "://" not in source:
                hint = "write an https URL, or the path of a file with a JWKS document"
                raise ConfigError(found.problem, field="access.jwt", value=source, hint=hint)

    def forget(self) -> None:
        """Verify every credential anew from here on."""
        self._bearers.clear()
        self._bare.clear()
        self.forgotten()

    def start(self) -> None:
        """Keep signing keys fresh from now on, on the running loop; does nothing where no issuer is configured."""
        if self._signing is not None and self._keeper is None:
            self._keeper = asyncio.get_running_loop().create_task(self._signing.keep())

    def close(self) -> None:
        """Stop that."""
        if self._keeper is not None:
            self._keeper.cancel()
            self._keeper = None

    def load(self) -> list[str]:
        """Fetch signing keys here and now, for commands; what went wrong."""
        if self._signing is None:
            return []
        self._signing.load()
        return [found.problem for found in self._signing.sets.values() if found.problem]

    def identify(
        self, authorization: bytes | None, api_key: bytes | None = None, tenant: str = "default"
    ) -> Caller:
        """Who presents these headers; `tenant` is whose anonymous callers are.

        Raises:
            AuthError: nobody we know; `code` says why.  AccessError: somebody whose tenant is not served.
            CapacityError: a token whose issuer's keys are not at hand yet.

        """
        return self.proven(authorization, api_key, tenant)[0]

    def proven(self, authorization: bytes | None, api_key: bytes | None, tenant: str) -> Held:
        """The same, and until when it holds by the wall clock; 0 where it has no end."""
        if self.open:
            return self._nobody(tenant), 0
        if not api_key:
            return self._bearer(authorization)
        held = self._verified(self._bare, api_key, api_key.strip())
        if authorization is None:
            return held
        other = self._bearer(authorization)
        if other[0] != held[0]:
            raise AuthError(
                "Authorization and x-api-key name two different callers",
                field="authorization",
                code="conflicting_credentials",
                hint="send one of them",
            )
        return held[0], min(filter(None, (held[1], other[1])), default=0)

    def _nobody(self, tenant: str) -> Caller:
        caller = self._anonymous.young.get(tenant) or self._anonymous.get(tenant)
        if caller is None:
            caller = Caller(tenant=tenant)
            self._anonymous.put(tenant, caller)
        return caller

    def _bearer(self, authorization: bytes | None) -> Held:
        if authorization is None:
            raise AuthError(
                "no API key",
                field="authorization",
                code="missing_api_key",
                hint="send 'Authorization: Bearer KEY' or 'x-api-key: KEY'",
            )
        if authorization[:7].lower() != _SCHEME:
            raise AuthError(
                "the Authorization header is not a bearer's",
                field="authorization",
                code="unsupported_scheme",
                hint="send 'Authorization: Bearer KEY'",
            )
        return self._verified(self._bearers, authorization, authorization[7:].strip())

    def _verified(self, memory: Remember[bytes, Held], presented: bytes, secret: bytes) -> Held:
        """The caller of a credential, verified or remembered, and until when."""
        weight = len(presented) + ENTRY_BYTES
        held = memory.get(presented, weight)
        wall_ns = self._wall_ns()
        if held is not None:
            if not held[1] or wall_ns < held[1]:
                return held
            memory.forget(presented)
        held = self._ring.find(secret, wall_ns)
        if held is None and self._tokens is not None and secret.count(b".") >= 2:
            held = self._tokens.verify(secret)
        if held is None:
            raise AuthError(
                "unknown API key",
                field="authorization",
                code="invalid_api_key",
                hint="it may have been replaced; ask whoever runs this gateway",
            )
        memory.put(presented, held, weight)
        return held

    def chosen(self, headers: Mapping[bytes, bytes]) -> tuple[str | None, ...]:
        """The values of the headers policies may look at."""
        if not self._headers or self.policy is None:
            return ()
        given = (headers.get(name) for name in self._headers)
        return tuple(None if value is None else value.decode("latin-1") for value in given)

    def decide(
        self,
        caller: Caller,
        action: str,
        model: str = "",
        adapter: str = "",
        region: str = "",
        endpoint: str = "",
        headers: tuple[str | None, ...] = (),
    ) -> Decision:
        """May `caller` do `action` to a model, or to an adapter of it?  See `policy.access`."""
        if self.policy is None:
            return OPEN
        asked = (caller, action, model, adapter, region, endpoint, headers)
        return self._decisions.young.get(asked) or self._decided(asked)

    def _decided(self, asked: tuple[Caller, str, str, str, str, str, tuple[str | None, ...]]) -> Decision:
        assert self.policy is not None
        weight = _weight(asked[0], asked[6])
        found = self._decisions.get(asked, weight)
        if found is None:
            seen = self.policy.seen(*asked)
            found = self._seen.get(seen, weight)
            if found is None:
                found = self.policy.evaluate(seen)
                self._seen.put(seen, found, weight)
            if asked[2] in self._served:
                self._decisions.put(asked, found, weight)
        return found

    def refuse(self, decision: Decision, action: str, name: str) -> None:
        """Do nothing if `decision` allows; the error otherwise repeats what was asked and nothing else.

        Raises:
            AccessError: it does not.

        """
        if decision.outcome not in ALLOWED:
            raise AccessError(
                f"{action} of {name!r} is not allowed" if name else f"{action} is not allowed",
                field="model" if name else None,
                code="access_denied",
                hint="ask whoever runs this gateway",
            )

    def visible(
        self,
        caller: Caller,
        names: Iterable[tuple[str, tuple[str, str]]],
        region: str = "",
        headers: tuple[str | None, ...] = (),
    ) -> list[str]:
        """The names, of `name: (model, adapter)`, that `caller` may use or at least see."""
        if self.policy is None:
            return [name for name, _ in names]
        return [
            name
            for name, (model, adapter) in names
            if any(
                self.decide(caller, action, model, adapter, region, "/v1/models", headers).outcome in ALLOWED
                for action in _LISTED
            )
        ]


def _weight(caller: Caller, headers: Sequence[str | None]) -> int:
    """What a decision takes in memory: the texts in it are the caller's, so they may be long."""
    texts = [text for text in headers if text]
    for value in caller.claims.values():
        texts += [value] if isinstance(value, str) else value
    return ENTRY_BYTES + sum(map(len, texts)) + 60 * (len(texts) + len(caller.roles))
