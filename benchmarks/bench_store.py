"""What the store does on two cores: rows taken in, and questions about millions of requests, beside plain DuckDB and ClickHouse (chDB).

`python benchmarks/bench_store.py [--requests 5000000] [--json]`: makes hours of requests on disk as the store lays them out (half a minute a million
requests with its index; `--dir` keeps them for another run), then measures.  Bars: >= 300,000 rows/s taken in; the 99.9 % point of the
recorder's append <= 20 us while another process writes and merges; exact P50/P95/P99 of all stages <= 0.5 s, the slowest 1 % <= 0.5 s, one
trace by id <= 50 ms.

Cold: the files' pages are dropped (`posix_fadvise`) and the store is opened anew; warm: best of three (of one without indexes, and of one of a peer's longer questions), a trace
being another each time.  A cut question is of a window that begins and ends 37 minutes into an hour, in the middle of a
slice.  A whole process: `sitsctl trace ID`, from its start to its end.  The peers hold the same rows in
tables of their own files, on two threads too, in the same run, and are asked the same query.
"""

import argparse
import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import numpy as np

from sits.core.breakpoints import NAMES, POINT_COUNT
from sits.core.timeline import Timeline
from sits.telemetry.dialects import ClickDialect
from sits.telemetry.duck import WRITTEN
from sits.telemetry.parts import HOUR_NS, hour_of, part_name
from sits.telemetry.queries import QUERIES, fleet_queries, parameters_of
from sits.telemetry.recorder import LABELS, NUMBERS, Recorder, row_of
from sits.telemetry.store import DuckStore
from sits.telemetry.tables import REQUESTS
from sits.telemetry.tending import tend
from sits.world import RealWorld

THREADS, HOURS = 2, 5
FIRST_NS = 1_796_000_400_000_000_000 // HOUR_NS * HOUR_NS
MEDIANS_NS = (
    2e4,
    6e4,
    1.5e4,
    5e3,
    3e5,
    3e6,
    4e4,
    2.5e4,
    8e3,
    9e4,
    1.2e4,
    6e3,
    2e5,
    3e3,
    9e3,
    3e4,
    5e4,
    6e7,
    2e9,
    1e5,
)
GATEWAY_ONLY = {0, 1, 2, 3, 4, 17, 18, 19}
QUESTIONS = ("stage_quantiles", "slow_ttft_stages", "slow_e2e_stages", "trace")


def say(text: str) -> None:
    """Progress."""
    print(text, file=sys.stderr, flush=True)


def make_hour(db: Any, path: Path, hour: int, rows: int) -> None:
    """One file of requests: four fifths with all 20 points, the others with the gateway's eight."""
    steps = ", ".join(
        f"({median} * exp((random() + random() + random() + random() - 2) * 1.0))::BIGINT AS d{i}"
        for i, median in enumerate(MEDIANS_NS)
    )
    wall = FIRST_NS + hour * HOUR_NS
    point = "wall_ns - 1700000000000000000"
    points = []
    for i, name in enumerate(NAMES):
        point += f" + d{i}"
        points.append(f"CASE WHEN u < 0.2 AND {i not in GATEWAY_ONLY} THEN 0 ELSE {point} END AS {name}")
    digits = "".join("3" if i in GATEWAY_ONLY else "0" for i in range(POINT_COUNT))
    columns = {
        "run_id": "'run-1'",
        "id": "md5(g::VARCHAR)",
        "tenant": "'tenant-' || g % 40",
        "model": "'model-' || g % 3",
        "engine": "'engine-' || g % 8",
        "outcome": "CASE WHEN g % 200 = 0 THEN 'failed' ELSE 'completed' END",
        "status": "200",
        "prompt_tokens": "hash(g) % 4000",
        "output_tokens": "hash(g + 1) % 900",
        "exactness": f"CASE WHEN u < 0.2 THEN '{digits}' ELSE repeat('3', {POINT_COUNT}) END",
        "wall_ns": "wall_ns",
        "prompt_hash": "md5((g // 3)::VARCHAR)[:16]",
        "trace_id": "md5('t' || g)",
    }
    told = [
        points[NAMES.index(name)]
        if name in NAMES
        else f"({columns.get(name, repr('') if kind == 'VARCHAR' else '1')})::{kind} AS {name}"
        for name, kind in REQUESTS.items()
    ]
    directory = path / "requests" / hour_of(wall)
    directory.mkdir(parents=True)
    file = directory / part_name("bench", hour + 1, hour + 1)
    db.execute(f"""COPY (
        SELECT {", ".join(told)} FROM (
            SELECT {hour * rows} + i AS g, {wall} + (i * {HOUR_NS / rows})::BIGINT AS wall_ns, random() AS u, {steps} FROM range({rows}) t(i)
        )) TO '{file}' ({WRITTEN})""")


