"""The waterfall: a slow request and a normal one, stage by stage, on one time scale.

Each stage is a row with two lanes: the slow request above, the normal one below it, thinner.  Both start at
zero, so the eye compares lengths without arithmetic.  Where the objective is about the first token, the axis
ends at the first token and the time after it is told in words: a decode of seconds would press everything else
against the left edge.
"""

from collections.abc import Sequence

import msgspec

from sits.app.report import numbers, stages, svg
from sits.core.report import Bar, Report, Waterfall

ROW_HEIGHT = 24
SLOW_TOP, SLOW_HEIGHT = 3, 11
NORMAL_TOP, NORMAL_HEIGHT = 15, 5
SLIVER, SLIVER_SHARE = 2, 0.4


class StageRow(msgspec.Struct, frozen=True):
    """One stage: its lane, and what it took in each request (one figure a request, empty where absent)."""

    words: str
    explain: str
    layer: str
    exactness: str
    lane: str
    figures: tuple[str, ...]


class Pair(msgspec.Struct, frozen=True):
    """One drawing: its requests, its rows and its axis."""

    requests: tuple[Waterfall, ...]
    totals: tuple[str, ...]
    leftovers: tuple[str, ...]
    rows: tuple[StageRow, ...]
    axis: str
    exactness: tuple[tuple[str, str], ...]
    facts: tuple[tuple[str, ...], ...]


def pairs(report: Report) -> list[Pair]:
    """The waterfalls of a report, two and two, the slower of each pair first."""
    falls = report.waterfalls
    return [
        _pair(sorted(falls[at : at + 2], key=lambda fall: -_end(fall, report)), report)
        for at in range(0, len(falls), 2)
    ]


def _bars(fall: Waterfall, report: Report) -> list[Bar]:
    if report.objective_metric != "ttft":
        return list(fall.bars)
    return [bar for bar in fall.bars if bar.stage not in stages.AFTER_FIRST_TOKEN]


def _end(fall: Waterfall, report: Report) -> float:
    return max((bar.start_ms + bar.duration_ms for bar in _bars(fall, report)), default=fall.total_ms)


def _pair(falls: Sequence[Waterfall], report: Report) -> Pair:
    drawn = [_bars(fall, report) for fall in falls]
    scale = svg.covering([_end(fall, report) for fall in falls] + [report.objective_ms])
    decimals = numbers.decimals_for(bar.duration_ms for bars in drawn for bar in bars)
    every = [bar for bars in drawn for bar in bars]
    seen = {stages.UNATTRIBUTED if stages.is_unattributed(bar.stage) else bar.exactness for bar in every}
    return Pair(
        requests=tuple(falls),
        totals=tuple(numbers.fixed(_end(fall, report), decimals) for fall in falls),
        leftovers=tuple(_leftover(fall, report) for fall in falls),
        rows=tuple(_row(stage, drawn, scale, decimals, report) for stage in _order(drawn)),
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
    return StageRow(stages.words(stage), stages.explain(stage), layer, exactness, lane, tuple(figures))


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
    drawn = len(_bars(fall, report))
    rest = sum(bar.duration_ms for bar in fall.bars) - sum(bar.duration_ms for bar in _bars(fall, report))
    return f"{numbers.number(rest)} ms after the first token not drawn" if drawn < len(fall.bars) else ""
