"""What the keeper tells of requests and breakers, and how the supervisor's lines reach it."""

import json

import pytest

from app_processes import GatedEngine, serving
from sits.app.up.attempts import Attempts
from sits.app.up.lines import WAITING_MAX, Lines, farewell
from sits.app.up.states import STALE_NS, States
from sits.app.up.telling import Telling
from sits.core.breakpoints import API_RECV, SENT
from sits.core.timeline import Timeline
from sits.core.units import MS, SECOND
from sits.gateway.shared import OPEN_NS, REACHED_NS, Shared, column
from sits.telemetry.log_bounds import BURST, WINDOW_NS
from sits.telemetry.logs import Log
from sits.telemetry.packing import pack
from sits.telemetry.recorder import row_of
from sits.telemetry.store import DuckStore
from sits.world import RealWorld

LABELS = {
    "tenant": "acme",
    "model": "m",
    "adapter": "",
    "engine": "e0",
    "arm": "stable",
    "outcome": "completed",
    "status": 200,
    "detail": "",
    "prompt_tokens": 1,
    "output_tokens": 1,
    "cached_tokens": 0,
    "preemptions": 0,
    "prompt_hash": "",
    "abstraction_layer": "",
    "trace_id": "",
    "parent_id": "",
}
TIMED_OUT = {"outcome": "failed", "status": 504, "detail": "engine_timeout"}


class Clock:
    """A world whose time is set."""

    def __init__(self):
        self.now = 10 * SECOND

    def now_ns(self):
        return self.now


@pytest.fixture
def told():
    """Telling, its clock, and what it has told."""
    said, clock = [], Clock()
    telling = Telling(clock, lambda event, level="info", **facts: said.append((event, level, facts)))
    return telling, clock, said


def rows(*labels):
    made = []
    for i, one in enumerate(labels):
        timeline = Timeline()
        timeline.mark(API_RECV, 1_000 * MS)
        timeline.mark(SENT, 1_250 * MS)
        made.append(row_of(timeline, id=f"{i:032x}", **(LABELS | one)))
    return [pack(made)]


def test_what_failed_or_was_answered_with_5xx_is_told_and_nothing_else(told):
    telling, _, said = told
    telling.see(
        rows(
            {},
            TIMED_OUT | {"trace_id": "ab" * 16, "parent_id": "cd" * 8},
            {"outcome": "refused", "status": 429, "detail": "quota_exceeded", "engine": ""},
            {"outcome": "refused", "status": 503, "detail": "no_healthy_engine", "engine": ""},
            {"outcome": "cancelled", "status": 499, "detail": "client_left"},
        )
    )
    assert [(event, level) for event, level, _ in said] == [
        ("request failed: engine_timeout", "error"),
        ("request refused: no_healthy_engine", "warning"),
    ]
    failed, refused = said[0][2], said[1][2]
    assert (failed["trace_id"], failed["parent_id"], failed["request_id"]) == (
        "ab" * 16,
        "cd" * 8,
        f"{1:032x}",
    )
    assert (failed["e2e_ms"], failed["engine"], failed["tenant"], failed["status"]) == (
        250.0,
        "e0",
        "acme",
        504,
    )
    assert refused["trace_id"] == f"{3:032x}", "a trace that began here has the request's id"
    assert "engine" not in refused


def test_a_flood_of_one_kind_is_some_lines_and_their_count(told):
    telling, clock, said = told
    telling.see(rows(*[TIMED_OUT] * 500, TIMED_OUT | {"engine": "e1"}))
    assert len(said) == BURST + 1
    clock.now += WINDOW_NS
    telling.look(Shared(1, 1), {})
    assert said[-1][0] == "lines suppressed"
    assert (said[-1][2]["suppressed"], said[-1][2]["kind"]) == (500 - BURST, "failed engine_timeout e0")
    telling.see(rows(TIMED_OUT))
    assert said[-1][0] == "request failed: engine_timeout", "the next window has its own"
    telling.see(rows(*[TIMED_OUT] * 20))
    telling.close()
    assert said[-1][2]["suppressed"] == 21 - BURST


