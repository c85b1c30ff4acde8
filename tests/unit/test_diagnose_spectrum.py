import numpy as np
import pytest

from diagnose_tables import MS, Knobs, make
from sits.core.errors import CallerError
from sits.diagnose.spectrum import heat_map, series


def test_heat_map_holds_every_request_once_and_slow_ones_where_they_are():
    long = dict.fromkeys(range(50, 1000, 100), 20_000)
    requests, _, _ = make(Knobs(long_prompts=long))
    found = heat_map(requests, "ttft", slow_share=0.05)
    slow, rest = np.array(found.slow), np.array(found.rest)
    assert slow.shape == rest.shape == (len(found.x_edges) - 1, len(found.y_edges) - 1)
    assert slow.sum() == 50
    assert rest.sum() == 950
    of_20k = np.searchsorted(found.x_edges, 20_000, side="right") - 1
    assert found.x_edges[of_20k] == 16_384
    assert slow[of_20k].sum() == 10
    assert rest[of_20k].sum() == 0


def test_heat_map_takes_zero_lengths_and_rejects_silly_shares():
    requests, _, _ = make(Knobs(n=20))
    requests["output_tokens"][:] = 0
    found = heat_map(requests, "ttft")
    assert found.y_edges == (0.0, 1.0)
    assert sum(map(sum, found.slow)) + sum(map(sum, found.rest)) == 20
    with pytest.raises(CallerError, match="slow share"):
        heat_map(requests, "ttft", slow_share=1.0)


def test_rolling_p99_waits_for_enough_requests_and_sees_the_bad_second():
    wait = np.zeros(1000)
    wait[500:510] = 500.0
    requests, steps, signals = make(Knobs(gateway_wait_ms=wait, arrivals_ms=10.0 * np.arange(1000)))
    lines = {line.name: line for line in series(requests, steps, signals, "ttft", bin_s=1.0, at_least=150)}
    p99 = lines["ttft_p99"]
    assert p99.unit == "ms"
    assert p99.t_s[0] == 1.5
    assert len(p99.t_s) == 9
    worst = p99.t_s[int(np.argmax(p99.value))]
    assert worst in (5.5, 6.5)
    assert max(p99.value) > 500.0 > 10 * p99.value[0] / 5


def test_state_lines_come_from_signals_else_from_steps_and_fold_over_engines():
    requests, steps, signals = make(Knobs(engines=2, gap_ms=10.0, closed_ms=((2000, 3000),)))
    sampled = {line.name: line for line in series(requests, steps, signals, "ttft")}
    stepped = {line.name: line for line in series(requests, steps, {}, "ttft")}
    assert set(sampled) == set(stepped) | {"gateway_cpu_share", "gateway_backlog_ms"}
    for name, line in stepped.items():
        assert sampled[name].t_s == line.t_s
        assert sampled[name].value == pytest.approx(line.value)
    waiting = sampled["requests_waiting"]
    assert max(waiting.value) == waiting.value[waiting.t_s.index(2.5)] > 20
    assert max(sampled["kv_usage"].value) == pytest.approx(0.9)


def test_a_bin_folds_its_samples():
    requests, _, _ = make(Knobs(n=2))
    t0 = int(requests["api_recv"].min())
    rows = [(0, "a", 1.0), (1, "a", 3.0), (2, "b", 10.0), (1500, "b", 4.0), (-5000, "b", 99.0)]
    signals = {
        "t_ns": np.array([t0 + ms * MS for ms, _, _ in rows]),
        "source": np.array([s for _, s, _ in rows], dtype=object),
        "name": np.array(["requests_waiting"] * 5, dtype=object),
        "value": np.array([v for _, _, v in rows]),
    }
    (line,) = series(requests, {}, signals, "ttft", at_least=100)
    assert line.t_s == (0.5, 1.5)
    assert line.value == (12.0, 4.0)


def test_the_link_line_leaves_out_copies_that_only_tell_a_latency():
    requests, steps, signals = make(Knobs(n=50, copy_mbytes=4.0))
    small = np.arange(len(steps["t_ns"])) % 2 == 0
    steps["copy_bytes"] = np.where(small, 1000, steps["copy_bytes"])
    lines = {line.name: line for line in series(requests, steps, signals, "ttft", at_least=10)}
    assert min(lines["link_bandwidth_gbytes_per_s"].value) == pytest.approx(24.0, rel=1e-3)


def test_lines_of_one_workload_have_the_same_edges_whatever_became_of_it():
    requests, steps, signals = make(Knobs(n=200))
    all_done = {line.name: line for line in series(requests, steps, signals, "ttft", at_least=50)}
    requests["outcome"][:30] = requests["outcome"][-30:] = "refused"
    fewer = {line.name: line for line in series(requests, steps, signals, "ttft", at_least=50)}
    assert set(fewer) == set(all_done)
    for name, line in fewer.items():
        if name != "ttft_p99":
            assert line == all_done[name]
    assert set(fewer["ttft_p99"].t_s) <= set(all_done["ttft_p99"].t_s)
    assert fewer["ttft_p99"].t_s[-1] == all_done["ttft_p99"].t_s[-1]


def test_nothing_completed_has_no_lines_and_bad_bins_are_named():
    requests, steps, signals = make(Knobs(n=5))
    with pytest.raises(CallerError, match="bins of 0"):
        series(requests, steps, signals, "ttft", bin_s=0.0)
    requests["outcome"][:] = "failed"
    assert series(requests, steps, signals, "ttft") == ()
