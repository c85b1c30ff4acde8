"""Service times of a queue: a weighted sample, with the moments and transforms that queueing formulas need.

One representation for all: atoms s_i (ns) with weights p_i.  Measured times are their own atoms; an assumed gamma
distribution of given mean and CV is cut into `CUTS` slices, finer towards the tail, each an atom at its own mean, so
that the mean is exact and the second moment short by less than 0.1 %.  With atoms every quantity is a sum:

    E[S^k] = sum p s^k        transform E[exp(-z S)] = sum p exp(-z s)        P(S > t) = sum of p with s > t

A gamma distribution of CV 1 is the exponential one; CV 0 is a constant.

Rules: more than `ATOMS_MOST` measured values are merged in groups of neighbours, except the largest, because tails
are made there.

Deliberately absent: heavy tails beyond what was measured.  A sample is bounded, so a service that has not yet shown its
slowest request looks better than it is.
"""

import math
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sits.core.errors import ConfigError

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

Floats = NDArray[np.float64]

ATOMS_MOST = 2000
KEPT_WHOLE = 400
"""Largest measured values that are never merged."""

CUTS = 400
CV_MOST = 10.0


class Service:
    """Service times as atoms; make one with `constant`, `gamma` or `measured`.

    Attributes:
        values_ns, weights: ascending, and summing to 1.
        mean_ns, second_ns2: E[S] and E[S^2].
        cv: standard deviation / mean.
        assumed: what was taken for granted about the shape; empty for measured values.

    """

    def __init__(self, values_ns: Floats, weights: Floats, assumed: str = "") -> None:
        self.values_ns = values_ns
        self.weights = weights
        self.assumed = assumed
        self.mean_ns = float(values_ns @ weights)
        self.second_ns2 = float(values_ns**2 @ weights)
        self.cv = math.sqrt(max(0.0, self.second_ns2 / self.mean_ns**2 - 1.0))

    def transform(self, z: NDArray[np.complex128]) -> NDArray[np.complex128]:
        """E[exp(-z S)] for each of equally spaced z (per ns).

        Rows of powers are doubled instead of taking an exponential for each pair: ten times faster.
        """
        rows = np.empty((len(z), len(self.values_ns)), np.complex128)
        rows[0] = np.exp(-z[0] * self.values_ns)
        power = np.exp(-(z[1] - z[0]) * self.values_ns)
        done = 1
        while done < len(z):
            more = min(done, len(z) - done)
            np.multiply(rows[:more], power, out=rows[done : done + more])
            done += more
            power *= power
        return np.asarray(rows @ self.weights, np.complex128)

    def above(self, t_ns: float) -> float:
        """P(S > t).

        >>> two_kinds(20e6, 200e6, 0.1).above(100e6)
        0.1
        """
        first = int(np.searchsorted(self.values_ns, t_ns, side="right"))
        return float(self.weights[first:].sum())

    def growth(self, theta: float) -> tuple[float, float]:
        """E[exp(theta S)] and its derivative, theta per ns."""
        grown = np.exp(theta * self.values_ns) * self.weights
        return float(grown.sum()), float(grown @ self.values_ns)

    def quantile_ns(self, q: float) -> float:
        """The smallest atom that a share q of the requests does not exceed."""
        place = int(np.searchsorted(np.cumsum(self.weights), q * (1.0 - 1e-12)))
        return float(self.values_ns[min(place, len(self.values_ns) - 1)])


def constant(mean_ns: float) -> Service:
    """Every request takes the same time.

    >>> constant(50e6).cv
    0.0
    """
    _positive("mean_ns", mean_ns)
    return Service(np.array([float(mean_ns)]), np.array([1.0]))


def two_kinds(short_ns: float, long_ns: float, long_share: float) -> Service:
    """Short requests and a share of long ones.

    >>> round(two_kinds(20e6, 200e6, 0.1).cv, 2)
    1.42
    """
    _positive("short_ns", short_ns)
    if not (long_ns > short_ns and 0.0 < long_share < 1.0):
        raise ConfigError(
            f"{long_share!r} of {long_ns!r} ns beside {short_ns!r} ns",
            field="long_share",
            value=long_share,
            hint="long above short, and a share between 0 and 1",
        )
    return Service(np.array([float(short_ns), float(long_ns)]), np.array([1.0 - long_share, long_share]))


def gamma(mean_ns: float, cv: float) -> Service:
    """Gamma-distributed service of a mean and a CV: what is assumed where only these two are known.

    >>> s = gamma(50e6, 1.0)
    >>> round(s.mean_ns), round(s.cv, 3), round(s.above(50e6 * 2), 2)          # exponential: exp(-2) = 0.135
    (50000000, 1.0, 0.14)

    Raises:
        ConfigError: a mean that is not above zero, or a CV outside 0..10.

    """
    _positive("mean_ns", mean_ns)
    if not 0.0 <= cv <= CV_MOST:
        raise ConfigError(
            f"a service CV of {cv!r}", field="cv", value=cv, hint=f"give 0..{CV_MOST:g}, or measured times"
        )
    if cv < 0.01:
        return constant(mean_ns)
    from scipy.special import gammainc, gammaincinv  # noqa: PLC0415  # heavy; only this constructor needs it

    shape = 1.0 / cv**2
    body = np.linspace(0.0, 0.95, CUTS // 2 + 1)
    edges = np.concatenate([body, 1.0 - 0.05 * np.geomspace(1.0, 1e-7, CUTS // 2 + 1)[1:], [1.0]])
    cuts = gammaincinv(shape, edges)
    # The mean of a slice of a gamma variable is a slice of the gamma distribution of one shape more.
    partial = np.diff(gammainc(shape + 1.0, cuts))
    weights = np.diff(edges)
    values = mean_ns * partial / weights
    kept = values > 0.0
    lost = weights[~kept].sum()  # slices at zero, of very variable services
    weights = weights[kept]
    weights[0] += lost
    values = values[kept]
    values[0] *= (weights[0] - lost) / weights[0]
    said = f"service times are gamma-distributed with CV {cv:g}"
    return Service(np.asarray(values, np.float64), np.asarray(weights / weights.sum(), np.float64), said)


def measured(values_ns: "ArrayLike") -> Service:
    """The service times of real requests, ns.

    >>> measured([10e6, 10e6, 40e6]).mean_ns
    20000000.0

    Raises:
        ConfigError: no values, or one that is no finite number above zero.

    """
    values = np.sort(np.asarray(values_ns, np.float64).ravel())
    if not len(values) or not np.isfinite(values).all() or values[0] <= 0.0:
        raise ConfigError(
            f"{len(values)} service times, not all of them finite and above zero",
            field="values_ns",
            hint="give one time above zero for each request",
        )
    rest = len(values) - KEPT_WHOLE
    if len(values) <= ATOMS_MOST:
        atoms, counts = np.unique(values, return_counts=True)
        return Service(atoms, counts / len(values))
    groups = np.array_split(values[:rest], ATOMS_MOST - KEPT_WHOLE)
    atoms = np.concatenate([[group.mean() for group in groups], values[rest:]])
    weights = np.concatenate([[len(group) for group in groups], np.ones(KEPT_WHOLE)]) / len(values)
    return Service(atoms, weights)


def _positive(field: str, value: float) -> None:
    if not (value > 0.0 and math.isfinite(value)):
        raise ConfigError(
            f"{value!r} ns is no service time", field=field, value=value, hint="give a time above zero"
        )
