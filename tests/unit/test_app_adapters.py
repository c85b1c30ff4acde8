"""`sitsctl adapters`, as it is typed, at engines that lie."""

import asyncio
import threading

import orjson
import pytest
from click.testing import CliRunner

from lora_mock import LyingVllm
from sits.app.cli import cli

FLEET = """\
name: lora
gateway: {{store: "{store}"}}
runtime_adapters:
  probe: {{tolerance: 0.05}}
  engines: [{{engine: g0, slots: 2}}, {{engine: g1}}]
  adapters:
    - {{name: sql, model: m, path: /disk/sql}}
    - {{name: gone, model: m, path: /disk/gone}}
engines:
  - {{name: g0, kind: openai, url: "{urls[0]}", models: [m]}}
  - {{name: g1, kind: openai, url: "{urls[1]}", models: [m]}}
"""


@pytest.fixture
def house(tmp_path):
    """Two engines on a loop of their own thread, and the file of their fleet."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def wait(what):
        return asyncio.run_coroutine_threadsafe(what, loop).result(20)

    engines = [wait(LyingVllm({"/disk/sql": "sql"}).start()) for _ in range(2)]
    path = tmp_path / "fleet.yaml"
    path.write_text(FLEET.format(store=tmp_path / "store", urls=[one.url for one in engines]))
    yield path, engines
    for one in engines:
        wait(one.stop())
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def run(word, path, *more):
    told = CliRunner().invoke(cli, ["adapters", word, str(path), *more], standalone_mode=False)
    return told.return_value, told.output, told.exception


def test_load_status_unload(house):
    path, (first, _) = house
    code, text, _ = run("status", path)
    assert code == 0
    assert text.count("absent") == 4
    code, text, _ = run("load", path, "sql", "--engine", "g0")
    assert (code, "sql" in first.loaded, "proven" in text) == (0, True, True)
    code, text, _ = run("status", path, "--probe", "--json")
    found = {(one["adapter"], one["engine"]): one for one in orjson.loads(text)}
    assert found["sql", "g0"]["state"] == "proven"
    assert found["sql", "g0"]["numbers"]["from_base"] > 0.05
    assert found["sql", "g1"]["state"] == "absent"
    assert run("unload", path, "sql", "--engine", "g0")[0] == 0
    assert "sql" not in first.loaded


def test_what_is_wrong_is_said_with_exit_code_1(house):
    path, (first, second) = house
    code, text, _ = run("load", path, "gone", "--engine", "g0")
    assert (code, "finds no adapter at its path" in text) == (1, True)
    first.lies.add("load_ok")
    code, text, _ = run("load", path, "gone", "--engine", "g0")
    assert (code, "answers as the base model does" in text) == (1, True)
    second.loaded["sql"] = ("/elsewhere", "sql")
    code, text, _ = run("status", path)
    assert (code, "from another path (/elsewhere)" in text) == (1, True)


def test_fingerprint_is_ready_to_paste(house):
    path, (first, _) = house
    _, _, error = run("fingerprint", path, "sql", "--engine", "g0")
    assert "sitsctl adapters load" in str(error)
    first.loaded["sql"] = ("/disk/sql", "sql")
    code, text, _ = run("fingerprint", path, "sql", "--engine", "g0", "--json")
    taken = orjson.loads(text.splitlines()[0]) if text.count("\n") == 1 else orjson.loads(text)
    assert (code, taken["tells"]) == (0, True)
    pasted = path.read_text().replace(
        "path: /disk/sql}", f'path: /disk/sql, fingerprint: "{taken["fingerprint"]}"}}'
    )
    path.write_text(pasted)
    assert run("load", path, "sql", "--engine", "g0")[0] == 0
    first.loaded["sql"] = ("/disk/sql", "another")
    code, text, _ = run("load", path, "sql", "--engine", "g0")
    assert (code, "unlike its registered fingerprint" in text) == (1, True)
    first.loaded["sql"] = ("/disk/sql", "base")
    assert run("fingerprint", path, "sql", "--engine", "g0")[0] == 1


def test_names_that_are_not_there(house):
    path, _ = house
    assert "did you mean 'sql'" in str(run("load", path, "sq", "--engine", "g0")[2])
    assert "--engine (g0, g1)" in str(run("load", path, "sql")[2])
    assert "did you mean 'g1'" in str(run("load", path, "sql", "--engine", "g11")[2])


def test_an_engine_that_does_not_answer_is_unknown_not_empty(house):
    path, engines = house
    path.write_text(path.read_text().replace(engines[0].url, "http://127.0.0.1:9"))
    code, text, _ = run("status", path)
    assert code == 1
    assert "unknown" in text
