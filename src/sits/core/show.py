"""Typed values as people write them: units restored, canonical YAML, the digest of a configuration.

Rules: what is shown reads back as exactly the same value; of the units that do so the shortest text wins.
`dump` leaves out what is at its default (or, for an engine with `like`, what is the same there), so a file
shows intent; the digest is over the whole effective tree and therefore does not depend on how it was written:
defaults, order of keys, comments, anchors and `like` leave it alone.

Deliberately absent: rounding for display; that is `core.units.show_duration`.
"""

import hashlib
from typing import Any, NewType, get_args

import msgspec
import yaml

from sits.core import units
from sits.core.decode import fields_of, tag_of
from sits.core.fleet import Fleet

_UNIT_NAMES: dict[Any, tuple[tuple[str, ...], Any]] = {
    units.Ns: (("h", "min", "s", "ms", "us", "ns"), units.parse_duration),
    units.Bytes: (("TiB", "GiB", "MiB", "KiB", "TB", "GB", "MB", "kB", "B"), units.parse_bytes),
    units.BytesPerSecond: (("TB/s", "GB/s", "MB/s", "kB/s", "B/s"), units.parse_bandwidth),
}


def quantity(value: float, kind: Any) -> str:
    """`value` of the unit type `kind` as its shortest exact text.

    >>> quantity(1_200_000_000, units.Ns), quantity(85_899_345_920, units.Bytes), quantity(0.9, units.Share)
    ('1.2s', '80GiB', '90%')
    """
    if kind is units.Share:
        percent = f"{round(value * 100, 6):g}%"
        return percent if units.parse_share(percent) == value else repr(value)
    names, parse = _UNIT_NAMES[kind]
    if value == 0:
        return f"0{names[-1]}"
    texts = []
    for name in names:
        number = value / parse(f"1{name}")
        text = f"{round(number)}{name}" if number == round(number) else f"{number!r}{name}"
        if parse(text) == value and number >= 1:
            texts.append(text)
    return min(texts or [f"{value!r}{names[-1]}"], key=len)


def plain(value: Any, kind: Any, base: Any = None) -> Any:
    """`value` as YAML's own types; of a Struct only the fields that differ from `base` (None = from defaults)."""
    if kind in _UNIT_NAMES or kind is units.Share:
        text = quantity(value, kind)
        return (
            text if kind is not units.Share or text.endswith("%") else value
        )  # a fraction is a plain number
    if isinstance(kind, NewType):
        return plain(value, kind.__supertype__)
    if isinstance(value, msgspec.Struct):
        return _struct(value, base)
    args: tuple[Any, ...] = get_args(kind)
    if isinstance(value, dict):
        return {key: plain(item, args[1]) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        kinds = [args[0]] * len(value) if isinstance(value, list) or args[-1] is Ellipsis else args
        return [plain(item, k) for item, k in zip(value, kinds, strict=True)]
    if value is not None and args:
        units_in = [arg for arg in args if arg in _UNIT_NAMES or arg is units.Share]
        return plain(value, units_in[0]) if units_in else value
    return value


def _struct(value: msgspec.Struct, base: Any) -> dict[str, Any]:
    kind = type(value)
    tag_field, tag = tag_of(kind)
    found: dict[str, Any] = {tag_field: tag} if tag_field else {}
    if type(base) is not kind:
        base = None
    for info in fields_of(kind):
        now = getattr(value, info.name)
        if base is not None:
            before, known = getattr(base, info.name), True
        else:
            before, known = (info.default, not info.required)
            if info.default_factory is not msgspec.NODEFAULT:
                before = info.default_factory()
        if known and now == before and type(now) is type(before):
            continue
        found[info.encode_name] = plain(
            now, info.type, before if known and isinstance(before, msgspec.Struct) else None
        )
    return found


class _Dumper(yaml.SafeDumper):
    """SafeDumper that writes lists of scalars on one line."""

    def represent_sequence(
        self, tag: str, sequence: Any, flow_style: bool | None = None
    ) -> yaml.SequenceNode:
        flat = all(not isinstance(item, (dict, list)) for item in sequence)
        return super().represent_sequence(tag, sequence, flow_style=flat or bool(flow_style))

    def ignore_aliases(self, data: Any) -> bool:
        return True


def dump(value: msgspec.Struct) -> str:
    """`value` as canonical YAML, without what is at its default."""
    return _yaml(fleet_tree(value) if isinstance(value, Fleet) else plain(value, type(value)))


def _yaml(data: Any) -> str:
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110)


def fleet_tree(fleet: Fleet) -> dict[str, Any]:
    """The plain tree of `fleet`, each engine with `like` reduced to what differs from the engine it is like."""
    found: dict[str, Any] = plain(fleet, Fleet)
    by_name = {engine.name: engine for engine in fleet.engines}
    engines = []
    for engine in fleet.engines:
        reduced = plain(engine, type(engine), by_name.get(engine.like) if engine.like else None)
        if engine.like:
            reduced = {"kind": reduced["kind"], "name": engine.name, "like": engine.like} | reduced
        engines.append(reduced)
    if "engines" in found:
        found["engines"] = engines
    return found


def text_of(value: Any, kind: Any) -> str:
    """`value` on one line, as it would stand after the colon in a file.

    >>> text_of(units.Ns(20_000_000), units.Ns), text_of(("a", "b"), tuple[str, ...]), text_of("no", str)
    ('20ms', '[a, b]', "'no'")
    """
    data = plain(value, kind)
    shown = yaml.dump(
        data, Dumper=_Dumper, default_flow_style=True, sort_keys=False, allow_unicode=True, width=10**9
    )
    return shown.removesuffix("\n").removesuffix("...").removesuffix("\n")


def digest(value: msgspec.Struct) -> str:
    """SHA-256 (hex) of the effective tree as canonical JSON; a fleet's is its configuration generation."""
    data = msgspec.to_builtins(value)
    if isinstance(value, Fleet):
        for engine in data["engines"]:
            engine.pop("like")
    return hashlib.sha256(msgspec.json.encode(data, order="sorted")).hexdigest()
