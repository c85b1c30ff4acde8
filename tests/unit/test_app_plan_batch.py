"""`sitsctl plan batch`: the table, the document, the chart, and what a window costs where `sitsctl check` warns of it."""

import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from sits.app.cli import cli
from sits.app.window_warnings import window_warnings
from sits.bench.windows import at_rate, rate_of, superposed
from sits.core.config import load_fleet
from sits.predict.window import predict_window

CALL = ("--service-fixed", "8ms", "--service-item", "1ms")
SMALL = ("--window", "0ms", "--window", "20ms", "--window", "100ms", "--max-batch", "4", "--max-batch", "16")
MARK = re.compile(r"[=*]+$")


def run(*arguments):
    return CliRunner().invoke(cli, ["plan", "batch", *map(str, arguments)])


def document(*arguments):
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def cells_of(told):
    return {(cell["window_ns"], cell["max_batch"]): cell for cell in told["cells"]}


def test_the_table_fits_80_columns_and_says_what_its_marks_mean():
    result = run("--rate", 200, *CALL, "--slo", "100ms")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    rows = {line.split()[0]: line for line in lines if line.startswith(" ")}
    assert set(rows) == {"window", "free", "0", "5", "10", "20", "50", "100"}
    assert rows["0"].count("-") == 5, "200 a second one by one are more than the engine can do"
    assert "size-bound: the batch fills first" in result.stdout
    assert "saturated: the engine cannot keep up" in result.stdout
    assert re.search(r"46\.5\s+60%=\s+64\.\d\s+41%=\*", rows["50"])
    assert "Least P99: send when the engine is free, at most 8 a call" in result.stdout
    assert "2.7 times the answers of an engine second" in " ".join(result.stdout.split())


def test_the_document_says_all_of_every_cell():
    told = document("--rate", 200, *CALL, *SMALL, "--slo", "100ms")
    assert (told["rate_per_s"], told["service_fixed_ns"], told["slo_ns"]) == (200, 8_000_000, 100_000_000)
    cells = cells_of(told)
    assert set(cells) == {(w, b) for w in (None, 0, 20_000_000, 100_000_000) for b in (4, 16)}
    beyond = cells[(0, 16)]
    assert (beyond["bound"], beyond["p99_ns"], beyond["on_front"], beyond["meets_slo"]) == (
        "saturated",
        None,
        False,
        False,
    )
    assert cells[(100_000_000, 4)]["bound"] == "size"
    assert cells[(20_000_000, 16)]["bound"] == "timeout"
    assert cells[(None, 16)]["bound"] == "free"
    assert not cells[(100_000_000, 16)]["meets_slo"]


def test_an_objective_nobody_meets_is_told_by_the_exit_code():
    arguments = ["plan", "batch", "--rate", "200", *CALL, *SMALL, "--slo", "10ms"]
    result = CliRunner().invoke(cli, arguments, standalone_mode=False)
    assert result.return_value == 1
    assert "No cell meets 10.0 ms at P99." in result.stdout
    beyond = run("--rate", 2000, *CALL, *SMALL)
    assert beyond.exit_code == 0
    assert "No cell keeps up with this rate" in beyond.stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (CALL, "give --rate, or --trace"),
        (("--rate", 5, "--service-fixed", "8", "--service-item", "1ms"), "has no unit"),
        (("--rate", 0, *CALL), "--rate"),
        (("--rate", 5, "--service-fixed", "0ms", "--service-item", "0ms"), "a call that takes no time"),
        (
            (
                "--rate",
                5,
                *CALL,
                *(("--window", "1ms") * 1),
                *sum((("--window", f"{i}ms") for i in range(99)), ()),
            ),
            "cells",
        ),
    ],
)
def test_wrong_usage_is_told(arguments, says):
    result = run(*arguments)
    assert result.exit_code != 0
    assert says in (result.output + str(result.exception))


def trace_file(folder, seconds):
    path = folder / "trace.csv"
    rows = "".join(f"{t:.6f},10,10\n" for t in seconds)
    path.write_text("t_s,input_tokens,output_tokens\n" + rows)
    return path


def test_a_trace_is_replayed_and_bursts_make_windows_worse_than_poisson_says(tmp_path):
    """Forty requests at once each second: a call of all takes 48 ms; poisson arrivals of the same rate never need so much."""
    times = [second + i * 1e-4 for second in range(60) for i in range(40)]
    told = document(
        "--trace",
        trace_file(tmp_path, times),
        *CALL,
        "--window",
        "0ms",
        "--window",
        "20ms",
        "--max-batch",
        "64",
    )
    assert told["arrivals"] == "replay of trace.csv"
    cells = cells_of(told)
    assert cells[(20_000_000, 64)]["batch_mean"] == pytest.approx(40)
    assert cells[(20_000_000, 64)]["p99_ns"] == pytest.approx(68e6, rel=0.02)
    assert cells[(0, 64)]["p99_ns"] == pytest.approx(9e6 * 40 - 40 * 1e5, rel=0.05)
    free = cells[(None, 64)]
    assert free["p99_ns"] == pytest.approx((9 + 47 - 0.1) * 1e6, rel=0.02), "one alone, then all others"


def test_load_is_scaled_by_superposing_and_keeps_its_bursts():
    times = np.sort(np.concatenate([np.arange(100) + 0.0, np.arange(100) + 0.001]))
    twice = superposed(times, 3)
    assert len(twice) == 3 * len(times)
    assert rate_of(at_rate(times, 6.0)) == pytest.approx(6.0, rel=0.02)
    assert rate_of(at_rate(times, 0.1)) == pytest.approx(2.0, rel=0.02), "never thinner than it is"
    assert np.sum(np.diff(twice) < 0.0015) >= 3 * 99, "pairs stay pairs"


