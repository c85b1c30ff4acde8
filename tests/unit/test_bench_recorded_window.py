"""Which runs of a store can be told on one clock."""

import pytest

from sits.bench.recorded_window import SAME_CLOCK_NS, _same_clock

NEWEST = {"first_wall_ns": 10**18, "start_ns": 10**9}


@pytest.mark.parametrize(
    ("wall_ns", "start_ns", "same"),
    [
        (10**18 + 5, 10**9 + 5, True),
        (10**18, 10**9 - SAME_CLOCK_NS, True),
        (10**18, 10**9 - SAME_CLOCK_NS - 1, False),
        (10**18, None, False),
    ],
)
def test_runs_are_of_one_clock_when_their_offsets_say_so(wall_ns, start_ns, same):
    other = {"first_wall_ns": wall_ns, "start_ns": start_ns}
    assert _same_clock(other, NEWEST) is same
    assert _same_clock(NEWEST, other) is same


def test_a_run_whose_requests_all_lack_their_first_point_is_of_its_own_clock_only():
    lost = {"first_wall_ns": 10**18, "start_ns": None}
    assert _same_clock(lost, lost)
