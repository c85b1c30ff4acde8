"""Laws of coasting: a model that runs stretches and takes some of them back is the same model as one that steps."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sim_engines import RUNS, specs, tight
from sits.sim import kernel
from sits.sim.model import NOISE_DRAWS, EngineModel
from sits.sim.spec import refusal
from sits.world import stream_generator

deeds = st.lists(
    st.tuples(
        st.sampled_from(["add", "add", "cancel", "step", "coast", "coast", "coast"]), st.integers(0, 10**6)
    ),
    min_size=5,
    max_size=50,
)
long_answers = st.tuples(st.integers(1, 60), st.integers(1, 90), st.integers(-1, 4))
LIVE_FIELDS = [
    field
    for field in range(kernel.FIELD_COUNT)
    if field not in (kernel.NEXT, kernel.PREVIOUS)  # of no meaning outside the waiting queue
]


def state(model):
    """All that can matter to what comes; the waiting queue as a list."""
    rows, running, tally, slots = model._state
    waiting, at = [], tally[kernel.HEAD]
    while at >= 0:
        waiting.append(int(at))
        at = rows[at, kernel.NEXT]
    scalars = (kernel.FREE, kernel.RUNNING_COUNT, kernel.WAITING_COUNT, kernel.STEP_COUNT)
    return (
        model._steps,
        dict(model._rows),
        rows[np.ix_(list(model._rows.values()), LIVE_FIELDS)].tolist(),
        running[: model.running].tolist(),
        waiting,
        tally[list(scalars)].tolist(),
        slots[[kernel.HELD, kernel.USED_STEP]].tolist(),
        np.argsort(slots[kernel.TOUCHED], kind="stable").tolist(),
    )


@RUNS
@given(specs(), st.lists(long_answers, min_size=1, max_size=12), deeds, st.booleans())
def test_stretches_are_the_same_as_single_steps(spec, requests, deeds, fight):
    if fight:
        spec = tight(spec, [(0, *request) for request in requests])
    coaster: EngineModel[int] = EngineModel(spec, stream_generator(1, "noise"), capacity=2)
    stepper: EngineModel[int] = EngineModel(spec, stream_generator(1, "noise"), capacity=2)
    coaster._steps = stepper._steps = NOISE_DRAWS - 20  # the ring of noise comes round on the way
    now_ns = added = 0
    for deed, number in deeds:
        if deed == "add" and added < len(requests):
            prompt, output, adapter = requests[added]
            added += 1
            if not refusal(spec, prompt, output, adapter >= 0):
                for model in (coaster, stepper):
                    model.add(added, prompt, output, f"a{adapter}" if adapter >= 0 else "")
        elif deed == "cancel" and len(stepper):
            name = sorted(stepper._rows)[number % len(stepper)]
            assert coaster.cancel(name)
            assert stepper.cancel(name)
        elif deed == "coast":
            ends_ns = coaster.coast(now_ns)
            if ends_ns:
                ahead = number % len(ends_ns)
                taken = coaster.blocks_taken(ahead)
                free = coaster.blocks_free
                coaster.rewind(ahead)
                assert coaster.blocks_free == free + taken
                for end_ns in ends_ns[: len(ends_ns) - ahead]:
                    result = stepper.step(now_ns)
                    now_ns += result.duration_ns
                    assert now_ns == end_ns
                    assert (result.tokens, result.waiting) == (coaster.running, 0)
                    assert (result.started, result.first, result.finished) == ([], [], [])
        else:
            result, twin = coaster.step(now_ns), stepper.step(now_ns)
            assert result == twin
            now_ns += result.duration_ns if result else 0
        assert state(coaster) == state(stepper)
        assert coaster.blocks_held + coaster.blocks_free == spec.blocks


@RUNS
@given(specs(), st.lists(long_answers, min_size=1, max_size=6))
def test_coasting_stops_for_nothing_but_events(spec, requests):
    """A stretch ends before a step that admits, preempts, prefills or finishes, and only there."""
    model: EngineModel[int] = EngineModel(spec)
    for name, (prompt, output, adapter) in enumerate(requests):
        if not refusal(spec, prompt, output, adapter >= 0):
            model.add(name, prompt, output, f"a{adapter}" if adapter >= 0 else "")
    now_ns = 0
    while len(model):
        ends_ns = model.coast(now_ns)
        now_ns = ends_ns[-1] if ends_ns else now_ns
        held, was_waiting = model.running, model.waiting
        result = model.step(now_ns)
        assert (
            was_waiting
            or result.finished
            or result.preempted
            or result.first
            or result.prefill_tokens
            or result.tokens < held
        )
        now_ns += result.duration_ns
