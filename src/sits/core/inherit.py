"""`like`: an engine that is as another one, but for what it says itself.

Inheritance is resolved on the nodes, before decoding, because only the file tells what was *set*: an engine
takes every key it does not have from the engine it is like, section by section (a child that sets
`scheduler.max_num_seqs` keeps the parent's other scheduler settings); lists are taken whole, and a chain is
followed to its end.  What cannot be followed (no such engine, a circle, another kind) is left as it stands and
reported by `check_like` on the decoded tree, so that it is found in a patched fleet as well.

Deliberately absent: inheritance of anything but engines; YAML's anchors and merge keys serve the rest.
"""

from collections.abc import Collection

from sits.core import fleet as tree
from sits.core.decode import tag_of
from sits.core.problems import Report, near
from sits.core.yaml_nodes import Node


def inherit(node: Node, path: str, report: Report) -> Node:
    """The fleet's node with every engine's `like` followed; what cannot be followed is left to `check`."""
    engines = node.entries.get("engines")
    if engines is None or engines.kind != "list":
        return node
    by_name: dict[str, Node] = {}
    for item in engines.items:
        by_name.setdefault(_text(item, "name"), item)
    merged = Node("list", engines.line)
    merged.items = [_heir(item, by_name) for item in engines.items]
    found = Node("map", node.line)
    found.entries = {**node.entries, "engines": merged}
    found.key_lines = dict(node.key_lines)
    return found


def _text(node: Node, key: str) -> str:
    value = node.entries.get(key)
    return value.text if value is not None and value.kind == "scalar" else ""


def _heir(item: Node, by_name: dict[str, Node]) -> Node:
    seen = [item]
    while (name := _text(seen[-1], "like")) in by_name and by_name[name] not in seen and name:
        seen.append(by_name[name])
    if name:
        return _orphan(item, seen)
    found = item
    for parent in seen[1:]:
        if _text(found, "kind") and _text(parent, "kind") and _text(found, "kind") != _text(parent, "kind"):
            return found
        found = _overlay(found, parent, skip=("name", "like"))
    return found


def _orphan(item: Node, seen: list[Node]) -> Node:
    """An engine whose `like` leads nowhere or in a circle, given a kind so that `check` gets to say just that."""
    if "kind" in item.entries:
        return item
    kind = Node("scalar", item.line)
    likely = "openai" if "url" in item.entries else "emulated"
    kind.text = next((_text(parent, "kind") for parent in seen if _text(parent, "kind")), likely)
    kind.is_text = True
    found = Node("map", item.line)
    found.entries = {**item.entries, "kind": kind}
    found.key_lines = {**item.key_lines, "kind": item.line}
    return found


def _overlay(child: Node, parent: Node, skip: tuple[str, ...] = ()) -> Node:
    """`child` with the keys of `parent` it lacks, section by section."""
    found = Node("map", child.line)
    found.entries = dict(child.entries)
    found.key_lines = dict(child.key_lines)
    for key, value in parent.entries.items():
        own = child.entries.get(key)
        if key in skip:
            continue
        if own is None:
            found.entries[key] = value
            found.key_lines[key] = parent.key_lines[key]
        elif own.kind == value.kind == "map" and _text(own, "kind") == _text(value, "kind"):
            found.entries[key] = _overlay(own, value)
    return found


def check_like(fleet: tree.Fleet, path: str, report: Report) -> set[str]:
    """Report `like`s that lead nowhere, in a circle, or to another kind; the names that cannot be judged."""
    by_name = {engine.name: engine for engine in reversed(fleet.engines)}
    bad: set[str] = set()
    told: set[frozenset[str]] = set()
    for i, engine in enumerate(fleet.engines):
        inner = f"{path}[{i}].like"
        chain, here = [engine.name], engine
        while here.like:
            parent = by_name.get(here.like)
            if parent is None or parent.name in chain:
                break
            chain.append(parent.name)
            here = parent
        if not here.like:
            parent = by_name[engine.like] if engine.like else engine
            if type(parent) is not type(engine):
                bad.add(engine.name)
                kinds = tag_of(type(parent))[1], tag_of(type(engine))[1]
                message = f"{parent.name!r} is of kind {kinds[0]!r}, this one is {kinds[1]!r}"
                report.add(
                    inner, message, value=engine.like, hint="an engine can only be like one of its kind"
                )
            continue
        bad.update(chain)
        if here.like not in by_name:
            if here is engine:
                refer(here.like, [name for name in by_name if name != engine.name], "engine", inner, report)
            continue
        circle = chain[chain.index(here.like) :]
        if engine.name in circle and frozenset(circle) not in told:
            told.add(frozenset(circle))
            shown = " -> ".join([*circle, circle[0]])
            message = (
                "'like' names the engine itself" if len(circle) == 1 else f"'like' goes in a circle: {shown}"
            )
            report.add(inner, message, value=engine.like, hint="let one of them state its own settings")
    return bad


def refer(name: str, known: Collection[str], what: str, path: str, report: Report) -> bool:
    """Report a reference to a `what` that does not exist; whether it does."""
    if name in known:
        return True
    message = f"there is no {what} named {name!r}" if name else f"no {what} is given"
    report.add(path, message, value=name, hint=near(name, known))
    return False
