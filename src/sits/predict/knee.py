"""The knee of measured (load, P99) points: a curve with an interval, or a refusal that says what is missing.

    P99(x) = a + b / (1 - x / x_max)            x_max: the load at which the queue has no end

fitted by relative least squares: for a given x_max it is linear in a, b >= 0, so x_max is found by a search in one
dimension.  The knee of factor k is where P99 is k times what it is at no load, P99(0) = a + b:

    x_k = x_max (1 - b / (k (a + b) - a))

Intervals are from a parametric bootstrap: new points are drawn around the curve with the relative scatter of the residuals, whose
size is itself drawn (n - 3 degrees of freedom), since with six points it is badly known; where the number of requests behind a
P99 is given, its own sampling error (sqrt(99 / requests) / ln 100 for an exponential tail) is a lower bound of the scatter.
On curves of this form with 3 to 10 % of noise, intervals said to be of 95 % held the true knee in 89 to 96 % of 150 repetitions.

Refused, each with its reason: fewer than 6 different loads; a P99 that does not rise; a knee beyond the loads measured; an
interval wider than the knee itself; points this curve does not describe.  Three points always lie on a parabola, so
"quadratic beyond 8" cannot be seen in them.

Deliberately absent: a cause.  The curve is a description; a step-time model predicts (`steptime`, `queue_sharing`).
"""

import math
from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from sits.core.errors import ConfigError

Floats = NDArray[np.float64]

LOADS_LEAST = 6
FACTOR = 2.0
DRAWS = 400
LEVEL = 0.95
MISFIT_MOST = 0.25
"""Relative residual above which the curve is not a description of the points."""

_GRID = 100


class Point(msgspec.Struct, frozen=True):
    """A measured P99 at a load; the load in any unit, `requests` behind it where known."""

    load: float
    p99_ns: float
    requests: int = 0


class Range(msgspec.Struct, frozen=True):
    """A value and its interval of level 0.95."""

    value: float
    low: float
    high: float


class Curve(msgspec.Struct, frozen=True):
    """a + b / (1 - load / load_max), ns."""

    floor_ns: float
    rise_ns: float
    load_max: float

    def p99_ns(self, load: float) -> float:
        """The curve at a load, `inf` from `load_max` on.

        >>> Curve(40.0, 60.0, 10.0).p99_ns(5.0)
        160.0
        """
        return (
            math.inf if load >= self.load_max else self.floor_ns + self.rise_ns / (1.0 - load / self.load_max)
        )

    def knee(self, factor: float) -> float:
        """The load at which P99 is `factor` times that of no load.

        >>> round(Curve(0.0, 50.0, 10.0).knee(2.0), 6)
        5.0
        """
        whole = self.floor_ns + self.rise_ns
        return self.load_max * (1.0 - self.rise_ns / (factor * whole - self.floor_ns))


class Knee(msgspec.Struct, frozen=True, kw_only=True):
    """What the points say.

    Attributes:
        refusal: why there is no knee; empty when there is one.
        knee, load_max: with intervals; None when refused.
        curve: the fit, None where nothing could be fitted.
        misfit: root mean square of the relative residuals.
        band: (load, low, high) of the curve for drawing, ns.

    """

    factor: float
    refusal: str
    knee: Range | None = None
    load_max: Range | None = None
    curve: Curve | None = None
    misfit: float = math.nan
    band: tuple[tuple[float, float, float], ...] = ()


def find_knee(
    points: Sequence[Point], rng: np.random.Generator, *, factor: float = FACTOR, draws: int = DRAWS
) -> Knee:
    """Fit the points and find the load at which P99 has become `factor` times that of no load.

    >>> from sits.world import stream_generator
    >>> true = Curve(100e6, 50e6, 20.0)
    >>> seen = [Point(x, true.p99_ns(x) * e) for x, e in zip((2, 5, 8, 11, 14, 16, 18), (1, .98, 1.02, 1, 1.01, .99, 1))]
    >>> found = find_knee(seen, stream_generator(0, "knee"))
    >>> round(true.knee(2.0), 1), round(found.knee.value, 1), found.knee.low < 15.0 < found.knee.high
    (15.0, 15.0, True)
    >>> find_knee(seen[:3], stream_generator(0, "knee")).refusal
    'not enough loads: 3 different ones, 6 are needed to tell a knee from a line'

    Raises:
        ConfigError: a load or P99 that is no finite number above zero, or a factor of 1 or less.

    """
    _check(points, factor)
    loads = sorted({point.load for point in points})
    if len(loads) < LOADS_LEAST:
        return Knee(
            factor=factor,
            refusal=f"not enough loads: {len(loads)} different ones, {LOADS_LEAST} are needed to tell a knee from a line",
        )
    x = np.array([point.load for point in points])
    y = np.array([point.p99_ns for point in points])
    curve = _fit(x, y)
    shape = np.array([curve.p99_ns(load) for load in x])
    residual = y / shape - 1.0
    misfit = math.sqrt(float((residual**2).mean()))
    fitted = _bootstrap(curve, points, x, shape, residual, rng, draws)
    knees = np.array([one.knee(factor) for one in fitted])
    band = _band(fitted, loads)
    refusal = _refusal(curve, knees, factor, misfit, loads)
    if refusal:
        return Knee(factor=factor, refusal=refusal, curve=curve, misfit=misfit, band=band)
    return Knee(
        factor=factor,
        refusal="",
        knee=_range(curve.knee(factor), knees),
        load_max=_range(curve.load_max, np.array([one.load_max for one in fitted])),
        curve=curve,
        misfit=misfit,
        band=band,
    )