def test_the_chart_is_well_formed_says_every_cell_and_escapes(tmp_path):
    html, svg = tmp_path / "out" / "front.html", tmp_path / "front.svg"
    path = trace_file(tmp_path, np.arange(200) * 0.01)
    path = path.rename(tmp_path / "a<b>&.csv")
    result = run("--trace", path, *CALL, *SMALL, "--slo", "30ms", "--html", html, "--svg", svg)
    assert result.exit_code == 0, result.output
    root = ET.fromstring(svg.read_text())
    tips = [one.text for one in root.iter("{http://www.w3.org/2000/svg}title")]
    assert sum("at most 4 a call" in tip for tip in tips) >= 4
    texts = [one.text for one in root.iter("{http://www.w3.org/2000/svg}text")]
    assert any("a<b>&.csv" in text for text in texts)
    assert any(text == "objective 30 ms" for text in texts)
    page = html.read_text()
    assert "a<b>" not in page
    assert "Least P99:" in page
    for attribute in ("x", "y", "cx", "cy", "width", "height"):
        for one in root.iter():
            value = one.get(attribute)
            assert value is None or "nan" not in value.lower()


def test_a_chart_of_cells_that_all_fail_is_still_one(tmp_path):
    svg = tmp_path / "front.svg"
    assert run("--rate", 5000, *CALL, *SMALL, "--svg", svg).exit_code == 0
    assert "no cell keeps up" in svg.read_text()


# -- what `sitsctl check` warns of ---------------------------------------------------------------------------------

ENGINES = """
name: t
policy: {{window: {window}}}
engines:
  - {{kind: openai, name: chat, url: "http://127.0.0.1:1", models: [m]{chat}}}
  - {{kind: openai, name: tei, url: "http://127.0.0.1:2", models: [e], batches: by_call}}
"""


def warned(window, chat=""):
    return window_warnings(load_fleet(ENGINES.format(window=window, chat=chat)))


def test_a_window_before_an_engine_that_may_batch_continuously_is_told_with_its_cost():
    (line,) = warned("{kind: fixed, base: 100ms, max_batch: 32}")
    assert "'chat'" in line
    assert "'tei'" not in line
    waits = [predict_window(rate, 100e6, 32).wait_ns_mean / 1e6 for rate in (1, 10, 100)]
    assert ", ".join(f"{wait:.0f} ms" for wait in waits) in line
    assert "policy.window.endpoints: [/v1/embeddings]" in line


@pytest.mark.parametrize(
    ("window", "chat"),
    [
        ("{kind: none}", ""),
        ("{kind: fixed}", ", batches: continuous"),
        ("{kind: fixed}", ", batches: by_call"),
        ("{kind: adaptive, endpoints: [/v1/embeddings]}", ""),
    ],
)
def test_what_is_said_to_batch_by_call_or_is_not_held_is_not_warned_of(window, chat):
    assert warned(window, chat) == []


def test_an_endpoint_that_generates_is_warned_of_even_when_it_is_named():
    (line,) = warned("{kind: adaptive, endpoints: [/v1/chat/completions, /v1/embeddings]}")
    assert "holds /v1/chat/completions before" in line


def test_emulated_engines_are_known_to_batch_continuously(tmp_path):
    example = Path(__file__).parents[2] / "examples" / "emulated.yaml"
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text(example.read_text() + "\npolicy: {window: {kind: fixed}}\n")
    result = CliRunner().invoke(cli, ["check", str(fleet)])
    assert result.exit_code == 0, result.output
    assert "engines 'a0', 'a1', which batch continuously: there a window gains nothing" in result.output
    told = json.loads(CliRunner().invoke(cli, ["check", str(fleet), "--json"]).stdout)
    assert any("policy.window" in line for line in told["warnings"])


def test_the_configuration_of_the_document_is_one_and_warns_of_nothing():
    text = (Path(__file__).parents[2] / "docs" / "windows.md").read_text(encoding="utf-8")
    fleet = load_fleet("name: t\n" + re.search(r"```yaml\n(.+?)```", text, re.DOTALL)[1])
    assert fleet.policy.window.endpoints == ("/v1/embeddings",)
    assert window_warnings(fleet) == []


@pytest.mark.parametrize(
    ("window", "says"),
    [
        ("{endpoints: [/v1/embedings]}", "did you mean '/v1/embeddings'?"),
        ("{endpoints: [/v1/models]}", "no endpoint"),
        ("{endpoints: [/v1/embeddings, /v1/embeddings]}", "listed twice"),
        ("{kind: adaptive, reaction: slak}", "did you mean 'slack'?"),
        ("{kind: adaptive, detector: ewm}", "did you mean 'ewma'?"),
        ("{objective: 100}", "has no unit"),
    ],
)
def test_a_wrong_window_is_a_load_error_with_the_near_name(window, says):
    from sits.core.errors import ConfigErrors

    with pytest.raises(ConfigErrors, match=re.escape(says)):
        load_fleet(ENGINES.format(window=window, chat=""))


def test_a_wrong_way_to_batch_is_told():
    from sits.core.errors import ConfigErrors

    with pytest.raises(ConfigErrors, match="did you mean 'by_call'"):
        load_fleet(ENGINES.format(window="{}", chat=", batches: by_calls"))
