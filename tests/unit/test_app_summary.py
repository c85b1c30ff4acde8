"""The terminal summary: plain unless asked, within its width, safe to print."""

import pytest

from app_pages import every_report, hostile
from app_synthetic import empty_report, synthetic_report, why_report
from sits.app.report import summary_text

REPORTS = every_report()


@pytest.mark.parametrize("name", [name for name in REPORTS if name != "long words"])
def test_every_summary_fits_and_is_plain(name):
    text = summary_text(REPORTS[name], width=100)
    assert text.endswith("\n")
    assert "\x1b" not in text
    assert [line for line in text.splitlines() if line != line.rstrip()] == []


def test_the_usual_summary_stays_within_its_width():
    for report in (synthetic_report(), why_report(), empty_report()):
        assert max(map(len, summary_text(report, width=100).splitlines())) <= 100


def test_colour_changes_no_other_character():
    import re

    coloured = summary_text(synthetic_report(), colour=True)
    assert "\x1b[" in coloured
    assert re.sub(r"\x1b\[\d+m", "", coloured) == summary_text(synthetic_report())


def test_control_characters_of_a_report_never_reach_the_terminal():
    attack = "\x1b[2J\x07\r\u202e{}"
    text = summary_text(hostile(synthetic_report(), attack=attack))
    assert not set(text) & set("\x1b\x07\r\u202e")
    assert "?[2J" in text


def test_it_says_the_verdict_and_the_account():
    text = summary_text(synthetic_report())
    assert "Objective met: even the upper bound, 941 ms, is under 1,200 ms." in text
    assert "before: 20,000 offered = 19,992 completed + 3 cancelled + 5 refused" in text
    assert "seed 1, 10 repetitions" in text
    assert "1 repetition," in summary_text(why_report())
