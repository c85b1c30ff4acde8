"""The store: durable after flush, readable beside its writer, forgetting by the hour."""

import subprocess
import sys
import textwrap
from pathlib import Path

import duckdb
import numpy as np
import pytest

from sits.core.breakpoints import NAMES
from sits.core.errors import BugError
from sits.telemetry.durable import sync
from sits.telemetry.queries import QUERIES
from sits.telemetry.store import FANOUT, DuckStore, StoreError
from sits.telemetry.tables import MINUTES, REQUESTS, SIGNALS, STEPS, columns_of
from sits.telemetry.tail import Tail
from sits.telemetry.tending import tend
from sits.telemetry.writer import StoreWriter

HOUR_NS = 3600 * 10**9


class MovableWorld:
    """Clocks a test moves."""

    def __init__(self, wall_ns=1_700_000_000 * 10**9):
        self.wall = wall_ns

    def now_ns(self):
        return 0

    def wall_ns(self):
        return self.wall

    def rng(self, stream):
        raise AssertionError("a store draws nothing")


def requests(*ids, **more):
    n = len(ids)
    rows = {name: np.zeros(n, np.int64) for name in REQUESTS}
    for name, kind in REQUESTS.items():
        if kind == "VARCHAR":
            rows[name] = np.array([""] * n, dtype=object)
    rows["id"] = np.array(ids, dtype=object)
    rows["run_id"] = np.array(["r"] * n, dtype=object)
    rows["exactness"] = np.array(["3" * len(NAMES)] * n, dtype=object)
    rows["outcome"] = np.array(["completed"] * n, dtype=object)
    return rows | {name: np.asarray(values) for name, values in more.items()}


def signals(*values):
    n = len(values)
    return {
        "run_id": ["r"] * n,
        "t_ns": range(n),
        "source": ["e0"] * n,
        "name": ["kv_usage"] * n,
        "value": values,
    }


def ids(store, **parameters):
    return [row["id"] for row in store.scan("requests_window", **parameters)]


@pytest.mark.parametrize("on_disk", [False, True])
def test_what_is_appended_is_found(tmp_path, on_disk):
    with DuckStore(tmp_path / "s" if on_disk else None) as store:
        store.append("requests", requests("a", "b", wall_ns=[5, 3]))
        store.append("signals", signals(0.5))
        assert ids(store) == ["b", "a"]
        assert store.flush() == (3 if on_disk else 0)
        assert ids(store) == ["b", "a"]
        store.append("requests", requests("c", wall_ns=[4]))
        assert ids(store) == ["b", "c", "a"]
        assert store.scan("signals_window")[0]["value"] == 0.5
        assert store.scan("steps_window") == []


def test_columns_keep_their_types(tmp_path):
    with DuckStore(tmp_path) as store:
        store.append("requests", requests("ä'b", status=[200], api_recv=[2**62]))
        store.flush()
        got = store.columns("requests_window")
    assert list(got) == list(REQUESTS)
    assert got["id"].dtype == object
    assert got["id"].tolist() == ["ä'b"]
    assert got["api_recv"].dtype == np.int64
    assert got["api_recv"].tolist() == [2**62]
    assert got["status"].dtype == np.int32


def test_text_that_is_no_text_costs_no_row():
    with DuckStore() as store:
        store.append("requests", requests("good", "ba\ud800d", "n\x00l", wall_ns=[1, 2, 3]))
        assert ids(store) == ["good", "ba?d", "n\x00l"]


def test_windows_are_half_open_and_by_run(tmp_path):
    with DuckStore() as store:
        store.append("requests", requests("a", "b", "c", wall_ns=[1, 2, 3]))
        store.append("requests", requests("x", wall_ns=[2], run_id=np.array(["other"], dtype=object)))
        assert ids(store, since_wall_ns=2, until_wall_ns=3) == ["x", "b"]
        assert ids(store, run_id="r", since_wall_ns=2) == ["b", "c"]
        assert [run["run_id"] for run in store.scan("runs")] == ["r", "other"]


