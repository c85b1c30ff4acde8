"""Whether arrivals were made by a closed loop: callers who send when their last answer has come.

Times recorded in a closed loop are answers' times in disguise.  Taken as given, they push a simulated engine that is a tenth slower
than the real one into a queue that the real one never had; so they are recognised, and the loop is simulated instead.

Signature: `users` arrivals at once at the start, then gaps that follow the work.  The gaps given are compared with the gaps of a
simulated closed loop of that many users by Spearman's rank correlation, which no unequal speed of the machine moves.  In our
recordings it is 0.67 to 0.96 for closed loops with mixed lengths (0.1 to 0.9 for an engine bound by its front end) and within 0.06 of
zero for Poisson arrivals.

Deliberately absent: taking the machine's speed from such arrivals.  Their rate is the answer (Little's law), not a prediction.
"""

import math

import msgspec
import numpy as np
from numpy.typing import NDArray

from sits.bench.asked import Asked
from sits.bench.foretell import Loop, foretell
from sits.predict.fit_model import FittedEngine

AT_ONCE_MS = 20.0
LEAST = 12
Z_ALONE, Z_WITH_BURST, BURST = 4.0, 1.64, 4


class LoopGuess(msgspec.Struct, frozen=True, kw_only=True):
    """A closed loop recognised: how many users, and how well the gaps agree."""

    users: int
    correlation: float

    def sentence(self) -> str:
        """For the list of assumptions."""
        users = f"{self.users} user" + ("s" if self.users > 1 else "")
        return (
            f"arrivals follow the answers, as a closed loop of {users} makes them (rank correlation of gaps with a simulated one "
            f"{self.correlation:.2f}): the loop is simulated; --loop open takes the arrivals as given"
        )


def guess_loop(model: FittedEngine, asked: Asked) -> LoopGuess | None:
    """The closed loop that made these arrivals, or None."""
    arrivals = asked.arrival_ms
    users = int((arrivals < arrivals[0] + AT_ONCE_MS).sum())
    gaps = np.diff(arrivals[users - 1 :])
    if len(gaps) < LEAST or users > len(arrivals) // 2:
        return None
    own = np.diff(foretell(model, asked, loop=Loop(users=users)).arrival_ms[users - 1 :])
    correlation = rank_correlation(gaps, own)
    z = math.atanh(min(0.999, correlation)) * math.sqrt(len(gaps) - 3)
    if z > Z_ALONE or (z > Z_WITH_BURST and users >= BURST):
        return LoopGuess(users=users, correlation=round(correlation, 2))
    return None


def rank_correlation(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    """Spearman's rank correlation; 0 when either does not vary.

    >>> rank_correlation(np.array([1.0, 2, 3, 9]), np.array([10.0, 20, 30, 31]))
    1.0
    """
    good = np.isfinite(a) & np.isfinite(b)
    ranks = [np.argsort(np.argsort(x[good], kind="stable"), kind="stable").astype(float) for x in (a, b)]
    if min(len(set(x[good])) for x in (a, b)) < 2:
        return 0.0
    return round(float(np.corrcoef(ranks[0], ranks[1])[0, 1]), 12)
