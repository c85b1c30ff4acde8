"""`model.simulate` again in plain Python: a whole trace through the twin of the engine model, steps overlapping where the spec says so.

Deliberately absent: the front end (requests come with the time they join the queue), and speed.
"""

from collections.abc import Sequence
from typing import NamedTuple

from sits.core.errors import BugError
from sits.sim.oracle import OracleModel, Step
from sits.sim.oracle_parts import OracleRequest
from sits.sim.spec import EngineSpec


class Replayed(NamedTuple):
    """One request of a `replay`, ns."""

    scheduled_ns: int
    first_token_ns: int
    last_token_ns: int
    preemptions: int


def replay(
    spec: EngineSpec,
    queued_ns: Sequence[int],
    prompts: Sequence[int],
    outputs: Sequence[int],
    adapters: Sequence[int],
    priorities: Sequence[int],
    prefixes: Sequence[Sequence[int]],
    noise: Sequence[float] = (1.0,),
) -> tuple[list[Replayed | None], int, int]:
    """`model.simulate` in plain Python from the queue on: what became of each request, steps, and the end of the last.

    Two steps may be under way: the one that runs and the one scheduled behind it.  With asynchronous
    scheduling the next is scheduled as soon as the running one is the only one; otherwise when none is.
    """
    model = OracleModel(spec)
    count = len(queued_ns)
    seen: list[OracleRequest | None] = [None] * count
    now_ns = busy_ns = host_free_ns = steps = arrived = 0
    while arrived < count or model.requests:
        if not model.requests:
            now_ns = max(now_ns, queued_ns[arrived])
        while arrived < count and queued_ns[arrived] <= now_ns:
            i = arrived
            if model.add(i, prompts[i], outputs[i], adapters[i], priorities[i], prefixes[i]):
                seen[i] = model.requests[i]
            arrived += 1
        if not model.requests:
            continue
        step = Step(model, now_ns, noise[steps % len(noise)])
        step.schedule()
        if not step.batch:
            if not step.preempted and not any(request.ending for request in model.running):
                raise BugError(
                    f"nothing is under way at {now_ns} ns, and a step with work to do schedules nothing"
                )
            model.retire()
            now_ns = max(now_ns, busy_ns)
            continue
        step.finish(host_free_ns, busy_ns)
        now_ns = max(now_ns, busy_ns) if spec.async_scheduling else step.end_ns
        busy_ns, host_free_ns = step.end_ns, step.host_free_ns
        steps += 1
    return [_outcome(request) for request in seen], steps, busy_ns


def _outcome(request: OracleRequest | None) -> Replayed | None:
    if request is None:
        return None
    return Replayed(request.scheduled_ns, request.first_token_ns, request.last_token_ns, request.preemptions)
