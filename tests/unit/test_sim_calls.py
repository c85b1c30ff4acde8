"""Replays of a window before an engine of calls: hand-made cases, accounts that add up, and what made `free` the default."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sits.bench.arrivals import OnOff
from sits.core.fleet_window import Window
from sits.core.units import MS, SECOND
from sits.sim.calls import replay
from sits.world import stream_generator

CALL = {"fixed_ns": 8 * MS, "item_ns": 1 * MS, "objective_ns": 100 * MS}


def ms(values):
    return (values / MS).tolist()


def test_a_fixed_window_by_hand():
    seen = replay([0, 5 * MS, 30 * MS], Window(kind="fixed", base=20 * MS), **CALL)
    assert ms(seen.waited_ns) == [20, 15, 20]
    assert ms(seen.latency_ns) == [30, 25, 29]
    assert (seen.sizes.tolist(), seen.busy_ns, seen.span_ns) == ([2, 1], 19 * MS, 59 * MS)


def test_calls_queue_behind_each_other_and_gathering_engines_join_them():
    arrivals = [0, 1 * MS, 2 * MS]
    assert ms(replay(arrivals, Window(), **CALL).latency_ns) == [9, 17, 25]
    gathered = replay(arrivals, Window(), kind="gathers", **CALL)
    assert ms(gathered.latency_ns) == [9, 18, 17]
    assert gathered.sizes.tolist() == [1, 2]


def test_free_takes_what_came_while_the_call_was_under_way():
    seen = replay([0, 1 * MS, 2 * MS], Window(kind="adaptive"), **CALL)
    assert ms(seen.waited_ns) == [0, 8, 7]
    assert ms(seen.latency_ns) == [9, 18, 17]


REACTIONS = [
    Window(),
    Window(kind="fixed"),
    *(Window(kind="adaptive", reaction=reaction) for reaction in ("free", "fill", "burst", "slack")),
]


@given(
    st.sampled_from(REACTIONS),
    st.lists(st.integers(0, 200 * MS), max_size=60),
    st.sampled_from(["by_call", "gathers"]),
)
def test_accounts_add_up(window, gaps, kind):
    arrivals = np.cumsum(gaps, dtype=np.int64).tolist()
    seen = replay(arrivals, window, kind=kind, **CALL)
    assert seen.sizes.sum() == len(arrivals)
    assert all(1 <= size <= window.max_batch for size in seen.sizes)
    assert seen.busy_ns == 8 * MS * len(seen.sizes) + MS * len(arrivals)
    assert seen.busy_ns <= seen.span_ns or not arrivals
    bound = {"none": 0, "fixed": window.base, "adaptive": window.high}[window.kind]
    for waited, whole in zip(seen.waited_ns, seen.latency_ns, strict=True):
        assert 0 <= waited <= bound
        assert whole >= waited + 9 * MS


def loads():
    """Small versions of those in benchmarks/bench_windows.py."""
    for rate in (20, 100, 200, 400, 600):
        gaps = stream_generator(3, f"{rate}").exponential(SECOND / rate, 6000)
        yield f"poisson {rate}", np.rint(np.cumsum(gaps)).astype(np.int64).tolist()
    times = [np.cumsum(OnOff().gaps_s(stream_generator(3, f"on-off {i}"), 1000)) - 60 for i in range(40)]
    whole = np.sort(np.concatenate(times))
    yield "on-off", np.rint(whole[(whole > 0) & (whole < 60)] * SECOND).astype(np.int64).tolist()


LOADS = dict(loads())


@pytest.mark.parametrize("name", LOADS)
def test_the_default_is_the_quickest_and_slack_takes_the_least_engine_time_within_the_objective(name):
    """The two sentences of the decision that made `free` the default, held on every load."""
    rows = {
        f"{window.kind} {window.reaction} {window.base}": replay(LOADS[name], window, **CALL)
        for window in (*REACTIONS, Window(kind="fixed", base=5 * MS), Window(kind="fixed", base=100 * MS))
    }
    free, slack = rows[f"adaptive free {20 * MS}"], rows[f"adaptive slack {20 * MS}"]
    for share in (0.5, 0.99):
        assert free.latency(share) <= 1.05 * min(row.latency(share) for row in rows.values())
    within = [row for row in rows.values() if row.latency(0.99) <= 100 * MS]
    assert slack.latency(0.99) <= 100 * MS
    assert slack.busy <= 1.02 * min(row.busy for row in within)


def test_before_an_engine_that_gathers_no_window_is_as_good_as_the_best():
    arrivals = LOADS["poisson 200"]
    none, free = (
        replay(arrivals, Window(kind=kind), kind="gathers", **CALL) for kind in ("none", "adaptive")
    )
    assert none.latency(0.99) == pytest.approx(free.latency(0.99), rel=0.01)
    assert none.latency(0.99) < 0.75 * replay(arrivals, Window(kind="fixed"), kind="gathers", **CALL).latency(
        0.99
    )
