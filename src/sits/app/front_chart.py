"""The front of a batching window as a drawing: left what each cell costs and buys, right the grid of cells.

Left, each point is a cell: engine busy to the right, P99 upwards (both less is better), the front a line of steps.  Cells that do the
same are one point, labelled by window and batches.  Right, the same cells in rows and columns: the darker, the
slower; hatched where the window is irrelevant, outlined where on the front.

Rules: every text is escaped; colours follow the reader's light or dark; a point's tooltip says all that is known of it.

Deliberately absent: interaction.
"""

import math
from collections.abc import Sequence
from html import escape

from sits.app.report.svg import element, nice_ticks, text, title
from sits.predict.front import Cell

WIDTH, HEIGHT = 1080, 470
LEFT, TOP, BOTTOM, SCATTER_RIGHT = 62, 66, 418, 590
GRID_LEFT, GRID_TOP, ROW = 700, 92, 44
LABEL_ROOM = 15
LEGEND = {
    "on_front": "on the front: no other cell is better in both",
    "size": "size-bound: the batch fills first, so the window is irrelevant",
    "saturated": "saturated: the engine cannot keep up",
}

SAME_PX = 7.0
"""Points closer than this are one."""

STYLE = """
svg{font:13px/1.3 "Inter","Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif;color:#1b1f24;background:#fff;
--ink:#1b1f24;--muted:#59626d;--line:#dcdfe3;--grid:#eceef1;--front:#0b659a;--rest:#9aa4af;--slow:#b8370f;--bg:#fff}
@media (prefers-color-scheme:dark){svg{color:#e7eaee;background:#14171a;
--ink:#e7eaee;--muted:#a3acb7;--line:#363d45;--grid:#252a30;--front:#62bcf3;--rest:#6d7782;--slow:#ff8c61;--bg:#14171a}}
text{fill:var(--ink)}.soft{fill:var(--muted)}.small{font-size:11.5px}.head{font-size:15px;font-weight:650}
.grid{stroke:var(--grid)}.axis{stroke:var(--line)}.steps{fill:none;stroke:var(--front);stroke-width:1.8;stroke-opacity:.55}
.dot{fill:var(--rest);stroke:var(--bg);stroke-width:1.5}.dot.on{fill:var(--front)}
.dot.size{fill:var(--bg);stroke:var(--rest);stroke-width:2}.dot.size.on{stroke:var(--front)}
.slo{stroke:var(--slow);stroke-dasharray:5 4;stroke-width:1.3}text.slo{fill:var(--slow);stroke:none}
.name{font-size:12px;paint-order:stroke;stroke:var(--bg);stroke-width:4px;stroke-linejoin:round}.name.on{font-weight:600}
.cell{fill:var(--slow);stroke:var(--bg);stroke-width:2}.cell.none{fill:var(--grid);fill-opacity:1}
.edge{fill:none;stroke:var(--front);stroke-width:2.2}.hatch{stroke:var(--muted);stroke-width:1;stroke-opacity:.55}
.value{font-weight:600;font-variant-numeric:tabular-nums}
"""


def kinds(cells: Sequence[Cell]) -> set[str]:
    """What of `LEGEND` there is among `cells`."""
    return {cell.bound for cell in cells} | {"on_front" for cell in cells if cell.on_front}


def standalone_svg(heading: str, cells: Sequence[Cell], slo: int | None) -> str:
    """The drawing as a file of its own."""
    return drawing(heading, cells, slo, standalone=True) + "\n"


def page_html(heading: str, cells: Sequence[Cell], slo: int | None, *advice: str) -> str:
    """The drawing on a page, with what it says in words."""
    said = "".join(element("p", escape(line)) for line in advice)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(heading)}</title><style>{STYLE}"
        "html{color-scheme:light dark}body{margin:0;padding:24px;background:#fff}"
        "@media (prefers-color-scheme:dark){body{background:#14171a;color:#e7eaee}}"
        'main{max-width:1080px;margin:0 auto;font:15px/1.5 "Inter","Segoe UI",Roboto,Arial,sans-serif}'
        "svg{width:100%;height:auto}p{margin:6px 0}</style></head><body><main>"
        f"{drawing(heading, cells, slo, standalone=False)}{said}</main></body></html>\n"
    )


