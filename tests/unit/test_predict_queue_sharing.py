"""Processor sharing for continuous batching: against the step-by-step simulator, customers that share, and known queues."""

import math
from pathlib import Path

import numpy as np
import pytest

from sits.core.errors import ConfigError
from sits.core.fleet import Model
from sits.predict.derive import derive_steptime
from sits.predict.prepare import Rank
from sits.predict.profile import load_profile
from sits.predict.queue_sharing import GOOD_UP_TO, Work, predict_sharing, work_of
from sits.sim.model import simulate
from sits.sim.spec import EngineSpec, FrontEnd
from sits.world import stream_generator

MODEL = Model(
    name="llama-3-8b",
    layers=32,
    hidden=4096,
    heads=32,
    kv_heads=8,
    head_dim=128,
    intermediate=14336,
    vocab=128256,
    weights=16_060_000_000,
)
SEATS = 128


def requests(count):
    """Lengths like those of conversations: prompts of some thousand tokens, outputs of some hundred."""
    dice = stream_generator(5, "lengths")
    prompts = np.clip(dice.lognormal(6.6, 0.9, count), 20, 3500).astype(np.int64)
    outputs = np.clip(dice.lognormal(5.1, 0.7, count), 10, 1000).astype(np.int64)
    return prompts, outputs


@pytest.mark.parametrize("gpu", ["A100-SXM4-80GB", "H100-SXM5-80GB"])
def test_within_5_percent_of_the_simulator_up_to_70_percent_of_capacity(gpu):
    count = 12_000
    prompts, outputs = requests(count)
    step = derive_steptime(MODEL, gpu, 1)
    spec = EngineSpec(
        step=step, ranks=(Rank(bandwidth=25e9),), blocks=60_000, max_num_seqs=SEATS, host=None, front=FrontEnd(api_us=0, tokenize_us_per_token=0, enqueue_us=0),
    )  # fmt: skip
    work = work_of(step, prompts, outputs, SEATS)
    capacity = predict_sharing(1e-3, work).capacity_per_s
    wrong = []
    for load in (0.05, 0.2, 0.4, 0.55, 0.69):
        rate = load * capacity
        arrivals = np.cumsum(stream_generator(7, f"{load}").exponential(1e9 / rate, count)).astype(np.int64)
        ran = simulate(arrivals, prompts, outputs, None, spec)
        seen = (ran.last_token_ns - arrivals)[1000:]
        found = predict_sharing(rate, work)
        assert not found.beyond
        wrong.append(
            (load, found.e2e_mean_ns / seen.mean() - 1, found.e2e_p99_ns / np.quantile(seen, 0.99) - 1)
        )
    assert all(abs(mean) < 0.05 and abs(p99) < 0.05 for _, mean, p99 in wrong), wrong


def test_a_server_alone_is_m_m_1_and_many_seats_are_m_m_infinity():
    one = Work(np.array([10e6]), 0.0, 10.0, 46.0)
    found = predict_sharing(7.0, one)
    assert found.in_flight_mean == pytest.approx(0.7 / 0.3)
    assert found.waits == pytest.approx(0.7)
    assert predict_sharing(7.0, Work(np.full(500, 10e6), 0.0, 10.0, 46.0)).in_flight_mean == pytest.approx(
        0.7
    )


def test_only_the_mean_of_the_lengths_matters_to_those_that_share():
    """Customers followed one by one: constant, exponential and very unequal lengths give one number in flight."""
    tau = np.array([10.0 + 2.0 * n for n in range(1, 65)]) / 1e3
    found = predict_sharing(8.0, Work(tau * 1e9, 0.0, 40.0, 100.0))
    dice = stream_generator(9, "sharing")
    count = 30_000
    lengths = {
        "constant": np.full(count, 40.0),
        "exponential": dice.exponential(40.0, count),
        "unequal": np.where(dice.random(count) < 0.1, 310.0, 10.0),
    }
    for name, tokens in lengths.items():
        assert followed(np.cumsum(dice.exponential(1 / 8.0, count)), tokens, tau) == pytest.approx(
            found.in_flight_mean, rel=0.06
        ), name