def test_quantiles_are_of_completed_requests_whose_points_were_seen():
    n = 101
    missing = "3" * 17 + "0" + "33"
    columns = requests(
        *map(str, range(n + 2)),
        api_recv=np.full(n + 2, 10**9),
        first_token=10**9 + np.arange(n + 2) * 10**6,
    )
    columns["exactness"][n] = missing
    columns["outcome"][n + 1] = "failed"
    with DuckStore() as store:
        store.append("requests", columns)
        (row,) = store.scan("ttft_quantiles")
        outcomes = {(r["outcome"], r["n"]) for r in store.scan("outcomes")}
    assert (row["n"], row["p50_ms"], row["p95_ms"], row["p99_ms"], row["max_ms"]) == (
        n,
        50.0,
        95.0,
        99.0,
        100.0,
    )
    assert outcomes == {("completed", n + 1), ("failed", 1)}


def test_every_named_query_answers_on_an_empty_store(tmp_path):
    with DuckStore(tmp_path / "nothing") as store:
        assert {name: list(store.scan(name)) for name in QUERIES} == {name: [] for name in QUERIES}
        assert list(store.columns("steps_window")) == list(STEPS)


def test_a_second_process_reads_while_the_first_writes(tmp_path):
    read = textwrap.dedent("""
        import sys
        from sits.telemetry.store import DuckStore
        print([row["id"] for row in DuckStore(sys.argv[1]).scan("requests_window")])
    """)
    with DuckStore(tmp_path) as store:
        store.append("requests", requests("flushed"))
        store.flush()
        store.append("requests", requests("pending"))
        out = subprocess.run(
            [sys.executable, "-c", read, str(tmp_path)], capture_output=True, text=True, check=True
        )
    assert out.stdout.strip() == "['flushed']"


def test_a_crash_loses_nothing_that_flush_acknowledged(tmp_path):
    die = textwrap.dedent("""
        import os, sys
        sys.path.insert(0, sys.argv[2])
        from test_telemetry_store import requests
        from sits.telemetry.store import DuckStore
        store = DuckStore(sys.argv[1])
        for i in range(20):
            store.append("requests", requests(f"r{i:02d}", wall_ns=[i]))
            store.flush()
        store.append("requests", requests("unacknowledged"))
        os.kill(os.getpid(), 9)
    """)
    gone = subprocess.run(
        [sys.executable, "-c", die, str(tmp_path), str(Path(__file__).parent)],
        capture_output=True,
        check=False,
    )
    assert gone.returncode == -9, gone.stderr.decode()
    with DuckStore(tmp_path) as store:
        assert ids(store) == [f"r{i:02d}" for i in range(20)]


def test_many_flushes_leave_few_files_and_every_row_once(tmp_path):
    flushes = FANOUT * FANOUT + 3
    with DuckStore(tmp_path, world=MovableWorld(), grace_ns=-(10**18)) as store:
        for i in range(flushes):
            store.append("signals", signals(float(i)))
            store.flush()
        values = sorted(row["value"] for row in store.scan("signals_window"))
    assert values == [float(i) for i in range(flushes)]
    assert len(list(tmp_path.rglob("*.parquet"))) == 1 + 3


def test_merged_files_stay_for_readers_until_the_grace_is_over(tmp_path):
    with DuckStore(tmp_path) as store:
        for i in range(FANOUT):
            store.append("signals", signals(float(i)))
            store.flush()
        assert len(list(tmp_path.rglob("*.parquet"))) == FANOUT + 1
        assert len(store.scan("signals_window")) == FANOUT


def test_two_writers_share_a_directory(tmp_path):
    with DuckStore(tmp_path) as one, DuckStore(tmp_path) as two:
        for i in range(FANOUT + 1):
            one.append("signals", signals(float(i)))
            two.append("signals", signals(100.0 + i))
            one.flush()
            two.flush()
        for store in (one, two):
            got = sorted(row["value"] for row in store.scan("signals_window"))
            assert got == [*map(float, range(FANOUT + 1)), *(100.0 + i for i in range(FANOUT + 1))]


def test_retention_deletes_whole_hours_that_ended_long_enough_ago(tmp_path):
    world = MovableWorld(10 * HOUR_NS)
    with DuckStore(tmp_path, world=world) as store:
        for hour in (10, 11, 12):
            world.wall = hour * HOUR_NS + 5
            store.append("requests", requests(f"h{hour}", wall_ns=[world.wall]))
            store.flush()
        world.wall = 13 * HOUR_NS
        assert store.retain(HOUR_NS) == 1  # hour 10 ended 2 h ago, hour 11 exactly 1 h ago
        assert ids(store) == ["h11", "h12"]
        assert store.retain(0) == 1
        assert ids(store) == ["h12"]


