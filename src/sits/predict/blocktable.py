"""A block table: which KV blocks each sequence holds, which are shared, and which may be taken for others.

Rules, those of a paged engine (vLLM V1, PagedAttention section 4):

- a sequence of s tokens holds ceil(s / B) blocks; all but the last are full;
- a full block of known tokens has an identity, digest(identity of the block before it, its tokens), and the first
  identity comes from the salt (adapter, tenant): equal identities are equal prefixes under an equal salt, and nothing else;
- `allocate` shares the blocks of the longest known prefix, at most those before the last token, which an engine must
  compute again to have something to answer with;
- `fork` shares everything; whoever writes first into a block that others hold too gets a copy (copy on write);
- a freed block with an identity rests and may be found again; an eviction policy (`sits.predict.blocktable_evict`) says which
  resting block goes when blank ones are used up.  Blocks somebody holds are never taken;
- what does not fit is refused whole: `allocate` returns None, `append` False, and nothing has changed.

A prompt may be a number instead of tokens: unknown content, counted and never shared.

Deliberately absent: bytes (`sits.predict.kv`), time, and who is preempted when blocks run out (the scheduler's).
"""

from array import array
from collections.abc import Hashable, Sequence
from hashlib import blake2b

import msgspec

from sits.core.errors import BugError, ConfigError
from sits.predict.blocktable_evict import EVICTIONS, Eviction

Name = Hashable
DIGEST_BYTES = 16


class Held(msgspec.Struct):
    """What one sequence holds.

    `identity` is that of its last full block (of its salt before there is one), None once its content is
    unknown; `tail` the tokens after its last full block.
    """

    blocks: list[int]
    tokens: int
    identity: bytes | None
    tail: list[int]


class Use(msgspec.Struct, frozen=True, kw_only=True):
    """The table at one moment: blocks held, resting and blank; tokens in held blocks; and what happened so far.

    `waste` is the share of held room that holds no token, each shared block counted once.
    """

    held: int
    resting: int
    blank: int
    tokens: int
    waste: float
    hit_tokens: int
    copies: int
    evictions: int
    denials: int


def identity_of(before: bytes, tokens: Sequence[int]) -> bytes:
    """The identity of a full block that follows the one with identity `before`."""
    return blake2b(before + array("q", tokens).tobytes(), digest_size=DIGEST_BYTES).digest()


