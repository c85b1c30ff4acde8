"""`sitsctl trace`, `logs` and `explain` where the store, the id or the line is not what it should be: they say it, and go on."""

import io
import json

import pytest
from click.testing import CliRunner
from rich.console import Console

from sits.app.cli import cli
from sits.app.trace.finding import Found, Sighting
from sits.app.trace.screen import LINES_MAX, REQUESTS_MAX, show
from sits.core.errors import CallerError, UnknownError
from sits.telemetry.logs import facts_of, json_of
from sits.telemetry.store import DuckStore
from sits.telemetry.tables import LOGS, SPANS, columns_of
from sits.world import RealWorld

TRACE = "ab" * 16
ODD = {
    "no JSON": "half a li",
    "a number": "7",
    "a list": '["event"]',
    "nothing": "",
    "an empty object": "{}",
    "other kinds": '{"time":null,"level":5,"event":["x"],"process":{"a":1},"stack":7}',
    "no letters": '{"event":"\\ud800 \\u001b[2J","level":"error"}',
    "deep": "[" * 5_000,
}


def row_of(line, event="said"):
    return ("r", RealWorld().wall_ns(), "warning", "keeper", TRACE, "", event, line)


def span_of(nth, attributes):
    return ("r", TRACE, f"{nth:016x}", "", "svc", "s", "INTERNAL", 1, 2, "", attributes)


@pytest.fixture
def store(tmp_path):
    with DuckStore(tmp_path / "store") as opened:
        opened.append("logs", columns_of(LOGS, [row_of(line) for line in ODD.values()]))
        opened.append("spans", columns_of(SPANS, [span_of(*pair) for pair in enumerate(ODD.values())]))
    return tmp_path / "store"


def run(*words):
    return CliRunner().invoke(cli, [str(word) for word in words], standalone_mode=False)


@pytest.mark.parametrize("kind", ODD)
def test_a_line_that_is_none_is_an_object_with_what_the_row_knows(kind):
    row = dict(zip(LOGS, row_of(ODD[kind]), strict=True))
    facts, again = facts_of(row), json.loads(json_of(row))
    assert {"time", "level", "event"} <= facts.keys()
    assert isinstance(again, dict)
    if kind in ("no JSON", "a number", "a list", "nothing", "deep", "an empty object"):
        assert (facts["event"], facts["level"], facts["trace_id"]) == ("said", "warning", TRACE)


@pytest.mark.parametrize("command", ["logs", "logs --json", "trace", "trace --json"])
def test_lines_that_are_none_are_shown_among_the_others(store, command):
    name, *options = command.split()
    told = run(name, *([TRACE] if name == "trace" else []), *options, "--store", store)
    assert told.exception is None, told.exception
    assert "\x1b" not in told.output
    if command == "logs --json":
        assert [type(json.loads(line)) for line in told.stdout.splitlines()] == [dict] * len(ODD)
    elif command == "trace --json":
        assert {type(span["attributes"]) for span in json.loads(told.stdout)["spans"]} == {dict}
    elif command == "logs":
        assert len(told.stdout.splitlines()) >= len(ODD)


def test_a_file_that_is_none_is_named_in_one_line(store):
    (part,) = (store / "logs").rglob("*.parquet")
    part.write_bytes(b"half a file")
    told = run("trace", TRACE, "--store", store)
    assert part.name in str(told.exception)
    assert "moved out of the store" in str(told.exception)
    assert "SELECT" not in str(told.exception)
    assert "\n" not in str(told.exception)


@pytest.mark.parametrize("command", [("logs",), ("logs", "timeouts")], ids=" ".join)
def test_silence_is_told_with_what_the_store_has(tmp_path, command):
    told = run(*command, "--store", tmp_path)
    assert told.return_value == 0
    assert f"{tmp_path} has no request yet" in told.stderr
    machine = run(*command, "--json", "--store", tmp_path)
    assert machine.stderr == ""


@pytest.mark.parametrize("command", ["trace", "explain"])
@pytest.mark.parametrize(
    "asked", ["", " ", "abc", "%", "'; DROP TABLE requests", "\x1b[2J", "\udcff", "x" * 10_000], ids=ascii
)
def test_what_is_no_id_is_refused_in_one_short_line(store, command, asked):
    told = run(command, "--store", store, "--", asked)
    assert isinstance(told.exception, CallerError | UnknownError)
    assert len(str(told.exception)) < 400
    assert str(told.exception).encode()


def test_what_is_cut_says_how_much():
    logs = tuple({"event": f"e{i}"} for i in range(LINES_MAX + 3))
    seen = tuple(Sighting(f"s{i}", "", (), "") for i in range(REQUESTS_MAX + 2))
    out = io.StringIO()
    show(Found(TRACE, (), (), seen, logs), Console(file=out, width=80))
    assert "and 3 more lines; --all shows them" in out.getvalue()
    assert "and 2 more sightings; --all shows them" in out.getvalue()
    whole = io.StringIO()
    show(Found(TRACE, (), (), seen, logs), Console(file=whole, width=80), every=True)
    assert "more" not in whole.getvalue()
    assert f"e{LINES_MAX + 2}" in whole.getvalue()
