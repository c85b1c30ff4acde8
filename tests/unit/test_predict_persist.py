"""Persistence: the formula, what is felt, the wait beside a simulated queue, and the fit of a disk."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sits.core.errors import CapacityError, ConfigError
from sits.predict.persist import MODES, Disk, felt_ns, layerwise_ns, needed_bandwidth, wait_ns, write_ns
from sits.predict.persist_fit import SIZES_LEAST, exponent_of, fit_disk

SIZES = [65_536 * 4**i for i in range(6)]


def dice(seed=0):
    return np.random.Generator(np.random.PCG64(seed))


def test_the_slower_of_disk_and_pcie_counts():
    slow, fast = Disk(fixed_ns=0, bytes_per_s=1e9), Disk(fixed_ns=0, bytes_per_s=100e9)
    assert write_ns(1e9, slow, pcie=28e9) == pytest.approx(1e9)
    assert write_ns(1e9, fast, pcie=28e9) == pytest.approx(1e9 / 28)


@pytest.mark.parametrize(
    "wrong", [{"fixed_ns": -1.0, "bytes_per_s": 1.0}, {"fixed_ns": 0.0, "bytes_per_s": 0.0}]
)
def test_a_disk_that_is_none_is_told(wrong):
    with pytest.raises(ConfigError):
        Disk(**wrong)


TIMES = st.lists(st.tuples(st.floats(0, 1e6), st.floats(0, 1e6)), min_size=1, max_size=40)


@given(TIMES)
def test_layer_by_layer_is_never_worse_than_after_the_last_layer_and_never_better_than_either_alone(times):
    compute, writes = zip(*times, strict=True)
    done = layerwise_ns(compute, writes)
    assert done <= sum(compute) + sum(writes) + 1e-6 * done
    assert done >= max(sum(compute), sum(writes)) * (1 - 1e-9)


@given(st.integers(1, 100), st.floats(0, 1e9), st.floats(0, 1e9))
def test_equal_layers_have_a_closed_form(layers, compute, write):
    closed = max(compute + write / layers, compute / layers + write)
    assert layerwise_ns([compute / layers] * layers, [write / layers] * layers) == pytest.approx(closed)
    assert felt_ns("layerwise", compute, write, layers) == pytest.approx(closed - compute, abs=1e-3)
    assert (
        felt_ns("async", compute, write)
        <= felt_ns("layerwise", compute, write, layers) + 1e-3
        <= write + 2e-3
    )


def test_an_unknown_mode_names_the_known_ones():
    with pytest.raises(ConfigError, match=MODES[2]):
        felt_ns("lazily", 1, 1)


@pytest.mark.parametrize("busy", [0.3, 0.6, 0.8])
def test_the_wait_is_that_of_a_queue_served_in_order(busy):
    rng = dice(int(busy * 10))
    services = [2e6, 2e6, 2e6, 30e6]
    rate = busy / (np.mean(services) / 1e9)
    n = 800_000
    gaps, drawn = rng.exponential(1e9 / rate, n), rng.choice(services, n)
    work = np.concatenate([[0.0], drawn[:-1]]) - gaps  # Lindley's recursion, unrolled
    walk = np.cumsum(work)
    waits = walk - np.minimum.accumulate(np.minimum(walk, walk[0]))
    assert wait_ns(rate, services) == pytest.approx(waits.mean(), rel=0.06)


def test_a_device_that_never_keeps_up_has_no_wait():
    with pytest.raises(CapacityError, match="120% busy"):
        wait_ns(120, [10e6])
    with pytest.raises(ConfigError):
        wait_ns(1, [])
    with pytest.raises(ConfigError):
        needed_bandwidth(1, within_ns=5, fixed_ns=5)


@pytest.mark.parametrize("seed", range(8))
def test_a_fit_finds_the_disk_behind_noisy_times(seed):
    rng = dice(seed)
    fixed, rate = 120_000.0, 1.5e9
    times = {n: ((fixed + n / rate * 1e9) * rng.lognormal(0, 0.1, 15)).tolist() for n in SIZES}
    fit = fit_disk(times, dice(seed + 100))
    assert fit.fixed_ns.value == pytest.approx(fixed, rel=0.25)
    assert fit.bytes_per_s.value == pytest.approx(rate, rel=0.1)
    assert fit.exponent.low <= fit.exponent.value <= fit.exponent.high
    assert fit.mape < 0.1
    assert 0.1 < fit.spread < 0.5


def test_intervals_hold_the_truth_about_as_often_as_they_say():
    fixed, rate, held = 120_000.0, 1.5e9, 0
    for seed in range(12):
        rng = dice(seed)
        times = {n: ((fixed + n / rate * 1e9) * rng.lognormal(0, 0.1, 15)).tolist() for n in SIZES}
        fit = fit_disk(times, dice(seed + 1000))
        held += fit.bytes_per_s.low <= rate <= fit.bytes_per_s.high
    assert held >= 9  # of 12 at a level of 95 %


def test_an_outlier_bends_nothing():
    times = {n: [100_000 + n / 2e9 * 1e9] * 9 + [5e9] for n in SIZES}
    fit = fit_disk(times, dice())
    assert fit.bytes_per_s.value == pytest.approx(2e9, rel=1e-6)


@given(st.floats(0.5, 2.5), st.floats(1, 1e6))
def test_an_exponent_is_found(exponent, scale):
    assert exponent_of(SIZES, [scale * n**exponent for n in SIZES]) == pytest.approx(exponent)


@pytest.mark.parametrize(
    ("times", "says"),
    [
        ({n: [1.0] * 5 for n in SIZES[: SIZES_LEAST - 1]}, "4 sizes"),
        ({n: [1.0] * 2 for n in SIZES}, "2 times"),
        ({n: [1.0, 1.0, 0.0] for n in SIZES}, "least 0"),
    ],
)
def test_too_little_is_refused(times, says):
    with pytest.raises(ConfigError, match=says):
        fit_disk(times, dice())


def test_falling_times_give_a_flat_line_and_rising_ones_no_negative_fixed_part():
    falling = fit_disk({n: [1e6 / (i + 1)] * 3 for i, n in enumerate(SIZES)}, dice())
    assert falling.bytes_per_s.value == float("inf")
    steep = fit_disk({n: [n**1.5 / 1e3] * 3 for n in SIZES}, dice())
    assert steep.fixed_ns.value == 0.0
    assert steep.exponent.value == pytest.approx(1.5)
