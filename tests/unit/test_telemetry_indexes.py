"""Indexes: what they answer is what the rows answer, whatever window is asked, and without them the answer is the same."""

import math
import shutil

import numpy as np
import pytest

from sits.core.breakpoints import NAMES, POINT_COUNT
from sits.telemetry import indexed, unindexed
from sits.telemetry.indexed import QUICK, Indexes, window
from sits.telemetry.indexes import Index, index_of
from sits.telemetry.parts import HOUR_NS, current, parts_in
from sits.telemetry.store import DuckStore
from sits.telemetry.tables import REQUESTS, columns_of
from sits.telemetry.tail import Tail
from sits.telemetry.tending import tend
from sits.world import RealWorld

START_NS = 500_000 * HOUR_NS
A_BATCH = 700
A_SLICE = 350


class MovableWorld:
    """A wall clock that is set."""

    def __init__(self):
        self.wall = START_NS

    def now_ns(self):
        return 0

    def wall_ns(self):
        return self.wall

    def rng(self, stream):
        raise AssertionError


def batch(dice, number, slow, weights=(1.0,)):
    rows = []
    for i in range(A_BATCH):
        steps = dice.lognormal(12, 1.5, POINT_COUNT).astype(np.int64) * (slow if dice.random() < 0.2 else 1)
        at = 10**12 + np.cumsum(steps)
        how = (
            dice.choice([0, 1, 2, 3, 3, 3, 3, 3], POINT_COUNT)
            if i % 2
            else np.array([3] * 9 + [0] * 2 + [3] * 9)
        )
        if i % 50 == 0:
            at[5] = 10**12 - 7  # disordered
        row = {name: "" if kind == "VARCHAR" else 1 for name, kind in REQUESTS.items()}
        row |= dict(zip(NAMES, np.where(how > 0, at, 0).tolist(), strict=True))
        row |= {
            "run_id": f"r{number % 2}",
            "id": f"id-{number}-{i}",
            "trace_id": "" if i % 3 else f"trace-{number}-{i // 2}",
            "model": "ml"[int(dice.integers(2))],
            "engine": f"e{dice.integers(3)}",
            "outcome": "completed" if dice.random() < 0.9 else "failed",
            "exactness": "".join(map(str, how)),
            # a request that took long is written beside others that came later
            "wall_ns": START_NS + number * HOUR_NS // 4 + i * 10**9 - (i % 37 == 0) * 400 * 10**9,
            "weight": weights[int(dice.integers(len(weights)))],
        }
        rows.append([row[name] for name in REQUESTS])
    return columns_of(REQUESTS, rows)


THINNED = (1.0, 10.0, 10 / 3, 0.0)


@pytest.fixture(scope="module", params=[(1.0,), THINNED], ids=["all", "thinned"])
def stores(request, tmp_path_factory):
    """Two stores of the same rows, four quarters of an hour in three hours: one tended, one not."""
    plain, tended = tmp_path_factory.mktemp("plain"), tmp_path_factory.mktemp("both") / "store"
    dice, world = RealWorld(3).rng("rows"), MovableWorld()
    with DuckStore(plain, world=world) as store:
        for number in range(12):
            world.wall = START_NS + number * HOUR_NS // 4 + 10**9
            store.append("requests", batch(dice, number, 3, request.param))
            store.flush()
    shutil.copytree(plain, tended)
    world.wall = START_NS + 2 * HOUR_NS + HOUR_NS // 2  # the last hour is not over
    told = tend(tended, world, worth=1, grace_ns=-(10**18), slice_rows=A_SLICE)
    assert told == (8, 2, [])
    assert [len(parts_in(hour)) for hour in sorted((tended / "requests").iterdir())] == [1, 1, 4]
    with DuckStore(plain) as one, DuckStore(tended) as other:
        yield one, other


def close(left, right):
    if isinstance(left, float):
        return math.isclose(left, right, rel_tol=1e-9, abs_tol=1e-12)
    return left == right and type(left) is type(right)


Q = HOUR_NS // 4
WINDOWS = [
    {},
    {"until_wall_ns": START_NS + 2 * HOUR_NS},
    {"since_wall_ns": START_NS + Q + 5 * 10**9, "until_wall_ns": START_NS + 9 * Q},
    {"since_wall_ns": START_NS + HOUR_NS},
    {"since_wall_ns": START_NS + 9 * HOUR_NS},
    {"since_wall_ns": START_NS + 2 * Q, "until_wall_ns": START_NS + 3 * Q},
    {"model": "m"},
    {"model": "m", "engine": "e1", "run_id": "r1"},
    {"engine": "nobody"},
    {"since_wall_ns": START_NS + 800 * 10**9 + 1, "until_wall_ns": START_NS + HOUR_NS + Q - 1},
    {"since_wall_ns": START_NS + HOUR_NS + 17, "until_wall_ns": START_NS + HOUR_NS + 3 * Q + 5, "model": "l"},
    {"since_wall_ns": START_NS + 3 * Q, "until_wall_ns": START_NS + HOUR_NS + 10, "engine": "e2"},
]


