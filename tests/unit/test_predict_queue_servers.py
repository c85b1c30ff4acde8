"""G/G/c: against customers followed one by one, over the range that is claimed; what is refused; what an IDC curve does."""

import math
from pathlib import Path

import numpy as np
import pytest

from queue_oracles import draw, sojourns
from sits.core.errors import ConfigError
from sits.predict.burstiness import burstiness
from sits.predict.queue import predict_queue
from sits.predict.queue_servers import erlang_c, predict_servers
from sits.predict.queue_service import constant, gamma
from sits.world import stream_generator

TRACES = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "traces"


def followed(arrivals, services, servers):
    """Sojourns by a heap of free times, in seconds."""
    import heapq

    free = [0.0] * servers
    found = np.empty(len(arrivals))
    for i, (at, long) in enumerate(zip(arrivals.tolist(), services.tolist(), strict=True)):
        end = max(at, free[0]) + long
        heapq.heapreplace(free, end)
        found[i] = end - at
    return found


def test_erlangs_c_by_its_sum():
    for servers, load in ((1, 0.5), (3, 0.7), (8, 0.8), (40, 0.95)):
        offered = servers * load
        terms = [offered**k / math.factorial(k) for k in range(servers)]
        last = offered**servers / math.factorial(servers) / (1 - load)
        assert erlang_c(servers, load) == pytest.approx(last / (sum(terms) + last), rel=1e-9)


@pytest.mark.parametrize(("servers", "busy"), [(2, 0.7), (8, 0.8), (32, 0.9)])
def test_many_exponential_servers_have_their_known_tail(servers, busy):
    found = predict_servers(busy * servers / 0.1, gamma(100e6, 1.0), servers)
    gone = erlang_c(servers, busy)
    slow, fast = servers * (1 - busy) / 0.1, 10.0

    def above(t):
        """P(T > t) of M/M/c, in closed form."""
        both = (slow * math.exp(-fast * t) - fast * math.exp(-slow * t)) / (slow - fast)
        return (1 - gone) * math.exp(-fast * t) + gone * both

    assert above(found.p99_ns / 1e9) == pytest.approx(0.01, rel=0.02)
    assert found.waits == pytest.approx(gone)


@pytest.mark.parametrize(
    ("servers", "busy", "count"),
    [(1, 0.5, 300_000), (1, 0.7, 500_000), (1, 0.85, 800_000), (4, 0.5, 100_000), (16, 0.7, 150_000)],
)
def test_p99_is_within_the_claimed_range(servers, busy, count):
    errors = []
    for cs in (0.0, 1.0, 2.0) if servers == 1 else (0.5, 1.0):
        for ca in (0.5, 1.0, 2.0, 3.0):
            dice = stream_generator(servers, f"{ca} {cs} {busy}")
            arrivals = np.cumsum(draw(dice, ca, count, 1.0 / (servers * busy)))
            services = draw(dice, cs, count, 1.0)
            seen = sojourns(arrivals, services) if servers == 1 else followed(arrivals, services, servers)
            found = predict_servers(servers * busy, gamma(1e9, cs), servers, ca)
            errors.append(found.p99_ns / 1e9 / float(np.quantile(seen[2000:], 0.99)) - 1.0)
    assert float(np.median(np.abs(errors))) < 0.09
    assert max(map(abs, errors)) < 0.21


@pytest.mark.parametrize("cv", [0.5, 2.0, 2.5])
def test_a_measured_curve_of_renewal_arrivals_says_what_their_cv_says(cv):
    times = np.cumsum(draw(stream_generator(21, str(cv)), cv, 200_000, 0.1))
    service = gamma(0.7 * 8 * 1e8, 1.0)
    curve = predict_servers(10.0, service, 8, burstiness(times))
    assert curve.p99_ns == pytest.approx(predict_servers(10.0, service, 8, cv).p99_ns, rel=0.12)


