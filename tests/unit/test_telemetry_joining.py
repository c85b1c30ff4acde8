"""What engines saw meets our rows: on recorded spans of a real vLLM, and on small tables where every cell is known."""

import numpy as np

from otlp_cases import (
    MS,
    WALL,
    recorded_vllm,
    request_id,
    requests,
    row,
    sighting,
    sightings,
    whole,
)
from sits.core.breakpoints import ENGINE_RECV, FIRST_TOKEN, INDEX, QUEUED, SCHEDULED
from sits.core.otel_aliases import LATENCIES
from sits.diagnose.decompose import decompose
from sits.telemetry.joining import completed, notes
from sits.telemetry.otlp.sighted import sighting_columns
from sits.telemetry.store import DuckStore


def unix(ms):
    return WALL + round(ms * MS)


def cell(joined, name, i=0):
    return joined.requests[name][i] / MS, int(joined.requests["exactness"][i][INDEX[name]])


def test_one_clock_measured_cells_are_taken_as_they_are():
    seen = sightings(
        sighting(request_id(0), {"engine_recv": unix(6), "scheduled": unix(50), "first_token": unix(98)})
    )
    joined = completed(requests(row(0, whole())), seen)
    assert cell(joined, "engine_recv") == (6, 3)
    assert cell(joined, "scheduled") == (50, 3)
    assert cell(joined, "first_token") == (100, 3), "ours stays"
    assert (joined.sources[0].shift_ns, joined.sources[0].filled, joined.strays) == (0, 2, 0)


def test_another_clock_is_moved_by_the_midpoint_and_derived():
    off = 5_000
    at = {"engine_recv": unix(off + 6), "scheduled": unix(off + 50), "first_token": unix(off + 98)}
    joined = completed(requests(row(0, whole())), sightings(sighting(request_id(0), at)))
    source = joined.sources[0]
    assert (source.low_ns, source.high_ns) == ((off - 2) * MS, (off + 2) * MS)
    assert cell(joined, "engine_recv") == (6, 2)
    assert "so derived" in notes(joined)[0]


def test_clocks_that_fit_for_no_offset_are_not_compared():
    rows = [row(n, whole(1000 * n)) for n in range(4)]
    jumped = [
        sighting(
            request_id(n), {"engine_recv": unix(1000 * n + 6 + off), "first_token": unix(1000 * n + 98 + off)}
        )
        for n, off in enumerate((0, 0, 500, 500))
    ]
    table = requests(*rows)
    joined = completed(table, sightings(*jumped))
    assert not joined.sources[0].comparable
    assert joined.filled == 0
    assert (joined.requests["exactness"] == table["exactness"]).all()
    assert "no offset" in notes(joined)[0]


def test_one_request_that_contradicts_a_hundred_is_left_out_alone():
    rows = [row(n, whole(1000 * n)) for n in range(20)]
    told = [sighting(request_id(n), {"engine_recv": unix(1000 * n + 6)}) for n in range(20)]
    told[7] = sighting(request_id(7), {"engine_recv": unix(7002)})  # the first try, before we sent it again
    joined = completed(requests(*rows), sightings(*told))
    assert (joined.sources[0].shift_ns, joined.sources[0].impossible, joined.filled) == (0, 1, 19)
    assert cell(joined, "engine_recv", 7)[1] == 0


def test_a_cell_that_breaks_the_order_is_dropped_and_counted():
    how = {"queued": 2, "scheduled": 3}
    at = {"engine_recv": unix(6), "queued": unix(60), "scheduled": unix(50)}
    joined = completed(requests(row(0, whole())), sightings(sighting(request_id(0), at, how=how)))
    assert cell(joined, "scheduled") == (50, 3), "what was measured goes before what was derived"
    assert cell(joined, "queued") == (0, 0)
    assert joined.sources[0].dropped == 1


def test_requests_of_one_trace_are_told_apart_by_their_call():
    trace = "ab" * 16
    rows = [row(n, whole(1000 * n), trace_id=trace) for n in range(2)]
    told = sighting(trace, {"engine_recv": unix(1007)}, parent_id=request_id(1)[16:])
    joined = completed(requests(*rows), sightings(told, sighting(trace, {"engine_recv": unix(6)})))
    assert cell(joined, "engine_recv", 1) == (1007, 3)
    assert cell(joined, "engine_recv", 0)[1] == 0
    assert joined.strays == 1, "nobody can say whose the other is"


def test_a_probe_and_the_engines_own_span_complete_each_other():
    rows = requests(row(0, whole()))
    told = sightings(
        sighting(request_id(0), {"engine_recv": unix(6), "queued": unix(20)}, how={"queued": 2}),
        sighting(request_id(0), {"tokenized": unix(9), "queued": unix(10)}, source="probe", scheme="sits"),
    )
    joined = completed(rows, told)
    assert [cell(joined, name) for name in ("engine_recv", "tokenized", "queued")] == [
        (6, 3),
        (9, 3),
        (10, 3),
    ]


def test_nothing_to_join_leaves_the_very_rows():
    table = requests(row(0, whole()))
    assert completed(table, sightings()).requests is table
    assert completed(requests(), sightings(sighting(request_id(0), {"engine_recv": 1}))).strays == 1


# -- a real vLLM -----------------------------------------------------------------------------------------------


def joined_vllm():
    rows, spans = recorded_vllm()
    table = requests(*[one for one, _ in rows])
    return rows, spans, table, completed(table, sighting_columns("", spans))


