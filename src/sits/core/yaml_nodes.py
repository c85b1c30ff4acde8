"""YAML text as a tree that remembers its lines.

A configuration error is only useful with the line it stands on, so text is composed into `Node`s (scalar,
list or map, each with its line) and never into plain dictionaries.  Scalars stay text: what `20ms`, `1e-3` or
`no` mean is decided by the type of the field they are given to (`core.decode`), not by YAML's guesses.

Rules: keys are text and unique; anchors, aliases and merge keys (`<<`) work, a key written out wins over a
merged one; tags of a language (`!!python/...`) are refused.  Everything is bounded: text size, depth, and the
number of nodes *after* aliases are followed, so neither "billion laughs" nor an alias inside itself can hang.

Deliberately absent: files.  Callers pass text and the name to print in errors.
"""

import re
from typing import Any

import yaml

from sits.core.errors import ConfigError, ConfigErrors

MAX_TEXT = 4 * 2**20
MAX_DEPTH = 50
MAX_NODES = 100_000

_SURROGATE = re.compile("[\ud800-\udfff]")
_TAG = "tag:yaml.org,2002:"
_TEXT_TAGS = {_TAG + name for name in ("str", "timestamp", "value", "merge")}
_KNOWN_TAGS = _TEXT_TAGS | {_TAG + name for name in ("int", "float", "bool", "null", "seq", "map")}


class Node:
    """One value of a file: `kind` is `scalar`, `list` or `map`; `line` counts from 1.

    Attributes:
        text: a scalar as written; plain: it had no quotes; is_text, is_null: what YAML takes it for.
        items: the values of a list.
        entries: the values of a map by key; key_lines: where each key stands.

    """

    __slots__ = ("entries", "is_null", "is_text", "items", "key_lines", "kind", "line", "plain", "text")

    def __init__(self, kind: str, line: int) -> None:
        self.kind = kind
        self.line = line
        self.text = ""
        self.plain = True
        self.is_text = False
        self.is_null = False
        self.items: list[Node] = []
        self.entries: dict[str, Node] = {}
        self.key_lines: dict[str, int] = {}

    def shown(self) -> str:
        """The value as an error message names it."""
        if self.kind == "scalar":
            return "nothing" if self.is_null else repr(self.text)
        return "a list" if self.kind == "list" else "a section"


class _Loader(yaml.SafeLoader):
    """SafeLoader that counts its depth before Python's stack does, and its values before the memory does."""

    depth = 0
    count = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        self.depth += 1
        self.count += 1
        if self.count > MAX_NODES:
            raise yaml.MarkedYAMLError(problem=f"more than {MAX_NODES} values", problem_mark=self.get_mark())
        if self.depth > MAX_DEPTH:
            problem = f"nested deeper than {MAX_DEPTH} levels"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=self.get_mark())
        found = super().compose_node(parent, index)
        self.depth -= 1
        return found


def compose(text: str, file: str) -> Node:
    """The tree of one YAML document.

    Raises:
        ConfigErrors: not YAML, empty, too large, too deep, a key twice, a key that is not text, a foreign tag.

    """
    if len(text) > MAX_TEXT:
        raise ConfigErrors(
            [ConfigError(f"{len(text)} characters are more than the {MAX_TEXT} allowed", where=file)]
        )
    loader = None
    try:
        loader = _Loader(text)
        root = loader.get_single_node()
    except yaml.MarkedYAMLError as error:
        raise ConfigErrors([_syntax(error, file)]) from error
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        shown = f"character {chr(error.character)!r}" if isinstance(error.character, int) else "a byte"
        raise ConfigErrors(
            [ConfigError(f"{shown} is not allowed in YAML", where=f"{file}:{line}")]
        ) from error
    except (
        ValueError,
        OverflowError,
    ) as error:  # an escape or a version beyond what Python's own numbers take
        where = f"{file}:{loader.get_mark().line + 1}" if loader else file
        raise ConfigErrors([ConfigError(f"not valid YAML: {error}", where=where)]) from error
    if root is None:
        raise ConfigErrors([ConfigError("the file is empty", where=f"{file}:1")])
    build = _Build(file)
    tree = build.node(root, "", 0)
    if build.errors:
        raise ConfigErrors(build.errors)
    return tree


