"""The ablation: what each fix saves alone and what is lost without it, on one axis from zero, with intervals.

Each row has two bars: the upper is the paired saving of the fix alone, the lower and thinner one what P99 loses
when everything but this fix is applied.  A bar whose interval includes zero is only an outline, so that what is
shown apart from what is merely measured is seen at a glance.  Fixes are sorted by what they save alone, between
the unchanged configuration and all of them together.  The savings of single fixes are not drawn on top of one
another: fixes that drain the same queue overlap, so their sum is told beside what they really save together.
"""

from collections.abc import Sequence

import msgspec

from sits.app.report import numbers, svg
from sits.core.finding import Interval
from sits.core.report import Ablation, Report

ROW_HEIGHT, BLEED = 42, 60
ALONE_TOP, ALONE_HEIGHT = 7, 14
NEEDED_TOP, NEEDED_HEIGHT = 27, 8
ROOM, LEFT_ROOM = 1.6, 0.4
"""The axis reaches at most so many times the largest figure to the right, and such a part of that to the left."""


class AblationRow(msgspec.Struct, frozen=True):
    """One fix: its lane and figures in ms; figures that do not apply are empty.  `says` is the verdict in words."""

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
    unsure_needed: bool
    harms: bool
    says: str


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
    rows = ranked(report.ablation)
    if not rows:
        return None
    start = rows[0].p99
    scale = _scale([edge for row in rows for edge in _effects(row, start)])
    figures = [edge for row in rows for edge in (row.p99.value, row.p99.high)]
    decimals = 0 if numbers.decimals_for(figures) < 2 else 2
    singles = [row.saved.value for row in rows if row.saved is not None and kind(row) == "single"]
    joint = next((row.saved.value for row in rows if row.saved is not None and kind(row) == "all"), None)
    return AblationView(
        rows=tuple(_row(row, start, scale, decimals) for row in rows),
        axis=svg.axis(scale),
        level=numbers.level(rows[0].p99),
        sum_single=numbers.number(sum(singles)) if len(singles) > 1 and joint is not None else "",
        joint=numbers.number(joint) if joint is not None else "",
        has_needed=any(row.needed is not None for row in rows),
    )


def ranked(rows: Sequence[Ablation]) -> list[Ablation]:
    """The unchanged configuration, the fixes by what they save alone, all of them together."""
    place = {"none": 0, "single": 1, "all": 2}
    return sorted(rows, key=lambda row: (place[kind(row)], -row.saved.value if row.saved else 0.0))


def kind(row: Ablation) -> str:
    """`none` for the unchanged configuration, `all` for every fix together, `single` for one fix."""
    return row.id if row.id in {"none", "all"} else "single"


def includes_zero(effect: Interval | None) -> bool:
    """Whether an effect cannot be told apart from none."""
    return effect is not None and effect.low <= 0 <= effect.high


def says(row: Ablation) -> str:
    """What the two intervals of a fix prove, in words."""
    if kind(row) != "single" or row.saved is None:
        return ""
    parts = _told(row.saved, "helps alone", "costs time alone")
    parts += _told(row.needed, "missed when left out", "costs time beside the others")
    return ", ".join(parts) or "no proven effect"


def _told(effect: Interval | None, gain: str, loss: str) -> list[str]:
    if effect is None or includes_zero(effect):
        return []
    return [gain if effect.low > 0 else loss]


def _effects(row: Ablation, start: Interval) -> list[Interval]:
    """The saving, or the bare difference where none was paired, and what is lost without the fix."""
    if kind(row) == "none":
        return []
    difference = start.value - row.p99.value
    saved = row.saved if row.saved is not None else Interval(difference, difference, difference)
    return [saved, *([row.needed] if row.needed is not None else [])]


def _scale(effects: Sequence[Interval]) -> svg.Scale:
    """Around zero over every interval, but at most `ROOM` times the largest gain: neither a wide interval nor one
    fix that makes things ten times worse may press the others together.  What lies beyond ends in an arrow.
    """
    most = max((one.value for one in effects), default=0.0)
    if most <= 0:
        return svg.covering([edge for one in effects for edge in (one.low, one.high)], margin=0.03)
    right = min(max(one.high for one in effects), ROOM * most)
    left = max(min(0.0, *(one.low for one in effects)), -LEFT_ROOM * right)
    return svg.covering([left, right], margin=0.03)


def _row(row: Ablation, start: Interval, scale: svg.Scale, decimals: int) -> AblationRow:
    return AblationRow(
        title=row.title,
        why=row.why,
        kind=kind(row),
        lane=_lane(row, start, scale),
        p99=numbers.fixed(row.p99.value, decimals),
        p99_interval=numbers.interval(row.p99, decimals),
        saved=numbers.fixed(row.saved.value, decimals) if row.saved else "",
        saved_interval=numbers.interval(row.saved, decimals) if row.saved else "",
        needed=numbers.fixed(row.needed.value, decimals) if row.needed else "",
        needed_interval=numbers.interval(row.needed, decimals) if row.needed else "",
        unsure=includes_zero(row.saved),
        unsure_needed=includes_zero(row.needed),
        harms=any(one is not None and one.high < 0 for one in (row.saved, row.needed)),
        says=says(row),
    )


def _lane(row: Ablation, start: Interval, scale: svg.Scale) -> str:
    places = ((ALONE_TOP, ALONE_HEIGHT, "alone"), (NEEDED_TOP, NEEDED_HEIGHT, "needed"))
    marks: list[str] = []
    for effect, (top, height, which) in zip(_effects(row, start), places, strict=False):
        marks += _bar(row, effect, scale, top, height, which)
    return svg.lane(scale, marks, height=ROW_HEIGHT, bleed=BLEED)


def _bar(row: Ablation, effect: Interval, scale: svg.Scale, top: int, height: int, which: str) -> list[str]:
    low, high = sorted((0.0, effect.value))
    middle = top + height // 2
    what = "saves alone" if which == "alone" else "lost without it"
    fill = ("saved" if effect.value >= 0 else "worse") + (" unsure" if includes_zero(effect) else "")
    box = svg.element(
        "rect",
        svg.title(f"{row.title}: {numbers.number(effect.value)} ms {what}"),
        x=scale.at(low),
        width=scale.width(low, high),
        y=top,
        height=height,
        class_=f"{fill} {which} {kind(row)}",
    )
    line = svg.whisker(scale, effect.low, effect.high, middle, "ink", half=3)
    beyond = [
        svg.text(arrow, x=x, y=middle + 5, text_anchor=anchor, class_="beyond")
        for outside, arrow, x, anchor in (
            (effect.high > scale.high, "▸", "100%", "end"),
            (effect.low < scale.low, "◂", "0%", "start"),
        )
        if outside
    ]
    return [box, line, *beyond]
