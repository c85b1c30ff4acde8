"""Runtime adapters under `sitsctl up` with several workers: one keeper loads, every worker knows."""

import asyncio
import json
import threading
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest

from app_processes import serving
from lora_mock import LyingVllm

FLEET = """\
name: lora
gateway: {{listen: "127.0.0.1:0", store: "{store}", workers: 2, drain_timeout: 2s}}
runtime_adapters:
  wait: 5s
  watch: 300ms
  backoff: 50ms
  probe: {{tolerance: 0.05}}
  engines: [{{engine: g0, slots: 2}}]
  adapters:
    - {{name: a, model: m, path: /disk/a}}
    - {{name: b, model: m, path: /disk/b}}
    - {{name: c, model: m, path: /disk/c}}
engines:
  - {{name: g0, kind: openai, url: "{engine}", models: [m]}}
"""


@pytest.fixture
def engine():
    """A lying vLLM on a loop of its own thread."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def wait(what):
        return asyncio.run_coroutine_threadsafe(what, loop).result(20)

    vllm = LyingVllm({f"/disk/{name}": name for name in "abc"})
    wait(vllm.start())
    vllm.do = loop.call_soon_threadsafe
    yield vllm
    wait(vllm.stop())
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def ask(url, name):
    """Status and what answered; a connection of its own, so that workers take turns."""
    body = json.dumps({"model": name, "messages": [{"role": "user", "content": "hi"}]}).encode()
    request = urllib.request.Request(f"{url}/v1/chat/completions", body, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, json.loads(answer.read())["choices"][0]["message"]["content"]
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())["error"]["code"]


def page(url):
    with urllib.request.urlopen(f"{url}/metrics", timeout=20) as answer:
        return answer.read().decode()


def test_one_keeper_loads_and_every_worker_knows(tmp_path, engine):
    with serving(tmp_path, FLEET, engine=engine.url) as up, ThreadPoolExecutor(16) as pool:
        url = up.url
        answers = set(pool.map(lambda _: ask(url, "a"), range(64)))
        assert answers == {(200, "[a]")}
        assert [path for path, _ in engine.calls].count("/v1/load_lora_adapter") == 1

        # Two slots: whichever worker asks, the one used longest ago goes, once both workers know.
        assert ask(url, "b") == (200, "[b]")
        assert set(pool.map(lambda _: ask(url, "c"), range(16))) == {(200, "[c]")}
        assert sorted(engine.loaded) == ["b", "c"]

        # The engine loses it, and answers for it with its base: nobody ever sees that, whichever worker is asked.
        engine.do(lambda: engine.lies.add("skips"))
        engine.do(engine.loaded.clear)
        for _ in range(12):
            assert ask(url, "c") in {(200, "[c]"), (503, "adapter_not_ready")}
        assert ask(url, "c") == (200, "[c]")
        text = page(url)
        assert 'sits_adapter_loads_succeeded_total{engine="g0",adapter="a"} 1' in text
        assert 'sits_adapter_state{engine="g0",adapter="c",state="ready"} 1' in text
        up.stop()
    assert (tmp_path / "store" / "adapters.json").exists()