def _syntax(error: yaml.MarkedYAMLError, file: str) -> ConfigError:
    mark = error.problem_mark or error.context_mark
    where = f"{file}:{mark.line + 1}" if mark else file
    problem = error.problem or "not YAML"
    if "'\\t'" in problem:
        return ConfigError("a tab cannot indent YAML", where=where, value="\t", hint="indent with spaces")
    column = f", column {mark.column + 1}" if mark else ""
    context = f"{error.context}: " if error.context else ""
    return ConfigError(f"not valid YAML: {context}{problem}{column}", where=where)


class _Build:
    """Turns PyYAML's nodes into ours, collecting errors and counting nodes."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.errors: list[ConfigError] = []
        self.count = 0

    def add(self, line: int, path: str, message: str, **more: Any) -> None:
        self.errors.append(ConfigError(message, where=f"{self.file}:{line}", field=path or None, **more))

    def node(self, raw: Any, path: str, depth: int) -> Node:
        line = raw.start_mark.line + 1
        self.count += 1
        if self.count > MAX_NODES:
            message = f"more than {MAX_NODES} values once aliases are followed"
            raise ConfigErrors([ConfigError(message, where=f"{self.file}:{line}", field=path)])
        if depth > MAX_DEPTH:
            message = f"nested deeper than {MAX_DEPTH} levels once aliases are followed"
            hint = "does an alias contain itself?"
            raise ConfigErrors([ConfigError(message, where=f"{self.file}:{line}", hint=hint)])
        if raw.tag not in _KNOWN_TAGS:
            self.add(
                line, path, f"the tag {raw.tag!r} is not used here", value=raw.tag, hint="write a plain value"
            )
        if isinstance(raw, yaml.MappingNode):
            return self.map(raw, path, depth, line)
        if isinstance(raw, yaml.SequenceNode):
            found = Node("list", line)
            found.items = [self.node(item, f"{path}[{i}]", depth + 1) for i, item in enumerate(raw.value)]
            return found
        if _SURROGATE.search(raw.value):
            hint = "write the character itself, or its code as \\U with eight digits"
            self.add(line, path, "holds half of a surrogate pair", value=ascii(raw.value), hint=hint)
        found = Node("scalar", line)
        found.text = raw.value
        found.plain = raw.style is None
        found.is_text = raw.tag in _TEXT_TAGS
        found.is_null = raw.tag == _TAG + "null"
        return found

    def map(self, raw: Any, path: str, depth: int, line: int) -> Node:
        found = Node("map", line)
        merged: list[Any] = []
        for key, value in raw.value:
            key_line = key.start_mark.line + 1
            if (
                not isinstance(key, yaml.ScalarNode)
                or key.tag not in _TEXT_TAGS
                or _SURROGATE.search(key.value)
            ):
                shown = ascii(key.value) if isinstance(key, yaml.ScalarNode) else "a list or section"
                self.add(
                    key_line,
                    path,
                    f"the key {shown} is not text",
                    value=shown,
                    hint="quote it if it is meant so",
                )
                continue
            if key.tag == _TAG + "merge":
                merged.append(value)
                continue
            name = str(key.value)
            inner = f"{path}.{name}" if path else name
            if name in found.entries:
                first = found.key_lines[name]
                self.add(
                    key_line,
                    inner,
                    f"the key {name!r} stands here twice",
                    value=name,
                    hint=f"first on line {first}",
                )
                continue
            found.entries[name] = self.node(value, inner, depth + 1)
            found.key_lines[name] = key_line
        for value in merged:
            self.merge(found, value, path, depth)
        return found

    def merge(self, into: Node, raw: Any, path: str, depth: int) -> None:
        """Copy the entries of a `<<` value that `into` does not have; of a list, the earlier map wins."""
        for source in raw.value if isinstance(raw, yaml.SequenceNode) else [raw]:
            if not isinstance(source, yaml.MappingNode):
                line = source.start_mark.line + 1
                self.add(line, path, "'<<' takes a section or a list of sections", hint="like '<<: *base'")
                continue
            other = self.node(source, path, depth + 1)
            for name, value in other.entries.items():
                if name not in into.entries:
                    into.entries[name] = value
                    into.key_lines[name] = other.key_lines[name]
