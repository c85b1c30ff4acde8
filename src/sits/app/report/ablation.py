"""The ablation: what each fix does to P99 alone, and what all of them do together, with intervals.

A row starts at the P99 of the unchanged configuration and its bar reaches to where the fix alone brings it.
The savings of single fixes are not drawn on top of one another: fixes that drain the same queue overlap, so
their sum is told in words beside what they really save together.
"""

import msgspec

from sits.app.report import numbers, svg
from sits.core.report import Ablation, Report

ROW_HEIGHT, BLEED, ROOM = 30, 60, 1.5


class AblationRow(msgspec.Struct, frozen=True):
    """One fix: its lane and figures in ms; figures that do not apply are empty."""

    title: str
    why: str
    kind: str
    lane: str
    p99: str
    p99_interval: str
    saved: str
    saved_interval: str
    needed: str
    needed_interval: str
    unsure: bool


class AblationView(msgspec.Struct, frozen=True):
    """The table and its axis, and the sum of the single savings against the joint one."""

    rows: tuple[AblationRow, ...]
    axis: str
    level: str
    sum_single: str
    joint: str
    has_needed: bool


def ablation(report: Report) -> AblationView | None:
    """The view of a report's ablation; None where no configuration was varied."""
    rows = report.ablation
    if not rows:
        return None
    start = rows[0].p99.value
    scale = _scale(report)
    figures = [edge for row in rows for edge in (row.p99.value, row.p99.high)]
    decimals = 0 if numbers.decimals_for(figures) < 2 else 2
    singles = [row.saved.value for row in rows if row.saved is not None and kind(row) == "single"]
    joint = next((row.saved.value for row in rows if row.saved is not None and kind(row) == "all"), None)
    return AblationView(
        rows=tuple(_row(row, start, scale, decimals, report) for row in rows),
        axis=svg.axis(
            scale, marked=[(report.objective_ms, f"{numbers.number(report.objective_ms)} objective")]
        ),
        level=numbers.level(rows[0].p99),
        sum_single=numbers.number(sum(singles)) if len(singles) > 1 and joint is not None else "",
        joint=numbers.number(joint) if joint is not None else "",
        has_needed=any(row.needed is not None for row in rows),
    )


def _scale(report: Report) -> svg.Scale:
    """From zero over every interval, but at most `ROOM` times the start and the objective: one fix that makes
    things ten times worse must not press the others together.  What lies beyond ends in an arrow.
    """
    start = report.ablation[0].p99.high
    highest = max(row.p99.high for row in report.ablation)
    most = max(start, report.objective_ms)
    return svg.covering([min(highest, ROOM * most), most], margin=0.03)


def kind(row: Ablation) -> str:
    """`none` for the unchanged configuration, `all` for every fix together, `single` for one fix."""
    return row.id if row.id in {"none", "all"} else "single"


def _row(row: Ablation, start: float, scale: svg.Scale, decimals: int, report: Report) -> AblationRow:
    unsure = row.saved is not None and row.saved.low <= 0 <= row.saved.high
    return AblationRow(
        title=row.title,
        why=row.why,
        kind=kind(row),
        lane=_lane(row, start, scale, report, unsure=unsure),
        p99=numbers.fixed(row.p99.value, decimals),
        p99_interval=numbers.interval(row.p99, decimals),
        saved=numbers.fixed(row.saved.value, decimals) if row.saved else "",
        saved_interval=numbers.interval(row.saved, decimals) if row.saved else "",
        needed=numbers.fixed(row.needed.value, decimals) if row.needed else "",
        needed_interval=numbers.interval(row.needed, decimals) if row.needed else "",
        unsure=unsure,
    )


def _lane(row: Ablation, start: float, scale: svg.Scale, report: Report, *, unsure: bool) -> str:
    middle = ROW_HEIGHT / 2
    shown = {"none": "before", "all": "after"}.get(kind(row), "after")
    low, high = sorted((row.p99.value, start))
    marks = []
    if kind(row) != "none":
        worse = row.p99.value > start
        fill = "worse" if worse else "saved"
        marks.append(
            svg.element(
                "rect",
                svg.title(f"{row.title}: P99 {numbers.number(row.p99.value)} ms"),
                x=scale.at(low),
                width=scale.width(low, high),
                y=middle - 6,
                height=12,
                class_=f"{fill} {'unsure' if unsure else ''} {kind(row)}",
            )
        )
    if row.p99.value > scale.high:
        marks.append(svg.text("▸", x="100%", y=middle + 5, text_anchor="end", class_="beyond"))
    else:
        marks.append(svg.whisker(scale, row.p99.low, row.p99.high, int(middle), shown))
        marks.append(svg.element("circle", cx=scale.at(row.p99.value), cy=middle, r=4, class_=f"dot {shown}"))
    return svg.lane(
        scale,
        marks,
        height=ROW_HEIGHT,
        lines=[(start, "start"), (report.objective_ms, "objective")],
        bleed=BLEED,
    )