def best(times: int, ask: Callable[[], Any]) -> float:
    """Seconds of the fastest of so many."""
    took = []
    for _ in range(times):
        started = time.perf_counter()
        ask()
        took.append(time.perf_counter() - started)
    return min(took)


def dropped(path: Path) -> None:
    """Let the system forget what it has of the files in memory."""
    os.sync()
    for file in path.rglob("*"):
        if file.is_file():
            descriptor = os.open(file, os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


INTO_NS = 37 * 60 * 10**9
CUT = {
    "since_wall_ns": FIRST_NS + INTO_NS,
    "until_wall_ns": FIRST_NS + (HOURS - 1) * HOUR_NS + INTO_NS,
}


def trace_of(number: int) -> str:
    """The trace of a request."""
    return str(duckdb.execute(f"SELECT md5('t' || {number})").fetchone()[0])


def parameters(query: str, requests: int) -> dict[str, Any]:
    """Of a question: a trace in the middle, everything else."""
    return {"trace_id": trace_of(requests // 2)} if query == "trace" else {}


def whole_process(path: Path, requests: int) -> dict[str, float]:
    """Seconds of `sitsctl trace`, cold and the best of five others."""
    command = [str(Path(sys.executable).with_name("sitsctl")), "trace", "--store", str(path)]

    def ask(number: int) -> None:
        subprocess.run([*command, trace_of(number)], check=True, capture_output=True)

    dropped(path)
    cold = best(1, partial(ask, requests // 3))
    return {
        "cold_s": cold,
        "warm_s": min(best(1, partial(ask, requests // 3 + i * 1000)) for i in range(1, 6)),
    }


def ours(path: Path, requests: int, times: int) -> dict[str, dict[str, float]]:
    """Seconds of each question, cold and warm."""
    found = {}
    asked = [(query, query, parameters(query, requests)) for query in QUESTIONS]
    asked += [(f"{query}_cut", query, CUT) for query in QUESTIONS[:3]]
    for name, query, given in asked:
        dropped(path)
        with DuckStore(path, threads=THREADS) as store:
            cold = best(1, partial(store.scan, query, **given))
            others = [
                given | ({"trace_id": trace_of(requests // 2 - 9999 * (i + 1))} if query == "trace" else {})
                for i in range(times)
            ]
            warm = min(best(1, partial(store.scan, query, **other)) for other in others)
        # its maps of index files would keep their pages in memory when the next question drops them
        del store
        found[name] = {"cold_s": cold, "warm_s": warm}
        say(f"  {name}: {found[name]}")
    return found


def rows_of(db: Any, sql: str, given: dict[str, Any]) -> list[Any]:
    """All rows of an answer."""
    return db.execute(sql, given).fetchall()


def in_duckdb(path: Path, work: Path, requests: int) -> dict[str, float]:
    """The same of a DuckDB database file with one table."""
    db = duckdb.connect(str(work / "peer.duckdb"), config={"threads": THREADS})
    db.execute(f"CREATE TABLE requests AS SELECT * FROM read_parquet('{path}/requests/*/part-*.parquet')")
    found = {}
    for query in QUESTIONS:
        given = {name: parameters(query, requests).get(name) for name in parameters_of(query)}
        found[query] = best(3 if query == "trace" else 1, partial(rows_of, db, QUERIES[query], given))
        say(f"  {query}: {found[query]:.3f} s")
    db.close()
    return found


def in_clickhouse(path: Path, work: Path, requests: int) -> dict[str, float]:
    """The same of a ClickHouse table, in time order; nothing when chDB is not installed."""
    try:
        from chdb.session import Session  # noqa: PLC0415 - a dependency of development alone
    except ImportError:
        return {}
    session = Session(str(work / "peer.chdb"))
    session.query(
        f"CREATE TABLE requests ENGINE = MergeTree ORDER BY wall_ns AS SELECT * FROM file('{path}/requests/*/part-*.parquet', Parquet)"
        " SETTINGS schema_inference_make_columns_nullable = 0"
    )
    say_it = ClickDialect("nothing AS (SELECT 1)")
    found = {}
    for query in QUESTIONS:
        sql = say_it.finished(fleet_queries(say_it)[query]) + f" SETTINGS max_threads = {THREADS}"
        given = {name: parameters(query, requests).get(name, "\\N") for name in parameters_of(query)}
        found[query] = best(3 if query == "trace" else 1, partial(session.query, sql, "JSON", params=given))
        say(f"  {query}: {found[query]:.3f} s")
    session.close()
    return found


def batch_of(rows: int) -> dict[str, np.ndarray]:
    """Columns of so many requests."""
    db = duckdb.connect()
    with tempfile.TemporaryDirectory() as work:
        make_hour(db, Path(work), 0, rows)
        got = db.execute(f"SELECT * FROM read_parquet('{work}/requests/*/*.parquet')").fetchnumpy()
    return {name: np.ma.filled(values) for name, values in got.items()}


def ingest(path: Path, rows: int = 20_000) -> dict[str, float]:
    """Rows a second on one thread: appended and durable; the same with all merges (best of fourteen flushes; of sixteen together).

    An append alone keeps the batch as it came and is no figure: what it costs is in the flush.
    """
    batch = batch_of(rows)
    durable = []
    with DuckStore(path, threads=1) as store:
        began = time.perf_counter()
        for i in range(16):
            started = time.perf_counter()
            store.append("requests", batch)
            store.flush()
            if (i + 1) % 8:
                durable.append(time.perf_counter() - started)
        everything = time.perf_counter() - began
    return {
        "durable": rows / min(durable),
        "with_merges": 16 * rows / everything,
    }


def busy(path: str, stop: Any) -> None:
    """Write and merge until told to stop."""
    batch = batch_of(2000)
    with DuckStore(path, threads=1) as store:
        while not stop.is_set():
            store.append("requests", batch)
            store.flush()


def appends(count: int = 300_000) -> dict[str, float]:
    """Microseconds of one append to the recorder at points of its distribution, drained as a worker drains it."""
    recorder = Recorder(10_000, RealWorld(), "run")
    line = Timeline()
    for point in range(POINT_COUNT):
        line.mark(point, point + 1)
    row = row_of(line, **(dict.fromkeys(LABELS, "") | dict.fromkeys(NUMBERS, 3) | {"status": 200}))
    took = np.empty(count)
    now = time.perf_counter_ns
    for i in range(count):
        started = now()
        recorder.record(row)
        took[i] = now() - started
        if not i % 5000:
            recorder.take()
    return {f"p{level:g}_us": float(np.percentile(took, level)) / 1e3 for level in (50, 99, 99.9, 99.99)}


def recording(path: Path) -> dict[str, dict[str, float]]:
    """Appends alone, and while another process writes a store and merges."""
    alone = appends()
    stop = multiprocessing.Event()
    other = multiprocessing.Process(target=busy, args=(str(path), stop))
    other.start()
    while not list(path.rglob("*.parquet")):
        time.sleep(0.05)
    beside = appends()
    stop.set()
    other.join()
    return {"alone": alone, "beside_a_writer": beside}


def main() -> None:
    """Measure, and print."""
    told = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    told.add_argument("--requests", type=int, default=5_000_000)
    told.add_argument("--dir", type=Path, help="keep the data set here")
    told.add_argument("--json", action="store_true")
    given = told.parse_args()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:THREADS])
    with tempfile.TemporaryDirectory() as work_name:
        work = Path(work_name)
        path = given.dir or work / "store"
        result: dict[str, Any] = {"requests": given.requests, "load_1min": os.getloadavg()[0]}
        say("taking rows in")
        result["ingest_rows_per_s"] = ingest(work / "ingest")
        result["append"] = recording(work / "busy")
        shutil.rmtree(work / "ingest")
        if not path.exists():
            db = duckdb.connect(config={"threads": THREADS})
            for hour in range(HOURS):
                say(f"making hour {hour + 1} of {HOURS}")
                make_hour(db, path, hour, given.requests // HOURS)
        if not list(path.rglob("index-*")):
            say("without indexes")
            result["without_indexes"] = ours(path, given.requests, 1)
            say("making indexes")
            started = time.process_time()
            troubles = tend(path, _Later()).troubles
            result["index_cpu_s_per_million"] = (time.process_time() - started) / given.requests * 1e6
            assert not troubles, troubles
        for name, files in (
            ("rows", "part-*"),
            ("index", "index-*"),
            ("slices", "slices-*"),
            ("lookup", "lookup-*"),
        ):
            result[f"{name}_bytes_per_request"] = (
                sum(file.stat().st_size for file in path.rglob(files)) / given.requests
            )
        say("with indexes")
        result["with_indexes"] = ours(path, given.requests, 3)
        result["sitsctl_trace"] = whole_process(path, given.requests)
        say(f"  sitsctl trace: {result['sitsctl_trace']}")
        say("a DuckDB database file")
        result["duckdb_file_warm_s"] = in_duckdb(path, work, given.requests)
        say("ClickHouse (chDB)")
        result["clickhouse_warm_s"] = in_clickhouse(path, work, given.requests)
    print(json.dumps(result, indent=2 if not given.json else None))


class _Later(RealWorld):
    """After the hours of the data set, which lie in the future."""

    def wall_ns(self) -> int:
        return FIRST_NS + (HOURS + 2) * HOUR_NS


if __name__ == "__main__":
    main()
