"""A reproduction as a whole: what it must say of refusals, of other metrics, of traces, and of harmful fixes."""

import math

import msgspec
import numpy as np
import pytest

from sits.app.report import report_json
from sits.bench.reproduce import reproduce, variants
from sits.bench.reproduction import ALL, AS_IS, Outcome, Plan, proposed
from sits.bench.scenario import DEFAULT, load_scenario
from sits.bench.virtual import latency_ms, run_fleet
from sits.core.errors import ConfigError
from sits.core.finding import Interval
from sits.core.report import Ablation

SCENARIO = load_scenario()
FIXES = tuple(fix.id for fix in SCENARIO.fixes)


def scenario_file(tmp_path, *changes):
    from importlib import resources

    text = resources.files("sits.bench").joinpath("scenarios", DEFAULT).read_text()
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    path = tmp_path / "scenario.yaml"
    path.write_text(text)
    return path


@pytest.fixture(scope="module")
def small():
    return reproduce(None, seed=3, repetitions=2, requests=120, jobs=1)


def test_the_bad_configuration_comes_out_at_2300_ms_within_15_percent():
    """Pooled over the scenario's own seeds, as the report does it; nothing but the mechanisms says so."""
    plan = Plan(SCENARIO, SCENARIO.seed, SCENARIO.repetitions)
    bad = variants(SCENARIO)[AS_IS]
    samples = []
    for r in range(plan.repetitions):
        run = run_fleet(bad, plan.workload(r), seed=plan.seed + r, run_id=str(r), full=False)
        samples.append(latency_ms(run.requests, "ttft"))
    pooled = np.sort(np.concatenate(samples))
    assert not np.isnan(pooled).any()
    p99 = pooled[math.ceil(0.99 * len(pooled)) - 1]
    assert 2300 * 0.85 <= p99 <= 2300 * 1.15


def test_a_report_is_whole_and_its_bytes_depend_on_the_seed_alone(small):
    again = reproduce(None, seed=3, repetitions=2, requests=120, jobs=2)
    assert report_json(small) == report_json(again)
    assert report_json(small) != report_json(reproduce(None, seed=4, repetitions=2, requests=120, jobs=1))
    assert [row.id for row in small.ablation] == ["none", *FIXES, "all"]
    assert small.before.account.offered == small.before.account.completed == 240
    assert {note.title for note in small.notes} >= {
        "TTFT",
        "P99",
        "Arrivals",
        "Intervals",
        "Spread",
        "What pretends",
    }
    assert small.run.clock == "virtual"


def test_one_number_has_one_interval(small):
    rows = {row.id: row for row in small.ablation}
    assert small.before.latency.p99 == rows["none"].p99
    left_out = [note for note in small.notes if note.title.startswith("Left out")]
    if not left_out:
        assert small.after.latency.p99 == rows["all"].p99


@pytest.mark.parametrize("metric", ["ttft", "e2e"])
def test_quantiles_rise_whatever_the_metric(tmp_path, metric):
    path = scenario_file(tmp_path, ("metric: ttft", f"metric: {metric}"))
    report = reproduce(path, seed=1, repetitions=2, requests=60, jobs=1)
    for side in (report.before, report.after):
        for latency in (side.latency, *side.others):
            assert latency.p50_ms <= latency.p95_ms <= latency.p99.value <= latency.max_ms, latency
        assert side.latency.metric == metric
    assert ("end-to-end" in report.headline) == (metric == "e2e")


def test_refused_requests_are_told_and_nothing_is_verified(tmp_path):
    path = scenario_file(tmp_path, ("max_inflight: 4096", "max_inflight: 8"))
    report = reproduce(path, seed=1, repetitions=2, requests=150, jobs=1)
    assert report.after.account.refused > 0
    assert report.verified is False
    assert "got no answer" in report.headline
    assert any("paired by seed" in note.text for note in report.notes)


def test_one_repetition_verifies_nothing():
    report = reproduce(None, seed=1, repetitions=1, requests=60, jobs=1)
    assert report.verified is None
    assert any("nothing is known about run-to-run spread" in note.text for note in report.notes)


def test_a_trace_replaces_the_drawn_workload_slice_by_slice(tmp_path):
    rows = "".join(f"{i * 0.4},m,{100 + i},{5 + i % 7},1,Conversation log\n" for i in range(130))
    trace = tmp_path / "trace.csv"
    trace.write_text("Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n" + rows)
    report = reproduce(None, requests=60, trace=trace, jobs=1)
    assert report.repetitions == 2  # two whole slices of sixty
    assert report.before.account.offered == 120
    assert any("slices of a trace" in note.text for note in report.notes)


def row(name, saved, needed):
    return Ablation(name, name, Interval(1, 1, 1), saved=Interval(*saved), needed=Interval(*needed))


def test_what_is_proven_harmful_beside_the_others_is_not_proposed():
    rows = (
        Ablation("none", "none", Interval(9, 8, 10)),
        row("good", (5, 4, 6), (3, 2, 4)),
        row("useless", (0, -1, 1), (0, 0, 0)),
        row("unsure", (1, 0, 2), (-1, -3, 1)),
        row("harmful", (5, 4, 6), (-2, -3, -1)),
        Ablation("all", "all", Interval(1, 1, 1), saved=Interval(8, 7, 9)),
    )
    assert proposed(rows) == ("good", "useless", "unsure")


def test_unanswered_requests_have_no_latency():
    outcome = Outcome("x", 0, np.array([1.0, np.nan, 3.0]), None)
    assert outcome.answered_ms().tolist() == [1.0, 3.0]


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"repetitions": 0}, "repetitions"),
        ({"seed": -1}, "seed"),
        ({"jobs": 0}, "jobs"),
        ({"requests": 3}, "requests"),
    ],
)
def test_counts_that_make_no_run_are_refused(wrong, field):
    with pytest.raises(ConfigError) as caught:
        reproduce(None, **wrong)
    assert caught.value.field == field


def test_every_configuration_of_the_plan_is_there_once():
    plans = variants(SCENARIO)
    assert set(plans) == {AS_IS, ALL, *FIXES, *(f"{ALL}-{fix}" for fix in FIXES)}
    assert all(v.id == name for name, v in plans.items())
    fleets = [msgspec.json.encode((v.fleet, v.faults), order="deterministic") for v in plans.values()]
    assert len(set(fleets)) == len(fleets)
