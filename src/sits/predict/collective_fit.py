"""Lines of alpha + bytes / bandwidth fitted to measured all-reduce times: one, two or three segments.

Each segment minimises the mean absolute relative error (reweighted least squares, no coefficient below zero), and the sizes at which
segments meet are tried out, for nothing smooth describes a library that changes its algorithm there.

Rules: sizes in bytes and ascending; a segment holds three sizes or more.

Deliberately absent: where the times come from, and a guess beyond the largest size.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sits.core.errors import ConfigError
from sits.predict.gpu import Segment

Floats = NDArray[np.float64]

LEAST = 3
_ROUNDS = 30


def fit_segments(
    sizes: Sequence[float], times_us: Sequence[float], segments: int = 2
) -> tuple[tuple[Segment, ...], float]:
    """The segments and their mean absolute relative error.

    >>> sizes = [2.0**k for k in range(9, 30)]
    >>> times = [10 + s / 1e5 if s < 2**21 else 30 + s / 4e5 for s in sizes]
    >>> (small, large), error = fit_segments(sizes, times)
    >>> round(small.alpha_us, 2), round(1e-3 / large.us_per_byte, 1), error < 1e-6            # us, GB/s
    (10.0, 400.0, True)

    Raises:
        ConfigError: too few sizes, not ascending, or a time that is not above zero.

    """
    s, y = np.asarray(sizes, np.float64), np.asarray(times_us, np.float64)
    if len(s) != len(y) or len(s) < LEAST * segments or (np.diff(s) <= 0).any() or not (y > 0).all():
        raise ConfigError(
            f"{len(s)} sizes and {len(y)} times for {segments} segments",
            field="sizes",
            value=len(s),
            hint=f"ascending sizes, {LEAST} or more for each segment, times above zero",
        )
    found, total = _best(s, y, segments)
    return tuple(found), total / len(s)


def _best(s: Floats, y: Floats, segments: int) -> tuple[list[Segment], float]:
    """Segments with the least sum of relative errors: the first one's end is tried out, the rest follows."""
    if segments == 1:
        alpha, beta, loss = _line(s, y)
        return [Segment(float(s[-1]), alpha, beta)], loss
    best: tuple[list[Segment], float] = ([], float("inf"))
    for end in range(LEAST, len(s) - LEAST * (segments - 1) + 1):
        alpha, beta, loss = _line(s[:end], y[:end])
        if loss >= best[1]:
            continue
        rest, more = _best(s[end:], y[end:], segments - 1)
        if loss + more < best[1]:
            best = ([Segment(float(s[end - 1]), alpha, beta), *rest], loss + more)
    return best


def _line(s: Floats, y: Floats) -> tuple[float, float, float]:
    """alpha, beta >= 0 and the sum of absolute relative errors."""
    weight = np.ones(len(s))
    alpha = beta = 0.0
    for _ in range(_ROUNDS):
        u = weight / y
        one, size = u, s * u
        aa, ab, bb = float(one @ one), float(one @ size), float(size @ size)
        ra, rb = float(one @ weight), float(size @ weight)
        det = aa * bb - ab * ab
        alpha, beta = (ra * bb - rb * ab) / det, (rb * aa - ra * ab) / det
        if alpha < 0.0:
            alpha, beta = 0.0, rb / bb
        elif beta < 0.0:
            alpha, beta = ra / aa, 0.0
        error = np.abs((alpha + beta * s) / y - 1.0)
        weight = 1.0 / np.sqrt(np.maximum(error, 1e-4))
    return alpha, beta, float(error.sum())