def test_recorded_spans_join_their_clients_requests():
    _, spans, _, joined = joined_vllm()
    assert sum(one.span.name == "llm_request" for one in spans) == 191
    (source,) = joined.sources
    assert source.comparable
    assert source.shift_ns == 0, "both ran on one machine"
    assert source.rows == 189
    assert (source.dropped, source.impossible, joined.strays) == (0, 0, 1)
    seen = joined.requests["engine_recv"] > 0
    assert seen.sum() == 189
    split = decompose({name: values[seen] for name, values in joined.requests.items()}, "ttft")
    assert len(split.rows) == 189


def test_the_same_spans_on_a_clock_that_is_two_seconds_off_give_the_same_stages():
    _, spans, table, joined = joined_vllm()
    told = sighting_columns("", spans)
    for name in INDEX:
        told[name] = np.where(told[name] > 0, told[name] + 2 * 10**9, 0)
    moved = completed(table, told)
    (source,) = moved.sources
    assert source.low_ns <= 2 * 10**9 <= source.high_ns
    assert source.high_ns - source.low_ns < 60 * MS
    for a, b in (("engine_recv", "queued"), ("queued", "scheduled")):
        stays = (joined.requests[b] > 0) & (moved.requests[b] > 0)
        assert stays.sum() == 189
        apart = (moved.requests[b] - moved.requests[a])[stays] - (joined.requests[b] - joined.requests[a])[
            stays
        ]
        assert np.abs(apart).max() == 0


def test_trap_two_latencies_are_called_time_to_first_token():
    assert LATENCIES["gen_ai.latency.time_to_first_token"] == (ENGINE_RECV, FIRST_TOKEN)
    assert LATENCIES["time_to_first_token_ms"] == (SCHEDULED, FIRST_TOKEN)
    rows, spans, _, joined = joined_vllm()
    by_trace = {one.span.trace_id: one.span.attributes for one in spans}
    worst = 0.0
    for i, (_, told) in enumerate(rows):
        metrics, about = told["server_metrics"], by_trace.get(told["trace"])
        if not metrics or about is None or not joined.requests["scheduled"][i]:
            continue
        answer_ms = metrics["time_to_first_token_ms"]
        span_ms = about["gen_ai.latency.time_to_first_token"] * 1e3
        assert abs(answer_ms - about["gen_ai.latency.time_in_model_prefill"] * 1e3) < 1e-3, (
            "prefill, whatever its name"
        )
        ours_ms = (joined.requests["first_token"][i] - joined.requests["scheduled"][i]) / MS
        assert ours_ms >= answer_ms, "what the row calls prefill holds all of the engine's"
        worst = max(worst, span_ms / answer_ms)
    assert worst > 40, "taking one for the other is wrong by this factor"


def test_trap_queue_and_prefill_are_not_all_of_the_time_to_first_token():
    _, _, _, joined = joined_vllm()
    table = joined.requests
    seen = table["queued"] > 0
    ttft, before = (table[b][seen] - table["api_recv"][seen] for b in ("first_token", "queued"))
    share = before / ttft
    assert np.median(before) > 100 * MS
    assert (before > 0).all()
    assert share.max() > 0.5, "for some requests most of it lies outside the engine's core"
    split = decompose({name: values[seen] for name, values in table.items()}, "ttft")
    outside = [i for i, name in enumerate(split.names) if "engine_recv..queued" in name]
    assert [split.layers[i] for i in outside] == ["unattributed"], split.names
    assert (split.stage_ns[:, outside[0]] > 0).all()
    assert (split.stage_ns.sum(axis=1) == split.total_ns).all()


def test_trap_a_queue_time_of_nothing_while_requests_wait():
    _, _, _, joined = joined_vllm()
    table = joined.requests
    seen = table["queued"] > 0
    queue, outside = (
        (table["scheduled"] - table["queued"])[seen],
        (table["queued"] - table["dispatched"])[seen],
    )
    none_told = queue < MS
    assert none_told.sum() > 10
    assert outside[none_told].max() > 300 * MS, (
        "they waited for the core's loop, before its clock of the queue began"
    )


def test_trap_counts_of_the_queue_leave_out_what_has_not_reached_the_core():
    _, _, _, joined = joined_vllm()
    table = joined.requests
    seen = table["queued"] > 0
    dispatched, queued, scheduled = (table[name][seen] for name in ("dispatched", "queued", "scheduled"))
    at = dispatched + 50 * MS  # a look at the engine 50 ms after each request was sent
    outside = [int(((dispatched <= t) & (t < queued)).sum()) for t in at]
    waiting = [int(((queued <= t) & (t < scheduled)).sum()) for t in at]
    hidden = [o for o, w in zip(outside, waiting, strict=True) if w == 0 and o > 0]
    assert max(hidden) >= 5, "the engine's count says nobody waits, and so many do"
    assert QUEUED < SCHEDULED


def test_sightings_of_a_trace_with_many_requests_come_out_of_the_store_once(tmp_path):
    trace = "ab" * 16
    rows = [row(n, whole(1000 * n), trace_id=trace) for n in range(3)]
    told = [
        sighting(trace, {"engine_recv": unix(1000 * n + 6)}, parent_id=request_id(n)[16:]) for n in range(3)
    ]
    with DuckStore(tmp_path) as store:
        store.append("requests", requests(*rows))
        store.append("sightings", sightings(*told, sighting("cd" * 16, {"engine_recv": unix(0)})))
        store.flush()
        seen = store.columns("sightings_window", run_id="run-1", since_wall_ns=WALL)
        joined = completed(store.columns("requests_window"), seen)
    assert len(seen["trace_id"]) == 3
    assert (joined.filled, joined.strays) == (3, 0)
    assert [cell(joined, "engine_recv", n) for n in range(3)] == [(1000 * n + 6, 3) for n in range(3)]
