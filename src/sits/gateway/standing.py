"""What a request stands on: all about it that is the same whenever this caller asks for this.

```
(tenant, model, adapter, endpoint, credentials, headers that anything looks at) --one dict hit--> Standing
```
Who it is, where they are, whether they may, and which route takes it depend on nothing else: on no body, no clock, and no engine's
state.  So they are found once, in that order, and remembered together; later stages keep here what they find for it.

Rules:
- A refusal is never remembered, nor is a name that nobody serves: asking for made-up ones evicts nothing.
- What is remembered ends with the credential's time, when signing keys change, and with the configuration.
- The memory compares whole values, within `STANDINGS_BYTES`; so no two callers can share an entry.

Deliberately absent: units (a caller sends requests for many), and what is counted.
"""

from typing import TYPE_CHECKING, Any, Final

from sits.core.breakpoints import AUTHORIZED
from sits.core.caller import ANONYMOUS, Caller
from sits.core.decision import Decision
from sits.core.fleet import Fleet, Release
from sits.core.remember import Remember
from sits.core.timeline import MEASURED
from sits.gateway.access import ACTIONS
from sits.gateway.decisions import headers_read
from sits.gateway.endpoints import LAYERS
from sits.gateway.ledger.line import Slots
from sits.gateway.routing import assigned_by
from sits.policy.criteria import NO_ROUTE, Match
from sits.policy.release import Assigner
from sits.policy.route import Candidates

if TYPE_CHECKING:
    from sits.gateway.exchange import Exchange
    from sits.gateway.pipeline import Gateway

STANDINGS_BYTES: Final = 16 * 2**20
ENTRY_BYTES: Final = 2_000
"""What a remembered standing takes beside the texts it is found by."""

CREDENTIALS: Final = (b"authorization", b"x-api-key")

Key = tuple[Any, ...]


class Standing:
    """What is the same for all requests of one caller that ask for the same.

    Attributes:
        caller, tenant, key: who is proven to ask; ends_ns: until when, wall time, 0 without an end.
        region: where they are; access: why they may, where policies decide that; match: the route that takes it.
        asked: the name they ask for.
        layer: what stands between them and the engine, for the record.
        assigner, name: who assigns the arm, and under which name.
        recorded: how its decision records begin, once there was one.
        slots: the balances it is charged to, once that was asked.
        able: by arm, the replicas to choose from, and the state of the places they were found in.

    """

    __slots__ = (
        "able",
        "access",
        "asked",
        "assigner",
        "caller",
        "ends_ns",
        "key",
        "layer",
        "match",
        "name",
        "recorded",
        "region",
        "slots",
        "tenant",
    )

    def __init__(self, caller: Caller, assigner: Assigner, ends_ns: int = 0) -> None:
        self.caller = caller
        self.tenant, self.key = caller.tenant, caller.key_id
        self.ends_ns = ends_ns
        self.region = ""
        self.access: Decision | None = None
        self.match: Match = NO_ROUTE
        self.asked = ""
        self.assigner = assigner
        self.name = self.layer = ""
        self.recorded: bytes | None = None
        self.slots: Slots | None = None
        self.able: dict[str, tuple[int, tuple[Candidates, ...]]] = {}


class Standings(Remember[Key, Standing]):
    """Those of one configuration.  `read` are the headers they depend on."""

    __slots__ = ("read",)

    def __init__(self, fleet: Fleet, *, open_to_all: bool) -> None:
        super().__init__(STANDINGS_BYTES)
        names = tuple(name.encode("latin-1") for name in headers_read(fleet))
        self.read = names if open_to_all else CREDENTIALS + names


def authorize(gateway: "Gateway", exchange: "Exchange") -> None:
    """Who is it, could the request be understood at all, may they do it, and which route takes it?  Known from last time, mostly."""
    request, standings = exchange.request, gateway.standings
    asked = (
        exchange.tenant,
        request.model,
        request.adapter,
        request.endpoint,
        *map(exchange.headers.get, standings.read),
    )
    standing = standings.young.get(asked)
    if (
        standing is None
        or exchange.problem is not None
        or (standing.ends_ns and standing.ends_ns <= gateway.world.wall_ns())
    ):
        standing = _find(gateway, exchange, asked)
    exchange.standing = standing
    exchange.tenant = standing.tenant
    timeline = exchange.timeline
    timeline.at[AUTHORIZED], timeline.how[AUTHORIZED] = gateway.now_ns(), MEASURED


def _find(gateway: "Gateway", exchange: "Exchange", asked: Key) -> Standing:
    """Remembered from longer ago, or found out; an unknown caller learns nothing else."""
    weight = ENTRY_BYTES + sum(len(text) for text in asked if text is not None)
    found = gateway.standings.get(asked, weight)
    if found is not None and exchange.problem is None:
        if not found.ends_ns or found.ends_ns > gateway.world.wall_ns():
            return found
        gateway.standings.forget(asked)
    access, headers, request = gateway.access, exchange.headers, exchange.request
    caller, ends_ns = access.proven(headers.get(b"authorization"), headers.get(b"x-api-key"), exchange.tenant)
    found = exchange.standing = Standing(caller, gateway.assigner, ends_ns)
    exchange.tenant = caller.tenant
    if exchange.problem is not None:
        raise exchange.problem
    found.layer = LAYERS.get(request.endpoint, "")
    found.asked = found.name = request.adapter or request.model
    routing = gateway.routing
    if routing is not None:
        found.region = routing.matcher.region_of(caller, headers)
    if access.policy is not None:
        action = ACTIONS.get(request.endpoint, "infer")
        place = (found.region, request.endpoint, access.chosen(headers))
        found.access = access.decide(caller, action, request.model, request.adapter, *place)
        access.refuse(found.access, action, found.asked)
    if routing is not None:
        found.match = routing.matcher.match(
            caller, request.model, request.adapter, request.endpoint, headers, region=found.region
        )
        found.assigner, found.name = assigned_by(routing, gateway.assigner, found.match, found.asked)
    if found.asked in gateway.catalog:
        gateway.standings.put(asked, found, weight)
    return found


NOBODY: Final = Standing(ANONYMOUS, Assigner(Release()))
NOBODY.recorded = b""  # of no configuration, so nothing is kept there
"""What a request stands on until it is looked at."""
