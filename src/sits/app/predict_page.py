"""A prediction as a page: of each run the distributions of its three metrics, with the range in which one real run should lie.

A panel is a distribution function: to the right the time (logarithmic), upwards the share of requests that took no longer.  The whiskers
at P50, P90, P95 and P99 are the stated ranges.  Below stand the figures, the arrivals, warnings and assumptions, in words.

Rules: self-contained, every text escaped, colours follow the reader's light or dark; panels stand side by side, on a telephone one
below the other; a table too wide for it scrolls alone.

Deliberately absent: interaction beyond tooltips.
"""

import math
from collections.abc import Sequence
from html import escape

import numpy as np
from numpy.typing import NDArray

from sits.app.report.svg import element, text, title
from sits.bench.predictions import DEFINITIONS, METRICS, SHARES, Predicted, Quantiles

WIDE, HIGH, LEFT, TOP = 290, 190, 44, 34
POINTS = 160
NAMES = {"ttft_ms": "time to first token", "tpot_ms": "time per output token", "e2e_ms": "end to end"}
STYLE = """
html{color-scheme:light dark}body{margin:0;padding:24px;background:#fff;color:#1b1f24}
:root{--ink:#1b1f24;--muted:#59626d;--line:#dcdfe3;--grid:#eceef1;--main:#0b659a;--warn:#b8370f}
main{max-width:1080px;margin:0 auto;font:15px/1.5 "Inter","Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif}
h1{font-size:21px;margin:0 0 4px}h2{font-size:17px;margin:28px 0 2px}p{margin:4px 0}.soft{color:var(--muted)}.warn{color:var(--warn)}
svg{width:100%;height:auto;font-size:12px}text{fill:var(--ink)}.tick{fill:var(--muted);font-size:11px}.grid{stroke:var(--grid)}
.curve{fill:none;stroke:var(--main);stroke-width:2}.whisker{stroke:var(--main);stroke-width:1.6;stroke-opacity:.55}.dot{fill:var(--main)}
table{border-collapse:collapse;font-variant-numeric:tabular-nums;margin:6px 0}th,td{padding:2px 14px 2px 0;text-align:right}
th:first-child,td:first-child{text-align:left}th{font-weight:600}td span{color:var(--muted)}ul{margin:4px 0;padding-left:20px}
td,th{white-space:nowrap}.wide{overflow-x:auto}.panels{display:grid;grid-template-columns:repeat(3,1fr);gap:14px;margin-top:8px}
@media (max-width:760px){body{padding:16px}.panels{grid-template-columns:1fr}.wide td span{display:block}}
@media (prefers-color-scheme:dark){body{background:#14171a;color:#e7eaee}
:root{--ink:#e7eaee;--muted:#a3acb7;--line:#363d45;--grid:#252a30;--main:#62bcf3;--warn:#ff8c61}}
"""


def page_html(heading: str, about: Sequence[str], predictions: Sequence[Predicted]) -> str:
    """The page; `about` are lines on the engine."""
    lines = "".join(element("p", escape(line), class_="soft") for line in about)
    terms = "".join(
        element("li", element("b", escape(name)), escape(f": {told}")) for name, told in DEFINITIONS.items()
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(heading)}</title><style>{STYLE}</style></head><body><main><h1>{escape(heading)}</h1>"
        f"{lines}{''.join(_run(one) for one in predictions)}<h2>Definitions</h2><ul>{terms}</ul></main></body></html>\n"
    )


def _run(one: Predicted) -> str:
    loop = "arrivals as given" if one.loop is None else f"closed loop of {one.loop.users} users"
    head = f"{one.run + ': ' if one.run else ''}{len(one.asked):,} requests, {loop}"
    rates = f"{one.requests_per_s:.2f} requests/s, {one.output_tokens_per_s:,.0f} output tokens/s over {one.span_s:,.1f} s"
    said = [element("p", escape(rates), class_="soft")]
    if one.arrivals is not None:
        said.append(
            element(
                "p",
                escape(f"Arrivals: CV {one.arrivals.cv:.2f}, {one.arrivals.verdict}: {one.arrivals.reason}."),
            )
        )
    said += [element("p", escape(f"Warning: {line}."), class_="warn") for line in one.warnings]
    assumed = "".join(element("li", escape(line)) for line in one.assumed)
    listed = f"<p>Assumed:</p><ul>{assumed}</ul>" if assumed else ""
    return f"<h2>{escape(head)}</h2>{''.join(said)}{_panels(one)}{_table(one)}{listed}"