def test_a_breaker_is_told_once_when_it_opens_with_who_failed_and_once_when_it_closes(told):
    telling, clock, said = told
    shared, slots = Shared(2, 4), {"e0": 0, "e1": 1}
    row = shared.row(1)
    telling.see(rows(TIMED_OUT | {"detail": "engine_unreachable", "trace_id": "ab" * 16}))
    said.clear()
    telling.look(shared, slots)
    assert said == []
    row[column(0, OPEN_NS)] = clock.now + SECOND
    for _ in range(3):  # opened again and again while nobody answers there
        telling.look(shared, slots)
        clock.now += SECOND
        row[column(0, OPEN_NS)] = clock.now + SECOND
    ((event, level, facts),) = said
    assert (event, level, facts["engine"], facts["trace_id"]) == (
        "breaker opened",
        "warning",
        "e0",
        "ab" * 16,
    )
    row[column(0, OPEN_NS)] = 0  # it has answered
    telling.look(shared, slots)
    assert (said[-1][0], said[-1][2]["engine"], len(said)) == ("breaker closed", "e0", 2)
    row[column(0, OPEN_NS)] = clock.now + SECOND
    telling.look(shared, slots)
    clock.now += 3600 * SECOND
    telling.look(shared, slots)
    assert len(said) == 3, "nobody asked it, so nobody knows"
    shared.row(0)[column(0, REACHED_NS)] = clock.now  # another worker had an answer
    telling.look(shared, slots)
    assert [one[0] for one in said[2:]] == ["breaker opened", "breaker closed"]


def test_an_engine_that_a_reload_took_away_is_told_no_more(told):
    telling, clock, said = told
    shared = Shared(1, 4)
    shared.row(0)[column(0, OPEN_NS)] = clock.now + SECOND
    telling.look(shared, {"e0": 0})
    telling.look(shared, {})
    telling.look(shared, {"e0": 0})
    assert [one[0] for one in said] == ["breaker opened", "breaker opened"]


def test_lines_wait_for_a_keeper_that_is_away_and_go_in_order():
    class Keeper:
        pid = 0

    sent, keeper = [], Keeper()
    lines = Lines(keeper, lambda child, kind, row: sent.append((child, kind, row)))
    for i in range(WAITING_MAX + 5):
        lines((i,))
    assert sent == []
    keeper.pid = 7
    lines(("works again",))
    assert [row for _, _, row in sent] == [*((i,) for i in range(6, WAITING_MAX + 5)), ("works again",)]
    assert {(child, kind) for child, kind, _ in sent} == {(keeper, "log")}


def test_the_last_words():
    assert (
        farewell((3, 1, "disk full"), "s")
        == "drained; 3 answered, 1 records dropped, store in s (the store: disk full)"
    )
    assert "without a word" in farewell(None, "s")


def test_an_attempt_that_was_made_good_elsewhere_is_told_and_is_what_a_breaker_opened_for(told):
    telling, clock, said = told
    kept, lines = [], []
    clock.wall_ns = lambda: 0
    log = Log(clock, lines.append)
    log.keep = kept.append
    attempts = Attempts(clock, log)
    for i in range(BURST + 5):
        attempts(f"{i:032x}", "", "m", "e0", "engine_unreachable", "e1")
    assert len(lines) == BURST
    telling.hear(kept)
    shared = Shared(1, 1)
    shared.row(0)[column(0, OPEN_NS)] = clock.now + SECOND
    telling.look(shared, {"e0": 0})
    ((event, _, facts),) = said
    assert (event, facts["trace_id"], facts["detail"]) == (
        "breaker opened",
        f"{BURST + 4:032x}",
        "engine_unreachable",
    )
    clock.now += WINDOW_NS
    attempts.look()
    assert json.loads(lines[-1])["suppressed"] == 5


