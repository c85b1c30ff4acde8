"""`sitsctl trace`, `logs` and `logs timeouts` over the store of a real gateway whose engine hangs, then dies."""

import http.client
import json
import signal
import socket
import subprocess

import pytest
from click.testing import CliRunner

from app_processes import GatedEngine, serving, sitsctl
from sits.app.cli import cli
from sits.app.trace.finding import find
from sits.core.errors import CallerError, UnknownError
from sits.telemetry.store import DuckStore
from sits.telemetry.tables import SPANS, columns_of
from sits.world import RealWorld

FLEET = """\
name: hanging
gateway: {{listen: "127.0.0.1:0", store: "{store}", first_byte_timeout: 300ms, keys: ["acme:{key}"]}}
engines:
  - {{kind: openai, name: e0, url: "{url}", models: [m]}}
  - {{kind: openai, name: gone, url: "{gone}", models: [lost]}}
"""
HANGS, FINE, LOST = "aa" * 16, "bb" * 16, "cc" * 16
CALLER = "12" * 8
KEY, WRONG, PROMPT = (
    "sits-acme-5up3rs3cr3tk3y0123456789",
    "sk-wr0ngwr0ngwr0ngwr0ng",
    "a story nobody may read",
)


def ask(port, trace, model="m", key=KEY, stream=False):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    body = {"model": model, "messages": [{"role": "user", "content": PROMPT}], "stream": stream}
    headers = {
        "content-type": "application/json",
        "authorization": f"Bearer {key}",
        "traceparent": f"00-{trace}-{CALLER}-01",
    }
    try:
        connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
        answer = connection.getresponse()
        answer.read()
        return answer.status, answer.getheader("x-sits-decision-id")
    finally:
        connection.close()


@pytest.fixture(scope="module")
def hung(tmp_path_factory):
    """A gateway that has answered some, and is stopped: its store, what it wrote to stderr, and the ids of its answers."""
    tmp_path = tmp_path_factory.mktemp("hung")
    with socket.socket() as nobody, GatedEngine().serving() as engine:
        nobody.bind(("127.0.0.1", 0))
        gone = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        with serving(tmp_path, FLEET, "--log-format", "json", url=engine.url, gone=gone, key=KEY) as up:
            ids = {FINE: ask(up.port, FINE, stream=True)}
            engine.shut()
            ids[HANGS] = ask(up.port, HANGS)
            assert ask(up.port, HANGS, key=WRONG)[0] == 401
            statuses = [ask(up.port, LOST if i < 3 else f"{i:032x}", model="lost")[0] for i in range(1, 9)]
            engine.open()
            up.tell(signal.SIGTERM)
            assert up.end() == 0
            store = tmp_path / "store"
            now_ns = RealWorld().wall_ns()
            span = (
                "r",
                HANGS,
                CALLER,
                "",
                "rag",
                "answer",
                "SERVER",
                now_ns - 5 * 10**8,
                now_ns,
                "ERROR: status 503",
                "{}",
            )
            with DuckStore(store) as opened:
                opened.append("spans", columns_of(SPANS, [span]))
            yield store, [json.loads(line) for line in up.said], ids, statuses


