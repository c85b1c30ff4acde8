"""The flame graph as one SVG: the whole at the top, below each function those it called, widths are shares of CPU time.

Every function is an SVG of its own inside the drawing, placed in percent: so it stretches with the page, its name is cut off at its edge
by the drawing itself, and zooming is nothing but other percentages (`flame.js`).  Without the script it is a plain picture.

Rules: colour is the layer (`profile.ops`), or, where two groups are compared, the difference of shares, grey where it cannot be told from
chance; what all samples have in common is one row at the top; nodes below `LEAST` of the whole are not drawn, and counted.

Deliberately absent: numbers of its own; everything comes from `profile.tree` and `profile.compare`.
"""

from collections.abc import Callable, Iterator

import msgspec

from sits.app.report.svg import element, text, title
from sits.telemetry.profile.compare import Z95, Comparison, Difference, difference, group_of
from sits.telemetry.profile.profile import Profile
from sits.telemetry.profile.tree import Node, tree

ROW = 20
LEAST = 0.001
"""Of the whole; narrower than a pixel and a half on a wide screen."""

NAMED = 0.025
"""Nodes narrower than this have no name without the script: a telephone shows nine pixels of them."""

STEPS = 5
"""Depths of colour on each side of no difference."""

Colour = Callable[[tuple[int, ...], Node], str]


class Flame(msgspec.Struct, frozen=True):
    """The drawing, how many functions it shows and how many were too small."""

    svg: str
    shown: int
    hidden: int


class _Placed(msgspec.Struct, frozen=True):
    node: Node
    depth: int
    start: float
    share: float
    names: tuple[str, ...]


def flame(profile: Profile, *, compared: Comparison | None = None) -> Flame:
    """Draw a profile; with `compared`, the slow requests' samples, coloured by how they differ from the others'."""
    drawn = compared.slow if compared is not None else profile
    root = tree(drawn)
    trunk, top = _trunk(root)
    rest = _by_path(tree(compared.rest)) if compared is not None and not compared.why_not else None
    groups = (group_of(compared.slow), group_of(compared.rest)) if rest is not None and compared else None
    marks, depth, hidden = [], 0, 0
    for placed in _placed(top, trunk, root.ns):
        if placed.share < LEAST:
            hidden += 1
            continue
        differs = None
        if rest is not None and groups is not None:
            other = rest.get(placed.names)
            differs = difference(
                placed.node.frame, placed.node, other, *groups, compared.z if compared else Z95
            )
        marks.append(_mark(placed, drawn, differs, common=len(trunk) if placed.depth == 0 else 0))
        depth = max(depth, placed.depth)
    svg = element(
        "svg",
        *marks,
        class_="flame",
        width="100%",
        height=(depth + 1) * ROW,
        role="tree",
        aria_label="Flame graph: functions and those they called, by share of CPU time",
    )
    return Flame(svg, len(marks), hidden)


def _trunk(root: Node) -> tuple[list[Node], Node]:
    """The nodes all samples pass, and the last of them."""
    trunk, at = [root], root
    while len(at.children) == 1 and at.callees[0].ns == at.ns and at.callees[0].children:
        at = at.callees[0]
        trunk.append(at)
    return trunk, at


def _placed(top: Node, trunk: list[Node], whole: int) -> Iterator[_Placed]:
    """All nodes, callers before callees, from left to right."""
    first = _Placed(top, 0, 0.0, 1.0 if whole else 0.0, tuple(_key(node) for node in trunk))
    stack = [first]
    while stack:
        at = stack.pop()
        yield at
        if at.share < LEAST:
            continue
        start, below = at.start, []
        for child in at.node.callees:
            share = child.ns / whole
            below.append(_Placed(child, at.depth + 1, start, share, (*at.names, _key(child))))
            start += share
        stack += reversed(below)


def _by_path(root: Node) -> dict[tuple[str, ...], Node]:
    found: dict[tuple[str, ...], Node] = {}
    stack: list[tuple[tuple[str, ...], Node]] = [((_key(root),), root)]
    while stack:
        path, node = stack.pop()
        found[path] = node
        stack += [((*path, _key(child)), child) for child in node.children.values()]
    return found


def _key(node: Node) -> str:
    return f"{node.frame.function}\0{node.frame.file}"


def _mark(placed: _Placed, profile: Profile, differs: Difference | None, *, common: int) -> str:
    node, share = placed.node, placed.share
    name = short(node.frame.function) if not common else _whole(profile, common)
    # "self" is the parent's own part: the width below which no callee stands
    said = [
        node.frame.function + (f"  {node.frame.file}" if node.frame.file else "")
        if common <= 1
        else f"all samples pass {node.frame.function}"
        + (f" and {_many(common - 2, 'caller')} of it" if common > 2 else ""),
        f"{share:.1%} of CPU time, {node.self_ns / max(1, profile.ns):.1%} in itself; {node.count:,} samples, {node.ns / 1e9:.3g} s",
    ]
    if node.layer:
        said.append(f"layer {node.layer}")
    kind = f"n L-{node.layer or 'none'}"
    if differs is not None:
        kind = f"n {_step(differs)}"
        said.append(
            f"slow requests {differs.slow:.1%} ({differs.slow_count:,} samples), others {differs.rest:.1%} ({differs.rest_count:,}); "
            f"difference {100 * differs.value:+.1f} points, 95 % {100 * differs.low:+.1f} to {100 * differs.high:+.1f}"
            + ("" if differs.told else ": cannot be told from chance")
        )
    return element(
        "svg",
        title("\n".join(said)),
        element("rect", width="100%", height=ROW - 1, rx=2),
        text(name, x=5, y=14) if share >= NAMED else text(name, x=5, y=14, class_="small"),
        class_=kind,
        x=f"{100 * placed.start:.4f}%",
        width=f"{100 * share:.4f}%",
        y=placed.depth * ROW,
        height=ROW,
        role="treeitem",
        aria_level=placed.depth + 1,
        aria_label=", ".join(said),
        tabindex=0 if placed.depth == 0 else -1,
    )


def _whole(profile: Profile, common: int) -> str:
    below = f" (below {_many(common - 1, 'common function')})" if common > 1 else ""
    return f"all: {profile.ns / 1e9:.3g} s of CPU time{below}"


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def short(function: str) -> str:
    """A name without the functions it is defined in.

    >>> short("WorkerProc.monitor.<locals>.wait"), short("Gateway.handle")
    ('wait', 'Gateway.handle')
    """
    return function.rpartition("<locals>.")[2]


def _step(differs: Difference) -> str:
    """Class of the colour: `same`, or `more` or `less` with a depth."""
    if not differs.told:
        return "same"
    depth = min(STEPS, 1 + int(abs(differs.value) * 20))  # a step for each five points
    return f"{'more' if differs.value > 0 else 'less'}{depth}"
