"""Recorded rows as they travel and as they become columns: what many rows have in common is said once.

```
kinds    the distinct combinations of tenant, model, engine, arm, outcome, status, ...: few, however many rows
kind     for each row, which of them                                texts    ids, hashes: one list a column
numbers  token counts and the like: one list a column               at, how  20 times and 20 exactness digits a row, end to end
```
Taking rows apart costs the worker a third of a microsecond a row and saves the keeper two: it neither makes nor looks at a text for each
cell, and counts kinds instead of rows.

Rules: which columns are which follows from `telemetry.tables`; numbers that no 64 bits hold are clipped, because one made-up count must
not cost the rows beside it.  This module loads no numpy.

Deliberately absent: sockets, and columns of arrays (`telemetry.rows`).
"""

from collections.abc import Sequence
from operator import itemgetter
from typing import Any

import msgspec

from sits.telemetry.recorder import AT, HOW, LABELS, NUMBERS, OWN_TEXTS, Row

KIND = tuple(name for name in LABELS if name not in NUMBERS and name not in OWN_TEXTS)
"""Columns of which there are few combinations."""

LOW, HIGH = -(2**63), 2**63 - 1

_kind = itemgetter(*map(LABELS.index, KIND))
_numbers = itemgetter(*map(LABELS.index, NUMBERS))
_texts = itemgetter(*map(LABELS.index, OWN_TEXTS))


class Packed(msgspec.Struct, array_like=True, frozen=True):
    """Rows of one run."""

    kinds: list[tuple[Any, ...]]
    kind: list[int]
    texts: list[Sequence[str]]
    numbers: list[Sequence[int]]
    at: bytes
    how: bytes

    def __len__(self) -> int:
        """How many rows."""
        return len(self.kind)


def pack(rows: Sequence[Row]) -> Packed:
    """Take rows apart."""
    kinds: dict[tuple[Any, ...], int] = {}
    known = kinds.setdefault
    return Packed(
        kind=[known(kind, len(kinds)) for kind in map(_kind, rows)],
        kinds=list(kinds),
        texts=list(zip(*map(_texts, rows), strict=True)) or [()] * len(OWN_TEXTS),
        numbers=[_fitting(column) for column in zip(*map(_numbers, rows), strict=True)]
        or [()] * len(NUMBERS),
        at=b"".join([row[AT] for row in rows]),
        how=b"".join([row[HOW] for row in rows]),
    )


def _fitting(column: tuple[int, ...]) -> Sequence[int]:
    if min(column) >= LOW and max(column) <= HIGH:
        return column
    return [min(max(number, LOW), HIGH) for number in column]
