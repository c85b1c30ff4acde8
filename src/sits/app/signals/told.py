"""One text of an engine or a GPU tool as a document: who wrote it, each signal with unit, meaning and origin, and what is not there.

Rules: a signal that the text does not tell is listed as lacking and has no value; metrics that look right and mislead are named with
the reason why they are not read.

Deliberately absent: fetching and printing.
"""

import re
from typing import Any

from sits.core.engine_names import BY_NAME, SIGNALS, TITLES, TRAPS, detect, names_of, release
from sits.core.errors import CallerError, EngineError
from sits.telemetry.gpu.dcgm import is_exporter, read_exporter
from sits.telemetry.gpu.recognise import HEAD, READABLE, read_gpu_text
from sits.telemetry.gpu.report import UNITS, Report
from sits.telemetry.prometheus_text import Histogram, Scrape, parse
from sits.telemetry.signals import view
from sits.telemetry.slots import UNITS as SLOT_UNITS
from sits.telemetry.slots import looks_like_slots, read_slots

_METRICS = re.compile(r"^# (?:TYPE|HELP) [A-Za-z_:]", re.MULTILINE)


def told_by(text: str, model: str = "") -> dict[str, Any]:
    """What `text` says.

    Raises:
        CallerError: nobody known wrote it.

    """
    text = text.removeprefix("\ufeff")
    if looks_like_slots(text):
        values = read_slots(text)
        rows = [
            {"signal": name, "value": value, "unit": SLOT_UNITS[name], "kind": "gauge"}
            for name, value in values.items()
        ]
        return {"kind": "llama.cpp /slots", "signals": rows}
    try:
        page = parse(text)
    except EngineError as error:
        try:
            return of_report(read_gpu_text(text))
        except CallerError:
            if not _METRICS.search(text[:HEAD]):
                raise
        raise CallerError(
            f"this is a metrics page that cannot be read: {error.message}", field=error.field, hint=error.hint
        ) from None
    names = page.names
    if any(name.startswith("sits_") for name in names):
        raise CallerError(
            "this is the metrics page of a SITS gateway, not of an engine",
            field="source",
            hint="name an engine's own page: its `url` in the fleet.yaml, and /metrics; `sitsctl top` shows the gateway's",
        )
    if family := detect(names):
        return _engine(page, family, model)
    if is_exporter(names):
        return of_report(read_exporter(page))
    try:
        return of_report(read_gpu_text(text))
    except CallerError:
        if not names:
            raise
    some = ", ".join(sorted(names)[:5]) + (", ..." if len(names) > 5 else "")
    raise CallerError(
        f"this metrics page is of no engine or exporter known here (it has {some})",
        hint=f"engines: {', '.join(TITLES.values())}; also {READABLE}",
    )


def of_report(report: Report) -> dict[str, Any]:
    """A GPU tool's report as a document."""
    return {
        "kind": report.kind,
        "facts": report.facts,
        "devices": [
            {
                "device": device.name,
                "facts": device.facts,
                "signals": [
                    {"signal": name, "value": device.values[name], "unit": unit}
                    for name, unit in UNITS.items()
                    if name in device.values
                ],
            }
            for device in report.devices
        ],
        "links": [
            {"a": link.a, "b": link.b, "kind": link.kind, "bytes_per_s": link.bytes_per_s}
            for link in report.links
        ],
        "events": [
            {"when": event.when, "device": event.device, "xid": event.code, "text": event.text}
            for event in report.events
        ],
        "remarks": list(report.remarks),
    }


def _engine(page: Scrape, family: str, model: str) -> dict[str, Any]:
    seen = view(page, model)
    rows: list[dict[str, Any]] = []
    for signal in SIGNALS:
        row: dict[str, Any] = {"signal": signal.name, "unit": signal.unit, "kind": signal.kind}
        if signal.name in seen.values:
            row["value"] = seen.values[signal.name]
        elif signal.name in seen.histograms:
            row |= _of_histogram(seen.histograms[signal.name])
        else:
            continue
        rows.append(row | {"metric": seen.used[signal.name], "meaning": signal.meaning})
    have = {row["signal"] for row in rows}
    return {
        "kind": "engine",
        "family": family,
        "title": TITLES[family],
        "release": release(family, page.names),
        "signals": rows,
        "lacks": [
            {"signal": name, "meaning": BY_NAME[name].meaning, "metrics": metrics}
            for name in BY_NAME
            if name not in have and (metrics := _current(name, family))
        ],
        "never_told": [name for name in BY_NAME if name not in have and not _current(name, family)],
        "not_read": {name: why for name, why in TRAPS.items() if page.names & {name, f"{name}_count"}},
    }


def _current(name: str, family: str) -> list[str]:
    """What the family calls the signal today: names that only old releases have are not missed."""
    return [row.name for row in names_of(name, family) if not row.versions.startswith(("<", "before"))]


def _of_histogram(histogram: Histogram) -> dict[str, Any]:
    """Mean (exact) and quantiles (from buckets: with the bounds between which they lie), since the engine started."""
    made: dict[str, Any] = {"count": histogram.count, "mean": histogram.mean}
    for name, q in (("p50", 0.5), ("p99", 0.99)):
        found = histogram.quantile(q)
        if found is not None:
            high = found.high if found.high != float("inf") else None
            made[name] = {"value": found.value, "low": found.low, "high": high}
    return made
