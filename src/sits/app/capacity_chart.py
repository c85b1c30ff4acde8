"""The outcome of a capacity sweep as a page: GPUs against P99, the front through them, and what the front's points are.

One point a configuration: GPUs to the right, P99 upwards on a logarithmic axis (both less is better); filled where requests
are within the objectives, hollow where not; the colour is the GPUs of one engine.  The chart is drawn twice, for a wide and for
a narrow page, and the page shows the one that fits.

Rules: every text is escaped; colours follow the reader's light or dark; a point's tooltip says all that is known of it.

Deliberately absent: interaction, and points whose queue grew (they are counted in words).
"""

import math
from collections.abc import Sequence
from html import escape

from sits.app.report.svg import element, text, title
from sits.bench.sweep import Point, Result
from sits.bench.sweep_front import front, p99_ns, usable

Outcome = tuple[Point, Result]
METRIC = {"ttft": "time to first token", "tpot": "time per output token", "e2e": "end to end"}
COLOURS = ("a", "b", "c", "d")
LETTER = 6.4

STYLE = """
:root{--ink:#1b1f24;--muted:#59626d;--line:#dcdfe3;--grid:#eceef1;--bg:#fff;--slow:#b8370f;
--a:#0b659a;--b:#9a5b00;--c:#5d3fa8;--d:#17734a}
@media (prefers-color-scheme:dark){:root{--ink:#e7eaee;--muted:#a3acb7;--line:#363d45;--grid:#252a30;--bg:#14171a;--slow:#ff8c61;
--a:#62bcf3;--b:#f0b24d;--c:#b9a2ff;--d:#6fd6a5}}
html{color-scheme:light dark}
body{margin:0;padding:clamp(12px,3vw,28px);background:var(--bg);color:var(--ink);font:15px/1.5 "Inter","Segoe UI",Roboto,Arial,sans-serif}
main{max-width:1080px;margin:0 auto}h1{font-size:21px;line-height:1.3;margin:0 0 4px}p{margin:6px 0}.soft{color:var(--muted)}
h2{font-size:16px;margin:26px 0 6px}.scroll{overflow-x:auto}
table{border-collapse:collapse;font-size:14px;font-variant-numeric:tabular-nums;white-space:nowrap}
th,td{padding:5px 12px 5px 0;text-align:right;border-bottom:1px solid var(--line)}th:first-child,td:first-child{text-align:left}th{font-weight:600;color:var(--muted)}
tr.best td{font-weight:650}ul{padding-left:20px;margin:6px 0}li{margin:3px 0}
svg{display:block;width:100%;height:auto;font:13px "Inter","Segoe UI",Roboto,Arial,sans-serif}
svg text{fill:var(--ink)}svg text.soft{fill:var(--muted)}.grid{stroke:var(--grid)}.steps{fill:none;stroke:var(--muted);stroke-width:1.5;stroke-dasharray:2 3}
.slo{stroke:var(--slow);stroke-dasharray:6 4}svg text.slo{fill:var(--slow);stroke:none}
.dot{stroke-width:2}.no{fill:var(--bg)}.on{stroke-width:3}
.name{paint-order:stroke;stroke:var(--bg);stroke-width:4px;stroke-linejoin:round;font-weight:600}
.a{stroke:var(--a)}.b{stroke:var(--b)}.c{stroke:var(--c)}.d{stroke:var(--d)}
.a.yes{fill:var(--a)}.b.yes{fill:var(--b)}.c.yes{fill:var(--c)}.d.yes{fill:var(--d)}
.narrow{display:none}@media (max-width:640px){.wide{display:none}.narrow{display:block}}
"""


def page_html(
    heading: str,
    said: Sequence[str],
    outcomes: Sequence[Outcome],
    *,
    metric: str,
    slo_ns: int,
    good_share: float,
    best: Outcome | None,
    notes: Sequence[str],
) -> str:
    """The page; `said` is the outcome in words, `notes` what it rests on."""
    draw = [
        element("div", drawing(outcomes, metric, slo_ns, good_share, width, height), class_=kind)
        for kind, width, height in (("wide", 1080, 470), ("narrow", 380, 420))
    ]
    rows = "".join(_row(outcome, outcome == best) for outcome in front(outcomes, metric))
    names = (
        "replicas x GPUs", "GPUs", "window", "seqs", "tokens a step", "TTFT P50", "P99", "over seeds", "TPOT P99", "E2E P99",
        "within", "good/s", "GPU h / M tokens",
    )  # fmt: skip
    head = element("tr", *(element("th", escape(name)) for name in names))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(heading)}</title><style>{STYLE}</style></head><body><main>"
        f"<h1>{escape(heading)}</h1>{''.join(element('p', escape(line)) for line in said)}"
        f'{"".join(draw)}<h2>The front</h2><div class="scroll"><table>{head}{rows}</table></div>'
        f'<h2>What this rests on</h2><ul class="soft">{"".join(element("li", escape(note)) for note in notes)}</ul>'
        "</main></body></html>\n"
    )


