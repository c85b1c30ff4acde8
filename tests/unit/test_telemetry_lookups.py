"""Lookups: who looks for a trace, a request, or their first digits is told the same with them and without, and few rows are read."""

import shutil

import duckdb
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sits.core.breakpoints import NAMES
from sits.telemetry import narrowing
from sits.telemetry.lookups import BLOCK, KEYS, Lookup, key_of, keys_like, lookup_of
from sits.telemetry.parts import HOUR_NS, current, parts_in
from sits.telemetry.store import DuckStore
from sits.telemetry.tables import TABLES, columns_of
from sits.telemetry.tending import tend
from sits.world import RealWorld

START_NS = 500_000 * HOUR_NS
MANY = 3 * BLOCK + 7
SHOUTED = "ABCDEF" + "0" * 26


class MovableWorld:
    def __init__(self):
        self.wall = START_NS

    def now_ns(self):
        return 0

    def wall_ns(self):
        return self.wall

    def rng(self, stream):
        raise AssertionError


def ids(hour):
    """All kinds: random hex, others' with a common beginning, of few digits, of none, in capitals, empty."""
    dice = RealWorld(hour).rng("ids")
    made = [dice.bytes(16).hex() for _ in range(MANY)]
    made[:600] = [f"abcdef0123456789{i:016x}" for i in range(600)]
    made[600:605] = ["abcdef", "abcdef-and-more", f"id-{hour}", SHOUTED, ""]
    return made


def batch(table, hour):
    """Rows of which each has another text in every column that is looked up, and shares its trace with one more."""
    told, rows = ids(hour), []
    for i in range(MANY):
        row = {name: {"VARCHAR": "", "BLOB": b"x"}.get(kind, 1) for name, kind in TABLES[table].items()}
        row |= {
            "id": told[i],
            "trace_id": told[i - i % 2],
            "span_id": told[i][:16],
            "request_id": told[i - 1],
        }
        row |= {"version": hour * MANY + i - 5, "wall_ns": START_NS + hour * HOUR_NS + i, "line": f"{i}"}
        row |= {"exactness": "3" * len(NAMES), "t_ns": i, "source": f"s{i}"}
        if table == "requests" and i % 3 == 0:
            row["trace_id"] = ""
        rows.append([row[name] for name in TABLES[table]])
    return columns_of(TABLES[table], rows)


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    """Two stores of the same rows in three hours, of which one has lookups of two."""
    plain, tended = tmp_path_factory.mktemp("plain"), tmp_path_factory.mktemp("both") / "store"
    world = MovableWorld()
    with DuckStore(plain, world=world) as store:
        for hour in range(3):
            world.wall = START_NS + hour * HOUR_NS + 10**9
            for table in KEYS:
                store.append(table, batch(table, hour))
                store.flush()
    shutil.copytree(plain, tended)
    world.wall = START_NS + 2 * HOUR_NS + HOUR_NS // 2
    assert tend(tended, world) == (0, 2 * len(KEYS), [])
    return plain, tended


QUERIES = [(query, key) for query, by in narrowing.NARROWED.items() for key in next(iter(by.values()))]


@pytest.mark.parametrize("few", [1, narrowing.ROWS_MAX])
@pytest.mark.parametrize(
    ("query", "parameter", "like"), sorted({(query, key.parameter, key.like) for query, key in QUERIES})
)
def test_what_is_found_is_the_same_with_and_without_lookups(paths, query, parameter, like, few, monkeypatch):
    monkeypatch.setattr(narrowing, "ROWS_MAX", few)
    every = [told for hour in range(3) for told in ids(hour)]
    asked = [
        every[0],
        *every[598:606],
        *every[-3:],
        every[MANY + 900],
        every[2 * MANY + 601],
        "nobody",
        "0" * 32,
    ]
    if like:
        asked = [told[:digits] for told, digits in zip(asked, [6, 20, 13, 16] * 4, strict=True)]
    if parameter == "version":
        asked = [-5, 0, 7, MANY + 600, 3 * MANY - 6, 3 * MANY]
    with DuckStore(paths[0]) as one, DuckStore(paths[1]) as other:
        found = 0
        for told in asked:
            left, right = (store.scan(query, **{parameter: told}) for store in (one, other))
            assert sorted(map(repr, left)) == sorted(map(repr, right)), told
            found += len(left)
        assert found >= 5
        assert len(other.scan(query)) == len(one.scan(query))


