"""Spans and sightings of others go with the requests they are about, and not before it is known which of those are kept."""

import pytest

from sits.policy.sample import WHOLE, randomness, threshold
from sits.telemetry.parts import HOUR_NS, current, parts_in
from sits.telemetry.store import DuckStore
from sits.telemetry.tables import TABLES, columns_of
from sits.telemetry.tail import Tail
from sits.telemetry.tending import SETTLED_NS, tend

START_NS = 490_000 * HOUR_NS
SHARE = 0.25
GONE, BEFORE, BEHIND, WRONG = (f"{i:032x}" for i in (1, 2, 3, 4))
ANYWAY = f"{WHOLE - 5:032x}"
NONE = "no trace id"


class SetWorld:
    wall = START_NS

    def now_ns(self):
        return 0

    def wall_ns(self):
        return self.wall

    def rng(self, stream):
        raise AssertionError


def row(table, **told):
    blank = {name: "" if kind == "VARCHAR" else 1 for name, kind in TABLES[table].items()}
    return columns_of(TABLES[table], [[(blank | told)[name] for name in TABLES[table]]])


@pytest.fixture
def store(tmp_path):
    """In the middle one of three hours, a flush each: spans and sightings of six traces, two of which have a request in an hour beside it."""
    world = SetWorld()
    with DuckStore(tmp_path, world=world) as opened:
        opened.append("requests", row("requests", id="r1", trace_id=BEFORE))
        opened.flush()
        world.wall += HOUR_NS
        for i, trace in enumerate([GONE, BEFORE, GONE, BEHIND, WRONG, WRONG, ANYWAY, NONE, GONE]):
            status = "ERROR: no" if i == 4 else "OK"
            opened.append("spans", row("spans", trace_id=trace, span_id=f"s{i}", status=status))
            opened.append("sightings", row("sightings", trace_id=trace, source=f"s{i}"))
            opened.flush()
        world.wall += HOUR_NS
        opened.append("requests", row("requests", id=BEHIND))
        opened.flush()
        yield tmp_path, opened, world


@pytest.mark.parametrize(("table", "name"), [("spans", "span_id"), ("sightings", "source")])
def test_what_is_of_no_trace_that_is_kept_goes(store, table, name):
    path, opened, world = store
    window = {"spans": "SELECT * FROM spans", "sightings": "SELECT * FROM sightings"}[table]

    def left():
        opened._view(table, opened._files(table))
        return sorted(one[name] for one in map(dict, _dicts(opened._db.execute(window))))

    everything = [f"s{i}" for i in range(9)]
    world.wall = START_NS + 3 * HOUR_NS  # the hour after it is not settled yet
    tend(path, world, share=SHARE)
    assert left() == everything
    tail = Tail(path, table, world=world, beginning=True)
    seen = tail.look(at_most=1)[name].tolist()
    seen += tail.look(at_most=1)[name].tolist()
    world.wall += SETTLED_NS
    told = tend(path, world, share=SHARE, grace_ns=-(10**18))
    assert told.troubles == []
    assert left() == ["s1", "s3", "s4", "s5", "s6", "s7"]
    while len(some := tail.look(at_most=2)[name].tolist()):
        seen += some
    assert set(seen) >= {"s1", "s3", "s4", "s5", "s6", "s7"}
    assert len(seen) == len(set(seen))
    (hour,) = (path / table).iterdir()
    assert len(current(parts_in(hour))) == 1


def test_where_all_is_kept_nothing_goes_and_nothing_waits(store):
    path, opened, world = store
    world.wall = START_NS + 2 * HOUR_NS + SETTLED_NS
    assert tend(path, world).merged == 2 * 2
    assert len(opened.scan("trace_spans", trace_id=GONE)) == 3
    assert len(opened.scan("trace_sightings", trace_id=GONE)) == 3


def test_no_request_at_all_and_a_share_of_none(tmp_path):
    world = SetWorld()
    with DuckStore(tmp_path, world=world) as opened:
        for trace in (GONE, ANYWAY, NONE):
            opened.append("spans", row("spans", trace_id=trace))
            opened.flush()
        world.wall += 3 * HOUR_NS
        assert tend(tmp_path, world, share=0.0) == (3, 0, [])
        assert [len(opened.scan("trace_spans", trace_id=one)) for one in (GONE, ANYWAY, NONE)] == [0, 0, 1]


@pytest.mark.parametrize("share", [1e-9, 0.1, 1 - 1e-9], ids=str)
def test_the_last_span_that_stays_is_of_the_last_request_that_would(tmp_path, share):
    start = threshold(share)
    traces = [f"{random:032x}" for random in (start - 1, start, WHOLE - 1)]
    world = SetWorld()
    with DuckStore(tmp_path, world=world) as opened:
        for trace in traces:
            opened.append("spans", row("spans", trace_id=trace))
            opened.flush()
        world.wall += 3 * HOUR_NS
        assert tend(tmp_path, world, share=share).troubles == []
        assert [len(opened.scan("trace_spans", trace_id=one)) for one in traces] == [0, 1, 1]
    assert (randomness(traces) >= start).tolist() == [False, True, True]


def _dicts(answer):
    names = [column[0] for column in answer.description]
    return [zip(names, values, strict=True) for values in answer.fetchall()]
