"""What changed, on the board: lines about the gateway and its engines, none about requests."""

import json

import pytest

from sits.app.board.changes import LISTED, READ_MAX, changes
from sits.app.board.window import Look, Only
from sits.telemetry.store import DuckStore
from sits.telemetry.tables import LOGS, columns_of

NOW_NS = 1_796_000_000 * 10**9
MINUTE_NS = 60 * 10**9


def line(event, ago_ns=MINUTE_NS, level="info", process="supervisor", request="", text=None, **more):
    told = json.dumps({"event": event, **more}) if text is None else text
    return ("r", NOW_NS - ago_ns, level, process, request, request, event, told)


def told(lines, look=None):
    with DuckStore() as store:
        store.append("logs", columns_of(LOGS, lines))
        return changes(store, None, look or Look(), NOW_NS)


def texts(found):
    return [one["text"] for one in found["changes"]]


def test_changes_are_told_newest_first_with_their_engine_and_requests_are_not():
    found = told(
        [
            line("generation 2 serves", 5 * MINUTE_NS),
            line("breaker opened", 4 * MINUTE_NS, "warning", "keeper", engine="e0"),
            line("shift: halted at 25 %: its P99 is worse", 3 * MINUTE_NS, process="keeper"),
            line("request failed: engine_timeout", 2 * MINUTE_NS, "error", "keeper", request="abc", engine="e0"),
            line("attempt failed: engine_died", 2 * MINUTE_NS, "error", "worker-0", request="abc", engine="e0"),
            line("fleet.yaml is refused:", MINUTE_NS, "error"),
            line("  engines[0].url: is no URL", MINUTE_NS, "error"),
            line("generation 1 serves", 16 * MINUTE_NS),
        ]
    )  # fmt: skip
    assert texts(found) == [
        "fleet.yaml is refused",
        "shift: halted at 25 %: its P99 is worse",
        "breaker opened: e0",
        "generation 2 serves",
    ]
    assert found["changes"][0] == {"at_ms": (NOW_NS - MINUTE_NS) // 10**6, "level": "error", "text": "fleet.yaml is refused"}  # fmt: skip
    assert (found["more"], found["whole"]) == (0, True)


def test_with_an_engine_chosen_what_is_said_of_another_is_left_out():
    lines = [line("breaker opened", process="keeper", engine=name) for name in ("e0", "e1")]
    found = told([*lines, line("generation 2 serves")], Look(only=Only(engine="e1")))
    assert sorted(texts(found)) == ["breaker opened: e1", "generation 2 serves"]


@pytest.mark.parametrize("text", ["", "no JSON", "[]", '{"engine": 7}', '{"engine": null}', '{"engine":"e0"'])
def test_a_line_of_any_form_is_told(text):
    assert texts(told([line("breaker opened", text=text)])) == ["breaker opened"]


@pytest.mark.parametrize("n", [0, LISTED, LISTED + 1, READ_MAX, READ_MAX + 7])
def test_many_are_counted_and_the_newest_listed(n):
    found = told([line(f"generation {i} serves", (i + 1) * 10**9) for i in range(n)])
    assert texts(found) == [f"generation {i} serves" for i in range(min(n, LISTED))]
    assert found["more"] == max(0, min(n, READ_MAX) - LISTED)
    assert found["whole"] == (n <= READ_MAX)
