"""A foreign configuration as a tree that remembers what became of each of its leaves.

A leaf is a scalar, or an empty list or map.  Telling what became of a section tells it of all its leaves.  What nobody told anything
about when the importer is done is lost, and said to be: so that a field that is new, mistyped or forgotten cannot pass unseen.

Deliberately absent: what fields mean.
"""

import re
from collections.abc import Iterator
from typing import Literal

import msgspec

from sits.core.errors import ConfigError, ConfigErrors
from sits.core.yaml_nodes import Node, compose

_PLAIN = re.compile(r"[\w-]+")

Verdict = Literal["mapped", "differs", "lost"]


class Fate(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one field: where it went, and what is different or why it is lost."""

    path: str
    line: int
    verdict: Verdict
    to: str = ""
    note: str = ""


class Account:
    """The fates told so far, by path."""

    def __init__(self) -> None:
        self.fates: dict[str, Fate] = {}
        self._within: dict[str, tuple[str, ...]] = {}

    def tell(self, value: "Value", verdict: Verdict, to: str = "", note: str = "") -> None:
        """Say what became of a value; the first word stands, but a loss is the last one."""
        before = self.fates.get(value.path)
        if before is None or (verdict == "lost" and before.verdict != "lost"):
            self._within[value.path] = value.within[:-1]
            self.fates[value.path] = Fate(path=value.path, line=value.line, verdict=verdict, to=to, note=note)

    def close(self, roots: "list[Value]") -> list[Fate]:
        """All fates in the order of the source; leaves nobody spoke of are lost, and so is all within what is lost."""
        lost = {path for path, fate in self.fates.items() if fate.verdict == "lost"}
        for path in [path for path in self.fates if lost.intersection(self._within[path])]:
            del self.fates[path]
        for root in roots:
            for leaf in root.leaves():
                if not any(path in self.fates for path in leaf.within):
                    self.tell(leaf, "lost", note="not known to this importer")
        order = {path: i for i, path in enumerate(path for root in roots for path in root.paths())}
        return sorted(self.fates.values(), key=lambda fate: (order.get(fate.path, 0), fate.path))


class Value:
    """One value of the source: where it stands, and ways to read it and to say what became of it."""

    def __init__(
        self, node: Node, path: str, account: Account, around: tuple[str, ...] = (), line: int = 0
    ) -> None:
        self.node = node
        self.line = line or node.line
        self.path = path
        self.within = (*around, path)
        self._account = account

    def _inner(self, node: Node, step: str, line: int = 0) -> "Value":
        path = f"{self.path}{step}" if self.path or step.startswith("[") else step[1:]
        return Value(node, path, self._account, self.within, line)

    def get(self, key: str) -> "Value | None":
        """The value of a key; None when there is none or it is null."""
        found = self.node.entries.get(key)
        if found is None or (found.kind == "scalar" and found.is_null):
            return None
        return self._inner(found, _step(key), self.node.key_lines[key])

    def at(self, *keys: str) -> "Value | None":
        """The value at the end of several keys."""
        here: Value | None = self
        for key in keys:
            here = here.get(key) if here is not None else None
        return here

    def entries(self) -> "Iterator[tuple[str, Value]]":
        """Keys and values of a map."""
        for key, node in self.node.entries.items():
            yield key, self._inner(node, _step(key), self.node.key_lines[key])

    def items(self) -> "Iterator[Value]":
        """The values of a list."""
        for i, node in enumerate(self.node.items):
            yield self._inner(node, f"[{i}]")

    @property
    def text(self) -> str:
        """A scalar as written; empty for lists and maps."""
        return self.node.text if self.node.kind == "scalar" else ""

    def number(self) -> float | None:
        """A scalar as a number."""
        try:
            found = float(self.text.replace("_", ""))
        except ValueError:
            return None
        return found if found == found and abs(found) < 1e300 else None  # noqa: PLR0124  (not a number)

    def mapped(self, to: str, note: str = "") -> None:
        """It means the same at `to`."""
        self._account.tell(self, "mapped", to, note)

    def differs(self, to: str, note: str) -> None:
        """It went to `to`, and `note` says what is different there."""
        self._account.tell(self, "differs", to, note)

    def lost(self, note: str) -> None:
        """There is nothing like it here."""
        self._account.tell(self, "lost", "", note)

    def leaves(self) -> "Iterator[Value]":
        """Every leaf within."""
        children = [*self.items(), *(value for _, value in self.entries())]
        if not children:
            yield self
        for child in children:
            yield from child.leaves()

    def paths(self) -> Iterator[str]:
        """Every path within, in order."""
        yield self.path
        for child in [*self.items(), *(value for _, value in self.entries())]:
            yield from child.paths()


def _step(key: str) -> str:
    """A key in a path: one with signs of its own is quoted, so that no two paths look alike."""
    return f".{key}" if _PLAIN.fullmatch(key) else f'["{key}"]'


def documents(text: str, file: str) -> list[Node]:
    """The YAML documents of a text, each with the lines it has in the file.

    Raises:
        ConfigErrors: a document is not YAML, or not a map.

    """
    found, errors = [], []
    for first, part in _parts(text):
        if not any(line.strip() and not line.lstrip().startswith("#") for line in part.splitlines()):
            continue
        node = compose("\n" * first + part, file)
        if node.kind == "map":
            found.append(node)
        else:
            errors.append(
                ConfigError(f"is {node.shown()}", where=f"{file}:{node.line}", hint="a map is expected")
            )
    if errors:
        raise ConfigErrors(errors)
    return found


def _parts(text: str) -> Iterator[tuple[int, str]]:
    """The text between lines of `---`, with the number of lines before it."""
    first, lines = 0, list[str]()
    for i, line in enumerate(text.split("\n")):
        if line.rstrip() == "---" or line.startswith("--- "):
            yield first, "\n".join(lines)
            first, lines = i + 1, []
        else:
            lines.append(line)
    yield first, "\n".join(lines)
