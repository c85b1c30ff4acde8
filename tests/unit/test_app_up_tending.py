"""A keeper has hours that are over tended by another process: once an hour, one at a time, and none is left over."""

import sys

from sits.app.up.tending import AFTER_NS, COMMAND, Tending
from sits.telemetry.parts import HOUR_NS, parts_in
from sits.telemetry.store import DuckStore
from sits.telemetry.tables import SIGNALS, columns_of


class SetWorld:
    """A wall clock that is set."""

    wall = 490_000 * HOUR_NS

    def now_ns(self):
        return 0

    def wall_ns(self):
        return self.wall

    def rng(self, stream):
        raise AssertionError


def test_an_hour_is_tended_once_it_is_over(tmp_path):
    world = SetWorld()
    with DuckStore(tmp_path, world=world) as store:
        for _ in range(3):
            store.append("signals", columns_of(SIGNALS, [("r", 1, "s", "n", 0.5)]))
            store.flush()
    tending = Tending(tmp_path, world, COMMAND)
    (hour,) = (tmp_path / "signals").iterdir()
    tending.look()
    assert tending._process is None
    world.wall += HOUR_NS + AFTER_NS
    tending.look()
    begun = tending._process
    assert begun.wait() == 0
    assert len(parts_in(hour)) == 4  # the merged one, and the three for readers that have listed them
    tending.look()
    assert tending._process is None
    tending.stop()


def test_one_at_a_time_and_none_is_left_over(tmp_path):
    world = SetWorld()
    tending = Tending(tmp_path, world, (sys.executable, "-c", "import signal; signal.pause()"))
    world.wall += 2 * HOUR_NS
    tending.look()
    first = tending._process
    world.wall += HOUR_NS
    tending.look()
    assert tending._process is first
    tending.stop()
    assert first.returncode is not None


def test_what_could_not_be_tended_is_counted(tmp_path):
    world = SetWorld()
    tending = Tending(tmp_path, world, (sys.executable, "-c", "raise SystemExit(1)"))
    for hours in (1, 2):
        world.wall += 2 * HOUR_NS
        tending.look()
        tending._process.wait()
        assert tending.failures == hours - 1
    tending.look()
    assert tending.failures == 2
    tending.stop()


def test_the_process_is_told_the_share_that_is_kept(tmp_path):
    world, told = SetWorld(), tmp_path / "told"
    writes = f"import sys, pathlib; pathlib.Path({str(told)!r}).write_text(' '.join(sys.argv[1:]))"
    tending = Tending(tmp_path, world, (sys.executable, "-c", writes))
    tending.share = 0.25
    world.wall += 2 * HOUR_NS
    tending.look()
    tending._process.wait()
    assert told.read_text() == f"{tmp_path} 0.25"
    tending.stop()
