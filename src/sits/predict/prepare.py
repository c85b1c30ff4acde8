"""The device-preparation chain: the eight stages between `scheduled` and `kernel_launch` of one step.

    kv_allocate      blocks taken from the pool                           scheduler, per step and block
    kv_restore       adapters and restored KV copied to the device        link: latency a copy, then bytes
    batch_build      host tensors of the step                             per step, sequence and token
    input_copy       those tensors copied to the device                   link
    graph_choose     captured graph looked up, or the eager path taken    per step
    attention_prep   block tables and attention metadata                  per step, sequence and new block
    collective_sync  waiting for the slowest rank, then a barrier         rank skew
    launch           until the first kernel starts                        graph replay, or one kernel

Every rank of a tensor-parallel engine copies over its own link.  The first rank is the one that is observed:
its own copies are `kv_restore` and `input_copy`, and `collective_sync` is how much later the slowest rank is
done, so one GPU on the wrong NUMA node delays all of them and is seen there.  Host work is the same on all
ranks.

Ground of `HostCosts`: replays of real vLLM runs fit best with about 0.3 ms a step outside the device; its
split over the stages below is an assumption that adds up to that for sixteen decodes.  `StepTime.overhead_us`
is the same 0.3 ms without the split: a simulator uses either this chain or that figure, never both.
`barrier_ns` is a small all-reduce in a captured graph (5 us on A100, measured).

Deliberately absent: time on the device (`steptime`), waiting for a turn (the scheduler), and noise.
"""

import math

import msgspec

from sits.core.breakpoints import KERNEL_LAUNCH, SCHEDULED, STAGES
from sits.core.errors import ConfigError
from sits.predict.transfer import COPY_LATENCY_NS, Dips, copies_ns

PREPARE_STAGES = STAGES[SCHEDULED:KERNEL_LAUNCH]
"""Names of the eight stages, in order, as the breakpoint table has them."""


class HostCosts(msgspec.Struct, frozen=True, kw_only=True):
    """What the host spends, in nanoseconds; see the module for the ground of the defaults."""

    allocate_ns: float = 8_000.0
    allocate_ns_per_block: float = 300.0
    build_ns: float = 70_000.0
    build_ns_per_seq: float = 2_000.0
    build_ns_per_token: float = 12.0
    input_copies: int = 6
    copy_latency_ns: float = COPY_LATENCY_NS
    choose_ns: float = 5_000.0
    attention_ns: float = 50_000.0
    attention_ns_per_seq: float = 1_200.0
    attention_ns_per_block: float = 60.0
    barrier_ns: float = 5_000.0
    graph_launch_ns: float = 25_000.0
    eager_launch_ns: float = 8_000.0


