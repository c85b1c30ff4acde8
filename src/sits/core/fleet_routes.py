"""The sections `routes`, `regions`, `residency` and `shift` of a `fleet.yaml`: who is sent where, and how that changes.

```yaml
routes:
  - name: gold
    match: {model: chat, tenant: acme, headers: [{name: x-tier, regex: "gold|platinum"}], claims: [{name: plan, exact: pro}]}
    to: {model: llama-70b, engines: [h100-0, h100-1]}
  - name: chat
    match: {model: chat}
    to: {model: llama-8b}
    arms: [{name: stable, weight: 95}, {name: canary, weight: 5, to: {model: chat-lora-2}}]
regions: {here: eu-west, header: x-region, latency: {eu-west: {eu-north: 25ms, us-east: 85ms}}}
residency: [{name: gdpr, tenants: [acme], regions: [eu-west, eu-north]}]
shift: {route: chat, arm: canary, steps: [1%, 5%, 25%, 100%], hold: 10min}
```

Rules: the first route, from the top, all of whose criteria hold decides; a request that no route takes goes by the name of
its model, as without routes.  An arm says only where it differs from its route.  Residency is a rule, never a weight: all
clauses that hold for a request must allow a region, an engine without a region is allowed by none, and when no allowed
engine is up the request is refused.

Deliberately absent: precedence by specificity (an order one can see beats one that must be computed), and rewriting of
anything but the model's name.
"""

from typing import Literal

import msgspec

from sits.core.section import Section
from sits.core.units import SECOND, Ns, Share


class HeaderMatch(Section, frozen=True, kw_only=True):
    """One request header: exactly one of `exact`, `prefix`, `regex` (of the whole value) or `present`."""

    name: str
    exact: str = ""
    prefix: str = ""
    regex: str = ""
    present: bool = False


class ClaimMatch(Section, frozen=True, kw_only=True):
    """One claim of the caller's token, by its name in `access.jwt`; of a list, one member is enough."""

    name: str
    exact: str = ""
    one_of: tuple[str, ...] = ()
    regex: str = ""


class RouteMatch(Section, frozen=True, kw_only=True):
    """All of what is given must hold; what is left out holds for everybody.

    `model` is the name the caller asked for, or the base model of the adapter it asked for.  `adapter_digest` is the
    digest the adapter's files have where they are registered.  `region` is the caller's (see `Regions`).
    """

    model: str = ""
    adapter: str = ""
    adapter_digest: str = ""
    tenant: str = ""
    team: str = ""
    region: str = ""
    endpoint: str = ""
    headers: tuple[HeaderMatch, ...] = ()
    claims: tuple[ClaimMatch, ...] = ()


class Target(Section, frozen=True, kw_only=True):
    """Where to: the name engines are asked for (a model's or an adapter's), and which engines or regions may be asked."""

    model: str = ""
    engines: tuple[str, ...] = ()
    regions: tuple[str, ...] = ()


class RouteArm(Section, frozen=True, kw_only=True):
    """One arm of a route: a share of the units, and where its target differs from the route's.

    `artefact` and `fallback` are as in a release.
    """

    name: str
    weight: float
    artefact: str = ""
    fallback: str = ""
    to: Target = Target()


class RouteRule(Section, frozen=True, kw_only=True):
    """One route.  With `arms` it is a release of its own; `salt` is then the route's name when empty.

    `residency` lists the only regions that may answer; other clauses narrow it further.
    """

    name: str
    match: RouteMatch = RouteMatch()
    to: Target = Target()
    arms: tuple[RouteArm, ...] = ()
    unit: Literal["user", "session", "tenant"] = "user"
    salt: str = ""
    residency: tuple[str, ...] = ()


class Regions(Section, frozen=True, kw_only=True):
    """Where callers are, and how far regions are from each other.

    A caller is in the region that the header `header` names, or the claim `claim`, or `here`; a name nobody knows counts as
    `here`.  Who may set the header is the edge's business: it chooses what is near, never what is allowed.
    `latency` is the round trip between two regions, in either direction.  Regions within `slack` of the nearest one
    count as equally near; a farther one is used only while no nearer engine can take the request.
    """

    here: str = ""
    header: str = ""
    claim: str = ""
    latency: dict[str, dict[str, Ns]] = msgspec.field(default_factory=dict)
    slack: Ns = Ns(0)


class Residency(Section, frozen=True, kw_only=True):
    """A clause: what of these tenants (and, if given, of these models) asks may only be answered in these regions."""

    name: str
    regions: tuple[str, ...]
    tenants: tuple[str, ...] = ()
    models: tuple[str, ...] = ()


class Halt(Section, frozen=True, kw_only=True):
    """What stops a shift, each proven at `alpha` whenever one looks.

    `p99`: more than 1 % of the arm's requests take longer; 0 = the fleet's objective.  `error_rate`: a ceiling, 0 = none.
    `worse_errors`: the arm fails more often than the others at the same time.  `adapter_load_success`: a floor, 0 = none.
    `alpha` is the chance that a sound arm is halted at all, over all tests and steps together.
    """

    p99: Ns = Ns(0)
    error_rate: Share = Share(0.0)
    worse_errors: bool = True
    adapter_load_success: Share = Share(0.9995)
    alpha: Share = Share(0.01)


class Shift(Section, frozen=True, kw_only=True):
    """How an arm's share grows: of the route `route`, of the release of `model`, or of `policy.release`.

    A step lasts at least `hold` and `min_requests` answered by the arm.  `rollback` `auto` takes the arm's share back when
    the shift is halted, `manual` leaves the shares as they stand.
    """

    arm: str
    route: str = ""
    model: str = ""
    steps: tuple[Share, ...] = (Share(0.01), Share(0.05), Share(0.25), Share(1.0))
    hold: Ns = Ns(600 * SECOND)
    min_requests: int = 500
    halt: Halt = Halt()
    rollback: Literal["auto", "manual"] = "auto"
