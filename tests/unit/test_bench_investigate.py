"""An investigation: what it finds on a server whose delays are known, and what it says when it cannot know."""

import asyncio
import json
import math
from pathlib import Path

import msgspec
import pytest
from bench_fake_vllm import FakeVllm

from sits.bench.anatomy import (
    LAG,
    OUTSIDE,
    PREFILL,
    QUEUE,
    UNSEEN,
    Phase,
    histogram_mean_ms,
    known,
    parts_of,
)
from sits.bench.investigate import investigate
from sits.bench.load import Item, load
from sits.bench.suspects import ENOUGH, Scene, findings
from sits.bench.target import discover, fetch
from sits.core.errors import AuthError, ConfigError, EngineError
from sits.core.fleet import Objective
from sits.core.report import P99_REQUESTS_MIN
from sits.core.request import Chunk, Request
from sits.sim.loop import run_virtual
from sits.telemetry.prometheus_text import Histogram
from sits.telemetry.signals import Change, EngineView
from sits.world import RealWorld

PAGES = Path(__file__).parents[1] / "data" / "engines"
MS = 1_000_000


def look(server, **more):
    given = {
        "duration_ns": 600 * MS,
        "baseline_rate": 10.0,
        "loaded_rate": 120.0,
        "output_tokens": (2, 4),
        "prompt_tokens": (4, 32),
    } | more
    return investigate(server.url, world=RealWorld(7), **given)


def by_stage(report):
    return {row.stage: row for row in report.stages}


def ids(report):
    return [finding.id for finding in report.findings]


@pytest.fixture(scope="module")
def seen():
    """One investigation of a server that holds requests 15 ms outside its core and 200 ms in its queue."""
    server = FakeVllm(outside_s=0.015, queue_s=0.2, prefill_s=0.005)
    with server.serving():
        return server, look(server)


def test_stages_add_up_to_the_mean_ttft_and_are_what_the_server_did(seen):
    _, report = seen
    rows = by_stage(report)
    assert list(rows) == [LAG, OUTSIDE, QUEUE, PREFILL]
    client = report.facts["phases"]
    assert sum(row.tail_ms for row in report.stages) == pytest.approx(
        client["loaded"]["client"]["ttft"]["mean_ms"]
    )
    assert sum(row.rest_ms for row in report.stages) == pytest.approx(
        client["baseline"]["client"]["ttft"]["mean_ms"]
    )
    assert rows[QUEUE].tail_ms >= 200
    assert rows[PREFILL].tail_ms >= 5
    assert rows[OUTSIDE].tail_ms >= 15 - 1e-6
    assert rows[QUEUE].tail_ms == pytest.approx(client["loaded"]["engine"]["queue_ms"]["mean"])
    assert (rows[OUTSIDE].exactness, rows[QUEUE].exactness, rows[LAG].exactness) == (
        "derived",
        "derived",
        "measured",
    )
    for row in report.stages:
        assert row.excess.low <= row.excess.value <= row.excess.high
        assert row.excess.value == pytest.approx(row.tail_ms - row.rest_ms)


def test_the_outside_is_split_once_by_the_engines_own_ttft(seen):
    _, report = seen
    halves = report.facts["phases"]["loaded"]["outside_engine_core_ms"]
    assert halves["api_server"] >= 15
    assert sum(halves.values()) == pytest.approx(by_stage(report)[OUTSIDE].tail_ms)


def test_a_large_part_is_named_with_its_evidence(seen):
    _, report = seen
    (queue,) = (finding for finding in report.findings if finding.id == "engine_queue")
    assert queue.effect_ms.value == by_stage(report)[QUEUE].tail_ms
    assert {evidence.signal for evidence in queue.evidence} >= {QUEUE, "share_of_ttft", "requests_waiting"}
    assert "not_alone" not in ids(report)
    assert max(report.stages, key=lambda row: row.tail_ms).stage in report.headline


def test_requests_are_conserved_and_the_load_is_proven(seen):
    server, report = seen
    tally = report.before.account
    assert tally.offered == tally.completed > ENOUGH
    load = report.facts["phases"]["loaded"]["load"]
    assert load["offered"] == load["sent"] == tally.offered
    assert {"lag_ms_p99", "cpu_share", "offered_per_s", "sent_per_s"} <= load.keys()
    baseline = report.facts["phases"]["baseline"]["account"]["offered"]
    assert len(server.bodies) == 3 + baseline + tally.offered


