"""Rows that come to a keeper before its books are open, half a second to some more when the disk is slow.

Rules: rows wait, at most `ROWS_MAX` of them; what finds no room is dropped and counted, as in the books themselves.

Deliberately absent: what rows are.
"""

from collections.abc import Callable, Sequence
from typing import Any

ROWS_MAX = 200_000


class Early:
    """Messages of rows: table, run and rows as they were sent.

    Attributes:
        dropped: rows that found no room.

    """

    def __init__(self) -> None:
        self.dropped = 0
        self._bodies: list[Sequence[Any]] = []
        self._rows = 0

    def add(self, body: Sequence[Any]) -> None:
        """Keep rows, or count them as dropped."""
        table, _, rows = body
        count = len(rows[1]) if table == "requests" else len(rows)  # packed rows have a kind each
        if self._rows + count > ROWS_MAX:
            self.dropped += count
        else:
            self._rows += count
            self._bodies.append(body)

    def hand_over(self, add: Callable[..., None]) -> None:
        """Give all of it to the books, in the order in which it came."""
        for body in self._bodies:
            add(*body)
        self._bodies, self._rows = [], 0
