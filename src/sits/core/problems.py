"""The problems of one configuration file, collected.

A `Report` gathers what decoding and checking find, with the line of each path, so that a person sees all of it
at once.  A path that was reported holds a stand-in value from then on; what is said about it, or about
anything inside it, later on is an echo of the first problem and is not repeated.

A `Rule` hangs on a type: `before` may rewrite the node (inheritance), `after` checks the value (references).

Deliberately absent: raising.  Whoever started the report raises its `errors` together.
"""

import difflib
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from sits.core.errors import ConfigError
from sits.core.yaml_nodes import Node


class Report:
    """The problems of one file, and where each path of it stands."""

    def __init__(self, file: str = "") -> None:
        self.file = file
        self.lines: dict[str, int] = {}
        self._errors: dict[tuple[int, str], ConfigError] = {}
        self._failed: set[str] = set()

    def add(
        self, path: str, message: str, *, line: int = 0, value: Any = None, hint: str | None = None
    ) -> None:
        """Report a problem at `path`, unless `path` or a section around it is a stand-in already."""
        if not self.sound(path):
            return
        self._failed.add(path)
        at = line or self.line(path)
        where = f"{self.file}:{at}" if self.file and at else self.file
        error = ConfigError(message, where=where, field=path or None, value=value, hint=hint)
        self._errors.setdefault((at, message) if at else (0, f"{path} {message}"), error)

    def mark_failed(self, path: str) -> None:
        """Say nothing more about `path`: what stands there is a stand-in."""
        self._failed.add(path)

    def sound(self, *paths: str) -> bool:
        """Whether none of `paths`, and no section around them, was reported."""
        return not any(outer in self._failed for path in paths for outer in _outward(path))

    def sound_within(self, path: str) -> bool:
        """Whether nothing at or inside `path` was reported."""
        return self.sound(path) and not any(_inside(bad, path) for bad in self._failed)

    def line(self, path: str) -> int:
        """The line of `path`, or of the nearest section around it that has one; 0 = unknown."""
        return next((self.lines[outer] for outer in _outward(path) if outer in self.lines), 0)

    @property
    def errors(self) -> list[ConfigError]:
        """All problems in the order of lines."""
        return [error for _, error in sorted(self._errors.items(), key=lambda entry: entry[0][0])]


class Rule(msgspec.Struct, frozen=True):
    """What a type needs beyond its fields.

    Attributes:
        before: `(node, path, report) -> node`, called on a map before it is decoded.
        after: `(value, path, report)`, called on the decoded value to check it.
        tolerant: `after` copes with stand-ins and runs even when something inside failed.

    """

    before: Callable[[Node, str, Report], Node] | None = None
    after: Callable[[Any, str, Report], None] | None = None
    tolerant: bool = False


def join(path: str, name: str) -> str:
    """`path.name`, without a leading dot.

    >>> join("", "policy"), join("policy", "window")
    ('policy', 'policy.window')
    """
    return f"{path}.{name}" if path else name


def near(name: str, known: Iterable[str]) -> str:
    """A hint that names the nearest known word, or all of them when none is near.

    >>> near("windw", ["window", "admit"])
    "did you mean 'window'?"
    >>> near("x", [])
    'there are none'
    """
    words = sorted(set(known))
    by_case = [word for word in words if word.lower() == name.lower()]
    close = by_case or difflib.get_close_matches(name, words, n=1, cutoff=0.5)
    if close:
        return f"did you mean {close[0]!r}?"
    if not words:
        return "there are none"
    return "known: " + ", ".join(words[:20]) + (", ..." if len(words) > 20 else "")


def _outward(path: str) -> Iterable[str]:
    """`path` and the sections around it, from the inside out; ends with the root "".

    >>> list(_outward("a[1].b"))
    ['a[1].b', 'a[1]', 'a', '']
    """
    yield path
    while path:
        cut = max(path.rfind("."), path.rfind("["))
        path = path[:cut] if cut > 0 else ""
        yield path


def _inside(inner: str, path: str) -> bool:
    return not path or inner.startswith((path + ".", path + "["))
