"""The line over a section says what its figures say, and nothing where they say nothing."""

import msgspec
import pytest

from app_pages import every_report
from app_synthetic import empty_report, synthetic_report, why_report
from sits.app.report import render_html, takeaways
from sits.app.report.ablation import says
from sits.app.report.page import clause, ranked_findings
from sits.app.report.tail import columns, tail
from sits.core.finding import Interval
from sits.core.report import Ablation, HeatMap, Series


def plain(text):
    return text.replace("\u00a0", " ")


def test_the_tail_names_what_carries_it_with_its_share():
    line = plain(takeaways.tail(synthetic_report()))
    total = sum(one.excess.value for one in synthetic_report().stages)
    queue = next(one.excess.value for one in synthetic_report().stages if one.stage == "engine_queue")
    assert f"({queue / total:.0%})".replace("%", " %") in line
    assert "951 ms" in line
    assert "waiting in the engine's queue" in line
    assert "in the slowest 1 % than in the other 99 %" in line


def test_a_tail_without_excess_or_without_a_leader_is_not_given_one():
    report = synthetic_report()
    none = tuple(msgspec.structs.replace(one, excess=Interval(0.0, 0.0, 0.0)) for one in report.stages)
    assert takeaways.tail(synthetic_report(stages=none)) == ""
    even = tuple(msgspec.structs.replace(one, excess=Interval(1.0, 0.5, 1.5)) for one in report.stages)
    assert takeaways.tail(synthetic_report(stages=even)).endswith("spread over many stages.")


def test_the_columns_of_an_investigation_carry_its_names():
    named = {"stages_columns": {"rest": "baseline", "tail": "loaded", "title": "What load adds"}}
    report = synthetic_report(facts=named)
    assert columns(report) == ("baseline", "loaded", "What load adds")
    assert tail(report).title == "What load adds"
    assert "in loaded than in baseline" in takeaways.tail(report)
    page = render_html(report)
    assert "slowest 1 %, with its interval" not in plain(page)
    assert ">What load adds</h2>" in page


def test_one_request_is_told_beside_the_other():
    report = synthetic_report()
    line = plain(takeaways.request(report.waterfalls, report))
    assert line.startswith(
        "Near P99 of TTFT: 2.31 s, of which 904 ms waiting in the engine's queue and 618 ms"
    )
    assert line.endswith("Near the median of TTFT: 38.6 ms and 172 ms there.")
    assert "there" not in takeaways.request(report.waterfalls[:1], report)


def test_the_plane_of_the_slowest_band_is_named_beside_the_fastest():
    assert plain(takeaways.matrix(synthetic_report().matrix)) == (
        "Among the slowest requests the framework answers for 58 % of the time; among the fastest for 33 %."
    )


@pytest.mark.parametrize(
    ("slow", "rest", "said"),
    [
        (((0.0, 1.0), (0.0, 9.0)), ((0.0, 90.0), (0.0, 10.0)), "90 % of the slow requests have 100 in or more; of the others 10 %."),
        (((9.0, 0.0), (1.0, 0.0)), ((10.0, 0.0), (90.0, 0.0)), "90 % of the slow requests have fewer than 100 in; of the others 10 %."),
        (((1.0, 9.0), (0.0, 0.0)), ((9.0, 1.0), (0.0, 0.0)), "90 % of the slow requests have 10 out or more; of the others 10 %."),
        (((5.0, 5.0), (5.0, 5.0)), ((5.0, 5.0), (5.0, 5.0)), "Slow requests have about the lengths of all others: length alone does not make a request slow."),
        (((0.0, 0.0), (0.0, 0.0)), ((5.0, 5.0), (5.0, 5.0)), ""),
    ],
)  # fmt: skip
def test_the_length_that_separates_best_is_found_on_either_axis(slow, rest, said):
    data = HeatMap("in", "out", (0.0, 100.0, 200.0), (0.0, 10.0, 20.0), slow, rest)
    assert plain(takeaways.spectrum(data)) == said


def fix(name, saved, needed):
    return Ablation(name, name, Interval(1.0, 0.5, 2.0), Interval(*saved), None, Interval(*needed))


def test_fixes_are_called_proven_only_where_an_interval_says_so():
    rows = (fix("one", (5.0, -1.0, 9.0), (1.0, -1.0, 2.0)), fix("two", (3.0, 1.0, 5.0), (-2.0, -3.0, -1.0)))
    line = plain(takeaways.ablation(rows))
    assert line == (
        "one saves most alone: 5 ms, though its interval reaches zero. "
        "1 of 2 fixes is proven to help, alone or among the others; 1 to cost time."
    )
    assert [says(row) for row in rows] == ["no proven effect", "helps alone, costs time beside the others"]
    assert (
        takeaways.ablation((fix("bad", (-5.0, -9.0, -1.0), (0.0, 0.0, 0.0)),))
        == "No fix saves anything alone."
    )
    assert takeaways.ablation(()) == ""


def test_the_share_of_time_over_the_objective_is_that_of_the_series():
    report = synthetic_report()

    def with_p99(side, *value):
        one = Series("ttft_p99", "ms", "gateway", tuple(map(float, range(len(value)))), value)
        return msgspec.structs.replace(side, series=(one,))

    both = synthetic_report(
        before=with_p99(report.before, 1300.0, 1300.0, 1100.0, 1200.0),
        after=with_p99(report.after, 900.0, 1000.0),
    )
    assert "before, it was over the objective 50 % of the time; after, 0 %." in plain(
        takeaways.timeline(both)
    )
    assert takeaways.timeline(empty_report()) == ""


def test_findings_without_a_figure_are_counted_apart():
    assert takeaways.findings(ranked_findings(synthetic_report())) == (
        "5 of 5 quantified causes have an interval above zero. 1 more finding without a figure."
    )
    assert takeaways.findings(()) == ""


def test_a_cause_is_named_by_the_clause_before_its_figures():
    assert (
        clause("Steps block the others; a tail request stands 1,838 ms behind them.")
        == "Steps block the others"
    )
    assert clause("w" * 200).endswith("…")
    assert len(clause("w" * 200)) <= 90


def test_the_head_tells_the_doubt_about_the_run_before():
    assert "reaches across the objective too" not in render_html(synthetic_report())
    report = synthetic_report()
    wide = msgspec.structs.replace(report.before.latency, p99=Interval(2312.0, 1100.0, 4000.0))
    page = render_html(synthetic_report(before=msgspec.structs.replace(report.before, latency=wide)))
    assert "reaches across the objective too (1,100 – 4,000 ms)" in page
    assert "paired 95 % interval 1,306 – 1,524 ms" in plain(page)


@pytest.mark.parametrize("name", every_report())
def test_no_line_holds_a_figure_that_is_none(name):
    report = every_report()[name]
    lines = [
        takeaways.tail(report), takeaways.matrix(report.matrix), takeaways.spectrum(report.spectrum),
        takeaways.ablation(report.ablation), takeaways.timeline(report), takeaways.latencies(report),
        takeaways.findings(report.findings),
    ]  # fmt: skip
    assert not [line for line in lines if "nan" in line.split() or "None" in line]


def test_a_report_without_after_promises_no_comparison():
    page = render_html(why_report())
    assert "both runs share" not in page
    assert takeaways.latencies(why_report()) == ""
