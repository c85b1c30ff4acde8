"""Release assignment: which arm a unit belongs to, as a pure function of (unit, salt, arms).

Rules: the same unit gets the same arm as long as salt and weights stay; raising an arm's weight moves only units
*to* that arm (15 % -> 25 % moves a tenth, no one else); every replica of the gateway agrees without shared state;
changing the salt deals anew.

Deliberately absent: percentages of requests.  A release is of units (users, sessions, tenants), so nobody's
conversation flips between versions.
"""

from collections.abc import Sequence

from sits.core.decision import Decision
from sits.core.errors import ConfigError
from sits.core.fleet import Arm
from sits.policy.rendezvous import score


def assign(unit: str, salt: str, arms: Sequence[Arm]) -> Decision:
    """The arm of `unit`: outcome `assigned`, choice the arm's name, reasons the score of each arm.

    Raises:
        ConfigError: no arm has a positive weight.

    >>> assign("ann", "r1", [Arm(name="stable", weight=1.0)]).choice
    'stable'

    """
    if len(arms) == 1 and arms[0].weight > 0:
        return Decision(policy="release", outcome="assigned", choice=arms[0].name, reasons={"unit": unit})
    salted = salt.encode()
    key = len(salted).to_bytes(4, "big") + salted + unit.encode()
    scores = {arm.name: score(key, arm.name, arm.weight) for arm in arms}
    best = max(scores, key=lambda name: (scores[name], name), default="")
    if not best or scores[best] <= 0.0:
        raise ConfigError(
            "no arm of the release has a positive weight",
            field="policy.release.arms",
            value=[(arm.name, arm.weight) for arm in arms],
            hint="give at least one arm a weight above 0",
        )
    return Decision(
        policy="release",
        outcome="assigned",
        choice=best,
        reasons={"unit": unit, "salt": salt, "scores": scores},
    )
