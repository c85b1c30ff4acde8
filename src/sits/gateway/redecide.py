"""Deciding again: a decision record and a configuration in, the decisions out, by the same code that decides live.

Knows: nothing but its arguments.  With the configuration that made the record, the decisions are the recorded ones, bit for bit;
with another one they say what would have been.

Rules: what a record did not come to is not decided: without a name asked for (no valid key, or nothing that could be read) nothing
is, without an arm (an injected fault, a client that left) nothing behind the route is.  A record names what it was routed by
(`core.recorded.Facts`); a replica that the facts do not know is taken as idle, healthy and never scraped, an engine that this
configuration has not is left out; counts in flight are the recorded ones.
A verdict is a value: two are equal exactly when every decision is.

Deliberately absent: the engine's answer, waiting (a window, a lease), the ledger's balances and the cache's contents: what
was found there then is no function of the configuration, and the recorded finding is passed on.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import msgspec

from sits.core.caller import Caller, Claims
from sits.core.decision import Decision
from sits.core.fleet import Fleet
from sits.core.ports import World
from sits.core.recorded import Facts, Recorded, Routed
from sits.core.replica import Replica
from sits.core.request import Request
from sits.gateway.access import ACTIONS, Access
from sits.gateway.catalog import catalog, replicas_of
from sits.gateway.routing import assigned_by, groups, region_of, routing_of
from sits.policy.access import ALLOWED
from sits.policy.admit import admit, refusal
from sits.policy.criteria import NO_ROUTE, Match
from sits.policy.inject import Injector, drawn
from sits.policy.release import Assigner, Assignment, Target, fall_back
from sits.policy.residency import Reach
from sits.policy.route import candidates_of, pick, route


class Verdict(msgspec.Struct, frozen=True):
    """What a configuration decides about one record.

    `end` is the first decision that ended it (`denied`, `no_replica`, a refusal of admission), empty when it went to an engine.
    """

    access: str = ""
    route: str = ""
    arm: str = ""
    fallen: int = 0
    model: str = ""
    adapter: str = ""
    choices: tuple[str, ...] = ()
    end: str = ""

    @property
    def engine(self) -> str:
        """The last choice: who answered."""
        return self.choices[-1] if self.choices and not self.end else ""


class Explained(msgspec.Struct, frozen=True):
    """A verdict with the decisions behind it, each with its reasons."""

    verdict: Verdict
    decisions: tuple[Decision, ...]


class Redecider:
    """Decides records by one configuration."""

    def __init__(self, fleet: Fleet, world: World) -> None:
        self.fleet = fleet
        self.access = Access(fleet, world)
        self.replicas = replicas_of(fleet, [engine.name for engine in fleet.engines])
        self.catalog = catalog(self.replicas)
        policy = fleet.policy
        self.assigner = Assigner(policy.release, policy.releases, self.catalog)
        self.routing = routing_of(fleet, self.catalog)
        self.injector = Injector(fleet) if fleet.injections else None

    def decide(self, record: Recorded, facts: Mapping[int, Facts]) -> Verdict:
        """The verdict on `record`; `facts` by version."""
        return self.explain(record, facts, quick=True).verdict

    def explain(self, record: Recorded, facts: Mapping[int, Facts], *, quick: bool = False) -> Explained:
        """The verdict and its reasons; without those when `quick`."""
        decisions: list[Decision] = []
        if not record.asked:
            return Explained(Verdict(), ())
        caller, headers = _caller(record), _headers(record)
        region = region_of(self.routing, caller, headers)
        access = self._access(record, caller, headers, region)
        if access is not None:
            decisions.append(access)
        if access is not None and access.outcome not in ALLOWED:
            return Explained(Verdict(access=access.outcome, end="denied"), tuple(decisions))
        match = self._match(record, caller, headers, region)
        if match.route:
            decisions.append(match.decision)
        fault = None if quick else self._fault(record, caller, headers)
        if fault is not None:
            decisions.append(fault)
        if not record.arm and _was_allowed(record):
            verdict = Verdict("" if access is None else access.outcome, match.route)
            return Explained(verdict, tuple(decisions))
        assigner, asked = assigned_by(self.routing, self.assigner, match, record.asked)
        assignment = assigner.assign(
            asked, record.tenant, record.user, record.session, record.key_id, record.hint
        )
        decisions.append(assignment.decision)
        verdict = Verdict("" if access is None else access.outcome, match.route, assignment.target.arm)
        if not record.routed:  # it never came to that: the cache answered, the quota refused, the client left
            return Explained(verdict, tuple(decisions))
        may_go = partial(self._reach, match, record, region)
        verdict = self._routed(record, facts, assignment, verdict, may_go, None if quick else decisions)
        if not verdict.end:
            verdict = self._admitted(record, verdict, None if quick else decisions)
        return Explained(verdict, tuple(decisions))

    def _access(
        self, record: Recorded, caller: Caller, headers: Mapping[bytes, bytes], region: str
    ) -> Decision | None:
        if self.access.policy is None:
            return None
        model, adapter = self.catalog.get(record.asked, (record.asked, ""))
        action = ACTIONS.get(record.endpoint, "infer")
        return self.access.decide(
            caller, action, model, adapter, region, record.endpoint, self.access.chosen(headers)
        )

    def _match(self, record: Recorded, caller: Caller, headers: Mapping[bytes, bytes], region: str) -> Match:
        if self.routing is None:
            return NO_ROUTE
        model, adapter = self.catalog.get(record.asked, (record.asked, ""))
        return self.routing.matcher.match(caller, model, adapter, record.endpoint, headers, region=region)

    def _fault(self, record: Recorded, caller: Caller, headers: Mapping[bytes, bytes]) -> Decision | None:
        """What was put into the request on purpose; it changes no verdict, only how long it took or that it ended."""
        if self.injector is None:
            return None
        model, adapter = self.catalog.get(record.asked, (record.asked, ""))
        told = self.injector.decide(caller, model, adapter, record.endpoint, headers, drawn(record.id))
        return None if told.outcome == "none" else told

    def _reach(self, match: Match, record: Recorded, region: str, target: Target) -> Reach | None:
        """Where what an arm makes of a request may go; None: anywhere."""
        if self.routing is None:
            return None
        return self.routing.reach(
            match, target.arm, tenant=record.tenant, asked=record.asked, region=region, named=target.name
        )

    def _routed(
        self,
        record: Recorded,
        facts: Mapping[int, Facts],
        assignment: Assignment,
        verdict: Verdict,
        may_go: Callable[[Target], Reach | None],
        decisions: list[Decision] | None,
    ) -> Verdict:
        """Every choice that was made, made again: fallbacks where a choice failed, retries where a replica did."""
        target: Target | None = assignment.target
        fallen, choices = 0, []
        for step in record.routed:
            assert target is not None
            model, adapter = target.model, target.adapter
            request = Request(id=record.id, model=model, adapter=adapter, prefix=record.prefix)
            replicas = self._as_seen(step, facts.get(step.facts))
            reach, choice = may_go(target), ""
            among: list[list[Replica]] = [replicas] if reach is None else list(groups(reach, replicas))
            for group in among:
                choice = pick(
                    request,
                    candidates_of(group, model, adapter, step.barred),
                    self.fleet.policy.route,
                    record.need_tokens,
                    step.now_ns,
                    step.turn,
                )
                if decisions is not None and (choice or group is among[-1]):
                    decisions.append(self._why(request, record, group, step))
                if choice:
                    break
            choices.append(choice)
            if not choice:
                found = fall_back(assignment, fallen)
                if found is None:
                    break
                target, fallen = found[0], fallen + 1
        end = "" if choices and choices[-1] else "no_replica"
        return msgspec.structs.replace(
            verdict,
            arm=target.arm if target is not None else verdict.arm,
            fallen=fallen,
            model=target.model if target is not None else "",
            adapter=target.adapter if target is not None else "",
            choices=tuple(choices),
            end=end,
        )

    def _why(self, request: Request, record: Recorded, replicas: Sequence[Replica], step: Routed) -> Decision:
        return route(
            request,
            replicas,
            self.fleet.policy.route,
            need_tokens=record.need_tokens,
            now_ns=step.now_ns,
            turn=step.turn,
            tried=step.barred,
        )

    def _as_seen(self, step: Routed, facts: Facts | None) -> list[Replica]:
        """The replicas of this configuration as they were known then."""
        seen = {} if facts is None else {one.id: one for one in facts.replicas}
        order = {} if facts is None else {one.id: i for i, one in enumerate(facts.replicas)}
        found = []
        for replica in self.replicas:
            one = seen.get(replica.id)
            if one is None:
                found.append(msgspec.structs.replace(replica))
                continue
            at = order[replica.id]
            inflight = step.inflight_tokens[at] if at < len(step.inflight_tokens) else 0
            found.append(
                msgspec.structs.replace(
                    replica,
                    adapters=one.adapters,
                    weight=one.weight,
                    healthy=one.healthy,
                    running=one.running,
                    waiting=one.waiting,
                    kv_usage=one.kv_usage,
                    observed_ns=one.observed_ns,
                    inflight_tokens=inflight,
                )
            )
        return found

    def _admitted(self, record: Recorded, verdict: Verdict, decisions: list[Decision] | None) -> Verdict:
        if record.inflight_requests < 0:
            return verdict
        limits = self.fleet.policy.admit
        asked = (record.inflight_requests, record.inflight_tokens, record.need_tokens)
        refused = refusal(limits, *asked, record.deadline_ns, record.admitted_ns)
        if decisions is not None:
            decisions.append(
                admit(
                    limits,
                    inflight_requests=record.inflight_requests,
                    inflight_tokens=record.inflight_tokens,
                    need_tokens=record.need_tokens,
                    deadline_ns=record.deadline_ns,
                    now_ns=record.admitted_ns,
                )
            )
        return msgspec.structs.replace(verdict, end=refused) if refused else verdict


def _was_allowed(record: Recorded) -> bool:
    return not record.access or record.access in ALLOWED


def _caller(record: Recorded) -> Caller:
    return Caller(
        tenant=record.tenant,
        team=record.team,
        key_id=record.key_id,
        kind=record.kind,  # type: ignore[arg-type]  # as it was recorded
        roles=record.roles,
        claims=Claims(record.claims),
    )


def _headers(record: Recorded) -> dict[bytes, bytes]:
    return {name.encode("latin-1"): value.encode("latin-1") for name, value in record.headers.items()}


def as_recorded(record: Recorded) -> Verdict:
    """The verdict that was."""
    choices = tuple(step.choice for step in record.routed)
    last = record.routed[-1] if record.routed else None
    refused = record.detail if record.outcome == "refused" and record.detail.startswith("refused_") else ""
    if not _was_allowed(record):
        refused = "denied"
    return Verdict(
        access=record.access,
        route=record.route,
        arm=record.arm,
        fallen=record.fallen,
        model=last.model if last is not None else "",
        adapter=last.adapter if last is not None else "",
        choices=choices,
        end="no_replica" if last is not None and not last.choice else refused,
    )
