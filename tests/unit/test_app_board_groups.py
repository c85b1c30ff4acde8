"""Who is slow: each request once by each of its names, whatever tells of it, and a name stands out only where its traffic does not explain it."""

import tracemalloc

import pytest

from board_rows import MINUTE_NS, row, stored
from sits.app.board.groups import KINDS, groups
from sits.app.board.window import Look, Only
from sits.core.config import load_fleet
from sits.diagnose.groups import BAD_MIN
from sits.telemetry.store import DuckStore
from sits.world import stream_generator

NOW_NS = 1_796_000_000 * 10**9 // MINUTE_NS * MINUTE_NS + 40 * 10**9
FLEET = load_fleet(
    "name: f\nobjective: {metric: ttft, p99: 1s}\nengines: [{kind: openai, name: a0, url: 'http://localhost:1', models: [m]}]\n"
)


def some_rows(slow, n=600):
    """`slow` tells of each number whether it is slow; every fiftieth is refused before an engine is chosen, every sixtieth fails."""
    dice = stream_generator(3, "rows")
    rows = []
    for i in range(n):
        odd = {"outcome": "refused", "status": 404, "engine": ""} if i % 50 == 7 else {}
        odd = {"outcome": "failed", "status": 502, "engine": "a1"} if i % 60 == 11 else odd
        rows.append(
            row(
                i,
                NOW_NS - int(dice.integers(10 * 10**9, 13 * MINUTE_NS)),
                queue_ms=4000.0 if slow(i) else 50.0,
                **{
                    "tenant": ("acme", "globex", "initech")[i % 3],
                    "engine": f"a{i % 4}",
                    "model": f"m{i % 2}",
                    **odd,
                },
            )
        )
    return rows


def counted(rows, kind):
    """By name: requests, slow ones, wrong ones."""
    found = {}
    for one in rows:
        n = found.setdefault(one[kind], [0, 0, 0])
        n[0] += 1
        n[1] += one["outcome"] == "completed" and one["first_token"] - one["api_recv"] > 10**9
        n[2] += one["outcome"] == "failed"
    return found


@pytest.mark.parametrize("closed_before", [0, NOW_NS - 5 * MINUTE_NS, NOW_NS - 40 * 10**9])
@pytest.mark.parametrize("only", [Only(), Only(model="m1"), Only(tenant="acme", engine="a2")])
def test_minutes_and_rows_tell_the_same(tmp_path, closed_before, only):
    rows = some_rows(lambda i: i % 4 == 2)
    with DuckStore(tmp_path / "store") as store:
        stored(store, rows, closed_before=closed_before // MINUTE_NS * MINUTE_NS)
        told = groups(store, FLEET, Look("15m", only=only), NOW_NS)
    wanted = {kind: name for kind in ("model", "engine", "tenant") if (name := getattr(only, kind))}
    some = [one for one in rows if all(one[kind] == name for kind, name in wanted.items())]
    for kind in KINDS:
        by = told["by"][kind]
        assert {one["name"]: [one["n"], round(one["slow"]), one["wrong"]] for one in by["names"]} == counted(
            some, kind
        ), kind
        assert sum(one["share"] for one in by["names"]) == pytest.approx(1.0)
        assert sum(one["bad_share"] for one in by["names"]) == pytest.approx(1.0)
        assert [one["bad"] for one in by["names"]] == sorted(
            (one["bad"] for one in by["names"]), reverse=True
        )
    assert told["from_rows"] is (closed_before == 0 or bool(only.tenant))


def test_rows_count_by_their_weight(tmp_path):
    rows = [{**one, "weight": 10.0} for one in some_rows(lambda i: False)]
    with DuckStore(tmp_path / "store") as store:
        stored(store, rows, closed_before=0)
        told = groups(store, FLEET, Look("15m"), NOW_NS)
    assert told["by"]["tenant"]["n"] == 6000


@pytest.mark.parametrize(
    ("slow", "kind", "name"),
    [
        (lambda i: i % 4 == 2 and i % 3 == 0, "engine", "a2"),
        (lambda i: i % 3 == 1, "tenant", "globex"),
        (lambda i: i % 7 == 0, None, None),
        (lambda i: i in (2, 6, 10), None, None),
    ],
)
def test_a_name_stands_out_where_its_traffic_does_not_explain_it(tmp_path, slow, kind, name):
    rows = [one for one in some_rows(slow) if one["outcome"] == "completed"]
    with DuckStore(tmp_path / "store") as store:
        stored(store, rows, closed_before=NOW_NS - 3 * MINUTE_NS)
        told = groups(store, FLEET, Look("15m"), NOW_NS)
    out = told["stands_out"]
    assert (out and out["kind"], out and out["name"]) == (kind, name)
    if out:
        assert out["bad_share"] > out["share"]
        assert told["by"][kind]["bad"] >= BAD_MIN


def test_of_many_names_the_worst_are_told(tmp_path):
    rows = [
        row(i, NOW_NS - 10**11, queue_ms=5e3 if i % 40 == 33 else 1.0, engine=f"e{i % 40}")
        for i in range(400)
    ]
    with DuckStore(tmp_path / "store") as store:
        empty = groups(store, FLEET, Look("15m"), NOW_NS)
        stored(store, rows)
        told = groups(store, FLEET, Look("15m"), NOW_NS)["by"]["engine"]
    assert empty["by"]["engine"]["names"] == []
    assert (told["names"][0]["name"], len(told["names"]), told["more"]) == ("e33", 12, 28)
    assert told["names"][0]["p99_ms"] > 1000


@pytest.mark.parametrize("closed", [False, True])
def test_a_request_belongs_to_where_it_was_over(tmp_path, closed):
    since = NOW_NS // MINUTE_NS * MINUTE_NS - 60 * MINUTE_NS
    rows = [row(i, since + at, engine=f"e{i}") for i, at in enumerate((-(10**9), 10**9, MINUTE_NS - 10**9))]
    with DuckStore(tmp_path / "store") as store:
        stored(store, rows, closed_before=None if closed else 0)
        look = Look(name="custom", since_ns=since, until_ns=since + MINUTE_NS)
        told = groups(store, FLEET, look, NOW_NS)["by"]
    assert {one["name"] for one in told["engine"]["names"]} == {"e0", "e1"}, "each takes 2.7 s"
    assert told["tenant"]["n"] == 2


def test_names_that_callers_make_up_cost_nothing(tmp_path):
    """Twenty thousand models that do not exist: a histogram for each would be a third of a gigabyte."""
    made_up = row(0, NOW_NS - 10**11, outcome="refused", status=404, engine="", how="3" * 3 + "0" * 17)
    rows = [{**made_up, "id": f"r{i}", "model": f"made-up-{i}"} for i in range(20_000)]
    rows += [row(i, NOW_NS - 10**11, queue_ms=5e3) for i in range(50)]
    rows[7]["model"] = "long" * 20_000
    with DuckStore(tmp_path / "store") as store:
        stored(store, rows, closed_before=0)
        tracemalloc.start()
        told = groups(store, FLEET, Look("15m"), NOW_NS)
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert (told["by"]["model"]["names"][0]["name"], told["by"]["model"]["more"]) == ("llama-3-8b", 19_989)
    assert most < 64 * 2**20
