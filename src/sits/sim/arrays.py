"""A spec and an empty engine as the arrays `kernel` works on, in the order its functions take them.

Deliberately absent: what the cells mean (`kernel` names them).  Importing this imports numba.
"""

from typing import NamedTuple

import msgspec
import numpy as np

from sits.predict.prepare import Rank
from sits.predict.steptime import pack
from sits.sim import kernel
from sits.sim.kernel import Floats, Ints
from sits.sim.spec import EngineSpec


class Settings(NamedTuple):
    """The spec as the kernel's arrays, in the kernel's argument order."""

    whole: Ints
    figures: Floats
    dense: Floats
    head: Floats
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
    packed = pack(spec.step)
    return Settings(
        whole,
        packed.scalars,
        np.stack([packed.dense_tokens, packed.dense_us]),
        np.stack([packed.head_seqs, packed.head_us]),
        np.array([_link(rank) for rank in spec.ranks]),
        np.array([float(cost) for cost in msgspec.structs.astuple(spec.host)]),
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
