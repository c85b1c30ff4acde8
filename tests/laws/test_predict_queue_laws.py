"""Laws of queues: more load never waits less, units do not matter, tails fall, and the parts fit together."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sits.predict.queue import predict_queue, sojourn_above
from sits.predict.queue_servers import erlang_c, predict_servers
from sits.predict.queue_service import constant, gamma, measured, two_kinds

services = st.one_of(
    st.floats(1e5, 1e9).map(constant),
    st.builds(two_kinds, st.floats(1e5, 1e7), st.floats(2e7, 1e9), st.floats(0.01, 0.9)),
    st.builds(gamma, st.floats(1e6, 1e9), st.floats(0.05, 3.0)),
    st.lists(st.floats(1e5, 1e9), min_size=1, max_size=40).map(measured),
)
loads = st.floats(0.05, 0.97)


@settings(max_examples=25, deadline=None)
@given(services, loads, loads)
def test_more_load_never_waits_less(service, one, two):
    low, high = sorted((one, two))
    rates = [load / service.mean_ns * 1e9 for load in (low, high)]
    for method in ("inversion", "tail"):
        first, second = (predict_queue(rate, service, method=method) for rate in rates)
        assert second.wait_mean_ns >= first.wait_mean_ns * (1 - 1e-9)
        if method == "inversion":
            assert second.p99_ns >= first.p99_ns * (1 - 1e-3)


@settings(max_examples=25, deadline=None)
@given(services, loads)
def test_quantiles_are_ordered_and_above_the_service(service, load):
    found = predict_queue(load / service.mean_ns * 1e9, service)
    assert 0.0 < found.p50_ns <= found.p99_ns
    assert found.p99_ns >= service.quantile_ns(0.99) * (1 - 1e-3)
    assert found.mean_ns == pytest.approx(found.wait_mean_ns + service.mean_ns)
    # Markov: no more than 1 % can lie above a hundred means.
    assert found.p99_ns <= 100 * found.mean_ns * (1 + 1e-6)


@settings(max_examples=25, deadline=None)
@given(services, loads, st.floats(0.05, 20.0), st.floats(0.05, 20.0))
def test_the_tail_falls_and_is_a_share(service, load, one, two):
    rate = load / service.mean_ns * 1e9
    near, far = sorted((one * service.mean_ns, two * service.mean_ns))
    first, second = (sojourn_above(rate, service, t) for t in (near, far))
    assert 0.0 <= second <= first + 2e-3 <= 1.0 + 2e-3


@settings(max_examples=20, deadline=None)
@given(services, loads, st.sampled_from([0.25, 4.0, 1024.0]))
def test_a_change_of_the_unit_changes_nothing_else(service, load, scale):
    slower = measured(service.values_ns * scale)
    same = measured(service.values_ns)
    rate = load / same.mean_ns * 1e9
    one, two = predict_queue(rate, same), predict_queue(rate / scale, slower)
    assert two.p99_ns == pytest.approx(one.p99_ns * scale, rel=1e-4)


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 300), st.floats(0.01, 0.999))
def test_erlang_c_is_a_share_and_falls_with_servers_at_one_load(servers, load):
    one, more = erlang_c(servers, load), erlang_c(servers + 0.5, load)
    assert 0.0 <= more <= one <= 1.0
    assert erlang_c(1, load) == pytest.approx(load, rel=1e-9)


@settings(max_examples=50, deadline=None)
@given(services, st.integers(1, 64), loads, st.floats(0.3, 2.9), st.floats(0.3, 2.9))
def test_burstier_arrivals_never_shorten_the_predicted_tail(service, servers, load, one, two):
    if service.cv > 3.0:
        return
    rate = load * servers / service.mean_ns * 1e9
    calm, bursty = (predict_servers(rate, service, servers, cv) for cv in sorted((one, two)))
    assert bursty.p99_ns >= calm.p99_ns * (1 - 1e-4)
    assert math.isfinite(bursty.p99_ns)
    assert calm.p99_ns >= service.quantile_ns(0.99) * (1 - 1e-4)
