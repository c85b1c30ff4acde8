"""P99 against load as a drawing: the curve, measured points, the bootstrap's band, and the knee with its interval.

Rules: both axes begin at zero; what is above the largest shown latency is cut and not squeezed; colours follow the reader's light or dark.

Deliberately absent: interaction.
"""

from collections.abc import Sequence

from sits.app.report.svg import element, nice_ticks, text, title

WIDTH, HEIGHT = 860, 460
LEFT, RIGHT, TOP, BOTTOM = 80, 830, 70, 400

STYLE = """
svg{font:13px/1.3 "Inter","Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif;color:#1b1f24;background:#fff;
--ink:#1b1f24;--muted:#59626d;--line:#dcdfe3;--grid:#eceef1;--front:#0b659a;--slow:#b8370f;--bg:#fff}
@media (prefers-color-scheme:dark){svg{color:#e7eaee;background:#14171a;
--ink:#e7eaee;--muted:#a3acb7;--line:#363d45;--grid:#252a30;--front:#62bcf3;--slow:#ff8c61;--bg:#14171a}}
text{fill:var(--ink)}.soft{fill:var(--muted)}.head{font-size:15px;font-weight:650}
.grid{stroke:var(--grid)}.axis{stroke:var(--line)}.curve{fill:none;stroke:var(--front);stroke-width:2.2}
.curve.doubt{stroke-dasharray:5 4;stroke-opacity:.7}.band{fill:var(--front);fill-opacity:.14}
.dot{fill:var(--ink);stroke:var(--bg);stroke-width:1.5}.mark{fill:var(--slow);stroke:var(--bg);stroke-width:2}
.knee{fill:var(--slow);fill-opacity:.13}.kneeline{stroke:var(--slow);stroke-width:1.6}text.knee{fill:var(--slow);fill-opacity:1;font-weight:600}
"""

Pairs = Sequence[tuple[float, float]]


class _Axes:
    """Load to the right, P99 in ms upwards."""

    def __init__(self, most_load: float, most_ms: float, unit: str) -> None:
        self.load, self.ms, self.unit = most_load * 1.03, most_ms * 1.08, unit

    def x(self, load: float) -> float:
        return LEFT + load / self.load * (RIGHT - LEFT)

    def y(self, ns: float) -> float:
        return BOTTOM - min(1.0, ns / 1e6 / self.ms) * (BOTTOM - TOP)


def drawing(
    *,
    heading: str,
    curve: Pairs,
    points: Pairs = (),
    band: Sequence[tuple[float, float, float]] = (),
    knee: tuple[float, float, float] | None = None,
    factor: float = 2.0,
    mark: tuple[float, float] | None = None,
    trusted: float | None = None,
) -> str:
    """The drawing as a file of its own; latencies ns.

    `mark` is the load asked about, `trusted` the load up to which the curve is believed.
    """
    shown = [*points, *([mark] if mark else [])] or list(curve)
    most = max([ns for _, ns in shown], default=1e6) / 1e6
    if not points and curve:
        # A predicted curve ends in a wall: show it up to some times the mark, or the floor where there is none.
        most = max(most if mark else 0.0, 6.0 * curve[0][1] / 1e6)
    axes = _Axes(
        max([load for load, _ in (*curve, *shown)], default=1.0),
        most,
        "load" if points else "requests a second",
    )
    marks = [*_grid(axes), *_knee(axes, knee, factor), *_band(axes, band), *_curve(axes, curve, trusted)]
    for load, ns in points:
        tip = title(f"{load:g}: P99 {ns / 1e6:,.1f} ms")
        marks.append(element("circle", tip, cx=axes.x(load), cy=axes.y(ns), r=5, class_="dot"))
    if mark:
        x, y = axes.x(mark[0]), axes.y(mark[1])
        anchor = "start" if x < LEFT + 180 else "end"
        marks.append(element("circle", cx=x, cy=y, r=6, class_="mark"))
        label = f"{mark[1] / 1e6:,.0f} ms at {mark[0]:.3g}/s"
        marks.append(
            text(label, x=x + (10 if anchor == "start" else -10), y=y - 8, text_anchor=anchor, class_="knee")
        )
    svg = element(
        "svg",
        element("style", STYLE),
        text(heading if len(heading) < 110 else heading[:109] + "…", x=LEFT - 56, y=28, class_="head"),
        *marks,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        width=WIDTH,
        height=HEIGHT,
        role="img",
        aria_label=heading,
    )
    return svg + "\n"


