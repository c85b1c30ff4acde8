"""A profile as a tree: from the outermost frame inwards, equal functions with equal callers are one node.

Rules: `ns` of a node is all that was used at or below it, `self_ns` what it used itself; children stand by size, then name, so that equal
profiles are equal trees.  Lines are not told apart.  A node's layer is that of most of its time.

Deliberately absent: drawing, and cutting off what is too small to be seen.
"""

from collections.abc import Iterable

from sits.telemetry.profile.profile import Frame, Profile, Sample


class Node:
    """A function with its callers; `traces` is CPU ns by trace, the unknown one left out."""

    __slots__ = ("children", "count", "frame", "layers", "ns", "self_ns", "traces")

    def __init__(self, frame: Frame) -> None:
        self.frame = frame
        self.ns = self.self_ns = self.count = 0
        self.layers: dict[str, int] = {}
        self.traces: dict[str, int] = {}
        self.children: dict[Frame, Node] = {}

    def add(self, sample: Sample) -> None:
        """Count a sample that passes here."""
        self.ns += sample.ns
        self.count += sample.count
        layer, trace = sample.labels.layer, sample.labels.trace
        self.layers[layer] = self.layers.get(layer, 0) + sample.ns
        if trace:
            self.traces[trace] = self.traces.get(trace, 0) + sample.ns

    def child(self, frame: Frame) -> "Node":
        """The callee; made when it is not there."""
        found = self.children.get(frame)
        if found is None:
            found = self.children[frame] = Node(frame)
        return found

    @property
    def layer(self) -> str:
        """Where most of its time belongs; empty where unknown."""
        return max(self.layers, key=lambda layer: (self.layers[layer], layer), default="")

    @property
    def callees(self) -> list["Node"]:
        """Children, the largest first."""
        return sorted(self.children.values(), key=lambda node: (-node.ns, node.frame))


def tree(profile: Profile, name: str = "all") -> Node:
    """The root: all of the profile's samples."""
    root = Node(Frame(name))
    for sample in profile.samples:
        at = root
        at.add(sample)
        for frame in sample.stack:
            at = at.child(frame.place)
            at.add(sample)
        at.self_ns += sample.ns
    return root


def functions(profile: Profile) -> dict[Frame, Node]:
    """Each function once, whoever called it, and once a stack, however deep it calls itself: a node without children."""
    found: dict[Frame, Node] = {}
    for sample in profile.samples:
        if not sample.stack:
            continue
        for place in dict.fromkeys(frame.place for frame in sample.stack):
            node = found.get(place)
            if node is None:
                node = found[place] = Node(place)
            node.add(sample)
        found[sample.stack[-1].place].self_ns += sample.ns
    return found


def by_operation(samples: Iterable[Sample]) -> list[tuple[str, int, int]]:
    """`layer/op`, CPU ns and sightings, the largest first; the unlabelled under an empty name."""
    found: dict[str, list[int]] = {}
    for sample in samples:
        seen = found.setdefault(sample.labels.name, [0, 0])
        seen[0] += sample.ns
        seen[1] += sample.count
    return sorted(
        ((name, ns, count) for name, (ns, count) in found.items()), key=lambda one: (-one[1], one[0])
    )
