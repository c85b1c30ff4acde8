"""Laws of the engine model: the compiled kernel equals its plain twin, and neither loses a block or a request."""

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from sim_engines import RUNS, columns, specs, tight, traces
from sits.sim.model import EngineModel, front_end_ns, noise_draws, simulate
from sits.sim.oracle import OracleModel
from sits.sim.spec import refusal
from sits.testing.loop import small_spec
from sits.world import stream_generator


@RUNS
@given(specs(), traces, st.booleans(), st.booleans())
def test_kernel_and_oracle_take_the_same_steps(spec, trace, fight, ranked):
    if fight:
        spec = tight(spec, trace)
    if ranked:
        spec = msgspec.structs.replace(spec, order="priority")
    model: EngineModel[int] = EngineModel(spec, stream_generator(1, "noise"), capacity=2)
    draws = noise_draws(spec, stream_generator(1, "noise"))
    oracle = OracleModel(spec)
    arrivals, *_ = columns(trace)
    now_ns = step = arrived = 0
    unfinished: dict[int, int] = {}
    while arrived < len(trace) or unfinished:
        if not unfinished:
            now_ns = max(now_ns, int(arrivals[arrived]))
        while arrived < len(trace) and arrivals[arrived] <= now_ns:
            _, prompt, output, adapter = trace[arrived]
            if not refusal(spec, prompt, output, adapter >= 0):
                model.add(arrived, prompt, output, f"a{adapter}" if adapter >= 0 else "", prompt % 3)
                assert oracle.add(arrived, prompt, output, adapter, prompt % 3)
                unfinished[arrived] = output
            arrived += 1
        noise = float(draws[step % len(draws)])
        before = dict(oracle.requests)
        result, twin = model.step(now_ns), oracle.step(now_ns, noise)
        if twin is None:
            assert result is None
            continue
        assert result is not None
        for field in twin._fields:
            assert getattr(result, field) == getattr(twin, field), field
        for name, times in zip(result.finished, result.preemptions, strict=True):
            assert before[name].preemptions == times
        # Laws that hold for both because they are equal: blocks add up, work is conserved, tokens are exact.
        assert model.blocks_held + model.blocks_free == spec.blocks
        assert result.prefill_tokens + result.decode_tokens > 0
        assert result.duration_ns >= result.prepare_ns > 0
        assert sum(result.stages_ns) == result.prepare_ns
        assert len(result.emitted) == result.tokens
        assert result.kv_used <= spec.blocks
        assert result.preempted == 0 or not result.started or ranked
        for name in result.emitted:
            unfinished[name] -= 1
        for name in result.finished:
            assert unfinished.pop(name) == 0
        assert 0 not in unfinished.values()
        now_ns += result.duration_ns
        step += 1
    assert len(model) == 0
    assert model.blocks_free == spec.blocks
    assert not oracle.requests


@RUNS
@given(specs(), traces, st.booleans())
def test_the_compiled_loop_and_the_twin_give_the_same_times(spec, trace, fight):
    if fight:
        spec = tight(spec, trace)
    arrivals, prompts, outputs, adapters = columns(trace)
    done = simulate(arrivals, prompts, outputs, adapters, spec)

    # The front end again, one request after the other.
    oracle = OracleModel(spec)
    free_ns = 0
    queue = []
    for name, (_, prompt, output, adapter) in enumerate(trace):
        if refusal(spec, prompt, output, adapter >= 0):
            continue
        cost = spec.front.api_us + spec.front.tokenize_us_per_token * prompt
        free_ns = max(free_ns, int(arrivals[name])) + int(cost * 1000 + 0.5)
        queue.append((free_ns + int(spec.front.enqueue_us * 1000 + 0.5), name))
    served = [name for _, name in queue]
    records = {}
    now_ns = steps = 0
    while queue or oracle.requests:
        if not oracle.requests:
            now_ns = max(now_ns, queue[0][0])
        while queue and queue[0][0] <= now_ns:
            queued_ns, name = queue.pop(0)
            _, prompt, output, adapter = trace[name]
            oracle.add(name, prompt, output, adapter)
            records[name] = oracle.requests[name]
            assert done.queued_ns[name] == queued_ns
        result = oracle.step(now_ns)
        assert result is not None
        now_ns += result.duration_ns
        steps += 1
    assert steps == done.steps
    assert steps == 0 or now_ns == done.end_ns
    for name in range(len(trace)):
        times = (done.scheduled_ns[name], done.first_token_ns[name], done.last_token_ns[name])
        if name not in served:
            assert times == (-1, -1, -1)
            continue
        twin = records[name]
        assert times == (twin.scheduled_ns, twin.first_token_ns, twin.last_token_ns)
        assert done.preemptions[name] == twin.preemptions
        assert arrivals[name] <= done.queued_ns[name] <= times[0] < times[1] <= times[2]


