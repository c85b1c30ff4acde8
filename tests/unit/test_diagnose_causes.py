from dataclasses import replace

import numpy as np
import pytest

from diagnose_tables import MS, Knobs, dice, fleet_of, make
from sits.core.finding import Finding, Interval
from sits.diagnose.causes import DETECTORS, find_causes, rank
from sits.diagnose.causes.case import Case
from sits.diagnose.causes.gateway_saturation import rank_correlation
from sits.predict.window import predict_window


def look(knobs, fleet=None, metric="ttft", tables=None):
    requests, steps, signals = tables or make(knobs)
    fleet = fleet or fleet_of(knobs.engines)
    return find_causes(requests, steps, signals, fleet, metric=metric, rng=dice(1))


def waits(n=1000, top=300.0):
    wait = np.zeros(n)
    wait[400:440] = np.linspace(5.0, top, 40)
    return wait


HALF_LOADS = np.where(np.arange(1000) % 3 == 0, 20.0, 0.0)

CASES = {
    "static_window": Knobs(window_ms=100.0),
    "gateway_saturation": Knobs(gateway_wait_ms=waits()),
    "head_of_line_prefill": Knobs(long_prompts=dict.fromkeys(range(50, 1000, 100), 20_000)),
    "kv_pressure": Knobs(closed_ms=((5000, 5400), (20_000, 20_400))),
    "numa_remote": Knobs(gap_ms=120.0, copy_mbytes=500.0, link_gbytes_per_s=11.0),
    "pcie_dips": Knobs(gap_ms=80.0, copy_mbytes=500.0, dip=(0.08, 0.6)),
    "adapter_thrash": Knobs(load_ms=HALF_LOADS),
    "routing_imbalance": Knobs(
        n=2000, gap_ms=60.0, engines=2, choose=[0, 0, 0, 0, 1] * 400, base_ms=20.0, seats=4
    ),
    "engine_capacity": Knobs(n=2000, gap_ms=30.0, engines=2, base_ms=20.0, seats=3, output=(8, 12)),
    "arrival_burst": Knobs(arrivals_ms=dice(4).gamma(0.05, 2000.0, 1000).cumsum()),
}


def test_every_detector_has_a_case():
    assert {detector.__name__ for detector in DETECTORS} == {*CASES, "injected_fault"}


def test_a_fault_put_in_on_purpose_is_named_and_no_wait_for_the_cpu():
    wait = np.where(np.arange(1000) % 10 == 3, 400.0, 0.0)
    requests, steps, signals = make(Knobs(gateway_wait_ms=wait))
    unnamed = look(None, fleet_of(), tables=(requests, steps, signals))
    assert [f.id for f in unnamed][:1] == ["gateway_saturation"]
    requests = {**requests, "injected_ns": (wait * MS).astype(np.int64)}
    found = look(None, fleet_of(), tables=(requests, steps, signals))
    assert found[0].id == "injected_fault"
    assert "gateway_saturation" not in [f.id for f in found]
    assert abs(found[0].effect_ms.value - 400.0) < 1.0
    assert "10.0% of the requests on purpose" in found[0].claim


@pytest.mark.parametrize("cause", sorted(CASES))
def test_a_cause_is_found_and_no_other_one_is_larger(cause):
    found = look(CASES[cause], fleet_of(CASES[cause].engines, cpu_numa=int(cause == "numa_remote")))
    claims = [f for f in found if not f.inconclusive]
    if cause == "arrival_burst":
        burst = next(f for f in claims if f.id == cause)
        assert (burst.severity, burst.effect_ms) == ("info", None)
        return
    assert claims[0].id == cause
    assert claims[0].severity == "alarm"
    assert claims[0].evidence
    assert "{" not in claims[0].claim


