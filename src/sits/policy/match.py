"""Matching: which route takes a request.

Rules: routes are tried from the top, the first whose criteria all hold decides; when none does, the request goes by the name
of its model.  What a route leads to is made when the configuration is loaded, so a match makes nothing.

The list is compiled to a tree: each node asks for the one fact that most of its routes demand a value of (model, tenant, a
header, a claim, ...) and keeps, for each value, the routes that can still take a request that has it, in their order.
Nodes are made the first time a request comes by, at most `NODES_MAX` of them; where only patterns are left the routes are
tried in turn.  So the cost hangs on how much a request has to be asked, not on how many routes there are.

Deliberately absent: regular expressions that go back (`core.pattern`), the choice of an arm (`policy.release`) and of a
replica (`policy.route`), and what is allowed (`policy.residency`).
"""

from collections.abc import Mapping, Sequence
from typing import Any

from sits.core.caller import Caller
from sits.core.fleet import Fleet
from sits.policy.criteria import CLAIM, HEADER, NO_ROUTE, TEXT, Compiled, Fact, Match, compiled

NODES_MAX = 20_000

Headers = Mapping[bytes, bytes]


class _Node:
    """Part of the tree: ask for `fact`, go on with what `branches` has for it; without a fact, try `routes` in turn."""

    __slots__ = ("_of", "_open", "branches", "fact", "key", "other", "routes")

    def __init__(self, routes: Sequence[Compiled]) -> None:
        cut = next((i + 1 for i, route in enumerate(routes) if not route.criteria), len(routes))
        self.routes = tuple(routes[:cut])
        fact = _telling(self.routes)
        self.fact = -1 if fact is None else fact.kind
        self.key: Any = None if fact is None else fact.key
        self.branches: dict[Any, _Node] = {}
        self.other: _Node | None = None
        self._of: dict[Any, list[int]] = {}
        self._open: list[int] = []
        for i, route in enumerate(self.routes if fact else ()):
            values = [one.values for one in route.criteria if one.fact == fact and one.values is not None]
            if not values:
                self._open.append(i)
            for value in frozenset.intersection(*values) if values else ():
                self._of.setdefault(value, []).append(i)

    def knows(self, value: Any) -> bool:
        """Whether a route demands this value."""
        return value in self._of

    def after(self, value: Any) -> "_Node":
        """The node of the routes that can still take a request with `value`; what was asked is not asked again."""
        found = []
        for i in sorted([*self._of.get(value, ()), *self._open]):
            criteria, match = self.routes[i]
            rest = [
                c for c in criteria if c.values is None or c.fact.kind != self.fact or c.fact.key != self.key
            ]
            found.append(Compiled(tuple(rest), match))
        return _Node(found)


class Matcher:
    """The routes of one configuration, ready to be asked.

    Attributes:
        names: the models that routes match on: names callers may ask for beside those that engines serve.
        headers, claims: what requests are asked for, for the record of a decision.

    """

    def __init__(self, fleet: Fleet) -> None:
        routes = [compiled(rule, i) for i, rule in enumerate(fleet.routes)]
        regions = fleet.regions
        self.names = frozenset(rule.match.model for rule in fleet.routes if rule.match.model)
        asked = {one.fact for route in routes for one in route.criteria}
        self.headers = frozenset(fact.key for fact in asked if fact.kind == HEADER)
        self.claims = frozenset(fact.key for fact in asked if fact.kind == CLAIM)
        if regions.header:
            self.headers |= {regions.header.encode()}
        if regions.claim:
            self.claims |= {regions.claim}
        self._region_header = regions.header.encode()
        self._region_claim = regions.claim
        self._here = regions.here
        self._regions = _regions_of(fleet)
        self._by_region = bool(regions.header or regions.claim)
        self._nodes = 1
        self._root = _Node(routes)

    def region_of(self, caller: Caller, headers: Headers) -> str:
        """Where the caller is; a name that nobody knows counts as here."""
        if not self._by_region:
            return self._here
        told: Any = None
        if self._region_header:
            raw = headers.get(self._region_header)
            told = None if raw is None else self._regions.get(raw)
        if told is None and self._region_claim:
            claim = caller.claims.get(self._region_claim)
            told = self._regions.get(claim.encode()) if isinstance(claim, str) else None
        return self._here if told is None else told

    def match(
        self,
        caller: Caller,
        model: str,
        adapter: str,
        endpoint: str,
        headers: Headers,
        *,
        region: str = "",
        digest: str = "",
    ) -> Match:
        """The route that takes a request, or `NO_ROUTE`.

        `headers` by lower-case name; `region` is the caller's (`region_of`), `digest` that of the adapter.
        """
        node = self._root
        if not node.routes:
            return NO_ROUTE
        facts = (model, adapter, digest, caller.tenant, caller.team, region, endpoint)
        while (kind := node.fact) >= 0:
            if kind == TEXT:
                value: Any = facts[node.key]
            elif kind == HEADER:
                value = headers.get(node.key)
            else:
                value = caller.claims.get(node.key)
                if value.__class__ is tuple:  # several values at once: no single branch has all their routes
                    break
            after = node.branches.get(value)
            if after is None:
                after = node.other
                if after is None or node.knows(value):
                    after = self._grow(node, value)
            node = after
        for criteria, found in node.routes:
            for (kind, key), values, holds in criteria:
                if kind == HEADER:
                    value = headers.get(key)
                else:
                    value = facts[key] if kind == TEXT else caller.claims.get(key)
                if not (holds(value) if values is None or value.__class__ is tuple else value in values):
                    break
            else:
                return found
        return NO_ROUTE

    def _grow(self, node: _Node, value: Any) -> _Node:
        """The node after `node` for a value that has no branch yet."""
        if not node.knows(value):
            node.other = node.after(value)
            return node.other
        found = node.after(value)
        if self._nodes < NODES_MAX:
            node.branches[value] = found
            self._nodes += 1
        return found


def _telling(routes: Sequence[Compiled]) -> Fact | None:
    """The fact that most routes demand a value of; None when no route demands any."""
    counts: dict[Fact, int] = {}
    for route in routes:
        for one in route.criteria:
            if one.values is not None:
                counts[one.fact] = counts.get(one.fact, 0) + 1
    return max(counts, key=lambda fact: counts[fact], default=None)


def _regions_of(fleet: Fleet) -> dict[bytes, str]:
    """The regions a caller may be in, by what a header would say."""
    names = {node.region for node in fleet.nodes} | {fleet.regions.here} | fleet.regions.latency.keys()
    names |= {name for row in fleet.regions.latency.values() for name in row}
    names |= {getattr(engine, "region", "") for engine in fleet.engines}
    return {name.encode(): name for name in sorted(names - {""})}
