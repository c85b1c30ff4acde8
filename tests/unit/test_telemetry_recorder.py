"""The recorder and the row logs: what goes in comes out, a full ring drops and counts."""

import threading

import numpy as np
import pytest

from sits.core.breakpoints import API_RECV, FIRST_TOKEN, NAMES, Exactness
from sits.core.errors import BugError
from sits.core.timeline import Timeline
from sits.telemetry.recorder import Recorder, row_of
from sits.telemetry.rowlog import SignalLog, StepLog
from sits.telemetry.tables import REQUESTS, SIGNALS, STEPS


class FixedWorld:
    """A clock that stands, with a wall clock 1,000 s ahead."""

    def __init__(self, now_ns=5_000):
        self.now = now_ns

    def now_ns(self):
        return self.now

    def wall_ns(self):
        return self.now + 10**12

    def rng(self, stream):
        raise AssertionError("a recorder draws nothing")


def put(recorder, name="r", timeline=None, **more):
    row = {
        "id": name,
        "tenant": "t",
        "model": "m",
        "adapter": "",
        "engine": "e0",
        "arm": "stable",
        "outcome": "completed",
        "status": 200,
        "detail": "",
        "prompt_tokens": 7,
        "output_tokens": 3,
        "cached_tokens": 0,
        "preemptions": 1,
        "prompt_hash": "ab12",
        "abstraction_layer": "sits/0 /v1/messages",
        "trace_id": "",
        "parent_id": "",
    } | more
    return recorder.record(row_of(timeline or Timeline(), **row))


def test_a_row_comes_back_with_every_column_in_its_type():
    line = Timeline()
    line.mark(API_RECV, 100)
    line.mark(FIRST_TOKEN, 900, Exactness.DERIVED)
    recorder = Recorder(4, FixedWorld(), "run-1")
    assert put(recorder, "a", line, tenant="ünïcode", status=429)
    got = recorder.drain()
    assert list(got) == list(REQUESTS)
    assert {name: values.tolist() for name, values in got.items() if name not in NAMES} == {
        "run_id": ["run-1"],
        "id": ["a"],
        "tenant": ["ünïcode"],
        "model": ["m"],
        "adapter": [""],
        "engine": ["e0"],
        "arm": ["stable"],
        "outcome": ["completed"],
        "status": [429],
        "detail": [""],
        "prompt_tokens": [7],
        "output_tokens": [3],
        "cached_tokens": [0],
        "preemptions": [1],
        "exactness": ["3" + "0" * 16 + "200"],
        "wall_ns": [100 + 10**12],
        "prompt_hash": ["ab12"],
        "abstraction_layer": ["sits/0 /v1/messages"],
        "trace_id": ["a"],
        "parent_id": [""],
        "weight": [1.0],
    }
    assert [got[name][0] for name in NAMES] == [100, *[0] * 16, 900, 0, 0]
    assert got["api_recv"].dtype == np.int64
    assert got["status"].dtype == np.int32


def test_a_row_is_a_copy_so_the_timeline_may_be_reused():
    line = Timeline()
    line.mark(API_RECV, 1)
    recorder = Recorder(2, FixedWorld(), "r")
    put(recorder, timeline=line)
    line.mark(API_RECV, 2)
    assert recorder.drain()["api_recv"].tolist() == [1]


def test_a_full_ring_drops_the_new_row_counts_it_and_works_again_after_a_drain():
    recorder = Recorder(3, FixedWorld(), "r")
    kept = [put(recorder, f"r{i}") for i in range(5)]
    assert kept == [True, True, True, False, False]
    assert (recorder.dropped, len(recorder)) == (2, 3)
    assert recorder.drain()["id"].tolist() == ["r0", "r1", "r2"]
    assert put(recorder, "later")
    assert recorder.drain()["id"].tolist() == ["later"]
    assert len(recorder.drain()["id"]) == 0


def test_without_a_first_byte_the_wall_clock_is_of_the_earliest_point_seen():
    line = Timeline()
    line.mark(FIRST_TOKEN, 40)
    recorder = Recorder(4, FixedWorld(now_ns=77), "r")
    put(recorder, timeline=line)
    put(recorder, timeline=Timeline())
    assert recorder.drain()["wall_ns"].tolist() == [40 + 10**12, 77 + 10**12]


def test_an_absurd_token_count_is_clipped_and_costs_no_other_row():
    recorder = Recorder(4, FixedWorld(), "r")
    put(recorder, "a", prompt_tokens=2**70)
    put(recorder, "b")
    assert recorder.drain()["prompt_tokens"].tolist() == [2**31 - 1, 7]


def test_nothing_is_lost_or_doubled_between_two_threads():
    recorder = Recorder(64, FixedWorld(), "r")
    seen, done = [], threading.Event()

    def consume():
        while not done.is_set() or len(recorder):
            seen.extend(recorder.drain()["id"].tolist())

    thread = threading.Thread(target=consume)
    thread.start()
    for i in range(5_000):
        put(recorder, i)
    done.set()
    thread.join()
    assert len(seen) + recorder.dropped == 5_000
    assert seen == sorted(set(seen))


def test_step_and_signal_logs_return_their_tables_columns():
    steps, signals = StepLog(2, "r"), SignalLog(2, "r")
    steps.append(("e0", *range(1, len(STEPS) - 1)))
    signals.append((5, "e0", "kv_usage", 0.25))
    step, signal = steps.drain(), signals.drain()
    assert list(step) == list(STEPS)
    assert step["prepare_ns"].tolist() == [len(STEPS) - 2]
    assert {name: values.tolist() for name, values in signal.items()} == {
        "run_id": ["r"],
        "t_ns": [5],
        "source": ["e0"],
        "name": ["kv_usage"],
        "value": [0.25],
    }
    assert list(signals.drain()) == list(SIGNALS)


def test_a_full_log_drops_and_counts_and_a_row_of_the_wrong_width_is_refused():
    log = SignalLog(1, "r")
    assert log.append((1, "a", "b", 0.0))
    assert not log.append((2, "a", "b", 0.0))
    assert log.dropped == 1
    with pytest.raises(BugError, match="a row of 3 values for the columns t_ns, source, name, value"):
        log.append((1, "a", "b"))


@pytest.mark.parametrize("make", [lambda: Recorder(0, FixedWorld(), "r"), lambda: StepLog(0, "r")])
def test_a_capacity_of_nothing_is_refused(make):
    with pytest.raises(BugError, match="0 rows"):
        make()
