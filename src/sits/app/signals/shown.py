"""Values for people: with units that are read at a glance, tables whose columns fit, the matrix of links.

Deliberately absent: what is shown (`app.signals.told`).
"""

from collections.abc import Iterator, Sequence
from typing import Any

_SIZES = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))
_RATES = ((1e12, "TB/s"), (1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s"))
DEVICES_SHOWN = 64


def value_text(value: float, unit: str) -> str:
    """The value with its unit.

    >>> [value_text(0.125, "share"), value_text(2**34, "bytes"), value_text(0.0123, "s"), value_text(7.0, "requests")]
    ['12.5 %', '16 GiB', '12.3 ms', '7 requests']
    """
    if unit == "share":
        return f"{value * 100:.3g} %"
    if unit == "s":
        return f"{value:.4g} s" if value >= 1 else f"{value * 1e3:.3g} ms"
    for scales, of in ((_SIZES, "bytes"), (_RATES, "bytes/s")):
        if unit == of:
            for size, name in scales:
                if abs(value) >= size:
                    return f"{value / size:.4g} {name}"
    shown = f"{value:,.0f}" if value == int(value) and abs(value) < 1e15 else f"{value:.4g}"
    return f"{shown} {unit}".strip()


def table(rows: Sequence[Sequence[str]], indent: str = "  ") -> Iterator[str]:
    """The rows with their columns aligned; the last is as long as it is."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]) - 1)] if rows else []
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        yield (indent + "  ".join([*cells, row[-1]])).rstrip()


def engine_lines(said: dict[str, Any]) -> Iterator[str]:
    """What an engine's page says."""
    known = f", release {said['release']} by its names" if said["release"] else ""
    yield f"{said['title']}{known}"
    rows = [(row["signal"], _shown(row), row["metric"], row["meaning"]) for row in said["signals"]]
    yield from table(rows)
    if said["lacks"]:
        yield "Not on this page, though this engine can tell it:"
        yield from table(
            [(row["signal"], ", ".join(row["metrics"]), row["meaning"]) for row in said["lacks"]]
        )
    if said["never_told"]:
        count = len(said["never_told"])
        yield f"{count} more signals this engine never tells on its page (--json names them)."
    if said["not_read"]:
        yield "On this page and not read:"
        yield from table(list(said["not_read"].items()))


def _shown(row: dict[str, Any]) -> str:
    unit = row["unit"]
    if "value" in row:
        return value_text(row["value"], unit)
    if not row["count"]:
        return "nothing yet"
    parts = [f"mean {value_text(row['mean'], unit)}"]
    for name in ("p50", "p99"):
        if name in row:
            one = row[name]
            high = value_text(one["high"], unit) if one["high"] is not None else "more"
            parts.append(f"{name.upper()} {value_text(one['low'], unit)} to {high}")
    return f"{', '.join(parts)} of {row['count']:,.0f}"


def gpu_lines(said: dict[str, Any]) -> Iterator[str]:
    """What a GPU tool or NVML says."""
    facts = ", ".join(f"{name} {text}" for name, text in said["facts"].items())
    yield said["kind"] + (f" ({facts})" if facts else "")
    devices = said["devices"]
    for device in devices[:DEVICES_SHOWN]:
        facts = ", ".join(f"{name} {text}" for name, text in device["facts"].items())
        if facts or device["signals"]:
            yield f"{device['device']}" + (f": {facts}" if facts else "")
        yield from table(
            [(row["signal"], value_text(row["value"], row["unit"])) for row in device["signals"]]
        )
    if len(devices) > DEVICES_SHOWN:
        yield f"... and {len(devices) - DEVICES_SHOWN} devices more"
    yield from link_lines([device["device"] for device in devices], said["links"])
    for event in said["events"]:
        from sits.telemetry.gpu.listings import XIDS  # noqa: PLC0415

        meaning = f" ({XIDS[event['xid']]})" if event["xid"] in XIDS else ""
        yield f"{event['when'] or 'once'}: {event['device']} Xid {event['xid']}{meaning}: {event['text']}"
    for remark in said["remarks"]:
        yield f"note: {remark}"


def link_lines(devices: Sequence[str], links: Sequence[dict[str, Any]]) -> Iterator[str]:
    """The matrix of links: `-` is a device itself, `?` is not told."""
    if not links:
        return
    names = list(dict.fromkeys([*devices, *(end for link in links for end in (link["a"], link["b"]))]))
    names = [name for name in names if any(name in (link["a"], link["b"]) for link in links)][:DEVICES_SHOWN]
    kinds = {frozenset((link["a"], link["b"])): _kind(link) for link in links}
    rows = [["", *names]]
    rows += [[a, *("-" if a == b else kinds.get(frozenset((a, b)), "?") for b in names)] for a in names]
    yield "Links (NV<n>: n NVLinks; PIX, PXB: over PCIe switches; PHB: a host bridge; NODE, SYS: through the processor, between sockets):"
    yield from table(rows)


def _kind(link: dict[str, Any]) -> str:
    return f"{link['bytes_per_s'] / 1e9:g}GB/s" if link["bytes_per_s"] else str(link["kind"])
