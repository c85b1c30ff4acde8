"""What sixteen engines share is said once, and what differs is never folded away."""

import msgspec

from app_synthetic import synthetic_report, why_report
from sits.app.report import render_html
from sits.app.report.grouping import changes, evidence
from sits.core.finding import Change, Evidence


def numa(name, old, new, why="remote"):
    return Change(f"engines[{name}].cpu_numa", old, new, why)


SIXTEEN = tuple(numa(f"{node}{i}", str(1 - i), str(i)) for node in "abcdefgh" for i in (0, 1))


def test_one_value_of_many_engines_is_one_line_that_names_them():
    (view,) = changes(SIXTEEN, synthetic_report(changes=SIXTEEN))
    assert view.path == "engines[*].cpu_numa"
    assert [(one.old, one.new, one.names) for one in view.values] == [
        ("1", "0", "a0, b0, c0, d0, e0, f0, g0, h0"),
        ("0", "1", "a1, b1, c1, d1, e1, f1, g1, h1"),
    ]


def test_other_reasons_and_other_values_stay_apart_in_their_order():
    found = (numa("a", "1", "0"), Change("gateway.workers", "1", "4"), numa("b", "1", "0", "another reason"))
    views = changes(found, synthetic_report())
    assert [view.path for view in views] == ["engines[*].cpu_numa", "gateway.workers", "engines[*].cpu_numa"]
    assert [view.values[0].names for view in views] == ["a", "", "b"]


def test_a_change_that_no_run_had_is_not_called_made():
    whole = synthetic_report(changes=(Change("engines[*].lora.max_loras", "4", "8"),))
    made = Change("engines.*.lora.max_loras", "4", "8", "written the other way")
    (view,) = changes((made,), whole)
    assert view.made
    for other in (
        Change("engines.*.lora.max_loras", "4", "24"),
        Change("policy.route.adapter_affinity", "0", "1"),
    ):
        (view,) = changes((other,), whole)
        assert not view.made
    (view,) = changes((made,), msgspec.structs.replace(whole, after=None))
    assert not view.made


def test_the_page_says_which_changes_were_made():
    report = synthetic_report()
    assert "change made" in render_html(report)
    assert "not made in this run" not in render_html(report)
    assert "not made in this run" in render_html(msgspec.structs.replace(report, changes=()))
    assert "not made in this run" not in render_html(why_report())


def copies(*observed, reference=24.0, notes=("", "")):
    return tuple(
        Evidence(f"e{i}.copy_gbytes_per_s", value, reference, "GB/s", notes[i % len(notes)])
        for i, value in enumerate(observed)
    )


def test_one_signal_of_many_sources_is_one_row_with_its_range():
    (view,) = evidence(copies(8.0, 9.0, 10.0, notes=("slow; on NUMA 0", "slow; on NUMA 1")))
    assert (view.signal, view.observed, view.reference) == ("copy", "9 GB/s", "24 GB/s")
    assert view.note == "slow; 8 GB/s – 10 GB/s; on each of 3: e0, e1, e2"


def test_a_source_on_its_own_and_other_references_are_rows_of_their_own():
    assert len(evidence((*copies(8.0), *copies(8.0, reference=11.0)))) == 2
    (view,) = evidence(copies(8.0))
    assert view.signal == "e0.copy"


def test_plain_signals_are_never_folded():
    rows = evidence(
        (Evidence("steps over 1.5 s", 0.2, 0.0, "share"), Evidence("steps over 2.5 s", 0.1, 0.0, "share"))
    )
    assert [(row.signal, row.observed.replace("\u00a0", " "), row.reference) for row in rows] == [
        ("steps over 1.5 s", "20 %", ""),
        ("steps over 2.5 s", "10 %", ""),
    ]  # fmt: skip


def test_a_long_list_of_observations_unfolds_and_loses_none():
    report = synthetic_report()
    many = tuple(Evidence(f"signal_{i}", float(i + 1), None, "ms") for i in range(7))
    finding = msgspec.structs.replace(report.findings[0], evidence=many)
    page = render_html(msgspec.structs.replace(report, findings=(finding,)))
    assert "4 more observations" in page
    assert [page.count(f"<td>signal {i}") for i in range(7)] == [1] * 7
    four = msgspec.structs.replace(finding, evidence=many[:4])
    assert "more observation" not in render_html(msgspec.structs.replace(report, findings=(four,)))
