"""A calibration as a page: the speed of the machine run by run, steps predicted against measured, errors on runs left out, limits with their sources.

The first picture answers whether the recording can be trusted: bars of unequal height are a machine that changed its speed while it was
recorded.  The second shows what the law of steps leaves over, each run at its own level, steps with prompts apart from steps without.

Rules: self-contained, every text escaped, colours follow the reader's light or dark.

Deliberately absent: figures that are not in the model, but for the steps drawn.
"""

import math
from collections.abc import Sequence
from html import escape

import numpy as np

from sits.app.predict_page import STYLE, ticks
from sits.app.report.svg import element, text, title
from sits.predict.fit_limits import LIMITS
from sits.predict.fit_model import FittedEngine
from sits.predict.fit_steps import StepLog, law_ms

BAR, ROOM, SIDE, DOTS = 22, 250, 330, 900
MORE = """.bar{fill:var(--main);fill-opacity:.75}.one{stroke:var(--warn);stroke-dasharray:4 4}.mixed{fill:var(--warn);fill-opacity:.5}
.plain{fill:var(--main);fill-opacity:.5}.pair{display:grid;grid-template-columns:1fr 1fr;gap:28px}.pair svg{max-width:520px}
@media (max-width:900px){.pair{grid-template-columns:1fr}}td.left,th.left{text-align:left;white-space:normal}
.value{paint-order:stroke;stroke:var(--page);stroke-width:4px}:root{--page:#fff}@media (prefers-color-scheme:dark){:root{--page:#14171a}}
"""


def page_html(model: FittedEngine, logs: Sequence[StepLog], lines: Sequence[str]) -> str:
    """The page; `logs` are the steps fitted, `lines` what the command says in words."""
    on = model.fitted_on
    heading = f"{on.source}, calibrated"
    counts = f"{len(on.runs)} runs, {on.requests:,} requests, {on.steps:,} engine steps in {on.span_s:,.0f} s"
    pair = (
        f'<div class="pair"><div><h2>Level of the machine, run by run</h2>{_levels(model.steps.levels)}</div>'
        f"<div><h2>Steps: law against log</h2>{_scatter(model, logs)}</div></div>"
    )
    said = "".join(element("li", escape(line)) for line in lines)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(heading)}</title><style>{STYLE}{MORE}</style></head><body><main><h1>{escape(heading)}</h1>"
        f"{element('p', escape(counts), class_='soft')}{pair}{_errors(model)}{_limits(model)}<h2>In words</h2><ul>{said}</ul></main></body></html>\n"
    )


def _levels(levels: dict[str, float]) -> str:
    most = max(*levels.values(), 1.0) * 1.05
    high = BAR * len(levels)
    one = 150 + (520 - 150 - 46) / most
    line = element("path", title("1: the model"), d=f"M{one:.1f} 0V{high}", class_="one")
    bars, values = [], []
    for place, (name, level) in enumerate(levels.items()):
        y = place * BAR
        wide = (520 - 150 - 46) * level / most
        bars.append(text(name, x=144.0, y=y + 15.0, text_anchor="end", class_="tick"))
        bars.append(
            element(
                "rect",
                title(f"{name}: {level:.3f}"),
                x=150.0,
                y=y + 4.0,
                width=wide,
                height=14.0,
                class_="bar",
            )
        )
        # Written over the line, with a rim of the page's colour: bars end near 1, where the line is.
        values.append(text(f"{level:.2f}", x=156.0 + wide, y=y + 15.0, class_="tick value"))
    note = '<p class="soft">In order of time; longer is slower; the line is the model.</p>'
    return element("svg", *bars, line, *values, viewBox=f"0 0 520 {high + 6}", role="img") + note


def _scatter(model: FittedEngine, logs: Sequence[StepLog]) -> str:
    law = np.concatenate([law_ms(model.steps, log) * model.steps.levels[log.run] for log in logs])
    real = np.concatenate([log.elapsed_ms for log in logs])
    mixed = np.concatenate([log.chunks > 0 for log in logs])
    stride = max(1, len(real) // DOTS)
    low, high = min(law.min(), real.min()) / 1.1, max(law.max(), real.max()) * 1.1

    def at(value: float) -> float:
        return SIDE * math.log(value / low) / math.log(high / low)

    marks = []
    for tick in ticks(low, high):
        place = at(tick)
        marks.append(
            element("path", d=f"M{40 + place:.1f} 4v{SIDE}M40 {4 + SIDE - place:.1f}h{SIDE}", class_="grid")
        )
        marks.append(text(f"{tick:g}", x=40 + place, y=SIDE + 20.0, text_anchor="middle", class_="tick"))
        marks.append(text(f"{tick:g}", x=34.0, y=8 + SIDE - place, text_anchor="end", class_="tick"))
    marks.append(element("path", d=f"M40 {SIDE + 4}L{SIDE + 40} 4", class_="one"))
    marks += [
        element(
            "circle", cx=40 + at(float(real[i])), cy=4 + SIDE - at(float(law[i])), r=2.0, class_="mixed" if mixed[i] else "plain"
        )
        for i in range(0, len(real), stride)
    ]  # fmt: skip
    marks.append(text("measured, ms", x=40 + SIDE / 2, y=SIDE + 36.0, text_anchor="middle", class_="tick"))
    middle = 4 + SIDE / 2
    turned = f"rotate(-90 8 {middle:.0f})"
    marks.append(
        text("by the law, ms", x=8.0, y=middle, text_anchor="middle", class_="tick", transform=turned)
    )
    note = f"{len(range(0, len(real), stride)):,} of {len(real):,} steps, each run at its own level; blue decodes only, red with prompts; on the line the law is right."
    return element("svg", *marks, viewBox=f"0 0 {SIDE + 60} {SIDE + 44}", role="img") + element(
        "p", escape(note), class_="soft"
    )


def _errors(model: FittedEngine) -> str:
    held = model.held_out
    if held is None:
        return ""
    figures = ("mean", "p50", "p90", "p99")
    rows = [element("tr", *(element("th", escape(name)) for name in ("|error|", *figures)))]
    for metric, found in held.median.items():
        cells = [
            element("td", f"{found[f]:.0%} <span>{held.p90[metric][f]:.0%}</span>")
            for f in figures
            if f in found
        ]
        rows.append(element("tr", element("td", escape(metric[:-3].upper())), *cells))
    note = (
        f"Median over {held.runs} runs, each predicted by a model of the others, and the 90th percentile behind it. "
        f"{held.covered:.0%} of the measured figures lay in the range of the passes (90 % is meant); predictions widen theirs by what was lacking."
    )
    return (
        f"<h2>Error on runs left out</h2>{element('table', *rows)}{element('p', escape(note), class_='soft')}"
    )


def _limits(model: FittedEngine) -> str:
    rows = [
        element(
            "tr",
            element("th", "limit"),
            element("th", "value"),
            element("th", "how it is known", class_="left"),
        )
    ]
    for name in LIMITS:
        limit = getattr(model.limits, name)
        how = element("td", escape(limit.source), class_="left" if limit.sure else "left warn")
        rows.append(element("tr", element("td", escape(name)), element("td", f"{limit.value:,}"), how))
    return f"<h2>Limits of the engine</h2>{element('div', element('table', *rows), class_='wide')}"
