"""Laws of the burstiness report: it depends on differences of times only, scales with the unit, and is bounded below."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sits.predict.burstiness import burstiness, burstiness_text

series = st.builds(
    lambda seed, n, shape, rate: np.cumsum(
        np.random.Generator(np.random.PCG64(seed)).gamma(shape, 1.0 / (rate * shape), n)
    ),
    st.integers(0, 10_000),
    st.integers(0, 1500),
    st.sampled_from([0.1, 0.5, 1.0, 4.0, 50.0]),
    st.sampled_from([0.01, 1.0, 300.0]),
)


@settings(max_examples=150, deadline=None)
@given(series, st.integers(-1000, 1000), st.randoms(use_true_random=False))
def test_origin_and_order_do_not_matter(times, shift, order):
    moved = [float(t) + shift for t in times]
    order.shuffle(moved)
    one, two = burstiness(times), burstiness(moved)
    assert (one.arrivals, one.verdict) == (two.arrivals, two.verdict)
    assert two.cv == pytest.approx(one.cv, rel=1e-6, abs=1e-9)


@settings(max_examples=150, deadline=None)
@given(series, st.sampled_from([-10, -3, 3, 10]))
def test_a_change_of_the_unit_moves_the_windows_with_it(times, power):
    scale = 2.0**power
    windows = [1.0, 10.0, 100.0]
    one = burstiness(times, windows_s=windows)
    two = burstiness(times * scale, windows_s=[w * scale for w in windows])
    assert [row.idc for row in two.idc] == pytest.approx([row.idc for row in one.idc], rel=1e-6)
    assert two.cv == pytest.approx(one.cv, rel=1e-9)


@settings(max_examples=150, deadline=None)
@given(series)
def test_what_is_told_is_finite_ordered_and_enough_for_a_report(times):
    found = burstiness(times)
    assert found.verdict in {"poisson", "bursty", "regular", "unknown"}
    windows = [row.window_s for row in found.idc]
    assert windows == sorted(set(windows))
    for row in found.idc:
        assert row.idc >= 0.0
        assert row.windows >= 20
        assert 0.0 <= row.poisson_low < 1.0 < row.poisson_high
    assert found.verdict in burstiness_text(found)
    assert found.idc_at(3.0) >= 0.0


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.floats(0.05, 0.6))
def test_thinning_brings_arrivals_nearer_to_poisson(seed, keep):
    dice = np.random.Generator(np.random.PCG64(seed))
    times = np.cumsum(dice.gamma(0.1, 10.0, 400_000))
    whole = burstiness(times, windows_s=[50.0]).idc[0].idc
    thin = burstiness(times[dice.random(len(times)) < keep], windows_s=[50.0]).idc[0].idc
    assert thin - 1.0 == pytest.approx(keep * (whole - 1.0), rel=0.35)
