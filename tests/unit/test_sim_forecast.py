"""Whole traces by hand: what callers see, and the scheduler's arts one at a time."""

import msgspec
import numpy as np
import pytest

from sits.core.errors import ConfigError
from sits.predict.steptime import StepTime
from sits.sim.forecast import block_names, engine, forecast
from sits.sim.model import EngineModel

MS = 1_000_000


def flat(prefill_ms=10, overhead_ms=0.0, eager_ms=0.0):
    """Every step takes 1 ms, and a chunk of prefill `prefill_ms` more."""
    return StepTime(
        source="by hand",
        dense_tokens=(0.0,),
        dense_us=(1_000.0,),
        head_seqs=(0.0,),
        head_us=(0.0,),
        prefill_us=prefill_ms * 1000.0,
        prefill_us_per_token=0.0,
        prefill_us_per_token_kv=0.0,
        decode_us=0.0,
        decode_us_per_seq=0.0,
        decode_us_per_kv_token=0.0,
        skew=0.0,
        overhead_us=overhead_ms * 1000.0,
        eager_us=eager_ms * 1000.0,
        noise_cv=0.0,
    )


def small(step=None, **changes):
    limits = {
        "blocks": 100,
        "block_size": 10,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 100,
        "prefix_caching": False,
    }
    return engine(step or flat(), **(limits | changes))


def run(spec, rows, **more):
    arrivals, prompts, outputs = (np.array(column) for column in zip(*rows, strict=True))
    return forecast(spec, arrivals, prompts, outputs, **more)


def test_ttft_tpot_and_e2e_by_hand():
    done = run(small(flat(overhead_ms=0.5)), [(0, 50, 4), (0, 50, 1), (0, 2000, 1)])
    # one step with two chunks of 10 ms each, then three decodes; half a millisecond of host time a step
    assert done.ttft_ns.tolist() == [21.5 * MS, 21.5 * MS, -1]
    assert done.e2e_ns.tolist() == [26 * MS, 21.5 * MS, -1]
    assert done.tpot_ns[0] == 1.5 * MS
    assert np.isnan(done.tpot_ns[1:]).all()
    assert done.steps == 4


def test_a_shared_prefix_is_computed_once():
    rows = [(0, 95, 2), (50 * MS, 95, 2)]
    spec = small(msgspec.structs.replace(flat(0), prefill_us_per_token=100.0), prefix_caching=True)
    alone = run(spec, rows)
    shared = run(spec, rows, prefixes=[list(range(9)), list(range(9))])
    assert alone.ttft_ns.tolist() == [10.5 * MS, 10.5 * MS]
    assert shared.ttft_ns.tolist() == [10.5 * MS, 1.5 * MS]  # 90 of 95 tokens are found
    apart = run(spec, rows, prefixes=[list(range(9)), [0, 77, *range(2, 9)]])
    assert apart.ttft_ns.tolist() == [
        10.5 * MS,
        9.5 * MS,
    ]  # equal names behind a different one are different text
    off = run(msgspec.structs.replace(spec, prefix_caching=False), rows, prefixes=[list(range(9))] * 2)
    assert off.ttft_ns.tolist() == alone.ttft_ns.tolist()


def test_a_prompt_that_is_in_the_cache_as_a_whole_still_computes_its_last_token():
    spec = small(msgspec.structs.replace(flat(0), prefill_us_per_token=100.0), prefix_caching=True)
    done = run(spec, [(0, 90, 1), (50 * MS, 90, 1)], prefixes=[list(range(9))] * 2)
    assert done.ttft_ns.tolist() == [10 * MS, 2 * MS]  # its last block, of 10 tokens


def test_pieces_of_a_trace_become_blocks_of_an_engine():
    assert block_names([7, 9], 512, 256) == [14, 15, 18, 19]
    assert block_names([3], 16, 16) == [3]
    for tokens, size in ((512, 48), (16, 128)):
        with pytest.raises(ValueError, match="no whole number of blocks"):
            block_names([1], tokens, size)


