"""A shift: an arm's share grows by steps while evidence against it is looked for, and falls back when it is found.

```
start ─> share = steps[0] ─ hold, enough requests, nothing suspicious ─> share = steps[1] ─ ... ─> complete
             └────────────── evidence reaches its bar: halt ──────────────┘
```
What halts, each a test that may be looked at always (`policy.sequential`):
`p99`           more than 1 % of the arm's requests take longer than the objective;
`worse_errors`  the arm's requests fail more often than the others' at the same time;
`error_rate`    more of them fail than the ceiling allows;
`adapter_loads` more loads of its adapter fail than the floor allows.

Rules: evidence begins anew with each step, because an arm that is sound at 1 % may not carry 25 %.  The chance of ever halting a
sound arm is at most alpha: the bar is ln(tests x steps / alpha) nats.  While any evidence is past half its bar no step is taken.
When the others are proven slow as well, and the arm not slower than they, its P99 is no fault of its own: hold, do not halt.
A step lasts `hold` of *watched* time: while nobody watches, nothing advances.
Weights: of all arms only the shifted one's weight changes, w = s/(1-s) x the others' sum, so a larger share moves units to it
and between no others (`policy.rendezvous`), and taking the share back brings everybody back to where they were.

Deliberately absent: clocks (the caller says how long it has watched), files, and who sets the weights.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Literal, TypeVar

import msgspec

from sits.core.decision import Decision
from sits.core.fleet import Arm, Fleet
from sits.core.fleet_routes import RouteArm, Shift
from sits.core.route_rules import arms_of
from sits.policy.criteria import arm_label
from sits.policy.sequential import TILTS, mean_of, over, worse
from sits.policy.tally import TAIL, Counts, added

A = TypeVar("A", Arm, RouteArm)
_NONE = Counts()


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """A shift as it is carried out.

    Attributes:
        arm, others: names as rows have them.
        steps: those shares that are not below the one the arm has to begin with.
        tests: what halts, in the order it is told.
        bar: evidence that halts, nats.

    """

    shift: Shift
    arm: str
    others: tuple[str, ...]
    steps: tuple[float, ...]
    objective_ns: int
    metric: str
    tests: tuple[str, ...]
    bar: float


class State(msgspec.Struct, kw_only=True):
    """How far a shift has come, and what was seen in its step.

    Attributes:
        step: index of `Plan.steps`; held_ns: watched in it.
        counts: of each arm; errors, slow: evidence of each tilt that the arm's requests fail, or are slow, more often.

    """

    status: Literal["running", "complete", "halted", "rolled_back", "superseded"] = "running"
    step: int = 0
    held_ns: int = 0
    counts: dict[str, Counts] = {}
    errors: tuple[float, ...] = (0.0,) * len(TILTS)
    slow: tuple[float, ...] = (0.0,) * len(TILTS)
    why: str = ""


def plan_of(fleet: Fleet) -> Plan | None:
    """The plan of a fleet; None when it has none, or its arm has the last step's share already."""
    shift = fleet.shift
    if shift is None:
        return None
    arms = arms_of(fleet, shift)
    now = share_of(arms, shift.arm)
    steps = tuple(step for step in shift.steps if step >= now)
    if not steps or now >= shift.steps[-1]:
        return None
    halt = shift.halt
    wanted = {
        "p99": True,
        "worse_errors": halt.worse_errors,
        "error_rate": halt.error_rate > 0,
        "adapter_loads": halt.adapter_load_success > 0,
    }
    tests = tuple(name for name, is_wanted in wanted.items() if is_wanted)
    return Plan(
        shift=shift,
        arm=arm_label(shift.route, shift.arm),
        others=tuple(arm_label(shift.route, arm.name) for arm in arms if arm.name != shift.arm),
        steps=steps,
        objective_ns=halt.p99 or fleet.objective.p99,
        metric=fleet.objective.metric,
        tests=tests,
        bar=math.log(len(tests) * len(steps) / halt.alpha),
    )


def share_of(arms: Sequence[Arm | RouteArm], name: str) -> float:
    """The share of the units that an arm has."""
    total = math.fsum(arm.weight for arm in arms)
    return math.fsum(arm.weight for arm in arms if arm.name == name) / total if total else 0.0