def drawing(heading: str, cells: Sequence[Cell], slo: int | None, *, standalone: bool) -> str:
    """Both halves."""
    hatch = (
        '<defs><pattern id="size-bound" width="6" height="6" patternUnits="userSpaceOnUse" '
        'patternTransform="rotate(45)"><line class="hatch" x1="0" y1="0" x2="0" y2="6"/></pattern></defs>'
    )
    style = element("style", STYLE) if standalone else ""
    return element(
        "svg",
        style,
        hatch,
        text(heading, x=LEFT - 40, y=26, class_="head"),
        *_scatter(cells, slo),
        *_grid(cells, slo),
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        width=WIDTH if standalone else None,
        height=HEIGHT if standalone else None,
        role="img",
        aria_label=heading,
    )


class _Axes:
    """Busy share to the right, P99 upwards on a logarithmic axis."""

    def __init__(self, kept: Sequence[Cell], slo: int | None) -> None:
        values = [cell.expected.p99_ns / 1e6 for cell in kept] + ([slo / 1e6] if slo else [])
        self.low, self.high = min(values) / 1.12, max(values) * 1.12
        self.right = min(1.0, max(cell.expected.busy for cell in kept) * 1.06)

    def x(self, busy: float) -> float:
        return LEFT + busy / self.right * (SCATTER_RIGHT - LEFT)

    def y(self, ms: float) -> float:
        return BOTTOM - math.log(ms / self.low) / math.log(self.high / self.low) * (BOTTOM - TOP)

    def ms_ticks(self) -> list[float]:
        """1, 2, 5 times powers of ten, or finer where those are few."""
        power = 10.0 ** math.floor(math.log10(self.low))
        steps = (1.0, 1.5, 2.0, 3.0, 5.0, 7.0) if self.high / self.low < 12 else (1.0, 2.0, 5.0)
        marks = [power * 10.0**i * step for i in range(8) for step in steps]
        return [mark for mark in marks if self.low <= mark <= self.high]


def _scatter(cells: Sequence[Cell], slo: int | None) -> list[str]:
    kept = [cell for cell in cells if cell.bound != "saturated"]
    marks = [text("P99, ms", x=LEFT - 40, y=TOP - 14, class_="soft small")]
    said = "each point: window · at most so many a call"
    marks.append(text(said, x=SCATTER_RIGHT, y=TOP - 14, text_anchor="end", class_="soft small"))
    if not kept:
        return [*marks, text("no cell keeps up with this rate", x=LEFT, y=TOP + 40)]
    axes = _Axes(kept, slo)
    for ms in axes.ms_ticks():
        y = axes.y(ms)
        marks += [element("line", x1=LEFT, x2=SCATTER_RIGHT, y1=y, y2=y, class_="grid")]
        marks += [
            text(
                f"{ms:,.0f}" if ms >= 1000 else f"{ms:g}",
                x=LEFT - 8,
                y=y + 4,
                text_anchor="end",
                class_="soft small",
            )
        ]
    for busy in nice_ticks(0.0, axes.right, 5):
        x = axes.x(busy)
        marks += [element("line", x1=x, x2=x, y1=TOP, y2=BOTTOM, class_="grid")]
        marks += [text(f"{busy:.0%}", x=x, y=BOTTOM + 17, text_anchor="middle", class_="soft small")]
    marks += [text("engine busy", x=SCATTER_RIGHT, y=BOTTOM + 35, text_anchor="end", class_="soft small")]
    if slo:
        y = axes.y(slo / 1e6)
        marks += [element("line", x1=LEFT, x2=SCATTER_RIGHT, y1=y, y2=y, class_="slo")]
        marks += [text(f"objective {slo / 1e6:g} ms", x=LEFT + 6, y=y - 6, class_="slo small")]
    return [*marks, _steps(axes, kept), *_points(axes, kept)]