class Rank(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU's link to the host: bytes a second it gets from where the buffers are, and how that dips."""

    bandwidth: float
    dips: Dips | None = None


class StepWork(msgspec.Struct, frozen=True, kw_only=True):
    """What one step has to prepare; bytes are those of one rank.

    Attributes:
        seqs: sequences in the step.
        new_tokens: tokens scheduled.
        kv_blocks: blocks newly allocated.
        input_bytes: host tensors to copy; see `step_input_bytes`.
        restore_bytes, restore_copies: adapters and KV to copy, and in how many copies.
        eager: no captured graph fits.

    Raises:
        ConfigError: a negative amount.

    """

    seqs: int
    new_tokens: int
    kv_blocks: int = 0
    input_bytes: int = 0
    restore_bytes: int = 0
    restore_copies: int = 0
    eager: bool = False

    def __post_init__(self) -> None:
        for field in ("seqs", "new_tokens", "kv_blocks", "input_bytes", "restore_bytes", "restore_copies"):
            value = getattr(self, field)
            if value < 0:
                raise ConfigError(f"{value} is negative", field=field, value=value, hint="give zero or more")


class Preparation(msgspec.Struct, frozen=True, kw_only=True):
    """Durations of the eight stages in nanoseconds, in the order of `PREPARE_STAGES`."""

    kv_allocate: int
    kv_restore: int
    batch_build: int
    input_copy: int
    graph_choose: int
    attention_prep: int
    collective_sync: int
    launch: int

    def durations(self) -> tuple[int, ...]:
        """The eight durations in order."""
        return tuple(getattr(self, stage) for stage in PREPARE_STAGES)

    def total_ns(self) -> int:
        """Their sum: from `scheduled` to `kernel_launch`."""
        return sum(self.durations())


DEFAULT_COSTS = HostCosts()


def step_input_bytes(seqs: int, new_tokens: int, blocks_per_seq: int) -> int:
    """Bytes of a step's input tensors: id, position and slot of a token (8 bytes each), a table row a sequence.

    >>> step_input_bytes(16, 16, 100)
    7040
    """
    return 24 * new_tokens + seqs * (4 * blocks_per_seq + 16)


def prepare_ns(
    work: StepWork, ranks: tuple[Rank, ...], start_ns: float = 0.0, costs: HostCosts = DEFAULT_COSTS
) -> Preparation:
    """Durations of the eight stages of a step that is scheduled at `start_ns`.

    Sixteen decodes, four GPUs: about 0.3 ms.  The same step with an adapter of 200 MB to copy, first with all
    buffers on the right NUMA node, then with the last GPU reading from the other one:

    >>> near, far = Rank(bandwidth=24e9), Rank(bandwidth=11e9)
    >>> plain = StepWork(seqs=16, new_tokens=16, kv_blocks=1, input_bytes=7040)
    >>> prepare_ns(plain, (near,) * 4).total_ns()
    263046
    >>> swap = StepWork(seqs=16, new_tokens=16, kv_blocks=1, input_bytes=7040, restore_bytes=200_000_000,
    ...     restore_copies=100)
    >>> [round(ns / 1e6, 2) for ns in prepare_ns(swap, (near,) * 4).durations()]
    [0.01, 9.13, 0.1, 0.05, 0.01, 0.07, 0.01, 0.03]
    >>> [round(ns / 1e6, 2) for ns in prepare_ns(swap, (near, near, near, far)).durations()]
    [0.01, 9.13, 0.1, 0.05, 0.01, 0.07, 9.85, 0.03]

    Raises:
        ConfigError: no rank, or a bandwidth that is not above zero.

    """
    if not ranks:
        raise ConfigError("no rank to prepare", field="ranks", value=ranks, hint="name one link for each GPU")
    allocate = costs.allocate_ns + costs.allocate_ns_per_block * work.kv_blocks
    build = costs.build_ns + costs.build_ns_per_seq * work.seqs + costs.build_ns_per_token * work.new_tokens
    copies = [_rank_copies(work, rank, start_ns + allocate, build, costs) for rank in ranks]
    restore, inputs = copies[0]
    skew = max(r + i for r, i in copies) - (restore + inputs)
    attention = (
        costs.attention_ns
        + costs.attention_ns_per_seq * work.seqs
        + costs.attention_ns_per_block * work.kv_blocks
    )
    stages = (
        allocate,
        restore,
        build,
        inputs,
        costs.choose_ns,
        attention,
        skew + costs.barrier_ns if len(ranks) > 1 else 0.0,
        costs.eager_launch_ns if work.eager else costs.graph_launch_ns,
    )
    return Preparation(**{name: math.ceil(ns) for name, ns in zip(PREPARE_STAGES, stages, strict=True)})


def _rank_copies(
    work: StepWork, rank: Rank, at_ns: float, build_ns: float, costs: HostCosts
) -> tuple[float, float]:
    """Time a rank spends on restoring and on inputs, which follow once the batch is built."""
    restore = copies_ns(
        work.restore_bytes,
        rank.bandwidth,
        copies=work.restore_copies or int(work.restore_bytes > 0),
        start_ns=at_ns,
        dips=rank.dips,
        latency_ns=costs.copy_latency_ns,
    )
    inputs = copies_ns(
        work.input_bytes,
        rank.bandwidth,
        copies=costs.input_copies,
        start_ns=at_ns + restore + build_ns,
        dips=rank.dips,
        latency_ns=costs.copy_latency_ns,
    )
    return restore, inputs
