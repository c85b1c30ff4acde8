"""Quotas of a running `sitsctl up`: two workers under load, killed with `kill -9`, and what `sitsctl quota show` says of it."""

import http.client
import json
import os
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor

from app_processes import GatedEngine, serving, sitsctl

LIMIT = 900
FLEET = """\
name: quotas
gateway: {{listen: "127.0.0.1:0", workers: 2, store: "{store}"}}
quotas:
  - {{name: trial, tokens: 900, per: total}}
engines:
  - {{kind: openai, name: e0, url: "{url}", models: [m]}}
"""
BODY = json.dumps({"model": "m", "max_tokens": 4, "messages": [{"role": "user", "content": "hello"}]})
USED = 2
"""Tokens of an answer, as the engine says."""


class Engine(GatedEngine):
    """Counts the answers it gave."""

    def __init__(self):
        super().__init__()
        self.answered = 0

    async def _plain(self, writer, asked):
        await super()._plain(writer, asked)
        self.answered += 1


def until_refused(up, enough):
    """One client after the other request; the answers it got before it was refused, `enough` at most."""
    got = 0
    while got < enough:
        connection = http.client.HTTPConnection("127.0.0.1", up.port, timeout=60)
        try:
            connection.request("POST", "/v1/chat/completions", BODY, {"content-type": "application/json"})
            answer = connection.getresponse()
            status, error = answer.status, json.loads(answer.read()).get("error", {})
        except (ConnectionError, http.client.HTTPException):
            continue  # its worker was killed
        finally:
            connection.close()
        if status == 429:
            assert error["code"] == "quota_exceeded"
            return got
        if status == 503:  # the machine is busy with other tests: told to come again, it does
            assert error["code"] == "quota_ledger_unavailable"
            continue
        assert status == 200, error
        got += 1
    return got


def show(file):
    done = subprocess.run(
        sitsctl("quota", "show", file, "--json"), capture_output=True, text=True, check=True, cwd=file.parent
    )
    (row,) = json.loads(done.stdout)
    assert row["limit"] + row["debt"] == row["settled"] + row["reserved"] + row["leased"] + row["free"]
    return row


def test_two_workers_under_load_and_killed_exceed_a_quota_by_no_more_than_their_leases(tmp_path):
    with Engine().serving() as engine, serving(tmp_path, FLEET, url=engine.url) as up:
        store = tmp_path / "store"
        with ThreadPoolExecutor(4) as pool:
            for process in ("worker-0", "keeper"):
                running = [pool.submit(until_refused, up, 15) for _ in range(4)]
                running[0].result()
                os.kill(up.notice(store).processes[process], signal.SIGKILL)
                up.hear(f"{process} works again")
                assert all(one.result() == 15 for one in running)
                row = show(up.file)
                assert row["settled"] <= engine.answered * USED
            last = [pool.submit(until_refused, up, 10**6) for _ in range(4)]
            assert sum(one.result() for one in last) > 0
        up.stop()
        row, used = show(up.file), engine.answered * USED
    assert (row["limit"], row["reserved"], row["leased"]) == (LIMIT, 0, 0)
    assert row["settled"] <= used <= row["settled"] + row["expired"], (
        "what is not settled is within lost leases"
    )
    assert LIMIT - 30 <= row["settled"] <= LIMIT, "to within what a request asks for"
    assert used <= LIMIT + row["expired"]


def test_a_grant_lets_a_running_gateway_go_on(tmp_path):
    with Engine().serving() as engine, serving(tmp_path, FLEET.replace("900", "60"), url=engine.url) as up:
        first = until_refused(up, 10**6)
        assert 0 < first <= 60 // USED
        subprocess.run(
            sitsctl("quota", "grant", up.file, "trial", 40), capture_output=True, check=True, cwd=tmp_path
        )
        while show(up.file)["limit"] == 60:
            until_refused(up, 1)
        assert first < first + until_refused(up, 10**6) <= 100 // USED
        up.stop()
        assert show(up.file)["limit"] == 100
