"""Gifts: tokens added to one balance by hand, on their way to the ledger.

`sitsctl quota grant` leaves a file in the ledger's `grants/`, complete from the moment it has its name; the gateway that owns
the ledger takes it up within a second of the next question, or when it starts.  A gift counts once, however often its
file is read, because the ledger knows it by name.

Deliberately absent: who may give.  Whoever may write into the ledger's directory may.
"""

from collections.abc import Iterator
from pathlib import Path

import msgspec

FOLDER = "grants"


class Gift(msgspec.Struct, frozen=True, kw_only=True):
    """`amount` more for one account in one window."""

    name: str
    account: str
    window: int
    per_ns: int
    limit: int
    amount: int


def leave_gift(directory: Path, gift: Gift) -> Path:
    """Put a gift where the ledger will find it."""
    folder = directory / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{gift.name}.json"
    half = folder / f"{gift.name}.half"
    half.write_bytes(msgspec.json.encode(gift))
    half.rename(path)
    return path


def take_gifts(directory: Path) -> Iterator[tuple[Path, Gift]]:
    """Every gift that lies there; whoever has written it down removes the file.  What cannot be read is set aside."""
    for path in sorted((directory / FOLDER).glob("*.json")):
        try:
            yield path, msgspec.json.decode(path.read_bytes(), type=Gift)
        except msgspec.MsgspecError:
            path.rename(path.with_suffix(".bad"))
