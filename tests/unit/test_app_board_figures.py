"""Figures of the board: from minutes, from rows, or from both, they are those of all requests, each once."""

import numpy as np
import pytest

from board_rows import MINUTE_NS, row, stored
from sits.app.board import figures, requests
from sits.app.board.burn import burns, slow_by_minute
from sits.app.board.window import LIVE, Look, Only, look_of
from sits.core.config import load_fleet
from sits.core.errors import CallerError, UnknownError
from sits.telemetry.histograms import buckets_of, packed
from sits.telemetry.store import DuckStore
from sits.world import stream_generator

NOW_NS = 1_796_000_000 * 10**9 // MINUTE_NS * MINUTE_NS + 40 * 10**9
FLEET = load_fleet(
    "name: f\nobjective: {metric: ttft, p99: 1s}\nengines: [{kind: openai, name: a0, url: 'http://localhost:1', models: [llama-3-8b]}]\n"
)


def some_rows(n=400, seed=3, **more):
    dice = stream_generator(seed, "rows")
    return [
        row(
            i,
            NOW_NS - int(dice.integers(10 * 10**9, 14 * MINUTE_NS)),
            queue_ms=float(dice.lognormal(4, 1)),
            tenant=("acme", "globex")[i % 2],
            engine=("a0", "a1")[i % 3 == 0],
            **more,
        )
        for i in range(n)
    ]


@pytest.fixture
def store(tmp_path):
    with DuckStore(tmp_path / "store") as one:
        yield one


def ttft_ms(rows):
    return sorted(
        (one["first_token"] - one["api_recv"]) / 1e6 for one in rows if one["outcome"] == "completed"
    )


@pytest.mark.parametrize("closed_before", [0, NOW_NS - 5 * MINUTE_NS, NOW_NS - 40 * 10**9])
def test_minutes_and_rows_tell_the_same(store, closed_before):
    rows = some_rows()
    closed = closed_before // MINUTE_NS * MINUTE_NS
    stored(store, rows, closed_before=closed)
    told = figures.overview(store, FLEET, Look("15m"), NOW_NS)
    exact = ttft_ms(rows)
    assert (told["state"], told["requests"]["total"], told["slo"]["n"]) == ("ok", 400, 400)
    assert told["slo"]["p99_ms"] == pytest.approx(exact[395], rel=0.011)
    assert told["slo"]["low_ms"] < exact[395] < told["slo"]["high_ms"]
    assert sum(n or 0 for n in told["latency"]["ttft"]["n"]) == 400
    assert told["from_rows"] is (closed_before == 0)
    [queue] = [one for one in told["stages"] if one["stage"] == "engine_queue"]
    assert (queue["layer"], queue["n"], queue["exactness"]["kind"]) == ("scheduler", 400, "measured")
    [prefill] = [one for one in told["stages"] if one["stage"] == "prefill"]
    assert prefill["exactness"] == {
        "kind": "sampled",
        "shares": {"sampled": 1.0, "derived": 0.0, "measured": 0.0},
        "seen": 1.0,
    }


def test_a_tenant_is_told_from_rows(store):
    rows = some_rows()
    stored(store, rows)
    told = figures.overview(store, FLEET, Look("1h", only=Only(tenant="acme")), NOW_NS)
    assert (told["from_rows"], told["requests"]["total"]) == (True, 200)
    told = figures.overview(store, FLEET, Look("1h", only=Only(engine="a1")), NOW_NS)
    assert (told["from_rows"], told["requests"]["total"]) == (False, 134)


def test_a_thinned_row_counts_for_those_it_stands_for(store):
    stored(store, [one | {"weight": 10.0} for one in some_rows(40)], closed_before=0)
    told = figures.overview(store, FLEET, Look("15m"), NOW_NS)
    assert (told["requests"]["total"], told["slo"]["n"]) == (400, 400)