def _steps(axes: _Axes, kept: Sequence[Cell]) -> str:
    """The front as steps: between two of its cells nothing is better than the worse of both."""
    on = sorted((cell for cell in kept if cell.on_front), key=lambda cell: cell.expected.busy)
    at = [(axes.x(cell.expected.busy), axes.y(cell.expected.p99_ns / 1e6)) for cell in on]
    path = "".join(f"{'H' if i else 'M'}{x:.1f}{'V' if i else ','}{y:.1f}" for i, (x, y) in enumerate(at))
    return element("path", d=path, class_="steps")


def _points(axes: _Axes, kept: Sequence[Cell]) -> list[str]:
    """Dots, those of equal cells as one, and labels where there is room; the front is labelled first."""
    groups: list[tuple[float, float, list[Cell]]] = []
    for cell in sorted(kept, key=lambda one: not one.on_front):
        x, y = axes.x(cell.expected.busy), axes.y(cell.expected.p99_ns / 1e6)
        near = next((group for group in groups if math.hypot(group[0] - x, group[1] - y) < SAME_PX), None)
        if near is None:
            groups.append((x, y, [cell]))
        else:
            near[2].append(cell)
    dots, labels, taken = [], [], [(x - 6, y - 6, x + 6, y + 6) for x, y, _ in groups]
    for x, y, group in groups:
        on = any(cell.on_front for cell in group)
        size = all(cell.bound == "size" for cell in group)
        kind = f"dot{' size' if size else ''}{' on' if on else ''}"
        tip = title("\n".join(_told(cell) for cell in group))
        dots.append(element("circle", tip, cx=x, cy=y, r=5.5 if on else 4.0, class_=kind))
        place = _room(x, y, len(_name(group)) * 6.6, taken)
        if place is not None and (on or len(groups) < LABEL_ROOM):
            at, anchor = place
            labels.append(
                text(
                    _name(group),
                    x=at[0],
                    y=at[1],
                    text_anchor=anchor,
                    class_=f"name{' on' if on else ' soft'}",
                )
            )
    return [*sorted(dots, key=lambda dot: " on" in dot), *labels]


def _room(
    x: float, y: float, wide: float, taken: list[tuple[float, float, float, float]]
) -> tuple[tuple[float, float], str] | None:
    """Where a label beside a point meets nothing, and its anchor; the place is taken from then on."""
    places = [
        ((x - 10, y + 4), "end"), ((x + 10, y + 4), "start"), ((x, y - 11), "middle"), ((x, y + 20), "middle"),
        ((x + 10, y - 8), "start"), ((x + 10, y + 16), "start"), ((x - 10, y - 8), "end"), ((x - 10, y + 16), "end"),
    ]  # fmt: skip
    for (at_x, at_y), anchor in places:
        left = at_x - {"start": 0.0, "middle": wide / 2, "end": wide}[anchor]
        box = (left, at_y - 10, left + wide, at_y + 3)
        inside = (
            box[0] >= LEFT + 2 and box[2] <= SCATTER_RIGHT + 46 and box[1] >= TOP - 12 and box[3] <= BOTTOM
        )
        if inside and not any(_meet(box, other) for other in taken):
            taken.append(box)
            return (at_x, at_y), anchor
    return None


def _meet(one: tuple[float, float, float, float], other: tuple[float, float, float, float]) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def _name(group: Sequence[Cell]) -> str:
    """Windows and batches of cells that do the same."""
    windows = list(dict.fromkeys(cell.name for cell in sorted(group, key=lambda one: one.window_ns or 0)))
    sizes = sorted({cell.max_batch for cell in group})
    shown = windows[0] if len(windows) == 1 else f"{windows[0]} to {windows[-1]}"
    return f"{shown} · {sizes[0]}" if len(sizes) == 1 else f"{shown} · {sizes[0]}–{sizes[-1]}"


