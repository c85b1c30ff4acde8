"""Several processes on one port: what they share, what a killed one costs, and a configuration changed under load."""

import asyncio
import http.client
import json
import os
import signal
import socket
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import openai
import pytest

from app_processes import GatedEngine, serving, sitsctl
from lora_mock import LyingVllm
from sits.core.config import digest, load_fleet
from sits.telemetry.store import DuckStore

FLEET = """\
name: several
gateway: {{listen: "{listen}", workers: {workers}, store: "{store}", drain_timeout: 30s, reload: {reload}}}
policy:
  admit: {{max_inflight: {inflight}}}
  release: {{unit: user, salt: r1, arms: [{{name: stable, weight: 1.0, model: "{model}"}}]}}
engines:
  - {{kind: openai, name: e0, url: "{url}", models: [m, blue, green]}}
"""
DEFAULTS = {"listen": "127.0.0.1:0", "workers": 2, "inflight": 1000, "model": "", "reload": "signal"}
HELLO = [{"role": "user", "content": "hello"}]
ASK = {"model": "m", "messages": HELLO}


@contextmanager
def gateway(tmp_path, **more):
    with GatedEngine().serving() as engine:
        engine_url = {"url": engine.url, **DEFAULTS, **more}
        with serving(tmp_path, FLEET, **engine_url) as up:
            up.engine, up.store = engine, tmp_path / "store"
            up.write = lambda **change: up.file.write_text(
                FLEET.format(store=up.store, **(engine_url | change))
            )
            yield up


def replaced(file, text):
    """Change a file as an editor does: whole, so that nobody reads half of it."""
    new = file.with_suffix(".new")
    new.write_text(text)
    new.rename(file)


def ask(up, **more):
    """One plain request on a connection of its own: status, headers, the answer's body."""
    connection = http.client.HTTPConnection("127.0.0.1", up.port, timeout=60)
    try:
        headers = {"content-type": "application/json"}
        connection.request("POST", "/v1/chat/completions", json.dumps(ASK | more), headers)
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), json.loads(answer.read())
    finally:
        connection.close()


def rows_of(store):
    """All recorded requests, of all runs."""
    with DuckStore(store) as opened:
        found = []
        for run in opened.scan("runs"):
            columns = opened.columns("requests_window", run_id=run["run_id"], since_wall_ns=0)
            found += zip(columns["id"], columns["outcome"], strict=True)
        return found


def reloaded(up):
    done = subprocess.run(sitsctl("reload", up.file), capture_output=True, text=True, check=False, timeout=60)
    return done.returncode, done.stdout + done.stderr


def test_workers_share_the_port_the_counts_and_the_store(tmp_path):
    with gateway(tmp_path) as up:
        assert "with 2 workers" in up.said[0]
        answers = [ask(up) for _ in range(40)]
        assert {status for status, _, _ in answers} == {200}
        assert len({headers["x-request-id"] for _, headers, _ in answers}) == 40
        chunks = list(up.sdk.chat.completions.create(**ASK, stream=True))
        assert "".join(chunk.choices[0].delta.content for chunk in chunks) == "one two three"
        with pytest.raises(openai.NotFoundError):
            up.sdk.chat.completions.create(model="nope", messages=HELLO)

        finished, samples = 0, {}
        while finished < 42:  # each worker tells its rows in its own time
            samples = up.samples()
            finished = sum(value for (name, _), value in samples.items() if name == "sits_requests_total")
        assert samples["sits_requests_total", ("completed", "e0", "")] == 41
        assert samples["sits_requests_total", ("refused", "", "model_not_found")] == 1
        assert samples["sits_ttft_seconds_count", ("e0",)] == 1
        assert samples["sits_e2e_seconds_bucket", ("e0", "+Inf")] == 41
        assert samples["sits_output_tokens_total", ()] > 40
        assert samples["sits_inflight_requests", ("e0",)] == 0
        assert samples["sits_engine_healthy", ("e0",)] == 1
        assert samples["sits_workers", ()] == 2
        assert samples["sits_generation", (digest(load_fleet(up.file.read_text(), ""))[:12],)] == 1
        assert samples["sits_rows_dropped_total", ()] == 0
        for process in ("worker-0", "worker-1", "keeper"):
            assert samples["sits_resident_memory_bytes", (process,)] > 2**20

        second = tmp_path / "second.yaml"
        second.write_text(up.file.read_text().replace("127.0.0.1:0", f"127.0.0.1:{up.port}"))
        done = subprocess.run(sitsctl("up", second), capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 2
        assert "gateway.listen: cannot listen on" in done.stderr, "a port is not shared with strangers"

        assert up.stop().startswith("drained; 41 answered, 0 records dropped")
    assert sorted(outcome for _, outcome in rows_of(up.store)) == ["completed"] * 41 + ["refused"]
    assert not list(up.store.glob("gateway-*")), "the notice was taken down"
    assert reloaded(up)[0] == 2
    assert "no gateway serves" in reloaded(up)[1]


def test_limits_on_what_is_in_flight_are_of_all_workers_together(tmp_path):
    with gateway(tmp_path, inflight=5) as up, ThreadPoolExecutor(16) as pool:
        up.engine.shut()
        running, refused = [], []
        for _ in range(
            16
        ):  # one after the other: each is at the engine, or refused, before the next one comes
            asked = pool.submit(ask, up)
            while not asked.done() and not up.engine.begun.acquire(timeout=0.01):
                continue
            (refused if asked.done() else running).append(asked)
        assert (len(running), len(refused)) == (5, 11)
        for answer in refused:
            status, headers, body = answer.result()
            assert (status, body["error"]["code"], headers["retry-after"]) == (503, "refused_inflight", "1")
        assert up.samples()["sits_inflight_requests", ("e0",)] == 5
        up.engine.open()
        assert {asked.result()[0] for asked in running} == {200}
        assert ask(up)[0] == 200, "there is room again"
        assert up.samples()["sits_inflight_requests", ("e0",)] == 0


class Load:
    """Clients that ask without end, on connections of their own; `seen` has each answer, `cut` each that was none."""

    def __init__(self, up, clients=4):
        self.up, self.seen, self.cut = up, [], []
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._client) for _ in range(clients)]

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _client(self):
        while not self._stop.is_set():
            try:
                self.seen.append(ask(self.up))
            except (ConnectionError, http.client.HTTPException) as error:
                self.cut.append(error)

    def more(self, count):
        """Go on until there are so many more answers."""
        enough = len(self.seen) + count
        while len(self.seen) < enough:
            self._stop.wait(0.005)