def run(*arguments):
    result = CliRunner().invoke(cli, [str(a) for a in arguments], standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    return result.return_value, result.output


def test_failed_requests_are_lines_with_their_trace_and_good_ones_are_none(hung):
    _, said, ids, statuses = hung
    assert (ids[FINE][0], ids[HANGS][0]) == (200, 504)
    assert statuses[0] == 502
    assert 503 in statuses, "the breaker opened"
    about = [line for line in said if line.get("logger") == "sits.request"]
    timed_out = [line for line in about if line["event"] == "request failed: engine_timeout"]
    (line,) = timed_out
    assert (line["trace_id"], line["request_id"], line["status"]) == (HANGS, ids[HANGS][1], 504)
    assert (line["level"], line["process"], line["generation"], line["engine"]) == (
        "error",
        "keeper",
        1,
        "e0",
    )
    assert line["e2e_ms"] > 0
    assert FINE not in json.dumps(said)
    assert not [line for line in about if line.get("status") == 401]
    opened = [line for line in said if line["event"] == "breaker opened"]
    assert [line["engine"] for line in opened] in ([], ["gone"]), "it is looked at once a second"


def test_no_key_and_no_prompt_is_in_any_line(hung):
    store, said, _, _ = hung
    with DuckStore(store) as opened:
        kept = opened.scan("logs_window")
    for text in (json.dumps(said), json.dumps([row["line"] for row in kept])):
        for secret in (KEY, WRONG, PROMPT):
            assert secret not in text
    assert {row["line"] for row in kept} >= {
        json.dumps(line, separators=(",", ":"), ensure_ascii=False)
        for line in said
        if line["process"] == "keeper"
    }


def test_a_trace_is_shown_with_all_there_is(hung):
    store, _, ids, _ = hung
    code, text = run("trace", HANGS[:8], "--store", store)
    assert code == 0
    for wanted in (
        f"trace {HANGS}  2 requests, 1 spans of others",
        "answer (rag)",
        "ERROR: status 503",
        "request at e0",
        "failed 504  engine_timeout",
        "refused 401",
        "acme",
        "request failed: engine_timeout",
        "route: chosen e0",
        "unattributed (dispatched..sent)",
    ):
        assert wanted in text, wanted
    tree = text[: text.index(f"request {ids[HANGS][1]}")]
    assert tree.index("answer (rag)") < tree.index("  request at e0"), "the caller's span is its parent"

    code, text = run("trace", ids[HANGS][1], "--store", store, "--json")
    found = json.loads(text)
    asked = next(one for one in found["requests"] if one["id"] == ids[HANGS][1])
    assert sum(stage["ms"] for stage in asked["stages"]) == pytest.approx(asked["e2e_ms"])
    assert (asked["ttft_ms"], asked["parent_id"], asked["decision"]["outcome"]) == (None, CALLER, "failed")
    assert [span["service"] for span in found["spans"]] == ["rag"]
    assert [line["event"] for line in found["logs"]] == ["request failed: engine_timeout"]


def test_a_streamed_answer_shows_its_first_token_and_every_stage_when_asked(hung):
    store, _, ids, _ = hung
    short, every = run("trace", FINE, "--store", store)[1], run("trace", FINE, "--all", "--store", store)[1]
    assert "TTFT" in short
    assert "not seen" not in short
    assert "unattributed (dispatched..first_token)" in every
    for stage in ("parse", "authorize", "route", "admit_window", "decode", "send"):
        assert f"\n{stage} " in every
    assert run("trace", f"00-{FINE}-{CALLER}-01", "--store", store)[1] == short
    assert run("trace", ids[FINE][1].upper(), "--store", store)[1] == short


def test_what_is_not_found_is_told_with_what_there_is(hung):
    store = hung[0]

    def refused(asked):
        with pytest.raises(CallerError) as told:
            find(store, asked, RealWorld())
        return str(told.value)

    assert "11 requests from 20" in refused("ddddddd")
    assert "6 to 32 hex digits" in refused("ab")
    assert "give more digits" in refused("000000")


def test_a_request_is_explained_by_whatever_names_it_alone(hung):
    store, _, ids, _ = hung
    whole = ids[FINE][1]
    cards = [
        json.loads(run("explain", asked, "--json", "--store", store)[1])
        for asked in (whole, whole.upper(), f" {whole[:12]}", FINE, FINE[:8], f"00-{FINE}-{CALLER}-01")
    ]
    assert [card["id"] for card in cards] == [whole] * 6
    with pytest.raises(UnknownError, match=r"names 2 requests: .* \(name one of them\)"):
        run("explain", LOST, "--store", store)
    with pytest.raises(UnknownError, match=r"nothing of 'dddddddd' is recorded; .* requests from"):
        run("explain", "d" * 8, "--store", store)


def test_answers_are_joined_with_the_failure_they_came_from(hung):
    store, _, _, statuses = hung
    code, text = run("logs", "timeouts", "--store", store, "--json")
    assert code == 1
    found = json.loads(text)
    counts = {
        (one["engine"], one["cause"], one["service"], one["got"], one["how"]): one for one in found["counts"]
    }
    assert counts["e0", "engine_timeout", "gateway", "504", "itself"]["traces"] == [HANGS]
    downstream = counts["e0", "engine_timeout", "rag", "ERROR: status 503", "trace"]
    assert (downstream["count"], downstream["traces"]) == (1, [HANGS])
    assert counts["gone", "engine_unreachable", "gateway", "502", "itself"]["count"] == statuses.count(502)
    closed = [one for one in found["answers"] if one["how"] == "breaker"]
    assert len(closed) == sum(
        one["what"] == "no_healthy_engine" and one["trace_id"] != LOST for one in found["answers"]
    )
    failed = {one["cause_id"] for one in found["answers"] if one["how"] == "itself"}
    for one in closed:
        assert (one["engine"], one["got"]) == ("gone", "503")
        assert one["cause_trace_id"] != one["trace_id"]
        assert one["cause_id"] in failed
    assert statuses.count(503) == sum(one["got"] == "503" for one in found["answers"])

    code, text = run("logs", "timeouts", "--engine", "e0", "--all", "--store", store)
    assert code == 1
    assert "engine_timeout" in text
    assert "gone" not in text
    assert "rag got ERROR: status 503 (answer)  <- e0 engine_timeout" in text


def test_lines_are_read_back_by_level_trace_and_process(hung):
    store, _, ids, _ = hung
    code, text = run("logs", "--store", store)
    assert code == 0
    assert "hanging: serving 2 engines" in text
    assert "error: request failed: engine_timeout" in text
    assert "serving" not in run("logs", "--store", store, "--level", "error")[1]
    (line,) = run("logs", "--store", store, "--trace", HANGS, "--json")[1].splitlines()
    assert json.loads(line)["request_id"] == ids[HANGS][1]
    supervisor = run("logs", "--store", store, "--process", "supervisor", "--json")[1].splitlines()
    assert {json.loads(line)["process"] for line in supervisor} == {"supervisor"}
    assert run("logs", "--store", store, "--limit", "1")[1].count("\n") == 1


def test_lines_of_a_trace_are_found_by_whatever_names_it(hung):
    store = hung[0]
    whole = run("logs", "--trace", HANGS, "--store", store)[1]
    assert "engine_timeout" in whole
    for asked in (HANGS.upper(), HANGS[:8], f"00-{HANGS}-{CALLER}-01"):
        assert run("logs", "--trace", asked, "--store", store)[1] == whole
    with pytest.raises(UnknownError, match="give more digits"):
        run("logs", "--trace", "000000", "--store", store)
    with pytest.raises(CallerError, match="is no id"):
        run("logs", "--trace", "nobody", "--store", store)
    assert run("logs", "--trace", "d" * 32, "--json", "--store", store)[1] == ""


def test_following_ends_with_an_interrupt_and_shows_what_comes(hung):
    store = hung[0]
    process = subprocess.Popen(
        sitsctl("logs", "--store", store, "--follow", "--json"), stdout=subprocess.PIPE, text=True
    )
    try:
        for _ in range(hung_lines(store)):
            process.stdout.readline()
        row = {
            "run_id": "r",
            "wall_ns": RealWorld().wall_ns(),
            "level": "warning",
            "process": "x",
            "trace_id": "",
            "request_id": "",
            "event": "new",
            "line": '{"event":"new"}',
        }
        with DuckStore(store) as opened:
            opened.append("logs", {name: [value] for name, value in row.items()})
        assert process.stdout.readline() == '{"event":"new"}\n'
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
    finally:
        process.kill()
        process.stdout.close()


def test_following_ends_when_nobody_reads_any_more(hung):
    """No line comes, so no write could tell."""
    process = subprocess.Popen(
        sitsctl("logs", "--store", hung[0], "--follow"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        for _ in range(hung_lines(hung[0])):
            process.stdout.readline()
        process.stdout.close()
        assert process.wait(30) == 141
        assert process.stderr.read() == ""
    finally:
        process.kill()
        process.stderr.close()


def hung_lines(store):
    with DuckStore(store) as opened:
        return sum(row["level"] != "debug" for row in opened.scan("logs_window"))
