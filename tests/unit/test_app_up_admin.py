"""The admin process of a real `sitsctl up`: it is there, it may be killed, it follows reloads, and it asks who one is."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import threading

import httpx2 as httpx
import pytest

from app_processes import GatedEngine, serving, sitsctl
from sits.app.board.stream import CLIENTS_MAX
from sits.telemetry.prometheus_text import parse

FLEET = """\
name: small
gateway: {{listen: "127.0.0.1:0", store: "{store}"{keys}}}
admin: {{listen: "{admin}"}}
engines:
  - {{kind: openai, name: e0, url: "{url}", models: [m]}}
"""
PLAIN = {"admin": "127.0.0.1:0", "keys": ""}
KEYS = ', keys: ["acme:sits-one-0123456789abcdef", "acme:sits-two-0123456789abcdef"]'
HELLO = [{"role": "user", "content": "hello"}]
BOARD = r"board on (http://127\.0\.0\.1:\d+)/ \(process (\d+)\)"


@pytest.fixture
def engine():
    with GatedEngine().serving() as one:
        yield one


def board_of(up):
    found = re.search(BOARD, up.hear(BOARD))
    return found[1], int(found[2])


def test_it_is_killed_and_no_request_notices(tmp_path, engine):
    with serving(tmp_path, FLEET, url=engine.url, **PLAIN) as up:
        url, pid = board_of(up)
        assert httpx.get(f"{url}/healthz").json()["rooms"]
        assert httpx.get(url).headers["location"] == "/board/"
        engine.shut()
        stream = up.sdk.chat.completions.create(model="m", messages=HELLO, stream=True)
        parts = iter(stream)
        next(parts)
        os.kill(pid, signal.SIGKILL)
        again, other = board_of(up)
        assert (again, other != pid) == (url, True)
        assert up.notice(tmp_path / "store").processes["admin"] == other
        engine.open()
        assert list(parts)[-1].choices[0].finish_reason
        assert httpx.get(f"{url}/healthz").json()["status"] == "ok"
        assert up.stop().startswith("drained; 1 answered")
        with pytest.raises(ProcessLookupError):
            os.kill(other, 0)


def test_streams_there_was_no_room_for_are_on_the_metrics_page_beside_what_other_rooms_count(
    tmp_path, engine
):
    with serving(tmp_path, FLEET, url=engine.url, **PLAIN) as up, contextlib.ExitStack() as looking:
        url, _ = board_of(up)
        host, port = url.removeprefix("http://").split(":")
        for _ in range(CLIENTS_MAX):
            raw = looking.enter_context(socket.create_connection((host, int(port))))
            raw.sendall(b"GET /board/events HTTP/1.1\r\nhost: " + f"{host}:{port}".encode() + b"\r\n\r\n")
            assert raw.recv(12) == b"HTTP/1.1 200"
        answer = httpx.get(f"{url}/board/events")
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "too_many_streams")
        want = {"opened": CLIENTS_MAX, "refused": 1, "dropped": 0}
        told, pause = {}, threading.Event()
        while told != want:
            page = parse(httpx.get(f"{url}/metrics").text)
            told = {how: page.total("sits_board_streams_total", {"result": how}) for how in want}
            pause.wait(0.05)
        assert page.total("sits_board_streams") == CLIENTS_MAX
        assert page.total("sits_otlp_spans_total") == 0


def test_a_head_without_end_is_not_read_on(tmp_path, engine):
    with serving(tmp_path, FLEET, url=engine.url, **PLAIN) as up:
        host, port = board_of(up)[0].removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as raw, contextlib.suppress(ConnectionError):
            raw.sendall(b"GET / HTTP/1.1\r\nx: " + b"a" * 10**6)
            assert raw.recv(12) in (b"HTTP/1.1 400", b"")


def test_a_reload_reaches_it_and_its_address_stays(tmp_path, engine):
    with serving(tmp_path, FLEET, url=engine.url, **PLAIN) as up:
        url, _ = board_of(up)
        with httpx.Client(base_url=url) as client:
            assert client.get("/healthz").json()["generation"] == 1
            assert client.get("/board/").status_code == 200
            text = up.file.read_text()
            up.file.write_text(text.replace('127.0.0.1:0"}', '127.0.0.1:1"}'))
            up.tell(signal.SIGHUP)
            up.hear("admin.listen.*cannot become.*while serving")
            up.file.write_text(text.replace("store:", 'keys: ["sits-one-0123456789abcdef"], store:'))
            up.tell(signal.SIGHUP)
            up.hear("generation 2 .* serves")
            while client.get("/healthz").json()["generation"] == 1:
                continue
            assert client.get("/board/").status_code == 401


def test_without_keys_it_shows_nothing_to_other_machines(tmp_path, engine):
    with serving(tmp_path, FLEET, url=engine.url, keys="", admin="0.0.0.0:0") as up:
        port = re.search(r":(\d+)/ ", up.hear("board on"))[1]
        assert any("on a loopback address only" in line for line in up.said)
        answer = httpx.get(f"http://127.0.0.1:{port}/board/")
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "access_denied")
        assert "add keys" in answer.json()["error"]["hint"]


def test_keys_and_logins(tmp_path, engine):
    with serving(tmp_path, FLEET, url=engine.url, keys=KEYS, admin="127.0.0.1:0") as up:
        url, _ = board_of(up)
        key = "sits-one-0123456789abcdef"
        for headers in ({"authorization": f"Bearer {key}"}, {"x-api-key": key}):
            assert httpx.get(f"{url}/board/", headers=headers).status_code == 200
        assert httpx.get(f"{url}/board/", headers={"x-api-key": "sits-nobody"}).status_code == 401
        with httpx.Client(base_url=url, follow_redirects=True) as browser:
            asked = browser.get("/board/", headers={"accept": "text/html"})
            assert (asked.status_code, 'name="key"' in asked.text) == (401, True)
            wrong = browser.post("/login?next=/board/", data={"key": "<b>"})
            assert (wrong.status_code, "Unknown API key" in wrong.text) == (401, True)
            right = browser.post("/login?next=/board/", data={"key": key})
            assert (right.status_code, right.url.path) == (200, "/board/")
            kept = right.history[0].headers["set-cookie"]
            assert {"HttpOnly", "SameSite=strict"} <= set(kept.split("; "))
            assert key not in kept
            text = up.file.read_text()
            up.file.write_text(text.replace("sits-one", "sits-new"))
            up.tell(signal.SIGHUP)
            up.hear("generation 2 .* serves")
            while browser.get("/healthz").json()["generation"] == 1:
                continue
            assert browser.get("/board/").status_code == 401


def test_figures_are_shown_at_the_admin_process_only_where_the_fleet_says_so(tmp_path, engine):
    keys = KEYS + ", metrics: admin"
    with serving(tmp_path, FLEET, url=engine.url, keys=keys, admin="127.0.0.1:0") as up:
        url, _ = board_of(up)
        for path in ("/metrics", "/board/shift", "/board/shift.json"):
            refused = httpx.get(f"{up.url}{path}")
            assert (refused.status_code, refused.json()["error"]["code"]) == (403, "at_admin"), path
        assert httpx.get(f"{up.url}/healthz").status_code == httpx.get(f"{up.url}/readyz").status_code == 200
        assert httpx.get(f"{url}/metrics").status_code == 401
        page = httpx.get(f"{url}/metrics", headers={"authorization": "Bearer sits-one-0123456789abcdef"})
        assert page.headers["content-type"].startswith("text/plain; version=0.0.4")
        assert parse(page.text).total("sits_workers") == 1
        environment = {**os.environ, "SITS_API_KEY": "sits-one-0123456789abcdef"}
        told = subprocess.run(
            sitsctl("top", url, "--once", "--json"),
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert json.loads(told.stdout)["state"] != "lost", told.stdout
        up.file.write_text(up.file.read_text().replace(", metrics: admin", ""))
        up.tell(signal.SIGHUP)
        up.hear("generation 2 .* serves")
        assert httpx.get(f"{up.url}/metrics").status_code == 200