def test_what_is_sent_suits_vllm_and_never_has_a_seed(seen):
    server, report = seen
    for body in server.bodies:
        assert "seed" not in body
        assert body["stream"] is True
        assert body["min_tokens"] == body["max_tokens"]
        assert body["ignore_eos"] is True
    prompts = [tuple(body["prompt"][:4]) for body in server.bodies]
    assert len(set(prompts)) == len(prompts)
    assert report.facts["endpoint"] == "/v1/completions"


def test_gauges_become_series_and_the_report_is_data(seen):
    _, report = seen
    names = {series.name for series in report.before.series}
    assert names == {"requests_running", "requests_waiting", "kv_usage", "client_in_flight"}
    assert all(len(series.t_s) == len(series.value) > 0 for series in report.before.series)
    assert (report.kind, report.seed, report.verified) == ("investigate", 7, None)
    assert {note.title for note in report.notes} >= {"TTFT", "Two kinds of TTFT", "Outside the engine core"}
    assert json.loads(msgspec.json.encode(report))["facts"]["engine"] == "vllm"
    assert {row.metric for row in (report.before.latency, *report.before.others)} == {"ttft", "e2e", "tpot"}
    assert len(report.waterfalls) == 2


def test_an_engine_without_metrics_leaves_everything_unattributed_and_says_why():
    server = FakeVllm(queue_s=0.03)
    server.metrics = False
    with server.serving():
        report = look(server)
    assert list(by_stage(report)) == [LAG, UNSEEN]
    (finding,) = (f for f in report.findings if f.id == "engine_tells_nothing")
    assert "404" in finding.inconclusive
    assert report.facts["engine"] == ""
    assert report.facts["endpoint"] == "/v1/chat/completions"
    assert all("messages" in body and "ignore_eos" not in body for body in server.bodies)
    assert sum(row.tail_ms for row in report.stages) == pytest.approx(
        report.facts["phases"]["loaded"]["client"]["ttft"]["mean_ms"]
    )


def test_a_small_sample_claims_nothing_about_time():
    server = FakeVllm(queue_s=0.05)
    with server.serving():
        report = look(server, requests_max=12)
    assert report.before.account.offered <= 12 < ENOUGH
    about_time = [
        finding for finding in report.findings if finding.id in {"engine_queue", "decode", "prefill"}
    ]
    assert about_time
    assert all("not enough evidence" in finding.inconclusive for finding in about_time)
    assert all(finding.severity == "info" for finding in about_time)


def test_recorded_pages_of_a_real_engine_that_served_others_too():
    """The page before any load, under load (3 requests done), and at the end, 188 requests later."""
    idle, under, after = (
        (PAGES / f"vllm_metrics_{name}.txt").read_text() for name in ("idle", "load", "after")
    )
    server = FakeVllm(pages={"warm": idle, "baseline": under, "loaded": after})
    with server.serving():
        report = look(server)
    loaded = report.facts["phases"]["loaded"]["engine"]
    assert loaded["queue_ms"]["n"] == 188
    assert loaded["queue_ms"]["mean"] == pytest.approx(3454.29, rel=1e-4)
    assert loaded["queue_ms"]["p99_bucket"] == [10_000, 15_000]
    assert loaded["output_tokens_total"] == 6_653 - 475
    assert "not_alone" in ids(report)
    assert report.facts["engine_configuration"]["block_size"] == "128"
    rows = by_stage(report)
    assert rows[OUTSIDE].tail_ms < 0  # the queue time of others: shown as it is, not hidden
    assert "negative_remainder" in ids(report)


def test_failures_and_refusals_are_findings_and_kept_in_the_account():
    server = FakeVllm(fail=lambda number: {0: 500, 1: 503}.get(number % 5) if number > 3 else None)
    with server.serving():
        report = look(server)
    tally = report.before.account
    assert tally.failed > 0
    assert tally.refused > 0
    assert tally.offered == tally.completed + tally.failed + tally.refused
    assert report.findings[0].severity == "alarm"
    claims = " ".join(finding.claim for finding in report.findings)
    assert "engine_500" in claims
    assert "engine_503" in claims


def test_kv_pressure_and_preemptions_are_an_alarm():
    server = FakeVllm()
    server.kv_usage = 0.97

    def preempt(number):
        server.preemptions.inc()

    server.fail = preempt
    with server.serving():
        report = look(server)
    (finding,) = (f for f in report.findings if f.id == "kv_pressure")
    assert finding.severity == "alarm"
    assert "97%" in finding.claim


