"""How long a board of 24 hours takes to open: figures from a generated store, and the first paint in a real Chromium.

    python benchmarks/bench_board.py make STORE [--hours 24] [--rate 50]     # about a minute: rows as a gateway of four engines leaves them
    python benchmarks/bench_board.py measure STORE                           # each figure cold (a process of its own) and warm
    python benchmarks/bench_board.py open STORE                              # the page in Chromium, until its figures are drawn

The store has what a gateway's has: hourly Parquet files of single requests, figures of every minute, signals.  One incident is in it, half an
hour in which an engine's queue grows.  `open` starts a new admin process's board each time and looks at once, then again: `asked` is from the
address given to the browser to the first paint and to the figures drawn (headline, chart, stages).  Times are the least of several runs; cold is a new process with the files in the page cache.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from functools import cache
from pathlib import Path

import numpy as np

from sits.app.board import figures, requests
from sits.app.board.grid import STAGE_NAMES
from sits.app.board.window import Look
from sits.core.breakpoints import NAMES, POINT_COUNT
from sits.core.config import load_fleet
from sits.telemetry.histograms import BUCKETS, buckets_of, packed
from sits.telemetry.minute_parts import MinuteParts
from sits.telemetry.stage_queries import SPANS
from sits.telemetry.store import DuckStore
from sits.telemetry.tables import MINUTES, OUTCOMES_MINUTES, REQUESTS
from sits.world import RealWorld, stream_generator

sys.path[:0] = [str(Path(__file__).parents[1] / "tests" / where) for where in (".", "browser")]

MINUTE_NS, HOUR_NS = 60 * 10**9, 3600 * 10**9
ENGINES, TENANTS = ("a0", "a1", "b0", "b1"), ("acme", "globex", "initech")
MEAN_MS = (
    0.05,
    0.03,
    0.06,
    1.2,
    0.4,
    2.1,
    0.2,
    60.0,
    0.3,
    8.0,
    1.1,
    0.8,
    0.1,
    0.4,
    0.2,
    0.3,
    240.0,
    2400.0,
    0.1,
)
"""Of the 19 stages."""

FLEET = """
name: generated
objective: {metric: ttft, p99: 1.2s}
engines: [{kind: openai, name: a0, url: 'http://localhost:1', models: [llama-3-8b]}]
"""


DRAWN_MS = """[performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? 0, performance.getEntriesByName('drawn')[0].startTime]"""


class Then(RealWorld):
    """The world at another time, so that rows go to the hour they belong to."""

    def __init__(self, wall_ns):
        super().__init__(1)
        self.wall_ns = lambda: wall_ns


def hour_of_rows(dice, hour_ns, rate, incident, now_mono_ns, now_ns):
    """Columns of an hour of requests."""
    n = dice.poisson(rate * 3600)
    wall = np.sort(dice.integers(hour_ns, hour_ns + HOUR_NS, n))
    stages = dice.exponential(np.array(MEAN_MS), (n, POINT_COUNT - 1)) * 0.5 + np.array(MEAN_MS) * 0.5
    day = 1.0 + 0.5 * np.sin((wall % (24 * HOUR_NS)) / (24 * HOUR_NS) * 2 * np.pi)
    engine = dice.integers(0, 4, n)
    grown = (wall > incident) & (wall < incident + 30 * MINUTE_NS) & (engine == 1)
    stages[:, 7] *= day * np.where(grown, 18.0, 1.0) * dice.lognormal(0, 0.7, n)
    stages[:, 16] *= dice.lognormal(0, 0.35, n)
    at = (
        np.cumsum(np.column_stack([np.zeros(n), stages]) * 1e6, axis=1).astype(np.int64)
        + (now_mono_ns - now_ns + wall)[:, None]
    )
    failed = dice.random(n) < np.where(grown, 0.01, 0.0006)
    at[failed, 5:] = 0
    how = np.where(failed, "3" * 5 + "0" * 15, "3" * 9 + "1" * 8 + "3" * 3)

    def text(values):
        made = np.empty(n, dtype=object)
        made[:] = values
        return made

    ids = [f"{value:032x}" for value in (wall.astype(object) * 1_000_003 + np.arange(n)).tolist()]
    columns = {
        name: text([""] * n) if kind == "VARCHAR" else np.zeros(n, dtype=np.int64)
        for name, kind in REQUESTS.items()
    }
    columns |= {
        "run_id": text(["generated-1"] * n), "id": text([f"req-{one[-16:]}" for one in ids]), "trace_id": text(ids),
        "tenant": text([TENANTS[i] for i in dice.integers(0, 3, n).tolist()]), "model": text(["llama-3-8b"] * n),
        "engine": text([ENGINES[i] for i in engine.tolist()]), "arm": text(["stable"] * n),
        "outcome": text(np.where(failed, "failed", "completed").tolist()), "status": np.where(failed, 502, 200),
        "detail": text(np.where(failed, "engine_timeout", "").tolist()), "prompt_tokens": dice.integers(50, 4000, n), "output_tokens": dice.integers(1, 400, n),
        "exactness": text(how.tolist()), "wall_ns": wall, "weight": np.ones(n), **{name: at[:, i] for i, name in enumerate(NAMES)},
    }  # fmt: skip
    return columns


def figures_of(columns):
    """Rows of `minutes` and `outcomes_minutes`, as the keeper would have made them."""
    minute, engine = columns["wall_ns"] // MINUTE_NS, columns["engine"]
    done = columns["outcome"] == "completed"
    minutes, outcomes = [], []
    for name in ENGINES:
        of = engine == name
        for one in np.unique(minute).tolist():
            here = of & (minute == one)
            key = (one * MINUTE_NS, "llama-3-8b", name, "stable")
            for outcome in ("completed", "failed"):
                some = here & (columns["outcome"] == outcome)
                if n := int(some.sum()):
                    tokens = [
                        int(columns[what][some].sum())
                        for what in ("prompt_tokens", "output_tokens", "cached_tokens")
                    ]
                    outcomes.append((*key, outcome, int(columns["status"][some][0]), n, *tokens))
            rows = np.flatnonzero(here & done)
            for stage, start, end in SPANS:
                took = columns[NAMES[end]][rows] - columns[NAMES[start]][rows]
                counts = np.bincount(buckets_of(took), minlength=BUCKETS)
                there = np.flatnonzero(counts)
                minutes.append((*key, stage, len(rows), float(took.sum()), packed(there, counts[there])))
    made = []
    for schema, rows in ((MINUTES, minutes), (OUTCOMES_MINUTES, outcomes)):
        made.append(
            {
                name: np.array(values, dtype=object if kind in ("VARCHAR", "BLOB") else None)
                for (name, kind), values in zip(schema.items(), zip(*rows, strict=True), strict=True)
            }
        )
    return made


def make(path, hours, rate):
    dice, now_ns, mono_ns = stream_generator(7, "rows"), time.time_ns(), time.monotonic_ns()
    first = (now_ns - hours * HOUR_NS) // MINUTE_NS * MINUTE_NS
    total = 0
    for i in range(hours):
        hour_ns = first + i * HOUR_NS
        columns = hour_of_rows(dice, hour_ns, rate, now_ns - 50 * MINUTE_NS, mono_ns, now_ns)
        minutes, outcomes = figures_of(columns)
        n = len(columns["wall_ns"])
        with DuckStore(path, world=Then(hour_ns + HOUR_NS // 2)) as store:
            for part in range(8):
                some = slice(part * n // 8, (part + 1) * n // 8)
                store.append("requests", {name: values[some] for name, values in columns.items()})
                store.flush()
            store.append("minutes", minutes)
            store.append("outcomes_minutes", outcomes)
        total += n
        print(f"{i + 1}/{hours} h, {total:,} requests", file=sys.stderr)


CASES = {
    "overview, 24 h": lambda store, fleet, now_ns: figures.overview(store, fleet, Look("24h"), now_ns),
    "overview, 24 h, minutes in memory": lambda store, fleet, now_ns: figures.overview(
        store, fleet, Look("24h"), now_ns, in_memory(store.path)
    ),
    "overview, 1 h": lambda store, fleet, now_ns: figures.overview(store, fleet, Look("1h"), now_ns),
    "overview, 15 min": lambda store, fleet, now_ns: figures.overview(store, fleet, Look("15m"), now_ns),
    "burn, 3 d": lambda store, fleet, now_ns: figures.burn(store, fleet, Look().only, now_ns),
    "tail, 24 h": lambda store, fleet, now_ns: requests.tail(store, fleet, Look("24h"), now_ns),
    "slowest, 24 h": lambda store, fleet, now_ns: requests.listed(store, fleet, Look("24h"), now_ns),
    "matrix, 24 h": lambda store, fleet, now_ns: requests.matrix(store, fleet, Look("24h"), now_ns),
}


@cache
def in_memory(path):
    return MinuteParts(path, STAGE_NAMES)


def measure(path, only, runs):
    fleet = load_fleet(FLEET)
    with DuckStore(path, threads=2) as store:
        for name in [only] if only else CASES:
            took = []
            for _ in range(runs):
                began = time.perf_counter()
                CASES[name](store, fleet, time.time_ns())
                took.append(time.perf_counter() - began)
            print(f"{name:34} first {took[0]:6.3f} s, least of {runs} {min(took):6.3f} s")


def opened(path, runs):
    """First look by a new process, and the one after it."""
    from chromium_driven import driven  # noqa: PLC0415  (of the tests)

    took = {"first": [], "again": []}
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory,
        driven(Path(directory)) as chromium,
    ):
        for _ in range(runs):
            began = time.perf_counter()
            board = subprocess.Popen(
                [sys.executable, __file__, "serve", str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
            try:
                url = board.stdout.readline().decode().strip()
                started = time.perf_counter() - began
                for times in took.values():
                    page = chromium.page()
                    page.tell("Page.navigate", url=f"{url}?window=24h")
                    page.until("document.documentElement.dataset.drawn === '1'")
                    times.append((started, *page.run(DRAWN_MS)))
                    page.close()
            finally:
                board.stdin.close()
                board.wait()
    for which, each in took.items():
        each.sort(key=lambda one: one[2])
        _, painted, least = each[0]
        print(
            f"24 h in Chromium, {which:5}: figures drawn {least:5.0f} ms at the least of {runs}, {each[len(each) // 2][2]:5.0f} median, "
            f"{each[-1][2]:5.0f} most; first paint {painted:4.0f} ms"
        )
    print(f"a new process listens after {min(one[0] for one in took['first']):.2f} s at the least")


def served(path):
    """A board over the store, until stdin ends."""
    from board_served import house_of, serving  # noqa: PLC0415  (of the tests)

    with serving(house_of(path)) as (url, _):
        print(url, flush=True)
        sys.stdin.read()


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("make", "measure", "open", "serve"))
    parser.add_argument("store", type=Path)
    parser.add_argument("--hours", type=int, default=24)
    parser.add_argument("--rate", type=float, default=50.0)
    parser.add_argument("--case", default="")
    parser.add_argument("--runs", type=int, default=5)
    asked = parser.parse_args()
    if asked.what == "make":
        make(asked.store, asked.hours, asked.rate)
    elif asked.what == "open":
        opened(asked.store, asked.runs)
    elif asked.what == "serve":
        served(asked.store)
    elif asked.case:
        measure(asked.store, asked.case, asked.runs)
    else:
        for case in CASES:
            subprocess.run(
                [
                    sys.executable,
                    __file__,
                    "measure",
                    str(asked.store),
                    "--case",
                    case,
                    "--runs",
                    str(asked.runs),
                ],
                check=True,
            )


if __name__ == "__main__":
    main()
