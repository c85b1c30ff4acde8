"""The pages on memory, persistence, start-up and capacity: their commands are understood, and their figures are what comes out."""

import json
import re
import shlex
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from sits.app.cli import cli

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ("memory", "persistence", "startup", "capacity")


def text_of(page):
    return (DOCS / f"{page}.md").read_text(encoding="utf-8")


def run(*arguments):
    result = CliRunner().invoke(cli, ["plan", *arguments, "-q", "--json"], standalone_mode=False)
    assert result.exception is None, result.exception
    return json.loads(result.stdout)


@pytest.mark.parametrize("page", PAGES)
def test_its_commands_are_understood(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in (
        "fleet.yaml",
        "trace.csv",
        "engine.log",
        "spans.jsonl",
        "gpus.txt",
        "out/disk.json",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    text = text_of(page)
    for name in set(re.findall(r"(?:examples|tests)/[\w./-]*\.\w+", text)):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    found = [*re.findall(r"^sitsctl (.+)$", text, re.MULTILINE), *re.findall(r"`sitsctl ([^`]+)`", text)]
    assert len(found) >= 3
    for line in found:
        command, words = cli, shlex.split(line)
        while isinstance(command, click.Group):
            command = command.commands[words.pop(0)]
        command.make_context(command.name, words)


def rows_of(page, first_cell):
    """Cells of the table rows that begin with a cell."""
    lines = [line.strip("|").split("|") for line in text_of(page).splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line] for line in lines if line[0].strip() == first_cell]


@pytest.mark.parametrize(
    ("model", "named"), [("llama-2-7b", "Llama-2-7B, 2"), ("llama-3-70b", "Llama-3-70B, 4")]
)
def test_the_memory_table_is_what_comes_out(model, named):
    cells = next(row for row in rows_of("memory", named) if row[1] == "conversation")
    assert cells[2] == "2K"
    document = run("memory", "--model", model, "--gpus", named[-1], "--context", "2048")
    row = document["contexts"][0]
    static, paged = row["static"], row["paged"]
    assert cells[3] == f"{row['fit_static']} / {row['fit_paged']}"
    assert cells[4] == f"{100 * static['waste']:.1f} % / {100 * paged['waste']:.2f} %"
    assert cells[6] == f"{static['output_per_s']:,.0f} / {paged['output_per_s']:,.0f}"
    assert cells[7] == f"{row['speedup']:.2f}"


def test_the_plans_are_what_comes_out():
    plans = run("memory", "--model", "llama-3-70b", "--gpus", "4", "--context", "2048", "--requests", "1")[
        "plans"
    ]
    for plan in plans:
        if "refused" not in plan:
            (cells,) = rows_of("memory", plan["plan"])
            assert cells[1:4] == [
                f"{plan['weights_bytes'] / 1e9:.1f} GB",
                f"{plan['token_bytes'] // 1024} KiB",
                f"{plan['pool_tokens']:,} tokens",
            ]


def test_the_ways_of_writing_are_what_comes_out():
    from sits.core.units import show_duration

    for mode in run("persist", "--disk", "2.14GB/s", "--disk-fixed", "190us", "--context", "1024")["modes"]:
        cells = next(row for row in rows_of("persistence", mode["mode"]))
        told = [mode["ttft_p50_ms"], mode["ttft_p99_ms"], mode["e2e_mean_ms"], mode["lag_p99_ms"]]
        assert cells[1:] == [show_duration(ms * 1e6) for ms in told]
