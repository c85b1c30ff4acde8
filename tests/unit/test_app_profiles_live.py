"""Sampling a gateway that serves: always, when asked, and pushed; one `sitsctl up` for all of it."""

import http.client
import json
import threading
from contextlib import contextmanager
from urllib.parse import parse_qs, urlsplit

import openai
from click.testing import CliRunner
from test_telemetry_profile_push import parts_of, recording

from app_processes import serving
from sits.app.cli import cli
from sits.app.profiles.stored import profiles_in
from sits.telemetry.profile import pprof
from sits.world import RealWorld

FLEET = """
name: sampled
gateway: {{listen: '127.0.0.1:0', store: '{store}'}}
models:
  - {{name: llama-3-8b, layers: 32, hidden: 4096, heads: 32, kv_heads: 8, head_dim: 128, intermediate: 14336, vocab: 128256, weights: 16GB}}
nodes:
  - {{name: n, gpu: A100-SXM4-80GB, gpus: 1, gpu_numa: [0], gpu_memory: 80GiB}}
engines:
  - {{kind: emulated, name: e0, node: n, gpus: [0], cpu_numa: 0, model: llama-3-8b}}
telemetry:
  profile: {{hz: 250, window: 1s, push: '{push}', labels: {{env: test}}}}
"""


def asked(url, ends):
    """Real answers, one after another; the emulated engine takes its time for each."""
    with openai.OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0) as sdk:
        while not ends.is_set():
            said = [{"role": "user", "content": "hello"}]
            list(sdk.chat.completions.create(model="llama-3-8b", messages=said, stream=True, max_tokens=2))


def flooded(url, ends):
    """Requests nobody serves, as fast as they are refused: what keeps the gateway itself busy."""
    connection = http.client.HTTPConnection(url.removeprefix("http://"))
    body = json.dumps({"model": "nobody", "messages": [{"role": "user", "content": "hello " * 5000}]})
    while not ends.is_set():
        connection.request("POST", "/v1/chat/completions", body, {"content-type": "application/json"})
        answer = connection.getresponse()
        answer.read()
        assert answer.status == 404
    connection.close()


@contextmanager
def busy(url):
    """A gateway that has something to do."""
    ends = threading.Event()
    threads = [threading.Thread(target=load, args=(url, ends)) for load in (asked, flooded)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ends.set()
        for thread in threads:
            thread.join()


def test_a_gateway_that_serves_is_sampled_always_and_when_asked_and_its_profiles_are_pushed(tmp_path):
    store, world = tmp_path / "store", RealWorld()
    begin_wall_ns = world.wall_ns()
    with recording() as (push, told, _), serving(tmp_path, FLEET, push=push) as up:
        with busy(up.url):
            order = ["profile", "gateway", "--store", store, "--seconds", "1", "--hz", "101", "--json"]
            ran = CliRunner().invoke(cli, list(map(str, order)), standalone_mode=False)
        up.stop()
        pushed = [
            (parse_qs(urlsplit(path).query), pprof.decode(parts_of(head, body)["profile"]))
            for path, head, body in told
        ]
    shown = json.loads(ran.stdout)
    assert {one["function"] for one in shown["functions"]} >= {"worker-0"}
    assert "http/parse" in {one["name"] for one in shown["operations"]}
    assert abs(sum(one["cpu_ns"] for one in shown["operations"]) - shown["cpu_ns"]) == 0

    kept = profiles_in(store, world, since_wall_ns=begin_wall_ns)
    rates = {(one.process, round(1e9 / one.period_ns)) for one in kept}
    assert rates >= {("worker-0", 250), ("worker-0", 101), ("keeper", 250), ("keeper", 101)}
    mine = [sample for one in kept if one.process == "worker-0" for sample in one.samples]
    assert any(sample.labels.trace for sample in mine)
    assert {"http", "gateway"} <= {sample.labels.layer for sample in mine}
    # Samples and what is elsewhere are not more than a core had; over all windows, for a tick that waits for a long call in C is noted
    # in the window after the one in which the call began.
    for key in {(one.process, one.period_ns) for one in kept}:
        its = [one for one in kept if (one.process, one.period_ns) == key]
        used_ns = sum(one.ns + one.elsewhere_ns for one in its)
        assert used_ns <= 1.2 * sum(one.duration_ns for one in its) + key[1]

    names = {query["name"][0] for query, _ in pushed}
    assert {"sampled{env=test,process=worker-0}", "sampled{env=test,process=keeper}"} <= names
    assert not any(sample.labels.trace for _, one in pushed for sample in one.samples)
    assert sum(one.ns for _, one in pushed) == sum(one.ns for one in kept)  # nothing lost, nothing twice

    why = CliRunner().invoke(cli, ["why", "--store", str(store), "--json"], standalone_mode=False)
    assert json.loads(why.stdout)["cpu"]["samples"] == sum(one.count for one in kept)