def _panels(one: Predicted) -> str:
    drawn = [
        element(
            "svg",
            _panel(metric, one.all_passes[metric], one.quantiles[metric]),
            viewBox=f"0 0 {LEFT + WIDE + 22} {TOP + HIGH + 24}",
            role="img",
        )
        for metric in METRICS
        if np.isfinite(one.all_passes[metric]).any()
    ]
    if not drawn:
        return ""
    note = "Upwards the share of requests that took no longer; dots are P50, P90, P95 and P99"
    ranges = any(one.quantiles[metric].low for metric in METRICS)
    note += ", a bar through one is where one real run should lie." if ranges else "."
    return element("div", *drawn, class_="panels") + element("p", escape(note), class_="soft")


def _panel(metric: str, values: "NDArray[np.float64]", found: Quantiles) -> str:
    shares = np.linspace(0, 1, POINTS)
    times = np.maximum(np.quantile(values[np.isfinite(values)], shares), 1e-3)
    ends = [*found.low.values(), *found.high.values()]
    low = min([float(times[0]), *(v for v in ends if v > 0)]) / 1.1
    high = max([float(times[-1]), *ends]) * 1.1

    def x(ms: float) -> float:
        return LEFT + WIDE * math.log(min(max(ms, low), high) / low) / math.log(high / low)

    def y(share: float) -> float:
        return TOP + HIGH * (1 - share)

    marks = [text(f"{NAMES[metric]}, ms", x=float(LEFT), y=TOP - 12.0)]
    for share in (0.0, 0.25, 0.5, 0.75, 0.9, 1.0):
        marks.append(element("path", class_="grid", d=f"M{LEFT} {y(share):.1f}h{WIDE}"))
        marks.append(text(f"{share:.0%}", x=LEFT - 6.0, y=y(share) + 4, text_anchor="end", class_="tick"))
    for tick in ticks(low, high):
        marks.append(element("path", class_="grid", d=f"M{x(tick):.1f} {TOP}v{HIGH}"))
        marks.append(text(f"{tick:,g}", x=x(tick), y=TOP + HIGH + 16.0, text_anchor="middle", class_="tick"))
    line = " ".join(f"{x(float(t)):.1f},{y(float(s)):.1f}" for t, s in zip(times, shares, strict=True))
    marks.append(element("polyline", points=line, class_="curve"))
    for name, at in SHARES:
        value = getattr(found, name)
        tip = f"{name.upper()} {value:,.1f} ms"
        if found.low:
            tip += f"; one run should lie between {found.low[name]:,.1f} and {found.high[name]:,.1f}"
            bar = f"M{x(found.low[name]):.1f} {y(at / 100):.1f}H{x(found.high[name]):.1f}"
            marks.append(element("path", title(tip), d=bar, class_="whisker"))
        marks.append(element("circle", title(tip), cx=x(value), cy=y(at / 100), r=3.2, class_="dot"))
    return element("g", *marks)


def ticks(low: float, high: float) -> list[float]:
    """As many round values as can be read beside each other: 1-2-3-5-7 within a decade, 1-2-5 within two, powers of ten beyond."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = (1, 2, 3, 5, 7) if high / low < 10 else (1, 2, 5) if high / low < 100 else (1,)
    return [step * 10.0**power for power in powers for step in steps if low <= step * 10.0**power <= high]


def _table(one: Predicted) -> str:
    figures = ("mean", *(name for name, _ in SHARES))
    head = "".join(element("th", escape(name)) for name in ("ms", *figures))
    rows = [element("tr", head)]
    for metric, found in one.quantiles.items():
        cells = [element("td", escape(metric[:-3].upper()))]
        for name in figures:
            span = f" <span>{found.low[name]:,.1f} to {found.high[name]:,.1f}</span>" if found.low else ""
            cells.append(element("td", f"{getattr(found, name):,.1f}{span}"))
        rows.append(element("tr", *cells))
    return element("div", element("table", *rows), class_="wide")
