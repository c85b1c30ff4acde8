"""What access policies may name: the fleet's own words, and the Cedar schema made of them.

```
Key, User  in  Team in Tenant, Role          Adapter  in  Family in Model          Gateway   Region   Endpoint
```
A Team's id is `tenant/team`, so that two tenants' teams of one name are two teams; a User's is `issuer/subject`.
`resource == Model::"m"` is the base model alone, `resource in Model::"m"` that and its adapters.

Users are the one thing policies may name that a fleet file does not list: only their issuer is checked.

Deliberately absent: attributes of models.  A policy sees a model's name and place in the tree, nothing else, so models no
policy names cannot be told apart by one (`policy.access` counts on it).
"""

import msgspec

from sits.core.fleet import EmulatedEngine, Fleet
from sits.core.fleet_access import Access

ACTIONS = ("infer", "embed", "list_models", "finetune", "deploy", "admin")
GROUPS = {"infer": "use", "embed": "use", "finetune": "manage", "deploy": "manage"}
"""Actions that are often allowed together, and the group's name: `action in Action::"use"`."""

ENDPOINTS = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/v1/models",
)
ANONYMOUS = "anonymous"


class Names(msgspec.Struct, frozen=True, kw_only=True):
    """The names that exist, by what they name.  `families` tells how many adapters each has, `claims` their kind.

    `aliases` are names callers may ask for that no engine has: a release or a route decides what answers.
    """

    gateway: str
    tenants: frozenset[str]
    teams: frozenset[str]
    roles: frozenset[str]
    keys: frozenset[str]
    issuers: frozenset[str]
    models: frozenset[str]
    aliases: frozenset[str]
    adapters: frozenset[str]
    families: dict[str, int]
    regions: frozenset[str]
    claims: dict[str, str]
    headers: tuple[str, ...]

    def family_of(self, adapter: str) -> str:
        """The family an adapter belongs to by its name; empty when it stands alone."""
        family, dash, number = adapter.rpartition("-")
        count = self.families.get(family, 0)
        plain = dash and number.isascii() and number.isdigit() and (number == "0" or number[0] != "0")
        return family if plain and len(number) < 10 and int(number) < count else ""

    def has_adapter(self, name: str) -> bool:
        """Whether an adapter of this name is served."""
        return name in self.adapters or bool(self.family_of(name))


def legacy_keys(fleet: Fleet) -> list[tuple[str, str, str]]:
    """`(key id, tenant, secret)` of each entry of `gateway.keys`."""
    found = []
    for i, entry in enumerate(fleet.gateway.keys):
        tenant, colon, secret = entry.partition(":")
        found.append((f"gateway.keys[{i}]", tenant if colon else "default", secret if colon else entry))
    return found


def is_open(fleet: Fleet) -> bool:
    """Whether nothing identifies callers, so that everyone is who the request says."""
    return not (fleet.gateway.keys or fleet.access.keys or fleet.access.jwt)


def opened(fleet: Fleet) -> Fleet:
    """The fleet with its doors open, for simulated requests: they carry no credentials and are who they say."""
    gateway = msgspec.structs.replace(fleet.gateway, keys=())
    return msgspec.structs.replace(fleet, gateway=gateway, access=Access())


def tenants_of(fleet: Fleet) -> frozenset[str]:
    """The tenants that exist: the listed ones, or those that keys and issuers name."""
    access = fleet.access
    if access.tenants:
        return frozenset(tenant.name for tenant in access.tenants)
    named = {key.tenant for key in access.keys} | {tenant for _, tenant, _ in legacy_keys(fleet)}
    for issuer in access.jwt:
        named.update(issuer.tenants, [issuer.tenant] if issuer.tenant else [])
    return frozenset(named | ({"default"} if is_open(fleet) else set()))


def roles_of(access: Access) -> frozenset[str]:
    """The roles that exist: the declared ones and those of keys."""
    return frozenset(access.roles).union(*(key.roles for key in access.keys))


def teams_of(access: Access) -> frozenset[str]:
    """The teams that exist, as `tenant/team`."""
    listed = {f"{tenant.name}/{team}" for tenant in access.tenants for team in tenant.teams}
    return frozenset(listed | {f"{key.tenant}/{key.team}" for key in access.keys if key.team})


def names_of(fleet: Fleet) -> Names:
    """Everything a policy of `fleet` may name."""
    access, models, adapters = fleet.access, set[str](), set[str]()
    regions = {node.region for node in fleet.nodes} | {fleet.regions.here} | fleet.regions.latency.keys()
    aliases = {release.model for release in fleet.policy.releases} | {
        rule.match.model for rule in fleet.routes
    }
    families = {family.name: family.count for family in fleet.adapters}
    for engine in fleet.engines:
        models.update((engine.model,) if isinstance(engine, EmulatedEngine) else engine.models)
        adapters.update(name for name in engine.adapters if name not in families)
        if not isinstance(engine, EmulatedEngine):
            regions.add(engine.region)
    adapters.update(adapter.name for adapter in fleet.runtime_adapters.adapters)
    return Names(
        gateway=fleet.name,
        tenants=tenants_of(fleet),
        teams=teams_of(access),
        roles=roles_of(access),
        keys=frozenset(key.id for key in access.keys) | {name for name, _, _ in legacy_keys(fleet)},
        issuers=frozenset(issuer.name for issuer in access.jwt),
        models=frozenset(models - {""}),
        aliases=frozenset(aliases - models - {""}),
        adapters=frozenset(adapters),
        families=families,
        regions=frozenset(regions - {""}),
        claims={claim.name: claim.kind for issuer in access.jwt for claim in issuer.claims},
        headers=access.headers,
    )


def schema_text(names: Names) -> str:
    """The Cedar schema of a fleet, as `cedar` and its editors read it."""
    kinds = {"text": "String", "list": "Set<String>"}
    claims = ", ".join(f'"{name}"?: {kinds[kind]}' for name, kind in sorted(names.claims.items()))
    headers = ", ".join(f'"{name}"?: String' for name in names.headers)
    groups = sorted(set(GROUPS.values()))
    lines = [
        "entity Tenant;",
        "entity Team in [Tenant];",
        "entity Role;",
        *(
            f"entity {kind} in [Tenant, Team, Role] = {{tenant: Tenant, team?: Team, claims: {{{claims}}}}};"
            for kind in ("Key", "User")
        ),
        "entity Model;",
        "entity Family in [Model];",
        "entity Adapter in [Family, Model];",
        "entity Gateway;",
        "entity Region;",
        "entity Endpoint;",
        f"type Asked = {{region?: Region, endpoint?: Endpoint, headers: {{{headers}}}}};",
        f"action {', '.join(groups)};",
    ]
    for action in ACTIONS:
        within = f" in [{GROUPS[action]}]" if action in GROUPS else ""
        resources = "Gateway" if action == "admin" else "Model, Adapter"
        lines.append(
            f"action {action}{within} appliesTo {{principal: [Key, User], resource: [{resources}], context: Asked}};"
        )
    return "\n".join(lines) + "\n"
