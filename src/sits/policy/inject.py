"""Fault injection: which requests are delayed or aborted on purpose.

Rules: the first injection that takes a request decides, by the same criteria as routes; the share is drawn from the request's
id, which is as good as random and in the decision record, so the same request is always treated alike.

Deliberately absent: waiting (the gateway waits).
"""

import msgspec

from sits.core.caller import Caller
from sits.core.decision import Decision
from sits.core.fleet import Fleet
from sits.core.fleet_inject import Injection
from sits.core.fleet_routes import RouteRule
from sits.policy.criteria import Match
from sits.policy.match import Headers, Matcher

NONE = Decision(policy="inject", outcome="none")


def drawn(request_id: str) -> float:
    """A number in [0, 1) that a request always gets.

    >>> drawn("80000000" + 24 * "0")
    0.5
    """
    return int(request_id[:8], 16) / 2**32


class Injector:
    """The injections of one configuration, ready to be asked.  `headers` are those they look at."""

    def __init__(self, fleet: Fleet) -> None:
        rules = tuple(RouteRule(name=one.name, match=one.match) for one in fleet.injections)
        self._matcher = Matcher(msgspec.structs.replace(fleet, routes=rules))
        self._faults = {one.name: one for one in fleet.injections}
        self.headers = self._matcher.headers

    def decide(
        self, caller: Caller, model: str, adapter: str, endpoint: str, headers: Headers, draw: float
    ) -> Decision:
        """`none`, or `injected` with `delay_ns` and `abort` (a status, 0 = none) among its reasons; `draw` in [0, 1)."""
        region = self._matcher.region_of(caller, headers)
        match: Match = self._matcher.match(caller, model, adapter, endpoint, headers, region=region)
        fault: Injection | None = self._faults.get(match.route)
        if fault is not None and draw < fault.share:  # a share that is no number injects nothing
            reasons = {"delay_ns": fault.delay, "abort": fault.abort, "share": fault.share, "draw": draw}
            return Decision(policy="inject", outcome="injected", choice=fault.name, reasons=reasons)
        return NONE
