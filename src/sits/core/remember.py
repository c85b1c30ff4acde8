"""Remember: a bounded memory of answers that are always the same for the same question.

Two generations: what is asked for stays young; when the young half is full it becomes the old half and the previous
old half is dropped.  So a thing that is used survives, a thing that is not goes, and no put or get walks anything.
`weight` is what an entry counts against `capacity`: 1 for a bound on entries, a size in bytes for one on memory.

The hot path asks `memory.young.get(question)` itself, one dict hit without a call, and falls back to `get`.

Deliberately absent: expiry by time.  Who remembers something that ends stores the end with it.
"""

from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Remember(Generic[K, V]):
    """Answers by question, at most `capacity` of weight in all.

    >>> memory = Remember[str, int](4)
    >>> for number, name in enumerate("abcde"):
    ...     memory.put(name, number)
    >>> memory.get("a"), memory.get("e")
    (None, 4)
    """

    __slots__ = ("_half", "_old", "_weight", "young")

    def __init__(self, capacity: int) -> None:
        self._half = capacity // 2
        self._weight = 0
        self._old: dict[K, V] = {}
        self.young: dict[K, V] = {}

    def get(self, key: K, weight: int = 1) -> V | None:
        """The answer, which stays young from now on; None when it is not remembered."""
        found = self.young.get(key)
        if found is None:
            found = self._old.pop(key, None)
            if found is not None:
                self.put(key, found, weight)
        return found

    def put(self, key: K, value: V, weight: int = 1) -> None:
        """Remember an answer; one that alone outweighs half of the capacity is not kept."""
        if weight > self._half:
            return
        if self._weight + weight > self._half:
            self._old, self.young, self._weight = self.young, {}, 0
        self.young[key] = value
        self._weight += weight

    def forget(self, key: K) -> None:
        """Drop one answer, if it is there."""
        self.young.pop(key, None)
        self._old.pop(key, None)

    def clear(self) -> None:
        """Drop all answers."""
        self.young, self._old, self._weight = {}, {}, 0

    def __len__(self) -> int:
        return len(self.young) + len(self._old)
