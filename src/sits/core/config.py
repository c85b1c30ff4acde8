"""Strict typed configuration: text in, an immutable tree out, or every problem of the text at once.

```
text --compose--> nodes with lines --inherit `like`--> nodes --decode by type--> Fleet --check--> Fleet
                                                              any problem on the way --> ConfigErrors
```
Each error has `file:line`, the dotted field, the value, and the way out (the near name, the unit, the range).
`dump_fleet` writes what `load_fleet` reads back to the same tree; `digest` names a configuration by content;
`patch` and `diff` speak of single values.

Deliberately absent: files, environment variables and clocks; the caller reads the text.
"""

from collections.abc import Mapping
from typing import Any, TypeVar

from sits.core.change import diff, patch, unified
from sits.core.decode import Decoder
from sits.core.errors import ConfigErrors
from sits.core.fleet import Fleet
from sits.core.fleet_rules import FLEET_RULE
from sits.core.problems import Report, Rule
from sits.core.show import digest, dump, text_of
from sits.core.yaml_nodes import Node, compose

T = TypeVar("T")

__all__ = [
    "Report",
    "Rule",
    "decode",
    "diff",
    "digest",
    "dump",
    "dump_fleet",
    "load_fleet",
    "patch",
    "text_of",
    "unified",
]


def decode(
    source: str | Node, kind: type[T], file: str = "configuration", rules: Mapping[Any, Rule] | None = None
) -> T:
    """The value of a YAML text (or node) as a `kind`, usually a Struct type.

    A `Fleet` anywhere inside is resolved and checked as by `load_fleet`; `rules` adds checks for other types.

    Raises:
        ConfigErrors: every problem found, in the order of lines.

    """
    node = compose(source, file) if isinstance(source, str) else source
    report = Report(file)
    value = Decoder(report, {Fleet: FLEET_RULE, **(rules or {})}).value(node, kind, "")
    if errors := report.errors:
        raise ConfigErrors(errors)
    found: T = value
    return found


def load_fleet(text: str, file: str = "fleet.yaml") -> Fleet:
    """The fleet that `text` describes, `like` resolved, all references and ranges checked.

    Raises:
        ConfigErrors: every problem found, in the order of lines.

    """
    return decode(text, Fleet, file)


def dump_fleet(fleet: Fleet) -> str:
    """Canonical YAML of `fleet`: units as people write them, defaults left out; `load_fleet` gives it back."""
    return dump(fleet)
