"""Several runs in one table: what lies between them is no time, and their requests are drawn run by run."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diagnose_tables import Knobs, dice, fleet_of, make
from sits.bench.assemble import Tables, lay_out
from sits.core.units import SECOND
from sits.diagnose.causes import find_causes
from sits.diagnose.causes.arrival_burst import arrival_burst
from sits.diagnose.causes.case import Case
from sits.diagnose.resample import Blocks, Tail
from sits.diagnose.spectrum import series
from sits.diagnose.steps import by_engine, observed_ns


def run(name, **knobs):
    tables = make(Knobs(**knobs))
    for table in tables:
        table["run_id"] = np.full(len(table["run_id"]), name, dtype=object)
    return Tables(*tables)


def case_of(tables, seed=1):
    return Case(
        tables.requests, tables.steps, tables.signals, fleet_of(), metric="ttft", rng=dice(seed), draws=50
    )


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 6), st.integers(0, 2**32 - 1), st.floats(30.0, 3000.0), st.booleans())
def test_poisson_arrivals_laid_out_any_number_of_times_are_no_burst(times, seed, gap_ms, alike):
    seeds = [seed if alike else (seed + r) % 2**32 for r in range(times)]
    runs = [run(f"r{r}", seed=one, n=400, gap_ms=gap_ms) for r, one in enumerate(seeds)]
    assert arrival_burst(case_of(lay_out(runs))) is None


def test_runs_of_different_rates_are_no_burst_and_a_bursty_one_is():
    calm = [run(f"r{r}", seed=r, n=400, gap_ms=gap) for r, gap in enumerate((20.0, 400.0, 2000.0))]
    assert arrival_burst(case_of(lay_out(calm))) is None
    bursty = run("b", n=400, arrivals_ms=dice(4).gamma(0.05, 8000.0, 400).cumsum())
    alone, among = (arrival_burst(case_of(lay_out(runs))) for runs in ([bursty], [bursty, *calm]))
    assert alone is not None
    assert among is not None


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 40), min_size=2, max_size=5), st.integers(0, 2**32 - 1), st.integers(1, 4))
def test_draws_hold_whole_runs_and_blocks_stay_inside_theirs(sizes, seed, length):
    rng = dice(seed)
    of_run = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    blocks = Blocks(rng.permutation(len(of_run)), rng, draws=20, length=length, run=of_run)
    owners = [set(of_run[blocks.of_row == b].tolist()) for b in range(blocks.blocks)]
    assert all(len(owner) == 1 for owner in owners)
    each = [-(-n // length) for n in sizes]
    assert blocks.blocks == sum(each)
    reachable = {0}
    for _ in sizes:
        reachable = {total + n for total in reachable for n in each}
    assert set(blocks.counts.sum(axis=1).astype(int).tolist()) <= reachable


def test_one_run_told_or_not_gives_the_same_draws():
    arrival = dice(3).permutation(200)
    told, untold = (Blocks(arrival, dice(1), run=of_run) for of_run in (np.zeros(200, np.int64), None))
    assert np.array_equal(told.counts, untold.counts)
    assert np.array_equal(told.of_row, untold.of_row)


def test_the_interval_of_runs_that_differ_covers_the_truth_and_that_of_requests_does_not():
    """Each run adds a level of its own, drawn with mean 100: means over 10 runs, 150 times."""
    covered = np.zeros(2)
    of_run = np.repeat(np.arange(10), 100)
    for seed in range(150):
        rng = dice(seed)
        values = rng.normal(100.0, 20.0, 10)[of_run] + rng.normal(0.0, 5.0, 1000)
        for k, runs in enumerate((of_run, None)):
            tail = Tail(np.arange(1000), np.arange(1000), rng, share=1.0 - 1e-9, draws=200, run=runs)
            found = tail.mean(values)
            covered[k] += found.low <= 100.0 <= found.high
    assert covered[0] / 150 > 0.8
    assert covered[1] / 150 < 0.3


def test_what_one_run_of_many_suffered_is_told_with_its_runs_and_a_wide_interval():
    wait = np.zeros(400)
    wait[200:220] = np.linspace(100.0, 500.0, 20)
    runs = [run(f"r{r}", seed=r, n=400, gateway_wait_ms=wait * (r == 2)) for r in range(4)]
    whole = lay_out(runs)
    (found,) = find_causes(whole.requests, whole.steps, whole.signals, fleet_of(), metric="ttft", rng=dice(1))
    assert (found.id, found.severity) == ("gateway_saturation", "info")
    assert "(in 1 of 4 runs)" in found.claim
    assert found.effect_ms.low < 1.0
    assert found.effect_ms.value > 100.0
    everywhere = lay_out([run(f"r{r}", seed=r, n=400, gateway_wait_ms=wait) for r in range(4)])
    (found,) = find_causes(
        everywhere.requests, everywhere.steps, everywhere.signals, fleet_of(), metric="ttft", rng=dice(1)
    )
    assert found.severity == "alarm"
    assert "runs" not in found.claim


def test_rates_and_gaps_leave_out_the_silence_between_runs():
    runs = [run(f"r{r}", seed=r, n=100) for r in range(3)]
    whole = by_engine(lay_out(runs).steps)
    alone = [by_engine(one.steps) for one in runs]
    assert observed_ns(whole.values()) == pytest.approx(sum(observed_ns(lines.values()) for lines in alone))
    (line,) = whole.values()
    ends, starts = (line.origin_ns + x.astype(np.int64) for x in (line.end, line.start))
    between = np.flatnonzero(np.diff(line.run))
    assert len(between) == 2
    assert line.between(ends[between], starts[between + 1], gap=1.0).tolist() == [0.0, 0.0]
    assert line.between(ends[between[:1] - 1] - 1, ends[between[:1]], kernel=1.0)[0] > 0


def test_a_run_meets_its_own_signals_only():
    busy, calm = run("a", n=50), run("b", n=50, seed=2)
    for one, level in ((busy, 1.0), (calm, 0.2)):
        one.signals["value"][one.signals["name"] == "gateway_cpu_share"] = level
    case = case_of(lay_out([busy, calm]))
    found = {
        int(case.cut.run[rows[0]]): set(value) for rows, _, value in case.signal_by_run("gateway_cpu_share")
    }
    assert found == {0: {1.0}, 1: {0.2}}
    assert case.signal_by_run("nothing") == []


def test_a_rolling_p99_holds_requests_of_one_run_and_has_no_point_between_two():
    runs = [run(f"r{r}", n=300, arrivals_ms=10.0 * np.arange(300)) for r in range(2)]
    whole = lay_out(runs)
    line, *others = series(whole.requests, whole.steps, whole.signals, "ttft", bin_s=1.0, at_least=150)
    start_s = (whole.requests["api_recv"][300] - whole.requests["api_recv"][0]) / SECOND
    first, second = (
        [t for t in line.t_s if t < start_s - 1.0],
        [t + 0.5 - start_s for t in line.t_s if t >= start_s - 1.0],
    )
    assert first == [1.5, 2.5]
    assert second[0] >= 1.49  # 150 requests of its own take 1.49 s to arrive
    assert second[-1] >= 2.99
    assert not [t for one in others for t in one.t_s if 5.0 < t < start_s - 1.0]


@pytest.mark.parametrize("idle", [1, 7])
def test_one_worker_without_cpu_is_named_beside_idle_ones(idle):
    wait = np.zeros(400)
    wait[::20] = np.linspace(100.0, 500.0, 20)
    one = run("r", n=400, gateway_wait_ms=wait)
    one.signals["value"][one.signals["name"] == "gateway_cpu_share"] = 1.0
    of_gateway = np.flatnonzero(np.char.startswith(one.signals["name"].astype(str), "gateway_"))
    of_others = np.tile(of_gateway, idle)
    signals = {name: np.concatenate([values, values[of_others]]) for name, values in one.signals.items()}
    n = len(one.signals["value"])
    signals["value"][n:] = 0.0
    signals["source"][n:] = np.repeat([f"worker-{k}" for k in range(idle)], len(of_gateway))
    (alone,), (beside,) = (
        find_causes(one.requests, one.steps, given, fleet_of(), metric="ttft", rng=dice(1))
        for given in (one.signals, signals)
    )
    assert (beside.id, beside.severity) == ("gateway_saturation", "alarm")
    assert beside.evidence == alone.evidence
    assert {e.signal: e.observed for e in beside.evidence}["gateway_cpu_share"] == 1.0