def test_what_is_killed_is_started_again_and_the_others_serve_on(tmp_path):
    """kill -9 under load.  A worker: only its own connections are cut, and what it had in flight is forgotten.  The keeper: nothing is cut."""
    with gateway(tmp_path) as up:
        before = up.notice(up.store).processes
        assert set(before) == {"keeper", "worker-0", "worker-1"}
        with Load(up) as load:
            load.more(40)
            os.kill(before["worker-0"], signal.SIGKILL)
            up.hear("worker-0 .* died of signal 9")
            up.hear("worker-0 works again")
            load.more(40)
        assert {status for status, _, _ in load.seen} == {200}
        assert len(load.cut) <= 4, "at most the connection each client had"
        after = up.notice(up.store).processes
        assert after["worker-0"] != before["worker-0"]
        assert after["worker-1"] == before["worker-1"]

        for _ in range(3):  # it keeps dying: the pauses grow, and its socket is given up and made anew
            os.kill(up.notice(up.store).processes["worker-0"], signal.SIGKILL)
            last = up.hear("worker-0 .* died of signal 9")
            up.hear("worker-0 works again")
        assert "starts in 800 ms" in last
        assert {ask(up)[0] for _ in range(10)} == {200}

        os.kill(after["keeper"], signal.SIGKILL)
        up.hear("keeper .* died of signal 9")
        during = [ask(up) for _ in range(10)]
        up.hear("keeper works again")
        samples = up.samples()
        assert samples["sits_restarts_total", ("worker-0",)] == 4
        assert samples["sits_restarts_total", ("keeper",)] == 1
        assert samples["sits_workers", ()] == 2
        assert samples["sits_inflight_requests", ("e0",)] == 0
        last = [ask(up) for _ in range(10)]
        assert {status for status, _, _ in during + last} == {200}
        up.stop()
    ids = [name for name, _ in rows_of(up.store)]
    assert len(ids) == len(set(ids)), "nothing is recorded twice"
    assert {headers["x-request-id"] for _, headers, _ in during + last} <= set(ids)


def test_without_a_supervisor_the_rest_drains_and_leaves(tmp_path):
    """kill -9 of the one that holds everything: what runs ends, what ended is stored, and the port is free."""
    with gateway(tmp_path) as up:
        up.engine.shut()
        stream = iter(up.sdk.chat.completions.create(**ASK, stream=True))
        next(stream)
        pids = up.notice(up.store).processes.values()
        up.tell(signal.SIGKILL)
        up.process.wait(60)
        while True:
            try:
                socket.create_connection(("127.0.0.1", up.port), timeout=30).close()
            except ConnectionError:
                break
        up.engine.open()
        assert [chunk.choices[0].delta.content for chunk in stream] == ["two ", "three"]
        up.process.stderr.read()  # to its end: the last one who could write has left
        assert not any(os.path.exists(f"/proc/{pid}/fd/0") for pid in pids)  # noqa: PTH110
    assert [outcome for _, outcome in rows_of(up.store)] == ["completed"]


