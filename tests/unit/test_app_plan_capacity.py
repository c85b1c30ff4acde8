"""`sitsctl plan capacity`: table, page, data; and a sweep that is killed goes on where it was."""

import json
import os
import re
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from sits.app.cli import cli

SMALL = ["--rate", "6", "--requests", "60", "--seeds", "1", "--jobs", "1"]


def run(out, *arguments):
    return CliRunner().invoke(
        cli, ["plan", "capacity", "-q", "-o", str(out), *map(str, arguments)], standalone_mode=False
    )


def test_table_page_and_verdict(tmp_path):
    result = run(tmp_path, *SMALL, "--slo-ttft", "2s", "--window", "0ms", "--window", "50ms")
    assert result.exit_code == 0, result.output
    for words in ("Fewest GPUs with 99%", "# ", "1 x 1", "50 ms", "KV blocks a replica, by formula", "TTFT:"):
        assert words in result.stdout
    page = (tmp_path / "capacity.html").read_text()
    assert page.count("<svg") == 2
    assert "objective 2 s" in page
    assert not re.search(r"(?:src|href)=|url\(|@import|<script", page)  # nothing is fetched, nothing runs


def test_json_has_every_point_and_the_front(tmp_path):
    result = run(tmp_path, *SMALL, "--tp", "1", "--tp", "16", "--json")
    document = json.loads(result.stdout)
    assert len(document["points"]) == 6
    assert sum(bool(point["refused"]) for point in document["points"]) == 3
    assert set(document["front"]) <= {point["key"] for point in document["points"]}
    assert document["cheapest"] is None  # no objective was given
    assert "cannot be" in (tmp_path / "capacity.html").read_text()


def test_arrivals_are_looked_at_before_anything_is_said(tmp_path):
    plain = run(tmp_path / "plain", *SMALL, "--replicas", "1", "--tp", "1")
    assert plain.stdout.startswith("assumed: Poisson arrivals")
    bursty = [
        "--rate",
        "6",
        "--cv",
        "4",
        "--requests",
        "2000",
        "--seeds",
        "1",
        "--jobs",
        "1",
        "--replicas",
        "1",
        "--tp",
        "1",
    ]
    told = run(tmp_path / "bursty", *bursty).stdout
    assert told.index("CV of gaps") < told.index("verdict   bursty") < told.index("TTFT P50")
    document = json.loads(run(tmp_path / "bursty", *bursty, "--json").stdout)
    assert document["burstiness"]["verdict"] == "bursty"


def test_objectives_nobody_meets_are_an_exit_code(tmp_path):
    result = run(tmp_path, *SMALL, "--slo-ttft", "1us")
    assert result.return_value == 1
    assert "No configuration has 99%" in result.stdout


def test_a_load_nobody_carries_has_a_page_too(tmp_path):
    result = run(
        tmp_path,
        "--rate",
        "500",
        "--requests",
        "400",
        "--seeds",
        "1",
        "--jobs",
        "1",
        "--replicas",
        "1",
        "--tp",
        "1",
    )
    assert "does not keep up" in result.stdout
    assert "no configuration keeps up" in (tmp_path / "capacity.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "--rate"),
        (["--rate", "1", "--kv-blocks", "4"], "4=27186"),
        (["--rate", "1", *(f"--max-num-seqs={n}" for n in range(1, 900))], "5000"),
        (["--rate", "1", "--model", "nobody"], "llama-3-8b"),
    ],
)
def test_wrong_usage_is_told(tmp_path, arguments, says):
    result = run(tmp_path / "out", *arguments)
    assert result.exit_code != 0
    assert says in result.output + str(result.exception)
    assert not (tmp_path / "out").exists()


SWEEP = [
    "--rate", "6", "--requests", "300", "--seeds", "2", "--jobs", "2", "--tp", "1", "--replicas", "1", "--replicas", "2",
    *(f"--max-num-seqs={n}" for n in range(40, 58)),
]  # fmt: skip


def started(out):
    code = "from sits.app.cli import main; import sys; sys.exit(main())"
    return subprocess.Popen(
        [sys.executable, "-c", code, "plan", "capacity", "-o", str(out), *SWEEP],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def members(session):
    """Processes of a session that are not dead yet."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session and fields[0] != "Z":
            found.append(int(stat.parent.name))
    return found


def lines_of(path):
    return [json.loads(line)["key"] for line in path.read_bytes().splitlines()[1:]]


def test_killed_it_goes_on_where_it_was_without_losing_or_doing_again(tmp_path):
    results = tmp_path / "results.jsonl"
    process = started(tmp_path)
    for line in process.stderr:  # progress is told at each quarter: one is done, three are not
        if re.search(r"simulating (9|1\d|2\d)/", line):
            break
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stderr.close()
    for pid in members(process.pid):  # its workers end with it
        try:
            handle = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        assert select.select([handle], [], [], 20)[0], f"process {pid} outlived its sweep"
        os.close(handle)
    kept = results.read_bytes()
    before = lines_of(results) if kept.endswith(b"\n") else None
    with results.open("ab") as file:
        file.write(b'{"key":"torn')  # as if it had been killed in the middle of a line
    again = run(tmp_path, *SWEEP, "--json")
    assert again.exit_code == 0, again.output
    after = lines_of(results)
    assert len(after) == len(set(after)) == 36
    if before is not None:
        assert 0 < len(before) < 36
        assert after[: len(before)] == before  # what was there is there, untouched
    whole = run(tmp_path / "whole", *SWEEP, "--jobs", "1", "--json")
    assert json.loads(whole.stdout)["points"] == json.loads(again.stdout)["points"]
