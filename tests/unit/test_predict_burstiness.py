"""Burstiness: what Poisson, bursty, regular and rounded arrivals are called, and what published traces show."""

import math
from pathlib import Path

import msgspec
import numpy as np
import pytest

from sits.core.errors import ConfigError
from sits.predict.burstiness import burstiness, burstiness_text
from sits.world import stream_generator

TRACES = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "traces"


def poisson(seed, count, rate=4.0):
    return np.cumsum(stream_generator(seed, "arrivals").exponential(1.0 / rate, count))


def trace(name):
    path = TRACES / f"{name}.parquet"
    if not path.is_file():
        pytest.skip(f"{path.name} is a published trace and not part of the project")
    read_table = pytest.importorskip("pyarrow.parquet").read_table
    columns = read_table(path).to_pydict()
    return columns["t_s"] if "t_s" in columns else np.asarray(columns["t_ms"]) / 1e3


def test_poisson_arrivals_are_called_otherwise_once_in_a_hundred_series():
    lengths = stream_generator(0, "lengths").integers(101, 2500, 600)
    wrong = sum(not burstiness(poisson(seed, int(n))).poisson for seed, n in enumerate(lengths))
    assert wrong <= 14  # 6 expected; 15 or more has a chance of 0.2 %


def test_a_long_poisson_series_is_not_called_bursty_for_a_dispersion_nobody_feels():
    rare = np.sort(np.concatenate([poisson(1, 60_000, 4.0), poisson(2, 500, 1 / 30)]))
    assert burstiness(rare).verdict == "poisson"


@pytest.mark.parametrize("cv", [1.5, 2.0, 4.0])
def test_renewal_arrivals_show_their_cv_squared_as_idc_of_long_windows(cv):
    shape = 1.0 / cv**2
    gaps = stream_generator(3, "gamma").gamma(shape, 0.2 / shape, 200_000)
    found = burstiness(np.cumsum(gaps))
    assert found.verdict == "bursty"
    assert found.cv == pytest.approx(cv, rel=0.03)
    assert found.idc_at(found.span_s / 200) == pytest.approx(cv**2, rel=0.25)


def test_a_rate_that_wanders_is_seen_in_long_windows_though_its_gaps_look_like_poisson():
    dice = stream_generator(4, "wander")
    rates = np.repeat([3.0, 5.0], 60)[np.arange(7200) % 120]
    times = np.concatenate([second + dice.random(n) for second, n in enumerate(dice.poisson(rates))])
    found = burstiness(times)
    assert found.cv < 1.1
    assert found.idc_at(1.0) < 1.4
    assert found.idc_at(60.0) > 5.0
    assert found.verdict == "bursty"
    assert "from windows of" in found.reason


def test_a_metronome_is_regular_and_a_closed_loop_too():
    assert burstiness(np.arange(1000) * 0.25).verdict == "regular"
    jittered = np.arange(5000) * 0.25 + stream_generator(5, "jitter").random(5000) * 0.25
    assert burstiness(jittered).verdict == "regular"


@pytest.mark.parametrize("times", [[], [1.0], [2.0] * 500, list(range(100))])
def test_too_few_arrivals_are_unknown_and_not_poisson(times):
    found = burstiness(times)
    assert found.verdict == "unknown"
    assert not found.poisson
    assert "assume nothing" in burstiness_text(found)
    msgspec.json.encode(found)


def test_no_window_long_enough_is_unknown_unless_the_gaps_already_speak():
    times = poisson(6, 150)
    assert burstiness(times, windows_s=[1e6]).verdict == "unknown"


def test_bad_times_and_windows_are_refused_by_name():
    with pytest.raises(ConfigError, match="arrivals_s"):
        burstiness([0.0, math.nan, 1.0])
    with pytest.raises(ConfigError, match="windows_s"):
        burstiness(poisson(7, 500), windows_s=[0.0])


def test_rounded_clocks_are_said():
    times = np.floor(poisson(8, 20_000) / 3.0) * 3.0
    found = burstiness(times)
    assert found.tied > 0.8
    assert "rounded clock" in burstiness_text(found)
    assert "rounded clock" not in burstiness_text(burstiness(poisson(8, 20_000)))


def test_the_report_defines_its_measures_and_shows_the_verdict():
    text = burstiness_text(burstiness(poisson(9, 5_000)))
    assert "variance / mean" in text
    assert "standard deviation / mean" in text
    assert "verdict   poisson" in text


@pytest.mark.parametrize(
    ("name", "cv", "window_s", "idc", "verdict"),
    [
        ("azure_llm_2023_conv", 1.09, 60.0, 16.0, "bursty"),
        ("azure_llm_2023_code", 13.2, 60.0, 164.0, "bursty"),
        ("azure_llm_2023_code", 13.2, 1.0, 13.2, "bursty"),
        ("mooncake_fast25_conversation", 3.03, 0.5, 9.6, "bursty"),
        ("mooncake_fast25_synthetic", 1.01, 10.0, 1.19, "poisson"),
    ],
)
def test_published_traces(name, cv, window_s, idc, verdict):
    times = trace(name)
    found = burstiness(times)
    assert found.cv == pytest.approx(cv, rel=0.01)
    assert found.verdict == verdict
    (asked,) = burstiness(times, windows_s=[window_s]).idc
    assert asked.idc == pytest.approx(idc, rel=0.05)
    assert found.idc_at(window_s) == pytest.approx(idc, rel=0.2)