def test_draining_ends_what_runs_in_every_worker(tmp_path):
    with gateway(tmp_path) as up:
        up.engine.shut()
        streams = []
        for _ in range(8):
            client = openai.OpenAI(base_url=f"{up.url}/v1", api_key="any", max_retries=0, timeout=60)
            streams.append(iter(client.chat.completions.create(**ASK, stream=True)))
        for stream in streams:
            assert next(stream).choices[0].delta.content == "one "
        up.tell(signal.SIGTERM)
        while True:  # so long the signal has not been seen
            try:
                socket.create_connection(("127.0.0.1", up.port), timeout=30).close()
            except ConnectionError:
                break
        up.engine.open()
        for stream in streams:
            assert [chunk.choices[0].delta.content for chunk in stream] == ["two ", "three"]
        assert up.end() == 0
        assert up.said[-1].startswith("drained; 8 answered, 0 records dropped")
    assert [outcome for _, outcome in rows_of(up.store)] == ["completed"] * 8


def test_a_reload_under_load_drops_nothing_and_mixes_nothing(tmp_path):
    """Every answer says by which generation it was made, and is what that one makes; what comes after a reload is of the new one."""
    with gateway(tmp_path, model="blue") as up:
        model_of = {up.notice(up.store).name: "blue"}
        with Load(up) as load:
            for number in range(2, 6):
                load.more(10)
                model = "blue" if number % 2 else "green"
                up.write(model=model, inflight=1000 + number)
                up.tell(signal.SIGHUP)
                up.hear(f"generation {number} .* serves")
                name = up.notice(up.store).name
                model_of[name] = model
                for _ in range(4):
                    status, headers, body = ask(up)
                    assert (status, headers["x-sits-generation"], body.get("model")) == (200, name, model), (
                        body
                    )
        assert load.cut == []
        assert [one for one in load.seen if one[0] != 200] == []
        assert {model_of[h["x-sits-generation"]] == body["model"] for _, h, body in load.seen} == {True}
        while up.samples()["sits_reloads_total", ("taken",)] < 4:  # the keeper hears of it in its time
            continue
        up.stop()
    with DuckStore(up.store) as opened:
        assert len(opened.scan("runs")) == 5, "each generation is a run of its own"


def test_what_runs_ends_on_the_generation_and_the_engine_it_began_on(tmp_path):
    """The file is watched.  An engine that did not change keeps its connections; one that was removed loses them when its last stream ends."""
    with GatedEngine().serving() as other, gateway(tmp_path, model="blue", reload="watch", workers=1) as up:
        up.engine.shut()
        stream = iter(up.sdk.chat.completions.create(**ASK, stream=True))
        assert next(stream).model == "blue"
        up.write(model="green")
        up.hear("generation 2 .* serves")
        second = iter(up.sdk.chat.completions.create(**ASK, stream=True))
        assert next(second).model == "green"
        up.write(model="green", url=other.url)
        up.hear("generation 3 .* serves")
        assert up.sdk.chat.completions.create(**ASK).model == "green"
        assert (up.engine.connections, other.connections) == (2, 1)
        up.engine.open()
        for one, model in ((stream, "blue"), (second, "green")):
            assert [(c.model, c.choices[0].delta.content) for c in one] == [(model, "two "), (model, "three")]
        assert up.engine.left.acquire(timeout=60)
        assert up.engine.left.acquire(timeout=60)
        up.stop()


def test_a_wrong_file_changes_nothing_and_every_reason_is_told(tmp_path):
    with gateway(tmp_path) as up:
        name = up.notice(up.store).name
        up.write(listen="127.0.0.1:1", workers=3)
        code, said = reloaded(up)
        assert code == 2
        assert "gateway.listen: is '127.0.0.1:0' and cannot become '127.0.0.1:1' while serving" in said
        assert "gateway.workers: is 2 and cannot become 3 while serving" in said

        up.file.write_text(
            up.file.read_text().replace("salt", "slat").replace("kind: openai", "kind: opanai")
        )
        up.tell(signal.SIGHUP)
        up.hear("is refused, generation 1")
        assert "did you mean 'salt'" in up.hear("slat")
        assert "did you mean 'openai'" in up.hear("opanai")

        status, headers, _ = ask(up)
        assert (status, headers["x-sits-generation"]) == (200, name)
        up.write()
        assert reloaded(up) == (0, f"generation 1 ({name}) serves on 127.0.0.1:{up.port}\n")
        samples = up.samples()
        assert samples["sits_reloads_total", ("refused",)] == 2
        assert samples["sits_reloads_total", ("unchanged",)] == 1
        up.stop()


