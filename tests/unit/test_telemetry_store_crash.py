"""kill -9 while a store is written, merged and read: what was acknowledged is there once, and nothing else but the flush under way."""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from sits.telemetry.store import DuckStore
from sits.telemetry.tail import Tail
from sits.world import RealWorld
from store_crash import ROWS

WRITER = Path(__file__).parents[1] / "store_crash.py"
FLUSHES = 17
"""Two merges, and the deletions after them."""

LONG = bool(os.environ.get("SITS_SOAK"))
STEPS = list(range(1, 110)) if LONG else [1, 2, 3, 4, 5, 31, 32, 33, 34, 38, 41, 44]
MOMENTS = 200 if LONG else 2


def judge(path, acknowledged, killed=True):
    """`acknowledged`: pairs of process and flush."""
    with DuckStore(path) as store:
        names = [row["name"] for row in store.scan("signals_window")]
    assert max(Counter(names).values(), default=1) == 1
    flushes = {tuple(map(int, name.split("-")[:2])) for name in names}
    assert len(names) == ROWS * len(flushes)  # a flush is there whole or not at all
    assert flushes >= acknowledged
    assert len(flushes - acknowledged) <= killed  # the one that was durable and not told yet
    tail = Tail(path, "signals", beginning=True)
    assert sorted(tail.look()["name"]) == sorted(names)


def pairs(lines):
    return {tuple(map(int, line.split())) for line in lines}


def test_a_writer_that_is_killed_before_any_step_leaves_what_it_acknowledged(tmp_path):
    subprocess.run([sys.executable, WRITER, tmp_path, str(FLUSHES), *map(str, STEPS)], check=True)
    for step in STEPS:
        judge(tmp_path / str(step), pairs((tmp_path / f"{step}.txt").read_text().splitlines()))


@pytest.mark.parametrize("moment", range(MOMENTS))
def test_a_writer_that_is_killed_at_any_moment_leaves_what_it_acknowledged_and_readers_see_no_less(
    tmp_path, moment
):
    """Killed by another process, wherever it is: in the middle of a file, too.  Meanwhile a reader looks."""
    dice = RealWorld(moment).rng("moments")
    acknowledged = set()
    for killed in (1, 2):
        process = subprocess.Popen(
            [sys.executable, WRITER, tmp_path, str(FLUSHES)], stdout=subprocess.PIPE, text=True
        )
        stop = int(dice.integers(1, FLUSHES))
        for line in process.stdout:
            acknowledged |= pairs([line])
            if len(acknowledged) % 5 == 0:
                with DuckStore(tmp_path) as reader:
                    names = [row["name"] for row in reader.scan("signals_window")]
                assert len(set(names)) == len(names)
                assert {tuple(map(int, name.split("-")[:2])) for name in names} >= acknowledged
            if len(acknowledged) % FLUSHES == stop:
                for _ in range(int(dice.integers(0, 200_000))):
                    pass  # so far into what comes next
                process.kill()
                break
        acknowledged |= pairs(process.stdout)
        process.wait()
        judge(tmp_path, acknowledged, killed)
