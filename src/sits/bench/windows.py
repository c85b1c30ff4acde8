"""Windows judged on real arrivals: a trace brought to a rate, and each cell of a front replayed on it.

Rules: load is scaled by superposing copies of a trace, each shifted by an equal part of its length and wound around its end, never by
squeezing time, which squeezes the bursts too.

Deliberately absent: the front itself (`predict.front`), and the engine (`sim.calls`).
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from sits.core.errors import ConfigError
from sits.core.fleet_window import Window
from sits.core.units import SECOND, Ns
from sits.predict.calls import MOST_BUSY, CallPrediction
from sits.sim.calls import replay

ARRIVALS_MOST = 60_000
"""Replayed of a trace, from its beginning; a minute of thinking for a front is long enough."""

NO_BOUND = Ns(3600 * SECOND)

COPIED_MOST = 20_000_000


def superposed(times_s: NDArray[np.float64], copies: int) -> NDArray[np.float64]:
    """So many copies of a trace over each other, ascending; 1 gives it back.

    >>> superposed(np.array([0.0, 1.0, 4.0]), 2).tolist()
    [0.0, 1.0, 2.0, 2.0, 3.0, 4.0]
    """
    if copies * len(times_s) > COPIED_MOST:
        raise ConfigError(
            f"{copies:,} copies of {len(times_s):,} arrivals",
            field="rate",
            value=copies,
            hint=f"at most {COPIED_MOST:,} arrivals in all: give a lower --rate",
        )
    length = float(times_s[-1])
    shifted = [times_s if not i else (times_s + length * i / copies) % length for i in range(copies)]
    return np.sort(np.concatenate(shifted))


def at_rate(times_s: NDArray[np.float64], rate_per_s: float) -> list[int]:
    """The beginning of a trace at about `rate_per_s` (at least its own), in ns; 0 leaves it as it is."""
    if not times_s[-1] > 0.0:
        raise ConfigError(
            f"all {len(times_s)} arrivals of the trace are at one time",
            field="trace",
            value=len(times_s),
            hint="a rate needs arrivals at two times or more",
        )
    own = (len(times_s) - 1) / float(times_s[-1])
    copies = max(1, round(rate_per_s / own)) if rate_per_s else 1
    return np.rint(superposed(times_s, copies)[:ARRIVALS_MOST] * SECOND).astype(np.int64).tolist()


def rate_of(arrivals_ns: Sequence[int]) -> float:
    """Arrivals a second."""
    return (len(arrivals_ns) - 1) * SECOND / max(1, arrivals_ns[-1] - arrivals_ns[0])


def replayed_expectation(
    arrivals_ns: Sequence[int], fixed_ns: int, item_ns: int
) -> Callable[[int | None, int], CallPrediction]:
    """What `predict.front.front` asks, by replaying `arrivals_ns`."""
    rate = rate_of(arrivals_ns)

    def expect(window_ns: int | None, max_batch: int) -> CallPrediction:
        if window_ns is None:
            window = Window(kind="adaptive", low=Ns(0), high=NO_BOUND, max_batch=max_batch)
        else:
            window = Window(kind="fixed", base=Ns(window_ns), max_batch=max_batch)
        seen = replay(arrivals_ns, window, fixed_ns=fixed_ns, item_ns=item_ns, objective_ns=NO_BOUND)
        per_engine = seen.batch_mean / (fixed_ns + item_ns * seen.batch_mean) * SECOND
        most = max_batch / (fixed_ns + item_ns * max_batch) * SECOND
        busy = rate / (most if window_ns is None else per_engine)
        kept_up = busy < MOST_BUSY
        full = float(np.mean(seen.sizes == max_batch))
        return CallPrediction(
            bound="free" if window_ns is None else "size" if full > 0.5 else "timeout",
            batch_mean=seen.batch_mean,
            busy=seen.busy if kept_up else busy,
            per_engine_s=per_engine,
            p50_ns=seen.latency(0.5) if kept_up else float("inf"),
            p99_ns=seen.latency(0.99) if kept_up else float("inf"),
        )

    return expect