@pytest.mark.parametrize(
    "cause", sorted(set(CASES) - {"arrival_burst", "routing_imbalance", "engine_capacity"})
)
def test_the_same_cause_also_explains_end_to_end(cause):
    found = look(CASES[cause], fleet_of(cpu_numa=int(cause == "numa_remote")), metric="e2e")
    assert cause in [f.id for f in found if not f.inconclusive]


def test_a_quiet_run_yields_no_finding():
    assert look(Knobs()) == ()
    assert look(Knobs(engines=2, gap_ms=20.0)) == ()


def test_findings_are_the_same_for_the_same_generator():
    assert look(CASES["kv_pressure"]) == look(CASES["kv_pressure"])


def test_too_few_requests_make_a_claim_inconclusive_and_propose_nothing():
    found = look(Knobs(n=200, window_ms=100.0))
    assert [f.id for f in found] == ["static_window", "too_few_requests"]
    assert "200 requests, at least 300" in found[0].inconclusive
    assert found[0].changes == ()
    assert found[1].claim.startswith("The slowest 1 % of 200 requests is 2 requests")
    assert found[1].inconclusive == "100 more requests are needed"


def test_a_link_that_copies_next_to_nothing_is_not_asked_about():
    assert look(Knobs(copy_mbytes=0.001)) == ()
    requests, steps, signals = make(Knobs(copy_mbytes=0.001))
    steps["copy_ns"] = steps["copy_ns"] + 5 * MS
    steps["prepare_ns"], steps["duration_ns"] = steps["prepare_ns"] + 5 * MS, steps["duration_ns"] + 5 * MS
    doubts = {f.id: f.inconclusive for f in look(Knobs(), tables=(requests, steps, signals))}
    assert set(doubts) == {"numa_remote", "pcie_dips"}
    assert "copies of 1 MiB or more" in doubts["pcie_dips"]


def test_nothing_completed_is_said():
    requests, steps, signals = make(Knobs(n=20))
    requests["outcome"][:] = "refused"
    (only,) = look(Knobs(), tables=(requests, steps, signals))
    assert only.id == "too_few_requests"
    assert only.inconclusive.startswith("0 completed")


def test_without_steps_what_needs_them_is_inconclusive():
    requests, _, signals = make(Knobs(engines=2, gap_ms=20.0))
    found = look(Knobs(engines=2), tables=(requests, {}, signals))
    assert {f.id for f in found} == {
        "head_of_line_prefill", "kv_pressure", "numa_remote", "pcie_dips", "adapter_thrash", "routing_imbalance"
    }  # fmt: skip
    assert all(f.inconclusive and f.effect_ms is None for f in found)


def test_without_a_fleet_file_remote_copies_cannot_be_judged():
    requests, steps, signals = make(CASES["numa_remote"])
    found = find_causes(requests, steps, signals, None, metric="ttft", rng=dice(1))
    (numa,) = [f for f in found if f.id == "numa_remote"]
    assert "no fleet file" in numa.inconclusive


def test_gateway_waits_without_gateway_signals_are_a_doubt_not_a_claim():
    requests, steps, _ = make(CASES["gateway_saturation"])
    found = look(Knobs(), tables=(requests, steps, {}))
    assert found[0].id == "gateway_saturation"
    assert "not recorded" in found[0].inconclusive


def test_gateway_waits_with_an_idle_cpu_are_not_saturation():
    requests, steps, signals = make(CASES["gateway_saturation"])
    calm = np.isin(signals["name"], ["gateway_cpu_share", "gateway_backlog_ms"])
    signals["value"][calm] = 0.1
    assert look(Knobs(), tables=(requests, steps, signals)) == ()


def test_first_tokens_that_wait_for_the_gateway_are_seen_on_their_way_out():
    requests, steps, signals = make(Knobs(outward_wait_ms=waits()))
    found = look(Knobs(), tables=(requests, steps, signals))[0]
    figures = {e.signal: e.observed for e in found.evidence}
    assert found.id == "gateway_saturation"
    assert figures["inward_wait_ms"] < 1.0
    assert figures["outward_wait_ms"] > 200.0
    assert figures["gateway_cpu_share"] > 0.9
    calm = np.isin(signals["name"], ["gateway_cpu_share", "gateway_backlog_ms"])
    signals["value"][calm] = 0.1
    assert look(Knobs(), tables=(requests, steps, signals)) == ()