def name_of(point: Point) -> str:
    """A configuration in a few letters: replicas x GPUs, window, sequences, tokens a step.

    >>> name_of(Point(2, 4, 20_000_000, 128, 2048))
    '2×4 · 20 ms · 128 · 2048'
    """
    window = f" · {point.window_ns / 1e6:g} ms" if point.window_ns else ""
    return f"{point.replicas}×{point.tp}{window} · {point.max_num_seqs} · {point.max_num_batched_tokens}"


def _row(outcome: Outcome, best: bool) -> str:
    point, result = outcome
    low, high = result.ttft_range
    cells = (
        f"{point.replicas} × {point.tp}", f"{point.gpus}", f"{point.window_ns / 1e6:g} ms" if point.window_ns else "–",
        f"{point.max_num_seqs}", f"{point.max_num_batched_tokens}", figure(result.ttft_ns[0]), figure(result.ttft_ns[1]),
        f"{figure(low)} – {figure(high)}", figure(result.tpot_ns[1]), figure(result.e2e_ns[1]), f"{result.good:.1%}",
        f"{result.good_per_s:.2f}", f"{result.gpu_hours_per_million:.2f}",
    )  # fmt: skip
    return element("tr", *(element("td", escape(cell)) for cell in cells), class_="best" if best else None)


class _Axes:
    """GPUs to the right, P99 upwards on a logarithmic axis."""

    def __init__(self, kept: Sequence[Outcome], metric: str, slo_ns: int, width: int, height: int) -> None:
        values = [p99_ns(result, metric) for _, result in kept] + ([slo_ns] if slo_ns else [])
        self.low, self.high = min(values) / 1.25, max(values) * 1.25
        self.gpus = sorted({point.gpus for point, _ in kept})
        self.left, self.right = 58.0, width - 26.0
        self.top, self.bottom = 40.0, height - 62.0

    def x(self, gpus: int) -> float:
        low, high = self.gpus[0], self.gpus[-1]
        share = 0.5 if high == low else (gpus - low) / (high - low)
        return self.left + 24 + share * (self.right - self.left - 48)

    def y(self, ns: float) -> float:
        share = math.log(ns / self.low) / math.log(self.high / self.low)
        return self.bottom - share * (self.bottom - self.top)

    def ticks(self) -> list[float]:
        steps = (1.0, 2.0, 5.0) if self.high / self.low > 12 else (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0)
        power = 10.0 ** math.floor(math.log10(self.low))
        marks = [power * 10.0**i * step for i in range(9) for step in steps]
        return [mark for mark in marks if self.low <= mark <= self.high]


def drawing(
    outcomes: Sequence[Outcome], metric: str, slo_ns: int, good_share: float, width: int, height: int
) -> str:
    """The chart at one size."""
    kept = [outcome for outcome in outcomes if usable(outcome[1])]
    label = f"P99 {METRIC[metric]}"
    marks = [text(label, x=12, y=20, class_="soft")]
    if kept:
        marks += _chart(
            kept,
            front(outcomes, metric),
            _Axes(kept, metric, slo_ns, width, height),
            metric,
            slo_ns,
            good_share,
        )
    else:
        marks.append(
            text("no configuration keeps up with this load", x=width / 2, y=height / 2, text_anchor="middle")
        )
    return element(
        "svg", *marks, viewBox=f"0 0 {width} {height}", role="img", aria_label=f"{label} against GPUs"
    )