def test_figures_of_minutes_are_kept_for_a_time_of_their_own(tmp_path):
    world = MovableWorld(10 * HOUR_NS)
    with DuckStore(tmp_path, world=world) as store:
        store.append("requests", requests("old", wall_ns=[world.wall]))
        store.append("minutes", columns_of(MINUTES, [(world.wall, "m", "e", "", "ttft", 1, 5.0, b"")]))
        store.flush()
        world.wall = 13 * HOUR_NS
        assert store.retain(HOUR_NS, 5 * HOUR_NS) == 1
        assert ids(store) == []
        assert len(store.scan("minutes_window")) == 1
        assert store.retain(HOUR_NS, HOUR_NS) == 1
        assert len(store.scan("minutes_window")) == 0


def test_a_store_written_before_a_column_existed_stays_readable(tmp_path):
    import duckdb

    hour = tmp_path / "signals" / "2026113013"
    hour.mkdir(parents=True)
    old = ", ".join(f"'x' AS {name}" for name in ("run_id", "source", "name"))
    duckdb.sql(f"COPY (SELECT {old}, 7 AS t_ns) TO '{hour}/part-old-00000001-00000001.parquet'")
    with DuckStore(tmp_path) as store:
        (row,) = store.scan("signals_window")
        assert (row["t_ns"], row["value"]) == (7, None)
        assert store.columns("signals_window")["value"].tolist() == [0.0]
    assert set(SIGNALS) >= {"value"}


def test_a_broken_file_is_named_with_a_way_out(tmp_path):
    with DuckStore(tmp_path) as store:
        store.append("signals", signals(1.0))
        store.flush()
        (part,) = tmp_path.rglob("*.parquet")
        part.write_bytes(b"PAR1 torn")
        with pytest.raises(StoreError, match=part.name) as caught:
            store.scan("signals_window")
        assert "moved out" in str(caught.value)


@pytest.mark.parametrize(
    ("act", "says"),
    [
        (lambda s: s.append("request", {}), "no table 'request'.*one of requests, steps, signals"),
        (lambda s: s.append("signals", {"t_ns": []}), "lacks name, run_id, source, value"),
        (lambda s: s.append("signals", signals(1.0) | {"oops": [1]}), "unknown oops"),
        (lambda s: s.append("signals", signals(1.0) | {"t_ns": [1, 2]}), "differ in length"),
        (lambda s: s.scan("drop_all"), "no query named 'drop_all'"),
        (lambda s: s.scan("runs", run="x"), "query runs has no parameter run"),
    ],
)
def test_misuse_is_a_clear_bug_error(act, says):
    with DuckStore() as store, pytest.raises(BugError, match=says):
        act(store)


def test_a_path_that_is_a_file_is_refused(tmp_path):
    path = tmp_path / "file"
    path.write_text("")
    with pytest.raises(StoreError, match="is a file"):
        DuckStore(path)


class Drained:
    """A source with batches to give."""

    def __init__(self, *batches):
        self.batches = list(batches)

    def drain(self):
        return self.batches.pop(0) if self.batches else signals()


def test_the_writer_thread_writes_and_stop_writes_the_rest(tmp_path):
    store = DuckStore(tmp_path)
    writer = StoreWriter(store, {"signals": Drained(signals(1.0), signals(2.0))}, period_s=3600)
    writer.start()
    writer.write()
    writer.stop()
    assert (writer.written, writer.failures, writer.last_error) == (2, 0, "")
    assert len(list(tmp_path.rglob("*.parquet"))) == 2


def test_a_store_that_cannot_write_keeps_rows_up_to_a_bound_and_recovers(tmp_path):
    path = tmp_path / "s"
    store = DuckStore(path)
    path.write_text("in the way")
    source = Drained(signals(1.0, 2.0), signals(3.0))
    writer = StoreWriter(store, {"signals": source}, max_pending=2)
    writer.write()
    writer.write()
    assert (writer.written, writer.failures, store.pending_rows, len(source.batches)) == (0, 2, 2, 1)
    assert "cannot write" in writer.last_error
    path.unlink()
    writer.write()
    writer.write()
    assert (writer.written, store.pending_rows) == (3, 0)


