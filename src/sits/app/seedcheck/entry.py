"""What an entry of the list is: a published claim in our words, and a function that derives what is right.

Rules: the right value is computed when asked, by the house's own predictors where one exists, never written down beside the claim.
A `Check` is something the derivation must show, among them that the claim itself misses it; an entry passes when all hold.  Where
nothing can be computed (the name of a flag, the number of a counter) the entry is of kind `fact`, its check compares the claim with the
vendor's table, and the source is named: no computation is pretended.

Deliberately absent: rendering (`command`).
"""

from collections.abc import Callable

import msgspec


class Check(msgspec.Struct, frozen=True):
    """A statement and whether the derivation shows it."""

    what: str
    ok: bool


class Derived(msgspec.Struct, frozen=True):
    """The outcome of a derivation: the right value as text, the steps with their numbers, and what was shown."""

    right: str
    steps: tuple[str, ...]
    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        """Whether everything that had to be shown was shown."""
        return bool(self.checks) and all(check.ok for check in self.checks)


class Entry(msgspec.Struct, frozen=True):
    """A claim as published, and what is right.

    `kind` is `computed` or `fact`; `used` names what of this program computes it, or the source of the fact.
    """

    id: str
    title: str
    claim: str
    used: str
    derive: Callable[[], Derived]
    kind: str = "computed"


def near(value: float, other: float, share: float = 0.01) -> bool:
    """Whether two figures agree within a share.

    >>> near(8.59, 8.6), near(1.3, 8.6)
    (True, False)
    """
    return abs(value - other) <= share * abs(other)
