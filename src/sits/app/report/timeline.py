"""The timeline as small multiples: one panel a signal, the run before and the run after in each.

Panels share the time axis; each has its own value axis from zero, written at its top.  Several sources of one
signal (four engines) are thin lines of one colour: the panel shows how far they lie apart, the tooltip names
them.  Long series are thinned to their minimum and maximum in each of `COLUMNS` columns: peaks survive.
"""

from collections.abc import Sequence

import msgspec

from sits.app.report import numbers, svg
from sits.core.report import Report, Series

COLUMNS = 160
PLOT_WIDTH, PLOT_HEIGHT = 1000, 100
SECONDS_TO_MINUTES = 600.0

TITLES = {
    "ttft_ms_p99": "P99 time to first token",
    "e2e_ms_p99": "P99 end to end",
    "requests_waiting": "Requests waiting in the engine",
    "requests_running": "Requests running",
    "kv_usage": "KV cache in use",
    "link_bandwidth_gbytes_per_s": "Host-to-device bandwidth",
    "gateway_cpu_share": "Gateway CPU",
    "gateway_backlog_ms": "Gateway backlog",
    "window_pending": "Held in the batching window",
    "arrivals_per_s": "Arrivals",
    "batch_entropy": "Batch length entropy",
}


class Panel(msgspec.Struct, frozen=True):
    """One signal: title, unit, top of the value axis, plot, and the sources it is drawn from."""

    title: str
    unit: str
    top: str
    plot: str
    sources: str
    summary: str


class Timeline(msgspec.Struct, frozen=True):
    """All panels and the time axis they share."""

    panels: tuple[Panel, ...]
    start: str
    middle: str
    end: str


def timeline(report: Report) -> Timeline | None:
    """The panels of a report; None where no series were kept."""
    sides = [("before", report.before.series), ("after", report.after.series if report.after else ())]
    every = [one for _, series in sides for one in series if one.t_s]
    if not every:
        return None
    span = svg.Scale(min(min(one.t_s) for one in every), max(max(one.t_s) for one in every))
    names = list(dict.fromkeys(one.name for one in every))
    panels = tuple(
        _panel(name, [(kind, [one for one in series if one.name == name and one.t_s]) for kind, series in sides], span, report)
        for name in names
    )  # fmt: skip
    return Timeline(panels, _clock(span.low), _clock((span.low + span.high) / 2), _clock(span.high))


def _panel(name: str, sides: Sequence[tuple[str, list[Series]]], span: svg.Scale, report: Report) -> Panel:
    lines = [(kind, one) for kind, series in sides for one in series]
    unit = lines[0][1].unit
    objective = report.objective_ms if unit == "ms" and "p99" in name.lower() else None
    tops = [max(one.value, default=0.0) for _, one in lines] + ([objective] if objective else [])
    lows = [min(one.value, default=0.0) for _, one in lines]
    top = svg.nice_ticks(0, max(max(tops), 1e-9) * 1.25, 4)[-1]
    value = svg.Scale(min(0.0, *lows), max(top, max(tops)) or 1.0)
    marks = [svg.element("line", x1=0, x2=PLOT_WIDTH, y1=y, y2=y, class_="grid") for y in (0.5, 50.0, 99.5)]
    if objective:
        y = PLOT_HEIGHT * (1 - value.share(objective) / 100)
        marks.append(svg.element("line", x1=0, x2=PLOT_WIDTH, y1=y, y2=y, class_="objective"))
    crowded = "thin" if max(len(series) for _, series in sides) > 1 else ""
    marks += [_line(one, kind, crowded, span, value) for kind, one in lines]
    sources = list(dict.fromkeys(one.source for _, one in lines if one.source))
    return Panel(
        title=TITLES.get(name, name.replace("_", " ")),
        unit="" if unit == "share" else unit,
        top=numbers.percent(value.high) if unit == "share" else numbers.number(value.high),
        plot=svg.element(
            "svg", *marks, viewBox=f"0 0 {PLOT_WIDTH} {PLOT_HEIGHT}", preserveAspectRatio="none",
            class_="plot", role="img", aria_label=f"{TITLES.get(name, name)} over time",
        ),
        sources=", ".join(sources) if len(sources) <= 4 else f"{len(sources)} sources",
        summary=_peaks(sides, unit),
    )  # fmt: skip


def _peaks(sides: Sequence[tuple[str, list[Series]]], unit: str) -> str:
    peaks = [(kind, max(max(one.value) for one in series if one.value)) for kind, series in sides if series]
    shown = [numbers.percent(peak) if unit == "share" else numbers.number(peak) for _, peak in peaks]
    return f"peak {' → '.join(shown)}"


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


def _clock(seconds: float) -> str:
    if abs(seconds) < SECONDS_TO_MINUTES / 5:
        return f"{numbers.number(seconds)} s"
    return f"{numbers.number(seconds / 60)} min"