@pytest.mark.parametrize("few", [unindexed.FEW, 10**6])
@pytest.mark.parametrize("given", WINDOWS)
@pytest.mark.parametrize("query", QUICK)
def test_what_indexes_answer_is_what_rows_answer(stores, query, given, few, monkeypatch):
    monkeypatch.setattr(unindexed, "FEW", few)
    alike(*stores, query, given)


@pytest.mark.parametrize("query", QUICK)
@pytest.mark.parametrize("late_ns", [-1, 0, 1])
def test_a_window_may_begin_and_end_at_any_row_of_a_slice(stores, query, late_ns):
    """At the first and the last time of a slice, and a nanosecond beside them."""
    (sliced, *_) = sorted(stores[1].path.glob("requests/*/slices-*"))
    first, last = Index(sliced).head.slices[1:3]
    bounds = {
        "since_wall_ns": first.first_wall_ns + late_ns,
        "until_wall_ns": last.last_wall_ns + HOUR_NS // 2 + late_ns,
    }
    alike(*stores, query, bounds)
    alike(*stores, query, bounds | {"until_wall_ns": last.last_wall_ns + late_ns, "model": "m"})


def test_of_a_cut_hour_only_the_cut_slices_are_read(stores):
    """The late rows reach into the slice before; what lies wholly inside is answered by its index."""
    parts = [
        part.path
        for hour in sorted((stores[1].path / "requests").iterdir())
        for part in current(parts_in(hour))
    ]
    asked = window(
        parts, Indexes(), {"since_wall_ns": START_NS + 2 * Q, "until_wall_ns": START_NS + HOUR_NS}, ask=None
    )
    assert asked.read.whole == parts[2:]  # of the hour that is not over
    assert [piece.part for piece in asked.read.pieces] == parts[:2]
    read = sum(piece.end_row - piece.first_row for piece in asked.read.pieces)
    answered = sum(source.rows[1] - source.rows[0] for source in asked.indexed)
    assert answered >= 2 * A_SLICE
    assert read <= 4 * A_SLICE
    # a piece and a slice of a file never share a row
    for piece in asked.read.pieces:
        rows = [source.rows for source in asked.indexed if source.part == piece.part]
        assert all(end <= piece.first_row or piece.end_row <= first for first, end in rows)


def alike(plain, tended, query, given):
    left, right = plain.scan(query, **given), tended.scan(query, **given)
    assert [row.keys() for row in left] == [row.keys() for row in right]
    wrong = [
        (key, one[key], other[key])
        for one, other in zip(left, right, strict=True)
        for key in one
        if not close(float(one[key]) if "share" in key or "ms" in key else one[key], other[key])
    ]
    assert not wrong


@pytest.mark.parametrize("query", ["ttft_quantiles", "latency_by_minute", "stage_quantiles"])
def test_a_row_counts_for_as_many_as_it_stands_for(tmp_path, query):
    """Weights of whole numbers give what so many equal rows give, but for the step between neighbours."""
    dice = RealWorld(8).rng("rows")
    columns = batch(dice, 0, 1, (1.0, 4.0))
    many = {name: np.repeat(values, columns["weight"].astype(int)) for name, values in columns.items()}
    many["weight"] = np.ones(len(many["id"]))
    with DuckStore() as thinned, DuckStore() as whole:
        thinned.append("requests", columns)
        whole.append("requests", many)
        assert [row["n"] for row in thinned.scan(query)] == [row["n"] for row in whole.scan(query)]
        if query == "ttft_quantiles":
            mine = many["model"] == "m"
            mine &= (many["engine"] == "e1") & (many["outcome"] == "completed")
            mine &= np.array(
                [how[0] != "0" and how[NAMES.index("first_token")] != "0" for how in many["exactness"]]
            )
            took = np.sort(many["first_token"][mine] - many["api_recv"][mine])
            (row,) = thinned.scan(query, model="m", engine="e1")
            wanted = [took[math.ceil(len(took) * level) - 1] / 1e6 for level in (0.5, 0.95, 0.99)]
            assert [row["p50_ms"], row["p95_ms"], row["p99_ms"]] == pytest.approx(wanted)
            assert (row["n"], row["mean_ms"]) == (len(took), pytest.approx(took.mean() / 1e6))


def test_every_request_and_trace_is_found_in_hours_with_and_without_an_index(stores):
    plain, tended = stores
    for number in (0, 3, 7, 11):
        for i in (0, 1, A_BATCH - 1):
            for query, given in (
                ("request", {"id": f"id-{number}-{i}"}),
                ("trace", {"trace_id": f"trace-{number}-{i // 2}"}),
                ("trace", {"trace_id": f"id-{number}-{i}"}),
            ):
                assert tended.scan(query, **given) == plain.scan(query, **given)
    assert len(tended.scan("request", id="id-0-1")) == 1
    assert tended.scan("trace", trace_id="nobody's") == []
    assert tended.scan("trace") == plain.scan("trace") == []