def followed(arrivals, tokens, tau):
    """Mean number in flight: virtual tokens grow at 1 / tau(n), each request leaves when its own are done."""
    import heapq

    now = served = area = 0.0
    ends = []
    for at, own in zip(arrivals.tolist(), tokens.tolist(), strict=True):
        while ends:
            speed = 1.0 / tau[min(len(ends), len(tau)) - 1]
            leaves = now + (ends[0] - served) / speed
            if leaves > at:
                break
            area += len(ends) * (leaves - now)
            served, now = heapq.heappop(ends), leaves
        if ends:
            served += (at - now) / tau[min(len(ends), len(tau)) - 1]
            area += len(ends) * (at - now)
        now = at
        heapq.heappush(ends, served + own)
    return area / now


def test_above_capacity_there_is_no_number_and_above_70_percent_a_warning():
    work = Work(np.full(64, 10e6), 1e6, 100.0, 300.0)
    capacity = predict_sharing(1.0, work).capacity_per_s
    assert capacity == pytest.approx(1e9 / (1e6 + 100 * 10e6 / 64))
    assert not predict_sharing(0.69 * capacity, work).beyond
    assert predict_sharing((GOOD_UP_TO + 0.01) * capacity, work).beyond
    full = predict_sharing(capacity * 1.01, work)
    assert math.isinf(full.e2e_p99_ns)
    assert full.beyond


def test_more_load_is_never_faster():
    step = derive_steptime(MODEL, "H100-SXM5-80GB", 1)
    work = work_of(step, *requests(500), SEATS)
    times = [predict_sharing(rate, work).e2e_p99_ns for rate in np.linspace(0.1, 30.0, 60)]
    assert times == sorted(times)


def test_what_makes_no_work_is_refused():
    step = derive_steptime(MODEL, "H100-SXM5-80GB", 1)
    with pytest.raises(ConfigError, match="prompts"):
        work_of(step, [1, 2], [3], 8)
    with pytest.raises(ConfigError, match="rate_per_s"):
        predict_sharing(0.0, Work(np.full(4, 1e6), 0.0, 1.0, 1.0))


@pytest.mark.parametrize("load", [0.2, 0.4, 0.6, 0.69])
def test_the_tables_of_a_published_profile_and_lengths_of_a_published_trace(load):
    """RTX PRO 6000, Llama-3.1-8B; conversations of up to 4096 tokens."""
    shared = Path(__file__).resolve().parents[2].parent / "shared" / "data"
    tables, trace = shared / "measurements" / "llmservingsim_layer_profiles", shared / "traces"
    if not tables.is_dir() or not trace.is_dir():
        pytest.skip("profiles and traces are published elsewhere and not part of the project")
    read_table = pytest.importorskip("pyarrow.parquet").read_table
    profile = load_profile(str(tables / "RTXPRO6000__Llama-3.1-8B__tp1"), 32)
    columns = read_table(trace / "azure_llm_2023_conv.parquet").to_pydict()
    kept = [
        (i, o)
        for i, o in zip(columns["input_tokens"], columns["output_tokens"], strict=True)
        if i + o <= 4096
    ]
    prompts, outputs = np.array(kept)[stream_generator(3, "rows").integers(0, len(kept), 20_000)].T
    outputs = np.maximum(2, outputs)
    spec = EngineSpec(
        step=profile, ranks=(Rank(bandwidth=25e9),), blocks=40_000, max_num_seqs=SEATS, host=None, front=FrontEnd(api_us=0, tokenize_us_per_token=0, enqueue_us=0),
    )  # fmt: skip
    work = work_of(profile, prompts, outputs, SEATS)
    rate = load * predict_sharing(1e-3, work).capacity_per_s
    arrivals = np.cumsum(stream_generator(7, f"{load}").exponential(1e9 / rate, len(prompts))).astype(
        np.int64
    )
    seen = (simulate(arrivals, prompts, outputs, None, spec).last_token_ns - arrivals)[1000:]
    found = predict_sharing(rate, work)
    assert found.e2e_mean_ns == pytest.approx(seen.mean(), rel=0.05)
    assert found.e2e_p99_ns == pytest.approx(np.quantile(seen, 0.99), rel=0.05)
