"""Laws of the tail: every acknowledged row is seen exactly once, whatever writers, merges, restarts and retention do."""

import json
import shutil
from pathlib import Path
from tempfile import mkdtemp

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sits.telemetry.parts import HOUR_NS
from sits.telemetry.rowlog import SignalLog
from sits.telemetry.store import DuckStore
from sits.telemetry.tail import Tail
from sits.telemetry.tending import tend

WRITERS = st.integers(0, 1)


class WallWorld:
    """A wall clock that is set."""

    def __init__(self):
        self.at = 500_000 * HOUR_NS

    def now_ns(self):
        return self.at

    def wall_ns(self):
        return self.at

    def rng(self, stream):
        raise AssertionError


class Following(RuleBasedStateMachine):
    """Two writers and one reader that is restarted; merged files are swept at once, so that narrow ones are mostly gone."""

    def __init__(self):
        super().__init__()
        self.path = Path(mkdtemp())
        self.world = WallWorld()
        self.stores = [self.opened() for _ in range(2)]
        self.tail = Tail(self.path, "signals", world=self.world, beginning=True)
        self.late = None
        self.pending = [[], []]
        self.acknowledged, self.seen, self.late_from, self.late_seen = [], [], 0, []
        self.next = 0

    def opened(self):
        return DuckStore(self.path, world=self.world, grace_ns=-(10**18))

    @rule(writer=WRITERS, rows=st.integers(1, 3))
    def append(self, writer, rows):
        log = SignalLog(8, "r")
        for _ in range(rows):
            log.append((1, "s", str(self.next), 0.5))
            self.pending[writer].append(str(self.next))
            self.next += 1
        self.stores[writer].append("signals", log.drain())

    @rule(writer=WRITERS)
    def flush(self, writer):
        self.stores[writer].flush()
        self.acknowledged += self.pending[writer]
        self.pending[writer] = []

    @rule(writer=WRITERS, times=st.integers(7, 20))
    def flush_often(self, writer, times):
        for _ in range(times):
            self.append(writer, 1)
            self.flush(writer)

    @rule(at_most=st.sampled_from([1, 5, 200_000]))
    def look(self, at_most):
        self.seen += self.tail.look(at_most)["name"].tolist()
        if self.late is not None:
            self.late_seen += self.late.look(at_most)["name"].tolist()

    @rule()
    def restart_the_reader(self):
        saved = json.dumps(self.tail.cursor)
        self.tail.close()
        self.tail = Tail(self.path, "signals", world=self.world, cursor=json.loads(saved))

    @precondition(lambda self: self.late is None)
    @rule()
    def begin_another_now(self):
        self.late = Tail(self.path, "signals", world=self.world)
        self.late_from = len(self.acknowledged)

    @rule(writer=WRITERS)
    def restart_a_writer(self, writer):
        """Killed: what it had not flushed is gone."""
        self.stores[writer] = self.opened()
        self.pending[writer] = []

    @rule()
    def an_hour_passes(self):
        self.world.at += HOUR_NS

    @rule()
    def the_clock_is_set_back_over_the_end_of_an_hour(self):
        self.world.at -= HOUR_NS

    @rule()
    def hours_that_are_over_are_tended(self):
        assert not tend(self.path, self.world, grace_ns=-(10**18)).troubles

    @rule()
    def what_was_seen_is_no_longer_kept(self):
        self.catch_up()
        self.stores[0].retain(HOUR_NS)

    def catch_up(self):
        for tail, seen in ((self.tail, self.seen), (self.late, self.late_seen)):
            while tail is not None and (names := tail.look(5)["name"].tolist()):
                seen.extend(names)

    @invariant()
    def nothing_is_seen_twice_or_before_it_is_acknowledged(self):
        assert len(set(self.seen)) == len(self.seen)
        assert set(self.seen) <= set(self.acknowledged)

    def teardown(self):
        self.catch_up()
        assert sorted(self.seen) == sorted(self.acknowledged)
        if self.late is not None:
            assert sorted(self.late_seen) == sorted(self.acknowledged[self.late_from :])
        shutil.rmtree(self.path)


TestFollowing = Following.TestCase
TestFollowing.settings = settings(max_examples=10, stateful_step_count=20, deadline=None)