def test_the_first_load_of_an_adapter_in_each_run_is_no_reload():
    first = np.arange(400) % 200 < 50
    requests, steps, signals = make(Knobs(n=400, load_ms=first * 20.0))
    requests["adapter"] = np.array([f"a{i % 50}" for i in range(400)], dtype=object)
    assert "adapter_thrash" in [f.id for f in look(Knobs(), tables=(requests, steps, signals))]
    requests["run_id"] = np.array([f"r{i // 200}" for i in range(400)], dtype=object)
    assert look(Knobs(), tables=(requests, steps, signals)) == ()


def test_prompts_behind_equals_or_behind_many_short_ones_are_not_blocked_by_a_long_one():
    together = np.repeat(2000.0 * np.arange(100), 10) + np.tile(np.arange(10), 100)
    equals = look(Knobs(arrivals_ms=together, prompt=(4000, 4001)))
    assert "head_of_line_prefill" not in [f.id for f in equals]
    assert "head_of_line_prefill" not in [f.id for f in look(Knobs(arrivals_ms=together, prompt=(300, 900)))]


def test_copies_slowed_by_their_latency_alone_are_not_remote_unless_the_file_says_so():
    slow = Knobs(gap_ms=120.0, copy_mbytes=500.0, link_gbytes_per_s=16.0)
    assert look(slow, fleet_of(cpu_numa=0)) == ()
    (found,) = look(slow, fleet_of(cpu_numa=1))
    assert found.id == "numa_remote"
    apart = Knobs(n=400, arrivals_ms=1000.0 * np.arange(400), output=(1, 2), copy_mbytes=500.0)
    worse = look(replace(apart, link_gbytes_per_s=8.0), fleet_of(cpu_numa=1))[0]
    assert worse.effect_ms.value == pytest.approx(500.0 * (1 / 11 - 1 / 24))


def test_a_small_fault_of_the_hardware_is_told_and_is_no_warning():
    fault = Knobs(copy_mbytes=500.0, dip=(0.6, 0.18), long_prompts=dict.fromkeys(range(0, 1000, 50), 60_000))
    found = {f.id: f for f in look(fault)}["pcie_dips"]
    assert found.severity == "info"
    assert (
        1.0 < found.effect_ms.low < 0.01 * {e.signal: e.reference for e in found.evidence}["p99_ms_without"]
    )
    assert {e.signal: e.observed for e in found.evidence}["dip_depth"] == pytest.approx(0.18, abs=0.01)


def test_claims_say_what_they_share_with_others_and_count_no_more_than_was_spent():
    requests, steps, signals = make(CASES["kv_pressure"])
    case = Case(requests, steps, signals, fleet_of(), metric="ttft", rng=dice(1))
    start, end = case.span("queue")
    queue_ms = case.tail.at(end - start) / 1e6
    a = case.claim("a", "model", {"queue": 2.0 * (end - start)}, "It takes {ms}.", ())
    b = case.claim("b", "model", {"queue": 0.5 * (end - start)}, "It takes {ms}.", ())
    c = case.claim("c", "model", {"service": 0.5 * np.subtract(*case.span("service")[::-1])}, "So {ms}.", ())
    assert a.effect_ms.value == pytest.approx(queue_ms)
    shared = [{e.signal: e.observed for e in case.overlaps(f).evidence}.get("shared_ms") for f in (a, b, c)]
    assert shared == [pytest.approx(queue_ms / 2), pytest.approx(queue_ms / 2), None]
    assert "or more of it under other causes too" in case.overlaps(a).claim
    assert case.overlaps(c) == c


