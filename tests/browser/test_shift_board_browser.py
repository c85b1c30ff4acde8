"""The shift board in a real browser: every state of it fits a phone and a desk, labels do not collide, the keyboard reaches it."""

import json
import re
import shutil
import subprocess

import pytest
from test_report_browser import CHROMIUM, FLAGS, opened

from shift_cases import fleet_of
from sits.app.shift.board import page, state_of
from sits.app.shift.book import Book, Event, plan_name
from sits.core.units import SECOND
from sits.policy.shift import State, advanced, decide, observe, plan_of
from sits.policy.tally import tally
from sits.world import stream_generator

WIDTHS = (390, 1440)
DRIVE = """
const found = {};
const chart = document.getElementById('chart'), reading = () => document.getElementById('reading').textContent;
chart.focus();
found.focused = document.activeElement === chart;
const press = key => chart.dispatchEvent(new KeyboardEvent('keydown', {key, bubbles: true, cancelable: true}));
found.now = reading();
press('Home'); found.first = reading();
press('ArrowRight'); found.second = reading();
press('End'); press('Escape'); found.again = reading();
found.reachable = [...document.querySelectorAll('a,summary,[tabindex]')].map(n => n.id || n.tagName.toLowerCase());
found.scripts = document.querySelectorAll('img,link[href^=http],script[src]').length;
document.body.append(Object.assign(document.createElement('pre'), {id: 'result', textContent: JSON.stringify(found)}));
"""

pytestmark = [pytest.mark.browser, pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")]


def book_of(fleet, looks, slow=0.0, status="running"):
    """The book of a shift after so many looks; `slow` of the arm's requests miss the objective from its second step on."""
    plan, dice = plan_of(fleet), stream_generator(3, "board")
    book = Book(plan=plan_name(fleet), state=State(), history=[], curve=[])
    book.note(Event(wall_ns=1_764_500_000 * SECOND, what="started", share=0.1, why="by order"))
    for _ in range(looks):
        share = plan.steps[book.state.step]
        rows = []
        for _ in range(200):
            mine = dice.random() < share
            missed = mine and book.state.step > 0 and dice.random() < slow
            rows.append(
                (
                    plan.arm if mine else plan.others[0],
                    "completed",
                    2_000_000_000 if missed else int(dice.integers(2e8, 9e8)),
                )
            )
        book.state = observe(plan, book.state, tally(rows, plan.objective_ns), SECOND)
        book.watched_ns += SECOND
        decision = decide(plan, book.state)
        book.draw((book.watched_ns / SECOND, book.state.step, *decision.reasons["evidence"].values()))
        book.state.why = decision.choice
        if decision.outcome == "advance":
            book.state = advanced(book.state)
            book.note(
                Event(
                    wall_ns=1_764_500_000 * SECOND,
                    what="advanced",
                    share=plan.steps[book.state.step],
                    why="sound",
                )
            )
        elif decision.outcome in ("halt", "complete"):
            status = "rolled_back" if decision.outcome == "halt" else "complete"
            break
    book.state.status = status
    return book


def every_page():
    fleet = fleet_of()
    long = fleet_of(steps=tuple(i / 20 for i in range(1, 21)), hold=2 * SECOND)
    states = {
        "none": state_of(fleet, None),
        "begun": state_of(fleet, book_of(fleet, 1)),
        "running": state_of(fleet, book_of(fleet, 15)),
        "rolled back": state_of(fleet, book_of(fleet, 60, slow=0.2)),
        "complete": state_of(fleet, book_of(fleet, 60)),
        "many steps": state_of(long, book_of(long, 60)),
    }
    assert states["rolled back"]["status"] == "rolled_back"
    assert states["complete"]["status"] == "complete"
    return {name: page(told).decode() for name, told in states.items()}


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    return opened(tmp_path_factory.mktemp("board"), every_page(), WIDTHS)


def test_no_state_of_the_board_overflows_sideways(measured):
    found, _ = measured
    assert len(found) == 6 * len(WIDTHS)
    assert {(one["name"], one["width"]): one["wide"][:3] for one in found if one["wide"]} == {}
    assert [(one["name"], one["scroll"]) for one in found if one["scroll"] > one["width"]] == []


def test_no_labels_collide_and_none_is_too_small(measured):
    found, _ = measured
    assert {(one["name"], one["width"]): one["met"][:5] for one in found if one["met"]} == {}
    assert {(one["name"], one["width"]): one["smallest"] for one in found if one["smallest"] < 9} == {}


def test_the_console_stays_silent(measured):
    assert measured[1] == []


def test_the_board_follows_the_colour_scheme(tmp_path):
    pages = {"begun": every_page()["begun"]}
    (dark,), _ = opened(tmp_path, pages, (390,), "--blink-settings=preferredColorScheme=0")
    assert dark["dark"]
    assert dark["ink"] == "rgb(231, 234, 238)"


def test_the_keyboard_reaches_the_chart_and_walks_through_it(tmp_path):
    driven = every_page()["running"].replace(
        "</html>", f"<script>addEventListener('load', () => {{{DRIVE}}})</script></html>"
    )
    path = tmp_path / "board.html"
    path.write_text(driven, encoding="utf-8")
    shown = subprocess.run(
        [shutil.which(CHROMIUM), *FLAGS, f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", path.as_uri()],
        capture_output=True, text=True, timeout=110, check=False,
    )  # fmt: skip
    found = json.loads(re.search(r'<pre id="result">(.*?)</pre>', shown.stdout, re.DOTALL)[1])
    assert found["focused"]
    assert found["now"].startswith("Now, step of 50 %:")
    assert found["first"].startswith("At 1 s, step of 10 %:")
    assert found["second"].startswith("At 2 s, step of 10 %:")
    assert found["again"] == found["now"]
    assert "chart" in found["reachable"]
    assert "summary" in found["reachable"]
    assert found["scripts"] == 0
