"""The page: well-formed, self-contained, escaped, and honest about what it was not given."""

import math
import re

import msgspec
import pytest

from app_pages import FETCHING, Page, every_report, hostile
from app_synthetic import empty_report, synthetic_report, why_report
from sits.app.report import render_html, report_json, summary_text
from sits.app.report.ablation import ablation
from sits.app.report.matrix import matrix
from sits.app.report.page import ranked_findings
from sits.app.report.tail import tail
from sits.app.report.timeline import COLUMNS, thinned, timeline
from sits.app.report.verdict import account, state, verdict
from sits.app.report.waterfall import pairs
from sits.core.errors import BugError
from sits.core.finding import Finding, Interval
from sits.core.report import Account, Bar, Report, Series, Waterfall

REPORTS = every_report()


@pytest.mark.parametrize("name", REPORTS)
def test_every_page_is_well_formed_and_fetches_nothing(name):
    html = render_html(REPORTS[name])
    page = Page(html)
    assert page.problems == []
    assert "script" not in page.tags
    assert "<script" not in html.lower()
    fetched = [
        (tag, key, value)
        for tag, key, value in page.attributes
        if key in FETCHING and not value.startswith("#")
    ]
    assert fetched == []
    assert not [key for _, key, _ in page.attributes if key.startswith("on")]
    style = "".join(re.findall(r"<style>(.*?)</style>", html, re.DOTALL))
    assert "@import" not in style
    assert [found for found in re.findall(r"url\((.*?)\)", style) if not found.startswith("#")] == []
    ids = [value for _, key, value in page.attributes if key == "id"]
    assert len(ids) == len(set(ids))
    links = [value[1:] for tag, key, value in page.attributes if tag == "a" and key == "href"]
    assert set(links) <= set(ids)


@pytest.mark.parametrize("name", REPORTS)
def test_no_drawing_holds_a_number_that_is_none(name):
    html = render_html(REPORTS[name])
    drawn = [value for _, key, value in Page(html).attributes if key in {"x", "y", "width", "height", "cx", "cy", "x1", "x2", "y1", "y2", "points", "viewbox"}]  # fmt: skip
    assert not [value for value in drawn if re.search("nan|inf|none", value, re.IGNORECASE)]
    widths = [value for _, key, value in Page(html).attributes if key in {"width", "height"}]
    assert not [value for value in widths if value.startswith("-")]
    shares = [float(value[:-1]) for value in drawn if value.endswith("%")]
    assert all(0 <= share <= 100 for share in shares)


def test_the_check_for_balance_can_fail():
    assert Page("<p><b>x</p>").problems
    assert Page("<p>x").problems
    assert Page("<p>x<br></p>").problems == []


def test_hostile_texts_are_shown_as_texts():
    page = Page(render_html(hostile(synthetic_report())))
    assert "<script>alert(1)</script>" in page.text
    assert "{{7*7}}" in page.text
    assert "49" not in page.text.split("{{7*7}}")[0]


def test_the_page_says_what_the_report_says():
    text = Page(render_html(synthetic_report())).text
    for words in (
        "P99 time to first token fell from 2,312 ms to 897 ms",
        "2,194 – 2,430",
        "853 – 941",
        "Objective met: even the upper bound, 941 ms, is under 1,200 ms.",
        "20,000 offered = 19,992 completed + 3 cancelled + 5 refused",
        "5,211 ms after the first token not drawn",
        "unattributed (kv_ready..inputs_copied)",
        "The single savings sum to 1,373 ms; together the fixes save 1,415 ms.",
        "Could not be decided: only 11 steps",
        "10 paired repetitions",
        "seed 1",
    ):
        assert words in text, words


