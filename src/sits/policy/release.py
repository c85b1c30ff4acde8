"""Release assignment: which version answers a unit, and everything that follows from it, once per (unit, generation).

```
unit digest = H(kind, tenant, unit)         kind: session, user, key or tenant
arm         = argmax over arms of  -weight / ln u(unit digest, salt, arm)          weighted rendezvous, policy.rendezvous
generation  = H(model, unit kind, salt, arms)
```
Rules:
- The same unit gets the same arm as long as the generation stays; every replica of the gateway agrees without shared state.
- A new set of weights moves a unit from arm i to arm j only where j's weight rose by a larger factor than i's: 1 -> 5 -> 25 ->
  100 % moves only units *to* the canary, and the old weights bring back exactly the old assignment.  A new salt deals anew.
- Which release: the one whose `model` is the name the caller asked for, else the one for all models.
- A request that does not say its unit belongs to the next coarser one it does say (session, user, API key, tenant), and the
  decision says so (`assigned_coarser`): whoever stays anonymous is at least always treated alike.  Units are of a tenant:
  two tenants' user "1" are two units.
- A tenant that is trusted with `x-model-version` picks an arm by its name, whatever its weight (`hinted`); from anybody else,
  or for an unknown arm, the header changes nothing, and the decision says that.
- What is assigned to a name that nobody serves is not remembered: asking for made-up names takes no memory and evicts nothing.
- Route, retry, fallback, cache key, labels and quota class read the one `Assignment`; nothing else may ask which version it is.
  A fallback is another arm with an artefact of its own, so its answer is never taken for the primary's.

Deliberately absent: percentages of requests (a release is of units, so nobody's conversation flips), clocks, schedules.
"""

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from types import MappingProxyType
from typing import Any

import msgspec

from sits.core.decision import Decision
from sits.core.errors import ConfigError
from sits.core.fleet import Arm, Release
from sits.policy.cachekey import artefact_of
from sits.policy.rendezvous import Owners, score

REMEMBERED = 8192
REMEMBERED_CHARACTERS = 512
PLANS_MAX = 1024
"""Assignments kept (twice as many at most, some 0.5 kB each), the longest texts of one, and names with a plan: callers choose
all three, and all are cheap to find again."""

_NOTHING: Mapping[str, str] = MappingProxyType({})


def assign(unit: str, salt: str, arms: Sequence[Arm]) -> Decision:
    """The arm of `unit`: outcome `assigned`, choice the arm's name, reasons the score of each arm.

    Raises:
        ConfigError: no arm has a positive weight.

    >>> assign("ann", "r1", [Arm(name="stable", weight=1.0)]).choice
    'stable'

    """
    if len(arms) == 1 and arms[0].weight > 0:
        return Decision(policy="release", outcome="assigned", choice=arms[0].name, reasons={"unit": unit})
    key = _salted(salt) + unit.encode()
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


def _salted(salt: str) -> bytes:
    text = salt.encode()
    return len(text).to_bytes(4, "big") + text


def unit_digest_of(kind: str, tenant: str, unit: str) -> str:
    """What stands for a unit in keys and labels; names of users do not travel."""
    what, of, who = (
        kind.encode(),
        tenant.encode("utf-8", "surrogatepass"),
        unit.encode("utf-8", "surrogatepass"),
    )
    text = b"s%d:%b,s%d:%b,s%d:%b," % (
        len(what),
        what,
        len(of),
        of,
        len(who),
        who,
    )  # encode(kind, tenant, unit)
    return blake2b(text, digest_size=16).hexdigest()


def generation_of(release: Release) -> str:
    """The name of everything an assignment depends on but the unit."""
    return blake2b(msgspec.json.encode(release), digest_size=8).hexdigest()


class Target(msgspec.Struct, frozen=True):
    """What an arm means for one asked name: what engines are asked for, and the artefact that would answer."""

    arm: str
    name: str
    model: str
    adapter: str
    artefact: str


class Assignment(msgspec.Struct, frozen=True):
    """Everything about one request that depends on its version.

    Attributes:
        target: where it goes.  fallbacks: where it goes instead, in this order, while the engines of all before are down.
        unit_kind: which kind of unit it was assigned as.  unit_digest: that unit.
        coarser: that kind is not the declared one, because the request did not say.
        generation: of the release that assigned it.
        decision: the outcome, and how it came about; shared by all units it fits.

    """

    target: Target
    fallbacks: tuple[Target, ...]
    unit_kind: str
    unit_digest: str
    coarser: bool
    generation: str
    decision: Decision


def fall_back(assignment: Assignment, tried: int) -> tuple[Target, Decision] | None:
    """The target after `tried` fallbacks were found without an engine that is up; None when there are no more."""
    if tried >= len(assignment.fallbacks):
        return None
    target = assignment.fallbacks[tried]
    reasons = {
        "instead_of": assignment.target.arm,
        "generation": assignment.generation,
        "fallback": tried + 1,
    }
    return target, Decision(policy="release", outcome="fell_back", choice=target.arm, reasons=reasons)


