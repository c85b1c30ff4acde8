"""The section of processor time: the flame graph, filtered by layer or by what slow requests do differently, and the operations in figures.

Rules: no script: filters are radio buttons, and the style sheet dims what is not meant.  A share stands beside the samples behind it.

Deliberately absent: zoom and search; `sitsctl profile show` makes a page that has them.
"""

from typing import Any

import msgspec

from sits.app.report.flame import draw, layer_class, short
from sits.core.cpu_report import CpuDifference, CpuOperation, CpuTime

LEAST = 0.005
"""Share of a layer that is worth a filter, of an operation that is worth a word."""


def cpu(found: CpuTime | msgspec.UnsetType) -> dict[str, Any] | None:
    """What the template places; None where nothing was sampled."""
    if not isinstance(found, CpuTime):
        return None
    compared = any(one.differs for one in found.operations)
    return {
        "says": _says(found),
        "lede": (
            f"{found.samples:,} samples of {found.processes or 'one process'}, {found.hz:.3g} a second of CPU time, in {found.window_s:,.3g} s; "
            f"{found.requests:,} requests are in them. Waiting is not in it: this is the gateway's own work."
        ),
        "layers": _layers(found),
        "flame": draw(found.nodes, found.cpu_s),
        "slow": draw(found.slow_nodes, found.slow_cpu_s) if found.slow_nodes else "",
        "slow_says": (
            f"{found.slow_samples:,} samples of {found.slow_requests:,} slow requests. Widths: their shares; colour: the difference to all others, "
            "grey where it cannot be told from chance."
        ),
        "hidden": f"Functions too small to be drawn: {found.hidden:,}." if found.hidden else "",
        "compared": compared,
        "why_not": found.why_not,
        "operations": [_row(one, named=False) for one in found.operations],
        "functions": [_row(one, named=True) for one in found.functions],
    }


def _says(found: CpuTime) -> str:
    """What slow requests do more; else what takes most."""
    more = [
        one
        for one in found.operations
        if one.differs is not None and one.differs.told and one.differs.value.value > 0 and one.name
    ]
    if more:
        first = max(more, key=lambda one: one.differs.value.value if one.differs else 0.0)
        differs = first.differs
        assert differs is not None
        return f"Slow requests spend {differs.slow:.0%} of their CPU time in {first.name}, the others {differs.rest:.0%}."
    named = [
        f"{one.name} {one.share.value:.0%}"
        for one in found.operations
        if one.name and one.share.value >= LEAST
    ][:3]
    return f"Most CPU time goes to {', '.join(named)}." if named else ""


def _layers(found: CpuTime) -> list[tuple[str, str, str]]:
    """Class, name and share of each layer worth a filter, the largest first."""
    shares: dict[str, float] = {}
    for one in found.operations:
        kind = layer_class(one.name.split("/")[0])
        shares[kind] = shares.get(kind, 0.0) + one.share.value
    return [
        (kind, "not known" if kind == "none" else kind, f"{share:.0%}")
        for kind, share in sorted(shares.items(), key=lambda pair: -pair[1])
        if share >= LEAST
    ]


def _row(one: CpuOperation, *, named: bool) -> dict[str, Any]:
    differs = one.differs
    return {
        "name": short(one.name) if named else one.name or "not known",
        "file": one.file,
        "kind": layer_class(one.name.split("/")[0]),
        "share": f"{one.share.value:.1%}",
        "off": f"±{50 * (one.share.high - one.share.low):.1f}",
        "samples": f"{one.samples:,}",
        "differs": _difference(differs) if differs else None,
    }


def _difference(one: CpuDifference) -> dict[str, str]:
    return {
        "slow": f"{one.slow:.1%}",
        "rest": f"{one.rest:.1%}",
        "value": f"{100 * one.value.value:+.1f}",
        "interval": f"{100 * one.value.low:+.1f} to {100 * one.value.high:+.1f}",
        "counts": f"{one.slow_samples:,} / {one.rest_samples:,}",
        "doubt": "" if one.told else "not told from chance",
    }
