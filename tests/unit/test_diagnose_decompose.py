import numpy as np
import pytest

from diagnose_tables import MS, Knobs, dice, make
from sits.core.breakpoints import INDEX, TTFT_STAGES
from sits.core.errors import CallerError
from sits.diagnose.decompose import (
    account,
    decompose,
    latency_summary,
    left_out,
    slow_and_normal,
    stage_shares,
    waterfall,
)


def rng():
    return dice(7)


def quiet(**knobs):
    return make(Knobs(**knobs))[0]


def blind(requests, *names):
    """The same table with these points not seen."""
    hidden = {INDEX[name] for name in names}
    requests["exactness"] = np.array(
        ["".join("0" if i in hidden else c for i, c in enumerate(text)) for text in requests["exactness"]],
        dtype=object,
    )
    return requests


def test_ttft_is_cut_into_the_17_stages_in_order():
    cut = decompose(quiet(n=50), "ttft")
    assert cut.names == TTFT_STAGES
    assert set(cut.exactness) == {"measured"}
    assert np.array_equal(cut.stage_ns.sum(axis=1), cut.total_ns)


def test_points_not_seen_merge_into_one_named_remainder():
    requests = blind(quiet(n=50), "tokenized", "queued")
    cut = decompose(requests, "ttft")
    assert "unattributed (engine_recv..scheduled)" in cut.names
    assert "tokenize" not in cut.names
    assert np.array_equal(
        cut.stage("unattributed (engine_recv..scheduled)"), requests["scheduled"] - requests["engine_recv"]
    )


def test_a_virtual_clock_may_start_at_zero():
    requests = quiet(n=50)
    start = requests["api_recv"][0]
    for name in ("api_recv", "first_token", "sent"):
        requests[name] = requests[name] - start
    blind(
        requests,
        *[n for n in decompose(quiet(n=2), "e2e").names if n in requests],
        "parsed", "authorized", "routed", "dispatched", "engine_recv", "tokenized", "queued", "scheduled", "kv_allocated", "kv_ready",
        "batch_built", "inputs_copied", "graph_chosen", "attention_ready", "collective_ready", "kernel_launch",
    )  # fmt: skip
    cut = decompose(requests, "ttft")
    assert len(cut.rows) == 50
    assert cut.names == ("unattributed (api_recv..first_token)",)


def test_only_completed_requests_with_both_ends_and_rising_times_count():
    requests = quiet(n=50)
    requests["outcome"][3] = "refused"
    requests["queued"][5] = requests["tokenized"][5] - 1
    requests["exactness"][8] = "3" * 17 + "033"
    cut = decompose(requests, "ttft")
    assert sorted(set(range(50)) - set(cut.rows.tolist())) == [3, 5, 8]
    assert (cut.disordered, cut.incomplete) == (1, 1)


def test_exactness_of_a_stage_is_that_of_its_least_trusted_end():
    requests = quiet(n=50)
    requests["exactness"][7] = "3" * 7 + "1" + "3" * 12
    cut = decompose(requests, "ttft")
    by_name = dict(zip(cut.names, cut.exactness, strict=True))
    assert by_name["enqueue"] == by_name["engine_queue"] == "sampled"
    assert by_name["tokenize"] == "measured"


def test_the_stage_that_makes_the_tail_carries_its_excess():
    wait = np.zeros(1000)
    wait[::100] = 400.0
    shares = stage_shares(quiet(gateway_wait_ms=wait), "ttft", rng())
    worst = max(shares, key=lambda s: s.excess.value)
    assert worst.stage == "authorize"
    assert worst.layer == "http"
    assert worst.excess.value == pytest.approx(400.0)
    assert worst.excess.low <= 400.0 <= worst.excess.high


def test_latency_summary_counts_ranks_and_brackets():
    requests = quiet(n=1000)
    summary = latency_summary(requests, "ttft", rng())
    ttft = np.sort(requests["first_token"] - requests["api_recv"]) / MS
    assert summary.n == 1000
    assert summary.p50_ms == ttft[499]
    assert summary.p99.value == ttft[989]
    assert summary.p99.low <= summary.p99.value <= summary.p99.high <= summary.max_ms
    assert summary.p99.low < summary.p99.high
    assert summary == latency_summary(requests, "ttft", rng())


def test_account_adds_up_and_names_an_unknown_outcome():
    requests = quiet(n=10)
    requests["outcome"][:4] = ["failed", "cancelled", "refused", ""]
    found = account(requests)
    assert (
        found.offered,
        found.completed,
        found.failed,
        found.cancelled,
        found.refused,
        found.in_flight,
    ) == (10, 6, 1, 1, 1, 1)
    requests["outcome"][0] = "lost"
    with pytest.raises(CallerError, match="'lost' is not an outcome"):
        account(requests)


def test_waterfall_bars_touch_and_fill_the_whole():
    drawn = waterfall(quiet(n=5), 2, "one")
    end = 0.0
    for bar in drawn.bars:
        assert bar.start_ms == pytest.approx(end)
        end = bar.start_ms + bar.duration_ms
    assert drawn.total_ms == pytest.approx(end)
    assert drawn.facts["engine"] == "e0"
    with pytest.raises(CallerError, match="no request row 5"):
        waterfall(quiet(n=5), 5)


def test_slow_and_normal_stand_at_p99_and_median():
    requests = quiet(n=500)
    slow, normal = slow_and_normal(requests)
    ttft = dict(zip(requests["id"], requests["first_token"] - requests["api_recv"], strict=True))
    ranked = sorted(ttft.values())
    assert ttft[slow.request_id] == ranked[494]
    assert ttft[normal.request_id] == ranked[249]


def test_bad_input_is_named():
    requests = quiet(n=5)
    with pytest.raises(CallerError, match="'p99' is not a latency"):
        decompose(requests, "p99")
    requests["exactness"][1] = "33"
    with pytest.raises(CallerError, match="exactness of row 1"):
        decompose(requests, "ttft")
    del requests["queued"]
    with pytest.raises(CallerError, match="no column 'queued'"):
        decompose(requests, "ttft")


def test_no_completed_request_is_an_error_for_a_summary_and_nothing_for_a_cut():
    requests = quiet(n=5)
    requests["outcome"][:] = "refused"
    assert len(decompose(requests, "ttft").rows) == 0
    with pytest.raises(CallerError, match="no completed request"):
        latency_summary(requests, "ttft", rng())
    with pytest.raises(CallerError, match="no completed request"):
        slow_and_normal(requests)


def test_what_was_left_out_is_told_with_its_reason():
    requests = quiet(n=50)
    assert left_out(requests, "ttft") == ()
    requests["queued"][5] = requests["tokenized"][5] - 1
    for row in (8, 9):
        requests["exactness"][row] = "3" * 17 + "033"
    requests["outcome"][3] = "refused"
    disordered, unseen = (note.text for note in left_out(requests, "ttft"))
    assert disordered == (
        "1 completed request is left out of the decomposition of TTFT: their times decrease."
    )
    assert unseen.startswith("2 completed requests are left out of the decomposition of TTFT: no arrival or")
    assert "not streamed" in unseen
    assert [note.text[:1] for note in left_out(requests, "e2e")] == ["1"]
