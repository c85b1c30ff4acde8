"""Panels of a Grafana dashboard, as its JSON (schema version 38): few kinds, each with its unit, laid out left to right.

Rules: a panel says in its description what is shown and how it is computed; queries go to the data source the reader picks at the top.
Source of the form: Grafana's own types (the `dashboard`, `timeseries`, `stat`, `statetimeline` and `heatmap` kinds of its foundation SDK).

Deliberately absent: which panels there are.
"""

from collections.abc import Sequence
from typing import Any

WIDTH = 24
SOURCE = {"type": "prometheus", "uid": "${source}"}
GOOD, WARN, BAD = "green", "orange", "red"

Json = dict[str, Any]
Query = tuple[str, str]
"""A PromQL expression and the legend of its series (`{{label}}`)."""

Step = tuple[str, float | None]


def series(title: str, queries: Sequence[Query], unit: str, about: str, limit: float | None = None) -> Json:
    """Lines over time; `limit` is drawn as a line of its own, the promise."""
    custom: Json = {"lineWidth": 2, "fillOpacity": 8, "showPoints": "never", "spanNulls": False}
    steps: list[Step] = [("transparent", None)]
    if limit is not None:
        custom["thresholdsStyle"] = {"mode": "dashed"}
        steps.append((BAD, limit))
    options = {
        "legend": {
            "displayMode": "table",
            "placement": "bottom",
            "showLegend": True,
            "calcs": ["lastNotNull", "max"],
        },
        "tooltip": {"mode": "multi", "sort": "desc"},
    }
    return _panel(
        "timeseries",
        title,
        queries,
        about,
        options,
        {"unit": unit, "custom": custom, "min": 0} | _steps(steps),
    )


def stat(title: str, query: str, unit: str, about: str, steps: Sequence[Step]) -> Json:
    """One number, coloured by `steps` (colour from this value on; None = from the lowest)."""
    options = {
        "reduceOptions": {"values": False, "calcs": ["lastNotNull"], "fields": ""},
        "colorMode": "background",
        "graphMode": "area",
        "textMode": "auto",
        "justifyMode": "auto",
        "orientation": "auto",
    }
    return _panel("stat", title, [(query, "")], about, options, {"unit": unit, "decimals": 2} | _steps(steps))


def states(title: str, query: Query, about: str) -> Json:
    """Up or down over time, a row each."""
    options = {
        "showValue": "never",
        "mergeValues": True,
        "rowHeight": 0.8,
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": False, "calcs": []},
        "tooltip": {"mode": "single", "sort": "none"},
    }
    words = {"0": {"text": "down", "color": BAD, "index": 0}, "1": {"text": "up", "color": GOOD, "index": 1}}
    field = {"mappings": [{"type": "value", "options": words}], "custom": {"fillOpacity": 80, "lineWidth": 0}}
    return _panel("state-timeline", title, [query], about, options, field | _steps([(BAD, None), (GOOD, 1)]))


def heat(title: str, query: str, unit: str, about: str) -> Json:
    """A histogram over time."""
    options = {
        "calculate": False,
        "yAxis": {"unit": unit, "axisPlacement": "left"},
        "color": {
            "mode": "scheme",
            "scheme": "Oranges",
            "steps": 64,
            "scale": "exponential",
            "exponent": 0.5,
            "fill": "dark-orange",
            "reverse": False,
        },
        "cellGap": 1,
        "filterValues": {"le": 1e-9},
        "showValue": "never",
        "tooltip": {"show": True, "yHistogram": True},
        "legend": {"show": True},
        "exemplars": {"color": "rgba(255,0,255,0.7)"},
        "rowsFrame": {"layout": "auto"},
    }
    found = _panel("heatmap", title, [(query, "{{le}}")], about, options, {})
    found["targets"][0]["format"] = "heatmap"
    return found


def laid_out(rows: Sequence[tuple[str, int, Sequence[Json]]]) -> list[Json]:
    """Rows of panels, each row with a title and a height, its panels of one width."""
    found, top, number = [], 0, 0
    for title, height, panels in rows:
        number += 1
        found.append(
            {
                "type": "row",
                "title": title,
                "collapsed": False,
                "id": number,
                "panels": [],
                "gridPos": {"h": 1, "w": WIDTH, "x": 0, "y": top},
            }
        )
        top += 1
        width = WIDTH // len(panels)
        for i, panel in enumerate(panels):
            number += 1
            found.append(
                panel | {"id": number, "gridPos": {"h": height, "w": width, "x": i * width, "y": top}}
            )
        top += height
    return found


def _panel(
    kind: str, title: str, queries: Sequence[Query], about: str, options: Json, defaults: Json
) -> Json:
    targets = [
        {
            "refId": chr(ord("A") + i),
            "datasource": SOURCE,
            "expr": expr,
            "legendFormat": legend,
            "range": True,
        }
        for i, (expr, legend) in enumerate(queries)
    ]
    return {
        "type": kind,
        "title": title,
        "description": about,
        "datasource": SOURCE,
        "targets": targets,
        "options": options,
        "fieldConfig": {"defaults": defaults, "overrides": []},
    }


def _steps(steps: Sequence[Step]) -> Json:
    return {
        "thresholds": {
            "mode": "absolute",
            "steps": [{"color": color, "value": value} for color, value in steps],
        }
    }
