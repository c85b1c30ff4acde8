"""The knee: found with an interval that holds it, refused for each reason, and never from three points."""

import math

import pytest

from sits.core.errors import ConfigError
from sits.predict.knee import Curve, Point, find_knee
from sits.predict.queue import predict_queue
from sits.predict.queue_service import gamma
from sits.world import stream_generator

TRUE = Curve(100e6, 50e6, 20.0)
LOADS = (2.0, 5.0, 8.0, 11.0, 14.0, 16.0, 17.5, 18.5)


def measured(curve, loads, noise, seed, requests=0):
    dice = stream_generator(seed, "points")
    return [Point(x, curve.p99_ns(x) * math.exp(noise * dice.standard_normal()), requests) for x in loads]


def found(points, seed=0, **more):
    return find_knee(points, stream_generator(seed, "knee"), **more)


@pytest.mark.parametrize("noise", [0.03, 0.08])
def test_the_interval_holds_the_true_knee_about_as_often_as_it_says(noise):
    held = refused = 0
    for seed in range(30):
        knee = found(measured(TRUE, LOADS, noise, seed), seed, draws=60)
        refused += bool(knee.refusal)
        held += not knee.refusal and knee.knee.low <= TRUE.knee(2.0) <= knee.knee.high
    assert refused <= 3
    assert held >= 0.8 * (30 - refused)


def test_without_noise_the_curve_itself_is_found():
    knee = found(measured(TRUE, LOADS, 0.0, 0))
    assert knee.knee.value == pytest.approx(15.0, rel=1e-2)
    assert knee.load_max.value == pytest.approx(20.0, rel=1e-2)
    assert knee.knee.high - knee.knee.low < 0.02 * knee.knee.value


def test_few_requests_widen_the_interval_even_where_points_lie_on_the_curve():
    sharp, blunt = (found(measured(TRUE, LOADS, 0.0, 0, requests=n)) for n in (1_000_000, 2_000))
    assert blunt.knee.high - blunt.knee.low > 3 * (sharp.knee.high - sharp.knee.low)


def test_the_knee_of_a_real_queue():
    """P99 of M/M/1 is (S ln 100) / (1 - rho) exactly: twice that of no load at rho 0.5."""
    points = [
        Point(rho * 20.0, predict_queue(rho * 20.0, gamma(50e6, 1.0)).p99_ns)
        for rho in (0.1, 0.3, 0.5, 0.6, 0.7, 0.8, 0.9)
    ]
    assert found(points).knee.value == pytest.approx(10.0, rel=0.02)


@pytest.mark.parametrize(
    ("points", "said"),
    [
        ([Point(4, 124e6), Point(8, 286e6), Point(16, 753e6)], "not enough loads: 3 different ones"),
        (measured(TRUE, (2, 4, 6, 8, 10, 10, 10, 10), 0.01, 1), "not enough loads: 5"),
        (measured(TRUE, (1, 2, 3, 4, 5, 6, 8), 0.0, 2), "not reached"),
        ([Point(x, 100e6) for x in LOADS], "does not rise"),
        (measured(TRUE, LOADS, 0.9, 4), "off any such curve"),
    ],
)
def test_refusals_say_what_is_missing(points, said):
    knee = found(points)
    assert said in knee.refusal
    assert knee.knee is None


def test_one_seed_gives_one_answer():
    points = measured(TRUE, LOADS, 0.05, 3)
    assert found(points, 1) == found(points, 1)
    assert found(points, 1) != found(points, 2)


def test_the_unit_of_the_load_does_not_matter():
    points = measured(TRUE, LOADS, 0.04, 3)
    bigger = [Point(p.load * 1000, p.p99_ns) for p in points]
    assert found(bigger).knee.value == pytest.approx(1000 * found(points).knee.value, rel=1e-6)


def test_what_is_no_point_is_refused():
    for bad, field in ((Point(0.0, 1e6), "load"), (Point(1.0, math.inf), "p99_ns")):
        with pytest.raises(ConfigError) as caught:
            found([bad])
        assert caught.value.field == field
    with pytest.raises(ConfigError, match="factor"):
        found(measured(TRUE, LOADS, 0.0, 0), factor=1.0)
