"""`sitsctl calibrate` and `sitsctl predict`, from a real engine's recording to numbers, and what they say when something is wrong."""

import gzip
import json
import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from engine_recordings import RECORDINGS, engine, write_recording
from sits.app.cli import cli, run_command

LOADS = [f"closed-c{users}-cal" for users in (1, 2, 4, 8, 16, 32)]
REQUESTS = RECORDINGS / "small-closed" / "requests.jsonl.gz"


def sitsctl(*arguments):
    outcome = {}

    def command():
        outcome["result"] = CliRunner().invoke(cli, [str(one) for one in arguments], standalone_mode=False)
        if outcome["result"].exception is not None:
            raise outcome["result"].exception
        return outcome["result"].return_value

    code = run_command(command)
    return code, outcome["result"].stdout


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "model.json"
    runs = [part for name in LOADS[:5] for part in ("--run", name)]
    code, told = sitsctl(
        "calibrate", RECORDINGS / "small-closed", "-o", path, *runs, "--no-check", "-q", "--json"
    )
    assert code == 0
    return path, json.loads(told)


def test_calibrate_says_what_it_found(model):
    path, told = model
    assert told["limits"]["blocks"] == {
        "value": 1023,
        "source": "every value of the KV usage gauge is a multiple of 1/N",
        "sure": True,
    }
    assert told["limits"]["block_size"]["value"] == 128
    assert told["fitted_on"]["runs"] == LOADS[:5]
    assert told["prefix_hits"]["tokens"] == pytest.approx(0.46, abs=0.05)
    assert any("max_num_batched_tokens" in text for text in told["assumed"])
    assert path.stat().st_size < 200_000


