"""The timeline as small multiples: one panel a signal, the run before and the run after in each.

Panels share the time axis; each has its own value axis from zero, written at its top.  Several sources of one
signal (four engines) are thin lines of one colour: the panel shows how far they lie apart, the tooltip names
them.  A signal that was zero throughout on every side is named in a line, not drawn.  Long series are thinned to their minimum and maximum in each of `COLUMNS` columns: peaks survive.
"""

from collections.abc import Sequence

import msgspec

from sits.app.report import numbers, stages, svg
from sits.core.report import Report, Series

COLUMNS = 160
PLOT_WIDTH, PLOT_HEIGHT = 1000, 100
LONG_RUN_S = 180.0

TITLES = {
    "ttft_p99": "P99 time to first token",
    "e2e_p99": "P99 end to end",
    "requests_waiting": "Waiting in the engine",
    "requests_running": "Running in the engine",
    "kv_usage": "KV cache in use",
    "link_bandwidth_gbytes_per_s": "Host-to-device link",
    "gateway_cpu_share": "Gateway CPU",
    "gateway_backlog_ms": "Gateway backlog",
    "window_pending": "Held in the window",
    "arrivals_per_s": "Arrivals",
    "batch_entropy": "Batch length entropy",
}


class Panel(msgspec.Struct, frozen=True):
    """One signal: title, unit, top of the value axis, plot, and its peak on each side."""

    title: str
    source: str
    unit: str
    top: str
    plot: str
    peaks: tuple[tuple[str, str], ...]


class Timeline(msgspec.Struct, frozen=True):
    """All panels and the time axis they share."""

    panels: tuple[Panel, ...]
    axis: str
    flat: tuple[str, ...]


Sides = Sequence[tuple[str, Sequence[Series]]]


def timeline(report: Report) -> Timeline | None:
    """The panels of a report; None where no series were kept."""
    sides = [("before", report.before.series), ("after", report.after.series if report.after else ())]
    every = [one for _, series in sides for one in series if one.t_s and one.value]
    if not every:
        return None
    low, high = min(0.0, *(min(one.t_s) for one in every)), max(max(one.t_s) for one in every)
    minutes = high - low > LONG_RUN_S
    names = list(dict.fromkeys(one.name for one in every))
    flat = [name for name in names if not any(any(one.value) for one in every if one.name == name)]
    return Timeline(
        panels=tuple(
            _panel(name, _of(name, sides), svg.Scale(low, high), report) for name in names if name not in flat
        ),
        flat=tuple(TITLES.get(name, stages.words(name)) for name in flat),
        axis=svg.axis(svg.Scale(low / 60, high / 60), unit="min")
        if minutes
        else svg.axis(svg.Scale(low, high), unit="s"),
    )


def _of(name: str, sides: Sides) -> Sides:
    """The series of one signal by side; a signal that both sides share to the last value is told once."""
    mine = [
        (kind, [one for one in series if one.name == name and one.t_s and one.value])
        for kind, series in sides
    ]
    if len(mine) > 1 and mine[0][1] == mine[1][1]:
        return [("same", mine[0][1])]
    return [(kind, series) for kind, series in mine if series]


def _panel(name: str, sides: Sides, span: svg.Scale, report: Report) -> Panel:
    lines = [(kind, one) for kind, series in sides for one in series]
    unit = lines[0][1].unit
    objective = report.objective_ms if name == f"{report.objective_metric}_p99" else None
    value = _value_axis([one for _, one in lines], objective, share=unit == "share")
    marks = [svg.element("line", x1=0, x2=PLOT_WIDTH, y1=y, y2=y, class_="grid") for y in (0.5, 50.0, 99.5)]
    if objective:
        y = PLOT_HEIGHT * (1 - value.share(objective) / 100)
        marks.append(svg.element("line", x1=0, x2=PLOT_WIDTH, y1=y, y2=y, class_="objective"))
    crowded = "thin" if max(len(series) for _, series in sides) > 1 else ""
    marks += [_line(one, kind, crowded, span, value) for kind, one in lines]
    sources = list(dict.fromkeys(one.source for _, one in lines if one.source))
    title = TITLES.get(name, stages.words(name))
    return Panel(
        title=title,
        source=sources[0] if len(sources) == 1 else f"{len(sources)} sources" if sources else "",
        unit="" if unit == "share" else unit,
        top=_shown(value.high, unit),
        plot=svg.element(
            "svg",
            *marks,
            viewBox=f"0 0 {PLOT_WIDTH} {PLOT_HEIGHT}",
            preserveAspectRatio="none",
            class_="plot",
            role="img",
            aria_label=f"{title} over time",
        ),
        peaks=tuple((kind, _shown(max(max(one.value) for one in series), unit)) for kind, series in sides),
    )


def _value_axis(series: Sequence[Series], objective: float | None, *, share: bool) -> svg.Scale:
    """From zero (or below) to a round value over everything; a share ends at 100 % unless it exceeds it."""
    highest = max(1e-9, objective or 0.0, *(max(one.value) for one in series))
    lowest = min(0.0, *(min(one.value) for one in series))
    if share and highest <= 1.0:
        return svg.Scale(lowest, 1.0)
    return svg.Scale(lowest, svg.round_up(highest))


def _shown(value: float, unit: str) -> str:
    return numbers.percent(value) if unit == "share" else numbers.number(value)


def _line(one: Series, kind: str, crowded: str, span: svg.Scale, value: svg.Scale) -> str:
    points = " ".join(
        f"{span.share(t) * PLOT_WIDTH / 100:.1f},{PLOT_HEIGHT * (1 - value.share(v) / 100):.1f}"
        for t, v in thinned(one.t_s, one.value)
    )
    tip = svg.title(f"{kind}, {one.source}") if one.source else svg.title(kind)
    return svg.element("polyline", tip, points=points, class_=f"line {kind} {crowded}")


def thinned(t_s: Sequence[float], value: Sequence[float]) -> list[tuple[float, float]]:
    """At most two points a column: the lowest and the highest, in the order they came.

    >>> len(thinned(list(range(1000)), [0.0] * 1000)) <= 2 * COLUMNS
    True
    """
    points = list(zip(t_s, value, strict=False))
    if len(points) <= 2 * COLUMNS:
        return points
    kept: list[tuple[float, float]] = []
    for column in range(COLUMNS):
        inside = points[column * len(points) // COLUMNS : (column + 1) * len(points) // COLUMNS]
        ends = {min(inside, key=lambda point: point[1]), max(inside, key=lambda point: point[1])}
        kept += sorted(ends)
    return kept
