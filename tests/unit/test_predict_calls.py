"""Predicted latency through windows and calls against replays of drawn arrivals; the front; the errors are printed (-s)."""

import math

import numpy as np
import pytest

from sits.core.errors import ConfigError
from sits.core.fleet_window import Window
from sits.core.units import MS
from sits.predict.bulk import predict_free
from sits.predict.calls import predict_calls
from sits.predict.front import front, poisson_expectation
from sits.sim.calls import replay
from sits.world import stream_generator

ARRIVALS = 60_000
WINDOWS = [
    # req/s, window ms, batch, fixed ms, ms an item
    (20, 20, 16, 8, 1),
    (200, 20, 16, 8, 1),
    (400, 20, 16, 8, 1),
    (400, 100, 16, 8, 1),
    (200, 10, 4, 8, 1),
    (50, 50, 8, 30, 2),
    (150, 100, 4, 5, 1),
    (60, 100, 2, 5, 5),
]
FREE = [(20, 16, 8, 1), (200, 16, 8, 1), (400, 16, 8, 1), (50, 8, 30, 2), (200, 4, 8, 1)]


def drawn(rate, name):
    gaps = stream_generator(5, name).exponential(1e9 / rate, ARRIVALS)
    return np.rint(np.cumsum(gaps)).astype(np.int64).tolist()


def compared(expected, seen, what):
    errors = [expected.p50_ns / seen.latency(0.5) - 1, expected.p99_ns / seen.latency(0.99) - 1]
    print(
        f"{what:46s} busy {seen.busy:4.0%}  P50 {seen.latency(0.5) / MS:6.2f} ms {errors[0]:+6.2%}"
        f"  P99 {seen.latency(0.99) / MS:6.2f} ms {errors[1]:+6.2%}"
    )
    assert expected.batch_mean == pytest.approx(seen.batch_mean, rel=0.02)
    assert abs(errors[0]) < 0.02
    # near saturation the replay itself is the less certain of the two: few busy periods make its P99
    assert abs(errors[1]) < (0.02 if seen.busy < 0.8 else 0.04)


@pytest.mark.parametrize("case", WINDOWS, ids=str)
def test_a_window_and_its_calls_take_as_long_as_replayed(case):
    rate, window, batch, fixed, item = case
    config = Window(kind="fixed", base=window * MS, max_batch=batch) if window else Window(max_batch=batch)
    seen = replay(drawn(rate, str(case)), config, fixed_ns=fixed * MS, item_ns=item * MS, objective_ns=10**12)
    expected = predict_calls(rate, window * MS, batch, fixed * MS, item * MS)
    compared(expected, seen, f"{rate}/s, {window} ms or {batch}, {fixed} + {item} k ms")
    assert expected.busy == pytest.approx(seen.busy, rel=0.02)


@pytest.mark.parametrize("case", FREE, ids=str)
def test_calls_that_take_what_waits_take_as_long_as_replayed(case):
    rate, batch, fixed, item = case
    config = Window(kind="adaptive", low=0, high=10**14, max_batch=batch)
    seen = replay(drawn(rate, str(case)), config, fixed_ns=fixed * MS, item_ns=item * MS, objective_ns=10**12)
    compared(
        predict_free(rate, batch, fixed * MS, item * MS),
        seen,
        f"{rate}/s, free or {batch}, {fixed} + {item} k ms",
    )


def waits_at_most(t, rho):
    """P(wait <= t services) of M/D/1 (Erlang 1909)."""
    terms = range(math.floor(t) + 1)
    return (1 - rho) * sum((rho * (k - t)) ** k / math.factorial(k) * math.exp(-rho * (k - t)) for k in terms)


@pytest.mark.parametrize("rho", [0.3, 0.5, 0.8])
def test_one_request_a_call_is_the_queue_whose_waits_erlang_knew(rho):
    grid = np.arange(0, 20, 0.001)
    p99 = 1 + grid[np.searchsorted([waits_at_most(t, rho) for t in grid], 0.99)]
    for expected in (predict_free(100 * rho, 1, 10e6, 0), predict_calls(100 * rho, 0, 1, 10e6, 0)):
        assert expected.busy == pytest.approx(rho, rel=0.01)
        assert expected.p99_ns / 10e6 == pytest.approx(p99, rel=0.005)


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda: predict_calls(0, 1e6, 8, 1, 1), "rate_per_s"),
        (lambda: predict_calls(10, -1, 8, 1, 1), "window_ns"),
        (lambda: predict_calls(10, 1e6, 0, 1, 1), "max_batch"),
        (lambda: predict_calls(10, 1e6, 8, -1, 1), "fixed_ns"),
        (lambda: predict_calls(10, 1e6, 8, 1, math.inf), "item_ns"),
        (lambda: predict_free(10, 8, 0, 0), "fixed_ns"),
        (lambda: predict_free(math.nan, 8, 1, 1), "rate_per_s"),
    ],
)
def test_impossible_calls_are_refused_by_name(call, field):
    with pytest.raises(ConfigError) as refused:
        call()
    assert refused.value.field == field
    assert refused.value.hint


def test_saturated_cells_say_how_far_beyond_they_are():
    beyond = predict_calls(200, 0, 16, 8e6, 1e6)
    assert (beyond.p99_ns, beyond.busy) == (math.inf, pytest.approx(1.8))
    full = predict_free(1000, 16, 8e6, 1e6)
    assert (full.p99_ns, full.busy) == (math.inf, pytest.approx(1.5))


CELLS = front([None, 0, 5 * MS, 20 * MS, 100 * MS], [4, 16, 64], poisson_expectation(200, 8 * MS, 1 * MS))


def test_no_cell_beats_one_on_the_front_and_one_on_it_beats_or_equals_every_other():
    kept = [cell.expected for cell in CELLS if cell.bound != "saturated"]
    marked = [cell.expected for cell in CELLS if cell.on_front]
    assert marked
    for one in marked:
        assert not any(
            o.p99_ns < one.p99_ns * 0.99 and o.per_engine_s > one.per_engine_s * 1.01 for o in kept
        )
    for one in kept:
        assert any(
            o.p99_ns <= one.p99_ns * 1.01 and o.per_engine_s >= one.per_engine_s * 0.99 for o in marked
        )


def test_in_a_size_bound_cell_the_window_is_irrelevant():
    """Doubling it changes neither P99 nor batches much; in a time-bound cell of the same grid it changes both."""
    expect = poisson_expectation(1420, 4 * MS, MS // 10)
    one, twice = expect(15 * MS, 8), expect(30 * MS, 8)
    assert (one.bound, twice.bound) == ("size", "size")
    assert twice.p99_ns == pytest.approx(one.p99_ns, rel=0.02)
    assert twice.batch_mean == pytest.approx(one.batch_mean, rel=0.01)
    short, long = expect(2 * MS, 64), expect(4 * MS, 64)
    assert (short.bound, long.bound) == ("timeout", "timeout")
    assert long.batch_mean > 1.5 * short.batch_mean


def test_the_engine_that_is_not_waited_for_has_the_least_p99_of_all():
    best = min((cell for cell in CELLS if cell.bound != "saturated"), key=lambda cell: cell.expected.p99_ns)
    assert best.window_ns is None
