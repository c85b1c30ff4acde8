"""Minutes in memory: what they tell is what a query tells, whatever is flushed, merged, deleted or not there."""

import shutil

import numpy as np
import pytest

from board_rows import MINUTE_NS, minutes, row, stored
from sits.app.board import figures
from sits.app.board.grid import STAGE_NAMES
from sits.app.board.window import Look, Only
from sits.core.config import load_fleet
from sits.telemetry.duck import StoreError
from sits.telemetry.minute_parts import MinuteParts
from sits.telemetry.store import FANOUT, DuckStore
from sits.world import RealWorld, stream_generator

NOW_NS = 1_796_000_000 * 10**9 // MINUTE_NS * MINUTE_NS + 40 * 10**9
FLEET = load_fleet(
    "name: f\nobjective: {metric: ttft, p99: 1s}\nengines: [{kind: openai, name: a0, url: 'http://localhost:1', models: [m]}]\n"
)


class At(RealWorld):
    """The world at a time that is set."""

    def __init__(self, wall_ns=NOW_NS):
        super().__init__(1)
        self.at = wall_ns

    def wall_ns(self):
        return self.at


def some(n, seed, within_ns, from_ns=5 * 10**9):
    dice = stream_generator(seed, "rows")
    return [
        row(
            seed * 10_000 + i,
            NOW_NS - int(dice.integers(from_ns, within_ns)),
            queue_ms=float(dice.lognormal(4, 1.5)),
            engine=("a0", "a1", "b0")[i % 3],
            model=("m", "n")[i % 2],
            weight=1.0,
        )
        for i in range(n)
    ]


def agree(store, kept):
    """Every look tells the same from memory and from queries."""
    for name, only in (("24h", Only()), ("1h", Only(engine="a1")), ("1h", Only(model="n", engine="b0"))):
        look = Look(name, only=only)
        from_memory = figures.overview(store, FLEET, look, NOW_NS, kept)
        assert from_memory == figures.overview(store, FLEET, look, NOW_NS)
    past = Look("custom", NOW_NS - 3 * 60 * MINUTE_NS + 7, NOW_NS - 31 * MINUTE_NS)
    assert figures.overview(store, FLEET, past, NOW_NS, kept) == figures.overview(store, FLEET, past, NOW_NS)
    return figures.overview(store, FLEET, Look("24h"), NOW_NS, kept)["requests"]["total"]


@pytest.mark.parametrize("records_max", [16_000_000, 900])
def test_memory_and_queries_agree_over_flushes_merges_and_restarts(tmp_path, records_max):
    world = At()
    kept = MinuteParts(tmp_path, STAGE_NAMES, records_max=records_max)
    with DuckStore(tmp_path, world=world, grace_ns=0) as reader:
        assert agree(reader, kept) == 0
        world.at = NOW_NS - 2 * 60 * MINUTE_NS
        with DuckStore(tmp_path, world=world, grace_ns=0) as first:
            stored(first, some(40, 1, 20 * 60 * MINUTE_NS, 3 * 60 * MINUTE_NS))
        assert agree(reader, kept) == 40
        world.at = NOW_NS
        with DuckStore(tmp_path, world=world, grace_ns=0) as second:
            for i in range(FANOUT + 2):
                stored(
                    second,
                    some(20, 2 + i, 30 * MINUTE_NS),
                    closed_before=NOW_NS // MINUTE_NS * MINUTE_NS - MINUTE_NS,
                )
                if i == FANOUT - 2:
                    agree(reader, kept)
        assert agree(reader, kept) == 40 + 20 * (FANOUT + 2)
        assert sum(len(one.buckets) for one in kept._kept.values()) <= records_max
        assert set(kept._kept) <= set(kept._listed(0))
        shutil.rmtree(tmp_path / "minutes")
        assert agree(reader, kept) >= 0
        assert not kept._kept


def test_warming_reads_each_file_once_and_no_more(tmp_path):
    with DuckStore(tmp_path, world=At()) as store:
        for i in range(3):
            stored(store, some(20, i, 30 * MINUTE_NS))
        kept = MinuteParts(tmp_path, STAGE_NAMES)
        assert [kept.keep_one(NOW_NS - 3600 * 10**9) for _ in range(5)] == [True] * 3 + [False] * 2
        agree(store, kept)


def test_a_file_that_goes_while_it_is_read_is_no_failure_and_a_broken_one_is_named(tmp_path, monkeypatch):
    with DuckStore(tmp_path, world=At()) as store:
        rows = some(40, 1, 30 * MINUTE_NS)
        for part in (rows[:20], rows[20:]):
            stored(store, part)
        kept = MinuteParts(tmp_path, STAGE_NAMES)
        listed = MinuteParts._listed
        gone = tmp_path / "minutes" / "2026113013" / "part-0-00000001-00000001.parquet"
        told = iter([[gone], [gone]])
        monkeypatch.setattr(kept, "_listed", lambda since: next(told, None) or listed(kept, since))
        assert figures.overview(store, FLEET, Look("1h"), NOW_NS, kept)["requests"]["total"] == 40
    directory = next((tmp_path / "minutes").iterdir())
    (directory / "part-bad-00000001-00000001.parquet").write_bytes(b"no parquet")
    with pytest.raises(StoreError, match="part-bad"):
        MinuteParts(tmp_path, STAGE_NAMES).counts(NOW_NS - 10**13, NOW_NS, MINUTE_NS, 167)


def test_stages_nobody_knows_and_empty_histograms_are_left_out(tmp_path):
    columns, _ = minutes(some(10, 1, 5 * MINUTE_NS))
    columns["stage"][0] = "of tomorrow"
    columns["histogram"][1] = b""
    with DuckStore(tmp_path, world=At()) as store:
        store.append("minutes", columns)
        store.flush()
    made = MinuteParts(tmp_path, STAGE_NAMES).counts(NOW_NS - 10 * MINUTE_NS, NOW_NS, MINUTE_NS, 10)
    assert int(made.sum()) == int(np.sum(columns["n"][2:]))
