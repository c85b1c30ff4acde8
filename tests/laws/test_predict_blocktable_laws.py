"""Laws of the block table: no block lost or held by mistake, writes seen by nobody else, hits only where content is equal.

A memory of our own stands behind the table: for each block, what every slot holds, written as the whole prefix up to that token and
its salt (the KV of a token depends on all before it).  Whatever the table does, each sequence must read its own content there.
"""

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sits.core.errors import BugError
from sits.predict.blocktable import BlockTable
from sits.predict.blocktable_evict import EVICTIONS, LeastRecent

TOKENS = st.integers(0, 2)
"""Few different ones, so that prefixes meet."""
PROMPTS = st.lists(TOKENS, min_size=1, max_size=14)
SALTS = st.sampled_from(("", "lora-1"))
EXAMPLES = 25_000 if os.environ.get("SITS_SOAK") == "1" else 100


class Tables(RuleBasedStateMachine):
    """Sequences of known content (a list of tokens) and of unknown content (None for each)."""

    @initialize(
        blocks=st.integers(1, 12), block_size=st.integers(1, 4), eviction=st.sampled_from(sorted(EVICTIONS))
    )
    def begin(self, blocks, block_size, eviction):
        self.blocks, self.size = blocks, block_size
        self.table = BlockTable(blocks, block_size, eviction)
        self.content = {}
        self.memory = [[None] * block_size for _ in range(blocks)]
        self.findable = set()
        self.evictions = self.count = 0

    def written(self, name, start):
        """What a model run would write for the tokens from `start` on."""
        salt, tokens = self.content[name]
        held = self.table.blocks_of(name)
        for at in range(start, len(tokens)):
            self.memory[held[at // self.size]][at % self.size] = (salt, tuple(tokens[: at + 1]))

    def remember(self, name):
        """Full blocks of known content can be found again until something is evicted, which may have been just now."""
        if self.table.use().evictions != self.evictions:
            self.evictions = self.table.use().evictions
            self.findable.clear()
        salt, tokens = self.content[name]
        for end in range(self.size, len(tokens) + 1, self.size):
            if None not in tokens[:end]:
                self.findable.add((salt, tuple(tokens[:end])))

    def new(self):
        self.count += 1
        return self.count

    @rule(prompt=PROMPTS, salt=SALTS)
    def allocate(self, prompt, salt):
        name, before = self.new(), self.table.use()
        expected = 0
        while (
            expected + self.size < len(prompt)
            and (salt, tuple(prompt[: expected + self.size])) in self.findable
        ):
            expected += self.size
        hit = self.table.allocate(name, prompt, salt)
        if hit is None:
            self.refused(before)
            return
        assert hit % self.size == 0
        assert hit < len(prompt)
        if self.table.use().evictions == self.evictions:
            assert hit >= expected  # nothing was taken away since: at least that must be found
        if self.table.use().evictions == 0:
            assert hit == expected
        self.content[name] = (salt, list(prompt))
        self.written(name, hit)
        self.remember(name)

    @rule(tokens=st.integers(1, 14))
    def allocate_unknown(self, tokens):
        name, before = self.new(), self.table.use()
        if self.table.allocate(name, tokens) is None:
            self.refused(before)
            return
        self.content[name] = (f"unknown {name}", [None] * tokens)
        self.written(name, 0)
        self.remember(name)

    @precondition(lambda self: self.content)
    @rule(data=st.data(), token=st.none() | TOKENS)
    def append(self, data, token):
        self.one_more(data.draw(st.sampled_from(sorted(self.content))), token)

    def one_more(self, name, token):
        _, tokens = self.content[name]
        held, before = self.table.blocks_of(name), self.table.use()
        if not self.table.append(name, token):
            self.refused(before)
            assert self.table.blocks_of(name) == held
            return
        now = self.table.blocks_of(name)
        if len(now) == len(held) and now[-1] != held[-1]:  # a copy: what was written goes with it
            place = len(tokens) % self.size
            self.memory[now[-1]][:place] = self.memory[held[-1]][:place]
            assert any(held[-1] in self.table.blocks_of(other) for other in self.content)
        tokens.append(token)
        self.written(name, len(tokens) - 1)
        self.remember(name)

    @precondition(lambda self: self.content)
    @rule(data=st.data())
    def fork(self, data):
        self.one_like(data.draw(st.sampled_from(sorted(self.content))))

    @precondition(lambda self: self.content)
    @rule(data=st.data(), tokens=st.lists(TOKENS, min_size=2, max_size=3, unique=True))
    def fork_and_write_apart(self, data, tokens):
        parent = data.draw(st.sampled_from(sorted(self.content)))
        forks = [parent, *(self.one_like(parent) for _ in tokens[1:])]
        for name, token in zip(forks, tokens, strict=True):
            self.one_more(name, token)

    def one_like(self, parent):
        child, used = self.new(), self.table.use().held
        self.table.fork(parent, child)
        salt, tokens = self.content[parent]
        self.content[child] = (salt, list(tokens))
        assert self.table.use().held == used
        return child

    @precondition(lambda self: self.content)
    @rule(data=st.data())
    def free(self, data):
        name = data.draw(st.sampled_from(sorted(self.content)))
        self.table.free(name)
        del self.content[name]
        assert name not in self.table

    def refused(self, before):
        """A refusal changes nothing but its count, and there was no room."""
        after = self.table.use()
        assert after.denials == before.denials + 1
        assert (after.held, after.resting, after.blank) == (before.held, before.resting, before.blank)

    @invariant()
    def laws_hold(self):
        assert self.table.broken() == []

    @invariant()
    def everybody_reads_what_is_theirs(self):
        for name, (salt, tokens) in self.content.items():
            held = self.table.blocks_of(name)
            assert self.table.tokens_of(name) == len(tokens)
            for at in range(len(tokens)):
                assert self.memory[held[at // self.size]][at % self.size] == (salt, tuple(tokens[: at + 1]))

    @invariant()
    def nothing_is_lost(self):
        use = self.table.use()
        assert use.held + use.resting + use.blank == self.blocks
        assert len(self.table) == len(self.content)
        if not self.content:
            assert use.held == 0


Tables.TestCase.settings = settings(max_examples=EXAMPLES, stateful_step_count=40, deadline=None)
TestTables = Tables.TestCase


@given(st.lists(st.integers(1, 40), min_size=1, max_size=20), st.integers(1, 8))
@settings(deadline=None)
def test_waste_is_less_than_a_block_each(lengths, block_size):
    table = BlockTable(blocks=2000, block_size=block_size)
    for name, tokens in enumerate(lengths):
        table.allocate(name, tokens)
    use = table.use()
    assert use.tokens == sum(lengths)
    assert use.held * block_size - use.tokens <= len(lengths) * (block_size - 1)


def test_who_writes_into_a_shared_block_gets_a_copy_and_the_last_one_does_not():
    table = BlockTable(blocks=4, block_size=4)
    table.allocate("a", [1, 2, 3, 4, 5])
    table.fork("a", "b")
    table.fork("a", "c")
    for name in ("b", "c", "a"):
        assert table.append(name, ord(name))
    first, tails = zip(*(table.blocks_of(name) for name in "abc"), strict=True)
    assert len(set(first)) == 1
    assert len(set(tails)) == 3
    assert table.use().copies == 2
    table.fork("a", "d")  # no block is left: the write is refused, and "d" still reads what it read
    held = table.blocks_of("d")
    assert not table.append("d", 9)
    assert table.blocks_of("d") == held
    assert table.broken() == []


class Greedy(LeastRecent):
    """A policy with a bug: it gives up a block that is held."""

    def victim(self):
        super().victim()
        return 0


def test_a_policy_that_gives_up_held_blocks_is_caught():
    table = BlockTable(blocks=3, block_size=1, eviction=Greedy())
    table.allocate("held", [1])  # block 0
    for token in (5, 6):
        table.allocate("gone", [token])
        table.free("gone")
    with pytest.raises(BugError, match="block 0"):
        table.allocate("c", [7])


def test_lfu_keeps_what_everybody_shares_through_a_scan_and_lru_does_not():
    def found_after_a_scan(eviction):
        table = BlockTable(blocks=8, block_size=4, eviction=eviction)
        system = list(range(8))
        for name in range(4):
            table.allocate(name, [*system, 100 + name])
            table.free(name)
        for name in range(100, 108):  # prompts nobody repeats
            table.allocate(name, [1000 * name + i for i in range(9)])
            table.free(name)
        return table.allocate("again", [*system, 1])

    assert (found_after_a_scan("lru"), found_after_a_scan("lfu")) == (0, 8)