def test_more_than_the_engine_sustains_is_said_because_then_no_figure_stands():
    """One seat of 25 ms serves 40 requests a second at most; 100 come."""
    with FakeVllm(prefill_s=0.025, seats=1).serving() as server:
        report = look(server, loaded_rate=100.0, output_tokens=(1, 1))
    claims = {finding.id: finding for finding in report.findings}
    assert claims["above_capacity"].effect_ms.low > 0
    assert "engine_queue" in claims
    assert by_stage(report)[QUEUE].excess.low > 0


def test_an_engine_that_completes_nothing_is_an_error_with_a_way_out():
    with FakeVllm(fail=lambda number: 500).serving() as server, pytest.raises(EngineError) as caught:
        look(server)
    assert "engine_500" in str(caught.value)
    assert "by hand" in str(caught.value)


def test_the_key_is_sent_and_the_objective_is_judged():
    with FakeVllm().serving() as server:
        report = look(server, api_key="k", objective=Objective(metric="e2e", p99=10**15))
    assert server.authorizations == {"bearer k"}
    assert report.before.latency.metric == "e2e"
    assert report.before.latency.n < P99_REQUESTS_MIN
    assert "is not proven to meet the objective" in report.headline  # however far under: too few requests


def test_rates_left_out_are_sized_from_the_warm_up():
    lines = []
    with FakeVllm(prefill_s=0.02).serving() as server:
        report = look(server, baseline_rate=0.0, loaded_rate=0.0, progress=lines.append)
    rates = [report.facts["phases"][name]["rate"] for name in ("baseline", "loaded")]
    assert 0 < rates[0] <= 20
    assert 0 < rates[1] <= 200
    assert len(lines) == 3


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"duration_ns": 0}, "duration"),
        ({"loaded_rate": -1.0}, "loaded_rate"),
        ({"requests_max": 1}, "requests_max"),
        ({"prompt_tokens": (9, 3)}, "prompt_tokens"),
        ({"output_tokens": (0, 3)}, "output_tokens"),
    ],
)
def test_a_bound_that_cannot_be_used_is_named(more, field):
    server = FakeVllm()
    server.url = "http://127.0.0.1:9"
    with pytest.raises(ConfigError) as caught:
        look(server, **more)
    assert caught.value.field == field


def test_a_wrong_model_is_told_the_near_name():
    with FakeVllm().serving() as server:
        with pytest.raises(ConfigError, match="did you mean 'tiny'"):
            discover(server.url + "/v1/", model="tinny")
        assert discover(server.url).models == ("tiny", "tiny-lora")


@pytest.mark.parametrize("url", ["ftp://x", "127.0.0.1:8000", "", "http://"])
def test_a_url_that_is_none_is_refused(url):
    with pytest.raises(ConfigError, match="not an HTTP URL"):
        discover(url)


def test_nothing_there_and_something_else_there_are_told_apart(tmp_path):
    with pytest.raises(EngineError, match="does not answer"):
        discover("http://127.0.0.1:9")
    with FakeVllm().serving() as server:
        with pytest.raises(EngineError, match="404"):
            discover(server.url + "/elsewhere")
        server.plain = lambda writer, status, text: FakeVllm.plain(server, writer, 200, "<html>")
        with pytest.raises(EngineError, match="is not a list of models"):
            discover(server.url)
        server.plain = lambda writer, status, text: FakeVllm.plain(server, writer, 401, "")
        with pytest.raises(AuthError, match="401"):
            fetch(server.url + "/v1/models")


def phase(name, first_s, *, n=60, queue_s=0.0, prefill_s=0.0, tokens=2, pace_s=0.001, **values):
    """A phase on the virtual clock: request i has its first token after `first_s(i)`; no machine's noise in it."""

    class Engine:
        name = "e"

        async def generate(self, request, timeline):
            await asyncio.sleep(first_s(int(request.id)))
            for i in range(tokens):
                if i:
                    await asyncio.sleep(pace_s)
                yield Chunk(tokens=1)

    async def main(world):
        items = [Item(i * 20 * MS, Request(id=str(i), model="m")) for i in range(n)]
        done = await load(Engine(), items, world)
        steady = msgspec.structs.replace(done.delivered, cpu_share=0.1)
        return msgspec.structs.replace(done, delivered=steady), done.columns(world, name, "e")

    done, columns = run_virtual(main)
    histograms = {
        f"{stage}_seconds": Histogram((s * 1.01, math.inf), (float(n), 0.0), s * n, float(n))
        for stage, s in (("queue", queue_s), ("prefill", prefill_s))
    }
    seen = EngineView("vllm", {"kv_usage": 0.2} | values, histograms, {})
    return Phase(name=name, rate=50.0, load=done, columns=columns, change=Change(seen), samples=((1, seen),))


