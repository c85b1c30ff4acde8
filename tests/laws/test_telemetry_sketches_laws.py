"""Laws of the figures of minutes: quantiles within their error, nothing lost or counted twice, merging is adding."""

import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from sits.core.breakpoints import NAMES, POINT_COUNT
from sits.core.timeline import Timeline
from sits.telemetry.histograms import (
    BUCKETS,
    ERROR,
    RECORD,
    VALUES_NS,
    buckets_of,
    packed,
    quantiles_by,
    quantiles_ns,
    share_above,
    summed,
)
from sits.telemetry.packing import pack
from sits.telemetry.recorder import row_of
from sits.telemetry.sketches import LATE_NS, MINUTE_NS, SPAN_NAMES, Sketches

law = settings(deadline=None)
durations = st.lists(
    st.one_of(st.integers(0, 1000), st.integers(0, 2**63 - 1), st.integers(10**6, 10**8)),
    min_size=1,
    max_size=80,
)


def histogram(values):
    counts = np.bincount(buckets_of(np.array(values, dtype=np.int64)), minlength=BUCKETS)
    occupied = np.flatnonzero(counts)
    return packed(occupied, counts[occupied])


@law
@given(durations, st.lists(st.floats(0.001, 1.0), min_size=1, max_size=4))
def test_a_quantile_is_within_the_error_of_the_exact_one(values, levels):
    told = quantiles_ns(summed([histogram(values)]), levels)
    for level, value in zip(levels, told, strict=True):
        exact = sorted(values)[max(math.ceil(level * len(values) - 1e-9), 1) - 1]
        assert abs(value - exact) <= ERROR * exact


def test_every_bucket_tells_its_values_within_the_error_also_at_its_edges():
    """All powers of the base, and their neighbours, where rounding would show."""
    edges = np.unique(
        np.concatenate(
            [(VALUES_NS[1:-4] * f).astype(np.int64) + d for f in (0.99, 1.0, 1.01) for d in (-1, 0, 1)]
        )
    )
    edges = edges[(edges > 0) & (edges < 2**63 - 1025)]
    told = VALUES_NS[buckets_of(edges)]
    assert len(edges) > 5 * BUCKETS
    assert np.all(np.abs(told - edges) <= ERROR * edges)


@law
@given(st.lists(durations, max_size=5))
def test_joined_histograms_are_the_histogram_of_all(parts):
    everything = [value for part in parts for value in part]
    together = summed([histogram(part) for part in parts])
    assert together.sum() == len(everything)
    assert np.array_equal(
        together, np.bincount(buckets_of(np.array(everything, dtype=np.int64)), minlength=BUCKETS)
    )


@settings(deadline=None, max_examples=30)
@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from("xyz"), durations), min_size=1, max_size=8))
def test_rows_of_many_minutes_are_told_as_one(rows):
    engines, stages, values = zip(*rows, strict=True)
    columns = {
        "engine": np.array(engines, dtype=object),
        "stage": np.array(stages, dtype=object),
        "n": np.array([len(one) for one in values]),
        "sum_ns": np.array([float(sum(one)) for one in values]),
        "histogram": np.array([histogram(one) for one in values], dtype=object),
    }
    told = quantiles_by(columns, ("engine", "stage"), (0.5, 0.999))
    assert list(zip(told["engine"], told["stage"], strict=True)) == sorted(
        set(zip(engines, stages, strict=True))
    )
    for i, key in enumerate(zip(told["engine"], told["stage"], strict=True)):
        mine = [one for *of, one in rows if tuple(of) == key]
        everything = [value for one in mine for value in one]
        assert told["n"][i] == len(everything)
        assert math.isclose(told["mean_ns"][i], sum(everything) / len(everything), rel_tol=1e-9, abs_tol=1e-9)
        wanted = quantiles_ns(summed([histogram(one) for one in mine]), (0.5, 0.999))
        assert [told["p50_ns"][i], told["p99.9_ns"][i]] == wanted


@law
@given(durations, st.integers(1, 10**9))
def test_the_share_above_a_bound_is_that_of_a_bound_within_the_error(values, bound):
    share = share_above(summed([histogram(values)]), bound)
    at_least = sum(value > bound * (1 + 2.1 * ERROR) for value in values) / len(values)
    at_most = sum(value > bound for value in values) / len(values)
    assert at_least <= share <= at_most


