"""The flame graph as one SVG: the whole at the top, below each function those it called, widths are shares of CPU time.

Every function is an SVG of its own inside the drawing, placed in percent: so it stretches with the page, its name is cut off at its edge
by the drawing itself, and zooming is nothing but other percentages (`flame.js`).  Without a script it is a plain picture.

Rules: colour is the layer, or, where two groups are compared, the difference of shares, grey where it cannot be told from chance.

Deliberately absent: which functions there are (`app.profiles.flame`), and colours (the style sheet of the page).
"""

from collections.abc import Sequence

from sits.app.report.svg import element, text, title
from sits.core.cpu_report import CpuDifference, CpuNode

ROW = 20

NAMED = 0.025
"""Nodes narrower than this have no name without the script: a telephone shows nine pixels of them."""

STEPS = 5
"""Depths of colour on each side of no difference."""

LAYERS = ("http", "gateway", "scheduler", "device", "model", "telemetry", "loop", "app")
"""Layers that have a colour; all others are `none`."""


def draw(nodes: Sequence[CpuNode], cpu_s: float, *, walked: bool = False) -> str:
    """The drawing; `cpu_s` is the CPU time of all of it, `walked` whether a script lets keys walk in it."""
    return element(
        "svg",
        *(_mark(node, cpu_s, walked=walked) for node in nodes),
        class_="flame",
        width="100%",
        height=(max((node.depth for node in nodes), default=0) + 1) * ROW,
        role="tree",
        aria_label="Flame graph: functions and those they called, by share of CPU time",
    )


def said(node: CpuNode, cpu_s: float) -> str:
    """All that is known of a function, in lines."""
    lines = [
        node.function + (f"  {node.file}" if node.file else "")
        if node.common <= 1
        else f"all samples pass {node.function}"
        + (f" and {_many(node.common - 2, 'caller')} of it" if node.common > 2 else ""),
        f"{node.share:.1%} of CPU time, {node.own:.1%} in itself; {node.samples:,} samples, {node.share * cpu_s:.3g} s",
    ]
    if node.layer:
        lines.append(f"layer {node.layer}")
    if (differs := node.differs) is not None:
        lines.append(
            f"slow requests {differs.slow:.1%} ({differs.slow_samples:,} samples), others {differs.rest:.1%} ({differs.rest_samples:,}); "
            f"difference {100 * differs.value.value:+.1f} points, 95 % {100 * differs.value.low:+.1f} to {100 * differs.value.high:+.1f}"
            + ("" if differs.told else ": cannot be told from chance")
        )
    return "\n".join(lines)


def _mark(node: CpuNode, cpu_s: float, *, walked: bool) -> str:
    told = said(node, cpu_s)
    name = short(node.function) if not node.common else _whole(node, cpu_s)
    keys: dict[str, object] = {"tabindex": 0 if node.depth == 0 else -1} if walked else {}
    return element(
        "svg",
        title(told),
        element("rect", width="100%", height=ROW - 1, rx=2),
        text(name, x=5, y=14) if node.share >= NAMED else text(name, x=5, y=14, class_="small"),
        class_=f"n {_step(node.differs)}" if node.differs is not None else f"n L-{layer_class(node.layer)}",
        x=f"{100 * node.start:.4f}%",
        width=f"{100 * node.share:.4f}%",
        y=node.depth * ROW,
        height=ROW,
        role="treeitem",
        aria_level=node.depth + 1,
        aria_label=told.replace("\n", ", "),
        **keys,
    )


def layer_class(layer: str) -> str:
    """The layer as the style sheet knows it."""
    return layer if layer in LAYERS else "none"


def _whole(node: CpuNode, cpu_s: float) -> str:
    below = f" (below {_many(node.common - 1, 'common function')})" if node.common > 1 else ""
    return f"all: {cpu_s:.3g} s of CPU time{below}"


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def short(function: str) -> str:
    """A name without the functions it is defined in.

    >>> short("WorkerProc.monitor.<locals>.wait"), short("Gateway.handle")
    ('wait', 'Gateway.handle')
    """
    return function.rpartition("<locals>.")[2]


def _step(differs: CpuDifference) -> str:
    """Class of the colour: `same`, or `more` or `less` with a depth."""
    if not differs.told:
        return "same"
    depth = min(STEPS, 1 + int(abs(differs.value.value) * 20))  # a step for each five points
    return f"{'more' if differs.value.value > 0 else 'less'}{depth}"
