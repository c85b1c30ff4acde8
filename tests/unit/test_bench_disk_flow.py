"""Ways of writing the cache away, on the simulated engine: what each promises, and what has to be true of all."""

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sits.bench.disk_flow import MODES, Persisting, flow, slowdown
from sits.core.errors import ConfigError
from sits.predict.derive import derive_steptime
from sits.predict.persist import Disk
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
    requests=st.lists(
        st.tuples(st.integers(0, 10**9), st.integers(1, 2000), st.integers(1, 40)), min_size=1, max_size=12
    ),
    bandwidth=st.floats(1e8, 5e9),
    flush=st.integers(1, 3000),
)
def test_no_way_of_writing_is_faster_than_none_and_sync_is_the_slowest_to_the_end(requests, bandwidth, flush):
    requests.sort()
    given = tuple(np.array(column) for column in zip(*requests, strict=True))
    what = msgspec.structs.replace(WHAT, disk=Disk(fixed_ns=0, bytes_per_s=bandwidth), flush_tokens=flush)
    seen = {mode: run(mode, what, given) for mode in MODES}
    assert {flow.written_bytes for mode, flow in seen.items() if mode != "none"} == {
        int((given[1] + given[2] - 1).sum()) * what.token_bytes
    }
    for mode in MODES:
        assert (
            seen[mode].end_ns >= seen["none"].end_ns - 1_000_000
        )  # batches differ a little when steps are held
        assert (seen[mode].ttft_ns > 0).all()
        assert seen[mode].staged_bytes <= max(what.buffer_bytes, (2048 + flush) * what.token_bytes)


def test_an_unknown_mode_is_told():
    with pytest.raises(ConfigError, match="layer-behind"):
        run("sometimes")
