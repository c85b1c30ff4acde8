"""Tail attribution: for each stage, its mean in the slowest 1 % of requests less its mean in all others.

Percentiles of stages never add up; these means do.  Stages are ranked by what they add to the tail; those that
add almost nothing are summed in one row and listed in full under it.  An investigation compares two phases instead;
`facts["stages_columns"]` then names the two columns.
"""

from collections.abc import Sequence

import msgspec

from sits.app.report import numbers, stages, svg
from sits.core.report import Report, StageShare

ROW_HEIGHT = 24
FOLDED_SHARE = 0.01

REST = f"the other 99{numbers.NO_BREAK}%"
SLOWEST = f"the slowest 1{numbers.NO_BREAK}%"
TITLE = "What makes the tail"


class TailRow(msgspec.Struct, frozen=True):
    """One stage and its figures in ms."""

    words: str
    explain: str
    layer: str
    exactness: str
    lane: str
    rest: str
    tail: str
    excess: str
    interval: str


class Tail(msgspec.Struct, frozen=True):
    """The table: ranked rows, the folded ones, totals and the axis."""

    rows: tuple[TailRow, ...]
    folded: tuple[TailRow, ...]
    folded_excess: str
    total_rest: str
    total_tail: str
    total_excess: str
    level: str
    axis: str
    columns: tuple[str, str]
    title: str


def tail(report: Report) -> Tail | None:
    """The tail attribution of a report; None where no stage was measured."""
    if not report.stages:
        return None
    ranked = sorted(report.stages, key=lambda share: (-share.excess.value, share.stage))
    total = sum(share.excess.value for share in ranked)
    floor = FOLDED_SHARE * max((abs(share.excess.value) for share in ranked), default=0.0)
    small = [share for share in ranked if abs(share.excess.value) < floor]
    if len(small) < 2:
        small = []
    large = [share for share in ranked if share not in small]
    scale = svg.covering([edge for share in large for edge in (share.excess.low, share.excess.high)])
    decimals = numbers.decimals_for(share.tail_ms for share in ranked)
    return Tail(
        rows=_rows(large, scale, decimals),
        folded=_rows(small, scale, decimals),
        folded_excess=numbers.signed(sum(share.excess.value for share in small), decimals),
        total_rest=numbers.fixed(sum(share.rest_ms for share in ranked), decimals),
        total_tail=numbers.fixed(sum(share.tail_ms for share in ranked), decimals),
        total_excess=numbers.signed(total, decimals),
        level=numbers.level(ranked[0].excess),
        axis=svg.axis(scale),
        columns=columns(report)[:2],
        title=columns(report)[2],
    )


def columns(report: Report) -> tuple[str, str, str]:
    """What the two columns of means and the table are called: the figures beside, the figures in question, title."""
    named = report.facts.get("stages_columns")
    if isinstance(named, dict):
        return str(named.get("rest", REST)), str(named.get("tail", SLOWEST)), str(named.get("title", TITLE))
    if isinstance(named, (list, tuple)) and len(named) == 2:
        return str(named[0]), str(named[1]), "What load adds"
    return REST, SLOWEST, TITLE


def _rows(shares: Sequence[StageShare], scale: svg.Scale, decimals: int) -> tuple[TailRow, ...]:
    return tuple(
        TailRow(
            words=stages.words(share.stage),
            explain=stages.explain(share.stage),
            layer=stages.css_layer(share.layer, share.stage),
            exactness=share.exactness,
            lane=_lane(share, scale),
            rest=numbers.fixed(share.rest_ms, decimals),
            tail=numbers.fixed(share.tail_ms, decimals),
            excess=numbers.signed(share.excess.value, decimals),
            interval=numbers.interval(share.excess, decimals),
        )
        for share in shares
    )


def _lane(share: StageShare, scale: svg.Scale) -> str:
    low, high = sorted((0.0, share.excess.value))
    layer = stages.css_layer(share.layer, share.stage)
    bar = svg.element(
        "rect",
        svg.title(f"{stages.words(share.stage)}: {numbers.number(share.excess.value)} ms"),
        x=scale.at(low),
        width=scale.width(low, high),
        y=6,
        height=12,
        class_=f"bar {layer} {share.exactness}",
    )
    return svg.lane(
        scale, [bar, svg.whisker(scale, share.excess.low, share.excess.high, 12, "ink")], height=ROW_HEIGHT
    )
