"""Stages + unattributed = end to end, whatever was seen; excesses add up; quantiles and intervals keep order."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from diagnose_tables import dice
from sits.core.breakpoints import NAMES, POINT_COUNT
from sits.diagnose.compare import difference, pooled_quantile
from sits.diagnose.decompose import decompose, stage_shares, waterfall
from sits.diagnose.resample import Blocks, Tail


@st.composite
def tables(draw, least=1, most=12):
    n = draw(st.integers(least, most))
    gaps = draw(arrays(np.int64, (n, POINT_COUNT), elements=st.integers(0, 2**40)))
    at = np.cumsum(gaps, axis=1)
    seen = draw(arrays(np.int64, (n, POINT_COUNT), elements=st.integers(0, 3)))
    seen[:, 0] = np.maximum(seen[:, 0], 1)
    seen[:, 17] = np.maximum(seen[:, 17], 1)
    seen[:, 19] = np.maximum(seen[:, 19], 1)
    table = {name: np.where(seen[:, i] > 0, at[:, i], 0) for i, name in enumerate(NAMES)}
    table["exactness"] = np.array(["".join(map(str, row)) for row in seen], dtype=object)
    table["id"] = np.array([str(i) for i in range(n)], dtype=object)
    table["outcome"] = np.array(["completed"] * n, dtype=object)
    return table


@given(tables(), st.sampled_from(["ttft", "e2e"]))
def test_stages_and_remainder_add_up_to_the_whole_exactly(table, metric):
    cut = decompose(table, metric)
    end = "first_token" if metric == "ttft" else "sent"
    assert len(cut.rows) == len(table["id"])
    assert np.array_equal(cut.stage_ns.sum(axis=1), table[end] - table["api_recv"])
    assert np.array_equal(cut.total_ns, table[end] - table["api_recv"])
    assert (cut.stage_ns >= 0).all()
    assert len(set(cut.names)) == len(cut.names)


@given(tables())
def test_a_waterfall_is_the_same_cut(table):
    cut = decompose(table, "e2e")
    drawn = waterfall(table, 0)
    shown = {bar.stage: bar.duration_ms for bar in drawn.bars}
    for j, name in enumerate(cut.names):
        assert shown.get(name, 0.0) == pytest.approx(cut.stage_ns[0, j] / 1e6)


@settings(max_examples=40)
@given(tables(least=2, most=40), st.integers(0, 2**32 - 1))
def test_excesses_add_up_to_the_excess_of_the_whole(table, seed):
    shares = stage_shares(table, "e2e", dice(seed), draws=20)
    total = decompose(table, "e2e").total_ns / 1e6
    slowest = np.argsort(-total, kind="stable")[:1]
    rest = np.delete(total, slowest)
    expected = total[slowest].mean() - rest.mean()
    assert sum(s.excess.value for s in shares) == pytest.approx(expected, rel=1e-9, abs=1e-6)
    for s in shares:
        assert s.excess.low <= s.excess.value <= s.excess.high


@settings(max_examples=40)
@given(st.integers(2, 400), st.integers(0, 2**32 - 1))
def test_a_resampled_tail_is_what_sorting_the_resample_gives(n, seed):
    rng = dice(seed)
    total = rng.integers(0, 50, n)
    tail = Tail(total, np.arange(n), rng, share=0.1, draws=5)
    for b in range(5):
        counts = tail.blocks.counts[b, tail.blocks.of_row].astype(int)
        expanded = np.sort(np.repeat(total, counts))[::-1]
        size = max(1, int(np.ceil(0.1 * len(expanded) - 1e-9)))
        assert tail._weights[b] @ total[tail._near] == pytest.approx(expanded[:size].sum())
        assert tail._weights[b].sum() == pytest.approx(size)


@settings(max_examples=40)
@given(st.integers(1, 300), st.integers(0, 2**32 - 1), st.sampled_from([0.01, 0.5, 0.99, 1.0]))
def test_resampled_quantiles_are_what_sorting_the_resample_gives(n, seed, q):
    rng = dice(seed)
    values = rng.integers(0, 30, n)
    blocks = Blocks(rng.permutation(n), rng, draws=4)
    found = blocks.quantiles(values, q)
    for b in range(4):
        expanded = np.sort(np.repeat(values, blocks.counts[b, blocks.of_row].astype(int)))
        rank = min(len(expanded), max(1, int(np.ceil(q * len(expanded) - 1e-9))))
        assert found[b] == expanded[rank - 1]


# Times are whole nanoseconds: a latency of 1e-303 ms cannot be, and a ratio to it is no number.
MILLISECONDS = st.integers(0, 10**12).map(lambda ns: ns / 1e6)


@settings(max_examples=40)
@given(
    st.lists(arrays(np.float64, st.integers(1, 30), elements=MILLISECONDS), min_size=1, max_size=6),
    MILLISECONDS,
    st.integers(0, 2**32 - 1),
)
def test_intervals_hold_their_estimate_and_stay_inside_the_data(samples, shift, seed):
    found = pooled_quantile(samples, dice(seed), draws=50)
    everything = np.concatenate(samples)
    assert everything.min() <= found.low <= found.value <= found.high <= everything.max()
    delta = difference([a + shift for a in samples], samples, dice(seed), draws=50)
    assert delta.saved.low <= delta.saved.value <= delta.saved.high
    assert delta.saved.value == pytest.approx(shift, rel=1e-6, abs=1e-3)


def test_the_interval_of_a_known_p99_covers_it_about_as_often_as_it_says():
    truth = -np.log(0.01)
    hits = 0
    for seed in range(200):
        rng = dice(seed)
        found = pooled_quantile([rng.exponential(1.0, 300) for _ in range(10)], rng, draws=300)
        hits += found.low <= truth <= found.high
    assert 180 <= hits <= 200
