"""The section `access` of a `fleet.yaml`: who may come in, and what they may do.

```yaml
access:
  tenants: [{name: acme, teams: [research]}]
  roles: [operator]
  keys: [{id: acme-ci, tenant: acme, team: research, sha256: 64 hex digits of `sitsctl keys new`}]
  jwt: [{name: corp, issuer: https://id.acme.com, audience: [sits], jwks: https://id.acme.com/keys, tenant: acme}]
  policies: ['permit(principal in Tenant::"acme", action in Action::"use", resource);']
```

Rules: keys are stored as SHA-256 digests.  A fast hash is right for them because they are random with at least 128 bits:
nobody tries 2^128 inputs, however fast each is, and no salt is needed where no two inputs repeat.  It would be wrong for a
password, so `sitsctl keys` makes keys and refuses what a person would think of.
Tokens are verified against published keys of asymmetric algorithms only; `none` and HMAC cannot be written down here.
Policies are Cedar.  No policies: whoever is known may do everything.  Any policy: what no policy permits is denied.
Names in policies, keys and tokens that are not declared anywhere are errors.

Deliberately absent: users and passwords, and quotas.
"""

from typing import Literal

from sits.core.section import Section
from sits.core.units import SECOND, Ns

Algorithm = Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]


class Tenant(Section, frozen=True, kw_only=True):
    """Somebody who pays, and the teams within.

    Once any tenant is listed, only listed ones exist: a key of another one is an error, a token of another one refused.
    """

    name: str
    teams: tuple[str, ...] = ()


class Key(Section, frozen=True, kw_only=True):
    """An API key: `sha256` is the digest of the secret as `sitsctl keys new` prints it.  `expires` is a day, UTC."""

    id: str
    tenant: str
    sha256: str
    team: str = ""
    roles: tuple[str, ...] = ()
    expires: str = ""


class Claim(Section, frozen=True, kw_only=True):
    """A claim that policies and routes may look at as `name`.

    `claim` is its name in the token, a path like `realm_access.roles` where it is nested, `name` itself when empty.
    """

    name: str
    claim: str = ""
    kind: Literal["text", "list"] = "text"


class Issuer(Section, frozen=True, kw_only=True):
    """Who may issue tokens (an OpenID Connect provider), and what is read from them.

    `jwks` is the https URL, or the path of a file, with its signing keys.  The tenant is the fixed `tenant`, or the value of
    `tenant_claim`; `tenants` limits what that claim may say, for an issuer that must not speak for everybody.
    """

    name: str
    issuer: str
    audience: tuple[str, ...]
    jwks: str
    algorithms: tuple[Algorithm, ...] = ("RS256",)
    tenant: str = ""
    tenant_claim: str = ""
    tenants: tuple[str, ...] = ()
    team_claim: str = ""
    roles_claim: str = ""
    claims: tuple[Claim, ...] = ()
    clock_skew: Ns = Ns(30 * SECOND)
    refresh: Ns = Ns(300 * SECOND)


class Access(Section, frozen=True, kw_only=True):
    """Who may come in and what they may do.

    `roles` declares those that only tokens grant; `headers` are the request headers that policies may look at.
    """

    tenants: tuple[Tenant, ...] = ()
    roles: tuple[str, ...] = ()
    keys: tuple[Key, ...] = ()
    jwt: tuple[Issuer, ...] = ()
    headers: tuple[str, ...] = ()
    policies: tuple[str, ...] = ()
