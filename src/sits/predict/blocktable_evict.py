"""Which resting KV block goes when blank ones are used up: two policies, and what any other has to do.

- `lru`: the one that has rested longest, as vLLM does.  One scan of long, never repeated prompts empties it of
  everything worth keeping.
- `lfu`: the one found least often since it was filled; of equals, the one that has rested longest.  A system prompt that
  everybody shares survives such a scan; a prompt that was popular yesterday stays too long.

Deliberately absent: who holds a block.  The table tells a policy which blocks rest, and a policy gives up only those.
"""

import heapq
from collections.abc import Iterator
from typing import Protocol


class Eviction(Protocol):
    """Blocks that nobody holds and that could still be found again."""

    def rest(self, block: int) -> None:
        """Nobody holds `block` any more."""

    def wake(self, block: int) -> None:
        """A resting `block` is held again."""

    def used(self, block: int) -> None:
        """`block`, resting or held, was found."""

    def victim(self) -> int:
        """Give up one resting block."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[int]: ...


class LeastRecent:
    """The block that has rested longest goes.

    >>> policy = LeastRecent()
    >>> for block in (3, 1, 2):
    ...     policy.rest(block)
    >>> policy.wake(3)
    >>> policy.victim(), len(policy)
    (1, 1)
    """

    def __init__(self) -> None:
        self._order: dict[int, None] = {}

    def rest(self, block: int) -> None:
        """Behind all that rest already."""
        self._order[block] = None

    def wake(self, block: int) -> None:
        """Gone from the queue."""
        del self._order[block]

    def used(self, block: int) -> None:
        """Nothing: the order is that of resting."""

    def victim(self) -> int:
        """The first of the queue."""
        block = next(iter(self._order))
        del self._order[block]
        return block

    def __len__(self) -> int:
        return len(self._order)

    def __iter__(self) -> Iterator[int]:
        return iter(self._order)


class LeastUsed:
    """The block found least often goes; of equals, the one that has rested longest.

    >>> policy = LeastUsed()
    >>> for block in (3, 1, 2):
    ...     policy.rest(block)
    >>> policy.used(3)
    >>> policy.victim(), policy.victim(), policy.victim()
    (1, 2, 3)
    """

    def __init__(self) -> None:
        self._found: dict[int, int] = {}
        self._resting: dict[int, int] = {}
        self._heap: list[tuple[int, int, int]] = []
        self._turn = 0

    def rest(self, block: int) -> None:
        """With the count it has."""
        self._turn += 1
        self._resting[block] = self._turn
        heapq.heappush(self._heap, (self._found.get(block, 0), self._turn, block))
        if len(self._heap) > 2 * len(self._resting) + 64:  # entries of blocks woken since would pile up
            self._heap = [entry for entry in self._heap if self._current(entry)]
            heapq.heapify(self._heap)

    def wake(self, block: int) -> None:
        """Gone from the resting ones; its entry in the heap is passed over when met."""
        del self._resting[block]

    def used(self, block: int) -> None:
        """One more, and a resting block is counted anew."""
        self._found[block] = self._found.get(block, 0) + 1
        if block in self._resting:
            self.rest(block)

    def victim(self) -> int:
        """The least of the heap that still rests as it did."""
        while True:
            entry = heapq.heappop(self._heap)
            if self._current(entry):
                block = entry[2]
                del self._resting[block]
                self._found.pop(block, None)
                return block

    def _current(self, entry: tuple[int, int, int]) -> bool:
        return self._resting.get(entry[2]) == entry[1]

    def __len__(self) -> int:
        return len(self._resting)

    def __iter__(self) -> Iterator[int]:
        return iter(self._resting)


EVICTIONS: dict[str, type[LeastRecent] | type[LeastUsed]] = {"lru": LeastRecent, "lfu": LeastUsed}
