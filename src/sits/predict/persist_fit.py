"""Figures of a disk from timed writes: fixed part, bandwidth, and the exponent, each with an interval.

    t = fixed + n / bandwidth            relative least squares, both coefficients non-negative
    t ~ n^e                              least squares on the logarithms; below 1 while the fixed part counts, then 1

Relative, because a write of 64 KiB must count as much as one of 64 MiB.  Each size enters by its median, so that a stall
(another process, a flush) does not bend the line; intervals are percentile bootstrap over the repetitions of each size, level 0.95.

Rules: fewer than `SIZES_LEAST` different sizes, or `TIMES_LEAST` times of one, are refused.  Two points always lie on some
power law: 6 ms at 4K tokens and 52 ms at 16K "show" an exponent of 1.56 and nothing at all about what lies between.

Deliberately absent: measuring (`sits.bench.disk`).
"""

import math
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from sits.core.errors import ConfigError
from sits.core.finding import Interval
from sits.core.units import SECOND
from sits.predict.persist import Disk

SIZES_LEAST, TIMES_LEAST, DRAWS, LEVEL = 5, 3, 300, 0.95


class DiskFit(msgspec.Struct, frozen=True, kw_only=True):
    """A fitted disk.

    `mape` is the mean absolute relative error of the line on the medians it was fitted to, `spread` the median over sizes of
    (P90 - P10) / P50 of the times themselves: a model cannot be better than that.
    """

    fixed_ns: Interval
    bytes_per_s: Interval
    exponent: Interval
    mape: float
    spread: float
    sizes: int
    times: int

    def disk(self, source: str = "measured") -> Disk:
        """The figures a predictor takes."""
        return Disk(fixed_ns=self.fixed_ns.value, bytes_per_s=self.bytes_per_s.value, source=source)


def exponent_of(sizes: Sequence[float], times: Sequence[float]) -> float:
    """The slope of log(time) over log(size).

    >>> round(exponent_of([4096, 16384], [6, 52]), 2)                    # the often quoted two points
    1.56
    """
    x, y = np.log(sizes), np.log(times)
    x = x - x.mean()
    return float((x * (y - y.mean())).sum() / (x * x).sum())


def fit_disk(times_ns: Mapping[int, Sequence[float]], rng: np.random.Generator) -> DiskFit:
    """The line through timed writes, `{bytes: (ns, ns, ...)}`.

    >>> exact = {n: [80_000 + n / 2e9 * 1e9] * 5 for n in (65536, 262144, 1048576, 4194304, 16777216)}
    >>> fit = fit_disk(exact, np.random.Generator(np.random.PCG64(0)))
    >>> round(fit.fixed_ns.value), round(fit.bytes_per_s.value / 1e9, 3), round(fit.exponent.value, 2)
    (80000, 2.0, 0.79)
    >>> fit_disk({4096: [6e6] * 3, 16384: [52e6] * 3}, np.random.Generator(np.random.PCG64(0)))
    Traceback (most recent call last):
    ...
    sits.core.errors.ConfigError: sizes: 2 sizes say nothing about a line or an exponent (measure at least 5)

    Raises:
        ConfigError: too few sizes or times, or a time that is not above zero.

    """
    if len(times_ns) < SIZES_LEAST:
        raise ConfigError(
            f"{len(times_ns)} sizes say nothing about a line or an exponent",
            field="sizes",
            value=len(times_ns),
            hint=f"measure at least {SIZES_LEAST}",
        )
    for size, times in times_ns.items():
        if len(times) < TIMES_LEAST or min(times) <= 0 or size <= 0:
            raise ConfigError(
                f"{len(times)} times of {size} bytes, the least {min(times, default=0)} ns",
                field="times",
                value=len(times),
                hint=f"measure each at least {TIMES_LEAST} times",
            )
    sizes = np.array(sorted(times_ns), float)
    columns = [np.asarray(times_ns[int(size)], float) for size in sizes]
    medians = np.array([np.median(column) for column in columns])
    fixed, slope = _line(sizes, medians)
    drawn = []
    for _ in range(DRAWS):
        again = np.array([np.median(column[rng.integers(0, len(column), len(column))]) for column in columns])
        drawn.append((*_line(sizes, again), exponent_of(sizes.tolist(), again.tolist())))
    of_fixed, of_slope, of_exponent = np.array(drawn).T
    error = np.abs((fixed + slope * sizes) / medians - 1)
    spread = [float(np.subtract(*np.quantile(column, [0.9, 0.1])) / np.median(column)) for column in columns]
    return DiskFit(
        fixed_ns=_interval(fixed, of_fixed),
        bytes_per_s=_rates(_interval(slope, of_slope)),
        exponent=_interval(exponent_of(sizes.tolist(), medians.tolist()), of_exponent),
        mape=float(error.mean()),
        spread=float(np.median(spread)),
        sizes=len(sizes),
        times=sum(map(len, columns)),
    )


def _line(sizes: np.ndarray, times: np.ndarray) -> tuple[float, float]:
    """Non-negative (fixed, ns a byte) of least relative error; two unknowns, so the borders are tried by hand."""
    a, b = 1.0 / times, sizes / times
    aa, bb, ab = float(a @ a), float(b @ b), float(a @ b)
    ya, yb = float(a.sum()), float(b.sum())
    determinant = aa * bb - ab * ab
    fixed, slope = (ya * bb - yb * ab) / determinant, (yb * aa - ya * ab) / determinant
    if fixed < 0:
        return 0.0, yb / bb
    if slope < 0:
        return ya / aa, 0.0
    return fixed, slope


def _rates(slope: Interval) -> Interval:
    """Bytes a second from ns a byte; a line that does not rise has no bandwidth to tell."""
    value, low, high = (SECOND / ns if ns > 0 else math.inf for ns in (slope.value, slope.high, slope.low))
    return Interval(value, low, high, slope.level)


def _interval(value: float, drawn: np.ndarray) -> Interval:
    low, high = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(value, min(float(low), value), max(float(high), value), LEVEL)
