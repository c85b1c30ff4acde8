"""The benchmark measures what it says: its load against its own engine, its raw client, and its bars."""

import shutil
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from gateway.figures import bars, better_than_ours, spread
from gateway.load import Load
from gateway.table import BEGIN, END, write_page
from gateway.wire_client import connect, read_reply, request
from gateway.wire_mock import Engines


@pytest.fixture(scope="module")
def load(tmp_path_factory):
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")
    with Load(tmp_path_factory.mktemp("load")) as one:
        yield one


def test_plain_answers_are_counted_at_both_ends(load):
    got = load.ask("sat", port=load.ports[0], seconds=0.3, warm=0.1, conns=8)
    assert got["errors"] == got["not_200"] == 0
    assert abs(got["served"] - got["engine_requests"]) <= 8
    assert got["latency_us"]["n"] == got["served"]


@pytest.mark.parametrize("phase", ["credit", "flood"])
def test_each_chunk_of_each_stream_arrives(load, phase):
    got = load.ask(phase, port=load.ports[0], seconds=0.3, warm=0.1, conns=8, chunks=40)
    assert got["errors"] == got["short_streams"] == 0
    assert abs(got["served"] - 40 * got["streams"]) <= 8 * 40


def test_many_streams_are_open_at_once_and_whole(load):
    got = load.ask("many", port=load.ports[0], conns=200, chunks=10, gap_ms=20)
    assert (got["open_at_once"], got["unfinished"], got["errors"]) == (200, 0, 0)
    assert got["served"] == got["chunks_expected"] == 2000


def test_streams_by_a_schedule_have_a_twin_straight_to_the_engine(load):
    got = load.ask(
        "ttft", port=load.ports[0], direct=load.ports[1], seconds=0.5, warm=0, rate=40, chunks=4, gap_ms=2
    )
    assert got["errors"] == got["direct_errors"] == got["unfinished"] == 0
    assert got["ttft_us"]["n"] > 5
    assert got["direct_ttft_us"]["n"] > 5
    assert got["chunk_delay_us"]["n"] == 3 * got["ttft_us"]["n"]


def test_every_byte_of_a_large_body_arrives(load):
    got = load.ask("large", port=load.ports[0], size=3_000_000, count=2)
    assert (got["errors"], got["engine_bytes"]) == (0, 6_000_000)


@pytest.mark.parametrize("mode", ["plain", "token", "middle"])
def test_leaving_is_seen_by_the_engine(load, mode):
    got = load.ask("cancel", port=load.ports[0], mode=mode, count=3)
    assert (got["seen"], got["unready"], got["delay_us"]["n"]) == (3, 0, 3)


def test_an_engine_that_is_not_there_is_an_error_of_every_request(load):
    got = load.ask("sat", port=1, seconds=0.1, warm=0, conns=2)
    assert got["served"] == 0
    assert got["errors"] > 0


def test_hostile_requests_all_end(load):
    got = load.ask("hostile", port=load.ports[0], count=2000, seconds=30)
    assert got["served"] == got["asked"] == 2000
    assert got["good_failed"] == 0
    assert got["good"] > 100


@pytest.mark.parametrize(
    ("do", "stream", "status", "end", "done"),
    [
        ("ok", True, 200, "proper", True),
        ("ok", False, 200, "proper", False),
        ("die", True, 200, "cut", False),
        ("short", False, 200, "cut", False),
        ("cut", False, 0, "cut", False),
        ("status-429", False, 429, "proper", False),
    ],
)
def test_raw_client_sees_how_an_answer_ended(do, stream, status, end, done):
    engines = Engines((0,))
    try:
        port = engines.mocks[0].server.sockets[0].getsockname()[1]
        body = b'{"stream": %s, "messages": [{"content": "#do=%s#"}]}' % (
            str(stream).lower().encode(),
            do.encode(),
        )
        with connect(port) as link:
            link.sendall(request(port, body, "/v1/chat/completions"))
            reply, rest = read_reply(link, 5)
        assert (reply.status, reply.end, b"[DONE]" in reply.body) == (status, end, done)
        assert rest == b"" or end == "cut"
        assert engines.tries == [1]
    finally:
        engines.close()


def row(peer, repeat=0, request_us=50.0, errors=0, cancel_us=900.0, seen=20):
    return {
        "peer": peer,
        "repeat": repeat,
        "sat": {"cpu_us_per_request": request_us, "errors": errors},
        "cancel": {"plain": {"seen": seen, **({"delay_us": {"max": cancel_us}} if seen else {})}},
        "worker_idle_mb": 40.0,
        "start_s": 0.4,
    }


def judged(rows):
    return {bar.name: bar.passed for bar in bars(rows)}


def test_bars_pass_and_miss():
    good = judged([row("sits"), row("nginx", request_us=13.0), row("vllm-router-rr", request_us=100.0)])
    assert good["CPU µs a request, features on"] is True
    assert good["CPU µs a request: times nginx"] is True
    assert good["CPU µs a request: times vllm-router-rr"] is True
    assert good["cancel before the first byte, slowest of 20, ms"] is True
    assert good["CPU µs a chunk, one by one"] is None
    bad = judged([row("sits", request_us=61, errors=1, cancel_us=51e3), row("nginx", request_us=15.0)])
    assert bad["CPU µs a request, features on"] is False
    assert bad["CPU µs a request: times nginx"] is False
    assert bad["requests and streams lost in all loads"] is False
    assert bad["cancel before the first byte, slowest of 20, ms"] is False


def test_a_cancel_nobody_saw_is_a_miss():
    assert judged([row("sits", seen=0)])["cancel before the first byte, slowest of 20, ms"] is False


def test_ratios_are_of_the_same_repeat():
    rows = [row("sits", 0, 40), row("nginx", 0, 10), row("sits", 1, 80), row("nginx", 1, 20)]
    found = {bar.name: bar.found for bar in bars(rows)}
    assert found["CPU µs a request: times nginx"] == "4.00 [4.00–4.00]"


def test_who_is_better_is_told():
    rows = [row("sits"), row("nginx", request_us=13.0)]
    assert better_than_ours(rows, "nginx") == ["CPU µs a request 13.0 against 50.0"]
    assert spread([3.0, 1.0, 2.0]) == "2.00 [1.00–3.00]"


def test_only_the_generated_part_of_a_page_is_replaced(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"by hand\n{BEGIN}\nold\n{END}\nafter\n")
    write_page(page, f"{BEGIN}\nnew\n{END}\n")
    assert page.read_text() == f"by hand\n{BEGIN}\nnew\n{END}\nafter\n"
