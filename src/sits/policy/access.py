"""Access: may this caller do this, to this model, in this context?  Cedar decides, by policies compiled once.

Rules: no policies: everything is allowed (`open`).  Otherwise a request is allowed when some `permit` matches and no `forbid`
does; what nothing permits is denied; a policy that fails while it is evaluated denies too, for it might have been a `forbid`.
The Decision carries the ids of the policies that decided, sorted.

```
(caller, action, resource, context) --seen--> what the policies can tell apart --evaluate--> Decision
```
`seen` drops what no policy can see: an entity no policy names becomes the nameless one of its type, claims nobody asks for
go, and so on.  Policies compare entities by identity and place only (`core.access_names`), so this changes no decision, and
the number of evaluations is bounded by the policies, not by the users, models or adapters.

Deliberately absent: memory of decisions and errors for the caller (gateway.access), and a clock: no policy depends on time.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from sits.core.access_names import GROUPS, Names, names_of
from sits.core.access_policies import Compiled, compile_policies, library
from sits.core.caller import NO_CLAIMS, Caller
from sits.core.decision import Decision
from sits.core.fleet import Fleet

OPEN = Decision(policy="access", outcome="open")
ALLOWED = frozenset({"open", "allowed"})
"""Outcomes that let a request pass.  The others: `denied_by_policy` (a forbid), `denied_by_default` (no permit matched) and
`denied_by_error`."""

Uid = tuple[str, str]


class Seen(NamedTuple):
    """What policies can tell apart in a request; equal ones are decided equally.

    `principal` and the others are `(type, id)`; an absent region or endpoint is None, an absent header too.
    """

    principal: Uid
    tenant: str
    team: str | None
    roles: tuple[str, ...]
    claims: tuple[tuple[str, str | tuple[str, ...]], ...]
    action: str
    model: str
    family: str | None
    adapter: str | None
    region: str | None
    endpoint: str | None
    headers: tuple[str | None, ...]


class AccessPolicy:
    """The compiled policies of one configuration."""

    def __init__(self, names: Names, compiled: Compiled, texts: tuple[str, ...] = ()) -> None:
        self.names = names
        self.texts = texts
        self._compiled = compiled
        self._cedar = library()
        self._claims = "claims" in compiled.asked
        self._headers = "context" in compiled.asked

    def decide(
        self,
        caller: Caller,
        action: str,
        model: str = "",
        adapter: str = "",
        *,
        region: str = "",
        endpoint: str = "",
        headers: Sequence[str | None] = (),
    ) -> Decision:
        """May `caller` do `action` to `adapter` of `model`, or to the base model when no adapter is given?

        `headers` are the values of the configured headers, in their order.  `admin` concerns the gateway, not a model.
        """
        return self.evaluate(self.seen(caller, action, model, adapter, region, endpoint, tuple(headers)))

    def seen(
        self,
        caller: Caller,
        action: str,
        model: str,
        adapter: str,
        region: str,
        endpoint: str,
        headers: tuple[str | None, ...],
    ) -> Seen:
        """The part of a request that policies can see."""
        named, kind = self._compiled.named, "Key" if caller.kind == "key" else "User"
        own = caller.key_id or "anonymous"
        team = f"{caller.tenant}/{caller.team}" if caller.team else None
        family = self.names.family_of(adapter) if adapter else ""

        def shown(kind: str, name: str | None) -> str:
            return name if name and (kind, name) in named else ""

        return Seen(
            principal=(kind, shown(kind, own)),
            tenant=shown("Tenant", caller.tenant),
            team=None if team is None else shown("Team", team),
            roles=tuple(sorted({role for role in caller.roles if ("Role", role) in named})),
            claims=tuple(sorted((caller.claims if self._claims else NO_CLAIMS).items())),
            action=action,
            model=shown("Model", model),
            family=shown("Family", family) if family else None,
            adapter=shown("Adapter", adapter) if adapter else None,
            region=shown("Region", region) if region else None,
            endpoint=shown("Endpoint", endpoint) if endpoint else None,
            headers=headers if self._headers else (),
        )

    def evaluate(self, seen: Seen) -> Decision:
        """Ask Cedar."""
        if seen.action == "admin":
            resource: Uid = ("Gateway", self.names.gateway)
        else:
            resource = ("Model", seen.model) if seen.adapter is None else ("Adapter", seen.adapter)
        request = {
            "principal": _plain(seen.principal),
            "action": {"type": "Action", "id": seen.action},
            "resource": _plain(resource),
            "context": _text(self._context(seen)),
        }
        answer = self._cedar.is_authorized(request, self._compiled.handle, _text(_entities(seen, resource)))
        reasons = tuple(sorted(self._compiled.ids.get(own, own) for own in answer.diagnostics.reasons))
        if answer.diagnostics.errors or answer.decision.value == "NoDecision":
            errors = tuple(sorted(str(error) for error in answer.diagnostics.errors))
            told = {"policies": reasons, "errors": errors}
            return Decision(policy="access", outcome="denied_by_error", reasons=told)
        outcome = "allowed" if answer.allowed else "denied_by_policy" if reasons else "denied_by_default"
        return Decision(policy="access", outcome=outcome, reasons={"policies": reasons})

    def _context(self, seen: Seen) -> dict[str, Any]:
        given = zip(self.names.headers, seen.headers, strict=True) if seen.headers else ()
        found: dict[str, Any] = {"headers": {name: value for name, value in given if value is not None}}
        if seen.region is not None:
            found["region"] = {"__entity": {"type": "Region", "id": seen.region}}
        if seen.endpoint is not None:
            found["endpoint"] = {"__entity": {"type": "Endpoint", "id": seen.endpoint}}
        return found


def access_policy(fleet: Fleet, before: AccessPolicy | None = None) -> AccessPolicy | None:
    """The policies of `fleet`, compiled; None when it has none.

    Compiling takes half a millisecond a policy, so the one `before` is kept where it would come out the same.

    Raises:
        ConfigError: they cannot be used.

    """
    texts = fleet.access.policies
    if not texts:
        return None
    names = names_of(fleet)
    if before is not None and before.texts == texts and before.names == names:
        return before
    return AccessPolicy(names, compile_policies(texts, names), texts)


def _entities(seen: Seen, resource: Uid) -> list[dict[str, Any]]:
    """The few entities one request needs: its principal, action and resource, and where they belong."""
    tenant: Uid = ("Tenant", seen.tenant)
    attributes: dict[str, Any] = {"tenant": {"__entity": _plain(tenant)}, "claims": dict(seen.claims)}
    above = [tenant, *(("Role", role) for role in seen.roles)]
    found = []
    if seen.team is not None:
        team: Uid = ("Team", seen.team)
        attributes["team"] = {"__entity": _plain(team)}
        above.append(team)
        found.append(_entity(team, [tenant]))
    found.append(_entity(seen.principal, above, attributes))
    group = GROUPS.get(seen.action)
    found.append(_entity(("Action", seen.action), [("Action", group)] if group else []))
    base: Uid = ("Model", seen.model)
    if seen.family is not None:
        found.append(_entity(("Family", seen.family), [base]))
    if resource[0] == "Adapter":
        within = [base] if seen.family is None else [("Family", seen.family), base]
        found.append(_entity(resource, within))
    return found


def _entity(uid: Uid, above: Sequence[Uid], attributes: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"uid": _plain(uid), "attrs": attributes or {}, "parents": [_plain(one) for one in above]}


def _plain(uid: Uid) -> dict[str, str]:
    return {"type": uid[0], "id": uid[1]}


def _text(value: Any) -> str:
    return msgspec.json.encode(value).decode()
