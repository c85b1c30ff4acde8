"""`sitsctl up` as people start it: a process, the official SDK, signals, and what the store says afterwards."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading

import openai
import pytest

from app_processes import serving, sitsctl
from sits.telemetry.store import DuckStore

FLEET = """\
name: small
gateway: {{listen: "{listen}", store: "{store}", drain_timeout: 30s}}
models:
  - {{name: llama-3-8b, layers: 32, hidden: 4096, heads: 32, kv_heads: 8, head_dim: 128, intermediate: 14336, vocab: 128256, weights: 16GB}}
nodes:
  - {{name: node-a, gpu: A100-SXM4-80GB, gpus: 1, gpu_numa: [0], gpu_memory: 80GiB}}
engines:
  - {{kind: emulated, name: a0, node: node-a, gpus: [0], cpu_numa: 0, model: llama-3-8b}}
"""
REMOTE = """\
name: remote
gateway: {{listen: "127.0.0.1:0", store: "{store}"}}
engines:
  - {{kind: openai, name: gone, url: "{url}", models: [m]}}
"""
HELLO = [{"role": "user", "content": "hello"}]


def listens(url):
    host, port = url.removeprefix("http://").split(":")
    try:
        socket.create_connection((host, int(port)), timeout=10).close()
    except OSError:
        return False
    return True


def requests_of(store):
    with DuckStore(store) as opened:
        [run] = opened.scan("runs")
        return opened.columns("requests_window", run_id=run["run_id"], since_wall_ns=0)


def refused(tmp_path, **more):
    """What `sitsctl up` says when it cannot start; exit code 2, one line, no traceback."""
    file = tmp_path / "fleet.yaml"
    file.write_text(FLEET.format(**({"listen": "127.0.0.1:0", "store": tmp_path / "store"} | more)))
    done = subprocess.run(sitsctl("up", file), capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
    return done.stderr


def test_the_official_sdk_and_then_why(tmp_path):
    with serving(tmp_path, FLEET, listen="127.0.0.1:0") as up:
        ask = {"model": "llama-3-8b", "messages": HELLO}
        assert [model.id for model in up.sdk.models.list()] == ["llama-3-8b"]

        whole = up.sdk.chat.completions.create(**ask, max_tokens=3)
        assert (whole.usage.completion_tokens, whole.choices[0].finish_reason) == (3, "length")
        assert len(whole.choices[0].message.content.split()) == 3

        parts = list(
            up.sdk.chat.completions.create(
                **ask, max_tokens=4, stream=True, stream_options={"include_usage": True}
            )
        )
        text = "".join(part.choices[0].delta.content or "" for part in parts if part.choices)
        assert len(text.split()) == parts[-1].usage.completion_tokens == 4

        plain = up.sdk.completions.create(model="llama-3-8b", prompt="hello", max_tokens=2)
        assert len(plain.choices[0].text.split()) == 2

        with pytest.raises(openai.NotFoundError, match="no-such"):
            up.sdk.chat.completions.create(model="no-such", messages=HELLO)
        with pytest.raises(openai.BadRequestError, match="messages"):
            up.sdk.chat.completions.create(model="llama-3-8b", messages=[])
        same, other = up.sdk.embeddings.create(model="llama-3-8b", input=["hello", "goodbye"]).data
        assert sum(x * x for x in same.embedding) == pytest.approx(1, abs=1e-4)
        assert same.embedding != other.embedding
        with pytest.raises(openai.BadRequestError, match="KV blocks") as told:
            up.sdk.completions.create(model="llama-3-8b", prompt="hello " * 1_000_000, max_tokens=2)
        assert told.value.code == "never_fits"

        # Ctrl-C while an answer streams: it comes to its end, and so does the process.
        stream = iter(up.sdk.chat.completions.create(**ask, stream=True))
        next(stream)
        up.tell(signal.SIGINT)
        *_, last = stream
        assert last.choices[0].finish_reason == "stop"
        assert up.end() == 0
        assert up.said[-1].startswith("drained; 5 answered, 0 records dropped")
        assert len(up.said) == 2

    rows = requests_of(tmp_path / "store")
    assert sorted(rows["outcome"]) == ["completed"] * 5 + ["refused"] * 3
    done = subprocess.run(
        sitsctl("why", "--since", "15m", "--store", tmp_path / "store", "--json"),
        capture_output=True,
        text=True,
        check=False,
    )
    report = json.loads(done.stdout)
    assert done.returncode in (0, 1), done.stderr
    assert report["before"]["account"]["offered"] == 8
    assert report["before"]["account"]["completed"] == 5
    assert report["before"]["latency"]["n"] == 2, "two of five were streamed"
    assert (report["objective_metric"], report["verified"], done.returncode) == ("ttft", None, 1)


def test_a_second_signal_cancels_what_still_runs(tmp_path):
    with serving(tmp_path, FLEET, listen="127.0.0.1:0") as up:
        streams = [
            iter(up.sdk.chat.completions.create(model="llama-3-8b", messages=HELLO, stream=True))
            for _ in range(6)
        ]
        for stream in streams:
            next(stream)
        up.tell(signal.SIGTERM)
        while listens(up.url):  # so long the first signal has not been seen
            pass
        up.tell(signal.SIGINT)
        assert up.end() == 0
        assert up.said[-1].startswith("drained")
    outcomes = list(requests_of(tmp_path / "store")["outcome"])
    assert len(outcomes) == 6
    assert "cancelled" in outcomes


def test_a_port_in_use_is_said_and_nothing_is_left_behind(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = refused(tmp_path, listen=f"127.0.0.1:{port}")
    assert f"gateway.listen: cannot listen on 127.0.0.1:{port}: Address already in use" in said
    assert list((tmp_path / "store").iterdir()) == []


def test_a_store_that_cannot_be_written_is_said_before_listening(tmp_path):
    file = tmp_path / "file"
    file.write_text("not a directory")
    assert "gateway.store: cannot record to" in refused(tmp_path, store=file)
    assert "Not a directory" in refused(tmp_path, store=file / "below")
    assert file.read_text() == "not a directory"


def test_a_file_that_is_not_text_is_said(tmp_path):
    file = tmp_path / "fleet.yaml"
    file.write_bytes(b"name: caf\xe9\n")
    done = subprocess.run(sitsctl("up", file), capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"sitsctl: {file}: byte 9 is not UTF-8 (save the file as UTF-8 text)\n"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_store_that_may_not_be_written_is_said(tmp_path):
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o500)
    assert "Permission denied" in refused(tmp_path, store=locked)


def test_an_engine_that_is_down_answers_502_and_is_told_once(tmp_path):
    asked = threading.Semaphore(0)
    with socket.create_server(("127.0.0.1", 0)) as dead:

        def hang_up():
            while True:
                try:
                    dead.accept()[0].close()
                except OSError:
                    return
                asked.release()

        threading.Thread(target=hang_up, daemon=True).start()
        url = f"http://127.0.0.1:{dead.getsockname()[1]}"
        with serving(tmp_path, REMOTE, url=url) as up:
            with pytest.raises(openai.InternalServerError) as caught:
                up.sdk.chat.completions.create(model="m", messages=HELLO)
            assert caught.value.status_code in (502, 503)
            assert caught.value.body["type"] == "engine_error"
            for _ in range(4):  # the request, and more than one look at the metrics
                assert asked.acquire(timeout=30)
            up.tell(signal.SIGTERM)
            assert up.end() == 0
        dead.shutdown(socket.SHUT_RDWR)
    told = sorted(line for line in up.said if "gone" in line)
    assert len(told) == 2, "the request, with its trace, and the metrics page"
    assert told[0].startswith("error: request failed: engine_")
    assert "no metrics" in told[1]
    assert "counts as unknown" in told[1]


def test_the_simulator_is_loaded_before_anybody_waits_for_it():
    code = """
from sits.app.up import emulated
from sits.world import RealWorld
emulated.prepare(RealWorld(), None)
from sits.sim import kernel
print(all(entry.signatures for entry in kernel.ENTRIES))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"