def with_share(arms: Sequence[A], name: str, share: float) -> tuple[A, ...]:
    """The arms with only the weight of `name` changed (at a share of 1 the others' are 0).

    >>> [arm.weight for arm in with_share([Arm(name="a", weight=3.0), Arm(name="b", weight=0.0)], "b", 0.25)]
    [3.0, 1.0]
    """
    others = math.fsum(arm.weight for arm in arms if arm.name != name) or 1.0
    if share >= 1.0:
        weights = {arm.name: float(arm.name == name) for arm in arms}
    else:
        weights = {arm.name: arm.weight for arm in arms} | {name: others * share / (1.0 - share)}
    return tuple(msgspec.structs.replace(arm, weight=weights[arm.name]) for arm in arms)


def observe(plan: Plan, state: State, batch: Mapping[str, Counts], watched_ns: int) -> State:
    """The state after one more batch, of requests that finished at about the same time."""
    ours = batch.get(plan.arm, _NONE)
    theirs = added([batch[name] for name in plan.others if name in batch])
    names = [name for name in (plan.arm, *plan.others) if name in batch]
    counts = state.counts | {
        name: added([state.counts[name], batch[name]]) if name in state.counts else batch[name]
        for name in names
    }
    errors = worse(ours.requests, ours.errors, theirs.requests, theirs.errors)
    slow = worse(ours.timed, ours.slow, theirs.timed, theirs.slow)
    return msgspec.structs.replace(
        state,
        held_ns=state.held_ns + watched_ns,
        counts=counts,
        errors=tuple(a + b for a, b in zip(state.errors, errors, strict=True)),
        slow=tuple(a + b for a, b in zip(state.slow, slow, strict=True)),
    )


def evidence(plan: Plan, state: State) -> dict[str, float]:
    """Evidence of each test against the arm, nats."""
    ours, halt = state.counts.get(plan.arm, _NONE), plan.shift.halt
    found = {
        "p99": over(ours.slow, ours.timed, TAIL),
        "worse_errors": mean_of(state.errors),
        "error_rate": over(ours.errors, ours.requests, halt.error_rate),
        "adapter_loads": over(ours.loads_failed, ours.loads, 1.0 - halt.adapter_load_success),
    }
    return {name: found[name] for name in plan.tests}


def decide(plan: Plan, state: State) -> Decision:
    """What to do now: `hold`, `advance`, `complete` or `halt`; the choice says why."""
    found = evidence(plan, state)
    ours = state.counts.get(plan.arm, _NONE)
    reasons = {
        "step": state.step,
        "share": plan.steps[state.step],
        "held_ns": state.held_ns,
        "requests": ours.requests,
        "evidence": found,
        "bar": plan.bar,
    }
    outcome, why = _outcome(plan, state, found, ours.requests)
    return Decision(policy="shift", outcome=outcome, choice=why, reasons=reasons)


def _outcome(plan: Plan, state: State, found: Mapping[str, float], requests: int) -> tuple[str, str]:
    proven = [name for name in plan.tests if found[name] >= plan.bar]
    if proven == ["p99"] and others_are_slow(plan, state) and mean_of(state.slow) < plan.bar:
        return "hold", "others_slow"
    if proven:
        return "halt", proven[0]
    if any(value >= plan.bar / 2 for value in found.values()):
        return "hold", "suspicious"
    if requests < plan.shift.min_requests:
        return "hold", "requests"
    if state.held_ns < plan.shift.hold:
        return "hold", "time"
    return ("complete", "all_steps") if state.step == len(plan.steps) - 1 else ("advance", "sound")


def others_are_slow(plan: Plan, state: State) -> bool:
    """Whether the other arms are proven to miss the objective too."""
    theirs = added([state.counts[name] for name in plan.others if name in state.counts])
    return over(theirs.slow, theirs.timed, TAIL) >= plan.bar


def advanced(state: State) -> State:
    """The state at the beginning of the next step: nothing seen yet."""
    return State(status=state.status, step=state.step + 1)
