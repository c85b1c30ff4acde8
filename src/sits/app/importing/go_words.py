"""Go's regular expressions and durations, as far as Kubernetes objects use them, in the words used here.

Deliberately absent: what of Go's expressions is not regular in one pass from the start (`core.pattern` says which is known).
"""

import re

from sits.core.errors import ConfigError
from sits.core.units import SECOND

_GO_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)")
_SIZES = {"ms": SECOND // 1000, "s": SECOND, "m": 60 * SECOND, "h": 3600 * SECOND}


def anywhere(pattern: str) -> str:
    """A pattern for whole values that holds where `pattern` is found anywhere in them, as Go's MatchString does.

    >>> anywhere("gold"), anywhere("^gold"), anywhere("^(a|b)$"), anywhere("a|b")
    ('.*gold.*', 'gold.*', '(a|b)', '.*(?:a|b).*')
    """
    flag = "(?i)" if pattern.startswith("(?i)") else ""
    inner = pattern.removeprefix(flag)
    first = inner.startswith("^")
    last = inner.endswith("$") and not inner.endswith("\\$")
    inner = inner[first : len(inner) - last]
    if "|" in inner and _has_bar_outside(inner):
        if first or last:
            raise ConfigError(
                "an alternative is anchored on its own", hint="put a group around the alternatives"
            )
        inner = f"(?:{inner})"
    return f"{flag}{'' if first else '.*'}{inner}{'' if last else '.*'}"


def _has_bar_outside(pattern: str) -> bool:
    """Whether a `|` stands outside of groups and brackets."""
    depth, at = 0, 0
    while at < len(pattern):
        sign = pattern[at]
        if sign == "\\":
            at += 1
        elif sign == "[":
            at = max(at, pattern.find("]", at + 2))
        elif sign in "()":
            depth += 1 if sign == "(" else -1
        elif sign == "|" and not depth:
            return True
        at += 1
    return False


def nanoseconds(text: str) -> int:
    """A duration as Go writes it: `1m30s`; 0 when it is none."""
    parts = _GO_DURATION.findall(text)
    if "".join(number + unit for number, unit in parts) != text:
        return 0
    return round(sum(float(number) * _SIZES[unit] for number, unit in parts))
