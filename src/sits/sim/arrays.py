"""A spec and an empty engine as the arrays `kernel` works on, in the order its functions take them.

Deliberately absent: what the cells mean (`kernel` names them).  Importing this imports numba.
"""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from sits.predict.prepare import Rank
from sits.predict.profile import Profile
from sits.predict.steptime import StepTime, pack
from sits.sim import kernel
from sits.sim.kernel import Floats, Ints
from sits.sim.spec import EngineSpec


class Settings(NamedTuple):
    """The spec as the kernel's arrays, in the kernel's argument order."""

    whole: Ints
    figures: Floats
    dense: Floats
    head: Floats
    axes: Floats
    grid: Floats
    links: Floats
    host: Floats


def settings(spec: EngineSpec) -> Settings:
    """`spec` as arrays."""
    whole = np.zeros(kernel.WHOLE_COUNT, np.int64)
    whole[kernel.BLOCK_SIZE] = spec.block_size
    whole[kernel.BLOCK_COUNT] = spec.blocks
    whole[kernel.SEQS_MAX] = spec.max_num_seqs
    whole[kernel.TOKENS_MAX] = spec.max_num_batched_tokens
    whole[kernel.LONG_PREFILL] = spec.long_prefill_token_threshold
    whole[kernel.CHUNKED] = spec.chunked_prefill
    whole[kernel.GRAPH_SEQS_MAX] = spec.graph_seqs_max
    whole[kernel.SLOT_COUNT] = spec.lora_slots
    whole[kernel.ADAPTER_BYTES] = spec.adapter_bytes
    whole[kernel.ADAPTER_COPIES] = spec.adapter_copies
    whole[kernel.DIPS_BUSY_MIN] = spec.dips_busy_min
    whole[kernel.RESERVE_FULL] = spec.reserve_full_isl
    whole[kernel.PRIORITY_FIRST] = spec.order == "priority"
    whole[kernel.ASYNC] = spec.async_scheduling
    whole[kernel.HOST_CHAIN] = spec.host is not None
    whole[kernel.TABLES] = isinstance(spec.step, Profile)
    times = _tables(spec.step) if isinstance(spec.step, Profile) else _figures(spec.step)
    whole[kernel.CHUNK_POINTS :] = times.points
    return Settings(
        whole,
        times.figures,
        times.dense,
        times.head,
        times.axes,
        times.grid,
        np.array([_link(rank) for rank in spec.ranks], np.float64),
        np.array([float(cost) for cost in msgspec.structs.astuple(spec.host)] if spec.host else [0.0]),
    )


class _Times(NamedTuple):
    """Step times as arrays; `points` are the lengths of the four axes."""

    figures: Floats
    dense: Floats
    head: Floats
    axes: Floats
    grid: Floats
    points: Sequence[int]


def _figures(step: StepTime) -> _Times:
    packed = pack(step)
    return _Times(
        packed.scalars,
        np.stack([packed.dense_tokens, packed.dense_us]),
        np.stack([packed.head_seqs, packed.head_us]),
        np.zeros((4, 2)),
        np.zeros((1, 1, 1, 1)),
        (0, 0, 0, 0),
    )


def _tables(profile: Profile) -> _Times:
    figures = np.zeros(kernel.EAGER_US + 1)
    figures[kernel.SKEW] = profile.skew
    figures[kernel.OVERHEAD_US], figures[kernel.EAGER_US] = profile.overhead_us, profile.eager_us
    points = [len(axis) for axis in profile.axes]
    axes = np.full((4, max(points)), np.inf)
    for row, axis in zip(axes, profile.axes, strict=True):
        row[: len(axis)] = axis
    return _Times(
        figures,
        np.array([profile.dense_tokens, profile.dense_us], np.float64),
        np.array([profile.head_seqs, profile.head_us], np.float64),
        axes,
        np.ascontiguousarray(profile.attention_us, np.float64),
        points,
    )


def _link(rank: Rank) -> tuple[float, ...]:
    dips = rank.dips
    if dips is None:
        return (rank.bandwidth, 0.0, 0.0, 0.0, 0.0)
    return (rank.bandwidth, dips.depth, dips.width_ns, dips.period_ns, dips.phase_ns)


class State(NamedTuple):
    """An engine's state as the kernel's arrays, in the kernel's argument order."""

    rows: Ints
    running: Ints
    tally: Ints
    slots: Ints


def empty(spec: EngineSpec, capacity: int) -> State:
    """An idle engine with room for `capacity` unfinished requests."""
    rows = np.zeros((capacity, kernel.FIELD_COUNT), np.int64)
    tally = np.zeros(kernel.TALLY_COUNT, np.int64)
    tally[kernel.FREE] = spec.blocks
    tally[kernel.HEAD] = tally[kernel.TAIL] = -1
    slots = np.full((kernel.SLOT_CELLS, max(1, spec.lora_slots)), -1, np.int64)
    return State(rows, np.zeros(spec.max_num_seqs, np.int64), tally, slots)


def whole_trace(spec: EngineSpec, prompts: Ints, outputs: Ints, adapters: Ints, priorities: Ints) -> State:
    """An idle engine with a row for every request of a trace, none of which has come."""
    state = empty(spec, len(prompts))
    rows = state.rows
    rows[:, kernel.PROMPT] = rows[:, kernel.TOTAL] = prompts
    rows[:, kernel.OUTPUT] = outputs
    rows[:, kernel.ADAPTER] = adapters
    rows[:, kernel.PRIORITY] = priorities
    rows[:, kernel.SCHEDULED_NS] = -1
    return state


class Cache(NamedTuple):
    """A block cache as the kernel's arrays, in its argument order."""

    pool: Ints
    table: Ints
    content: Ints
    holder: Ints


def cache(spec: EngineSpec, rows: Ints, prefixes: Sequence[Sequence[int]] | None) -> Cache:
    """An empty cache for the requests of `rows`, whose `START` it sets.

    `prefixes[r]` names the first blocks of row r: equal numbers at equal places behind equal numbers are equal content.  Blocks
    without a name have content of their own; so has one that holds generated tokens, whatever it is called.
    """
    size = spec.block_size
    lengths = -(-(rows[:, kernel.PROMPT] + rows[:, kernel.OUTPUT]) // size)
    starts = np.cumsum(lengths) - lengths
    rows[:, kernel.START] = starts
    total = int(lengths.sum())
    content = np.arange(total, dtype=np.int64)
    if prefixes is not None:
        chains: dict[tuple[int, int], int] = {}
        for start, prompt, names in zip(
            starts.tolist(), rows[:, kernel.PROMPT].tolist(), prefixes, strict=True
        ):
            before = -1
            for i, name in enumerate(names[: prompt // size]):
                before = chains.setdefault((before, name), total + len(chains))
                content[start + i] = before
        total += len(chains)
    ends = spec.blocks
    pool = np.full((kernel.POOL_CELLS, ends + 1), -1, np.int64)
    pool[kernel.HOLDERS] = 0
    pool[kernel.AFTER] = np.append(np.arange(1, ends + 1), 0)
    pool[kernel.BEFORE] = np.append(ends, np.arange(ends))
    return Cache(pool, np.full(int(lengths.sum()), -1, np.int64), content, np.full(total, -1, np.int64))