def test_p99_without_a_cause_is_what_taking_its_time_away_gives():
    found = look(Knobs(gateway_wait_ms=waits(top=3000.0)))[0]
    last = {e.signal: e for e in found.evidence}["p99_ms_without"]
    requests = make(Knobs(gateway_wait_ms=waits(top=3000.0)))[0]
    plain = make(Knobs())[0]
    before, after = (np.sort(t["first_token"] - t["api_recv"])[989] / 1e6 for t in (requests, plain))
    assert last.reference == pytest.approx(before)
    assert last.observed == pytest.approx(after, rel=0.2)


def test_a_window_before_an_engine_that_does_not_batch_by_itself_is_a_doubt():
    requests, steps, signals = make(Knobs(window_ms=100.0, n=400, arrivals_ms=1000.0 * np.arange(400)))
    (found,) = look(Knobs(), tables=(requests, steps, signals))
    assert found.id == "static_window"
    assert "may need the window" in found.inconclusive


def test_changes_name_the_configured_value():
    (found,) = look(Knobs(window_ms=100.0), fleet_of(window="fixed"))
    assert (found.changes[0].path, found.changes[0].old, found.changes[0].new) == (
        "policy.window.kind",
        "fixed",
        "none",
    )
    numa = look(CASES["numa_remote"], fleet_of(cpu_numa=1))[0]
    assert (numa.changes[0].path, numa.changes[0].old, numa.changes[0].new) == (
        "engines.e0.cpu_numa",
        "1",
        "0",
    )


def test_dips_are_not_taken_for_a_remote_link():
    ids = [f.id for f in look(CASES["pcie_dips"])]
    assert ids == ["pcie_dips"]
    dip = look(CASES["pcie_dips"])[0]
    figures = {e.signal: e.observed for e in dip.evidence}
    assert figures["dip_depth"] == pytest.approx(0.6, abs=0.01)
    assert figures["dip_duty"] == pytest.approx(0.08, abs=0.02)
    assert figures["link_signal_dip_duty"] == pytest.approx(figures["dip_duty"])


def finding(name, low=None, inconclusive=""):
    effect = None if low is None else Interval(low + 1, low, low + 2)
    return Finding(id=name, claim="", layer="model", effect_ms=effect, inconclusive=inconclusive)


def test_rank_by_lower_bound_then_context_then_inconclusive_ties_by_id():
    given = [
        finding("doubt", 900.0, "why"), finding("b", 5.0), finding("context"), finding("a", 5.0), finding("big", 50.0),
    ]  # fmt: skip
    assert [f.id for f in rank(given)] == ["big", "a", "b", "context", "doubt"]


def test_rank_correlation_knows_ties_and_constants():
    assert rank_correlation(np.array([1.0, 2.0, 3.0]), np.array([9.0, 5.0, 1.0])) == pytest.approx(-1.0)
    assert rank_correlation(np.ones(5), np.arange(5)) == 0.0
    from scipy.stats import spearmanr

    a, b = dice(1).integers(0, 5, 60), dice(2).integers(0, 5, 60)
    assert rank_correlation(a, b) == pytest.approx(spearmanr(a, b).statistic)


@pytest.mark.parametrize("engines", [1, 2])
def test_beside_the_wait_in_a_configured_window_stands_what_is_predicted_for_it(engines):
    knobs = Knobs(window_ms=20.0, engines=engines, gap_ms=40.0 / engines)
    found = look(knobs, fleet_of(engines, window="fixed"))[0]
    row = next(e for e in found.evidence if e.signal == "admit_window_ms_mean")
    assert row.observed == pytest.approx(19.0, rel=0.02)
    assert row.reference == pytest.approx(predict_window(25.0, 20e6, 16).wait_ns_mean / 1e6, rel=0.05)
    assert "at most 16 requests a window" in row.note
    undeclared = look(knobs)[0]
    assert "admit_window_ms_mean" not in [e.signal for e in undeclared.evidence]
