"""KV persistence: how long the cache of new tokens takes to reach a disk, and how much of that a request feels.

    t = fixed + new bytes / min(disk, PCIe) + wait for the device

- *new bytes*: tokens since the last write times the bytes a token takes (`sits.predict.kv`).  Writing the whole cache
  again at every turn is the special case in which all tokens are new; that, not the disk, is what grows out of hand.
- *wait*: writes of several sequences share one device in order; with Poisson arrivals the mean wait is that of
  Pollaczek and Khinchine, rate * E[S^2] / (2 (1 - rho)).  At rho >= 1 there is no answer but that it never keeps up.
- *felt*: a synchronous write is felt whole; an asynchronous one as far as it outlasts the computation it runs beside; a
  layer-wise one starts a layer's write when that layer is computed, and is felt from the end of the last layer on.

`layerwise_ns` is the two-stage pipeline d_i = max(d_{i-1}, c_i) + w_i; the closed form for equal layers is
max(C + w, c + W) with C, W the sums and c, w those of one layer.

Deliberately absent: where the figures of a disk come from (`sits.predict.persist_fit` from measurements), and a whole
service (`sits.bench.disk_flow`).
"""

import math
from collections.abc import Sequence

import msgspec

from sits.core.errors import CapacityError, ConfigError
from sits.core.units import SECOND

PCIE_4_X16 = 28e9
"""Usable bytes a second of PCIe 4.0 x16; PCIe 5.0 x16 gives about 55e9."""


class Disk(msgspec.Struct, frozen=True, kw_only=True):
    """A write of n bytes takes `fixed_ns + n / bytes_per_s`; `source` says who says so.

    Raises:
        ConfigError: a negative time, or a bandwidth that is not above zero.

    """

    fixed_ns: float
    bytes_per_s: float
    source: str = "stated"

    def __post_init__(self) -> None:
        if not (self.fixed_ns >= 0 and math.isfinite(self.fixed_ns)):
            raise ConfigError(
                f"{self.fixed_ns!r} ns", field="fixed_ns", value=self.fixed_ns, hint="give zero or more"
            )
        if not (self.bytes_per_s > 0 and math.isfinite(self.bytes_per_s)):
            raise ConfigError(
                f"{self.bytes_per_s!r} B/s is no bandwidth",
                field="bytes_per_s",
                value=self.bytes_per_s,
                hint="give more than 0",
            )


def write_ns(new_bytes: float, disk: Disk, pcie: float = PCIE_4_X16) -> float:
    """Nanoseconds to bring `new_bytes` from the device to the disk, alone on both.

    64 new tokens of Llama-2-7B (0.5 MiB each) to a disk of 2 GB/s, and the whole 4,096 of them:

    >>> disk = Disk(fixed_ns=100_000, bytes_per_s=2e9)
    >>> round(write_ns(64 * 2**19, disk) / 1e6, 1), round(write_ns(4096 * 2**19, disk) / 1e6)     # ms
    (16.9, 1074)
    >>> write_ns(0, disk)                                                   # nothing new: nothing is written
    0.0
    """
    if not new_bytes >= 0:
        raise ConfigError(
            f"{new_bytes!r} bytes", field="new_bytes", value=new_bytes, hint="give zero or more"
        )
    if not pcie > 0:
        raise ConfigError(f"{pcie!r} B/s is no bandwidth", field="pcie", value=pcie, hint="give more than 0")
    if new_bytes == 0:
        return 0.0
    return disk.fixed_ns + new_bytes / min(disk.bytes_per_s, pcie) * SECOND


def needed_bandwidth(new_bytes: float, within_ns: float, fixed_ns: float = 0.0) -> float:
    """Bytes a second a write must go at to be done in time.

    The whole cache of Llama-2-7B at 4,096 tokens (2 GiB) within 6 ms, which nothing on PCIe gives:

    >>> round(needed_bandwidth(2 * 2**30, 6e6) / 1e9)                      # GB/s
    358

    Raises:
        ConfigError: the time is used up by the fixed part.

    """
    if within_ns <= fixed_ns:
        raise ConfigError(
            f"{within_ns!r} ns are no more than the fixed {fixed_ns!r}",
            field="within_ns",
            value=within_ns,
            hint="allow more time",
        )
    return new_bytes / (within_ns - fixed_ns) * SECOND


def wait_ns(rate_per_s: float, services_ns: Sequence[float]) -> float:
    """Mean wait for the device when writes come at random at `rate_per_s` and take one of `services_ns` each.

    >>> round(wait_ns(50, [10e6]) / 1e6, 2)                                # ms; half busy, equal writes
    5.0

    Raises:
        CapacityError: the device is busy all the time, so the wait has no end.
        ConfigError: no services, or a negative rate.

    """
    if not services_ns or not rate_per_s >= 0:
        raise ConfigError(
            f"{len(services_ns)} services at {rate_per_s!r} a second", field="services_ns", hint="give both"
        )
    mean = sum(services_ns) / len(services_ns) / SECOND
    square = sum((service / SECOND) ** 2 for service in services_ns) / len(services_ns)
    busy = rate_per_s * mean
    if busy >= 1.0:
        raise CapacityError(
            f"the device would be {busy:.0%} busy: {rate_per_s:g} writes a second of {mean * 1e3:.1f} ms each",
            field="rate_per_s",
            value=rate_per_s,
            hint="write less (only new tokens), less often, or to more devices",
        )
    return rate_per_s * square / (2 * (1 - busy)) * SECOND


def felt_ns(mode: str, compute_ns: float, write: float, layers: int = 1) -> float:
    """How much later a step's end is, for a write of `write` ns beside (or after) `compute_ns` of computing.

    `async` writes what the step before made while this one computes; `layerwise` what this one makes, layer by layer,
    so that it is on the disk when the answer goes out.

    >>> [felt_ns(mode, 40e6, 30e6, layers=30) / 1e6 for mode in MODES]         # ms
    [30.0, 0.0, 1.0]
    >>> [round(felt_ns(mode, 40e6, 60e6, layers=30) / 1e6, 1) for mode in MODES]
    [60.0, 20.0, 21.3]
    """
    if mode == "sync":
        return write
    if mode == "async":
        return max(0.0, write - compute_ns)
    if mode == "layerwise":
        return layerwise_ns([compute_ns / layers] * layers, [write / layers] * layers) - compute_ns
    raise ConfigError(f"no mode {mode!r}", field="mode", value=mode, hint="one of " + ", ".join(MODES))


MODES = ("sync", "async", "layerwise")


def layerwise_ns(compute_ns: Sequence[float], writes_ns: Sequence[float]) -> float:
    """When the last layer's write is done, if each begins when its layer is computed and the one before is written.

    >>> layerwise_ns([10.0, 10.0], [4.0, 4.0]), layerwise_ns([10.0, 10.0], [15.0, 15.0])
    (24.0, 40.0)
    """
    computed = written = 0.0
    for compute, write in zip(compute_ns, writes_ns, strict=True):
        computed += compute
        written = max(written, computed) + write
    return written
