"""Throughput over nodes: the Universal Scalability Law, its peak with an interval, or a refusal.

    X(N) = a N / (1 + s (N - 1) + k N (N - 1))          peak at N* = sqrt((1 - s) / k)

a is what one node does, s the share that is done one after the other, k what every pair costs (Gunther 1993).  N / X is linear in
(1, N - 1, N (N - 1)), so the fit is a non-negative least squares on relative errors.  The interval is a parametric bootstrap
whose scatter is itself drawn (n - 3 degrees of freedom).

Refused: fewer than 5 node counts.  Two points give three numbers to no fit, whatever "growth loss" is read into them.  A peak
beyond twice the largest count measured is said to be out of sight instead of guessed.

Deliberately absent: why it bends (`collective`).
"""

import math
from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from sits.core.errors import ConfigError
from sits.predict.knee import Range

Floats = NDArray[np.float64]

COUNTS_LEAST = 5
DRAWS = 400
IN_SIGHT = 2.0


class Scaling(msgspec.Struct, frozen=True, kw_only=True):
    """What the points say: throughput of one node, serial share, pair cost, and the peak where it is in sight.

    `refusal` says why there is no peak; `efficiency` is X(N) / (N a) at the largest count measured.
    """

    refusal: str
    one: float = math.nan
    serial: float = math.nan
    pairs: float = math.nan
    efficiency: float = math.nan
    misfit: float = math.nan
    peak: Range | None = None

    def throughput(self, nodes: float) -> float:
        """The fitted X(N), in the unit of the points."""
        return self.one * nodes / (1.0 + self.serial * (nodes - 1) + self.pairs * nodes * (nodes - 1))


def fit_scaling(nodes: Sequence[float], throughput: Sequence[float], rng: np.random.Generator) -> Scaling:
    """Fit (nodes, throughput) points.

    >>> from sits.world import stream_generator
    >>> counts = [1, 2, 4, 8, 16, 32]
    >>> seen = [100 * n / (1 + 0.03 * (n - 1) + 0.001 * n * (n - 1)) for n in counts]
    >>> found = fit_scaling(counts, seen, stream_generator(0, "usl"))
    >>> round(found.serial, 3), round(found.pairs, 4), round(found.peak.value, 1)
    (0.03, 0.001, 31.1)
    >>> fit_scaling([4, 8], [1520, 1465], stream_generator(0, "usl")).refusal
    'not enough node counts: 2 different ones, 5 are needed'

    Raises:
        ConfigError: columns of unequal length, or values that are not above zero.

    """
    n, x = np.asarray(nodes, np.float64), np.asarray(throughput, np.float64)
    if (
        len(n) != len(x)
        or not (np.isfinite(n).all() and np.isfinite(x).all())
        or (n < 1).any()
        or (x <= 0).any()
    ):
        raise ConfigError(
            f"{len(n)} node counts and {len(x)} throughputs",
            field="throughput",
            hint="one throughput above zero for each count of one or more nodes",
        )
    counts = len(set(n.tolist()))
    if counts < COUNTS_LEAST:
        return Scaling(refusal=f"not enough node counts: {counts} different ones, {COUNTS_LEAST} are needed")
    one, serial, pairs = _fit(n, x)
    fitted = Scaling(refusal="", one=one, serial=serial, pairs=pairs)
    curve = np.array([fitted.throughput(float(count)) for count in n])
    residual = x / curve - 1.0
    largest = float(n.max())
    drawn = np.array([_peak(*_fit(n, noisy)[1:]) for noisy in _noisy(curve, residual, rng)])
    low, high = (float(v) for v in np.quantile(np.minimum(drawn, 1e9), [0.025, 0.975]))
    peak = _peak(serial, pairs)
    refusal = ""
    if peak > IN_SIGHT * largest:
        refusal = (
            f"no peak in sight: throughput still grows at {largest:g} nodes; measure more nodes to see one"
        )
    elif high > 10.0 * peak:
        refusal = f"too uncertain: the peak is anywhere from {low:.3g} nodes up; measure more node counts"
    return Scaling(
        refusal=refusal,
        one=one,
        serial=serial,
        pairs=pairs,
        efficiency=fitted.throughput(largest) / (largest * one),
        misfit=math.sqrt(float((residual**2).mean())),
        peak=None if refusal else Range(peak, min(low, peak), max(high, peak)),
    )


def _fit(n: Floats, x: Floats) -> tuple[float, float, float]:
    from scipy.optimize import nnls  # noqa: PLC0415  # heavy; only a fit needs it

    target = n / x
    rows = np.stack([np.ones(len(n)), n - 1.0, n * (n - 1.0)], axis=1) / target[:, None]
    scale = np.maximum(np.abs(rows).max(axis=0), 1e-300)
    found, _ = nnls(rows / scale, np.ones(len(n)))
    base, serial, pairs = found / scale
    return float(1.0 / base), float(serial / base), float(pairs / base)


def _peak(serial: float, pairs: float) -> float:
    return math.sqrt(max(0.0, 1.0 - serial) / pairs) if pairs > 0.0 else math.inf


def _noisy(curve: Floats, residual: Floats, rng: np.random.Generator) -> list[Floats]:
    total, freedom = float((residual**2).sum()), max(1, len(curve) - 3)
    return [
        curve * np.exp(math.sqrt(total / float(rng.chisquare(freedom))) * rng.standard_normal(len(curve)))
        for _ in range(DRAWS)
    ]
