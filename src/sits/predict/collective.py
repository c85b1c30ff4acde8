"""All-reduce over GPUs and nodes: start-up and bytes, in formulas and as measured.

With n ranks, S bytes, start-up alpha and bandwidth B of a link (alpha-beta model; Thakur, Rabenseifner and Gropp 2005):

    ring        2 (n - 1) alpha  +  2 (n - 1) / n  S / B              bandwidth-optimal, latency grows with n
    tree        2 log2(n) alpha  +  2 S / B                           few steps, twice the bytes
    two levels  reduce-scatter in the node, all-reduce of S / g between nodes, all-gather in the node; g GPUs a node

    bus bandwidth = S / t * 2 (n - 1) / n          what a link carries; comparable over n, unlike S / t

NCCL changes algorithm and protocol with S, so what was measured is a line of alpha + S / B for small sizes and others above
(`collective_figures`, three segments, as NCCL has three protocols; `collective_fit`): 2 to 3 % mean error over 512 B .. 512 MiB, where two lines
have 3 to 5 % and one line 9 to 18 %.
vLLM's own all-reduce within a CUDA graph is a row of its own: 4 to 7 us at the smallest sizes, where the same kernel launched
eagerly takes 19 to 50.  `two nodes` is 16 A100 of two nodes: 65 us at the smallest sizes and 10 times the time in one node at 64 MiB, several
times what two levels over assumed links give.  Measure your own network before you believe an assumed one.

A decoding step of a tensor-parallel model does two all-reduces a layer of tokens x hidden x 2 bytes.  With 64 tokens of 8192 that
is 1 MiB: start-up, not bandwidth, decides; a utilisation knee of the link says nothing about it.

Deliberately absent: overlap with computation, in-switch reduction (NVLS), congestion.
"""

import math

import msgspec

from sits.core.errors import ConfigError
from sits.predict.bandwidth import GBps, Gbps, gigabytes
from sits.predict.gpu import Segment

RDMA_ALPHA_NS = 5_000.0
RDMA_SHARE = 0.9
TCP_ALPHA_NS = 30_000.0
TCP_SHARE = 0.6
TCP_MOST = GBps(10.0)
"""Assumptions, said wherever they are used: verbs post and complete in a few microseconds at 90 % of the line; a socket costs
two kernels, copies and wake-ups, and its copies end at some 10 GB/s of processor time whatever the line."""


class Link(msgspec.Struct, frozen=True):
    """Start-up of a message and bandwidth of one direction."""

    alpha_ns: float
    bandwidth: GBps

    def __post_init__(self) -> None:
        gigabytes(self.bandwidth)
        if not self.alpha_ns >= 0.0:
            raise ConfigError(
                f"a start-up of {self.alpha_ns!r} ns",
                field="alpha_ns",
                value=self.alpha_ns,
                hint="give zero or more",
            )


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """All-reduce times of one GPU type and rank count as segments; `mape` is their own error on what they were fitted to."""

    gpu: str
    ranks: int
    kernel: str
    segments: tuple[Segment, ...]
    mape: float
    from_bytes: float
    to_bytes: float


def ring_ns(ranks: int, size: float, link: Link) -> float:
    """A ring all-reduce of `size` bytes.

    >>> round(ring_ns(8, 2**30, Link(1_000.0, GBps(450.0))) / 1e6, 2)                # ms
    4.19
    >>> ring_ns(1, 2**30, Link(1_000.0, GBps(450.0)))
    0.0
    """
    _check(ranks, size)
    steps = 2 * (ranks - 1)
    return steps * link.alpha_ns + steps / ranks * size / gigabytes(link.bandwidth)


def tree_ns(ranks: int, size: float, link: Link) -> float:
    """A (double) binary tree.

    >>> small = 1024
    >>> tree_ns(64, small, Link(5_000.0, GBps(25.0))) < ring_ns(64, small, Link(5_000.0, GBps(25.0))) / 10
    True
    """
    _check(ranks, size)
    if ranks == 1:
        return 0.0
    return 2.0 * math.log2(ranks) * link.alpha_ns + 2.0 * size / gigabytes(link.bandwidth)