def _grid(axes: _Axes) -> list[str]:
    marks = []
    for ms in nice_ticks(0.0, axes.ms, 5):
        y = axes.y(ms * 1e6)
        marks.append(element("line", x1=LEFT, x2=RIGHT, y1=y, y2=y, class_="grid" if ms else "axis"))
        marks.append(
            text(
                f"{ms:,.0f}" if axes.ms > 20 else f"{ms:g}",
                x=LEFT - 10,
                y=y + 4,
                text_anchor="end",
                class_="soft",
            )
        )
    marks += [
        text(f"{load:g}", x=axes.x(load), y=BOTTOM + 20, text_anchor="middle", class_="soft")
        for load in nice_ticks(0.0, axes.load, 8)
    ]
    marks.append(text("P99, ms", x=LEFT - 56, y=TOP - 14, class_="soft"))
    marks.append(text(axes.unit, x=RIGHT, y=BOTTOM + 42, text_anchor="end", class_="soft"))
    return marks


def _line(axes: _Axes, pairs: Pairs) -> str:
    """As a path that leaves through the top edge and ends there."""
    limit = axes.ms * 1e6
    kept: list[tuple[float, float]] = []
    for load, ns in pairs:
        if ns > limit:
            if kept:
                a, b = kept[-1]
                share = (limit - b) / (ns - b)
                kept.append((a + share * (load - a), limit))
            break
        kept.append((load, ns))
    return "M" + " L".join(f"{axes.x(load):.1f},{axes.y(ns):.1f}" for load, ns in kept) if kept else ""


def _curve(axes: _Axes, curve: Pairs, trusted: float | None) -> list[str]:
    if not curve:
        return []
    if trusted is None:
        return [element("path", d=_line(axes, curve), class_="curve")]
    sure = [pair for pair in curve if pair[0] <= trusted]
    rest = [pair for pair in curve if pair[0] >= (sure[-1][0] if sure else 0.0)]
    x = axes.x(trusted)
    return [
        element("path", d=_line(axes, sure), class_="curve"),
        element("path", d=_line(axes, rest), class_="curve doubt"),
        element("line", x1=x, x2=x, y1=TOP, y2=BOTTOM, class_="axis"),
        text("simulate from here", x=x + 6, y=TOP + 12, class_="soft"),
    ]


def _band(axes: _Axes, band: Sequence[tuple[float, float, float]]) -> list[str]:
    if not band:
        return []
    upper = [(axes.x(load), axes.y(high)) for load, _, high in band]
    lower = [(axes.x(load), axes.y(low)) for load, low, _ in reversed(band)]
    return [
        element(
            "path", d="M" + " L".join(f"{x:.1f},{y:.1f}" for x, y in [*upper, *lower]) + "Z", class_="band"
        )
    ]


def _knee(axes: _Axes, knee: tuple[float, float, float] | None, factor: float) -> list[str]:
    if knee is None:
        return []
    value, low, high = knee
    left, right, x = axes.x(low), min(axes.x(high), float(RIGHT)), axes.x(value)
    return [
        element("rect", x=left, y=TOP, width=max(1.0, right - left), height=BOTTOM - TOP, class_="knee"),
        element("line", x1=x, x2=x, y1=TOP, y2=BOTTOM, class_="kneeline"),
        text(
            f"P99 x{factor:g} at {value:.3g} ({low:.3g} .. {high:.3g})",
            x=x - 8,
            y=TOP - 8,
            text_anchor="middle",
            class_="knee",
        ),
    ]
