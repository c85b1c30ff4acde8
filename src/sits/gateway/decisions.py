"""Decision records on the live path: what each exchange was decided by, as bytes, and the facts about the replicas it refers to.

Rules: facts get a new version only when something about a replica changed besides what is in flight there; versions are unique
over processes (`source` is drawn, the rest counts up), and facts are handed out before the first record that names them.

Deliberately absent: deciding again (gateway.redecide), and where rows go.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from sits.core.fleet import Fleet
from sits.core.recorded import Facts, Reserved, Seen, completed, encode, opening
from sits.gateway.places import Places

if TYPE_CHECKING:
    from sits.gateway.exchange import Exchange

Add = Callable[[str, tuple[Any, ...]], None]
"""Takes a row of a table: (`decisions`, (id, t_ns, record)) or (`facts`, (version, t_ns, record))."""

SOURCE_BITS: Final = 40
"""Facts a process can tell apart; above them is which process."""


def headers_read(fleet: Fleet) -> list[str]:
    """The headers that policies of a configuration look at: access, routes and injections."""
    matched = [match for rule in fleet.routes for match in rule.match.headers]
    matched += [match for one in fleet.injections for match in one.match.headers]
    names = {*fleet.access.headers, *(match.name.lower() for match in matched), fleet.regions.header.lower()}
    return sorted(names - {""})


class Decisions:
    """Makes records, and hands rows to `add`.  `version` is that of the facts, as of the places' `places_version`."""

    def __init__(self, add: Add, source: int, watched: Sequence[str], generation: str) -> None:
        self._add = add
        self._generation = generation
        self.version = (source & 0x3FFFFF) << SOURCE_BITS
        self.places_version = -1
        self._known: list[tuple[Any, ...]] = []
        self._watched = [(name.encode("latin-1"), name) for name in watched]

    def learn(self, places: Places, now_ns: int) -> None:
        """Keep what is known of the replicas now, if it is something else than before."""
        self.places_version, replicas = places.version, places.replicas
        known = [
            (r.weight, r.healthy, r.observed_ns, r.waiting, r.kv_usage, len(r.adapters)) for r in replicas
        ]
        if known != self._known:
            self._known = known
            self.version += 1
            seen = tuple(
                Seen(
                    r.id,
                    r.models,
                    tuple(sorted(r.adapters)),
                    r.region,
                    r.weight,
                    r.healthy,
                    r.running,
                    r.waiting,
                    r.kv_usage,
                    r.observed_ns,
                )
                for r in replicas
            )
            self._add("facts", (self.version, now_ns, encode(Facts(self.version, seen))))

    def record(self, exchange: "Exchange", now_ns: int, held: Reserved) -> None:
        """Keep the record of a finished exchange; `held` is what quotas hold for it."""
        request, lookup = exchange.request, exchange.lookup
        requests, tokens, admitted_ns = exchange.admitted_on
        rest = (
            request.id,
            request.unit,
            exchange.session,
            exchange.hint,
            request.prompt_tokens,
            request.output_tokens_max,
            exchange.need_tokens,
            request.prefix,
            exchange.arm,
            exchange.fallen,
            "" if lookup is None else lookup.header.decode(),
            "reserved" if held else "",
            held,
            exchange.routed_on,
            requests,
            tokens,
            admitted_ns,
            request.deadline_ns,
            exchange.outcome,
            exchange.status,
            exchange.detail,
        )
        begin = exchange.standing.recorded or self._opening(exchange)
        self._add("decisions", (request.id, now_ns, completed(begin, rest)))

    def _opening(self, exchange: "Exchange") -> bytes:
        """What the record has in common with all of the same standing."""
        standing, headers = exchange.standing, exchange.headers
        caller, access = standing.caller, standing.access
        made = opening(
            self._generation,
            caller.tenant,
            caller.team,
            caller.key_id,
            caller.kind,
            caller.roles,
            caller.claims,
            {name: headers[raw].decode("latin-1") for raw, name in self._watched if raw in headers},
            exchange.request.endpoint,
            standing.asked,
            "" if access is None else access.outcome,
            standing.match.route,
        )
        if standing.recorded is None:
            standing.recorded = made
        return made