def test_an_hour_much_slower_than_the_others_is_told_from_its_rows(tmp_path):
    """More than 3 % of its rows are among the slowest 1 % of all, so its index does not hold them all."""
    dice, world = RealWorld(4).rng("rows"), MovableWorld()
    with DuckStore(tmp_path / "plain", world=world) as store:
        for number in range(8):
            world.wall = START_NS + number * HOUR_NS + 10**9
            store.append("requests", batch(dice, number * 4, slow=500 if number == 2 else 1))
            store.flush()
        shutil.copytree(tmp_path / "plain", tmp_path / "tended")
        assert tend(tmp_path / "tended", world, worth=1).indexed == 6
        with DuckStore(tmp_path / "tended") as other:
            left, right = store.scan("slow_ttft_stages"), other.scan("slow_ttft_stages")
    assert [row["slow_n"] for row in left] == [row["slow_n"] for row in right]
    assert all(math.isclose(a["slow_mean_ms"], b["slow_mean_ms"]) for a, b in zip(left, right, strict=True))


def test_of_an_hour_with_some_slow_minutes_those_are_read(tmp_path, monkeypatch):
    """A slice of which more is slow than it holds is read, and nothing else."""
    dice, world = RealWorld(4).rng("rows"), MovableWorld()
    with DuckStore(tmp_path / "plain", world=world) as store:
        for number in range(4):
            store.append("requests", batch(dice, number, slow=500 if number == 2 else 1))
            store.flush()
        world.wall += 2 * HOUR_NS
        shutil.copytree(tmp_path / "plain", tmp_path / "tended")
        assert tend(tmp_path / "tended", world, worth=1, slice_rows=A_BATCH).troubles == []
        asked = []

        def noted(ask, parts, given):
            asked.append(parts)
            return unindexed.read(ask, parts, given)

        monkeypatch.setattr(indexed, "read", noted)
        with DuckStore(tmp_path / "tended") as other:
            alike(store, other, "slow_ttft_stages", {"since_wall_ns": START_NS + 10**10})
    pieces = [[(piece.first_row, piece.end_row) for piece in parts.pieces] for parts in asked]
    whole = [len(parts.whole) for parts in asked if parts.pieces]
    assert pieces[-2:] == [[(0, A_BATCH)], [(0, A_BATCH), (2 * A_BATCH, 3 * A_BATCH)]]
    assert not any(whole)


def test_a_broken_index_is_as_none_and_retention_takes_indexes_along(tmp_path):
    dice, world = RealWorld(5).rng("rows"), MovableWorld()
    with DuckStore(tmp_path, world=world) as store:
        store.append("requests", batch(dice, 0, slow=1))
        store.flush()
        world.wall += 2 * HOUR_NS
        wanted = store.scan("stage_quantiles")
        assert tend(tmp_path, world, worth=1).indexed == 1
        assert tend(tmp_path, world, worth=1) == (0, 0, [])
        (part,) = current(parts_in(next((tmp_path / "requests").iterdir())))
        index_of(part.path).write_bytes(b"something else")
        with DuckStore(tmp_path) as reader:
            assert reader.scan("stage_quantiles") == wanted
        store.retain(0)
        assert not any((tmp_path / "requests").iterdir())


def test_an_index_of_an_older_form_is_made_anew(tmp_path):
    world, dice = MovableWorld(), RealWorld(5).rng("rows")
    with DuckStore(tmp_path, world=world) as store:
        store.append("requests", batch(dice, 0, 1))
    world.wall = START_NS + 3 * HOUR_NS
    assert tend(tmp_path, world, worth=1).indexed == 1
    (part,) = tmp_path.glob("requests/*/part-*")
    index = index_of(part)
    whole = index.read_bytes()
    index.write_bytes(b"SITSIDX1" + whole[8:])
    assert tend(tmp_path, world, worth=1).indexed == 1
    assert index.read_bytes() == whole
    assert tend(tmp_path, world, worth=1).indexed == 0


def test_who_follows_a_store_goes_on_in_a_tended_hour_where_it_was(tmp_path):
    dice, world = RealWorld(6).rng("rows"), MovableWorld()
    with DuckStore(tmp_path, world=world) as store:
        tail = Tail(tmp_path, "requests", world=world, beginning=True)
        seen = []
        for number in range(5):
            store.append("requests", batch(dice, number, slow=1))
            store.flush()
            if number == 2:
                seen += tail.look()["id"].tolist()
        world.wall += 2 * HOUR_NS
        assert tend(tmp_path, world, grace_ns=-(10**18)).merged == 5
        seen += tail.look()["id"].tolist()
    assert len(seen) == len(set(seen)) == 5 * A_BATCH