@pytest.mark.parametrize("ends", ["the minute", "the worker"])
def test_of_an_outage_a_log_gets_ten_lines_an_engine_and_code_and_the_store_each(told, ends):
    _, clock, _ = told
    clock.wall_ns = lambda: 0
    lines, kept = [], []
    log = Log(clock, lambda line: lines.append(json.loads(line)))
    log.keep = kept.append
    attempts = Attempts(clock, log)
    kinds = [(engine, code) for engine in ("e0", "e1") for code in ("engine_unreachable", "engine_died")]
    for i in range(1_000):
        engine, code = kinds[i % 4]
        attempts(f"{i:032x}", f"{i + 10_000:032x}", "m", engine, code, "e9")
    assert len(lines) == 4 * BURST
    if ends == "the minute":
        attempts.look()
        assert len(lines) == 4 * BURST
        clock.now += WINDOW_NS
        attempts.look()
    else:
        attempts.close()
    summed = lines[4 * BURST :]
    assert {line["kind"]: line["suppressed"] for line in summed} == {
        f"attempt failed: {engine} {code}": 250 - BURST for engine, code in kinds
    }
    attempts.close()
    assert len(lines) == 4 * BURST + 4, "told once"
    told_of = [row for row in kept if row[5].startswith("attempt failed: ")]
    assert [row[3] for row in told_of] == [f"{i + 10_000:032x}" for i in range(1_000)]
    assert [row[1] for row in told_of] == ["warning"] * 4 * BURST + ["debug"] * (1_000 - 4 * BURST)
    assert all(
        "level" in json.loads(row[6]) and row[5].endswith(kinds[i % 4][1]) for i, row in enumerate(told_of)
    )


def test_what_engines_told_is_on_the_page_while_it_is_fresh():
    states = States()
    states.adopt({"e0", "e1"})
    states.see([(0, "e0", "kv_usage", 0.25), (0, "gpu-0", "kv_usage", 1.0), (0, "e0", "sm_clock", 3.0)])
    states.see([(SECOND, "e1", "requests_waiting", 7.0), (SECOND, "e0", "kv_usage", 0.5)])
    assert states.vitals(3 * SECOND) == {
        "sits_engine_kv_usage": {'engine="e0"': 0.5},
        "sits_engine_requests_waiting": {'engine="e1"': 7.0},
        "sits_engine_state_age_seconds": {'engine="e0"': 2.0, 'engine="e1"': 2.0},
    }
    states.adopt({"e0"})
    assert "sits_engine_requests_waiting" not in states.vitals(3 * SECOND)
    assert states.vitals(SECOND + STALE_NS + 1) == {}


FLEET = """\
name: small
gateway: {{listen: "127.0.0.1:0", store: "{store}"}}
admin: {{listen: "0.0.0.0:0"}}
engines:
  - {{kind: openai, name: e0, url: "{url}", models: [m]}}
  - {{kind: openai, name: gone, url: "http://127.0.0.1:9/v1", models: [m]}}
"""


def test_lines_of_workers_and_of_the_admin_process_reach_the_store(tmp_path):
    with GatedEngine().serving() as engine, serving(tmp_path, FLEET, url=engine.url) as up:
        up.hear("board on")
        for _ in range(40):
            up.sdk.chat.completions.create(model="m", messages=[{"role": "user", "content": "hello"}])
        up.hear("breaker opened")
        up.stop()
    with DuckStore(tmp_path / "store", world=RealWorld()) as store:
        rows = store.scan("logs_window", since_wall_ns=None, until_wall_ns=None)
        lines = [json.loads(row["line"]) for row in rows]
        (opened,) = [line for line in lines if line["event"] == "breaker opened"]
        attempts = [line for line in lines if line["event"] == "attempt failed: engine_unreachable"]
        assert opened["trace_id"] in {line["trace_id"] for line in attempts}
        assert {(line["engine"], line["next_engine"], line["process"]) for line in attempts} == {
            ("gone", "e0", "worker-0")
        }
        assert any(line["process"] == "admin" and "loopback" in line["event"] for line in lines)
        row = store.scan("trace", trace_id=opened["trace_id"])
        assert [one["outcome"] for one in row] == ["completed"]
