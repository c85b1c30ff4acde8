"""From a YAML node to a typed value: msgspec Structs are the schema, and every problem is reported at once.

Rules: the type of a field decides how its text is read: `Ns`, `Bytes`, `BytesPerSecond`, `Share` by the
parsers of `core.units`, `Literal` by its words, a union of Structs by its tag (`kind`).  Unknown keys are
errors that suggest the near name.  A failed value is reported, then replaced by its default or by a stand-in,
so that decoding goes on and later checks still see the rest; the `Report` remembers which paths are
stand-ins.  A value that was decoded with any error never reaches the caller.

Ranges can stand in the type as `Annotated[int, msgspec.Meta(ge=1)]`; checks across fields are a `Rule`.

Deliberately absent: coercion.  `"8"` is not a number, `yes` is not a truth value, `1.0` is not an integer.
"""

import difflib
import math
import operator
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NewType, Union, get_args, get_origin

import msgspec

from sits.core import units
from sits.core.errors import BugError, ConfigError
from sits.core.problems import Report, Rule, join, near
from sits.core.yaml_nodes import Node

_UNIT_PARSERS: dict[Any, Callable[[object], Any]] = {
    units.Ns: units.parse_duration,
    units.Bytes: units.parse_bytes,
    units.BytesPerSecond: units.parse_bandwidth,
    units.Share: units.parse_share,
}
_INT = re.compile(r"[+-]?(?:0|[1-9](?:_?[0-9])*)")
_FLOAT = re.compile(r"[+-]?(?:[0-9](?:_?[0-9])*(?:\.(?:[0-9](?:_?[0-9])*)?)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_INT_END = 2**63
"""Whole numbers end up in 64 bits."""

UNKNOWN_SHOWN = 20
"""Unknown keys of one section that are named one by one, with a suggestion each."""

_BOUNDS: dict[str, tuple[str, Callable[[Any, Any], bool]]] = {
    "ge": (">=", operator.ge),
    "gt": (">", operator.gt),
    "le": ("<=", operator.le),
    "lt": ("<", operator.lt),
    "min_length": ("of length >=", operator.ge),
    "max_length": ("of length <=", operator.le),
}
"""What of `msgspec.Meta` is honoured, in words and as a test."""


@lru_cache(maxsize=512)
def fields_of(struct: type[msgspec.Struct]) -> tuple[msgspec.structs.FieldInfo, ...]:
    """The fields of a Struct type, its types resolved."""
    return msgspec.structs.fields(struct)


def tag_of(struct: type[msgspec.Struct]) -> tuple[str, str]:
    """`(tag field, tag)` of a Struct type; empty when it has none."""
    config = struct.__struct_config__
    return (config.tag_field or "", str(config.tag) if config.tag is not None else "")


class Decoder:
    """Walks nodes and types together, filling a `Report`."""

    def __init__(self, report: Report, rules: Mapping[Any, Rule]) -> None:
        self.report = report
        self.rules = rules

    def value(self, node: Node, kind: Any, path: str) -> Any:
        """The value of `node` as a `kind`; a stand-in when it cannot be one (and then it is reported)."""
        self.report.lines.setdefault(path, node.line)
        if isinstance(kind, NewType) and kind not in _UNIT_PARSERS:
            return self.value(node, kind.__supertype__, path)
        origin = get_origin(kind)
        if origin is Annotated:
            inner, *extra = get_args(kind)
            return self._bounded(self.value(node, inner, path), extra, path)
        if origin in (Union, UnionType):
            return self._union(node, get_args(kind), path)
        if node.kind == "scalar" and node.is_null:
            return self._fail(node, kind, path, "has no value", hint=_expected(kind))
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            return self._struct(node, kind, path)
        if origin in (tuple, list):
            return self._list(node, kind, path)
        if origin is dict:
            return self._dict(node, kind, path)
        if node.kind != "scalar":
            return self._fail(node, kind, path, f"is {node.shown()}", hint=_expected(kind))
        return self._scalar(node, kind, path)

    def _fail(self, node: Node, kind: Any, path: str, message: str, hint: str | None = None) -> Any:
        value = node.text if node.kind == "scalar" else node.shown()
        self.report.add(path, message, line=node.line, value=value, hint=hint)
        return stand_in(kind)

    def _scalar(self, node: Node, kind: Any, path: str) -> Any:
        if get_origin(kind) is Literal:
            words = {str(word): word for word in get_args(kind)}
            if node.text in words:
                return words[node.text]
            return self._fail(
                node, kind, path, f"{node.text!r} is not one of its words", near(node.text, words)
            )
        if kind in _UNIT_PARSERS:
            return self._quantity(node, kind, path)
        if kind is str:
            if node.is_text:
                return node.text
            return self._fail(
                node, kind, path, f"{node.text} is not text to YAML", f'quote it: "{node.text}"'
            )
        if kind is bool:
            if node.plain and node.text.lower() in ("true", "false"):
                return node.text.lower() == "true"
            return self._fail(node, kind, path, f"{node.shown()} is not true or false", _expected(kind))
        if kind in (int, float):
            return self._number(node, kind, path)
        raise BugError(f"{path}: a schema may not use the type {kind!r}")

    def _number(self, node: Node, kind: Any, path: str) -> Any:
        if not node.plain:
            return self._fail(node, kind, path, f"{node.shown()} is text", "a number has no quotes")
        if (
            kind is int
            and len(node.text) < 30
            and _INT.fullmatch(node.text)
            and abs(int(node.text)) < _INT_END
        ):
            return int(node.text)
        if kind is float and _FLOAT.fullmatch(node.text) and math.isfinite(float(node.text)):
            return float(node.text)
        word = "a whole number" if kind is int else "a finite number"
        return self._fail(node, kind, path, f"{node.text!r} is not {word}", _expected(kind))

    def _quantity(self, node: Node, kind: Any, path: str) -> Any:
        text: object = node.text
        if kind is units.Share and node.plain and _FLOAT.fullmatch(node.text):
            text = float(node.text)
        try:
            return _UNIT_PARSERS[kind](text)
        except ConfigError as error:
            return self._fail(node, kind, path, error.message, error.hint)

    def _bounded(self, value: Any, extra: list[Any], path: str) -> Any:
        for meta in extra:
            for name, (sign, holds) in _BOUNDS.items():
                bound = getattr(meta, name, None)
                if bound is None:
                    continue
                if not holds(len(value) if name.endswith("length") else value, bound):
                    self.report.add(
                        path, f"{value!r} is out of range", value=value, hint=f"must be {sign} {bound}"
                    )
        return value

    def _union(self, node: Node, kinds: tuple[Any, ...], path: str) -> Any:
        rest = tuple(kind for kind in kinds if kind is not NoneType)
        if len(rest) < len(kinds) and node.kind == "scalar" and node.is_null:
            return None
        if len(rest) == 1:
            return self.value(node, rest[0], path)
        tags = {
            tag_of(kind)[1]: kind
            for kind in rest
            if isinstance(kind, type) and issubclass(kind, msgspec.Struct)
        }
        if len(tags) != len(rest):
            raise BugError(f"{path}: a schema may only unite tagged Structs, not {rest!r}")
        tag_field = tag_of(rest[0])[0]
        if node.kind != "map":
            return self._fail(node, rest[0], path, f"is {node.shown()}", f"a section with {tag_field!r}")
        told = node.entries.get(tag_field)
        text = told.text if told is not None and told.kind == "scalar" else ""
        if text in tags:
            return self._struct(node, tags[text], path)
        inner = join(path, tag_field)
        if told is None:
            self.report.add(
                inner, f"{tag_field!r} is missing", line=node.line, hint=f"one of {', '.join(tags)}"
            )
        else:
            self.report.add(
                inner,
                f"{told.shown()} is not a {tag_field}",
                line=told.line,
                value=text,
                hint=near(text, tags),
            )
        return self._guess(node, tags, text, path)

    def _guess(self, node: Node, tags: Mapping[str, Any], text: str, path: str) -> Any:
        """A stand-in of the likeliest kind, decoded in silence so that its name can still be referred to."""
        close = difflib.get_close_matches(text, list(tags), n=1, cutoff=0.0)
        quiet = Report()
        found = Decoder(quiet, {})._struct(node, tags[close[0]] if close else next(iter(tags.values())), path)
        for inner, line in quiet.lines.items():
            self.report.lines.setdefault(inner, line)
        self.report.mark_failed(path)
        return found

    def _list(self, node: Node, kind: Any, path: str) -> Any:
        if node.kind != "list":
            hint = f"write a list: [{node.text}]" if node.kind == "scalar" else "write a list"
            return self._fail(node, kind, path, f"{node.shown()} is not a list", hint)
        make, args = get_origin(kind), get_args(kind)
        if make is tuple and args and args[-1] is not Ellipsis:
            if len(args) != len(node.items):
                return self._fail(node, kind, path, f"has {len(node.items)} values", f"it takes {len(args)}")
            kinds = list(args)
        else:
            kinds = [args[0]] * len(node.items)
        return make(
            self.value(item, k, f"{path}[{i}]")
            for i, (item, k) in enumerate(zip(node.items, kinds, strict=True))
        )

    def _dict(self, node: Node, kind: Any, path: str) -> Any:
        if node.kind != "map":
            return self._fail(
                node, kind, path, f"{node.shown()} is not a section", "write 'name: value' lines"
            )
        of = get_args(kind)[1]
        return {name: self.value(item, of, join(path, name)) for name, item in node.entries.items()}

    def _struct(self, node: Node, kind: type[msgspec.Struct], path: str) -> Any:
        if node.kind != "map":
            return self._fail(node, kind, path, f"{node.shown()} is not a section", _expected(kind))
        rule = self.rules.get(kind, Rule())
        if rule.before:
            node = rule.before(node, path, self.report)
        self.report.lines.setdefault(path, node.line)
        found = self._build(node, kind, path)
        if rule.after and found is not None and (rule.tolerant or self.report.sound_within(path)):
            rule.after(found, path, self.report)
        return found

    def _build(self, node: Node, kind: type[msgspec.Struct], path: str) -> Any:
        tag_field, tag = tag_of(kind)
        known = {info.encode_name: info for info in fields_of(kind)}
        words = [*known, tag_field] if tag_field else list(known)
        unknown = [name for name in node.entries if name not in words]
        for name in unknown[:UNKNOWN_SHOWN]:
            self.report.add(
                join(path, name),
                f"unknown key {name[:80]!r}",
                line=node.key_lines[name],
                value=name,
                hint=near(name[:80], words),
            )
        if more := unknown[UNKNOWN_SHOWN:]:
            self.report.add(
                join(path, more[0]), f"and {len(more)} more unknown keys", line=node.key_lines[more[0]]
            )
        if tag_field in node.entries and node.entries[tag_field].text != tag:
            told = node.entries[tag_field]
            self._fail(
                told, str, join(path, tag_field), f"{told.shown()} is not a {tag_field}", f"it is {tag!r}"
            )
        values: dict[str, Any] = {}
        for name, info in known.items():
            inner = join(path, name)
            if name in node.entries:
                self.report.lines.setdefault(inner, node.key_lines[name])
                values[info.name] = self.value(node.entries[name], info.type, inner)
            elif info.required:
                hint = _expected(info.type)
                self.report.add(inner, f"{name!r} is missing", line=node.line, hint=hint)
                values[info.name] = stand_in(info.type)
        try:
            return kind(**values)
        except (ValueError, ConfigError) as error:
            if self.report.sound_within(path):
                self.report.add(path, str(error), line=node.line)
            return None


def stand_in(kind: Any) -> Any:
    """A harmless value of the type `kind`, to go on with after its error was reported."""
    if isinstance(kind, NewType):
        return stand_in(kind.__supertype__)
    origin, args = get_origin(kind), get_args(kind)
    if origin in (Annotated, Union, UnionType):
        return stand_in(args[0])
    if origin is Literal:
        return args[0]
    if origin is tuple and args and args[-1] is not Ellipsis:
        return tuple(stand_in(arg) for arg in args)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        try:
            return kind(**{info.name: stand_in(info.type) for info in fields_of(kind) if info.required})
        except (ValueError, ConfigError):
            return None
    return (origin or kind)()


def _expected(kind: Any) -> str | None:
    """What a field of this type wants, in words."""
    examples = {
        str: "write text",
        int: "write a whole number like 8",
        float: "write a number like 1.5",
        bool: "write true or false",
        units.Ns: "write a duration like '100ms'",
        units.Bytes: "write a size like '80GiB'",
        units.BytesPerSecond: "write a bandwidth like '24GB/s'",
        units.Share: "write a share like '42%'",
    }
    if kind in examples:
        return examples[kind]
    origin = get_origin(kind)
    if origin is Annotated:
        return _expected(get_args(kind)[0])
    if origin is Literal:
        return "one of " + ", ".join(str(word) for word in get_args(kind))
    if origin in (tuple, list):
        return "write a list"
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return "a section with " + ", ".join(info.encode_name for info in fields_of(kind)[:6])
    return None