def test_a_preempted_request_finds_its_own_blocks_again():
    spec = small(
        msgspec.structs.replace(flat(0), prefill_us_per_token=1000.0), blocks=12, max_num_batched_tokens=200
    )
    rows = [(0, 50, 20), (0, 50, 20)]
    lost = run(spec, rows)
    kept = run(msgspec.structs.replace(spec, prefix_caching=True), rows)
    assert lost.preemptions.tolist() == kept.preemptions.tolist() == [0, 1]
    assert lost.e2e_ns[0] == kept.e2e_ns[0]
    assert lost.e2e_ns[1] - kept.e2e_ns[1] >= 20 * MS


def test_priorities_pass_by_who_waits():
    spec = small(max_num_seqs=1)
    rows = [(0, 10, 5), (MS, 10, 5), (2 * MS, 10, 5)]
    plain = run(spec, rows, priorities=np.array([0, 5, 1]))
    ranked = run(msgspec.structs.replace(spec, order="priority"), rows, priorities=np.array([0, 5, 1]))
    assert plain.ttft_ns[1] < plain.ttft_ns[2]
    assert ranked.ttft_ns[1] > ranked.ttft_ns[2]
    assert ranked.ttft_ns[0] == plain.ttft_ns[0]


def test_scheduled_ahead_a_newcomer_waits_for_the_step_that_was_scheduled_before_it_came():
    rows = [(0, 10, 30), (int(15.5 * MS), 10, 2)]
    at_once = run(small(), rows)
    ahead = run(small(async_scheduling=True), rows)
    # Steps end at 11, 12, ... 16 ms.  At once: seen at 16, computed by 27.  Ahead: seen at 16, behind the step from 16 to 17.
    assert at_once.ttft_ns[1] == 27 * MS - rows[1][0]
    assert ahead.ttft_ns[1] == 28 * MS - rows[1][0]


def test_scheduled_ahead_host_time_counts_only_as_far_as_it_outlasts_the_step_before():
    rows = [(0, 10, 101)]
    ends = {
        (ahead, host): run(small(flat(overhead_ms=host), async_scheduling=ahead), rows).e2e_ns[0] / MS
        for ahead in (False, True)
        for host in (0.0, 0.8, 3.0)
    }
    assert ends[False, 0.0] == ends[True, 0.0] == 111
    assert ends[False, 0.8] == pytest.approx(111 + 101 * 0.8)
    assert ends[True, 0.8] == pytest.approx(111 + 0.8)
    assert ends[True, 3.0] > 300  # the host is the bottleneck


def test_scheduled_ahead_a_finished_request_keeps_its_seat_a_step_longer():
    rows = [(0, 10, 3), (MS, 10, 3)]
    at_once = run(small(max_num_seqs=1), rows)
    ahead = run(small(max_num_seqs=1, async_scheduling=True), rows)
    assert at_once.e2e_ns[0] == ahead.e2e_ns[0] == 13 * MS
    assert (
        at_once.ttft_ns[1] == ahead.ttft_ns[1] == 23 * MS
    )  # nobody else runs: the next step is scheduled when it ends
    both = [(0, 10, 3), (0, 10, 30), (MS, 10, 3)]
    assert run(small(max_num_seqs=2), both).ttft_ns[2] == 33 * MS
    assert run(small(max_num_seqs=2, async_scheduling=True), both).ttft_ns[2] == 34 * MS


def test_an_engine_asked_step_by_step_refuses_what_only_whole_traces_can_do():
    for field in ("prefix_caching", "async_scheduling"):
        with pytest.raises(ConfigError) as caught:
            EngineModel(small(**{field: True}))
        assert caught.value.field == field
        assert "simulate" in caught.value.hint


def test_capacity_is_asked_for_not_assumed():
    with pytest.raises(TypeError, match="blocks"):
        engine(flat(), block_size=16, max_num_seqs=8, max_num_batched_tokens=10, prefix_caching=True)
