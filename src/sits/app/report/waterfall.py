"""The waterfall: a slow request and a normal one, stage by stage, on one time scale.

Each stage is a row with two lanes: the slow request above, the normal one below it, thinner.  Both start at
zero, so the eye compares lengths without arithmetic.  Where the objective is about the first token, the axis
ends at the first token and the time after it is told in words: a decode of seconds would press everything else
against the left edge.  Stages that are short in every request are one row, which unfolds: rows of slivers tell
nothing but hide the two that matter.
"""

from collections.abc import Sequence

import msgspec

from sits.app.report import numbers, stages, svg
from sits.core.report import Bar, Report, Waterfall

ROW_HEIGHT = 24
SLOW_TOP, SLOW_HEIGHT = 3, 11
NORMAL_TOP, NORMAL_HEIGHT = 15, 5
SLIVER, SLIVER_SHARE = 2, 0.4
SHORT_SHARE = 0.01
"""Of the longest request: a stage below this in every request is folded."""


class StageRow(msgspec.Struct, frozen=True):
    """One stage: its lane, and what it took in each request (one figure a request, empty where absent)."""

    stage: str
    words: str
    explain: str
    layer: str
    exactness: str
    lane: str
    figures: tuple[str, ...]
    short: bool


class Pair(msgspec.Struct, frozen=True):
    """One drawing: its requests, its rows and its axis."""

    requests: tuple[Waterfall, ...]
    totals: tuple[str, ...]
    leftovers: tuple[str, ...]
    rows: tuple[StageRow, ...]
    folded: tuple[StageRow, ...]
    folded_figures: tuple[str, ...]
    axis: str
    exactness: tuple[tuple[str, str], ...]
    facts: tuple[tuple[str, ...], ...]


def pairs(report: Report) -> list[Pair]:
    """The waterfalls of a report, two and two, the slower of each pair first."""
    falls = report.waterfalls
    return [
        _pair(sorted(falls[at : at + 2], key=lambda fall: -end_ms(fall, report)), report)
        for at in range(0, len(falls), 2)
    ]


def drawn_bars(fall: Waterfall, report: Report) -> list[Bar]:
    """The bars that belong to the metric of the objective."""
    if report.objective_metric != "ttft":
        return list(fall.bars)
    return [bar for bar in fall.bars if bar.stage not in stages.AFTER_FIRST_TOKEN]


def end_ms(fall: Waterfall, report: Report) -> float:
    """Where the last drawn bar ends."""
    return end_of(drawn_bars(fall, report), fall.total_ms)


def end_of(bars: Sequence[Bar], default: float = 0.0) -> float:
    """Where the last of `bars` ends."""
    return max((bar.start_ms + bar.duration_ms for bar in bars), default=default)


def _pair(falls: Sequence[Waterfall], report: Report) -> Pair:
    drawn = [drawn_bars(fall, report) for fall in falls]
    scale = svg.covering([end_ms(fall, report) for fall in falls] + [report.objective_ms])
    decimals = numbers.decimals_for(bar.duration_ms for bars in drawn for bar in bars)
    every = [bar for bars in drawn for bar in bars]
    seen = {stages.UNATTRIBUTED if stages.is_unattributed(bar.stage) else bar.exactness for bar in every}
    rows = [_row(stage, drawn, scale, decimals, report) for stage in _order(drawn)]
    short = [row for row in rows if row.short]
    folded = {row.stage for row in short} if len(short) > 1 else set()
    return Pair(
        requests=tuple(falls),
        totals=tuple(numbers.fixed(end_ms(fall, report), decimals) for fall in falls),
        leftovers=tuple(_leftover(fall, report) for fall in falls),
        rows=tuple(row for row in rows if row.stage not in folded),
        folded=tuple(row for row in rows if row.stage in folded),
        folded_figures=tuple(
            numbers.fixed(sum(bar.duration_ms for bar in bars if bar.stage in folded), decimals)
            for bars in drawn
        ),
        axis=svg.axis(
            scale, marked=[(report.objective_ms, f"{numbers.number(report.objective_ms)} objective")]
        ),
        exactness=tuple((kind, text) for kind, text in stages.EXACTNESS.items() if kind in seen),
        facts=tuple(
            tuple(f"{stages.words(key)} {value}" for key, value in fall.facts.items() if value != "0")
            for fall in falls
        ),
    )


def _order(drawn: Sequence[Sequence[Bar]]) -> list[str]:
    """All stages in the order of the requests: a stage that only one has follows its own predecessor."""
    order: list[str] = []
    for bars in drawn:
        at = 0
        for bar in bars:
            if bar.stage not in order:
                order.insert(at, bar.stage)
            at = order.index(bar.stage) + 1
    return order


def _row(
    stage: str, drawn: Sequence[Sequence[Bar]], scale: svg.Scale, decimals: int, report: Report
) -> StageRow:
    marks: list[str] = []
    figures: list[str] = []
    kinds: list[str] = []
    layer = stages.UNATTRIBUTED
    for index, bars in enumerate(drawn):
        mine = [bar for bar in bars if bar.stage == stage]
        figures.append(numbers.fixed(sum(bar.duration_ms for bar in mine), decimals) if mine else "")
        for bar in mine:
            layer = stages.css_layer(bar.layer, stage)
            kinds.append(bar.exactness)
            marks.append(_mark(bar, index, layer, scale))
    lane = svg.lane(scale, marks, height=ROW_HEIGHT, lines=[(report.objective_ms, "objective")])
    exactness = next((kind for kind in kinds if kind != "measured"), "measured")
    longest = max((end_of(bars) for bars in drawn), default=0.0)
    short = all(
        abs(sum(bar.duration_ms for bar in bars if bar.stage == stage)) < SHORT_SHARE * longest
        for bars in drawn
    )
    return StageRow(
        stage, stages.words(stage), stages.explain(stage), layer, exactness, lane, tuple(figures), short
    )


def _mark(bar: Bar, index: int, layer: str, scale: svg.Scale) -> str:
    top, height = (SLOW_TOP, SLOW_HEIGHT) if index == 0 else (NORMAL_TOP, NORMAL_HEIGHT)
    start = scale.at(bar.start_ms)
    box = {"x": start, "y": top, "height": height}
    tip = svg.title(f"{stages.words(bar.stage)}: {numbers.number(bar.duration_ms)} ms, {bar.exactness}")
    end = bar.start_ms + bar.duration_ms
    width = (
        SLIVER
        if scale.share(end) - scale.share(bar.start_ms) < SLIVER_SHARE
        else scale.width(bar.start_ms, end)
    )
    return svg.element("rect", tip, **box, width=width, class_=f"bar {layer} {bar.exactness} other{index}")


def _leftover(fall: Waterfall, report: Report) -> str:
    """What is not drawn, in words; empty when all is."""
    drawn = len(drawn_bars(fall, report))
    rest = sum(bar.duration_ms for bar in fall.bars) - sum(
        bar.duration_ms for bar in drawn_bars(fall, report)
    )
    return f"{numbers.number(rest)} ms after the first token not drawn" if drawn < len(fall.bars) else ""
