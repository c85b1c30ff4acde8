"""`sitsctl plan startup`: a command, logs and spans, as text and as data."""

import gzip
import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from sits.app.cli import cli

DATA = Path(__file__).parents[1] / "data/startup"


def run(*arguments):
    return CliRunner().invoke(cli, ["plan", "startup", "-q", *map(str, arguments)])


def test_logs_and_spans_are_told_with_advice(tmp_path):
    packed = tmp_path / "vllm.log.gz"
    packed.write_bytes(gzip.compress((DATA / "vllm.log").read_bytes()))
    result = run("--log", packed, "--log", DATA / "llama.log", "--spans", DATA / "spans.jsonl")
    assert result.exit_code == 0, result.output
    for words in (
        "vllm.log.gz: 44 s (moments exact to 1 s)",
        "llama.log: 2.28 s",
        "spans.jsonl: 41.8 s",
        "loading code",
        "at stake",
    ):
        assert words in result.stdout


def test_a_command_with_options_of_its_own_is_started_as_often_as_asked():
    result = run("--repeat", "3", "--json", "--", sys.executable, "-c", "import json")
    document = json.loads(result.stdout)
    assert [row["name"] for row in document["starts"]] == ["first start", "start 2", "start 3"]
    for row in document["starts"]:
        assert sum(row["stages_ns"].values()) == row["total_ns"]
        assert row["exit_code"] == 0
    assert (
        "later starts" in run("--repeat", "3", "--imports", "--", sys.executable, "-c", "import json").stdout
    )


def test_what_the_driver_compiles():
    assert "compiled by the driver" in run("--device", "sm_90", "--shipped", "sm_80,compute_80").stdout
    assert json.loads(run("--device", "sm_90", "--shipped", "sm_90", "--json").stdout)["jit_needed"] is False


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "give a command"),
        (["--log", Path(__file__)], "no line tells"),
        (["--spans", Path(__file__)], "not JSON"),
        (["--", "no-such-program-at-all"], "cannot be run"),
        (["--limt", "5s", "--", "true"], "No such option"),
    ],
)
def test_wrong_usage_is_told(arguments, says):
    result = run(*arguments)
    assert result.exit_code != 0
    assert says in result.output + str(result.exception)
