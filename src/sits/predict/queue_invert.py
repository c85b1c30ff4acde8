"""Tail probabilities from a Laplace transform, by the Euler method of Abate and Whitt (1995).

For a function f(t) with transform F(z), the Bromwich integral becomes an alternating series at z_k = (A + 2 k pi i) / (2 t),

    f(t) ~ exp(A/2) / t * [ F(z_0) / 2 + sum over k >= 1 of (-1)^k Re F(z_k) ]

whose partial sums N .. N + M are averaged with binomial weights (Euler summation).  The discretisation error is below exp(-A)
for a probability: 1e-8 with A = 18.4.  What remains is the truncation, small where f is smooth, so jumps must be
taken out of f before: `queue` inverts only the part of the sojourn that has waited.

Source: J. Abate and W. Whitt, "Numerical inversion of Laplace transforms of probability distributions", ORSA Journal on
Computing 7 (1995); the method called EULER there.

Deliberately absent: any knowledge of queues.
"""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

A = 18.4
TERMS = 100
AVERAGED = 11

Transform = Callable[[NDArray[np.complex128]], NDArray[np.complex128]]

_SIGNS = np.where(np.arange(TERMS + AVERAGED + 1) % 2 == 0, 1.0, -1.0)
_BINOMIAL = np.array([math.comb(AVERAGED, j) for j in range(AVERAGED + 1)]) / 2.0**AVERAGED


def inverted(transform: Transform, t: float) -> float:
    """The function whose Laplace transform is `transform`, at `t` above zero.

    >>> round(inverted(lambda z: 1 / (z + 2.0), 1.5), 7), round(math.exp(-3.0), 7)
    (0.0497871, 0.0497871)
    """
    z = np.asarray((A / 2.0 + 1j * math.pi * np.arange(TERMS + AVERAGED + 1)) / t, np.complex128)
    values = transform(z).real
    values[0] /= 2.0
    sums = np.cumsum(_SIGNS * values)
    return float(math.exp(A / 2.0) / t * (_BINOMIAL @ sums[TERMS:]))