def _chart(
    kept: Sequence[Outcome], on: Sequence[Outcome], axes: _Axes, metric: str, slo_ns: int, good_share: float
) -> list[str]:
    marks = []
    for ns in axes.ticks():
        y = axes.y(ns)
        marks.append(element("line", x1=axes.left, x2=axes.right, y1=y, y2=y, class_="grid"))
        marks.append(text(figure(ns), x=axes.left - 8, y=y + 4, text_anchor="end", class_="soft"))
    last = -99.0
    for gpus in axes.gpus:
        x = axes.x(gpus)
        if x - last > 22:  # counts that lie too close are left out, the points say them
            marks.append(text(str(gpus), x=x, y=axes.bottom + 20, text_anchor="middle", class_="soft"))
            last = x
    marks.append(text("GPUs", x=axes.left - 8, y=axes.bottom + 20, text_anchor="end", class_="soft"))
    if slo_ns:
        y = axes.y(slo_ns)
        marks.append(element("line", x1=axes.left, x2=axes.right, y1=y, y2=y, class_="slo"))
        marks.append(
            text(f"objective {figure(slo_ns)}", x=axes.right, y=y - 6, text_anchor="end", class_="slo")
        )
    if len(on) > 1:
        at = _places(on, axes, metric)
        marks.append(
            element(
                "path",
                d="".join(
                    f"{'H' if i else 'M'}{x:.1f}{'V' if i else ','}{y:.1f}" for i, (x, y) in enumerate(at)
                ),
                class_="steps",
            )
        )
    degrees = sorted({point.tp for point, _ in kept})
    behind = sorted(kept, key=lambda one: one in on)
    marks += [_dot(outcome, outcome in on, degrees, axes, metric, good_share) for outcome in behind]
    marks += _names(on, kept, axes, metric)
    return [*marks, *_legend(degrees, axes, good_share)]


def _dot(
    outcome: Outcome, on: bool, degrees: Sequence[int], axes: _Axes, metric: str, good_share: float
) -> str:
    point, result = outcome
    colour = COLOURS[degrees.index(point.tp) % len(COLOURS)]
    kind = f"dot {colour} {'yes' if result.good >= good_share else 'no'}{' on' if on else ''}"
    tip = title(
        f"{name_of(point)}\n{point.gpus} GPUs, P99 TTFT {figure(result.ttft_ns[1])}, TPOT {figure(result.tpot_ns[1])}, "
        f"E2E {figure(result.e2e_ns[1])}\n{result.good:.1%} within objectives, {result.good_per_s:.2f} good a second"
    )
    return element(
        "circle",
        tip,
        cx=axes.x(point.gpus),
        cy=axes.y(p99_ns(result, metric)),
        r=6.5 if on else 4.5,
        class_=kind,
    )


def _names(on: Sequence[Outcome], kept: Sequence[Outcome], axes: _Axes, metric: str) -> list[str]:
    """Names of the front's points, beside them where there is room."""
    marks: list[str] = []
    taken = [(x - 7, y - 7, x + 7, y + 7) for x, y in _places(kept, axes, metric)]
    for point, result in on:
        name, x, y = name_of(point), axes.x(point.gpus), axes.y(p99_ns(result, metric))
        wide = len(name) * LETTER
        for at, dy, anchor in (
            (x + 12, -8, "start"),
            (x + 12, 17, "start"),
            (x - 12, 17, "end"),
            (x - 12, -8, "end"),
        ):
            left = at if anchor == "start" else at - wide
            box = (left, y + dy - 11, left + wide, y + dy + 3)
            inside = (
                left >= axes.left
                and left + wide <= axes.right + 16
                and box[1] > axes.top - 10
                and box[3] < axes.bottom
            )
            if inside and not any(_meet(box, other) for other in taken):
                marks.append(text(name, x=at, y=y + dy, text_anchor=anchor, class_="name"))
                taken.append(box)
                break
    return marks


def _places(outcomes: Sequence[Outcome], axes: _Axes, metric: str) -> list[tuple[float, float]]:
    return [(axes.x(point.gpus), axes.y(p99_ns(result, metric))) for point, result in outcomes]


def _meet(one: tuple[float, float, float, float], other: tuple[float, float, float, float]) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def _legend(degrees: Sequence[int], axes: _Axes, good_share: float) -> list[str]:
    marks, x, y = [], axes.left, axes.bottom + 44
    items = [
        (f"{tp} GPU{'s' if tp > 1 else ''} an engine", f"dot {COLOURS[i % len(COLOURS)]} yes")
        for i, tp in enumerate(degrees)
    ]
    items.append((f"under {good_share:.0%} within", "dot a no"))
    if x + sum(len(label) * LETTER + 34 for label, _ in items) > axes.right + 20:
        items = [(label.replace(" an engine", ""), kind) for label, kind in items]
    for label, kind in items:
        marks.append(element("circle", cx=x + 6, cy=y - 4, r=5, class_=kind))
        marks.append(text(label, x=x + 17, y=y, class_="soft"))
        x += len(label) * LETTER + 34
    return marks


def figure(ns: float) -> str:
    """A time with three digits.

    >>> figure(1_500_000_000), figure(23_456_000)
    ('1.5 s', '23.5 ms')
    """
    if ns >= 1e12:
        return f"{ns / 1e9:,.0f} s"
    return f"{ns / 1e9:.3g} s" if ns >= 1e9 else f"{ns / 1e6:.3g} ms"
