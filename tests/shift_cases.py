"""A fleet with a shift, and finished requests as workers send them."""

from sits.core.breakpoints import API_RECV, FIRST_TOKEN, LAST_TOKEN, SENT, Exactness
from sits.core.fleet import Arm, Fleet, OpenAIEngine, Policies, Release
from sits.core.fleet_routes import RouteArm, RouteMatch, RouteRule, Shift, Target
from sits.core.timeline import Timeline
from sits.core.units import SECOND
from sits.telemetry.packing import pack
from sits.telemetry.recorder import LABELS, NUMBERS, Recorder, row_of
from sits.world import RealWorld

ENGINE = OpenAIEngine(name="e", url="http://127.0.0.1:1", models=("llama", "chat-2"), adapters=("lora-2",))
ARMS = (Arm(name="stable", weight=1.0), Arm(name="canary", weight=0.0, model="lora-2"))


def fleet_of(of="route", store="", **more):
    """`of`: shift a route's arms, the release of one model, or the release for all models."""
    shift = Shift(arm="canary", **{"hold": 10 * SECOND, "min_requests": 50, "steps": (0.1, 0.5, 1.0)} | more)
    fleet = Fleet(name="f", engines=(ENGINE,))
    if of == "route":
        arms = (
            RouteArm(name="stable", weight=1.0),
            RouteArm(name="canary", weight=0.0, to=Target(model="lora-2")),
        )
        rule = RouteRule(name="chat", match=RouteMatch(model="chat"), to=Target(model="llama"), arms=arms)
        fleet, shift = replace(fleet, routes=(rule,)), replace(shift, route="chat")
    elif of == "model":
        releases = (Release(model="llama", arms=ARMS), Release(model="chat-2", arms=ARMS))
        fleet, shift = replace(fleet, policy=Policies(releases=releases)), replace(shift, model="llama")
    else:
        policy = Policies(release=Release(arms=ARMS), releases=(Release(model="chat-2", arms=ARMS),))
        fleet = replace(fleet, policy=policy)
    if store:
        fleet = replace(fleet, gateway=replace(fleet.gateway, store=str(store)))
    return replace(fleet, shift=shift)


def replace(value, **changes):
    import msgspec

    return msgspec.structs.replace(value, **changes)


def finished(*requests):
    """Packed rows of `(arm, outcome, latency ms, more...)`; more: model, adapter, engine, status, detail, streamed."""
    recorder = Recorder(100_000, RealWorld(), "run")
    for i, (arm, outcome, ms, *rest) in enumerate(requests):
        more = rest[0] if rest else {}
        timeline = Timeline()
        timeline.mark(API_RECV, 1_000)
        if outcome == "completed":
            if more.get("streamed", True):
                timeline.mark(FIRST_TOKEN, 1_000 + int(ms * 1e6))
            timeline.mark(LAST_TOKEN, 1_000 + int(ms * 2e6))
        timeline.mark(SENT, 10**12, Exactness.MEASURED)
        named = {"model": "chat", "engine": "e", "status": 200, "prompt_tokens": 1, "output_tokens": 1}
        named |= {name: value for name, value in more.items() if name != "streamed"}
        named |= {"id": f"r{i}", "tenant": "t", "arm": arm, "outcome": outcome}
        blank = {name: 0 if name in NUMBERS else "" for name in LABELS}
        recorder.record(row_of(timeline, **blank | named))
    return [pack(recorder.take())]