@pytest.mark.parametrize(
    ("absent", "heading"),
    [
        ({"waterfalls": ()}, "Where the time went in one request"),
        ({"stages": ()}, "What makes the tail"),
        ({"matrix": None}, "Which plane answers for the time"),
        ({"spectrum": None}, "Which requests are slow"),
        ({"findings": ()}, "Findings"),
        ({"ablation": ()}, "What each fix buys"),
        ({"changes": ()}, "Configuration changes"),
        ({"notes": ()}, "Definitions, assumptions, doubts"),
    ],
)
def test_a_section_without_data_is_not_there(absent, heading):
    assert f">{heading}</h2>" in render_html(synthetic_report())
    page = render_html(synthetic_report(**absent))
    assert f">{heading}</h2>" not in page
    assert Page(page).problems == []


def test_a_run_without_change_has_no_after():
    text = Page(render_html(why_report())).text
    assert "P99 after" not in text
    assert "What each fix buys" not in text
    assert "proposed change" in text
    assert "change made" not in text
    assert "Objective missed: the lower bound, 2,194 ms, is over 1,200 ms." in text


def test_a_run_that_saw_nothing_claims_nothing():
    text = Page(render_html(empty_report())).text
    assert "No request was measured" in text
    assert "0.0" not in text
    assert state(empty_report()) == "unproven"


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_figure_that_is_no_number_is_refused_by_every_view(bad):
    report = synthetic_report(matrix=None, ablation=())
    stages = (msgspec.structs.replace(report.stages[0], excess=Interval(bad, 0.0, 1.0)), *report.stages[1:])
    report = synthetic_report(stages=stages)
    for view in (render_html, report_json, summary_text):
        with pytest.raises(BugError, match=r"report\.stages\[0\]\.excess\.value") as caught:
            view(report)
        assert caught.value.field == "report.stages[0].excess.value"


def test_json_is_stable_sorted_and_comes_back():
    first, second = report_json(synthetic_report()), report_json(synthetic_report())
    assert first == second
    assert first.endswith(b"}\n")
    assert first.count(b"\n") == 1
    back = msgspec.json.decode(first, type=Report)
    assert back.before.fleet == synthetic_report().before.fleet
    assert back.headline == synthetic_report().headline
    assert report_json(back) == first
    keys = list(msgspec.json.decode(first))
    assert keys == sorted(keys)


def test_json_forgets_the_last_bits_of_a_sum():
    noisy = 0.1 + 0.2
    assert noisy != 0.3
    assert report_json(synthetic_report(objective_ms=noisy)) == report_json(
        synthetic_report(objective_ms=0.3)
    )
    assert report_json(synthetic_report(objective_ms=1200.0001)) != report_json(synthetic_report())
    assert report_json(synthetic_report(objective_ms=-0.0)) == report_json(synthetic_report(objective_ms=0.0))


@pytest.mark.parametrize(
    ("p99", "verified", "expected"),
    [
        (Interval(897, 853, 941), True, "met"),
        (Interval(897, 853, 1200), True, "met"),
        (Interval(897, 853, 1201), True, "unproven"),
        (Interval(897, 853, 941), False, "unproven"),
        (Interval(897, 853, 941), None, "unproven"),  # one repetition: a changed run must be verified
        (Interval(1300, 1201, 1400), False, "missed"),
        (Interval(1300, 1200, 1400), False, "unproven"),
    ],
)
def test_the_verdict_is_what_the_interval_says(p99, verified, expected):
    report = synthetic_report()
    after = msgspec.structs.replace(
        report.after, latency=msgspec.structs.replace(report.after.latency, p99=p99)
    )
    assert state(msgspec.structs.replace(report, after=after, verified=verified)) == expected


@pytest.mark.parametrize(("verified", "says"), [(None, "one repetition"), (False, "got no answer")])
def test_a_changed_run_under_the_objective_and_not_verified_says_why(verified, says):
    report = synthetic_report(verified=verified)
    assert report.after.latency.p99.high < report.objective_ms
    assert says in verdict(report).sentence


def test_a_run_that_was_only_looked_at_is_judged_by_its_interval():
    report = synthetic_report(after=None, saved=None, verified=None)
    calm = msgspec.structs.replace(report.before.latency, p99=Interval(897, 853, 941))
    before = msgspec.structs.replace(report.before, latency=calm)
    assert state(msgspec.structs.replace(report, before=before)) == "met"


