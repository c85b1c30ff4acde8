"""`sitsctl plan memory`: what it prints, as text and as data."""

import json

import pytest
from click.testing import CliRunner

from sits.app.cli import cli


def run(*arguments):
    return CliRunner().invoke(cli, ["plan", "memory", "-q", *arguments])


def test_both_tables_and_the_published_pair():
    result = run(
        "--context",
        "2048",
        "--context",
        "8192",
        "--requests",
        "40",
        "--gpus",
        "2",
        "--pair",
        "48.2GB, 37%, 19.6GB, 8%",
    )
    assert result.exit_code == 0, result.output
    for words in (
        "tensor 2",
        "heads 2",
        "vocabulary 2",
        "pool",
        "gain",
        "30.4 and 18.0 GB",
        "62.6% waste",
        "assumed:",
    ):
        assert words in result.stdout


def test_json_says_the_same_and_has_the_definitions():
    result = run(
        "--context",
        "4096",
        "--requests",
        "30",
        "--gpus",
        "4",
        "--model",
        "llama-3-70b",
        "--shared-prefix",
        "512",
        "--json",
    )
    document = json.loads(result.stdout)
    assert document["simulated"] == "tensor 4"
    assert [row["plan"] for row in document["plans"]][:2] == ["tensor 4", "layers 4"]
    assert "does not fit" in document["plans"][2]["refused"]
    row = document["contexts"][0]
    assert row["static"]["served"] == row["paged"]["served"] == 30
    assert row["fit_paged"] > row["fit_static"]
    assert "waste" in document["defined"]


def test_what_cannot_be_simulated_is_a_line_not_an_end():
    result = run("--context", "131072", "--requests", "5", "--gpus", "1", "--work", "full")
    assert result.exit_code == 0
    assert "more than the whole pool" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--pair", "48.2"], "--pair"),
        (["--gpu-memory", "80"], "unit"),
        (["--plan", "depth=2"], "tensor=4"),
        (["--model", "nobody"], "llama-2-7b"),
    ],
)
def test_wrong_usage_is_told(arguments, says):
    result = run(*arguments)
    assert result.exit_code != 0
    assert says in result.output + str(result.exception)


def test_pressure_and_a_reading_of_the_gpus(tmp_path):
    reading = tmp_path / "gpus.txt"
    reading.write_text("#Entity FBTTL FBUSD\nID\nGPU 0 81920 72000\nGPU 1 81920 30000\n")
    common = (
        "--gpus",
        "2",
        "--context",
        "4096",
        "--requests",
        "40",
        "--rate",
        "2",
        "--device-memory",
        str(reading),
    )
    result = run(*common)
    assert result.exit_code == 0, result.output
    for words in (
        "contention",
        "roomy",
        "GPU 0: 70.3 of 80.0 GiB",
        "activations, graphs",
        "GPU 1",
        "less than weights",
    ):
        assert words in result.stdout
    document = json.loads(run(*common, "--json").stdout)
    assert [check["agrees"] for check in document["devices"]] == [True, False]
    assert document["contexts"][0]["pressure"]["contention"] == 0.0
    reading.write_text("nothing")
    assert "no memory of a GPU" in str(run(*common).exception)
