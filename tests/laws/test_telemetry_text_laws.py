"""Laws of the page parser and of histograms."""

import math
from bisect import bisect_left

from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from prometheus_client import Histogram as ClientHistogram

from sits.core.errors import EngineError
from sits.telemetry.prometheus_text import Histogram, between, parse

values = st.floats(allow_nan=False, width=32)
counts = st.lists(st.integers(0, 50), min_size=1, max_size=8)
seconds = st.lists(st.floats(0, 20, allow_nan=False), min_size=1, max_size=60)
law = settings(deadline=None)
BUCKETS = (0.01, 0.1, 0.5, 1.0, 5.0, 10.0)


@law
@given(st.dictionaries(st.text(max_size=12), values, max_size=5), st.text(max_size=20))
def test_what_the_python_client_writes_is_read_back(by_label, help_text):
    registry = CollectorRegistry()
    gauge = Gauge("g", help_text, ["label"], registry=registry)
    for label, value in by_label.items():
        gauge.labels(label).set(value)
    got = parse(generate_latest(registry).decode())
    assert {dict(s.labels)["label"]: s.value for s in got.samples("g")} == by_label


@law
@given(st.text(max_size=80))
def test_any_text_is_read_or_refused_with_our_error(text):
    try:
        got = parse(text)
    except EngineError:
        return
    assert all(name for name, _ in got.series)


@law
@given(seconds, st.floats(0, 1))
def test_the_bucket_of_a_quantile_holds_the_true_quantile(observed, q):
    registry = CollectorRegistry()
    client = ClientHistogram("h", "", buckets=BUCKETS, registry=registry)
    for value in observed:
        client.observe(value)
    histogram = parse(generate_latest(registry).decode()).histogram("h")
    estimate = histogram.quantile(q)
    ordered = sorted(observed)
    true = ordered[min(len(ordered) - 1, max(0, math.ceil(q * len(ordered)) - 1))]
    assert estimate.low <= true <= estimate.high
    assert estimate.low <= estimate.value <= estimate.high
    assert math.isclose(histogram.mean, sum(observed) / len(observed), abs_tol=1e-9)


@law
@given(seconds)
def test_the_largest_deviation_is_never_below_the_true_one(observed):
    registry = CollectorRegistry()
    client = ClientHistogram("h", "", buckets=BUCKETS, registry=registry)
    for value in observed:
        client.observe(value)
    histogram = parse(generate_latest(registry).decode()).histogram("h")
    mean = sum(observed) / len(observed)
    true = math.sqrt(sum((value - mean) ** 2 for value in observed) / len(observed))
    assert histogram.deviation_max() >= true * (1 - 1e-9) - 1e-7


@law
@given(counts, st.floats(0, 1), st.floats(0, 1))
def test_a_higher_quantile_is_never_lower(by_bucket, one, other):
    bounds = (*(float(i + 1) for i in range(len(by_bucket) - 1)), math.inf)
    histogram = Histogram(bounds, tuple(map(float, by_bucket)), 1.0, float(sum(by_bucket)))
    low, high = histogram.quantile(min(one, other)), histogram.quantile(max(one, other))
    assert (low is None) == (sum(by_bucket) == 0)
    if low is not None:
        assert low.value <= high.value


@law
@given(seconds, seconds)
def test_the_difference_of_two_pages_is_what_was_observed_between_them(first, then):
    registry = CollectorRegistry()
    client = ClientHistogram("h", "", buckets=BUCKETS, registry=registry)
    counter = Counter("c", "", registry=registry)
    for value in first:
        client.observe(value)
        counter.inc(value)
    before = parse(generate_latest(registry).decode())
    for value in then:
        client.observe(value)
        counter.inc(value)
    delta = between(before, parse(generate_latest(registry).decode()))
    got = delta.scrape.histogram("h")
    expected = [0] * (len(BUCKETS) + 1)
    for value in then:
        expected[bisect_left(BUCKETS, value)] += 1
    assert delta.resets == ()
    assert list(got.counts) == expected
    assert math.isclose(got.sum, sum(then), abs_tol=1e-6)
    assert math.isclose(delta.scrape.total("c_total"), sum(then), abs_tol=1e-6)


@law
@given(st.integers(0, 10**6), st.integers(0, 10**6))
def test_a_counters_change_is_never_negative(before, after):
    text = "# TYPE c counter\nc_total {}\n"
    delta = between(parse(text.format(before)), parse(text.format(after)))
    assert delta.scrape.total("c_total") == (after - before if after >= before else after)
    assert bool(delta.resets) == (after < before)