@pytest.mark.parametrize(("n", "expected"), [(298, "unproven"), (299, "met")])
def test_few_requests_prove_no_p99(n, expected):
    report = synthetic_report()
    latency = msgspec.structs.replace(report.after.latency, n=n, p99=Interval(897, 853, 941))
    few = synthetic_report(after=msgspec.structs.replace(report.after, latency=latency), verified=True)
    assert state(few) == expected
    told = "Not proven: an upper bound of P99 needs 299 requests or more, and these are 298 requests."
    assert (verdict(few).sentence == told) == (n == 298)


def test_an_objective_for_another_metric_is_not_judged():
    report = why_report()
    other = synthetic_report(after=None, before=report.before, objective_metric="e2e")
    assert state(other) == "unproven"
    assert verdict(other).sentence == "Not judged: the objective of 1,200 ms is for the time to first token."


def test_the_account_names_what_does_not_add_up():
    assert account(Account(10, 8, 0, 0, 1, 0)) == "10 offered = 8 completed + 1 refused (1 unaccounted for)"
    assert account(Account(0, 0, 0, 0, 0, 0)) == "0 offered = 0 completed"


def test_waterfall_rows_follow_both_requests():
    (pair,) = pairs(synthetic_report())
    words = [row.words for row in pair.rows]
    assert words.index("engine queue") < words.index("KV restore") < words.index("prefill")
    folded = [row.words for row in pair.folded]
    assert folded.index("enqueue") < folded.index("batch build") < folded.index("graph choose")
    assert "decode" not in words + folded
    row = {row.words: row for row in (*pair.rows, *pair.folded)}
    assert row["batch build"].figures == ("", "1.9")
    assert row["unattributed (kv_ready..inputs_copied)"].layer == "unattributed"
    assert pair.totals == ("2,310.2", "291.2")


def test_the_slower_request_is_drawn_first_whatever_the_order():
    quick = Waterfall("q", "quick", 5.0, (Bar("parse", "http", 0.0, 5.0),))
    slow = Waterfall("s", "slow", 50.0, (Bar("parse", "http", 0.0, 50.0),))
    (pair,) = pairs(synthetic_report(waterfalls=(quick, slow)))
    assert [one.label for one in pair.requests] == ["slow", "quick"]
    both = pairs(synthetic_report(waterfalls=(quick, slow, quick)))
    assert [len(one.requests) for one in both] == [2, 1]


def test_decode_is_drawn_where_the_objective_is_end_to_end():
    (pair,) = pairs(synthetic_report(objective_metric="e2e", objective_ms=8000.0))
    assert "decode" in [row.words for row in pair.rows]
    assert pair.leftovers == ("", "")


def test_tail_rows_and_folded_rows_hold_every_stage():
    report = synthetic_report()
    view = tail(report)
    assert len(view.rows) + len(view.folded) == len(report.stages)
    assert [row.words for row in view.rows][:2] == ["engine queue", "prefill"]
    total = sum(one.excess.value for one in report.stages)
    assert view.total_excess == f"+{total:,.1f}"


def test_a_saving_that_may_be_nothing_is_marked_unsure():
    report = synthetic_report()
    rows = list(report.ablation)
    rows[1] = msgspec.structs.replace(rows[1], saved=Interval(3.0, -2.0, 8.0))
    view = ablation(synthetic_report(ablation=tuple(rows)))
    assert [row.title for row in view.rows if row.unsure] == [rows[1].title]
    (row,) = (row for row in view.rows if row.unsure)
    assert "unsure" in row.lane
    assert row.says == "missed when left out"
    assert not [row.title for row in view.rows if "unsure" in row.lane and not row.unsure]


def test_findings_are_ranked_by_effect_and_the_undecided_come_last():
    ranked = ranked_findings(synthetic_report())
    effects = [one.effect_ms.value for one in ranked if one.effect_ms]
    assert effects == sorted(effects, reverse=True)
    assert ranked[-1].inconclusive
    unsized = Finding(id="a", claim="a", layer="model")
    undecided = Finding(id="b", claim="b", layer="model", inconclusive="too few")
    assert ranked_findings(synthetic_report(findings=(undecided, unsized))) == [unsized, undecided]