QUOTAS = """\
name: quotas
gateway: {{listen: "127.0.0.1:0", workers: 2, store: "{store}"}}
quotas:
  - {{name: day, each: [tenant], requests: 30, per: 1d}}
engines:
  - {{kind: openai, name: e0, url: "{url}", models: [m]}}
"""


def test_a_quota_is_one_for_all_workers_and_outlives_them(tmp_path):
    """30 requests a day: so many are answered, whichever worker they come to, whoever is killed in between, and after a restart."""
    pause = threading.Event()
    with GatedEngine().serving() as engine:

        def until_refused(up, most):
            statuses = [ask(up)[0] for _ in range(most)]
            assert set(statuses) <= {200, 429}, statuses
            return statuses.count(200)

        with serving(tmp_path, QUOTAS, url=engine.url) as up:
            done = until_refused(up, 10)
            assert done == 10
            notice = up.notice(tmp_path / "store")
            os.kill(notice.processes["worker-0"], signal.SIGKILL)
            up.hear("worker-0 works again")
            done += until_refused(up, 5)
            os.kill(up.notice(tmp_path / "store").processes["keeper"], signal.SIGKILL)
            up.hear("keeper works again")
            while (
                ask(up)[0] == 503
            ):  # workers may hear of it a moment later; who is refused has spent nothing
                pause.wait(0.02)
            done += 1 + until_refused(up, 4)
            assert 15 <= done <= 20, "what a killed worker had not reported yet counts as spent"
            up.stop()
        with serving(tmp_path, QUOTAS, url=engine.url) as up:
            done += until_refused(up, 30)
            assert 25 <= done <= 40, (
                "what a killed worker had not reported yet may be spent once more, and no more than that"
            )
            status, headers, body = ask(up)
            assert (status, body["error"]["code"]) == (429, "quota_exceeded")
            assert int(headers["retry-after"]) > 0
            up.stop()


ADAPTERS = """\
name: adapters
gateway: {{listen: "127.0.0.1:0", workers: 2, store: "{store}"}}
runtime_adapters:
  wait: 20s
  probe: {{tolerance: 0.05}}
  engines: [{{engine: e0, slots: 2}}]
  adapters: [{{name: sql, model: m, path: /disk/sql}}]
engines:
  - {{kind: openai, name: e0, url: "{url}", models: [m]}}
"""


def test_an_adapter_asked_for_in_any_worker_is_loaded_once_and_answers_in_all(tmp_path):
    """The keeper alone talks to engines about adapters; workers report to it and hear from it, also after one was killed."""
    vllm, started, loop = LyingVllm({"/disk/sql": "sql"}), threading.Event(), asyncio.new_event_loop()

    def run():
        loop.run_until_complete(vllm.start())
        started.set()
        loop.run_forever()

    thread = threading.Thread(target=run)
    thread.start()
    started.wait()
    try:
        with serving(tmp_path, ADAPTERS, url=vllm.url) as up, ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(lambda _: ask(up, model="sql"), range(8)))
            assert {status for status, _, _ in answers} == {200}, answers
            assert {body["choices"][0]["message"]["content"] for _, _, body in answers} == {"[sql]"}
            assert [path for path, _ in list(vllm.calls)].count("/v1/load_lora_adapter") == 1
            store = tmp_path / "store"
            os.kill(up.notice(store).processes["worker-1"], signal.SIGKILL)
            up.hear("worker-1 works again")
            answers = list(pool.map(lambda _: ask(up, model="sql"), range(8)))
            assert {body["choices"][0]["message"]["content"] for _, _, body in answers} == {"[sql]"}
            assert [path for path, _ in list(vllm.calls)].count("/v1/load_lora_adapter") == 1
            up.stop()
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        vllm.cut()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()


def test_each_worker_tells_of_its_own_strain(tmp_path):
    with gateway(tmp_path) as up:
        told = set()
        while len(told) < 4:
            with DuckStore(up.store) as store:
                found = store.scan("board_signals", start_ns=0, names="gateway_cpu_share,gateway_backlog_ms")
                told = {(row["source"], row["name"]) for row in found}
    assert told == {
        (f"worker-{i}", name) for i in range(2) for name in ("gateway_cpu_share", "gateway_backlog_ms")
    }
