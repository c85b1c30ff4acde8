"""Copies, the preparation chain and the batching window: known cases and refusals."""

import numpy as np
import pytest

from sits.core.breakpoints import TTFT_STAGES
from sits.core.errors import ConfigError
from sits.predict.derive import OVERHEAD_US
from sits.predict.prepare import PREPARE_STAGES, Rank, StepWork, prepare_ns
from sits.predict.transfer import Dips, copied_bytes, copies_ns, copy_ns
from sits.predict.window import predict_window

NEAR, FAR = Rank(bandwidth=24e9), Rank(bandwidth=11e9)


def test_the_chain_is_the_eight_stages_of_the_breakpoint_table():
    assert TTFT_STAGES[8:16] == PREPARE_STAGES
    prep = prepare_ns(StepWork(seqs=1, new_tokens=1), (NEAR,))
    assert prep.durations() == tuple(getattr(prep, name) for name in PREPARE_STAGES)


def test_sixteen_decodes_cost_about_the_overhead_of_a_step():
    prep = prepare_ns(StepWork(seqs=16, new_tokens=16, kv_blocks=1, input_bytes=7040), (NEAR,) * 4)
    assert prep.total_ns() == pytest.approx(OVERHEAD_US * 1e3, rel=0.2)


def test_one_rank_on_the_wrong_numa_node_shows_in_the_collective():
    work = StepWork(seqs=4, new_tokens=4, restore_bytes=200_000_000, restore_copies=1)
    good, bad = prepare_ns(work, (NEAR,) * 4), prepare_ns(work, (NEAR, NEAR, NEAR, FAR))
    assert good.kv_restore == bad.kv_restore
    extra = 200e6 / 11e9 * 1e9 - 200e6 / 24e9 * 1e9
    assert bad.collective_sync - good.collective_sync == pytest.approx(extra, rel=1e-3)


def test_all_ranks_on_the_wrong_node_show_in_the_copy_itself():
    work = StepWork(seqs=4, new_tokens=4, restore_bytes=200_000_000, restore_copies=1)
    good, bad = prepare_ns(work, (NEAR,) * 4), prepare_ns(work, (FAR,) * 4)
    assert bad.collective_sync == good.collective_sync
    assert bad.kv_restore > 2 * good.kv_restore


def test_one_rank_alone_synchronises_with_nobody():
    assert prepare_ns(StepWork(seqs=4, new_tokens=4), (NEAR,)).collective_sync == 0


def test_a_dip_is_paid_only_when_the_copy_meets_it():
    dips = Dips(depth=0.9, width_ns=5e6, period_ns=100e6)
    work = StepWork(seqs=4, new_tokens=4, restore_bytes=24_000_000, restore_copies=1)
    ranks = (Rank(bandwidth=24e9, dips=dips),)
    inside, outside = prepare_ns(work, ranks, 0.0), prepare_ns(work, ranks, 50e6)
    assert outside.kv_restore == prepare_ns(work, (NEAR,)).kv_restore
    assert inside.kv_restore > 5 * outside.kv_restore


def test_a_stalled_link_still_ends():
    dips = Dips(depth=1.0, width_ns=1e6, period_ns=4e6)
    assert copy_ns(24_000, 24e9, 0.0, dips) == 1e6 + 1e3
    assert copied_bytes(1e6, 24e9, 0.0, dips) == 0.0


def test_copy_over_many_periods_pays_the_mean_bandwidth():
    dips = Dips(depth=0.5, width_ns=2e5, period_ns=1e6)
    assert copy_ns(24e9, 24e9, 0.0, dips) == pytest.approx(1e9 / 0.9, rel=1e-3)


@pytest.mark.parametrize(
    ("rate", "window_ns", "batch"), [(100.0, 20e6, 16), (400.0, 20e6, 8), (1420.0, 15e6, 8), (50.0, 100e6, 2)]
)
def test_window_agrees_with_drawn_arrivals(rate, window_ns, batch):
    """An independent account: draw arrivals, fill batches one by one, measure every wait."""
    gaps = np.random.Generator(np.random.PCG64(11)).exponential(1e9 / rate, 60_000)
    arrivals = np.cumsum(gaps)
    waits, sizes, i = [], [], 0
    while i + batch < len(arrivals):
        closes = min(arrivals[i] + window_ns, arrivals[i + batch - 1])
        n = int(np.searchsorted(arrivals[i : i + batch], closes, side="right"))
        waits.extend(closes - arrivals[i : i + n])
        sizes.append(n)
        i += n
    p = predict_window(rate, window_ns, batch)
    assert p.batch_mean == pytest.approx(np.mean(sizes), rel=0.02)
    assert p.wait_ns_mean == pytest.approx(np.mean(waits), rel=0.02)
    assert p.wait_ns_p99 == pytest.approx(np.quantile(waits, 0.99), rel=0.02)


def test_two_published_rows_where_the_window_never_fires():
    """15 ms/8 at 1420 req/s and 50 ms/32 at 2870 req/s: the size cap binds, the window says nothing."""
    assert predict_window(1420, 15e6, 8).bound == "size"
    assert predict_window(2870, 50e6, 32).bound == "size"


def test_a_window_before_continuous_batching_is_warned_of_and_before_others_not():
    assert predict_window(100, 20e6, 16, continuous_batching=True).only_latency
    assert not predict_window(100, 20e6, 16).only_latency
    none = predict_window(100, 0, 16, continuous_batching=True)
    assert (none.only_latency, none.warning, none.wait_ns_p99) == (False, "", 0.0)


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda: copy_ns(-1, 24e9), "size"),
        (lambda: copy_ns(1, 0), "bandwidth"),
        (lambda: copy_ns(1, float("nan")), "bandwidth"),
        (lambda: copied_bytes(-1, 24e9), "duration_ns"),
        (lambda: copies_ns(1, 24e9, copies=0), "copies"),
        (lambda: Dips(depth=1.5, width_ns=1, period_ns=2), "depth"),
        (lambda: Dips(depth=0.5, width_ns=3, period_ns=2), "width_ns"),
        (lambda: Dips(depth=1.0, width_ns=2, period_ns=2), "depth"),
        (lambda: prepare_ns(StepWork(seqs=1, new_tokens=1), ()), "ranks"),
        (lambda: StepWork(seqs=-1, new_tokens=1), "seqs"),
        (lambda: predict_window(0, 1e6, 8), "rate_per_s"),
        (lambda: predict_window(10, -1, 8), "window_ns"),
        (lambda: predict_window(10, 1e6, 0), "max_batch"),
    ],
)
def test_impossible_work_is_refused_by_name(call, field):
    with pytest.raises(ConfigError) as refused:
        call()
    assert refused.value.field == field
    assert refused.value.hint