class BlockTable:
    """`blocks` blocks of `block_size` tokens each, and the sequences that hold them.

    >>> table = BlockTable(blocks=8, block_size=4)
    >>> system = list(range(8))
    >>> table.allocate("a", system + [90, 91]), table.allocate("b", system + [70])    # tokens found: none, two blocks
    (0, 8)
    >>> table.blocks_of("a")[:2] == table.blocks_of("b")[:2], table.use().held
    (True, 4)
    >>> table.fork("a", "a2")
    >>> table.append("a2", 92), table.use().copies              # writes into a shared block
    (True, 1)
    >>> table.allocate("other adapter", system, salt="lora-1")                       # not the same prefix
    0

    Raises:
        ConfigError: no block, no room in a block, or an eviction policy nobody knows.

    """

    def __init__(self, blocks: int, block_size: int = 16, eviction: str | Eviction = "lru") -> None:
        for field, value in (("blocks", blocks), ("block_size", block_size)):
            if value < 1:
                raise ConfigError(f"{value} is below 1", field=field, value=value, hint="give 1 or more")
        if isinstance(eviction, str):
            if eviction not in EVICTIONS:
                raise ConfigError(
                    f"no eviction policy {eviction!r}",
                    field="eviction",
                    value=eviction,
                    hint="one of " + ", ".join(EVICTIONS),
                )
            eviction = EVICTIONS[eviction]()
        self.block_size = block_size
        self._resting = eviction
        self._holders = [0] * blocks
        self._filled = [0] * blocks
        self._identity: list[bytes | None] = [None] * blocks
        self._known: dict[bytes, int] = {}
        self._blank = list(range(blocks - 1, -1, -1))
        self._sequences: dict[Name, Held] = {}
        self._hit_tokens = self._copies = self._evictions = self._denials = 0

    def __len__(self) -> int:
        """Sequences."""
        return len(self._sequences)

    def __contains__(self, name: Name) -> bool:
        return name in self._sequences

    def blocks_of(self, name: Name) -> tuple[int, ...]:
        """The blocks a sequence holds, in order."""
        return tuple(self._sequences[name].blocks)

    def tokens_of(self, name: Name) -> int:
        """The tokens a sequence has."""
        return self._sequences[name].tokens

    def allocate(self, name: Name, prompt: int | Sequence[int], salt: str = "") -> int | None:
        """Take in a sequence: how many of its tokens were found in shared blocks, or None when it does not fit now.

        Raises:
            ValueError: the name is taken, or the prompt is empty.

        """
        tokens = prompt if isinstance(prompt, int) else len(prompt)
        if name in self._sequences or tokens < 1:
            raise ValueError(f"sequence {name!r}: " + ("already here" if tokens > 0 else f"{tokens} tokens"))
        known = [] if isinstance(prompt, int) else prompt
        identities = self._chain(known, salt)
        found = self._longest(identities, (tokens - 1) // self.block_size)
        fresh = -(-tokens // self.block_size) - len(found)
        woken = sum(1 for block in found if not self._holders[block])
        if fresh > len(self._blank) + len(self._resting) - woken:
            self._denials += 1
            return None
        for block in found:
            self._share(block)
        blocks = found + [self._fresh() for _ in range(fresh)]
        for at in range(len(found), len(blocks)):
            self._filled[blocks[at]] = min(self.block_size, tokens - at * self.block_size)
            if at < len(identities) - 1:
                self._register(blocks[at], identities[at + 1])
        full = len(identities) - 1
        last = identities[-1] if known else None
        self._sequences[name] = Held(blocks, tokens, last, list(known[full * self.block_size :]))
        hit = len(found) * self.block_size
        self._hit_tokens += hit
        return hit

    def append(self, name: Name, token: int | None = None) -> bool:
        """Give a sequence one token more (None: unknown); False when no block is free for it, and then it has none."""
        held = self._sequences[name]
        place = held.tokens % self.block_size
        last = held.blocks[-1]
        shared = place > 0 and self._holders[last] > 1
        if (place == 0 or shared) and not self._blank and not len(self._resting):
            self._denials += 1
            return False
        if place == 0:
            held.blocks.append(self._fresh())
        elif shared:
            self._holders[last] -= 1
            held.blocks[-1] = self._fresh()
            self._copies += 1
        held.tokens += 1
        self._filled[held.blocks[-1]] = place + 1
        self._learn(held, token)
        return True

    def fork(self, parent: Name, child: Name) -> None:
        """Let `child` hold all that `parent` holds; costs no block until one of them writes.

        Raises:
            ValueError: the child's name is taken.

        """
        if child in self._sequences:
            raise ValueError(f"sequence {child!r}: already here")
        held = self._sequences[parent]
        for block in held.blocks:
            self._holders[block] += 1
        self._sequences[child] = Held(list(held.blocks), held.tokens, held.identity, list(held.tail))

    def free(self, name: Name) -> None:
        """Let a sequence go; its last block is the first to be taken for others, for it is the least likely to be asked for."""
        for block in reversed(self._sequences.pop(name).blocks):
            self._holders[block] -= 1
            if self._holders[block]:
                continue
            if self._identity[block] is None:
                self._filled[block] = 0
                self._blank.append(block)
            else:
                self._resting.rest(block)

    def use(self) -> Use:
        """What is held, resting and blank now, and what happened so far."""
        held = [block for block, holders in enumerate(self._holders) if holders]
        tokens = sum(self._filled[block] for block in held)
        return Use(
            held=len(held),
            resting=len(self._resting),
            blank=len(self._blank),
            tokens=tokens,
            waste=1.0 - tokens / (len(held) * self.block_size) if held else 0.0,
            hit_tokens=self._hit_tokens,
            copies=self._copies,
            evictions=self._evictions,
            denials=self._denials,
        )

    def broken(self) -> list[str]:
        """Laws that do not hold: always empty, or this table has a bug."""
        count: dict[int, int] = {}
        wrong: list[str] = []
        for name, held in self._sequences.items():
            for block in held.blocks:
                count[block] = count.get(block, 0) + 1
            if len(set(held.blocks)) != len(held.blocks):
                wrong.append(f"{name!r} holds a block twice")
            if len(held.blocks) != -(-held.tokens // self.block_size):
                wrong.append(f"{name!r} holds {len(held.blocks)} blocks for {held.tokens} tokens")
        blank, resting = set(self._blank), set(self._resting)
        for block, holders in enumerate(self._holders):
            if holders != count.get(block, 0):
                wrong.append(f"block {block} counts {holders} holders, has {count.get(block, 0)}")
            if (holders > 0) + (block in blank) + (block in resting) != 1:
                wrong.append(f"block {block} is in none or in several of held, resting, blank")
            identity = self._identity[block]
            if identity is not None and self._known.get(identity) != block:
                wrong.append(f"block {block} has an identity that leads elsewhere")
        if len(self._known) != sum(identity is not None for identity in self._identity):
            wrong.append("an identity leads to a block that does not have it")
        return wrong

    def _chain(self, tokens: Sequence[int], salt: str) -> list[bytes]:
        """The salt's identity and those of the full blocks of `tokens`."""
        chain = [identity_of(blake2b(salt.encode(), digest_size=DIGEST_BYTES).digest(), ())]
        for end in range(self.block_size, len(tokens) + 1, self.block_size):
            chain.append(identity_of(chain[-1], tokens[end - self.block_size : end]))
        return chain

    def _longest(self, identities: list[bytes], most: int) -> list[int]:
        found: list[int] = []
        for identity in identities[1 : most + 1]:
            block = self._known.get(identity)
            if block is None:
                break
            found.append(block)
        return found

    def _share(self, block: int) -> None:
        self._resting.used(block)
        if not self._holders[block]:
            self._resting.wake(block)
        self._holders[block] += 1

    def _fresh(self) -> int:
        """A block for one holder: a blank one, or the one the policy gives up."""
        if self._blank:
            block = self._blank.pop()
        else:
            block = self._resting.victim()
            identity = self._identity[block]
            if self._holders[block] or identity is None:
                raise BugError(f"the eviction policy gave up block {block}, which does not rest")
            del self._known[identity]
            self._identity[block] = None
            self._evictions += 1
        self._holders[block] = 1
        self._filled[block] = 0
        return block

    def _register(self, block: int, identity: bytes) -> None:
        """Give a full block its identity; where another block has it already, that one keeps it."""
        if identity not in self._known:
            self._known[identity] = block
            self._identity[block] = identity

    def _learn(self, held: Held, token: int | None) -> None:
        if token is None or held.identity is None:
            held.identity = None
            held.tail.clear()
            return
        held.tail.append(token)
        if len(held.tail) == self.block_size:
            held.identity = identity_of(held.identity, held.tail)
            self._register(held.blocks[-1], held.identity)
            held.tail.clear()