def test_thinning_keeps_peaks_and_ends():
    t = [float(i) for i in range(10_000)]
    value = [0.0] * 10_000
    value[4_321], value[7_777] = 99.0, -5.0
    kept = thinned(t, value)
    assert len(kept) <= 2 * COLUMNS
    assert (4_321.0, 99.0) in kept
    assert (7_777.0, -5.0) in kept
    assert [at for at, _ in kept] == sorted(at for at, _ in kept)


def test_a_signal_that_did_not_change_is_told_once():
    view = timeline(synthetic_report())
    arrivals = next(panel for panel in view.panels if panel.title == "Arrivals")
    assert [kind for kind, _ in arrivals.peaks] == ["same"]
    p99 = next(panel for panel in view.panels if panel.title == "P99 time to first token")
    assert [kind for kind, _ in p99.peaks] == ["before", "after"]


def test_the_objective_is_drawn_in_its_own_panel_only():
    report = synthetic_report()
    other = Series("e2e_p99", "ms", "gateway", (0.0, 1.0), (1.0, 2.0))
    before = msgspec.structs.replace(report.before, series=(*report.before.series, other))
    panels = timeline(msgspec.structs.replace(report, before=before)).panels
    assert [panel.title for panel in panels if "objective" in panel.plot] == ["P99 time to first token"]


def test_series_without_points_are_left_out():
    report = synthetic_report()
    bare = msgspec.structs.replace(report.before, series=(Series("kv_usage", "share", "e0", (), ()),))
    assert timeline(synthetic_report(before=bare, after=None)) is None


def test_a_fix_that_makes_things_far_worse_does_not_press_the_others_together():
    report = synthetic_report()
    rows = list(report.ablation)
    rows[1] = msgspec.structs.replace(
        rows[1], p99=Interval(129_000, 119_000, 149_000), saved=Interval(-126_688, -146_000, -116_000)
    )
    view = ablation(synthetic_report(ablation=tuple(rows)))
    worst = view.rows[-2]
    assert "◂" in worst.lane
    assert "worse" in worst.lane
    assert worst.p99 == "129,000"
    assert "costs time alone" in worst.says
    assert worst.harms
    assert not [row.title for row in view.rows if {"▸", "◂"} & set(row.lane) and row is not worst]
    assert "100,000" not in view.axis


def test_the_rounding_of_a_sum_is_not_shown_as_time():
    report = synthetic_report()
    cells = tuple(
        msgspec.structs.replace(one, share=Interval(1e-14, 0.0, 1e-13), mean_ms=7e-9)
        if one.plane == "unattributed"
        else one
        for one in report.matrix.cells
    )
    view = matrix(msgspec.structs.replace(report.matrix, cells=cells))
    last = [band.cells[-1] for band in view.bands]
    assert {(one.share.replace("\u00a0", " "), one.mean) for one in last} == {("0 %", "0.0 ms")}


def test_a_matrix_with_a_missing_cell_keeps_its_columns():
    report = synthetic_report()
    view = matrix(msgspec.structs.replace(report.matrix, cells=report.matrix.cells[1:]))
    assert view.bands[0].cells[0] is None
    assert {len(band.cells) for band in view.bands} == {4}


def test_who_is_slow_stands_in_the_terminal_and_on_the_page_and_nowhere_when_nobody_does():
    report = why_report()
    text = summary_text(report)
    words = " ".join(text.split())
    assert (
        "25 of 25, with 27 % of the traffic engine v0 (the same requests as model tiny): P99 1,345 ms, of the others 111 ms"
        in words
    )
    assert "Who is slow  25 of 930 requests took more than 1,200 ms or went wrong" in text
    page = Page(render_html(report))
    assert {"who"} <= {value for _, key, value in page.attributes if key == "id"}
    nobody = msgspec.structs.replace(report, who=())
    assert "Who is slow" not in summary_text(nobody) + render_html(nobody)
