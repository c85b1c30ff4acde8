"""A worker's own strain as signals."""

import pytest

from sits.app.up.effort import Effort, cpu_ns
from sits.core.units import MS, SECOND


class Clock:
    """A world with only the time."""

    def __init__(self):
        self.t = 500 * SECOND

    def now_ns(self):
        return self.t


def seconds(*ticks):
    """What is told of ticks given as milliseconds since the one before, and CPU milliseconds used in between."""
    clock, used, rows = Clock(), [7 * SECOND], []
    effort = Effort(clock, "worker-1", 100 * MS, lambda: used[0])
    effort.tick(lambda table, row: rows.append((table, row)))
    for passed_ms, cpu_ms in ticks:
        clock.t += passed_ms * MS
        used[0] += cpu_ms * MS
        effort.tick(lambda table, row: rows.append((table, row)))
    assert {table for table, _ in rows} <= {"signals"}
    assert {row[1] for _, row in rows} <= {"worker-1"}
    return [(row[0] // MS - 500_000, row[2], row[3]) for _, row in rows]


def test_nothing_is_told_before_a_second_is_over():
    assert seconds(*[(100, 50)] * 9) == []


def test_a_calm_second_is_told_and_the_next_one_begins_anew():
    told = seconds(*[(100, 5)] * 10, *[(100, 100)] * 10)
    assert told == [
        (1000, "gateway_cpu_share", pytest.approx(0.05)),
        (1000, "gateway_backlog_ms", 0.0),
        (2000, "gateway_cpu_share", pytest.approx(1.0)),
        (2000, "gateway_backlog_ms", 0.0),
    ]


def test_the_latest_tick_of_the_second_is_its_backlog_and_is_forgotten_after_it():
    told = seconds((100, 10), (450, 450), (120, 10), (330, 10), *[(100, 0)] * 10)
    assert told[1] == (1000, "gateway_backlog_ms", 350.0)
    assert told[0] == (1000, "gateway_cpu_share", pytest.approx(0.48))
    assert told[3] == (2000, "gateway_backlog_ms", 0.0)


def test_other_threads_make_no_share_above_one():
    assert seconds(*[(100, 400)] * 10)[0][2] == 1.0


def test_cpu_time_is_that_of_this_process():
    before = cpu_ns()
    sum(range(2_000_000))
    assert cpu_ns() > before > 0
