"""Laws of the joining: order holds, nothing of ours changes, and the true offset of a clock lies where it is said to."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from otlp_cases import MS, WALL, request_id, requests, row, sighting, sightings
from sits.core.breakpoints import INDEX, NAMES, POINT_COUNT
from sits.telemetry.joining import ENOUGH, completed

ENGINE = NAMES[5:17]
OURS = [name for name in NAMES if name not in ENGINE]

gaps = st.binary(min_size=POINT_COUNT, max_size=POINT_COUNT)
"""Between neighbours of a true row, in units of 20 us."""


def truth(some):
    """True times of each request, ms of our clock, by name."""
    made = []
    for n, row_gaps in enumerate(some):
        at = 1000.0 * n
        times = {}
        for name, gap in zip(NAMES, row_gaps, strict=True):
            at += gap / 50
            times[name] = at
        made.append(times)
    return made


def tables(true, told, off_ns, how):
    rows = [row(n, {name: times[name] for name in OURS}) for n, times in enumerate(true)]
    seen = [
        sighting(
            request_id(n),
            {name: WALL + round(times[name] * MS) + off_ns for name in told},
            how=dict(zip(NAMES, how, strict=True)),
        )
        for n, times in enumerate(true)
    ]
    return requests(*rows), sightings(*seen)


some_rows = st.lists(gaps, min_size=1, max_size=ENOUGH - 1)
"""So few that none may contradict the others."""
some_points = st.sets(st.sampled_from([*ENGINE, "first_token", "last_token"]), min_size=1)
exactness = st.binary(min_size=POINT_COUNT, max_size=POINT_COUNT).map(
    lambda some: [1 + one % 3 for one in some]
)


@given(some_rows, some_points, st.integers(-(10**13), 10**13), exactness)
def test_a_true_offset_lies_in_the_interval_and_true_times_never_break_the_order(some, told, off_ns, how):
    table, seen = tables(truth(some), told, off_ns, how)
    joined = completed(table, seen)
    (source,) = joined.sources
    assert source.comparable
    assert source.low_ns <= off_ns <= source.high_ns
    assert (source.dropped, source.impossible) == (0, 0)
    assert source.filled == len(some) * len(told & set(ENGINE))


@given(some_rows, some_points, exactness)
def test_one_clock_is_taken_as_one(some, told, how):
    true = truth(some)
    joined = completed(*tables(true, told, 0, how))
    assert joined.sources[0].shift_ns == 0
    for n, times in enumerate(true):
        for name in told & set(ENGINE):
            assert joined.requests[name][n] == round(times[name] * MS)
            assert int(joined.requests["exactness"][n][INDEX[name]]) == how[INDEX[name]]


wild = st.dictionaries(
    st.sampled_from(NAMES),
    st.one_of(st.integers(WALL - 10**10, WALL + 10**11), st.integers(-(2**63), 2**63 - 1)),
)


@given(
    some_rows,
    st.lists(st.tuples(st.integers(0, 8), wild, st.sampled_from(("a", "b"))), max_size=12),
    exactness,
)
def test_whatever_is_told_rows_stay_in_order_and_ours_stay_ours(some, told, how):
    true = truth(some)
    table, _ = tables(true, {"engine_recv"}, 0, how)
    digits = dict(zip(NAMES, how, strict=True))
    seen = sightings(*[sighting(request_id(n), at, source=source, how=digits) for n, at, source in told])
    joined = completed(table, seen)
    cells = np.stack([joined.requests[name] for name in NAMES], axis=1)
    for n, text in enumerate(joined.requests["exactness"]):
        seen_cells = [int(cells[n, i]) for i in range(POINT_COUNT) if text[i] != "0"]
        assert seen_cells == sorted(seen_cells)
        assert all(cells[n, i] == 0 for i in range(POINT_COUNT) if text[i] == "0")
    for name in OURS:
        assert (joined.requests[name] == table[name]).all()
    assert sum(one.filled for one in joined.sources) == sum(
        t[5:17].count(d) for t in joined.requests["exactness"] for d in "123"
    )
    assert joined.strays + sum(one.rows for one in joined.sources) <= len(told)


@settings(max_examples=40)
@given(some_rows, some_points, exactness)
def test_joining_again_changes_nothing(some, told, how):
    table, seen = tables(truth(some), told, 0, how)
    once = completed(table, seen)
    twice = completed(once.requests, seen)
    assert twice.filled == 0
    assert all((once.requests[name] == twice.requests[name]).all() for name in NAMES)