def test_a_load_that_was_left_out_is_predicted(model):
    """Thirty-two users on an engine calibrated with one to sixteen: they wait for seats, which no calibration run did."""
    code, told = sitsctl(
        "predict", "--model", model[0], "--requests", REQUESTS, "--run", LOADS[5], "--json", "-q"
    )
    assert code == 0
    told = json.loads(told)
    real = [json.loads(line) for line in read(REQUESTS) if f'"{LOADS[5]}"' in line]
    assert [row["id"] for row in told["requests"]] == [one["id"] for one in real]
    (run,) = told["runs"]
    assert run["loop"] == {"users": 32, "think_ms": 0.0}
    assert any("closed loop of 32 users" in text for text in run["assumed"])
    for metric in ("ttft_ms", "tpot_ms", "e2e_ms"):
        measured = sorted(one[metric] for one in real)
        p50 = measured[len(measured) // 2]
        assert told["quantiles"][metric]["p50"] == pytest.approx(p50, rel=0.4)
    assert set(told["definitions"]) >= {"ttft_ms", "tpot_ms", "e2e_ms"}


def test_the_same_seed_gives_the_same_bytes(model):
    arguments = (
        "predict",
        "--model",
        model[0],
        "--requests",
        REQUESTS,
        "--run",
        LOADS[2],
        "--json",
        "-q",
        "--passes",
        3,
    )
    first, again, other = sitsctl(*arguments), sitsctl(*arguments), sitsctl(*arguments, "--seed", 1)
    assert first == again
    assert first != other


def test_open_arrivals_come_with_their_burstiness(model, tmp_path):
    path = tmp_path / "open.jsonl"
    lines = [
        {"arrival": i * 0.31 + (i % 7) * 0.05, "prompt_tokens": 64, "output_tokens": 8} for i in range(150)
    ]
    path.write_text("\n".join(map(json.dumps, lines)))
    code, text = sitsctl("predict", "--model", model[0], "--requests", path, "-q", "--passes", 2)
    assert code == 0
    assert "arrivals as given" in text
    assert re.search(r"arrivals: CV \d", text)
    assert "no request finds its prompt in the prefix cache (the calibration saw no open arrivals)" in text
    assert "time per output token" in text


def test_a_packed_model_is_the_same_model_and_one_cut_off_is_named(model, tmp_path, capsys):
    packed, cut, asked = tmp_path / "model.json.gz", tmp_path / "cut.json.gz", tmp_path / "one.jsonl"
    packed.write_bytes(gzip.compress(model[0].read_bytes()))
    cut.write_bytes(packed.read_bytes()[:-40])
    asked.write_text(json.dumps({"arrival": 0, "prompt_tokens": 200, "output_tokens": 20}))
    rest = ("--requests", asked, "-q", "--json", "--passes", 2)
    told = [sitsctl("predict", "--model", path, *rest) for path in (model[0], packed)]
    assert told[0] == told[1]
    assert told[0][0] == 0
    capsys.readouterr()
    assert sitsctl("predict", "--model", cut, *rest)[0] == 2
    assert "cut.json.gz: damaged gzip data" in capsys.readouterr().err


def test_what_lies_outside_of_the_calibration_is_warned_of(model, tmp_path):
    path = tmp_path / "long.jsonl"
    path.write_text(json.dumps({"arrival": 0, "prompt_tokens": 5000, "output_tokens": 800}))
    code, told = sitsctl("predict", "--model", model[0], "--requests", path, "-q", "--json", "--passes", 2)
    assert code == 0
    (run,) = json.loads(told)["runs"]
    lengths = [text.split(" have")[0] for text in run["warnings"] if " have lengths " in text]
    assert lengths == ["1 of 1 prompts", "1 of 1 answers"]


def test_users_make_a_closed_loop_without_arrivals(model, tmp_path):
    path = tmp_path / "loop.jsonl"
    path.write_text("\n".join([json.dumps({"prompt_tokens": 64, "output_tokens": 8})] * 20))
    code, told = sitsctl(
        "predict",
        "--model",
        model[0],
        "--requests",
        path,
        "--users",
        4,
        "--think",
        "1s",
        "--json",
        "-q",
        "--passes",
        2,
    )
    assert code == 0
    (run,) = json.loads(told)["runs"]
    assert run["loop"] == {"users": 4, "think_ms": 1000.0}
    assert run["requests_per_s"] < 4
    assert any(
        "of the requests of more than one block find all whole blocks" in text for text in run["assumed"]
    )


def test_calibrate_tells_the_error_on_runs_left_out(tmp_path):
    code, text = sitsctl("calibrate", write_recording(tmp_path / "r"), "-o", tmp_path / "m.json", "-q")
    assert code == 0
    assert "error on runs left out (2 runs" in text
    assert json.loads((tmp_path / "m.json").read_text())["held_out"]["runs"] == 2


def read(path):
    import gzip

    with gzip.open(path, "rt") as file:
        return file.readlines()


def test_the_commands_of_the_document_are_understood(monkeypatch):
    monkeypatch.chdir(Path(__file__).parents[2])
    text = Path("docs/calibrate.md").read_text(encoding="utf-8").replace("\\\n", " ")
    found = [shlex.split(line)[1:] for line in re.findall(r"^sitsctl .+$", text, re.MULTILINE)]
    assert len(found) >= 4
    for command, *words in found:
        cli.commands[command].make_context(command, words)


def wrong(tmp_path, name):
    recording = write_recording(tmp_path / "recording")
    good = tmp_path / "good.json"
    good.write_bytes(engine().encode())
    newer = tmp_path / "newer.json"
    newer.write_text(good.read_text().replace('"version": 1', '"version": 9'))
    damaged = tmp_path / "damaged.json"
    damaged.write_text(good.read_text().replace('"blocks"', '"bricks"'))
    asked = tmp_path / "asked.jsonl"
    asked.write_text(json.dumps({"arrival": 0, "prompt_tokens": 5, "output_tokens": 8}))
    nested = tmp_path / "nested.json"
    nested.write_text('{"kind": "sits-engine-model", "version": 1, "x": ' + "[" * 100_000)
    out = ("-o", tmp_path / "m.json", "-q")
    return {
        "no folder": (("calibrate", tmp_path / "none", *out), "no directory"),
        "no run": (("calibrate", recording, *out, "--run", "three"), "no run 'three' (runs: one, two)"),
        "no limit": (("calibrate", recording, *out, "--set", "block=3"), "did you mean block"),
        "no word": (("calibrate", recording, *out, "--metrics", asked), "tells no limit of its engine"),
        "no number": (("calibrate", recording, *out, "--set", "blocks=many"), "'many' is no whole number"),
        "no model": (("predict", "--requests", asked), "--model model.json"),
        "no model there": (("predict", "--model", tmp_path / "none", "--requests", asked), "no model at"),
        "no JSON": (("predict", "--model", asked.with_name("asked.jsonl"), "--requests", asked), "not an engine model"),
        "nested": (("predict", "--model", nested, "--requests", asked), "not an engine model"),
        "newer": (("predict", "--model", newer, "--requests", asked), "of version 9"),
        "damaged": (("predict", "--model", damaged, "--requests", asked), "damaged engine model"),
        "no requests": (("predict", "--model", good, "--requests", tmp_path / "none"), "no file at"),
        "no users": (("predict", "--model", good, "--requests", asked, "--loop", "closed"), "--users N"),
        "both": (("predict", "--model", good, "--requests", asked, "--loop", "open", "--users", "2"), "leave out --loop open"),
    }[name]  # fmt: skip


@pytest.mark.parametrize(
    "name",
    ["no folder", "no run", "no limit", "no word", "no number", "no model", "no model there", "no JSON", "nested", "newer", "damaged", "no requests", "no users", "both"],
)  # fmt: skip
def test_what_is_wrong_is_told_in_one_line_with_the_way_out(tmp_path, capsys, name):
    arguments, text = wrong(tmp_path, name)
    code, _ = sitsctl(*arguments)
    told = capsys.readouterr().err
    assert code == 2
    assert text in told
    assert "Traceback" not in told


def tables(folder):
    """Layer tables of a made-up GPU, one layer: 1 us a token, attention by what it reads."""
    (folder / "dense.csv").write_text("layer,tokens,time_us\nmlp,1,10\nmlp,1000,1009\n")
    (folder / "per_sequence.csv").write_text("layer,sequences,time_us\nlm_head,1,5\nlm_head,64,5\n")
    cells = [
        f"{chunk},{before},{decodes},{kv},{chunk * 0.1 + before * 0.001 + decodes * kv * 0.001:.4f}"
        for chunk in (0, 64, 512)
        for before in (0, 256)
        for decodes in (0, 1, 16)
        for kv in (0, 64, 2048)
    ]
    (folder / "attention.csv").write_text(
        "prefill_chunk,kv_prefill,n_decode,kv_decode,time_us\n" + "\n".join(cells)
    )
    return folder


LIMITS = [
    part
    for limit in ("blocks=1000", "block_size=16", "max_num_seqs=8", "max_num_batched_tokens=512")
    for part in ("--set", limit)
]


def test_a_profile_is_asked_the_same_way(tmp_path):
    path = tmp_path / "asked.csv"
    path.write_text("id,arrival_time,input_toks,output_toks\na,0,100,5\nb,0.001,100,5\n")
    code, told = sitsctl(
        "predict", "--profile", tables(tmp_path), "--layers", 1, *LIMITS, "--requests", path, "--json"
    )
    assert code == 0
    told = json.loads(told)
    assert told["engine"]["limits"]["blocks"]["value"] == 1000
    assert [row["id"] for row in told["requests"]] == ["a", "b"]
    assert 0 < told["requests"][0]["ttft_ms"] < told["requests"][0]["e2e_ms"]
    assert told["quantiles"]["ttft_ms"]["low"] == {}
    assert any("front end" in text for text in told["runs"][0]["assumed"])
    assert told["engine"]["overhead_prefill_us"] == 25_000
    assert any("the host takes 25 ms" in text for text in told["runs"][0]["assumed"])


def test_host_time_that_is_told_is_not_assumed(tmp_path):
    path = tmp_path / "asked.jsonl"
    path.write_text(json.dumps({"arrival": 0, "prompt_tokens": 100, "output_tokens": 3}))
    base = ("predict", "--profile", tables(tmp_path), "--layers", 1, *LIMITS, "--requests", path, "--json")
    code, told = sitsctl(*base, "--overhead", "1ms", "--overhead-prefill", "3ms")
    assert code == 0
    told = json.loads(told)
    assert (told["engine"]["overhead_us"], told["engine"]["overhead_prefill_us"]) == (1000, 3000)
    assert not any("the host takes" in text for text in told["runs"][0]["assumed"])


@pytest.mark.parametrize(
    ("missing", "text"), [("--layers", "how many layers"), ("block_size=16", "does not say block_size")]
)
def test_a_profile_is_refused_while_something_is_not_told(tmp_path, capsys, missing, text):
    path = tmp_path / "asked.jsonl"
    path.write_text(json.dumps({"arrival": 0, "prompt_tokens": 5, "output_tokens": 8}))
    arguments = ["--layers", "1", *LIMITS]
    place = arguments.index(missing)
    first = place if missing == "--layers" else place - 1
    del arguments[first : first + 2]
    code, _ = sitsctl("predict", "--profile", tables(tmp_path), *arguments, "--requests", path)
    assert code == 2
    assert text in capsys.readouterr().err


def test_the_page_is_well_formed_escaped_and_holds_every_figure(tmp_path):
    import html
    import xml.etree.ElementTree as ET

    good = tmp_path / "good.json"
    good.write_bytes(engine().encode())
    asked, page = tmp_path / "asked.jsonl", tmp_path / "sub" / "page.html"
    lines = [{"run": "<b>&", "arrival": i, "prompt_tokens": 50, "output_tokens": 1 + i % 3} for i in range(9)]
    asked.write_text("\n".join(map(json.dumps, lines)))
    code, told = sitsctl("predict", "--model", good, "--requests", asked, "-q", "--json", "--html", page)
    assert code == 0
    text = page.read_text(encoding="utf-8")
    assert "<b>&" not in text.replace("<b>p50", "")
    assert html.escape("<b>&: 9 requests") in text
    drawings = re.findall(r"<svg.*?</svg>", text, re.DOTALL)
    assert [len(list(ET.fromstring(drawing).iter("polyline"))) for drawing in drawings] == [1, 1, 1]
    p50 = json.loads(told)["quantiles"]["e2e_ms"]["p50"]
    assert f"{p50:,.1f}" in text
    assert "http" not in text.replace("http://www.w3.org", "")


def test_the_engines_own_word_goes_before_its_figures_and_the_hand_before_both(tmp_path):
    page = Path(__file__).parents[1] / "data" / "engines" / "vllm_metrics_load.txt"
    log = tmp_path / "engine.log"
    log.write_text("non-default args: {'max_num_seqs': 24, 'max_num_batched_tokens': 4096}")
    code, told = sitsctl(
        "calibrate", write_recording(tmp_path / "r"), "-o", tmp_path / "m.json", "--metrics", page, "--engine-log", log,
        "--set", "max_num_seqs=20", "--no-check", "-q", "--json",
    )  # fmt: skip
    assert code == 0
    found = {
        name: limit["value"] for name, limit in json.loads(told)["limits"].items() if isinstance(limit, dict)
    }
    assert found == {"blocks": 1023, "block_size": 128, "max_num_seqs": 20, "max_num_batched_tokens": 4096}
    assert json.loads(told)["limits"]["prefix_caching"] is True


def test_the_page_of_a_calibration_is_well_formed_and_shows_every_run_and_limit(tmp_path):
    import html
    import xml.etree.ElementTree as ET

    page = tmp_path / "page.html"
    code, told = sitsctl(
        "calibrate",
        write_recording(tmp_path / "r"),
        "-o",
        tmp_path / "m.json",
        "-q",
        "--json",
        "--html",
        page,
    )
    assert code == 0
    text = page.read_text(encoding="utf-8")
    drawings = [ET.fromstring(drawing) for drawing in re.findall(r"<svg.*?</svg>", text, re.DOTALL)]
    assert [len(list(one.iter("rect"))) for one in drawings] == [2, 0]
    assert len(list(drawings[1].iter("circle"))) == 120
    for name, limit in json.loads(told)["limits"].items():
        if isinstance(limit, dict):
            assert name in text
            assert html.escape(limit["source"]) in text
    assert "Error on runs left out" in text
