"""The drawing of `sitsctl plan memory`: well formed, a point for each side of each context, a bar for each plan that fits."""

import json
import xml.etree.ElementTree as ET

import pytest
from click.testing import CliRunner

from sits.app.cli import cli
from sits.app.memory_chart import drawing

SVG = "{http://www.w3.org/2000/svg}"


def run(*arguments):
    return CliRunner().invoke(cli, ["plan", "memory", "-q", "--requests", "20", *map(str, arguments)])


def kinds(tree, tag, kind):
    return [one for one in tree.iter(SVG + tag) if kind in (one.get("class") or "").split()]


def test_both_sides_and_every_plan_are_drawn(tmp_path):
    path = tmp_path / "new" / "memory.svg"
    arguments = ("--model", "llama-3-70b", "--gpus", 4, "--context", 2048, "--context", 8192)
    result = run(*arguments, "--svg", path, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    tree = ET.fromstring(path.read_text())
    shown = [one for one in kinds(tree, "circle", "dot") if len(one)]
    assert len(shown) == 2 * 2 * 2
    words = " ".join("".join(one.itertext()) for one in tree.iter(SVG + "text"))
    for row in found["contexts"]:
        assert f"{row['speedup']:.2f}x" in words
    fitting = [row for row in found["plans"] if "refused" not in row]
    bars = [one for one in kinds(tree, "rect", "pool") if float(one.get("height")) == 20]
    assert 0 < len(bars) == len(fitting) < len(found["plans"])
    total = next(float(one.get("width")) for one in kinds(tree, "rect", "rest") if one.get("height") == "20")
    first = fitting[0]
    share = first["pool_tokens"] * first["token_bytes"] / found["gpu_memory"]
    assert float(bars[0].get("width")) / total == pytest.approx(share, abs=1e-3)
    for row in fitting:
        assert f"{row['pool_tokens']:,} tokens" in words


def test_more_tokens_a_second_are_drawn_higher(tmp_path):
    path = tmp_path / "memory.svg"
    assert run("--gpus", 2, "--context", 32768, "--svg", path).exit_code == 0
    tree = ET.fromstring(path.read_text())
    left = [one for one in kinds(tree, "circle", "dot") if len(one) and float(one.get("cx")) < 500]
    heights = {one.get("class"): float(one.get("cy")) for one in left}
    assert heights["dot paged"] < heights["dot static"]


def test_what_could_not_be_simulated_is_said_and_names_are_escaped():
    found = {
        "model": "a<b>&c", "gpu": "G", "gpu_memory": 2**30, "work": "full", "requests": 1, "simulated": "tensor 1",
        "contexts": [{"context": 2048, "refused": "too large"}], "plans": [{"plan": "tensor 1", "refused": "x & y " * 60}],
    }  # fmt: skip
    tree = ET.fromstring(drawing(found))
    words = " ".join("".join(one.itertext()) for one in tree.iter(SVG + "text"))
    assert "no context could be simulated" in words
    assert "a<b>&c" in words
    assert "…" in words
