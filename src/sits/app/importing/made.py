"""What an importer makes: the fleet, and the account of the source.

Rules: names are made of what the source calls things, changed as little as a fleet file demands, and told apart by numbers.  The
fleet is written, read again and compared before anybody gets it.

Deliberately absent: where the words came from.
"""

import re
from collections.abc import Collection

import msgspec

from sits.app.importing.source import Fate
from sits.core.config import dump_fleet, load_fleet
from sits.core.errors import BugError, ConfigError, ConfigErrors
from sits.core.fleet import Fleet

NAME_MAX = 100
_NOT_IN_NAMES = re.compile(r"[^\w.:/@+-]+", re.ASCII)


class Made(msgspec.Struct, frozen=True, kw_only=True):
    """A fleet as text, and every field of the source with its fate."""

    yaml: str
    fates: tuple[Fate, ...]

    @property
    def lossless(self) -> bool:
        """Whether everything means the same here."""
        return all(fate.verdict == "mapped" for fate in self.fates)


def made(fleet: Fleet, fates: list[Fate], file: str) -> Made:
    """The result, proven to load.

    Raises:
        ConfigError: there is nothing to serve.
        BugError: what came out does not load.

    """
    if not fleet.engines:
        raise ConfigError(
            "nothing in it can be served here",
            where=file,
            hint="no provider or pool in it is one that is spoken to here"
            if fates
            else "it has no model and no pool",
        )
    text = dump_fleet(fleet)
    try:
        again = load_fleet(text)
    except ConfigErrors as errors:
        raise BugError(f"what was made of {file} does not load: {errors.errors[0]}") from errors
    if again != fleet:
        raise BugError(f"what was made of {file} is read back as something else")
    return Made(yaml=text, fates=tuple(fates))


def named(wanted: str, taken: Collection[str]) -> str:
    """A name for a fleet file, made of `wanted`, that is not `taken`.

    >>> named("gpt 4o (eu)", []), named("7", []), named("a", ["a", "a-2"])
    ('gpt-4o-eu', 'n7', 'a-3')
    """
    base = _NOT_IN_NAMES.sub("-", wanted).strip("-.:/@+")[:NAME_MAX] or "unnamed"
    if base.isdigit() or not (base[0].isalnum() or base[0] == "_"):
        base = f"n{base}"
    found, number = base, 1
    while found in taken:
        number += 1
        found = f"{base}-{number}"
    return found
