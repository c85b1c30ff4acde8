"""Test your own policies and engines without waiting: a virtual loop, an engine by script, a recorder in memory.

`run_virtual(main)` runs `main(world)` on a loop whose time jumps (see `sits.sim.loop`).  `FakeEngine` answers by
script: chunks, errors, and how long each takes; it logs what it was asked and what was cancelled.
`MemoryRecorder` keeps the rows of finished requests as dicts.  `small_spec()` is an engine small enough to run
out of blocks in a test.

>>> from sits.core.request import Request
>>> from sits.core.timeline import Timeline
>>> async def main(world):
...     engine = FakeEngine("fake", world, [Delay(1_000_000), tokens(1), Delay(500_000), tokens(1, last=True)])
...     timeline = Timeline()
...     return [chunk.tokens async for chunk in engine.generate(Request(id="r1", model="m"), timeline)]
>>> run_virtual(main)
[1, 1]

Deliberately absent: anything a shipped module would need.
"""

import asyncio
from array import array
from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec

from sits.core.breakpoints import ENGINE_RECV
from sits.core.ports import World
from sits.core.request import Chunk, Request, Usage
from sits.core.timeline import Timeline
from sits.predict.prepare import Rank
from sits.predict.steptime import StepTime
from sits.sim.loop import DeadlockError, VirtualLoop, VirtualWorld, run_virtual
from sits.sim.spec import EngineSpec
from sits.telemetry.recorder import AT, HOW, LABELS, Row

__all__ = [
    "DeadlockError",
    "Delay",
    "FakeEngine",
    "MemoryRecorder",
    "VirtualLoop",
    "VirtualWorld",
    "by_name",
    "run_virtual",
    "small_spec",
    "tokens",
]


class Delay(msgspec.Struct, frozen=True):
    """A pause of `ns` in a `FakeEngine`'s script."""

    ns: int


def tokens(count: int, data: bytes = b"", last: bool = False) -> Chunk:
    """A chunk that carries `count` tokens; the last one of an answer has usage."""
    return Chunk(data=data, tokens=count, last=last, usage=Usage(output=count) if last else None)


class FakeEngine:
    """Answers every request by the same script.

    Args:
        name: engine name.
        world: clock, to mark `engine_recv` by.
        script: chunks are yielded, errors raised, delays waited for, in order.

    Attributes:
        script: may be replaced between requests.
        seen: requests asked, in order; finished: ids answered to the end of the script.
        cancelled: ids whose answer was closed or cancelled before its end.
        closed: whether `close` was called.

    """

    def __init__(self, name: str, world: World, script: Sequence[Chunk | Exception | Delay]) -> None:
        self.name = name
        self.script = script
        self.seen: list[Request] = []
        self.finished: list[str] = []
        self.cancelled: list[str] = []
        self.closed = False
        self._world = world

    async def generate(self, request: Request, timeline: Timeline) -> AsyncIterator[Chunk]:
        """Play the script for `request`."""
        self.seen.append(request)
        timeline.mark(ENGINE_RECV, self._world.now_ns())
        try:
            for item in self.script:
                if isinstance(item, Delay):
                    await asyncio.sleep(item.ns / 1e9)
                elif isinstance(item, Exception):
                    raise item
                else:
                    yield msgspec.structs.replace(item)
        except (GeneratorExit, asyncio.CancelledError):
            self.cancelled.append(request.id)
            raise
        self.finished.append(request.id)

    async def close(self) -> None:
        """Remember that it was called."""
        self.closed = True


def by_name(row: Row) -> dict[str, Any]:
    """A recorded row by column name; `timeline` is an object again."""
    line = Timeline()
    line.at, line.how = array("q", row[AT]), row[HOW]
    return dict(zip(LABELS, row, strict=False)) | {"timeline": line}


class MemoryRecorder:
    """A recorder that keeps rows, each by column name."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def record(self, row: Row) -> bool:
        """Keep `row`."""
        self.rows.append(by_name(row))
        return True

    def of(self, id: str) -> dict[str, Any]:  # noqa: A002  (the column's name)
        """The row of request `id`; KeyError when there is not exactly one."""
        found = [row for row in self.rows if row["id"] == id]
        if len(found) != 1:
            raise KeyError(f"{len(found)} rows of request {id!r}")
        return found[0]


def small_spec(**changes: Any) -> EngineSpec:
    """An engine with round figures: a step takes 10 ms and 20 us a token, 64 blocks of 16 tokens, 8 seats."""
    step = StepTime(
        source="round figures for tests",
        dense_tokens=(0.0, 1000.0),
        dense_us=(10_000.0, 30_000.0),
        head_seqs=(1.0, 64.0),
        head_us=(100.0, 200.0),
        prefill_us=50.0,
        prefill_us_per_token=0.5,
        prefill_us_per_token_kv=0.001,
        decode_us=100.0,
        decode_us_per_seq=5.0,
        decode_us_per_kv_token=0.05,
        skew=0.055,
        overhead_us=300.0,
        eager_us=400.0,
        noise_cv=0.05,
    )
    spec = EngineSpec(
        step=step, ranks=(Rank(bandwidth=24e9),), blocks=64, max_num_seqs=8, max_num_batched_tokens=256
    )
    return msgspec.structs.replace(spec, **changes)
