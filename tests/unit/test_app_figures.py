"""Figures and scales as people read them, and progress where nobody looks."""

import doctest
import io
from itertools import pairwise

import pytest

from sits.app import drawing
from sits.app.report import grouping, numbers, page, stages, summary, svg, takeaways, timeline, verdict
from sits.app.terminal import Progress


@pytest.mark.parametrize(
    "module", [drawing, grouping, numbers, page, stages, summary, svg, takeaways, timeline, verdict]
)
def test_examples_in_docstrings_hold(module):
    result = doctest.testmod(module)
    assert result.attempted > 0
    assert result.failed == 0


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0.0, "0"), (1e-9, "1e-09"), (0.05, "0.05"), (9.999, "10"), (99.96, "100"), (123_456.7, "123,457"), (1e12, "1e+12"), (-0.5, "−0.5")],
)  # fmt: skip
def test_numbers(value, shown):
    assert numbers.number(value) == shown


def test_a_small_figure_of_a_column_is_never_shown_as_nothing():
    assert numbers.fixed(0.04, 1) == "<0.1"
    assert numbers.fixed(-0.04, 1) == ">−0.1"
    assert numbers.fixed(0.06, 1) == "0.1"
    assert numbers.fixed(0.0, 1) == "0.0"
    assert numbers.percent(-0.0001) == f"−0.0{numbers.NO_BREAK}%"


@pytest.mark.parametrize(
    ("low", "high"), [(0, 1), (0, 2400), (-3, 7), (0, 1e-7), (0, 4e12), (5, 5), (99.0, 101.0)]
)
def test_ticks_are_round_inside_the_axis_and_few(low, high):
    ticks = svg.nice_ticks(low, high)
    assert 1 <= len(ticks) <= 11
    assert all(low - 1e-9 <= tick <= high + 1e-9 for tick in ticks)
    steps = [b - a for a, b in pairwise(ticks)]
    assert all(step == pytest.approx(steps[0]) for step in steps)


def test_an_axis_of_one_value_is_still_an_axis():
    scale = svg.covering([0.0])
    assert scale.high > scale.low
    assert svg.Scale(3.0, 3.0).share(3.0) == 0.0
    assert svg.covering([-5.0, 2.0]).low < -5.0


def test_a_marked_value_keeps_the_ticks_away():
    drawn = svg.axis(svg.Scale(0.0, 2500.0), marked=[(1200.0, "1,200 objective")])
    assert "1,200 objective" in drawn
    assert ">1,000<" not in drawn
    assert ">2,000<" in drawn


def test_attributes_and_texts_are_escaped():
    assert svg.element("g", id='"><b') == '<g id="&quot;&gt;&lt;b"/>'
    assert svg.text("<b>") == "<text>&lt;b&gt;</text>"


def test_progress_in_a_file_is_sparse():
    stream = io.StringIO()
    with Progress(stream) as progress:
        for done in range(1, 1001):
            progress(f"simulating variant {done % 14}", done, 1000)
    lines = stream.getvalue().splitlines()
    assert 4 <= len(lines) <= 6
    assert lines[-1].endswith("1000/1000")


def test_progress_without_a_count_prints_each_phase_once():
    stream = io.StringIO()
    with Progress(stream) as progress:
        for phase in ("warm-up", "warm-up", "baseline", "loaded"):
            progress(phase)
    assert stream.getvalue() == "warm-up\nbaseline\nloaded\n"


def test_quiet_progress_says_nothing():
    stream = io.StringIO()
    with Progress(stream, quiet=True) as progress:
        progress("x", 1, 2)
    assert stream.getvalue() == ""


def test_a_live_line_leaves_no_trace_on_a_terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")  # on a dumb terminal there is no live line

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream = Terminal()
    with Progress(stream) as progress:
        progress("simulating [bold]", 1, 2)
        progress("simulating", 2, 2)
    assert "[bold]" in stream.getvalue() or "simulating" in stream.getvalue()
