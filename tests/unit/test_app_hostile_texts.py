"""Texts that callers and engines made up, on every screen that shows them: nothing drives the terminal, forges a line, or tells a key."""

import json
import re

import pytest
from click.testing import CliRunner

from otlp_cases import request_id, row
from sits.app.cli import cli, run_command
from sits.app.replay import _show
from sits.app.report.summary import summary_text
from sits.bench.redecided import Move, Replayed
from sits.core.breakpoints import NAMES
from sits.core.config import digest, dump_fleet, load_fleet
from sits.core.recorded import Recorded, Routed, encode
from sits.core.units import SECOND
from sits.telemetry.logs import Log
from sits.telemetry.store import DuckStore
from sits.telemetry.tables import DECISIONS, LOGS, REQUESTS, SPANS, columns_of
from sits.world import RealWorld

SECRET = "sk-wr0ngwr0ngwr0ngwr0ng"
EVIL = f"m\x1b[2J\x1b]0;owned\x07\u202egnp\u2066\n[red]forged[/red] :smile: [/]\x9b31m\r\x7f {SECRET}"
"""Escapes of 7 and 8 bits, marks of direction, a new line, markup that opens and that closes nothing, an emoji's name, a key."""

FLEET = """
name: t
engines:
  - {kind: openai, name: a, url: "http://a", models: [m]}
"""
TRACE = "ab" * 16


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """A store in which every text that others choose is evil."""
    path = tmp_path_factory.mktemp("hostile") / "store"
    world, fleet = RealWorld(), load_fleet(FLEET, "f.yaml")
    now, name = world.wall_ns(), digest(fleet)[:12]
    texts = dict.fromkeys(("tenant", "model", "adapter", "engine", "arm", "detail"), EVIL)
    at = {point: nth + 1 for nth, point in enumerate(NAMES)}
    common = {"run_id": f"t-1-{name}", "wall_ns": now - SECOND, "trace_id": TRACE}
    rows = [row(i, at, **common, **texts) for i in range(40)]
    rows.append(
        row(
            41,
            at,
            **common,
            **texts | {"detail": f"engine {EVIL}"},
            outcome="failed",
            status=502,
        )
    )
    evil = (
        "tenant",
        "team",
        "key_id",
        "kind",
        "endpoint",
        "asked",
        "user",
        "session",
        "route",
        "arm",
        "cache",
        "detail",
    )
    routed = (Routed(0, 0, EVIL, EVIL, (EVIL,), (0,), 1, "a"),)
    record = Recorded(
        generation=name,
        id=request_id(0),
        **dict.fromkeys(evil, EVIL),
        headers={"x-evil": EVIL.encode("latin-1", "replace").decode("latin-1")},
        outcome="failed",
        status=502,
        reserved=((5, ((EVIL, 0, 3),)),),
        routed=routed,
    )
    lines: list[tuple[object, ...]] = []
    log = Log(world, None, "json", process="keeper")
    log.keep = lambda kept: lines.append(("r", *kept))
    log(f"request failed: {EVIL}", "error", trace_id=TRACE, engine=EVIL, model=EVIL, **{"x\x1b[2J\ny": EVIL})
    span = (
        "r",
        TRACE,
        "12" * 8,
        "",
        EVIL,
        EVIL,
        "SERVER",
        now - SECOND,
        now,
        f"ERROR: {EVIL}",
        json.dumps({"x\x1b[2J": EVIL}),
    )
    path.mkdir()
    with DuckStore(path, world=world) as opened:
        opened.append("requests", columns_of(REQUESTS, rows))
        opened.append(
            "decisions", columns_of(DECISIONS, [(f"t-1-{name}", request_id(0), now, encode(record))])
        )
        opened.append("logs", columns_of(LOGS, lines))
        opened.append("spans", columns_of(SPANS, [span]))
    (path / f"fleet-{name}.yaml").write_text(dump_fleet(fleet))
    return path


SCREENS = {
    "explain": ("explain", request_id(0)),
    "trace": ("trace", TRACE),
    "trace --all": ("trace", TRACE, "--all"),
    "logs": ("logs",),
    "logs timeouts": ("logs", "timeouts"),
    "logs timeouts --all": ("logs", "timeouts", "--all"),
    "why": ("why",),
    "replay": ("replay", "--quiet"),
}


def is_plain(text):
    return all(line.isprintable() for line in text.split("\n"))


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize("name", SCREENS)
def test_no_screen_is_driven_by_what_it_shows(store, name, as_json):
    more = ["--json"] if as_json else []
    result = CliRunner().invoke(cli, [*SCREENS[name], "--store", str(store), *more], standalone_mode=False)
    assert result.exception is None, result.exception
    assert is_plain(result.output)
    assert not re.search(r"^\[red\]forged", result.output, re.MULTILINE), "a text made a line of its own"
    if name in ("explain", "trace", "trace --all", "logs", "logs timeouts"):
        assert SECRET not in result.output
    if not as_json and name in ("explain", "trace --all", "logs", "logs timeouts"):
        shown = " ".join(result.output.split())
        assert r"\x1b[2J" in shown, "one still sees that it was there"
        assert "[red]forged[/red] :smile: [/]" in shown, "what looks like markup is text"
    if as_json and name != "logs":
        json.loads(result.output)


def test_a_replay_that_moves_requests_names_evil_engines_plainly(capsys):
    found = Replayed(
        records=2,
        identical=1,
        different=(EVIL,),
        stay=0,
        moves=(Move(EVIL, EVIL, 1),),
        refused=((EVIL, 1),),
        why_not=EVIL,
    )
    _show(found, compared=True)
    said = capsys.readouterr().out
    assert is_plain(said)
    assert SECRET not in said
    assert len(said.splitlines()) == 11


@pytest.mark.parametrize("asked", [EVIL, "\x1b[2J\u202e"])
def test_errors_that_name_what_was_asked_are_one_plain_line(store, asked, capsys):
    for command in ("explain", "trace"):
        argv = [command, asked, "--store", str(store)]
        assert run_command(lambda: cli.main(args=argv, standalone_mode=False)) == 2  # noqa: B023
        said = capsys.readouterr().err
        assert is_plain(said)
        assert said.count("\n") == 1


def test_a_report_is_plain_whatever_its_account_says(store):
    from sits.bench.why import why

    report = why(store, 900 * SECOND, RealWorld())
    assert is_plain(summary_text(report))
