"""What an index or a lookup is worth that was cut off, harmed, or has no room: nothing, and answers stay the same."""

import os
import resource
import struct

import pytest

from sits.core.breakpoints import NAMES
from sits.telemetry import tending
from sits.telemetry.indexed import FILES_SHARE, Indexes
from sits.telemetry.indexes import Index, index_of, is_index, slices_of
from sits.telemetry.lookups import Lookup, is_lookup, lookup_of
from sits.telemetry.parts import current, hour_of, parts_in
from sits.telemetry.store import DuckStore
from sits.telemetry.tables import REQUESTS, columns_of

HOUR_NS = 3600 * 10**9
START_NS = 480_000 * HOUR_NS
ROWS, A_SLICE = 1500, 400


class World:
    def __init__(self, wall_ns):
        self.wall_ns = lambda: wall_ns
        self.now_ns = lambda: 0


def some(hour):
    """Requests of an hour, each with all its times."""
    empty = {"VARCHAR": "", "BLOB": b"", "DOUBLE": 1.0}
    rows = []
    for i in range(ROWS):
        row = {name: empty.get(kind, 0) for name, kind in REQUESTS.items()}
        row |= {name: 1000 + point * 10**6 + i * point * 997 for point, name in enumerate(NAMES)}
        row |= {
            "id": f"{hour:08x}{i:024x}",
            "trace_id": f"{hour:08x}{i:024x}",
            "outcome": "completed",
            "model": "m",
        }
        row |= {
            "exactness": "3" * len(NAMES),
            "wall_ns": START_NS + hour * HOUR_NS + i,
            "run_id": "r",
            "weight": 1.0,
        }
        rows.append(tuple(row[name] for name in REQUESTS))
    return columns_of(REQUESTS, rows)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    path = tmp_path_factory.mktemp("cut") / "store"
    for hour in range(4):
        with DuckStore(path, world=World(START_NS + hour * HOUR_NS + 1)) as store:
            store.append("requests", some(hour))
            store.flush()
    assert tending.tend(path, World(START_NS + 9 * HOUR_NS), worth=1, slice_rows=A_SLICE).troubles == []
    return path


def answers(path):
    with DuckStore(path) as store:
        slow = store.scan("slow_e2e_stages")
        trace = store.scan("trace", trace_id=f"{1:08x}{7:024x}")
        cut = {"since_wall_ns": START_NS + HOUR_NS + 500, "until_wall_ns": START_NS + 3 * HOUR_NS - 1}
        quantiles = [
            (row["stage"], row["n"], pytest.approx(row["p99_ms"]))
            for given in ({}, cut)
            for row in store.scan("stage_quantiles", **given)
        ]
    return (
        quantiles,
        [(row["stage"], row["slow_n"], pytest.approx(row["slow_mean_ms"])) for row in slow],
        trace,
    )


def one_of(path, of):
    (part,) = current(parts_in(path / "requests" / hour_of(START_NS + HOUR_NS)))
    return of(part.path)


def harmed(whole):
    (size,) = struct.unpack("<Q", whole[8:16])
    cuts = (0, 3, 8, 12, 16, 40, 16 + size, 16 + size + 100, len(whole) // 2, len(whole) - 8)
    yield from (whole[:n] for n in cuts)
    yield whole[:8] + struct.pack("<Q", 2**62) + whole[16:]
    yield whole[:8] + b"\xff" * 8 + whole[16:]
    yield whole[:8] + struct.pack("<Q", 2) + b"{}"
    yield whole[:16] + b"\0" * (len(whole) - 16)


@pytest.mark.parametrize(
    ("of", "opened", "whole_one"),
    [(index_of, Index, is_index), (slices_of, Index, is_index), (lookup_of, Lookup, is_lookup)],
    ids=["index", "slices", "lookup"],
)
def test_one_that_is_harmed_is_as_none_and_made_anew(made, of, opened, whole_one):
    good, path = answers(made), one_of(made, of)
    whole = path.read_bytes()
    for harm in harmed(whole):
        path.write_bytes(harm)
        with pytest.raises(ValueError, match=r"."):
            opened(path)
        assert not whole_one(path)
        assert answers(made) == good
    assert tending.tend(made, World(START_NS + 9 * HOUR_NS), worth=1, slice_rows=A_SLICE).indexed == 1
    assert path.read_bytes() == whole
    assert whole_one(path)


def test_a_lookup_of_other_columns_tells_nothing(made):
    with pytest.raises(ValueError, match="knows no colour"):
        Lookup(one_of(made, lookup_of)).rows("colour", [(0, 1)])


def test_a_process_with_few_files_maps_few_indexes_the_newest_first(made, monkeypatch):
    good = answers(made)
    parts = [part.path for hour in sorted((made / "requests").iterdir()) for part in current(parts_in(hour))]
    monkeypatch.setattr(resource, "getrlimit", lambda _: (3 * FILES_SHARE, 4096))
    indexes = Indexes()
    assert list(indexes.of(parts)) == parts[1:]
    assert list(indexes.of(parts[:2])) == parts[:2]
    assert answers(made) == good
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert list(Indexes().of(parts)) == parts


@pytest.mark.parametrize("links", [True, False])
def test_a_merged_file_never_changes_under_who_knows_its_rows(tmp_path, monkeypatch, links):
    def refused(*_):
        raise PermissionError(1, "no links here")

    if not links:
        monkeypatch.setattr(os, "link", refused)
    first, second, name = tmp_path / "a", tmp_path / "b", tmp_path / "part"
    first.write_text("first")
    second.write_text("second")
    tending._appear_first(first, name)
    tending._appear_first(second, name)
    assert name.read_text() == "first"
    assert [one.name for one in tmp_path.iterdir()] == ["part"]