def test_a_clock_set_back_over_the_end_of_an_hour_hides_and_loses_no_row(tmp_path):
    world = MovableWorld()
    store, tail = (
        DuckStore(tmp_path, world=world, grace_ns=-(10**18)),
        Tail(tmp_path, "requests", world=world),
    )
    numbers = iter(range(1000))
    wanted, seen = [], []

    def flush(times, look=True):
        for _ in range(times):
            wanted.append(f"{next(numbers):04d}")
            store.append("requests", requests(wanted[-1]))
            store.flush()
            if look:
                seen.extend(tail.look()["id"].tolist())

    flush(5)
    world.wall += HOUR_NS
    flush(9)
    world.wall -= HOUR_NS
    flush(FANOUT + 2, look=False)
    world.wall += HOUR_NS
    flush(FANOUT)
    world.wall += 9 * HOUR_NS
    assert not tend(tmp_path, world, grace_ns=-(10**18)).troubles
    with DuckStore(tmp_path, world=world) as reader:
        assert sorted(ids(reader)) == wanted
    assert sorted(seen) == wanted
    late = Tail(tmp_path, "requests", world=world, beginning=True)
    assert sorted(late.look()["id"].tolist()) == wanted


def test_a_name_that_is_not_known_to_be_on_the_disk_is_not_told_and_no_tail_misses_a_row(
    tmp_path, monkeypatch
):
    tail, broken = Tail(tmp_path, "requests"), [True]

    def sync_of(path):
        if path.is_dir() and broken[0]:
            raise OSError(5, "Input/output error")
        sync(path)

    monkeypatch.setattr("sits.telemetry.store.sync", sync_of)
    with DuckStore(tmp_path) as store:
        store.append("requests", requests("a", "b"))
        with pytest.raises(StoreError, match="power cut"):
            store.flush()
        seen = tail.look()["id"].tolist()
        store.append("requests", requests("c"))
        with pytest.raises(StoreError, match="power cut"):
            store.flush()
        broken[0] = False
        assert (store.flush(), store.pending_rows) == (3, 0)
        assert sorted(ids(store)) == seen + tail.look()["id"].tolist() == ["a", "b", "c"]


def test_what_is_not_the_stores_stops_neither_readers_nor_retention(tmp_path):
    world = MovableWorld()
    with DuckStore(tmp_path, world=world) as store:
        store.append("requests", requests("a"))
        store.append("signals", signals(0.5))
        store.flush()
        hour = next((tmp_path / "requests").iterdir())
        (hour / "somebody's").mkdir()
        (hour / "part-x.parquet").write_bytes(b"no")
        for odd in ("lost+found", "2026139999", "20261201", "٢٠٢٦١٢٠١٠١"):
            (tmp_path / "requests" / odd).mkdir()
        (tmp_path / "requests" / "2023111400").write_bytes(b"a file that is named as an hour")
        (tmp_path / "notes.txt").write_bytes(b"")
        assert ids(store) == ["a"]
        world.wall += 100 * HOUR_NS
        with pytest.raises(StoreError, match="cannot be deleted"):
            store.retain(HOUR_NS)
        assert store.scan("signals_window") == [], "the others are"


def test_files_of_a_later_version_are_read_for_what_is_known(tmp_path):
    with DuckStore(tmp_path) as store:
        store.append("requests", requests("a"))
        store.flush()
        (file,) = (tmp_path / "requests").glob("*/*.parquet")
        wider = file.with_name(file.name.replace("part-", "part-f"))
        sql = f"COPY (SELECT *, 7 AS colour, [1] AS shape FROM '{file}') TO '{wider}' (FORMAT parquet)"
        duckdb.sql(sql)
        assert ids(store) == ["a", "a"]
        assert list(store.columns("requests_window")) == list(REQUESTS)
        assert len(Tail(tmp_path, "requests", beginning=True).look()["id"]) == 2


def test_a_full_disk_keeps_rows_pending_and_leaves_nothing_half(tmp_path, monkeypatch):
    store = DuckStore(tmp_path)
    store.append("requests", requests("a"))

    def full(path):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("sits.telemetry.store.sync", full)
        with pytest.raises(StoreError, match="No space left"):
            store.flush()
    assert store.pending_rows == 1
    assert not list((tmp_path / "requests").glob("*/*"))
    assert (store.flush(), ids(store)) == (1, ["a"])