def _grid(cells: Sequence[Cell], slo: int | None) -> list[str]:
    batches = sorted({cell.max_batch for cell in cells})
    rows = [cells[i : i + len(batches)] for i in range(0, len(cells), len(batches))]
    wide = min(96.0, (WIDTH - 16 - GRID_LEFT) / len(batches))
    high = min(ROW, (BOTTOM - GRID_TOP) / len(rows))
    kept = [cell.expected.p99_ns for cell in cells if cell.bound != "saturated"]
    low, span = (min(kept), math.log(max(kept) / min(kept)) or 1.0) if kept else (1.0, 1.0)
    marks = [text("at most so many a call", x=GRID_LEFT, y=TOP - 14, class_="soft small")]
    marks += [text("window", x=GRID_LEFT - 12, y=GRID_TOP - 8, text_anchor="end", class_="soft small")]
    for j, size in enumerate(batches):
        marks.append(
            text(
                str(size),
                x=GRID_LEFT + (j + 0.5) * wide,
                y=GRID_TOP - 8,
                text_anchor="middle",
                class_="small",
            )
        )
    edges = []
    for i, row in enumerate(rows):
        y = GRID_TOP + i * high
        marks.append(
            text(row[0].name, x=GRID_LEFT - 12, y=y + high / 2 + 4, text_anchor="end", class_="small")
        )
        for j, cell in enumerate(row):
            x = GRID_LEFT + j * wide
            marks.append(_box(cell, x, y, wide, high, low, span))
            if cell.on_front:
                edges.append(
                    element("rect", x=x + 2, y=y + 2, width=wide - 4, height=high - 4, rx=4, class_="edge")
                )
    end = GRID_TOP + len(rows) * high
    return [*marks, *edges, *_legend(end + 20, kinds(cells))]


def _box(cell: Cell, x: float, y: float, wide: float, high: float, low: float, span: float) -> str:
    """One cell of the grid: its tint is its P99 on a logarithmic scale."""
    place = {"x": x, "y": y, "width": wide, "height": high, "rx": 5}
    if cell.bound == "saturated":
        inner = text(
            "cannot keep up" if wide > 88 else "–",
            x=x + wide / 2,
            y=y + high / 2 + 4,
            text_anchor="middle",
            class_="soft small",
        )
        return element("g", title(_told(cell)), element("rect", **place, class_="cell none"), inner)
    tint = 0.06 + 0.5 * math.log(cell.expected.p99_ns / low) / span
    hatch = element("rect", **place, fill="url(#size-bound)") if cell.bound == "size" else ""
    return element(
        "g",
        title(_told(cell)),
        element("rect", **place, class_="cell", fill_opacity=tint),
        hatch,
        text(
            _figure(cell.expected.p99_ns),
            x=x + wide / 2,
            y=y + high / 2 - 1,
            text_anchor="middle",
            class_="value",
        ),
        text(
            f"{cell.expected.busy:.0%} busy",
            x=x + wide / 2,
            y=y + high / 2 + 13,
            text_anchor="middle",
            class_="soft small",
        ),
    )


def _legend(y: float, there: set[str]) -> list[str]:
    keys = {
        "on_front": element("rect", x=GRID_LEFT, y=y - 11, width=14, height=14, rx=3, class_="edge"),
        "size": element("rect", x=GRID_LEFT, y=y - 11, width=14, height=14, rx=3, fill="url(#size-bound)"),
        "saturated": text("–", x=GRID_LEFT + 4, y=y, class_="soft"),
    }
    marks, line = [], y
    for kind, key in keys.items():
        if kind in there:
            marks += [element("g", key, transform=f"translate(0 {line - y:g})")]
            marks += [text(LEGEND[kind], x=GRID_LEFT + 22, y=line, class_="small")]
            line += 20
    return marks


def _told(cell: Cell) -> str:
    seen = cell.expected
    window = "sent when the engine is free" if cell.window_ns is None else f"window {cell.name}"
    if cell.bound == "saturated":
        return f"{window}, at most {cell.max_batch} a call: the engine cannot keep up"
    return (
        f"{window}, at most {cell.max_batch} a call: P99 {_figure(seen.p99_ns)}, P50 {_figure(seen.p50_ns)}, "
        f"engine {seen.busy:.0%} busy, {seen.batch_mean:.1f} a call, {seen.per_engine_s:.0f} answers an engine second"
    )


def _figure(ns: float) -> str:
    ms = ns / 1e6
    if ms >= 1000:
        return f"{ms / 1000:.3g} s"
    return f"{ms:.0f} ms" if ms >= 100 else f"{ms:.1f} ms" if ms >= 10 else f"{ms:.2f} ms"
