"""`sitsctl plan kv`: the classic example, and pools with what they assume."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from sits.app.cli import cli

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(*arguments):
    return CliRunner().invoke(cli, ["plan", "kv", *arguments])


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "8.00 GiB (8,589,934,592 bytes)"),
        (["--kv-heads", "8"], "2.00 GiB"),
        (["--kv-heads", "8", "--dtype", "fp8"], "1.00 GiB"),
        (["--kv-heads", "8", "--tp", "4"], "0.50 GiB on each of 4 ranks"),
        (["--tokens", "2049"], "8.06 GiB"),  # one token more is one block more for each sequence
    ],
)
def test_the_classic_example(arguments, says):
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    assert result.output.startswith(says)


def test_pools_of_a_fleet_say_what_they_assume():
    result = run(str(EXAMPLES / "emulated.yaml"))
    assert result.exit_code == 0
    assert "a0: 27,186 blocks" in result.output
    assert "weights 16.00 GB" in result.output
    rows = json.loads(run(str(EXAMPLES / "emulated.yaml"), "--json").output)
    assert [row["engine"] for row in rows] == ["a0", "a1"]
    assert "no emulated engine" in run(str(EXAMPLES / "vllm.yaml")).output


@pytest.mark.parametrize("wrong", [["--batch", "0"], ["--dtype", "int3"], ["--heads", "8"], ["missing.yaml"]])
def test_wrong_usage_is_told(wrong):
    result = run(*wrong)
    assert result.exit_code == 2
    assert wrong[0] in result.output
