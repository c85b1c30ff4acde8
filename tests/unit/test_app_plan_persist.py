"""`sitsctl plan persist`: stated, measured and kept figures."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from sits.app.cli import cli
from sits.core.errors import ConfigError


def run(*arguments):
    return CliRunner().invoke(cli, ["plan", "persist", "-q", "--requests", "40", *map(str, arguments)])


def test_stated_figures_give_both_tables():
    result = run("--disk", "2GB/s", "--context", "4096")
    assert result.exit_code == 0, result.output
    for words in ("0.54 GB", "layer-behind", "durable when sent", "(stated)"):
        assert words in result.stdout


def test_measured_figures_are_kept_and_used_again(tmp_path):
    kept = tmp_path / "disk.json"
    result = run("--measure", tmp_path, "--rounds", "3", "--save", kept, "--json")
    if result.exit_code and ("memory" in str(result.exception) or "O_DIRECT" in str(result.exception)):
        pytest.skip(f"no direct I/O here: {result.exception}")
    document = json.loads(result.stdout)
    assert document["fit"]["write"]["sizes"] == 6
    assert document["fit"]["write"]["exponent"]["low"] <= document["fit"]["write"]["exponent"]["value"]
    assert document["measured"]["writes_ns"]["65536"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["disk.json"]
    again = json.loads(run("--figures", kept, "--json").stdout)
    assert again["disk"]["bytes_per_s"] == document["disk"]["bytes_per_s"]
    assert [row["mode"] for row in again["modes"]] == ["none", "sync", "layerwise", "behind", "layer-behind"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"a":' * 100_000, "no figures of a disk"),
        ("[" * 100_000, "no figures of a disk"),
        ("{}", "it has no 'write'"),
        ('{"write": NaN}', "malformed"),
    ],
    ids=["nested", "array", "empty", "nan"],
)
def test_a_file_that_holds_no_figures_is_refused(tmp_path, text, says):
    """However deep it is nested."""
    path = tmp_path / "figures.json"
    path.write_text(text)
    result = run("--figures", path)
    assert isinstance(result.exception, ConfigError)
    assert says in str(result.exception)
    assert "--save" in str(result.exception)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "--measure"),
        (["--disk", "2GB/s", "--measure", "."], "--measure"),
        (["--disk", "2"], "unit"),
        (["--disk", "2GB/s", "--save", "x.json"], "--measure"),
        (["--figures", Path(__file__)], "--save"),
        (["--measure", "nowhere"], "no directory"),
    ],
)
def test_wrong_usage_is_told(arguments, says, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = run(*arguments)
    assert result.exit_code != 0
    assert says in result.output + str(result.exception)