class SetWorld:
    """Clocks that are set; the wall clock is an hour after the other."""

    def __init__(self):
        self.at = 10 * MINUTE_NS

    def now_ns(self):
        return self.at

    def wall_ns(self):
        return self.at + 60 * MINUTE_NS

    def rng(self, stream):
        raise AssertionError


requests = st.lists(
    st.tuples(
        st.sampled_from(["e0", "e1"]),
        st.sampled_from(["completed", "completed", "failed"]),
        st.integers(0, 3 * 60),
        st.lists(
            st.tuples(st.integers(0, 5 * 10**9), st.integers(0, 3)),
            min_size=POINT_COUNT,
            max_size=POINT_COUNT,
        ),
    ),
    max_size=25,
)


def row(engine, outcome, second, steps):
    line, at = Timeline(), second * 10**9 + 1
    for point, (step, how) in enumerate(steps):
        at += step
        if how:
            line.mark(point, at, how)
    text = dict.fromkeys(
        (
            "id",
            "tenant",
            "adapter",
            "arm",
            "detail",
            "prompt_hash",
            "abstraction_layer",
            "trace_id",
            "parent_id",
        ),
        "",
    )
    number = {"status": 200, "prompt_tokens": 7, "output_tokens": 5, "cached_tokens": 1, "preemptions": 0}
    return row_of(line, model="m", engine=engine, outcome=outcome, **text, **number)


def exact(rows):
    """Durations by (minute, engine, stage), computed one by one."""
    made = {}
    for engine, outcome, second, steps in rows:
        at, points, last = second * 10**9 + 1, {}, 0
        for point, (step, how) in enumerate(steps):
            at += step
            if how:
                points[point] = last = at
        minute = ((last or 10 * MINUTE_NS) + 60 * MINUTE_NS) // MINUTE_NS * MINUTE_NS
        spans = [(i, i + 1) for i in range(POINT_COUNT - 1)]
        spans += [(0, NAMES.index("first_token")), (0, NAMES.index("sent"))]
        for name, (start, end) in zip(SPAN_NAMES, spans, strict=True):
            if outcome == "completed" and start in points and end in points:
                made.setdefault((minute, engine, name), []).append(points[end] - points[start])
    return made


@settings(deadline=None, max_examples=40)
@given(st.lists(requests, max_size=4), st.data())
def test_minutes_hold_every_time_of_every_completed_request_once(batches, data):
    """Whatever is folded together, and whenever what is closed is taken."""
    world = SetWorld()
    sketches = Sketches(world)
    drained = []
    for batch in batches:
        rows = [row(*one) for one in batch]
        cut = data.draw(st.integers(0, len(rows)))
        sketches.fold([pack(rows[:cut]), pack(rows[cut:])] if rows else [])
        if data.draw(st.booleans()):
            world.at += MINUTE_NS + LATE_NS
            drained.append((sketches.minutes(), sketches.outcomes()))
            world.at = 10 * MINUTE_NS
    sketches.ending = True
    drained.append((sketches.minutes(), sketches.outcomes()))
    assert not len(sketches.minutes()["n"])
    found, sums = {}, {}
    for columns in (minutes for minutes, _ in drained):
        for minute, engine, stage, n, total, data_of in zip(
            *(columns[name] for name in ("minute_wall_ns", "engine", "stage", "n", "sum_ns", "histogram")),
            strict=True,
        ):
            key = (int(minute), engine, stage)
            found.setdefault(key, []).append(data_of)
            sums[key] = sums.get(key, 0) + total
            assert np.frombuffer(data_of, dtype=RECORD)["n"].sum() == n
    wanted = exact([one for batch in batches for one in batch])
    assert found.keys() == wanted.keys()
    for key, values in wanted.items():
        counts = np.bincount(buckets_of(np.array(values, dtype=np.int64)), minlength=BUCKETS)
        assert np.array_equal(summed(found[key]), counts)
        assert math.isclose(sums[key], sum(values), rel_tol=1e-12)
    counted = [outcomes for _, outcomes in drained]
    assert sum(int(columns["n"].sum()) for columns in counted) == sum(map(len, batches))
    assert sum(int(columns["output_tokens"].sum()) for columns in counted) == 5 * sum(map(len, batches))