@RUNS
@given(specs(), traces, st.data())
def test_cancelling_frees_everything_at_once(spec, trace, data):
    model: EngineModel[int] = EngineModel(spec, capacity=1)
    oracle = OracleModel(spec)
    for name, (_, prompt, output, adapter) in enumerate(trace):
        if oracle.add(name, prompt, output, adapter):
            model.add(name, prompt, output, f"a{adapter}" if adapter >= 0 else "")
    now_ns = 0
    while oracle.requests:
        if data.draw(st.booleans()):
            name = data.draw(st.sampled_from(sorted(oracle.requests)))
            assert model.cancel(name)
            assert not model.cancel(name)
            oracle.cancel(name)
        assert model.blocks_held + model.blocks_free == spec.blocks
        assert (model.blocks_free, model.running, model.waiting) == (
            oracle.free,
            len(oracle.running),
            len(oracle.waiting),
        )
        result, twin = model.step(now_ns), oracle.step(now_ns)
        if twin is not None:
            assert result is not None
            assert (result.duration_ns, result.finished) == (twin.duration_ns, twin.finished)
            now_ns += twin.duration_ns
    assert model.blocks_free == spec.blocks


@RUNS
@given(specs(), st.lists(st.tuples(st.integers(1, 60), st.integers(1, 10)), min_size=2, max_size=15))
def test_requests_that_arrive_together_start_in_order_of_arrival(spec, lengths):
    model: EngineModel[int] = EngineModel(spec)
    names = [i for i, (p, o) in enumerate(lengths) if not refusal(spec, p, o, False)]
    for name in names:
        model.add(name, *lengths[name])
    started = []
    now_ns = 0
    while (result := model.step(now_ns)) is not None:
        started += result.started
        now_ns += result.duration_ns
    assert started == names


@settings(max_examples=100, deadline=None)
@given(specs(), traces)
def test_the_front_end_formula_is_the_recursion(spec, trace):
    arrivals, prompts, _, _ = columns(trace)
    free_ns = -(10**18)
    for arrival, prompt, queued in zip(arrivals, prompts, front_end_ns(spec, arrivals, prompts), strict=True):
        cost = spec.front.api_us + spec.front.tokenize_us_per_token * prompt
        free_ns = max(free_ns, int(arrival)) + int(cost * 1000 + 0.5)
        assert queued == free_ns + int(spec.front.enqueue_us * 1000 + 0.5)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([0.02, 0.05, 0.3]))
def test_noise_has_mean_one_and_the_stated_spread(seed, cv):
    base = small_spec()
    spec = msgspec.structs.replace(base, step=msgspec.structs.replace(base.step, noise_cv=cv))
    drawn = noise_draws(spec, stream_generator(seed, "noise"), 40_000)
    assert abs(drawn.mean() - 1.0) < 6 * cv / 200
    assert abs(drawn.std() / cv - 1.0) < 0.1
    assert (drawn > 0).all()
    assert noise_draws(spec, None).tolist() == [1.0]


def test_the_drawn_engines_reach_every_mechanism():
    """The laws above would say nothing about a mechanism that never happens: count them on a fixed sweep."""
    rng = stream_generator(7, "sweep")
    seen = dict.fromkeys(
        ("preempted", "denied", "recomputed_tokens", "adapter_loads", "alone", "passed_over"), 0
    )
    for number in range(60):
        chunked = number % 3 != 0
        spec = small_spec(
            blocks=int(rng.integers(8, 20)),
            max_num_seqs=5,
            max_num_batched_tokens=60,
            chunked_prefill=chunked,
            lora_slots=2,
            adapter_bytes=10**6,
        )
        oracle = OracleModel(spec)
        for name in range(20):
            prompt, output = (int(x) for x in rng.integers(1, 90, 2))
            oracle.add(name, prompt, output, int(rng.integers(-1, 4)))
        started: list[int] = []
        now_ns = 0
        while (result := oracle.step(now_ns)) is not None:
            now_ns += result.duration_ns
            started += result.started
            seen["alone"] += result.prefill_tokens > 60
            for what in ("preempted", "denied", "recomputed_tokens", "adapter_loads"):
                seen[what] += getattr(result, what)
        seen["passed_over"] += started != sorted(started)
    assert all(count >= 10 for count in seen.values()), seen
