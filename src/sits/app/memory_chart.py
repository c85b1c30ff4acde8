"""Static against paged KV memory over context length, and what each sharding plan leaves for the cache, as a drawing.

Above, both axes logarithmic: output tokens a second, and requests in service at a time, a line for one reservation a request and a line for
blocks.  Below: the fullest GPU of each plan as a bar: weights, KV pool, and what is neither.

Rules: takes the rows that `sitsctl plan memory --json` prints; contexts that were refused have no point; colours follow the reader's light or dark.

Deliberately absent: interaction, and computing.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from sits.app.report.svg import element, text, title

WIDTH, TOP, BOTTOM, BARS, ROW = 980, 84, 274, 362, 30
PANELS = ((76.0, 470.0), (576.0, 960.0))
BAR_LEFT, BAR_RIGHT = 190.0, 640.0
SIDES = (("static", "one reservation a request"), ("paged", "blocks"))

STYLE = """
svg{font:13px/1.3 "Inter","Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif;background:#fff;
--ink:#1b1f24;--muted:#59626d;--grid:#e6e9ec;--static:#b8370f;--paged:#0b659a;--weights:#8b949e;--rest:#e6e9ec;--bg:#fff}
@media (prefers-color-scheme:dark){svg{background:#14171a;
--ink:#e7eaee;--muted:#a3acb7;--grid:#2b3138;--static:#ff8c61;--paged:#62bcf3;--weights:#6b747e;--rest:#2b3138;--bg:#14171a}}
text{fill:var(--ink)}.soft{fill:var(--muted)}.small{font-size:11.5px}.head{font-size:15px;font-weight:650}.strong{font-weight:600}
.grid{stroke:var(--grid)}.line{fill:none;stroke-width:2.2}.dot{stroke:var(--bg);stroke-width:1.5}
.line.static{stroke:var(--static)}.dot.static{fill:var(--static)}.line.paged,.key.paged{stroke:var(--paged)}.dot.paged,.pool{fill:var(--paged)}
.weights{fill:var(--weights)}.rest{fill:var(--rest)}
"""


def drawing(found: Mapping[str, Any]) -> str:
    """The drawing of one document of `sitsctl plan memory --json`, as a file of its own."""
    rows = [row for row in found["contexts"] if "refused" not in row]
    heading = f"{found['model']} on {found['gpu']}, {found['simulated']}: {found['requests']} {found['work']} requests"
    height = BARS + ROW * len(found["plans"]) + 34
    svg = element(
        "svg",
        element("style", STYLE),
        title(heading),
        text(heading, x=20, y=28, class_="head"),
        *_legend(),
        *_panel(0, "output tokens a second", rows, "output_per_s", gains=True),
        *_panel(1, "requests in service at a time, mean", rows, "sequences"),
        *_plans(found["plans"], found["gpu_memory"]),
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {WIDTH} {height}",
        width=WIDTH,
        height=height,
        role="img",
        aria_label=heading,
    )
    return svg + "\n"


def _legend() -> list[str]:
    marks, x = [], 26.0
    for side, said in SIDES:
        marks += [
            element("circle", cx=x, cy=46, r=4.5, class_=f"dot {side}"),
            text(f"{side}: {said}", x=x + 10, y=50, class_="small"),
        ]
        x += 44 + 6.4 * len(f"{side}: {said}")
    return marks


def _value(row: Mapping[str, Any], side: str, name: str) -> float:
    return float(row[side][name])


class _Axes:
    """Context to the right, a figure upwards, both logarithmic."""

    def __init__(self, panel: int, contexts: Sequence[int], values: Sequence[float]) -> None:
        self.left, self.right = PANELS[panel]
        self.first, self.last = min(contexts), max(contexts)
        self.low, self.high = min(values) / 1.25, max(values) * 1.6

    def x(self, context: float) -> float:
        if self.last == self.first:
            return (self.left + self.right) / 2
        share = math.log(context / self.first) / math.log(self.last / self.first)
        return self.left + 24 + share * (self.right - self.left - 48)

    def y(self, value: float) -> float:
        return BOTTOM - math.log(value / self.low) / math.log(self.high / self.low) * (BOTTOM - TOP)

    def ticks(self) -> list[float]:
        powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        steps = (1.0, 2.0, 5.0) if self.high / self.low < 100 else (1.0, 3.0) if self.high / self.low < 1000 else (1.0,)  # fmt: skip
        marks = [step * 10.0**power for power in powers for step in steps]
        return [mark for mark in marks if self.low <= mark <= self.high]


def _panel(
    panel: int, name: str, rows: Sequence[Mapping[str, Any]], field: str, *, gains: bool = False
) -> list[str]:
    left, right = PANELS[panel]
    marks = [text(name, x=left - 50, y=TOP - 10, class_="strong small")]
    values = [_value(row, side, field) for row in rows for side, _ in SIDES]
    if not rows or min(values) <= 0:
        return [*marks, text("no context could be simulated", x=left, y=TOP + 40, class_="soft")]
    axes = _Axes(panel, [row["context"] for row in rows], values)
    for tick in axes.ticks():
        y = axes.y(tick)
        marks.append(element("line", x1=left, x2=right, y1=y, y2=y, class_="grid"))
        marks.append(text(f"{tick:,g}", x=left - 8, y=y + 4, text_anchor="end", class_="soft small"))
    for row in rows:
        x = axes.x(row["context"])
        marks.append(
            text(short(row["context"]), x=x, y=BOTTOM + 18, text_anchor="middle", class_="soft small")
        )
    marks.append(
        text(
            "longest sequence allowed, tokens", x=right, y=BOTTOM + 36, text_anchor="end", class_="soft small"
        )
    )
    for side, _ in SIDES:
        at = [(axes.x(row["context"]), axes.y(_value(row, side, field))) for row in rows]
        marks.append(
            element("path", d="M" + " L".join(f"{x:.1f},{y:.1f}" for x, y in at), class_=f"line {side}")
        )
        for (x, y), row in zip(at, rows, strict=True):
            tip = title(
                f"{side}, {row['context']:,} tokens: {_value(row, side, field):,.1f}, waste {row[side]['waste']:.1%}"
            )
            marks.append(element("circle", tip, cx=x, cy=y, r=4.5, class_=f"dot {side}"))
    if gains:
        for row in rows:
            said = f"{row['speedup']:.2f}x" if row["speedup"] else "other work"
            y = axes.y(max(_value(row, side, field) for side, _ in SIDES)) - 11
            marks.append(
                text(said, x=axes.x(row["context"]) + 4, y=y, text_anchor="middle", class_="small strong")
            )
    return marks


def _plans(plans: Sequence[Mapping[str, Any]], gpu_memory: int) -> list[str]:
    """A bar for the fullest GPU of each plan; what is neither weights nor pool is activations, graphs and head room."""
    marks = [
        text(
            f"the fullest GPU of each plan, {gpu_memory / 2**30:,.0f} GiB",
            x=26,
            y=BARS - 16,
            class_="strong small",
        ),
    ]
    x = BAR_LEFT + 130
    for kind, said in (
        ("weights", "weights"),
        ("pool", "KV pool"),
        ("rest", "activations, graphs, head room"),
    ):
        marks += [
            element("rect", x=x, y=BARS - 26, width=11, height=11, rx=2, class_=kind),
            text(said, x=x + 16, y=BARS - 16, class_="small"),
        ]
        x += 36 + 6.4 * len(said)
    for place, row in enumerate(plans):
        y = BARS + place * ROW
        marks.append(text(row["plan"], x=BAR_LEFT - 12, y=y + 15, text_anchor="end", class_="small"))
        if "refused" in row:
            marks.append(text(_cut(row["refused"]), x=BAR_LEFT, y=y + 15, class_="soft small"))
            continue
        wide = BAR_RIGHT - BAR_LEFT
        weights = wide * row["weights_bytes"] / gpu_memory
        pool = wide * row["pool_tokens"] * row["token_bytes"] / gpu_memory
        marks += [
            element("rect", x=BAR_LEFT, y=y, width=wide, height=20, rx=3, class_="rest"),
            element("rect", x=BAR_LEFT, y=y, width=weights, height=20, class_="weights"),
            element("rect", x=BAR_LEFT + weights, y=y, width=pool, height=20, class_="pool"),
            text(
                f"{row['pool_tokens']:,} tokens · {row['exchanged_bytes'] / 1024:,.0f} KiB exchanged a token",
                x=BAR_RIGHT + 12,
                y=y + 15,
                class_="small",
            ),
        ]
    return marks


def _cut(said: str, most: int = 118) -> str:
    return said if len(said) <= most else said[: most - 1] + "…"


def short(tokens: int) -> str:
    """A number of tokens in thousands of 1,024 where it is whole.

    >>> short(131072), short(3000)
    ('128K', '3,000')
    """
    return f"{tokens // 1024}K" if tokens >= 1024 and tokens % 1024 == 0 else f"{tokens:,}"
