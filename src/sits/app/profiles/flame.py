"""The functions of a flame graph, placed: callers before callees, what all samples have in common as one row at the top.

Rules: functions below `LEAST` of the whole are left out, and counted.  Where slow requests are compared with the others, the functions are
the slow ones', each with how it differs below the same callers.

Deliberately absent: numbers of its own (everything comes from `profile.tree` and `profile.compare`), drawing (`app.report.flame`).
"""

from collections.abc import Iterator

import msgspec

from sits.app.report.flame import draw
from sits.core.cpu_report import CpuDifference, CpuNode
from sits.core.finding import Interval
from sits.telemetry.profile.compare import Z95, Comparison, Difference, difference, group_of
from sits.telemetry.profile.profile import Profile
from sits.telemetry.profile.tree import Node, tree

LEAST = 0.001
"""Of the whole; narrower than a pixel and a half on a wide screen."""


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
    nodes, hidden = nodes_of(profile, compared=compared)
    drawn = compared.slow if compared is not None else profile
    return Flame(draw(nodes, drawn.ns / 1e9, walked=True), len(nodes), hidden)


def nodes_of(
    profile: Profile, *, compared: Comparison | None = None, least: float = LEAST
) -> tuple[tuple[CpuNode, ...], int]:
    """The functions to draw, and how many were smaller than `least` of the whole."""
    drawn = compared.slow if compared is not None else profile
    root = tree(drawn)
    trunk, top = _trunk(root)
    rest = _by_path(tree(compared.rest)) if compared is not None and not compared.why_not else None
    groups = (group_of(compared.slow), group_of(compared.rest)) if rest is not None and compared else None
    found, hidden = [], 0
    for placed in _placed(top, trunk, root.ns, least):
        if placed.share < least:
            hidden += 1
            continue
        differs = None
        if rest is not None and groups is not None:
            z = compared.z if compared else Z95
            differs = told(difference(placed.node.frame, placed.node, rest.get(placed.names), *groups, z))
        node = placed.node
        found.append(
            CpuNode(
                node.frame.function,
                node.frame.file,
                node.layer,
                placed.depth,
                placed.start,
                placed.share,
                node.self_ns / max(1, root.ns),
                node.count,
                len(trunk) if placed.depth == 0 else 0,
                differs,
            )
        )
    return tuple(found), hidden


def told(one: Difference) -> CpuDifference:
    """A difference as a report has it."""
    value = Interval(one.value, one.low, one.high)
    return CpuDifference(one.slow, one.rest, value, one.slow_count, one.rest_count, one.told)


def _trunk(root: Node) -> tuple[list[Node], Node]:
    """The nodes all samples pass, and the last of them."""
    trunk, at = [root], root
    while len(at.children) == 1 and at.callees[0].ns == at.ns and at.callees[0].children:
        at = at.callees[0]
        trunk.append(at)
    return trunk, at


def _placed(top: Node, trunk: list[Node], whole: int, least: float) -> Iterator[_Placed]:
    """All nodes, callers before callees, from left to right; below one that is too small, none."""
    first = _Placed(top, 0, 0.0, 1.0 if whole else 0.0, tuple(_key(node) for node in trunk))
    stack = [first]
    while stack:
        at = stack.pop()
        yield at
        if at.share < least:
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
