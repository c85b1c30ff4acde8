"""`why` on stores whose answers were streamed, were not, or are too few to prove anything."""

import msgspec
import numpy as np
import pytest

from diagnose_tables import Knobs, make
from sits.app.report import summary_text
from sits.app.report.verdict import state
from sits.bench.why import why
from sits.core.breakpoints import FIRST_TOKEN, NAMES, POINT_COUNT
from sits.core.config import dump_fleet
from sits.core.errors import UnknownError
from sits.core.fleet import Fleet, Objective, OpenAIEngine
from sits.core.fleet_inject import Injection
from sits.core.units import MS, SECOND, Share
from sits.policy.inject import drawn
from sits.telemetry.store import DuckStore
from sits.telemetry.tables import REQUESTS, SIGHTINGS
from sits.world import RealWorld

SEEN = "3" * POINT_COUNT
WHOLE = SEEN[:FIRST_TOKEN] + "0" + SEEN[FIRST_TOKEN + 1 :]


@pytest.fixture
def ask(tmp_path):
    """Report on `n` completed requests, of which the last `plain` were not streamed."""

    def made(n, plain=0, metric="ttft", p99=1200 * MS, told=(), slow_engine="", failed=0):
        world = RealWorld()
        requests, _, _ = make(Knobs(n=n))
        requests["run_id"] = np.array(["t-1-abc"] * n, dtype=object)
        requests["wall_ns"] = np.full(n, world.wall_ns())
        if failed:
            requests["outcome"][:failed] = "failed"
            requests["status"][:failed] = 502
        if slow_engine:  # every fourth request
            requests["engine"][::4] = slow_engine
            for name in NAMES[FIRST_TOKEN:]:
                requests[name][::4] += 60 * SECOND
        if plain:
            requests["first_token"][-plain:] = 0
            requests["exactness"][-plain:] = WHOLE
        seen = [sightings_of(requests, *points) for points in told]
        if told:  # the gateway's own points, and no other
            requests["exactness"] = np.full(n, "33333" + "0" * 12 + "333", dtype=object)
        with DuckStore(tmp_path / "store") as store:
            store.append("requests", {name: requests[name] for name in REQUESTS})
            for sightings in seen:
                store.append("sightings", sightings)
            store.flush()
        fleet = Fleet(
            name="t",
            objective=Objective(metric=metric, p99=p99),
            engines=(OpenAIEngine(name="e0", url="http://127.0.0.1:1", models=("m",)),),
        )
        (tmp_path / "store" / "fleet-abc.yaml").write_text(dump_fleet(fleet))
        return why(tmp_path / "store", 900 * SECOND, world)

    return made


def sightings_of(requests, source, off_ns, *points):
    """What an engine whose clock is `off_ns` ahead of ours tells of `points` of these requests."""
    n = len(requests["id"])
    first = requests["wall_ns"] - requests["api_recv"] + off_ns
    told = {name: np.full(n, "" if kind == "VARCHAR" else 0) for name, kind in SIGHTINGS.items()}
    told |= {name: requests[name] + first for name in points}
    told |= {"trace_id": requests["trace_id"], "source": np.full(n, source), "scheme": np.full(n, "vllm")}
    seen = "".join("3" if name in points else "0" for name in NAMES)
    return told | {"exactness": np.full(n, seen)}


def notes(report):
    return {note.title: note.text for note in report.notes}


def test_ttft_is_that_of_the_streamed_answers(ask):
    report = ask(400, plain=60)
    assert (report.objective_metric, report.before.latency.n, report.verified) == ("ttft", 340, True)
    assert state(report) == "met"
    assert [one.metric for one in report.before.others] == ["e2e", "tpot"]
    assert report.before.others[0].n == 400
    assert notes(report)["Not streamed"].startswith("60 of 400 completed requests have no first token")


@pytest.mark.parametrize("streamed", [0, 1])
def test_where_nothing_was_streamed_the_end_to_end_time_is_told_and_not_judged(ask, streamed):
    report = ask(400, plain=400 - streamed)
    assert (report.objective_metric, report.before.latency.n, report.verified) == ("e2e", 400, None)
    assert state(report) == "unproven"
    assert "the objective of 1.2 s is for the time to first token" in report.headline
    assert "not judged" in notes(report)["Not streamed"]
    assert "unattributed (kernel_launch..last_token)" in [stage.stage for stage in report.stages]


def test_an_end_to_end_objective_is_judged_without_any_stream(ask):
    report = ask(400, plain=400, metric="e2e")
    assert (report.objective_metric, report.before.latency.n, report.verified) == ("e2e", 400, True)
    assert report.before.others == ()
    assert state(report) == "met"


@pytest.mark.parametrize(("n", "verified"), [(298, None), (299, True)])
def test_few_requests_prove_no_p99(ask, n, verified):
    report = ask(n)
    assert report.verified is verified
    assert ("298 requests are not enough, an upper bound of P99 needs 299" in report.headline) == (n == 298)
    assert (state(report) == "met") == (n == 299)


def test_a_missed_objective_needs_no_such_number(ask):
    report = ask(100, p99=5 * MS)
    assert report.verified is False
    assert "over the objective of 5" in report.headline
    assert state(report) == "missed"