def _fit(x: Floats, y: Floats) -> Curve:
    """The best x_max on a grid that thins out above the largest load, then once more around it."""
    grid = float(x.max()) * (1.0 + np.geomspace(1e-3, 30.0, _GRID))
    for _ in range(2):
        loss, a, b = _linear(x, y, grid)
        best = int(np.argmin(loss))
        found = Curve(float(a[best]), float(b[best]), float(grid[best]))
        grid = np.linspace(grid[max(0, best - 1)], grid[min(len(grid) - 1, best + 1)], _GRID // 2)
    return found


def _linear(x: Floats, y: Floats, most: Floats) -> tuple[Floats, Floats, Floats]:
    """Loss and a, b >= 0 of the relative least squares at each x_max of `most`."""
    one = 1.0 / y
    rise = 1.0 / (1.0 - x[None, :] / most[:, None]) / y
    aa, ra = float(one @ one), float(one.sum())
    ab, bb, rb = rise @ one, (rise * rise).sum(axis=1), rise.sum(axis=1)
    det = np.maximum(aa * bb - ab * ab, 1e-12 * aa * bb)
    a, b = (ra * bb - rb * ab) / det, (rb * aa - ra * ab) / det
    a, b = np.where(b < 0.0, ra / aa, a), np.where(a < 0.0, rb / bb, b)
    a, b = np.maximum(a, 0.0), np.where(b < 0.0, 0.0, b)
    loss = ((a[:, None] * one + b[:, None] * rise - 1.0) ** 2).sum(axis=1)
    return loss, a, b


def _bootstrap(
    curve: Curve,
    points: Sequence[Point],
    x: Floats,
    shape: Floats,
    residual: Floats,
    rng: np.random.Generator,
    draws: int,
) -> list[Curve]:
    freedom = max(1, len(points) - 3)
    total = float((residual**2).sum())
    least = np.array(
        [math.sqrt(99.0 / point.requests) / math.log(100.0) if point.requests else 0.0 for point in points]
    )
    fitted = []
    for _ in range(draws):
        scatter = math.sqrt(total / float(rng.chisquare(freedom)))
        drawn = shape * np.exp(np.maximum(scatter, least) * rng.standard_normal(len(points)))
        fitted.append(_fit(x, drawn))
    return fitted


def _refusal(curve: Curve, knees: Floats, factor: float, misfit: float, loads: Sequence[float]) -> str:
    knee = curve.knee(factor)
    if misfit > MISFIT_MOST:
        return f"the points lie {misfit:.0%} off any such curve: repeat the runs, or the engine changed between them"
    if curve.rise_ns <= 0.0 or curve.p99_ns(loads[-1]) < 1.1 * curve.p99_ns(loads[0]):
        return f"P99 does not rise up to the largest load, {loads[-1]:g}: measure higher ones"
    if knee > loads[-1]:
        grown = curve.p99_ns(loads[-1]) / (curve.floor_ns + curve.rise_ns)
        return (
            f"not reached: P99 is {grown:.2f} times that of no load at the largest load, {loads[-1]:g}; measure higher ones "
            f"to see it at {factor:g} times"
        )
    low, high = _ends(knees)
    if high - low > knee:
        return f"too uncertain: the knee is anywhere from {low:.3g} to {high:.3g}; measure more loads near it, and longer"
    return ""


def _ends(values: Floats) -> tuple[float, float]:
    low, high = np.quantile(values, [(1.0 - LEVEL) / 2.0, (1.0 + LEVEL) / 2.0])
    return float(low), float(high)


def _range(value: float, drawn: Floats) -> Range:
    low, high = _ends(drawn)
    return Range(value, min(value, low), max(value, high))


def _band(fitted: Sequence[Curve], loads: Sequence[float]) -> tuple[tuple[float, float, float], ...]:
    rows = []
    for load in np.linspace(0.0, loads[-1], 60):
        values = np.array([one.p99_ns(float(load)) for one in fitted])
        rows.append((float(load), *_ends(np.minimum(values, 1e300))))
    return tuple(rows)


def _check(points: Sequence[Point], factor: float) -> None:
    for point in points:
        for field, value in (("load", point.load), ("p99_ns", point.p99_ns)):
            if not (value > 0.0 and math.isfinite(value)):
                raise ConfigError(
                    f"a point with {field} {value!r}",
                    field=field,
                    value=value,
                    hint="give a number above zero",
                )
    if not factor > 1.0:
        raise ConfigError(
            f"a knee of factor {factor!r}", field="factor", value=factor, hint="give more than 1"
        )
