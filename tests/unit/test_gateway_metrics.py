"""The metrics page: counting rows is counting requests, parts add up, and Prometheus can read all of it."""

import math

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from sits.core.breakpoints import API_RECV, FIRST_TOKEN, SENT
from sits.core.replica import Replica
from sits.core.timeline import Timeline
from sits.gateway.metrics import (
    BUCKETS_S,
    FAMILIES,
    LABELS_MAX,
    Histogram,
    Metrics,
    added,
    engine_vitals,
    page,
)
from sits.gateway.places import Place, Places
from sits.gateway.shared import Shared
from sits.telemetry.packing import HIGH, KIND, LOW, Packed, pack
from sits.telemetry.recorder import LABELS, NUMBERS, OWN_TEXTS, Recorder, row_of
from sits.telemetry.tables import REQUESTS
from sits.world import RealWorld

TIMES = st.one_of(st.none(), st.integers(0, 200 * 10**9))
FINISHED = st.fixed_dictionaries(
    {
        "outcome": st.sampled_from(("completed", "failed", "cancelled", "refused")),
        "engine": st.sampled_from(("", "a", 'quoted"\\\n')),
        "detail": st.sampled_from(("", "client_left", "engine_died", "quota_exceeded")),
        "status": st.sampled_from((200, 400, 429, 503)),
        "output_tokens": st.integers(0, 1000),
        "start": TIMES,
        "first": TIMES,
        "sent": TIMES,
    }
)


def recorded(finished):
    recorder = Recorder(1000, RealWorld(), "run")
    for one in finished:
        line = Timeline()
        for point, name in ((API_RECV, "start"), (FIRST_TOKEN, "first"), (SENT, "sent")):
            if one[name] is not None:
                line.mark(point, one[name])
        row = {name: 0 if REQUESTS[name] == "INTEGER" else "" for name in LABELS}
        recorder.record(row_of(line, **row | {name: one[name] for name in row if name in one}))
    return recorder.take()


@given(
    st.lists(FINISHED, max_size=30),
    st.integers(0, 30),
    st.sampled_from(("ttft", "e2e")),
    st.integers(1, 200 * 10**9),
)
def test_a_fold_over_rows_is_what_counting_each_request_gives_however_the_rows_are_cut(
    finished, cut, metric, objective
):
    folded, counted = Metrics(), Metrics()
    for one in (folded, counted):
        one.judge(metric, objective, ["a"])
    folded.fold([pack(recorded(part)) for part in (finished[:cut], finished[cut : 2 * cut])])
    folded.fold([pack(recorded(finished[2 * cut :]))])
    for one in finished:
        start, first, sent = one["start"], one["first"], one["sent"]
        counted.count(
            one["outcome"],
            one["engine"],
            one["detail"],
            one["output_tokens"],
            None if start is None or first is None else first - start,
            None if start is None or sent is None else sent - start,
            one["status"],
        )
    assert folded.vitals() == counted.vitals()
    assert folded.completed == sum(one["outcome"] == "completed" for one in finished)
    text = page(folded.vitals()).decode()
    samples = {
        (s.name, tuple(s.labels.values())): s.value
        for family in text_string_to_metric_families(text)
        for s in family.samples
    }
    totals = [value for (name, _), value in samples.items() if name == "sits_requests_total"]
    assert sum(totals) == len(finished)
    judged = [
        o[end] - o["start"]
        for end in [{"ttft": "first", "e2e": "sent"}[metric]]
        for o in finished
        if o["outcome"] == "completed" and None not in (o["start"], o[end])
    ]
    assert sum(folded.judged.values()) == len(judged)
    assert sum(folded.missed.values()) == sum(ns > objective for ns in judged)
    timed = [o for o in finished if o["outcome"] == "completed" and None not in (o["start"], o["sent"])]
    for bound in (*BUCKETS_S, math.inf):
        for engine in ("", "a", 'quoted"\\\n'):
            mine = [(o["sent"] - o["start"]) / 1e9 for o in timed if o["engine"] == engine]
            key = ("sits_e2e_seconds_bucket", (engine, "+Inf" if bound == math.inf else str(bound)))
            assert samples.get(key, 0) == sum(s <= bound for s in mine)


def test_every_label_is_packed_as_what_it_is():
    assert {*KIND, *NUMBERS, *OWN_TEXTS} == set(LABELS)
    assert all(REQUESTS[name] == "INTEGER" for name in NUMBERS)
    assert all(REQUESTS[name] == "VARCHAR" for name in OWN_TEXTS)
    assert [name for name in KIND if REQUESTS[name] == "INTEGER"] == ["status"]


def test_numbers_no_64_bits_hold_are_clipped_and_travel():
    one = {"outcome": "completed", "engine": "e", "detail": "", "start": 1, "first": 2, "sent": 3}
    rows = recorded([one | {"output_tokens": n} for n in (2**70, 5, -(2**70))])
    packed = pack(rows)
    assert packed.numbers[NUMBERS.index("output_tokens")] == [HIGH, 5, LOW]
    assert msgspec.convert(msgspec.msgpack.decode(msgspec.msgpack.encode(packed)), Packed).kind == packed.kind


@given(
    st.lists(
        st.dictionaries(
            st.sampled_from(("x_total", "y")), st.dictionaries(st.sampled_from("abc"), st.integers(0, 9))
        ),
        max_size=5,
    )
)
def test_parts_add_up_sample_by_sample(parts):
    total = added(parts)
    for name in ("x_total", "y"):
        for labels in "abc":
            assert total.get(name, {}).get(labels, 0) == sum(p.get(name, {}).get(labels, 0) for p in parts)


def test_label_sets_are_bounded_and_the_rest_is_still_counted():
    metrics = Metrics()
    for i in range(LABELS_MAX + 500):
        metrics.count("refused", "", f"code_{i}", 0, None, None)
    assert len(metrics.requests) == LABELS_MAX + 1
    assert sum(metrics.requests.values()) == LABELS_MAX + 500


def test_every_family_is_on_the_page_once_and_readable():
    vitals = Metrics().vitals()
    Histogram((0.5, 1.0)).put(vitals, "sits_gc_pause_seconds")
    families = list(text_string_to_metric_families(page(vitals).decode()))
    assert [f.name for f in families] == [name.removesuffix("_total") for name in FAMILIES]
    assert {f.name: f.type for f in families} == {
        n.removesuffix("_total"): kind for n, (kind, _) in FAMILIES.items()
    }


def test_the_page_tells_of_engines_what_the_table_of_all_workers_says():
    shared, slots = Shared(2, 4), {"a": 2, "b": 0}
    for worker in range(2):
        places = Places([Replica(id="a"), Replica(id="b")], Place(shared, worker, slots))
        places.take(places.by_id["a"], 100 + worker)
    vitals = engine_vitals(shared, slots, 1)
    assert vitals["sits_inflight_requests"] == {'engine="a"': 2, 'engine="b"': 0}
    assert vitals["sits_inflight_tokens"] == {'engine="a"': 201, 'engine="b"': 0}
    assert vitals["sits_engine_healthy"] == {'engine="a"': 1, 'engine="b"': 1}
