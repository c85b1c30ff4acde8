"""The front end: one request at a time, draws that belong together, and a fit that finds both again."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sits.predict.frontend import NOTHING, FrontTimes, fit_front, fit_serial, serial_waits

NAN = np.nan


def times(sent, headers, *, rest=5.0, weight=1.0, late=None):
    count = len(sent)
    ones = np.ones(count)
    late = np.zeros(count) if late is None else late
    first = headers + 10.0 + 30.0 + rest
    last = first + 100.0 + late
    return FrontTimes(
        sent_ms=np.asarray(sent, float), gone_ms=np.asarray(sent) + last + 1, headers_ms=headers, first_ms=first, last_ms=last,
        end_ms=last + 1.0, queue_ms=10.0 * ones, prefill_ms=30.0 * ones, generation_ms=100.0 * ones, weight=weight,
    )  # fmt: skip


@given(st.lists(st.floats(0, 1000), min_size=1, max_size=50), st.floats(0, 20))
def test_waits_are_those_of_a_queue_served_one_by_one(sent, serial_ms):
    free, expected = 0.0, {}
    for i in np.argsort(sent, kind="stable"):
        free = max(free, sent[i]) + serial_ms
        expected[i] = free - sent[i]
    found = serial_waits(np.array(sent), serial_ms)
    assert found == pytest.approx([expected[i] for i in range(len(sent))], abs=1e-6)


def test_the_service_time_is_found_from_bursts():
    dice = np.random.Generator(np.random.PCG64(1))
    sent = np.repeat(np.arange(20) * 1000.0, 8) + dice.uniform(0, 1, 160)
    headers = serial_waits(sent, 4.0) + dice.exponential(1.0, 160)
    assert fit_serial([times(sent, headers)]) == pytest.approx(4.0, rel=0.15)


def test_draws_hold_what_the_way_out_adds():
    dice = np.random.Generator(np.random.PCG64(2))
    sent = np.arange(200) * 5.0
    late = np.where(dice.random(200) < 0.2, 80.0, 0.0)
    law = fit_front([times(sent, np.full(200, 3.0), late=late)])
    last = np.concatenate([one.last_ms for one in law.bins])
    assert 0.1 < (last > 50).mean() < 0.3
    assert law.bins[0].in_flight_min == 0
    assert [one.in_flight_min for one in law.bins] == sorted({one.in_flight_min for one in law.bins})


def test_alone_the_whole_rest_is_the_way_out():
    sent = np.arange(60) * 1000.0
    law = fit_front([times(sent, np.full(60, 3.0), rest=7.0)])
    assert np.median(law.bins[0].first_ms) == pytest.approx(7.0)


def test_unequal_runs_make_a_spread():
    sent = np.arange(60) * 1000.0
    runs = [times(sent, np.full(60, 3.0), rest=rest) for rest in (2.0, 10.0, 30.0)]
    assert fit_front(runs).level_spread > 0.5
    assert fit_front([runs[0]] * 3).level_spread == pytest.approx(0.0)


def test_a_recording_that_says_nothing_gives_nothing():
    silent = times(np.arange(10) * 1.0, np.full(10, NAN))
    assert fit_front([silent]) == NOTHING
