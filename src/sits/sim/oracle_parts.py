"""What the plain twin of the engine model is made of: requests, blocks with numbers, and the report of a step.

Rules: a block is free or held; a full one can be found by what it holds until it is taken for something else; free ones are
taken in the order in which they were given back, those of one request from its last to its first.

Deliberately absent: who gets what, and when (`oracle`).
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple


class OracleRequest:
    """One request: what it asked for, what it has, and when things happened to it."""

    def __init__(
        self, name: int, prompt: int, output: int, adapter: int, rank: tuple[int, int], names: Sequence[int]
    ) -> None:
        self.name = name
        self.rank = rank
        self.names = names
        self.prompt = prompt
        self.output = output
        self.adapter = adapter
        self.generated = 0
        self.with_kv = 0
        self.most_with_kv = 0
        self.blocks: list[int] = []
        self.ending = False
        self.preemptions = 0
        self.scheduled_ns = -1
        self.first_token_ns = -1
        self.last_token_ns = -1

    @property
    def without_kv(self) -> int:
        """Tokens known (prompt and generated) that have no KV yet."""
        return self.prompt + self.generated - self.with_kv

    def content(self, index: int, size: int) -> tuple[object, ...]:
        """What block `index` holds, when it is full: the names up to it, or the request's own text."""
        if index < min(len(self.names), self.prompt // size):
            return tuple(self.names[: index + 1])
        return (self.rank, index)


class Pool:
    """The KV blocks: free ones in the order they are taken, and what full ones can be found by."""

    def __init__(self, count: int) -> None:
        self.free = OrderedDict.fromkeys(range(count))
        self.holders = [0] * count
        self.found: dict[tuple[object, ...], int] = {}
        self.holds: dict[int, tuple[object, ...]] = {}

    def take(self) -> int:
        """The free block that has been free longest; what it held is found no more."""
        block, _ = self.free.popitem(last=False)
        if block in self.holds:
            del self.found[self.holds.pop(block)]
        self.holders[block] = 1
        return block

    def share(self, block: int) -> int:
        """One holder more for `block`, free until now or not."""
        self.free.pop(block, None)
        self.holders[block] += 1
        return block

    def give_back(self, blocks: list[int]) -> None:
        """One holder less for each of `blocks`, which is emptied; the last becomes free first."""
        for block in reversed(blocks):
            self.holders[block] -= 1
            if not self.holders[block]:
                self.free[block] = None
        blocks.clear()

    def remember(self, block: int, content: tuple[object, ...]) -> None:
        """Let `block` be found by its content, unless another one is."""
        if content not in self.found:
            self.found[content] = block
            self.holds[block] = content


class OracleStep(NamedTuple):
    """What one step did; the fields of `model.StepResult` that both models state."""

    t_ns: int
    duration_ns: int
    running: int
    waiting: int
    prefill_tokens: int
    decode_tokens: int
    kv_used: int
    preempted: int
    denied: int
    recomputed_tokens: int
    copy_bytes: int
    copy_ns: int
    adapter_loads: int
    eager: int
    prepare_ns: int
    stages_ns: tuple[int, ...]
    started: list[int]
    first: list[int]
    finished: list[int]