def test_states(store):
    empty = figures.overview(store, FLEET, Look("24h"), NOW_NS)
    assert (empty["state"], empty["newest_ms"], empty["slo"]) == ("empty", 0, {"state": "unknown", "n": 0})
    failed = [
        row(i, NOW_NS - 2 * MINUTE_NS, outcome="failed", status=502, how="3" * 5 + "0" * 15) for i in range(9)
    ]
    stored(store, failed)
    told = figures.overview(store, FLEET, Look("15m"), NOW_NS)
    assert (told["state"], told["slo"]["state"], told["requests"]["total_bad"], told["stages"]) == (
        "ok",
        "unknown",
        9,
        [],
    )
    stored(store, [row(100 + i, NOW_NS - 3 * MINUTE_NS) for i in range(1000)])
    assert figures.overview(store, FLEET, Look("15m"), NOW_NS)["slo"]["state"] == "met"
    stored(store, [row(2000 + i, NOW_NS - 3 * MINUTE_NS, queue_ms=5e3) for i in range(12)])
    assert figures.overview(store, FLEET, Look("15m"), NOW_NS)["slo"]["state"] == "unproven"
    stored(store, [row(3000 + i, NOW_NS - 3 * MINUTE_NS, queue_ms=5e3) for i in range(40)])
    assert figures.overview(store, FLEET, Look("15m"), NOW_NS)["slo"]["state"] == "missed"


def test_a_window_of_the_past_and_its_exactness(store):
    stored(store, some_rows())
    past = Look("custom", NOW_NS - 15 * MINUTE_NS, NOW_NS - 7 * MINUTE_NS)
    told = figures.overview(store, FLEET, past, NOW_NS + 10**15)
    assert 100 < told["requests"]["total"] < 300
    assert told["stages"][0]["exactness"]["kind"] == "measured"


