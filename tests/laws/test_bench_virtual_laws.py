"""Laws of a run on the virtual loop: conservation, order, sums, determinism, and no peeking."""

import msgspec
import numpy as np
import pytest

from sits.bench.assemble import Tables, lay_out
from sits.bench.reproduce import Job, reproduce, run_job, variants
from sits.bench.reproduction import AS_IS, Plan
from sits.bench.scenario import load_scenario, variant
from sits.bench.virtual import latency_ms, run_fleet
from sits.core.breakpoints import BREAKPOINT_COUNT, NAMES
from sits.core.fleet_access import Access
from sits.diagnose.decompose import decompose

SCENARIO = load_scenario()
SMALL = msgspec.structs.replace(SCENARIO, workload=msgspec.structs.replace(SCENARIO.workload, requests=150))
PLAN = Plan(SMALL, 5, 1)
FIXES = tuple(fix.id for fix in SMALL.fixes)


@pytest.fixture(scope="module", params=["as_is", "all"])
def run(request):
    fixes = () if request.param == "as_is" else FIXES
    return run_fleet(variant(SMALL, fixes), PLAN.workload(0), seed=5, run_id=request.param, full=True)


def test_offered_is_what_became_of_them(run):
    account = run.account
    assert account.offered == 150
    ended = account.completed + account.failed + account.cancelled + account.refused
    assert account.offered == ended + account.in_flight
    assert len(run.requests["id"]) == 150
    assert len(set(run.requests["id"])) == 150


def test_times_of_a_request_never_decrease(run):
    at = np.stack([run.requests[name] for name in NAMES], axis=1)
    assert (at > 0).all()
    assert (np.diff(at, axis=1) >= 0).all()


def test_stages_add_up_to_end_to_end(run):
    for metric, end in (("ttft", "first_token"), ("e2e", "sent")):
        cut = decompose(run.requests, metric)
        assert len(cut.rows) == 150
        assert (cut.stage_ns.sum(axis=1) == (run.requests[end] - run.requests["api_recv"])[cut.rows]).all()
    assert BREAKPOINT_COUNT == 17


def test_kv_blocks_stay_within_the_pool_and_no_engine_idles_while_its_queue_waits(run):
    steps = run.steps
    assert (steps["kv_used"] <= steps["kv_total"]).all()
    for engine in np.unique(steps["engine"].astype(str)):
        mine = steps["engine"] == engine
        start, end = steps["t_ns"][mine], (steps["t_ns"] + steps["duration_ns"])[mine]
        waits = steps["waiting"][mine][:-1] > 0
        assert (start[1:][waits] == end[:-1][waits]).all(), engine


def test_every_token_asked_for_is_made(run):
    """The first token of an answer comes with its prompt, every other from one decode; a preempted one again with its prompt."""
    workload = PLAN.workload(0)
    order = np.argsort(run.requests["id"])
    assert (run.requests["output_tokens"][order] == workload.output_tokens).all()
    with_prompt = workload.output_tokens.sum() - run.steps["decode_tokens"].sum()
    assert 150 <= with_prompt <= 150 + run.steps["preempted"].sum()


def test_recording_steps_changes_nothing():
    """Single steps and stretches of uneventful ones are the same run."""
    workload = PLAN.workload(1)
    for fixes in ((), FIXES):
        full, lean = (
            run_fleet(variant(SMALL, fixes), workload, seed=6, run_id="x", full=full)
            for full in (True, False)
        )
        for name in full.requests:
            assert np.array_equal(full.requests[name], lean.requests[name]), name


def test_same_seed_same_columns_another_seed_others():
    job = next(v for v in variants(SMALL).values() if v.id == AS_IS)
    first, again = (run_fleet(job, PLAN.workload(2), seed=9, run_id="x", full=False) for _ in range(2))
    other = run_fleet(job, PLAN.workload(2), seed=10, run_id="x", full=False)
    assert np.array_equal(latency_ms(first.requests, "ttft"), latency_ms(again.requests, "ttft"))
    assert not np.array_equal(latency_ms(first.requests, "ttft"), latency_ms(other.requests, "ttft"))


def test_policies_never_see_the_true_output_length():
    """What reaches a policy is the Request and the replicas; two workloads that differ in answers alone give equal Requests."""
    workload = PLAN.workload(0)
    longer = msgspec.structs.replace(workload, output_tokens=workload.output_tokens + 7)
    assert list(workload.requests()) == list(longer.requests())


def test_laid_out_runs_do_not_overlap():
    runs = [run_fleet(variant(SMALL, ()), PLAN.workload(r), seed=r, run_id=str(r), full=True) for r in (0, 1)]
    whole = lay_out([Tables(r.requests, r.steps, r.signals) for r in runs])
    ends = [whole.requests["sent"][whole.requests["run_id"] == name] for name in ("0", "1")]
    starts = whole.requests["api_recv"][whole.requests["run_id"] == "1"]
    assert ends[0].max() < starts.min()
    for metric in ("ttft", "e2e"):
        before = np.concatenate([decompose(r.requests, metric).total_ns for r in runs])
        assert np.array_equal(before, decompose(whole.requests, metric).total_ns)


def test_more_processes_same_report():
    one = reproduce(None, seed=3, repetitions=1, jobs=1, requests=60)
    two = reproduce(None, seed=3, repetitions=1, jobs=2, requests=60)
    encode = msgspec.json.Encoder(order="deterministic").encode
    assert encode(one) == encode(two)
    assert one.before.account.offered == 60


def test_a_job_is_a_function_of_its_arguments():
    job = Job(variants(SMALL)[AS_IS], 0, keep=False, full=False)
    first, again = (run_job(PLAN, job) for _ in range(2))
    assert np.array_equal(first.latency_ms, again.latency_ms)
    assert first.columns is None


def test_a_simulated_caller_needs_no_key():
    """A fleet as it serves, with keys and policies, is simulated like the same fleet with its doors open."""
    plain = variant(SMALL, ())
    guarded = msgspec.structs.replace(
        plain.fleet,
        gateway=msgspec.structs.replace(plain.fleet.gateway, keys=("acme:a-secret",)),
        access=Access(policies=("forbid(principal, action, resource);",)),
    )
    runs = [
        run_fleet(one, PLAN.workload(0), seed=5, run_id="r", full=False)
        for one in (plain, msgspec.structs.replace(plain, fleet=guarded))
    ]
    assert runs[1].account == runs[0].account
    assert (runs[1].requests["sent"] == runs[0].requests["sent"]).all()
