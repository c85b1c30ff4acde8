"""The metrics of the conventions on the page: each request in the bucket its own time says, under labels that have a bound."""

from bisect import bisect_left

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from sits.core import otel_names as names
from sits.core.breakpoints import API_RECV, FIRST_TOKEN, LAST_TOKEN, SENT
from sits.core.timeline import Timeline
from sits.gateway.conventional import DURATION, SETS_MAX, TPOT, TTFT, Conventional
from sits.gateway.metrics import FAMILIES, Metrics, page
from sits.telemetry.packing import pack
from sits.telemetry.recorder import LABELS, NUMBERS, row_of

MS = 10**6
POINTS = {"start": API_RECV, "first": FIRST_TOKEN, "last": LAST_TOKEN, "sent": SENT}


def row(times, **told):
    """A finished request; `times`: ms by point."""
    line = Timeline()
    for name, ms in times.items():
        line.mark(POINTS[name], 10**12 + ms * MS)
    whole = dict.fromkeys(LABELS, "") | dict.fromkeys(NUMBERS, 0)
    whole |= {"model": "m", "engine": "a", "outcome": "completed", "status": 200, "output_tokens": 11}
    return row_of(line, **whole | {"abstraction_layer": "sits/0 /v1/chat/completions"} | told)


def samples(*batches, providers=None):
    """Values by name and labels, as Prometheus reads the page."""
    metrics, one = Metrics(), Conventional()
    one.providers = providers or {}
    for rows in batches:
        one.fold(metrics.fold([pack(rows)]))
    read = text_string_to_metric_families(page(one.vitals()).decode())
    return {(s.name, *sorted((k, v) for k, v in s.labels.items())): s.value for f in read for s in f.samples}


def of(found, name, **labels):
    given = {f"gen_ai_{k}": v for k, v in labels.items() if k not in ("le", "error_type")}
    given |= {k: v for k, v in labels.items() if k in ("le", "error_type")}
    return found.get((name, *sorted(given.items())))


CHAT = {"operation_name": "chat", "provider_name": "anthropic", "request_model": "m"}


def test_each_time_has_the_name_and_the_buckets_of_the_conventions():
    whole = {"start": 0, "first": 100, "last": 600, "sent": 640}
    found = samples([row(whole), row(whole)], [row(whole)], providers={"a": "anthropic"})
    assert of(found, f"{DURATION}_count", **CHAT) == 3
    assert round(of(found, f"{DURATION}_sum", **CHAT), 9) == 1.92
    assert (of(found, f"{DURATION}_bucket", le="0.64", **CHAT), of(found, f"{DURATION}_bucket", le="0.32", **CHAT)) == (3, 0)  # fmt: skip
    assert (of(found, f"{TTFT}_bucket", le="0.1", **CHAT), of(found, f"{TTFT}_bucket", le="0.08", **CHAT)) == (3, 0)  # fmt: skip
    assert round(of(found, f"{TPOT}_sum", **CHAT), 9) == 0.15, "500 ms for the ten tokens after the first"
    assert {DURATION, TTFT, TPOT} <= FAMILIES.keys()
    assert {key for key, *_ in found if key.startswith("gen_ai")} == {
        f"{name}_{part}" for name in (DURATION, TTFT, TPOT) for part in ("bucket", "sum", "count")
    }


def test_what_failed_has_a_duration_and_says_so():
    told = {"outcome": "failed", "status": 502, "detail": 'engine "died"'}
    found = samples([row({"start": 0, "first": 1, "sent": 5}, **told)])
    assert (
        of(found, f"{DURATION}_count", **CHAT | {"provider_name": "openai", "error_type": 'engine "died"'})
        == 1
    )
    assert not any(key[0].startswith((TTFT, TPOT)) for key in found)


def test_what_callers_make_up_is_no_label_and_sets_have_a_bound():
    whole = {"start": 0, "sent": 5}
    refused = [row(whole, model=f"made-up-{i}", engine="", outcome="refused", status=404) for i in range(500)]
    many = [row(whole, model=f"m{i}") for i in range(500)]
    found = samples(refused, many)
    assert (
        of(found, f"{DURATION}_count", operation_name="chat", provider_name="openai", error_type="404") == 500
    )
    counts = {key: value for key, value in found.items() if key[0] == f"{DURATION}_count"}
    assert len(counts) == SETS_MAX + 1
    assert sum(counts.values()) == 1000
    assert of(found, f"{DURATION}_count", operation_name="other", provider_name="other") == 500 - SETS_MAX + 1


TIMES = st.dictionaries(st.sampled_from(list(POINTS)), st.integers(0, 100_000))


@given(
    st.lists(st.tuples(TIMES, st.integers(0, 50), st.sampled_from(("completed", "cancelled")))),
    st.integers(0, 9),
)
def test_buckets_are_those_of_each_request_alone(made, cut):
    rows = [row(t, output_tokens=n, outcome=o) for t, n, o in made]
    found = samples(*(some for some in (rows[:cut], rows[cut:]) if some))
    expected = {DURATION: [], TTFT: [], TPOT: []}
    for t, n, o in made:
        if {"start", "sent"} <= t.keys():
            expected[DURATION].append((t["sent"] - t["start"]) * MS)
        if o == "completed" and {"start", "first"} <= t.keys():
            expected[TTFT].append((t["first"] - t["start"]) * MS)
        if o == "completed" and {"first", "last"} <= t.keys() and n > 1:
            expected[TPOT].append((t["last"] - t["first"]) * MS // (n - 1))
    bounds = {DURATION: names.SECONDS_BUCKETS, TTFT: names.TTFT_BUCKETS, TPOT: names.TPOT_BUCKETS}
    for family, values in expected.items():
        told = [v for key, v in found.items() if key[0] == f"{family}_bucket"]
        ns = [round(bound * 1e9) for bound in bounds[family]]
        counts = [sum(bisect_left(ns, value) <= i for value in values) for i in range(len(ns) + 1)]
        assert told == (counts if values else [])
