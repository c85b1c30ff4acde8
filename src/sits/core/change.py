"""Changes of a configuration: apply one by its path, or list those between two trees.

Paths are dotted; a list is entered by position (`engines[0]`), by name (`engines[a0]`) or as a whole
(`engines[*]`, which touches every element that has the field).  A value is the text that would stand in the
file, read by the field's own type, so a proposed fix is as strict as the file itself.  Both work on effective
trees: to change the engine that others are `like` does not change those others; say `[*]` for that.

Law: `diff(a, b)` is empty exactly when the two have the same digest.
"""

import difflib
import re
from collections.abc import Callable
from typing import Any, get_args, get_origin

import msgspec

from sits.core.decode import Decoder, fields_of, tag_of
from sits.core.errors import ConfigError, ConfigErrors
from sits.core.finding import Change
from sits.core.fleet import Fleet
from sits.core.fleet_rules import check
from sits.core.problems import Report, Rule, near
from sits.core.show import text_of
from sits.core.yaml_nodes import compose

_STEP = re.compile(r"\.?([A-Za-z_]\w*)|\[([^\[\]]+)\]")


def patch(fleet: Fleet, path: str, value_text: str, why: str = "") -> tuple[Fleet, Change]:
    """`fleet` with the value at `path` replaced, and the change as people read it.

    `Change.old` lists the distinct values that stood there, in the order met.

    Raises:
        ConfigErrors: no such path, a value that does not fit its type, or a fleet that no longer holds together.

    """
    steps = _steps(path)
    olds: list[str] = []
    news: list[str] = []

    def replace(value: Any, kind: Any) -> Any:
        olds.append(text_of(value, kind))
        new = _read(value_text, kind, path)
        news.append(text_of(new, kind))
        return new

    patched = _into(fleet, Fleet, steps, path, replace)
    report = Report()
    check(patched, "", report)
    if report.errors:
        raise ConfigErrors(report.errors)
    return patched, Change(path=path, old=", ".join(dict.fromkeys(olds)), new=news[0], why=why)


def _fail(message: str, path: str, hint: str) -> ConfigErrors:
    return ConfigErrors([ConfigError(message, field=path, value=path, hint=hint)])


def _steps(path: str) -> list[str]:
    """The steps of a path; those in brackets keep their opening bracket.

    >>> _steps("engines[*].scheduler.block_size")
    ['engines', '[*', 'scheduler', 'block_size']
    """
    steps, at = [], 0
    while at < len(path):
        match = _STEP.match(path, at)
        if match is None or (at == 0) != (path[at] not in ".["):
            raise _fail(
                f"{path!r} is not a path", path, "write it like 'policy.window.kind' or 'engines[*].cpu_numa'"
            )
        steps.append(match[1] or f"[{match[2]}")
        at = match.end()
    if not steps:
        raise _fail("the path is empty", path, "write it like 'policy.window.kind'")
    return steps


def _read(text: str, kind: Any, path: str) -> Any:
    report = Report()
    try:
        node = compose(text, "")
    except ConfigErrors as errors:
        raise ConfigErrors(
            [ConfigError(e.message, field=path, value=text, hint=e.hint) for e in errors.errors]
        ) from errors
    value = Decoder(report, {Fleet: Rule()}).value(node, kind, path)
    if report.errors:
        raise ConfigErrors(
            [ConfigError(e.message, field=e.field, value=e.value, hint=e.hint) for e in report.errors]
        )
    return value


def _into(value: Any, kind: Any, steps: list[str], path: str, replace: Callable[[Any, Any], Any]) -> Any:
    if not steps:
        return replace(value, kind)
    step, rest = steps[0], steps[1:]
    if step.startswith("["):
        return _into_list(value, kind, step[1:], rest, path, replace)
    if not isinstance(value, msgspec.Struct):
        raise _fail(f"there is nothing named {step!r} inside a value", path, "shorten the path")
    known = {info.encode_name: info for info in fields_of(type(value))}
    if step not in known:
        raise _fail(f"there is no {step!r}", path, near(step, known))
    info = known[step]
    inner = _into(getattr(value, info.name), info.type, rest, path, replace)
    return msgspec.structs.replace(value, **{info.name: inner})