def test_only_the_rows_that_may_be_meant_are_picked(paths):
    with DuckStore(paths[1]) as store:
        store.scan("trace", trace_id=ids(0)[1000])
        assert store._db.execute("SELECT count(*) FROM picked_requests").fetchone() == (2,)
        assert len(store.scan("trace_spans", trace_id=ids(1)[1000])) == 2
        assert store._db.execute("SELECT count(*) FROM picked_spans").fetchone() == (2,)


def test_what_was_picked_is_not_told_of_the_next(paths):
    with DuckStore(paths[1]) as store:
        for i in (1000, 1001, 1000, 1003):
            assert [row["id"] for row in store.scan("request", id=ids(1)[i])] == [ids(1)[i]]
        store.append("requests", batch("requests", 1))
        assert len(store.scan("request", id=ids(1)[1003])) == 2
        store._pending.write("requests", lambda select: None)


def test_a_lookup_that_is_broken_or_goes_is_as_none(paths, tmp_path):
    shutil.copytree(paths[1], tmp_path / "store")
    told = ids(0)[700]
    with DuckStore(tmp_path / "store") as store:
        wanted = store.scan("request", id=told)
        assert len(wanted) == 1
        for hour, harm in ((0, b"something else"), (1, b"SITSLKP1\xff")):
            (part,) = current(parts_in(sorted((tmp_path / "store" / "requests").iterdir())[hour]))
            lookup_of(part.path).write_bytes(harm)
            with DuckStore(tmp_path / "store") as reader:
                assert reader.scan("request", id=told) == wanted
            lookup_of(part.path).unlink()
            assert store.scan("request", id=told) == wanted


@pytest.mark.parametrize("kept", [0.0, 0.001, 0.01, 0.3, 0.6, 0.99])
def test_a_lookup_that_was_cut_off_is_as_none(paths, tmp_path, kept):
    shutil.copytree(paths[1], tmp_path / "store")
    for lookup in (tmp_path / "store").glob("*/*/lookup-*"):
        lookup.write_bytes(lookup.read_bytes()[: int(lookup.stat().st_size * kept)])
    with DuckStore(tmp_path / "store") as store, DuckStore(paths[0]) as plain:
        for told in ids(0)[::400]:
            assert store.scan("request", id=told) == plain.scan("request", id=told)


def test_a_lookup_of_what_is_no_more_is_swept_and_one_that_is_missing_is_made(paths, tmp_path):
    shutil.copytree(paths[1], tmp_path / "store")
    world = MovableWorld()
    world.wall += 10 * HOUR_NS
    hour = min((tmp_path / "store" / "spans").iterdir())
    (part,) = current(parts_in(hour))
    stale = hour / "lookup-nobody-00000001-00000001.bin"
    lookup_of(part.path).rename(stale)
    assert tend(tmp_path / "store", world, grace_ns=-(10**18)).indexed == len(KEYS) + 1
    assert (stale.exists(), lookup_of(part.path).exists()) == (False, True)


def test_requests_of_before_traces_are_found_by_their_own_id(tmp_path):
    told = [f"{i:032x}" for i in range(2000)]
    hour = tmp_path / "requests" / "2027011500"
    hour.mkdir(parents=True)
    duckdb.sql("SELECT unnest($ids) AS id, 'r' AS run_id, 1 AS wall_ns", params={"ids": told}).write_parquet(
        str(hour / "part-old-00000001-00000001.parquet")
    )
    world = MovableWorld()
    world.wall = 2 * 10**18
    assert tend(tmp_path, world).indexed == 1
    (part,) = current(parts_in(hour))
    assert Lookup(lookup_of(part.path)).rows("trace_id", [(key_of(told[7]),) * 2])[:1] == [0]
    with DuckStore(tmp_path) as store:
        assert [row["id"] for row in store.scan("trace", trace_id=told[7])] == [told[7]]


@given(st.text(alphabet="0123456789abcdefABg-", max_size=40), st.integers(0, 40))
def test_the_key_of_a_text_is_among_those_of_each_of_its_beginnings(text, digits):
    first, last = keys_like(text[:digits])
    assert first <= key_of(text) <= last < 2**64


def test_keys_made_in_the_database_are_those_made_here(paths):
    (part,) = current(parts_in(min((paths[1] / "requests").iterdir())))
    lookup = Lookup(lookup_of(part.path))
    rows = [lookup.rows("id", [(key_of(told),) * 2]) for told in ids(0) if told]
    assert all(rows)
    assert np.unique(np.concatenate([row for row in rows if len(row) == 1])).size >= MANY - 601
