"""What the section `injections` needs beyond the types of its fields: something to do, and criteria that can hold.

Deliberately absent: injections that another hides (those do no harm, so they are told as warnings: `policy.shadow`).
"""

from sits.core import fleet as tree
from sits.core.fleet_routes import RouteRule
from sits.core.problems import Report, join
from sits.core.route_rules import check_match, world_of
from sits.core.units import SECOND

DELAY_NS_MAX = 600 * SECOND
INJECTIONS_MAX = 1_000


def check_injections(fleet: tree.Fleet, path: str, report: Report) -> None:
    """Report everything in `injections` that cannot be used."""
    at = join(path, "injections")
    if len(fleet.injections) > INJECTIONS_MAX:
        report.add(at, f"has {len(fleet.injections)} entries", hint=f"at most {INJECTIONS_MAX}")
        return
    world = world_of(fleet) if fleet.injections else None
    for i, one in enumerate(fleet.injections):
        inner = f"{at}[{i}]"
        if world is not None:
            check_match(RouteRule(name=one.name, match=one.match), world, join(inner, "match"), report)
        if not one.delay and not one.abort:
            report.add(inner, "does nothing", hint="give it a delay, an abort, or both")
        if one.abort and not 400 <= one.abort <= 599:
            report.add(join(inner, "abort"), f"{one.abort} is no error", value=one.abort, hint="400..599")
        if not 0 <= one.delay <= DELAY_NS_MAX:
            report.add(join(inner, "delay"), "is out of range", value=one.delay, hint="0..10min")