def test_one_server_with_poisson_arrivals_is_near_its_exact_answer():
    for cv in (0.5, 1.0, 1.5):
        exact, about = predict_queue(8.0, gamma(1e8, cv)), predict_servers(8.0, gamma(1e8, cv))
        assert about.p99_ns == pytest.approx(exact.p99_ns, rel=0.08)
        assert about.wait_mean_ns == pytest.approx(exact.wait_mean_ns, rel=0.01)


def test_above_cv_3_it_says_simulate():
    for call in (
        lambda: predict_servers(5.0, gamma(1e8, 1.0), 1, 3.1),
        lambda: predict_servers(5.0, gamma(1e8, 3.2)),
    ):
        with pytest.raises(ConfigError, match="simulate"):
            call()


def test_what_was_assumed_is_said():
    assert any("outside the range" in text for text in predict_servers(1.0, constant(1e8)).assumed)
    assert not any("outside the range" in text for text in predict_servers(7.0, constant(1e8)).assumed)
    assert any("CV 2" in text for text in predict_servers(7.0, constant(1e8), arrivals=2.0).assumed)
    assert math.isinf(predict_servers(10.0, constant(1e8)).p99_ns)


def test_a_wandering_rate_is_felt_near_saturation_and_not_at_low_load():
    """Gaps that look like Poisson, a rate that changes each minute: only the IDC of long windows sees it."""
    dice = stream_generator(11, "wander")
    rates = np.repeat([8.0, 12.0], 20)[np.arange(40_000) % 40]
    times = np.concatenate([second + np.sort(dice.random(n)) for second, n in enumerate(dice.poisson(rates))])
    found = burstiness(times)
    assert found.cv < 1.05
    for busy, poisson_low in ((0.3, 0.9), (0.8, 0.5)):
        service = gamma(busy * 1e8, 1.0)
        seen = float(np.quantile(sojourns(times, draw(dice, 1.0, len(times), busy / 10)), 0.99)) * 1e9
        poisson = predict_servers(found.rate_per_s, service)
        bursty = predict_servers(found.rate_per_s, service, arrivals=found)
        assert 0.95 < bursty.p99_ns / seen < 2.7
        assert poisson.p99_ns / seen == pytest.approx(poisson_low, abs=0.1)


def test_a_curve_too_short_for_the_queue_is_said():
    times = np.cumsum(stream_generator(12, "short").gamma(0.5, 0.4, 600))
    found = predict_servers(5.0, gamma(0.195e9, 1.0), arrivals=burstiness(times))
    assert any("record longer" in text for text in found.assumed)


def trace(name):
    path = TRACES / f"{name}.parquet"
    if not path.is_file():
        pytest.skip(f"{path.name} is a published trace and not part of the project")
    columns = pytest.importorskip("pyarrow.parquet").read_table(path).to_pydict()
    return np.sort(
        np.asarray(columns["t_s"] if "t_s" in columns else np.asarray(columns["t_ms"]) / 1e3, float)
    )


@pytest.mark.parametrize(
    ("name", "servers", "busy"),
    [
        ("azure_llm_2023_conv", 1, 0.3),
        ("azure_llm_2023_conv", 1, 0.5),
        ("mooncake_fast25_conversation", 1, 0.5),
        ("mooncake_fast25_conversation", 1, 0.7),
        ("mooncake_fast25_conversation", 8, 0.7),
    ],
)
def test_published_arrivals(name, servers, busy):
    times = trace(name)
    found = burstiness(times)
    mean = servers * busy / found.rate_per_s
    seen = float(
        np.quantile(followed(times, draw(stream_generator(3, name), 1.0, len(times), mean), servers), 0.99)
    )
    about = predict_servers(found.rate_per_s, gamma(mean * 1e9, 1.0), servers, found)
    assert 0.85 < about.p99_ns / 1e9 / seen < 1.35


@pytest.mark.parametrize(("name", "busy"), [("azure_llm_2023_code", 0.3), ("azure_llm_2023_conv", 0.7)])
def test_published_arrivals_too_bursty_for_a_formula_are_refused(name, busy):
    found = burstiness(trace(name))
    with pytest.raises(ConfigError, match="simulate"):
        predict_servers(found.rate_per_s, gamma(8 * busy / found.rate_per_s * 1e9, 1.0), 8, found)
