"""The screen of one trace, of whatever others sent: any shape, any size, any text."""

import io
import re

import pytest
from rich.cells import cell_len
from rich.console import Console

from otlp_cases import MS, WALL, request_id, requests, row, sighting, sightings, whole
from sits.app.trace.finding import Found, Other, find, prefix_of
from sits.app.trace.screen import LINES_MAX, show
from sits.telemetry.queries import QUERIES
from sits.telemetry.store import DuckStore
from sits.world import RealWorld


def span(nth, parent, name="s", start=0, status=""):
    return Other(
        span_id=f"{nth:016x}", parent_id="" if parent is None else f"{parent:016x}", service="svc", name=name,
        kind="internal", start_wall_ns=10**18 + start, ms=1.0, status=status, attributes={},
    )  # fmt: skip


def screen(spans, width=80, **how):
    out = io.StringIO()
    show(Found("a" * 32, (), tuple(spans), (), ()), Console(file=out, width=width, highlight=False), **how)
    return out.getvalue()


def test_a_chain_of_ten_thousand_calls_is_bounded_and_says_how_many_more():
    spans = [span(i, i - 1 if i else None, start=i) for i in range(10_000)]
    said = screen(spans)
    assert len(said.splitlines()) < LINES_MAX + 10
    assert f"and {10_000 - LINES_MAX:,} more" in said
    assert screen(spans, every=True).count("(svc)") == 10_000


def test_parents_in_a_circle_themselves_and_nobody_are_each_drawn_once():
    spans = [
        span(1, 2, "one"),
        span(2, 1, "two"),
        span(3, 3, "own"),
        span(4, 99, "lost"),
        span(5, 1, "leaf", start=-(10**9)),
    ]
    said = screen(spans)
    assert [said.count(f"{name} (svc)") for name in ("one", "two", "own", "lost", "leaf")] == [1] * 5


@pytest.mark.parametrize("width", [30, 40, 60, 80, 100, 200])
def test_numbers_and_what_went_wrong_are_there_however_narrow_it_is(width):
    wrong = "ERROR " + "x" * 40
    spans = [span(1, None, "answer a question of somebody"), span(2, 1, "漢" * 30, start=MS, status=wrong)]
    said = screen(spans, width)
    lines = said.splitlines()
    assert max(cell_len(line) for line in lines) <= width
    assert [line for line in lines if "0.0" in line and "1.00" in line]
    assert [line for line in lines if "1.0 " in line and "1.00" in line and "漢" in line]
    assert "".join(said.split()).count("x") >= 40, "a note is whole"
    assert ("█" in said) is (width >= 60)


@pytest.mark.parametrize("width", [40, 80, 200])
def test_no_text_of_others_drives_the_terminal(width):
    evil = "x\x1b[2J\u202egnp\n[red]forged[/red]\x9b31m"
    said = screen([span(1, None, evil), span(2, 1, evil, status=f"ERROR: {evil}")], width)
    assert all(line.isprintable() and len(line) <= width for line in said.splitlines())


def test_a_traceparent_is_taken_whole_or_without_its_flags():
    digits = "4bf92f3577b34da6a3ce929d0e0e4736"
    for asked in (
        f"00-{digits}-00f067aa0ba902b7-01",
        f"00-{digits.upper()}-00F067AA0BA902B7",
        f" {digits}\n",
    ):
        assert prefix_of(asked) == digits


def test_what_an_engine_saw_is_merged_among_more_requests_than_are_compared(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "sits.telemetry.store.QUERIES",
        {**QUERIES, "requests_around": QUERIES["requests_around"].replace("LIMIT 5000", "LIMIT 3")},
    )
    seen = {"engine_recv": WALL + 6 * MS, "scheduled": WALL + 50 * MS}
    with DuckStore(tmp_path, world=RealWorld()) as store:
        store.append("requests", requests(*(row(i, whole()) for i in range(10))))
        store.append("sightings", sightings(*(sighting(request_id(i), seen) for i in range(10))))
    found = find(tmp_path, request_id(7), RealWorld())
    assert [one.id for one in found.requests] == [request_id(7)]
    assert found.sightings[0].merged.startswith("merged into")


def test_no_color_turns_colour_off_on_a_terminal(monkeypatch):
    def on_terminal():
        out = io.StringIO()
        console = Console(file=out, width=80, force_terminal=True, color_system="truecolor", highlight=False)
        show(Found("a" * 32, (), (span(1, None), span(2, 1, status="ERROR")), (), ()), console)
        return out.getvalue()

    coloured = re.compile(r"\x1b\[[0-9;]*(?:3[0-9]|9[0-7]|38;)[0-9;]*m")
    assert coloured.search(on_terminal())
    monkeypatch.setenv("NO_COLOR", "1")
    assert not coloured.search(on_terminal())
