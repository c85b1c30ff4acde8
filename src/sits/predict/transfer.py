"""Host to device copies: bytes over a bandwidth that may dip periodically, and a latency for each copy.

The link's bandwidth is piecewise constant: full, and `1 - depth` of it during `width_ns` at the start of every
period (counted from time 0 plus `phase_ns`).  A copy is the integral of that: with w = bytes / bandwidth the
time it needs at full speed, it ends when

    t - depth * dipped(start, start + t) = w          dipped = time within dips

which is solved exactly (whole periods first, then at most one dip), so copies add up: copying a, then b, ends
when copying a + b does.

What a GPU on the other NUMA node gets is a property of the link and comes from the caller.  `COPY_LATENCY_NS`
is an assumption (a call, a doorbell and a completion, when copies of one stream follow each other).

Deliberately absent: contention of several copies on one switch, pageable memory, and disks.
"""

import math

import msgspec

from sits.core.errors import ConfigError

COPY_LATENCY_NS = 8_000.0


class Dips(msgspec.Struct, frozen=True, kw_only=True):
    """Periodic bandwidth dips: `depth` of the bandwidth is missing for `width_ns` of every `period_ns`.

    Raises:
        ConfigError: depth outside 0..1, a width outside 0..period, or dips that leave no bandwidth at all.

    """

    depth: float
    width_ns: float
    period_ns: float
    phase_ns: float = 0.0

    def __post_init__(self) -> None:
        if not 0.0 <= self.depth <= 1.0:
            raise ConfigError(
                f"{self.depth!r} is no share", field="depth", value=self.depth, hint="give 0..1"
            )
        if not (self.period_ns > 0.0 and 0.0 <= self.width_ns <= self.period_ns):
            raise ConfigError(
                f"a dip of {self.width_ns!r} ns every {self.period_ns!r} ns is impossible",
                field="width_ns",
                value=self.width_ns,
                hint="0 <= width <= period, period above 0",
            )
        if self.depth * self.width_ns >= self.period_ns:
            raise ConfigError(
                "nothing is ever copied", field="depth", value=self.depth, hint="depth or width below 100 %"
            )


def _check(amount: float, bandwidth: float, field: str) -> None:
    if not amount >= 0.0:
        raise ConfigError(f"{amount!r} is negative", field=field, value=amount, hint="give zero or more")
    if not (bandwidth > 0.0 and math.isfinite(bandwidth)):
        raise ConfigError(
            f"{bandwidth!r} B/s is no bandwidth",
            field="bandwidth",
            value=bandwidth,
            hint="give bytes per second above 0",
        )


def copy_ns(size: float, bandwidth: float, start_ns: float = 0.0, dips: Dips | None = None) -> float:
    """Nanoseconds to move `size` bytes at `bandwidth` bytes a second, starting at `start_ns`.

    >>> copy_ns(24_000_000, 24e9)                                       # 24 MB at 24 GB/s: 1 ms
    1000000.0
    >>> dips = Dips(depth=0.5, width_ns=400_000, period_ns=1_000_000)
    >>> copy_ns(24_000_000, 24e9, 0, dips), copy_ns(24_000_000, 24e9, 400_000, dips)
    (1400000.0, 1200000.0)
    >>> copy_ns(14_400_000, 24e9, 400_000, dips)                        # fits between two dips
    600000.0

    Raises:
        ConfigError: negative size, or a bandwidth that is not above zero.

    """
    _check(size, bandwidth, "size")
    work = size / bandwidth * 1e9
    if dips is None or work == 0.0:
        return work
    slow = 1.0 - dips.depth
    at = (start_ns - dips.phase_ns) % dips.period_ns
    periods = math.floor(work / (dips.period_ns - dips.depth * dips.width_ns))
    work = max(0.0, work - periods * (dips.period_ns - dips.depth * dips.width_ns))
    done = periods * dips.period_ns
    # Less than a period's work is left: the rest of this dip, the full-speed stretch, the next dip, the next stretch.
    for length, speed in (
        (max(0.0, dips.width_ns - at), slow),
        (dips.period_ns - max(at, dips.width_ns), 1.0),
        (dips.width_ns, slow),
    ):
        if work <= length * speed:
            return done + (work / speed if speed else 0.0)
        work -= length * speed
        done += length
    return done + work


def copied_bytes(
    duration_ns: float, bandwidth: float, start_ns: float = 0.0, dips: Dips | None = None
) -> float:
    """Bytes moved in `duration_ns` from `start_ns`: the inverse of `copy_ns`.

    >>> dips = Dips(depth=0.5, width_ns=400_000, period_ns=1_000_000)
    >>> copied_bytes(1_400_000, 24e9, 0, dips)
    24000000.0

    Raises:
        ConfigError: negative duration, or a bandwidth that is not above zero.

    """
    _check(duration_ns, bandwidth, "duration_ns")
    lost = 0.0
    if dips is not None:
        start = (start_ns - dips.phase_ns) % dips.period_ns
        lost = dips.depth * (_dipped(start + duration_ns, dips) - _dipped(start, dips))
    return (duration_ns - lost) * bandwidth / 1e9


def _dipped(until_ns: float, dips: Dips) -> float:
    """Time within dips from 0 to `until_ns`, the first dip starting at 0."""
    periods, rest = divmod(until_ns, dips.period_ns)
    return periods * dips.width_ns + min(rest, dips.width_ns)


def copies_ns(
    size: float,
    bandwidth: float,
    *,
    copies: int = 1,
    start_ns: float = 0.0,
    dips: Dips | None = None,
    latency_ns: float = COPY_LATENCY_NS,
) -> float:
    """Nanoseconds of `copies` copies of `size` bytes in all, one after another: latencies first, then the bytes.

    >>> copies_ns(24_000_000, 24e9, copies=10)
    1080000.0
    >>> copies_ns(0, 24e9, copies=0)
    0.0
    """
    if copies < 0 or (size > 0 and not copies):
        raise ConfigError(
            f"{copies} copies of {size} bytes", field="copies", value=copies, hint="one copy or more"
        )
    wait = copies * latency_ns
    return wait + copy_ns(size, bandwidth, start_ns + wait, dips)