@pytest.mark.parametrize(("off_ns", "clock"), [(0, "on our clock"), (7 * SECOND, "ms off ours")])
def test_what_an_engine_tells_by_its_spans_is_in_the_report(ask, off_ns, clock):
    report = ask(400, told=(("vllm@1", off_ns, "engine_recv", "queued", "scheduled"),))
    assert "vllm@1 (vllm) tells" in notes(report)["What others saw"]
    assert clock in notes(report)["What others saw"]
    assert "tells 1200 points of 400 requests" in notes(report)["What others saw"]
    assert {"to_engine", "engine_queue"} <= {stage.stage for stage in report.stages}


def test_a_reload_hides_nothing_and_a_fault_put_in_on_purpose_is_found_again(tmp_path):
    world, parts = RealWorld(), []
    fleet = Fleet(
        name="t",
        objective=Objective(metric="ttft", p99=1200 * MS),
        engines=(OpenAIEngine(name="e0", url="http://127.0.0.1:1", models=("m",)),),
    )
    slow = Injection(name="slow", share=Share(0.25), delay=2500 * MS)
    faulty = msgspec.structs.replace(fleet, injections=(slow,))
    ids = [f"{i * 0x01000193 % 2**32:08x}{i:024x}" for i in range(1000)]
    waits = np.where(np.array([drawn(one) < 0.25 for one in ids]), 2499.5, 0.0)
    start = world.wall_ns() - 600 * SECOND
    for part, knobs in enumerate((Knobs(gateway_wait_ms=waits), Knobs())):
        requests, _, _ = make(knobs)
        requests["id"] = np.array(ids if part == 0 else [f"f{one[1:]}" for one in ids], dtype=object)
        for name in NAMES:
            requests[name] = np.where(requests[name] > 0, requests[name] + part * 120 * SECOND, 0)
        requests["authorized"] = requests["parsed"] + 20_000  # an injected delay is between the two
        requests["run_id"] = np.array([f"t-{part}-{'abc' if part else 'bad'}"] * 1000, dtype=object)
        requests["wall_ns"] = requests["api_recv"] + start
        parts.append({name: requests[name] for name in REQUESTS})
    elsewhere = {
        **parts[1],
        "run_id": np.array(["t-0-abc"] * 1000, dtype=object),
        "wall_ns": parts[1]["wall_ns"] - 100 * SECOND,
    }
    with DuckStore(tmp_path / "store") as store:
        for part in (*parts, elsewhere):
            store.append("requests", part)
        store.flush()
    (tmp_path / "store" / "fleet-abc.yaml").write_text(dump_fleet(fleet))
    (tmp_path / "store" / "fleet-bad.yaml").write_text(dump_fleet(faulty))
    report = why(tmp_path / "store", 900 * SECOND, world)
    assert report.before.latency.n == 2000
    assert report.verified is False
    assert "2 configurations (the newest, abc" in report.title
    assert report.findings[0].id == "injected_fault"
    assert f"{np.mean(waits > 0) / 2:.1%} of the requests" in report.findings[0].claim
    assert "gateway_saturation" not in [one.id for one in report.findings]
    told = {note.title: note.text for note in report.notes}
    assert "bad from" in told["Configurations"]
    assert told["Left out"].startswith("1,000 requests of other machines")


def test_a_store_of_failures_alone_names_them_and_where_to_look(tmp_path):
    world = RealWorld()
    requests, _, _ = make(Knobs(n=5))
    requests |= {
        "outcome": np.array(["failed"] * 4 + ["refused"], dtype=object),
        "wall_ns": np.full(5, world.wall_ns()),
    }
    with DuckStore(tmp_path / "store") as store:
        store.append("requests", {name: requests[name] for name in REQUESTS})
        store.flush()
    with pytest.raises(UnknownError, match=r"4 failed, 1 refused.*sitsctl logs timeouts"):
        why(tmp_path / "store", 900 * SECOND, world)


def test_an_engine_that_is_slow_is_named(ask):
    (one,) = ask(400, p99=30 * SECOND, slow_engine="e1").who
    assert (one.kind, one.name, one.n, one.of_n) == ("engine", "e1", 100, 400)
    assert (one.slow, one.wrong, one.of_bad) == (100, 0, 100)
    assert one.p99_ms > 60_000
    assert one.others_p99_ms < 30_000


def test_nobody_is_slow_by_the_objective_of_another_metric(ask):
    report = ask(400, plain=400, p99=30 * SECOND, slow_engine="e1")
    assert (report.objective_metric, report.who) == ("e2e", ())


@pytest.mark.parametrize(("failed", "missed"), [(0, False), (1, False), (40, True)])
def test_quick_answers_do_not_hide_those_that_went_wrong(ask, failed, missed):
    report = ask(440, failed=failed)
    found = report.availability
    assert (found.wrong, found.of, found.missed) == (failed, 440, missed)
    assert (report.verified, state(report)) == ((False, "missed") if missed else (True, "met"))
    assert (
        "40 of 440 requests went wrong, 9.09 %, and the objective allows 0.1 %" in report.headline
    ) is missed
    text = summary_text(report)
    assert (
        "Objective missed: 9.1 % of the requests went wrong (at least" in " ".join(text.split())
    ) is missed