def claims_of(baseline, loaded):
    rng = RealWorld(1).rng("t")
    told = known(baseline) & known(loaded)
    scene = Scene(baseline, loaded, parts_of(baseline, told, rng), parts_of(loaded, told, rng))
    return {finding.id: finding for finding in findings(scene, rng)}


CALM = {"queue_s": 0.0, "prefill_s": 0.003}


def test_a_quiet_engine_yields_no_suspect():
    quiet = [phase(name, lambda _: 0.005, **CALM) for name in ("baseline", "loaded")]
    assert set(claims_of(*quiet)) == {"nothing_stands_out"}


@pytest.mark.parametrize(
    ("slow", "name"),
    [
        ({"queue_s": 0.09, "prefill_s": 0.003}, "engine_queue"),
        ({"queue_s": 0.0, "prefill_s": 0.09}, "prefill"),
        ({"queue_s": 0.0, "prefill_s": 0.003}, "outside_engine_core"),
    ],
)
def test_a_delay_is_found_where_it_was_put(slow, name):
    baseline = phase("baseline", lambda _: 0.005, **CALM)
    loaded = phase("loaded", lambda _: 0.1, **slow)
    claims = claims_of(baseline, loaded)
    assert set(claims) == {name}
    effect = claims[name].effect_ms
    assert effect.value == pytest.approx(97 if name == "outside_engine_core" else 90, abs=0.1)
    assert effect.low <= effect.value <= effect.high
    assert effect.high - effect.low < 5


def test_growth_is_capacity_and_a_level_is_not():
    baseline = phase("baseline", lambda _: 0.005, **CALM)
    growing = claims_of(baseline, phase("loaded", lambda i: 0.005 + 0.01 * i, **CALM))
    level = claims_of(baseline, phase("loaded", lambda i: 0.3 + 0.01 * (i % 7), **CALM))
    assert growing["above_capacity"].effect_ms.value == pytest.approx(400, abs=1)
    assert "above_capacity" not in level


def test_slow_generation_is_measured_against_the_baseline():
    baseline = phase("baseline", lambda _: 0.005, tokens=20, **CALM)
    loaded = phase("loaded", lambda _: 0.005, tokens=20, pace_s=0.004, **CALM)
    (finding,) = claims_of(baseline, loaded).values()
    assert (finding.id, finding.severity) == ("decode", "warning")
    assert finding.effect_ms.value == pytest.approx(19 * 3)
    assert "4.0 times" in finding.claim


def test_counters_and_gauges_of_the_engine_are_claims_of_their_own():
    baseline = phase("baseline", lambda _: 0.005, **CALM)
    full = claims_of(baseline, phase("loaded", lambda _: 0.005, kv_usage=0.93, **CALM))
    preempting = claims_of(baseline, phase("loaded", lambda _: 0.005, preemptions_total=2.0, **CALM))
    assert full["kv_pressure"].severity == "warning"
    assert preempting["kv_pressure"].severity == "alarm"


def test_an_engine_that_restarted_or_served_others_is_told():
    baseline = phase("baseline", lambda _: 0.005, **CALM)
    loaded = phase("loaded", lambda _: 0.005, **CALM)
    seen = loaded.change.view
    more = msgspec.structs.replace(seen.histograms["queue_seconds"], count=99.0)
    others = msgspec.structs.replace(seen, histograms=seen.histograms | {"queue_seconds": more})
    loaded = msgspec.structs.replace(loaded, change=Change(others, ("vllm:num_preemptions_total",)))
    claims = claims_of(baseline, loaded)
    assert "99 requests" in claims["not_alone"].claim
    assert claims["engine_restarted"].severity == "alarm"


def test_the_interval_of_a_histogram_mean_holds_the_mean_and_shrinks_with_n():
    small = histogram_mean_ms(Histogram((0.1, 1.0, 2.0, math.inf), (5, 4, 1, 0), 4.0, 10))
    large = histogram_mean_ms(Histogram((0.1, 1.0, 2.0, math.inf), (500, 400, 100, 0), 400.0, 1000))
    assert small.value == large.value == 400.0
    assert 0 <= small.low < large.low < 400.0 < large.high < small.high
