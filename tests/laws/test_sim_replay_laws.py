"""Whole traces with all that only they can have: the compiled loop equals its plain twin to the nanosecond.

Priorities, a block cache with shared prefixes, asynchronous scheduling, layer tables, host time as one figure; and stretches of
alike steps, which the kernel runs by sums and the twin one by one.
"""

import os

import msgspec
import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sim_engines import columns, requests, tight, trace_specs
from sits.sim.model import NOISE_DRAWS, front_end_ns, noise_draws, simulate
from sits.sim.oracle_replay import replay
from sits.testing.loop import small_spec
from sits.world import stream_generator

CASES = 20_000 if os.environ.get("SITS_SOAK") == "1" else 150
RUNS = settings(max_examples=CASES, deadline=None, suppress_health_check=[HealthCheck.too_slow])

names = st.lists(st.integers(0, 2), max_size=40)
wide = st.tuples(requests, st.integers(-1, 2), names)


def long_answers(trace, stretch):
    """The same trace with answers many times as long, so that stretches of alike steps happen."""
    return [(gap, prompt, output * stretch, adapter) for gap, prompt, output, adapter in trace]


def both(spec, trace, priorities, prefixes, rng_seed=None):
    """The kernel's times and the twin's, with the noise of one stream."""
    arrivals, prompts, outputs, adapters = columns(trace)
    rng = None if rng_seed is None else stream_generator(rng_seed, "noise")
    done = simulate(arrivals, prompts, outputs, adapters, spec, rng, np.array(priorities), prefixes)
    rng = None if rng_seed is None else stream_generator(rng_seed, "noise")
    noise = noise_draws(spec, rng, NOISE_DRAWS).tolist()
    served = done.queued_ns >= 0
    keep = np.flatnonzero(served).tolist()
    assert done.queued_ns[served].tolist() == front_end_ns(spec, arrivals[served], prompts[served]).tolist()
    outcomes, steps, end_ns = replay(
        spec,
        done.queued_ns[served].tolist(),
        prompts[served].tolist(),
        outputs[served].tolist(),
        adapters[served].tolist(),
        [priorities[i] for i in keep],
        [prefixes[i] for i in keep],
        noise,
    )
    kernel = [
        (done.scheduled_ns[i], done.first_token_ns[i], done.last_token_ns[i], done.preemptions[i])
        for i in keep
    ]
    return (kernel, done.steps, done.end_ns), (outcomes, steps, end_ns)


@RUNS
@given(trace_specs(), st.lists(wide, min_size=1, max_size=25), st.booleans(), st.sampled_from([1, 1, 4, 12]))
def test_the_kernel_and_its_twin_give_the_same_times(spec, requests, fight, stretch):
    trace = long_answers([request for request, _, _ in requests], stretch)
    if fight:
        spec = tight(spec, trace)
    kernel, twin = both(spec, trace, [p for _, p, _ in requests], [n for _, _, n in requests], rng_seed=3)
    assert kernel[0] == twin[0]
    assert kernel[1:] == twin[1:]


def test_the_drawn_traces_reach_every_mechanism():
    """The law above says nothing about what never happens: the same comparison on a fixed sweep, counting."""
    rng = stream_generator(11, "sweep")
    seen = dict.fromkeys(("preempted", "hit", "async differs", "priority differs", "stretches"), 0)
    for number in range(40):
        spec = small_spec(
            blocks=int(rng.integers(14, 40)),
            max_num_seqs=6,
            max_num_batched_tokens=60,
            host=None if number % 2 else small_spec().host,
        )
        trace, priorities, prefixes = [], [], []
        for _ in range(20):
            trace.append(
                (int(rng.integers(0, 60_000_000)), int(rng.integers(1, 120)), int(rng.integers(1, 90)), -1)
            )
            priorities.append(int(rng.integers(0, 3)))
            prefixes.append([int(x) for x in rng.integers(0, 2, 4)])
        nothing = [[] for _ in trace]
        plain, _ = both(spec, trace, priorities, nothing)
        ends = {}
        for field, value in (("prefix_caching", True), ("async_scheduling", True), ("order", "priority")):
            changed = msgspec.structs.replace(spec, **{field: value})
            kernel, twin = both(
                changed, trace, priorities, prefixes if field == "prefix_caching" else nothing
            )
            assert kernel == twin
            ends[field] = kernel
        seen["preempted"] += any(times[3] for times in plain[0])
        seen["hit"] += ends["prefix_caching"] != plain
        seen["async differs"] += ends["async_scheduling"] != plain
        seen["priority differs"] += ends["order"] != plain
        seen["stretches"] += plain[1] > 100
    assert all(count >= 10 for count in seen.values()), seen


def test_a_trace_of_ordinary_size_agrees_too():
    """Drawn traces are short; this one is long enough for everything to happen to somebody, with and without each art."""
    rng = stream_generator(5, "trace")
    trace, priorities, prefixes = [], [], []
    for _ in range(150):
        prompt, output = (int(x) for x in np.clip(rng.lognormal((5.0, 3.8), 0.8), 1, 900))
        trace.append((int(rng.exponential(3e8)), prompt, output, -1))
        priorities.append(int(rng.integers(0, 3)))
        prefixes.append([int(x) for x in rng.integers(0, 3, 12)])
    for number in range(8):
        spec = small_spec(
            blocks=130,
            max_num_seqs=24,
            max_num_batched_tokens=512,
            order="priority" if number & 1 else "fcfs",
            prefix_caching=bool(number & 2),
            async_scheduling=bool(number & 4),
            host=None if number & 4 else small_spec().host,
        )
        kernel, twin = both(spec, trace, priorities, prefixes)
        assert kernel == twin
        assert any(times[3] for times in kernel[0])
