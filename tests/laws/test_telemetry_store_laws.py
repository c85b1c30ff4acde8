"""Laws of the recorder and the store: nothing lost, nothing doubled, whatever the order of operations."""

from tempfile import TemporaryDirectory

from hypothesis import given, settings
from hypothesis import strategies as st

from sits.core.breakpoints import POINT_COUNT
from sits.core.timeline import Timeline
from sits.telemetry.parts import Part, current
from sits.telemetry.recorder import Recorder, row_of
from sits.telemetry.rowlog import SignalLog
from sits.telemetry.store import DuckStore

law = settings(deadline=None)
marks = st.dictionaries(st.integers(0, POINT_COUNT - 1), st.tuples(st.integers(1, 2**62), st.integers(1, 3)))


class StandingWorld:
    """Clocks at 0."""

    def now_ns(self):
        return 0

    def wall_ns(self):
        return 0

    def rng(self, stream):
        raise AssertionError


LABEL_TEXTS = (
    *("tenant", "model", "adapter", "engine", "arm", "detail"),
    *("prompt_hash", "abstraction_layer", "trace_id", "parent_id"),
)


def row(name, **more):
    text = dict.fromkeys(LABEL_TEXTS, "")
    number = dict.fromkeys(("status", "prompt_tokens", "output_tokens", "cached_tokens", "preemptions"), 0)
    return {"id": name, "outcome": "completed"} | text | number | more


@law
@given(st.integers(1, 8), st.lists(st.integers(-1, 5), max_size=60))
def test_recorded_is_drained_or_dropped_in_order(capacity, script):
    """-1 drains, n records n rows."""
    recorder, sent, kept, got = Recorder(capacity, StandingWorld(), "r"), 0, [], []
    for step in script:
        if step < 0:
            got += recorder.drain()["id"].tolist()
        for _ in range(max(step, 0)):
            if recorder.record(row_of(Timeline(), **row(sent))):
                kept.append(sent)
            sent += 1
            assert len(recorder) <= capacity
    got += recorder.drain()["id"].tolist()
    assert got == kept
    assert len(got) + recorder.dropped == sent


@law
@given(st.lists(marks, min_size=1, max_size=20))
def test_a_timeline_comes_back_as_it_was_marked(lines):
    recorder = Recorder(len(lines), StandingWorld(), "r")
    for i, points in enumerate(lines):
        line = Timeline()
        for point, (at, how) in points.items():
            line.mark(point, at, how)
        recorder.record(row_of(line, **row(i)))
    got = recorder.drain()
    times = list(zip(*(got[name].tolist() for name in list(got)[14 : 14 + POINT_COUNT]), strict=True))
    for points, at, how in zip(lines, times, got["exactness"], strict=True):
        assert list(at) == [points.get(i, (0, 0))[0] for i in range(POINT_COUNT)]
        assert [int(digit) for digit in how] == [points.get(i, (0, 0))[1] for i in range(POINT_COUNT)]


@settings(max_examples=10, deadline=None)
@given(st.lists(st.lists(st.text(max_size=5), max_size=3), min_size=1, max_size=24))
def test_every_flushed_row_is_found_once_by_a_reader(batches):
    with TemporaryDirectory() as path, DuckStore(path) as store:
        for batch in batches:
            log = SignalLog(8, "r")
            for text in batch:
                log.append((1, "s", text, 0.5))
            store.append("signals", log.drain())
            assert store.flush() == len(batch)
        with DuckStore(path) as reader:
            got = reader.columns("signals_window")["name"].tolist()
    assert sorted(got) == sorted(text for batch in batches for text in batch)


@law
@given(st.lists(st.integers(1, 4), max_size=12), st.randoms(use_true_random=False))
def test_current_parts_cover_every_flush_once_whatever_merged_files_remain(widths, dice):
    """Ranges are merged at random, merged-away parts stay or go at random."""
    live, stale, at = [], [], 1
    for width in widths:
        live.append((at, at + width - 1))
        at += width
    while len(live) > 1 and dice.random() < 0.8:
        i = dice.randrange(len(live) - 1)
        stale += [pair for pair in live[i : i + 2] if dice.random() < 0.7]
        live[i : i + 2] = [(live[i][0], live[i + 1][1])]
    shown = [Part("w", first, last, None) for first, last in live + stale]
    dice.shuffle(shown)
    assert [(part.first, part.last) for part in current(shown)] == sorted(live)