def _into_list(
    value: Any, kind: Any, key: str, rest: list[str], path: str, replace: Callable[[Any, Any], Any]
) -> Any:
    if get_origin(kind) is not tuple:
        raise _fail(f"[{key}] follows something that is not a list", path, "drop the brackets")
    items, item_kind = list(value), get_args(kind)[0]
    names = [getattr(item, "name", "") for item in items]
    if key == "*":
        chosen = [i for i, item in enumerate(items) if _has(item, rest)] or list(range(len(items)))
    elif key.isdigit() and int(key) < len(items):
        chosen = [int(key)]
    elif key in names:
        chosen = [names.index(key)]
    else:
        hint = near(key, [name for name in names if name]) if any(names) else f"it has {len(items)} elements"
        raise _fail(f"there is no [{key}]", path, hint)
    if not chosen:
        raise _fail(f"[{key}] finds nothing: the list is empty", path, "name a list with elements")
    for i in chosen:
        items[i] = _into(items[i], item_kind, rest, path, replace)
    return tuple(items)


def _has(item: Any, rest: list[str]) -> bool:
    kind: type[msgspec.Struct] = type(item)
    return not rest or rest[0] in {info.encode_name for info in fields_of(kind)}


def diff(before: Fleet, after: Fleet) -> tuple[Change, ...]:
    """The changes that lead from `before` to `after`, field by field, list elements matched by name.

    An element only one side has shows as a change from or to nothing (empty text).
    """
    found: list[Change] = []
    _compare(before, after, Fleet, "", found)
    return tuple(found)


def _compare(old: Any, new: Any, kind: Any, path: str, found: list[Change]) -> None:
    if isinstance(old, msgspec.Struct) and type(old) is type(new):
        for info in fields_of(type(old)):
            if info.name == "like" and tag_of(type(old))[0]:
                continue
            inner = f"{path}.{info.encode_name}" if path else info.encode_name
            _compare(getattr(old, info.name), getattr(new, info.name), info.type, inner, found)
    elif isinstance(old, tuple) and isinstance(new, tuple) and _named(old) and _named(new) and (old or new):
        _compare_named(old, new, kind, path, found)
    elif old != new:
        found.append(Change(path=path, old=text_of(old, kind), new=text_of(new, kind)))


def _named(items: tuple[Any, ...]) -> bool:
    names = [getattr(item, "name", None) for item in items]
    return None not in names and len(set(names)) == len(names)


def _compare_named(
    old: tuple[Any, ...], new: tuple[Any, ...], kind: Any, path: str, found: list[Change]
) -> None:
    before, after = {item.name: item for item in old}, {item.name: item for item in new}
    item_kind = get_args(kind)[0]
    for name in dict.fromkeys([*before, *after]):
        inner = f"{path}[{name}]"
        if name not in after:
            found.append(Change(path=inner, old=text_of(before[name], item_kind), new=""))
        elif name not in before:
            found.append(Change(path=inner, old="", new=text_of(after[name], item_kind)))
        else:
            _compare(before[name], after[name], item_kind, inner, found)
    if list(before) != list(after) and sorted(before) == sorted(after):
        found.append(Change(path=path, old=", ".join(before), new=", ".join(after)))


def unified(before: str, after: str, name: str = "fleet.yaml") -> str:
    """The unified diff of two YAML texts, for a report; empty when they are the same."""
    lines = difflib.unified_diff(
        before.splitlines(), after.splitlines(), f"{name} (before)", f"{name} (after)", lineterm="", n=2
    )
    return "\n".join(lines)
