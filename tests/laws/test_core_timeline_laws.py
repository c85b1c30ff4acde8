"""Laws of a request's row: spans add up, order is seen, marking one point touches no other."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from sits.core.breakpoints import NAMES, POINT_COUNT, Exactness
from sits.core.timeline import Timeline

points = st.integers(0, POINT_COUNT - 1)
times = st.integers(0, 2**62)
marks = st.dictionaries(points, st.tuples(times, st.sampled_from([e for e in Exactness if e])))


def row_of(cells):
    row = Timeline()
    for point, (now, how) in cells.items():
        row.mark(point, now, how)
    return row


@given(marks)
def test_a_row_holds_what_was_marked_and_nothing_else(cells):
    row = row_of(cells)
    for point in range(POINT_COUNT):
        assert row.has(point) == (point in cells)
        assert (row.at[point], row.how[point]) == cells.get(point, (0, Exactness.MISSING))


@given(marks)
def test_spans_between_seen_points_add_up(cells):
    row = row_of(cells)
    seen = sorted(cells)
    spans = [row.span_ns(a, b) for a, b in itertools.pairwise(seen)]
    if len(seen) > 1:
        assert sum(spans) == row.span_ns(seen[0], seen[-1])
    for a in range(POINT_COUNT):
        for b in range(POINT_COUNT):
            assert (row.span_ns(a, b) is None) == (a not in cells or b not in cells)


@given(marks)
def test_disorder_is_seen_exactly_when_times_decrease(cells):
    row = row_of(cells)
    seen = [cells[point][0] for point in sorted(cells)]
    told = row.disorder()
    assert (told is None) == (seen == sorted(seen))
    if told:
        later, earlier = told.split()[0], told.split()[-1]
        assert NAMES.index(earlier) < NAMES.index(later)
        assert cells[NAMES.index(later)][0] < cells[NAMES.index(earlier)][0]
