"""Predicted against measured as a drawing: one panel a metric, both axes logarithmic, a point for P50 and one for P99 of each run left out.

On the diagonal a prediction is right; the band is a fifth to either side.  A line through a point is the range the prediction stated.

Deliberately absent: interaction, and figures (`accuracy_page`).
"""

import math
from collections.abc import Sequence
from html import escape

from sits.bench.accuracy import Compared
from sits.bench.accuracy_cases import Case
from sits.bench.predictions import METRICS

WIDTH, HEIGHT, SIDE = 1080, 410, 290
TOP, LEFT, GAP = 64, 62, 62
BAND = 1.2
NAMES = {"ttft_ms": "time to first token", "tpot_ms": "time per output token", "e2e_ms": "end to end"}
STYLE = """
svg{font:13px/1.3 "Inter","Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif;background:#fff;
--ink:#1b1f24;--muted:#59626d;--grid:#e4e7ea;--band:#e9f1f7;--a:#0b659a;--b:#b8370f;--c:#5c8a1e}
@media (prefers-color-scheme:dark){svg{background:#14171a;--ink:#e7eaee;--muted:#a3acb7;--grid:#2b3138;--band:#1d2a34;--a:#62bcf3;--b:#ff8c61;--c:#a7d65c}}
text{fill:var(--ink)}.soft{fill:var(--muted)}.small{font-size:11.5px}.head{font-size:15px;font-weight:650}
.grid{stroke:var(--grid)}.band{fill:var(--band)}.right{stroke:var(--muted);stroke-dasharray:4 4}
.s0{--col:var(--a)}.s1{--col:var(--c)}.s2{--col:var(--b)}
.p50{fill:var(--col)}.p99{fill:none;stroke:var(--col);stroke-width:1.8}.range{stroke:var(--col);stroke-opacity:.4;stroke-width:1.4}
"""


def chart(cases: Sequence[Case]) -> str:
    """The drawing of some cases; each has a colour."""
    marks = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" role="img">',
        f"<title>Predicted against measured, runs left out of the fit</title><style>{STYLE}</style>",
        f'<text class="head" x="{LEFT}" y="24">Predicted against measured, each run left out of the fit that predicts it</text>',
    ]
    x = float(LEFT)
    for place, case in enumerate(cases):
        marks.append(f'<circle class="s{place} p50" cx="{x:.0f}" cy="42" r="4.5"/>')
        marks.append(f'<text class="small" x="{x + 9:.0f}" y="46">{escape(case.predicted)}</text>')
        x += 24 + 7 * len(case.predicted)
    marks.append(
        f'<text class="small soft" x="{x + 10:.0f}" y="46">filled P50, hollow P99; band: within a fifth; line: the range stated</text>'
    )
    for place, metric in enumerate(METRICS):
        rows = [(i, row) for i, case in enumerate(cases) for row in case.rows if row.metric == metric]
        marks += _panel(
            LEFT + place * (SIDE + GAP), metric, [(i, r) for i, r in rows if r.figure in ("p50", "p99")]
        )
    return "\n".join([*marks, "</svg>", ""])


def _panel(left: float, metric: str, rows: Sequence[tuple[int, Compared]]) -> list[str]:
    values = [value for _, row in rows for value in (row.measured, row.predicted) if value > 0]
    low, high = min(values) / 1.3, max(values) * 1.3

    def at(value: float) -> float:
        return SIDE * math.log(min(max(value, low), high) / low) / math.log(high / low)

    bottom = TOP + SIDE
    edge = at(low * BAND)
    band = (
        f"M{left:.1f} {bottom:.1f} L{left + edge:.1f} {bottom:.1f} L{left + SIDE:.1f} {TOP + edge:.1f} L{left + SIDE:.1f} {TOP:.1f} "
        f"L{left + SIDE - edge:.1f} {TOP:.1f} L{left:.1f} {bottom - edge:.1f} Z"
    )
    marks = [f'<path class="band" d="{band}"/>']
    for tick in _ticks(low, high):
        place = at(tick)
        marks.append(
            f'<path class="grid" d="M{left + place:.1f} {TOP} V{bottom} M{left:.1f} {bottom - place:.1f} H{left + SIDE:.1f}"/>'
        )
        marks.append(
            f'<text class="small soft" x="{left + place:.1f}" y="{bottom + 15}" text-anchor="middle">{tick:,g}</text>'
        )
        marks.append(
            f'<text class="small soft" x="{left - 5:.1f}" y="{bottom - place + 4:.1f}" text-anchor="end">{tick:,g}</text>'
        )
    marks.append(f'<path class="right" d="M{left:.1f} {bottom} L{left + SIDE:.1f} {TOP}"/>')
    for colour, row in rows:
        x, y = left + at(row.measured), bottom - at(row.predicted)
        marks.append(
            f'<g class="s{colour}"><path class="range" d="M{x:.1f} {bottom - at(row.range_low):.1f} V{bottom - at(row.range_high):.1f}"/>'
            f'<circle class="{row.figure}" cx="{x:.1f}" cy="{y:.1f}" r="4"><title>{escape(row.run)} {row.figure.upper()}: predicted '
            f"{row.predicted:,.1f}, measured {row.measured:,.1f} ({row.error:+.0%})</title></circle></g>"
        )
    marks.append(
        f'<text x="{left + SIDE / 2:.1f}" y="{bottom + 34}" text-anchor="middle">{NAMES[metric]}: measured, ms</text>'
    )
    marks.append(
        f'<text class="small" transform="translate({left - 50:.1f} {TOP + SIDE / 2:.1f}) rotate(-90)" text-anchor="middle">predicted, ms</text>'
    )
    return marks


def _ticks(low: float, high: float) -> list[float]:
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = (1, 2, 5) if high / low < 200 else (1,)
    return [step * 10.0**power for power in powers for step in steps if low <= step * 10.0**power <= high]
