"""Stored answers: whole, bounded, by tenant, in this worker's memory.

Rules:
- An answer is found by its 256-bit key (`policy.cachekey`) inside its tenant's part only, and only while its artefact is the
  one expected: two more fences behind the key, because an answer in the wrong hands cannot be called back.
- One bound for all: an answer costs its bytes, at least `memory / entries`, so memory and number are bounded together.
- Over the bound, the tenant that holds most loses the answer it used longest ago (max-min fairness): whoever holds no more
  than an equal part loses nothing to the others, however much they store.
- An answer is good for `ttl` after it was stored, read or not; expired ones leave first, oldest first.
- `purge` forgets a tenant, an artefact, or all.  A release that moves on needs none: another artefact is another key, and the
  answers of an artefact that comes back are still its own.

With N workers there are N caches that know nothing of each other: a question may be asked of the engines N times before all
workers know its answer, each worker has the whole `memory`, and `purge` must be told to each.

Deliberately absent: waiting for an equal question under way (its client may leave, its quota is its own, its engine may die:
whoever waits inherits all that), a disk, a network, and similarity (a semantic cache needs an embedder).
"""

import heapq
from collections import OrderedDict

import msgspec

from sits.core.fleet_cache import ResponseCache
from sits.core.request import Usage

OVERHEAD_BYTES = 600
"""What an answer takes beside its own bytes: key, places in two orders, and the object itself."""

BOUND_SHARE = 8
"""A part's place in the queue of the largest is renewed when it grew by an eighth."""


class Answer(msgspec.Struct, frozen=True):
    """A whole answer, byte for byte as its first client got it, and what it had cost."""

    data: bytes
    content_type: bytes
    usage: Usage
    tenant: str
    artefact: str
    arm: str
    engine: str
    stored_ns: int

    @property
    def usage_again(self) -> Usage:
        """What giving it again takes: the same tokens, none of them computed."""
        return Usage(self.usage.input, self.usage.output, self.usage.input)


class _Part:
    """The answers of one tenant, the one used longest ago first."""

    __slots__ = ("answers", "bound", "cost", "tenant")

    def __init__(self, tenant: str) -> None:
        self.tenant = tenant
        self.answers: OrderedDict[bytes, Answer] = OrderedDict()
        self.cost = 0
        self.bound = 0


class Cache:
    """Answers by key.  `cost` never exceeds `config.memory`; `stored`, `evicted`, `expired` and `purged` count answers."""

    def __init__(self, config: ResponseCache) -> None:
        self.config = config
        self.cost = 0
        self.stored = self.evicted = self.expired = self.purged = 0
        self._floor = max(1, -(-config.memory // config.entries))
        self._ages: OrderedDict[bytes, _Part] = OrderedDict()
        self._parts: dict[str, _Part] = {}
        self._largest: list[tuple[int, str]] = []

    def __len__(self) -> int:
        return len(self._ages)

    def look_up(
        self, key: bytes, tenant: str, artefact: str, now_ns: int, age_ns: int = 2**63
    ) -> Answer | None:
        """The answer of `key`, if this tenant has it, from this artefact, not older than `age_ns`."""
        part = self._parts.get(tenant)
        if part is None:
            return None
        answer = part.answers.get(key)
        if answer is None or answer.artefact != artefact:
            return None
        age = now_ns - answer.stored_ns
        if age >= self.config.ttl:
            self.expired += 1
            self._drop(key)
            return None
        if age > age_ns:
            return None
        part.answers.move_to_end(key)
        return answer

    def store(self, key: bytes, answer: Answer, now_ns: int) -> bool:
        """Keep `answer`, stored at `now_ns`; whether it is kept (too large alone, or the first to go, it is not)."""
        cost = self._cost(answer)
        if len(answer.data) > self.config.answer_limit or cost > self.config.memory:
            return False
        if key in self._ages:
            self._drop(key)
        self._expire(now_ns)
        part = self._parts.get(answer.tenant)
        if part is None:
            part = self._parts[answer.tenant] = _Part(answer.tenant)
        part.answers[key] = answer
        part.cost += cost
        self._ages[key] = part
        self.cost += cost
        if part.cost > part.bound:
            self._queue(part)
        while self.cost > self.config.memory:
            self._evict()
        self.stored += 1
        return key in self._ages

    def purge(self, *, tenant: str | None = None, artefact: str | None = None) -> int:
        """Forget all answers of this tenant and this artefact (None = of any); how many they were."""
        gone = [
            key
            for key, part in self._ages.items()
            if (tenant is None or part.tenant == tenant)
            and (artefact is None or part.answers[key].artefact == artefact)
        ]
        for key in gone:
            self._drop(key)
        self.purged += len(gone)
        return len(gone)

    def held(self) -> dict[str, tuple[int, int]]:
        """Tenant -> (answers, their cost)."""
        return {tenant: (len(part.answers), part.cost) for tenant, part in self._parts.items()}

    def _cost(self, answer: Answer) -> int:
        return max(self._floor, len(answer.data) + OVERHEAD_BYTES)

    def _drop(self, key: bytes) -> None:
        part = self._ages.pop(key)
        cost = self._cost(part.answers.pop(key))
        part.cost -= cost
        self.cost -= cost
        if not part.answers:
            del self._parts[part.tenant]

    def _expire(self, now_ns: int) -> None:
        """Let go of what is too old; the order of storing is the order of ages."""
        ages, ttl = self._ages, self.config.ttl
        while ages:
            key, part = next(iter(ages.items()))
            if now_ns - part.answers[key].stored_ns < ttl:
                return
            self._drop(key)
            self.expired += 1

    def _evict(self) -> None:
        """Take from the tenant that holds most, the answer it used longest ago."""
        queue = self._largest
        while True:
            bound, tenant = queue[0]
            part = self._parts.get(tenant)
            if part is None or part.bound != -bound:
                heapq.heappop(queue)
            elif part.cost != -bound:
                part.bound = part.cost
                heapq.heapreplace(queue, (-part.cost, tenant))
            else:
                break
        self._drop(next(iter(part.answers)))
        self.evicted += 1

    def _queue(self, part: _Part) -> None:
        """Give a grown part its place among the largest.  A place is an upper bound, made exact when it comes first."""
        part.bound = part.cost + part.cost // BOUND_SHARE
        heapq.heappush(self._largest, (-part.bound, part.tenant))
        if len(self._largest) > 64 + 4 * len(self._parts):
            self._largest = [(-one.bound, one.tenant) for one in self._parts.values()]
            heapq.heapify(self._largest)
