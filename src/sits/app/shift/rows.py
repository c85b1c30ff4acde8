"""From recorded rows to what a shift counts: arm, outcome and latency of the requests it is about.

Rules: of a release the rows of its model are looked at (of the release for all models, those of models without one of their own);
a route's arms carry its name.  An answer from the cache says nothing about an arm.  What was refused for the caller's own sake
before an engine was asked (a quota, a right, a size) is no request of the arm; that no engine could be had is.
A client that left is left out.  Where the objective is on TTFT, only streamed answers are timed.

Deliberately absent: counting (`policy.tally`).
"""

from array import array
from collections.abc import Iterable, Iterator

from sits.core.breakpoints import API_RECV, FIRST_TOKEN, LAST_TOKEN, POINT_COUNT
from sits.core.fleet import Fleet
from sits.policy.shift import Plan
from sits.policy.tally import Row
from sits.telemetry.packing import KIND, Packed

_NAMES = ("arm", "outcome", "model", "adapter", "engine", "detail", "status")
_ARM, _OUTCOME, _MODEL, _ADAPTER, _ENGINE, _DETAIL, _STATUS = map(KIND.index, _NAMES)
_SKIP = ("", "")


def rows_of(parts: Iterable[Packed], fleet: Fleet, plan: Plan) -> Iterator[Row]:
    """The rows of `parts` that the plan is about."""
    arms = {plan.arm, *plan.others}
    end = FIRST_TOKEN if plan.metric == "ttft" else LAST_TOKEN
    for part in parts:
        kinds = [_kind(kind, arms, plan, fleet) for kind in part.kinds]
        if not any(arm for arm, _ in kinds):
            continue
        at = array("q")
        at.frombytes(part.at)
        for i, which in enumerate(part.kind):
            arm, outcome = kinds[which]
            if not arm:
                continue
            first = i * POINT_COUNT
            seen = part.how[first + API_RECV] and part.how[first + end]
            yield arm, outcome, at[first + end] - at[first + API_RECV] if seen else 0


def _kind(kind: tuple[object, ...], arms: set[str], plan: Plan, fleet: Fleet) -> tuple[str, str]:
    """Arm and outcome of all rows of one kind; empty when they do not count."""
    arm, outcome, status = str(kind[_ARM]), str(kind[_OUTCOME]), kind[_STATUS]
    if arm not in arms or not _about(kind, plan, fleet) or kind[_DETAIL] == "cache_hit":
        return _SKIP
    if outcome == "cancelled":
        return _SKIP
    if outcome == "refused" and not kind[_ENGINE] and isinstance(status, int) and status < 500:
        return _SKIP
    return arm, outcome


def _about(kind: tuple[object, ...], plan: Plan, fleet: Fleet) -> bool:
    """Whether rows of this kind are of the release that is shifted; the arms of routes have names of their own."""
    shift = plan.shift
    if shift.route:
        return True
    names = kind[_MODEL], kind[_ADAPTER]
    if shift.model:
        return shift.model in names
    return not any(one.model in names for one in fleet.policy.releases)
