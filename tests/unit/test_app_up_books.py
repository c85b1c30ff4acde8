"""The books of a gateway: what comes in is in the store or thinned, and all of it counted in the figures of its minutes."""

from sits.app.up.books import Books
from sits.core.breakpoints import POINT_COUNT
from sits.core.config import load_fleet
from sits.core.timeline import Timeline
from sits.telemetry.histograms import quantiles_by
from sits.telemetry.packing import pack
from sits.telemetry.recorder import LABELS, NUMBERS, row_of
from sits.telemetry.store import DuckStore
from sits.world import RealWorld

FLEET = """
name: f
engines: [{name: e0, kind: openai, url: 'http://127.0.0.1:1', models: [m]}]
telemetry: {environment: test, sampling: 10%, traces_kept: 1d, metrics_kept: 2d, alert_within: 1min}
"""
ROWS = 2000


def rows(world):
    for i in range(ROWS):
        line, now_ns = Timeline(), world.now_ns()
        for point in range(POINT_COUNT):
            line.mark(point, now_ns - (POINT_COUNT - point) * (1_000_000 + (i * 7919) % ROWS * 100))
        told = dict.fromkeys(LABELS, "") | dict.fromkeys(NUMBERS, 3)
        yield row_of(
            line,
            **told
            | {
                "id": f"i{i}",
                "trace_id": f"{i * 2654435761 % 2**32:08x}" * 4,
                "model": "m",
                "engine": "e0",
                "outcome": "completed",
                "status": 200,
            },
        )


def test_all_rows_are_counted_in_the_figures_of_their_minute(tmp_path):
    world = RealWorld()
    books = Books(tmp_path, world, lambda parts: None, load_fleet(FLEET))
    packed = pack(list(rows(world)))
    books.add("requests", "r", [getattr(packed, name) for name in packed.__struct_fields__])
    books.close()
    thinned = books.vitals()["sits_rows_thinned_total"][""]
    with DuckStore(tmp_path) as store:
        assert len(store.scan("requests_window")) + thinned == ROWS
        told = quantiles_by(store.columns("minutes_window", stage="ttft"), ("model", "engine"), (0.99,))
        assert told["n"].tolist() == [ROWS]
        exact = 17 * (1_000_000 + (ROWS * 99 // 100 - 1) * 100)
        assert abs(told["p99_ns"][0] - exact) <= 0.01 * exact
        assert sum(row["n"] for row in store.scan("outcomes_minutes_window")) == ROWS
        assert sum(row["output_tokens"] for row in store.scan("outcomes_minutes_window")) == 3 * ROWS


def test_another_configuration_keeps_rows_and_figures_for_its_own_times(tmp_path):
    books = Books(tmp_path, RealWorld(), lambda parts: None, load_fleet(FLEET))
    day = 86_400 * 10**9
    assert (books.writer.retain_ns, books.writer.figures_ns) == (day, 2 * day)
    books.adopt(load_fleet(FLEET.replace("traces_kept: 1d", "traces_kept: 3d").replace("2d", "9d")))
    assert (books.writer.retain_ns, books.writer.figures_ns) == (3 * day, 9 * day)
    books.close()