class _Plan:
    """A release as it applies to one asked name."""

    __slots__ = (
        "arms",
        "asked",
        "decisions",
        "generation",
        "hinted",
        "owners",
        "release",
        "served",
        "targets",
        "wanted",
    )

    def __init__(
        self,
        release: Release,
        asked: str,
        targets: dict[str, tuple[Target, tuple[Target, ...]]],
        served: bool,
    ) -> None:
        self.release = release
        self.asked = asked
        self.wanted = release.unit
        self.hinted = frozenset(release.honour_version_hint)
        self.generation = generation_of(release)
        self.targets = targets
        self.served = served
        self.owners = Owners(((arm.name, arm.weight) for arm in release.arms), _salted(release.salt))
        self.decisions: dict[tuple[str, str, str], Decision] = {}

    def assignment(self, kind: str, tenant: str, unit: str, hint: str) -> Assignment:
        digest = unit_digest_of(kind, tenant, unit)
        arm, about = self._hinted(hint, tenant) if hint else ("", "")
        if not arm:
            arm = (
                self.owners.of(digest.encode()) or assign(digest, self.release.salt, self.release.arms).choice
            )
        target, fallbacks = self.targets[arm]
        coarser = kind != self.wanted
        decision = self.decision(arm, kind, about)
        return Assignment(target, fallbacks, kind, digest, coarser, self.generation, decision)

    def _hinted(self, hint: str, tenant: str) -> tuple[str, str]:
        """The arm a hint gets, if any, and what became of the hint."""
        if tenant not in self.hinted:
            return "", "not honoured"
        return (hint, "followed") if hint in self.targets else ("", "no such arm")

    def decision(self, arm: str, kind: str, hint: str) -> Decision:
        found = self.decisions.get((arm, kind, hint))
        if found is None:
            reasons: dict[str, Any] = {"release": self.release.model, "generation": self.generation}
            reasons |= {"salt": self.release.salt, "unit": kind, "declared": self.wanted}
            if hint:
                reasons["hint"] = hint
            outcome = "assigned" if kind == self.wanted else "assigned_coarser"
            found = self.decisions[arm, kind, hint] = Decision(
                policy="release",
                outcome="hinted" if hint == "followed" else outcome,
                choice=arm,
                reasons=reasons,
            )
        return found


class Assigner:
    """The releases of one configuration, with what was assigned remembered within bounds.

    Args:
        release: for every model; releases: for one asked name each.
        catalog: asked name -> (model, adapter), as engines serve them; when it is empty, all names count as served.
        digests: served name -> digest of what is behind it, where one is known (an adapter registry, an engine that told).

    `young`: what was assigned of late, by (asked, tenant, key, user) where nobody says a session or gives a hint; the hot path looks
    there before it asks.
    Catalog and digests are read when a name is first asked for: make a new one when they change.

    """

    def __init__(
        self,
        release: Release,
        releases: Sequence[Release] = (),
        catalog: Mapping[str, tuple[str, str]] = MappingProxyType({}),
        digests: Mapping[str, str] = _NOTHING,
    ) -> None:
        self._default = release
        self._releases = {one.model: one for one in releases}
        self._catalog = catalog
        self._digests = digests
        self._plans: dict[str, _Plan] = {}
        self.young: dict[tuple[str, ...], Assignment] = {}
        self._old: dict[tuple[str, ...], Assignment] = {}

    def assign(
        self, asked: str, tenant: str, user: str = "", session: str = "", key: str = "", hint: str = ""
    ) -> Assignment:
        """The assignment of a request for the name `asked`.

        `key` names the API key (never the secret itself), `hint` is the value of `x-model-version`.

        Raises:
            ConfigError: no arm of its release has a positive weight.

        """
        memo = (asked, tenant, key, user, session) if session else (asked, tenant, key, user)
        if not hint:
            found = self.young.get(memo) or self._old.get(memo)
            if found is not None:
                return self._kept(memo, found)
        plan = self._plans.get(asked) or self._plan(asked)
        if session and plan.wanted == "session":
            kind, unit = "session", session
        elif plan.wanted == "tenant" or not (user or key):
            kind, unit = "tenant", tenant
        elif user:
            kind, unit = "user", user
        else:
            kind, unit = "key", key
        given = plan.assignment(kind, tenant, unit, hint)
        if hint or not plan.served or sum(map(len, memo)) > REMEMBERED_CHARACTERS:
            return given
        return self._kept(memo, given)

    def _kept(self, memo: tuple[str, ...], given: Assignment) -> Assignment:
        """Remembered among the younger half; halves change places when one is full."""
        if memo not in self.young:
            if len(self.young) >= REMEMBERED:
                self.young, self._old = {}, self.young
            self.young[memo] = given
        return given

    def _plan(self, asked: str) -> _Plan:
        release = self._releases.get(asked, self._default)
        arms = {arm.name: arm for arm in release.arms}
        means = {name: self._target(arm, asked) for name, arm in arms.items()}
        targets = {
            name: (means[name], tuple(means[other] for other in _fallbacks(arm, arms)))
            for name, arm in arms.items()
        }
        served = not self._catalog or any(target.name in self._catalog for target in means.values())
        plan = _Plan(release, asked, targets, served)
        if not served:
            return plan
        if len(self._plans) >= PLANS_MAX:
            self._plans.clear()
        self._plans[asked] = plan
        return plan

    def _target(self, arm: Arm, asked: str) -> Target:
        name = arm.model or asked
        model, adapter = self._catalog.get(name, (name, ""))
        known = self._digests.get(model, ""), self._digests.get(adapter, "")
        return Target(arm.name, name, model, adapter, artefact_of(model, adapter, arm.artefact, *known))


def _fallbacks(arm: Arm, arms: Mapping[str, Arm]) -> Sequence[str]:
    """The arms after `arm`, in the order they answer for one another."""
    chain = [arm.name]
    while (name := arms[chain[-1]].fallback) in arms and name not in chain:
        chain.append(name)
    return chain[1:]