def test_burn(store):
    slow, fast = 5e3, 60.0
    rows = [
        row(i, NOW_NS - (i % 50 + 2) * MINUTE_NS, queue_ms=slow if i % 5 == 0 else fast) for i in range(1000)
    ]
    stored(store, rows)
    told = figures.burn(store, FLEET, Only(), NOW_NS)
    pairs = told["pairs"]
    newest_ns = max(one["wall_ns"] + one["sent"] - one["api_recv"] for one in rows)
    assert told["until_ms"] == (newest_ns // MINUTE_NS + 1) * MINUTE_NS // 10**6
    assert figures.burn(store, FLEET, Only(), NOW_NS - 10**15)["until_ms"] is None
    assert [pair["burning"] for pair in pairs] == [True] * 4
    assert pairs[0]["long_burn"] == pytest.approx(20.0)
    assert [pair["burning"] for pair in burns(np.full(4320, 10.0), np.zeros(4320))] == [False] * 4
    assert burns(np.zeros(4320), np.zeros(4320))[0]["short_burn"] is None


def test_an_incident_that_is_over_does_not_burn():
    requests_, bad = np.full(4320, 100.0), np.zeros(4320)
    bad[-50:-10] = 40
    first = burns(requests_, bad)[0]
    assert (first["long_burn"] > 14.4, first["short_burn"], first["burning"]) == (True, 0.0, False)


def test_slow_by_minute():
    took = np.array([10, 2000, 3000]) * 10**6
    one = packed(buckets_of(took), np.array([5, 2, 1]))
    timed, slow = slow_by_minute(3, [(0, [one]), (2, [one, one]), (7, [one])], 10**9)
    assert (timed.tolist(), slow.tolist()) == ([8, 0, 16], [3, 0, 6])


def test_one_request_bar_by_bar(store):
    how = "3" * 5 + "0000" + "0" * 8 + "333"
    stored(store, [row(1, NOW_NS - MINUTE_NS), row(17, NOW_NS - MINUTE_NS, how=how)])
    told = requests.found(store, f"{17:032x}"[:32])
    assert told["id"] == "req-000017"
    assert sum(bar["ms"] for bar in told["bars"]) == pytest.approx(told["total_ms"])
    assert [bar["stage"] for bar in told["bars"] if bar["layer"] == "unattributed"] == [
        "unattributed (dispatched..first_token)"
    ]
    assert requests.found(store, "req-000017", NOW_NS - MINUTE_NS) == told
    assert requests.found(store, "req-00001")["id"] == "req-000017"
    with pytest.raises(UnknownError, match="begins with 'req-x"):
        requests.found(store, "req-x")
    with pytest.raises(CallerError):
        requests.found(store, "r")


def test_lists_tail_and_matrix(store):
    rows = some_rows()
    rows += [
        row(
            900 + i,
            NOW_NS - MINUTE_NS,
            outcome="failed",
            status=503,
            how="3" * 5 + "0" * 15,
            detail="engine_timeout",
        )
        for i in range(3)
    ]
    stored(store, rows)
    look = Look("15m")
    told = requests.listed(store, FLEET, look, NOW_NS)
    assert told["slowest"][0]["ttft_ms"] == pytest.approx(ttft_ms(rows)[-1])
    assert [one["status"] for one in told["failed"]] == [503] * 3
    tail = requests.tail(store, FLEET, look, NOW_NS)
    most = max(tail["stages"], key=lambda one: one["slow_ms"] - one["rest_ms"])
    assert (most["stage"], tail["slow_n"] + tail["rest_n"]) == ("engine_queue", 400)
    matrix = requests.matrix(store, FLEET, look, NOW_NS)
    assert (matrix["n"], sum(band["n"] for band in matrix["bands"])) == (400, 400)
    for band in matrix["bands"]:
        assert sum(cell["share"] for cell in band["cells"] if cell) == pytest.approx(1.0)
    assert requests.matrix(store, FLEET, Look("15m", only=Only(model="none")), NOW_NS)["bands"] == []


@pytest.mark.parametrize("name", LIVE)
def test_windows_have_some_steps_and_end_now(name):
    window = Look(name).window(NOW_NS)
    assert 14 <= window.steps <= 150
    assert window.since_ns % window.step_ns == 0
    assert window.since_ns + window.steps * window.step_ns >= NOW_NS > window.since_ns


@pytest.mark.parametrize(
    "asked",
    [{"window": "2h"}, {"window": "custom"}, {"window": "custom", "since": "5", "until": "6"}, {"window": "custom", "since": "x", "until": "-1"}, {"window": "custom", "since": "0", "until": "99999999999999"}],
)  # fmt: skip
def test_no_window(asked):
    with pytest.raises(CallerError):
        look_of(asked)


def test_looks():
    look = look_of({"window": "custom", "since": "60000", "until": "180000", "model": "m" * 900})
    assert (look.live, look.since_ns, len(look.only.model)) == (False, 60 * 10**9, 256)
    assert look_of({}) == Look("15m")


def thinned(rows, every=10, slow_ms=600.0):
    """What sampling leaves of rows: all that are slow, one of `every` of the others, which then stands for so many."""
    slow = [one for one in rows if (one["first_token"] - one["api_recv"]) / 1e6 > slow_ms]
    fast = [one for one in rows if (one["first_token"] - one["api_recv"]) / 1e6 <= slow_ms]
    return slow + [one | {"weight": float(every)} for one in fast[::every]]


def test_the_board_and_the_named_queries_tell_the_same_p99(store):
    """Between the same two order statistics: the board tells one of them within 1 %, the query a point between them."""
    rows = some_rows(2000)
    stored(store, rows)
    asked = {one["engine"]: one["p99_ms"] for one in store.scan("stage_quantiles") if one["stage"] == "ttft"}
    for engine, queried in asked.items():
        exact = ttft_ms(one for one in rows if one["engine"] == engine)
        low, high = exact[(len(exact) - 1) * 99 // 100], exact[(len(exact) - 1) * 99 // 100 + 1]
        told = figures.overview(store, FLEET, Look("15m", only=Only(engine=engine)), NOW_NS)["slo"]["p99_ms"]
        assert low <= queried <= high
        assert low * 0.989 <= told <= high * 1.011


def test_a_thinned_store_tells_the_p99_of_all_requests(store):
    rows = some_rows(4000)
    exact = ttft_ms(rows)[3959]
    stored(store, thinned(rows), closed_before=0)
    told = figures.overview(store, FLEET, Look("15m"), NOW_NS)
    assert told["from_rows"] is True
    assert told["requests"]["total"] == pytest.approx(4000, rel=0.01)
    assert told["slo"]["p99_ms"] == pytest.approx(exact, rel=0.011)


@pytest.mark.parametrize("slow_ms", [600.0, 1e9])
def test_a_thinned_store_tells_the_tail_and_the_matrix_of_all_requests(tmp_path, slow_ms):
    """The slow ones are kept whole, or thinned as well: then within the error of a tenth of the rows."""
    rows = some_rows(20_000)
    tails, bands = [], []
    for name, some in (("whole", rows), ("thin", thinned(rows, slow_ms=slow_ms))):
        with DuckStore(tmp_path / name) as one:
            stored(one, some, closed_before=0)
            tails.append(requests.tail(one, FLEET, Look("15m"), NOW_NS))
            bands.append(requests.matrix(one, FLEET, Look("15m"), NOW_NS))
    whole, thin = tails
    assert (whole["slow_n"], whole["rest_n"]) == (200, 19_800)
    assert thin["slow_n"] == pytest.approx(200, abs=10)
    assert thin["slow_n"] + thin["rest_n"] == pytest.approx(20_000, abs=10)
    exact, told = ({one["stage"]: one for one in tail["stages"]} for tail in tails)
    assert exact.keys() == told.keys()
    slow_rel = 0.02 if slow_ms < 1e9 else 0.25
    assert told["engine_queue"]["slow_ms"] == pytest.approx(exact["engine_queue"]["slow_ms"], rel=slow_rel)
    assert told["engine_queue"]["rest_ms"] == pytest.approx(exact["engine_queue"]["rest_ms"], rel=0.08)
    assert bands[1]["n"] == pytest.approx(20_000, abs=10)
    for one, other in zip(bands[0]["bands"], bands[1]["bands"], strict=True):
        assert other["n"] == pytest.approx(one["n"], rel=0.02, abs=10)
        assert other["low_ms"] == pytest.approx(one["low_ms"], rel=0.25)
        for cell, thin_cell in zip(one["cells"], other["cells"], strict=True):
            assert thin_cell["share"] == pytest.approx(cell["share"], abs=0.05)


@pytest.mark.parametrize("metric", ["ttft", "e2e"])
def test_weights_of_one_change_nothing(store, metric):
    """The weighted question has the same answer over rows that all stand for themselves."""
    stored(store, some_rows(1000))
    bounds = {"since_wall_ns": None, "until_wall_ns": None}
    plain, weighted = (store.scan(f"board_tail_{metric}{end}", **bounds) for end in ("", "_weighted"))
    for one, other in zip(plain, weighted, strict=True):
        assert (other["stage"], other["slow_n"], other["rest_n"]) == (
            one["stage"],
            one["slow_n"],
            one["rest_n"],
        )
        assert other["slow_mean_ms"] == pytest.approx(one["slow_mean_ms"])
        assert other["rest_mean_ms"] == pytest.approx(one["rest_mean_ms"])


@pytest.mark.parametrize("closed_before", [0, NOW_NS // MINUTE_NS * MINUTE_NS])
def test_a_young_store_says_since_when(store, closed_before):
    """Rates are of the time since its first request; with an older one in the store, of the whole window."""
    came = [NOW_NS - 120 * 10**9 + i * 10**9 for i in range(100)]
    rows = [row(i, wall_ns) for i, wall_ns in enumerate(came)]
    stored(store, rows, closed_before=closed_before)
    told = figures.overview(store, FLEET, Look("15m"), NOW_NS)
    assert (told["window"]["first_ms"], told["requests"]["total"]) == (came[0] // 10**6, 100)
    stored(store, [row(500, NOW_NS - 60 * MINUTE_NS)], closed_before=0)
    told = figures.overview(store, FLEET, Look("15m"), NOW_NS)
    assert (told["window"]["first_ms"], told["requests"]["total"]) == (None, 100)


def test_what_callers_did_wrong_does_not_crowd_out_what_went_wrong(store):
    ends = [
        ("failed", 502, "engine_timeout"),
        ("refused", 503, "refused_full"),
        ("refused", 429, "refused_full"),
        ("refused", 429, "quota_requests"),
        ("refused", 404, "model_not_found"),
        ("cancelled", 499, "client_left"),
        ("completed", 200, ""),
    ]
    stored(
        store,
        [
            row(i, NOW_NS - 10**10 * (1 + i), outcome=outcome, status=status, detail=detail)
            for i, (outcome, status, detail) in enumerate(ends)
        ],
    )
    told = requests.listed(store, FLEET, Look("15m"), NOW_NS)["failed"]
    assert [(one["status"], one["detail"]) for one in told] == [end[1:] for end in ends[:3]]