def two_level_ns(nodes: int, per_node: int, size: float, inside: Link, between: Link) -> float:
    """A ring in the nodes and a ring or tree of S / g between them; `between` is what one GPU gets of the network.

    >>> inside, between = Link(1_500.0, GBps(230.0)), Link(5_000.0, Gbps(400.0).bytes())
    >>> two_level_ns(1, 8, 2**20, inside, between) == ring_ns(8, 2**20, inside)
    True
    >>> two_level_ns(8, 1, 2**20, inside, between) == tree_ns(8, 2**20, between) < ring_ns(8, 2**20, between)
    True
    """
    _check(nodes, size)
    return ring_ns(per_node, size, inside) + between_ns(nodes, size / per_node, between)


def between_ns(nodes: int, size: float, link: Link) -> float:
    """The faster of ring and tree, which a tuned library picks.

    >>> link = Link(5_000.0, GBps(45.0))
    >>> between_ns(512, 2**20, link) == tree_ns(512, 2**20, link), between_ns(4, 2**30, link) == ring_ns(4, 2**30, link)
    (True, True)
    """
    return min(ring_ns(nodes, size, link), tree_ns(nodes, size, link))


def rdma(card: Gbps) -> Link:
    """A link over RDMA (InfiniBand, RoCE) through a card of that line rate; an assumption, see `RDMA_ALPHA_NS`.

    >>> round(gigabytes(rdma(Gbps(400.0)).bandwidth), 3)
    45.0
    """
    return Link(RDMA_ALPHA_NS, GBps(gigabytes(_card(card)) * RDMA_SHARE))


def tcp(card: Gbps) -> Link:
    """The same card through TCP sockets, which is what `NCCL_IB_DISABLE=1` chooses; an assumption, see `TCP_ALPHA_NS`.

    >>> gigabytes(tcp(Gbps(400.0)).bandwidth), gigabytes(tcp(Gbps(25.0)).bandwidth)
    (10.0, 1.875)
    """
    return Link(TCP_ALPHA_NS, GBps(min(gigabytes(_card(card)) * TCP_SHARE, gigabytes(TCP_MOST))))


def measured_ns(figures: Measured, size: float) -> float:
    """An all-reduce as measured; a segment never starts below where the one before it ended.

    >>> from sits.predict.collective_figures import find_measured
    >>> h100 = find_measured("h100", 8)
    >>> 20 < measured_ns(h100, 2**20) / 1e3 < 30, measured_ns(h100, 2**29) > measured_ns(h100, 2**28)
    (True, True)
    """
    _check(figures.ranks, size)
    floor = 0.0
    for segment in figures.segments:
        last = segment is figures.segments[-1]
        reach = size if size <= segment.to_bytes or last else segment.to_bytes
        floor = max(floor, segment.alpha_us + segment.us_per_byte * reach)
        if reach == size:
            break
    return floor * 1e3


def bus_bandwidth(ranks: int, size: float, t_ns: float) -> GBps:
    """What a link carries: S / t * 2 (n - 1) / n.

    >>> bus_bandwidth(8, 1e9, 1e9 / 100.0 * 7 / 4)
    GBps(value=100.0)
    """
    return GBps(size / t_ns * 2.0 * (ranks - 1) / ranks)


def step_calls(layers: int, hidden: int, tokens: int) -> tuple[int, int]:
    """All-reduces of one step of a tensor-parallel model, and the bytes of each.

    >>> step_calls(80, 8192, 64)
    (160, 1048576)
    """
    return 2 * layers, tokens * hidden * 2


def _card(card: Gbps) -> GBps:
    given: object = card
    if not isinstance(given, Gbps):
        raise TypeError(f"{given!r}: network cards are given in gigabits, Gbps(...)")
    return given.bytes()


def _check(ranks: int, size: float) -> None:
    if ranks < 1:
        raise ConfigError(f"{ranks} ranks", field="ranks", value=ranks, hint="give one or more")
    if not (size >= 0.0 and math.isfinite(size)):
        raise ConfigError(f"{size!r} bytes", field="size", value=size, hint="give zero or more")
