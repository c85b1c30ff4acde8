"""What the supervisor says, on its way to the keeper, who puts it into the store.

Rules: a line for a keeper that is away waits for the next one, and goes when something is said again: that it works again, at the latest.  At most
`WAITING_MAX` lines wait; the oldest go.  On stderr they all are at once.

Deliberately absent: anything that could fail; what cannot be sent is `Child.tell`'s and the supervisor's to deal with.
"""

from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sits.app.up.children import Child

WAITING_MAX = 256


class Lines:
    """Called with each row of table `logs`."""

    def __init__(self, keeper: Child, tell: Callable[[Child, str, Any], None]) -> None:
        self._keeper = keeper
        self._tell = tell
        self._waiting: deque[tuple[Any, ...]] = deque(maxlen=WAITING_MAX)

    def __call__(self, row: tuple[Any, ...]) -> None:
        """Send it, after those that wait."""
        self._waiting.append(row)
        while self._waiting and self._keeper.pid:
            self._tell(self._keeper, "log", self._waiting.popleft())


def farewell(words: tuple[int, int, str] | None, store: str) -> str:
    """The last line, from what the keeper said last: answers, rows dropped, and what was wrong with the store."""
    if words is None:
        return f"stopped; the keeper ended without a word, store in {store}"
    answered, dropped, failure = words
    trouble = f" (the store: {failure})" if failure else ""
    return f"drained; {answered} answered, {dropped} records dropped, store in {Path(store)}{trouble}"
