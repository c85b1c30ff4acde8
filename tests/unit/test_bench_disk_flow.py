"""Ways of writing the cache away, on the simulated engine: what each promises, and what has to be true of all."""

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sits.bench.disk_flow import MODES, Persisting, flow, slowdown
from sits.core.errors import ConfigError
from sits.predict.derive import derive_steptime
from sits.predict.persist import Disk, wait_ns, write_ns
from sits.predict.prepare import Rank
from sits.predict.sharding_models import MODELS
from sits.sim.model import simulate
from sits.sim.spec import EngineSpec, FrontEnd

SPEC = EngineSpec(
    step=derive_steptime(MODELS["llama-3-8b"], "A100-SXM4-80GB", 1),
    ranks=(Rank(bandwidth=24e9),),
    blocks=4000,
    max_num_seqs=32,
    front=FrontEnd(api_us=0, tokenize_us_per_token=0, enqueue_us=0),
)
FAST = Disk(fixed_ns=100_000, bytes_per_s=2e9)
WHAT = Persisting(token_bytes=131_072, layers=32, disk=FAST)


def work(count=60, rate=3.0, seed=0):
    rng = np.random.Generator(np.random.PCG64(seed))
    arrivals = np.cumsum(rng.exponential(1e9 / rate, count)).astype(np.int64)
    return arrivals, rng.integers(20, 3000, count), rng.integers(1, 200, count)


def run(mode, what=WHAT, given=None):
    arrivals, prompt, output = given or work()
    return flow(mode, SPEC, arrivals.tolist(), prompt.tolist(), output.tolist(), what)


def test_without_writing_it_is_the_plain_simulation():
    arrivals, prompt, output = work()
    plain = simulate(arrivals, prompt, output, None, SPEC)
    seen = run("none")
    assert (seen.ttft_ns == plain.first_token_ns - arrivals).all()
    assert (seen.e2e_ns == plain.last_token_ns - arrivals).all()
    assert (seen.writes, seen.held_ns, seen.device_busy) == (0, 0, 0.0)


def test_with_the_same_promise_layer_by_layer_is_better_and_behind_costs_nothing():
    seen = {mode: run(mode) for mode in MODES}
    mean = {mode: float(flow.e2e_ns.mean()) for mode, flow in seen.items()}
    assert mean["none"] == mean["behind"] == mean["layer-behind"] < mean["layerwise"] < mean["sync"]
    lag = {mode: float(np.quantile(flow.lag_ns, 0.9)) for mode, flow in seen.items() if mode != "none"}
    assert lag["layer-behind"] < lag["behind"]
    assert slowdown(seen["sync"], seen["none"]) > 1.0


@pytest.mark.parametrize("mode", MODES[1:])
def test_every_token_is_written_once(mode):
    _, prompt, output = given = work()
    seen = run(mode, given=given)
    assert seen.written_bytes == int((prompt + output - 1).sum()) * WHAT.token_bytes
    assert len(seen.lag_ns) > 0
    assert (seen.lag_ns >= 0).all()


def test_a_disk_that_is_too_slow_holds_the_engine_and_the_buffer_is_kept():
    slow = msgspec.structs.replace(WHAT, disk=Disk(fixed_ns=0, bytes_per_s=3e8), buffer_bytes=2**30)
    seen, free = run("behind", slow), run("none", slow)
    assert seen.held_ns > 0
    assert seen.device_busy > 0.95
    assert seen.staged_bytes <= slow.buffer_bytes
    assert slowdown(seen, free) > 1.2
    assert seen.end_ns >= seen.written_bytes / 3e8 * 1e9 - slow.buffer_bytes / 3e8 * 1e9 - 1e9


def test_small_writes_are_gathered():
    many = run("sync", msgspec.structs.replace(WHAT, flush_tokens=1))
    few = run("sync", msgspec.structs.replace(WHAT, flush_tokens=2048))
    assert many.written_bytes == few.written_bytes
    assert many.writes > 3 * few.writes


@settings(max_examples=25, deadline=None)
@given(
    requests=st.lists(st.tuples(st.integers(1, 2000), st.integers(1, 40)), min_size=1, max_size=12),
    bandwidth=st.floats(1e8, 5e9),
    flush=st.integers(1, 3000),
)
def test_the_same_steps_take_longer_by_exactly_what_they_waited(requests, bandwidth, flush):
    """All requests are there from the beginning, so that waiting changes no batch."""
    prompt, output = (np.array(column) for column in zip(*requests, strict=True))
    given = (np.zeros(len(requests), np.int64), prompt, output)
    what = msgspec.structs.replace(
        WHAT, disk=Disk(fixed_ns=0, bytes_per_s=bandwidth), flush_tokens=flush, buffer_bytes=2**28
    )
    seen = {mode: run(mode, what, given) for mode in MODES}
    end = {mode: flow.end_ns for mode, flow in seen.items()}
    for mode in ("sync", "layerwise"):
        assert end[mode] == end["none"] + seen[mode].held_ns
    for mode in ("behind", "layer-behind"):
        assert end["none"] <= end[mode] <= end["none"] + seen[mode].held_ns
    assert (
        end["none"] <= end["layerwise"] <= end["sync"] + 32 * seen["sync"].writes
    )  # each write is rounded to ns
    for mode in MODES[1:]:
        assert seen[mode].written_bytes == int((prompt + output - 1).sum()) * what.token_bytes
        assert seen[mode].staged_bytes <= max(what.buffer_bytes, (2048 + flush) * what.token_bytes)


def test_an_unknown_mode_is_told():
    with pytest.raises(ConfigError, match="layer-behind"):
        run("sometimes")


def test_the_wait_the_formula_expects_is_that_of_writes_in_order():
    """Requests of one step each, written whole and behind, are the queue of Pollaczek and Khinchine."""
    rng = np.random.Generator(np.random.PCG64(3))
    rate, count = 2.0, 4000
    arrivals = np.cumsum(rng.exponential(1e9 / rate, count)).astype(np.int64)
    prompt = rng.choice([16, 64], count)
    what = msgspec.structs.replace(WHAT, disk=Disk(fixed_ns=100_000, bytes_per_s=20e6), flush_tokens=1)
    seen = run("behind", what, (arrivals, prompt, np.ones(count, np.int64)))
    services = [write_ns(tokens * what.token_bytes, what.disk, what.pcie) for tokens in prompt.tolist()]
    waited = seen.lag_ns.mean() - np.mean(services) * count / seen.writes
    assert seen.writes > 0.95 * count  # nearly every request is a step of its own
    assert wait_ns(rate, services) == pytest.approx(waited, rel=0.15)
