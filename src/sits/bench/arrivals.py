"""Arrival processes: when requests come.  Each takes dice and a count, and gives gaps in seconds.

Rules: an arrival process knows nothing of lengths, engines or clocks; the same generator state gives the same
gaps.  How bursty they came out is measured, never assumed (`sits.predict.burstiness`).

`OnOff` is the shape of LLM traffic that pages people: bursts of log-normal size, inside a burst a mixture of
near-simultaneous pairs and a steady pace that differs from burst to burst, between bursts log-normal silences.
Its default figures are fitted to the Azure 2023 "code" trace by `tools/fit_workload.py` (CC-BY-4.0,
Patel et al., Splitwise, ISCA'24); `docs/accuracy-workload.md` holds the fit's residuals.

Deliberately absent: time compression.  Load is scaled by thinning or by superposing, because squeezing time
squeezes the bursts too.
"""

import math
import statistics
from typing import Annotated

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from sits.core.units import Share

Floats = NDArray[np.float64]
LogMean = Annotated[float, Meta(ge=-20, le=10)]
LogSd = Annotated[float, Meta(ge=0, le=5)]


class OnOff(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="on_off", forbid_unknown_fields=True
):
    """Bursts and silences.  `*_log_mean`, `*_log_sd` are those of the natural logarithm; gaps in seconds.

    `keep` thins the process: each arrival survives with this probability.
    """

    burst_size_log_mean: LogMean = 3.291
    burst_size_log_sd: LogSd = 1.425
    burst_size_max: Annotated[int, Meta(ge=1, le=100_000)] = 575
    pair_share: Share = Share(0.439)
    pair_gap_log_mean: LogMean = -6.654
    pair_gap_log_sd: LogSd = 1.719
    pace_gap_log_mean: LogMean = -2.098
    pace_gap_log_sd: LogSd = 0.703
    pace_spread_log_sd: LogSd = 0.9
    silence_log_mean: LogMean = 1.713
    silence_log_sd: LogSd = 1.474
    keep: Annotated[float, Meta(ge=0.001, le=1)] = 1.0

    def gaps_s(self, rng: np.random.Generator, count: int) -> Floats:
        """`count` inter-arrival gaps in seconds, shape (count,); the first is a silence."""
        times: list[Floats] = []
        now_s, made = 0.0, 0
        while made < count:
            for size, pace, silence in _spread_normals(rng, BLOCK_BURSTS):
                burst = now_s + np.cumsum(self._burst(rng, float(size), float(pace), float(silence)))
                now_s = float(burst[-1])
                times.append(burst[rng.random(len(burst)) < self.keep] if self.keep < 1.0 else burst)
                made += len(times[-1])
        return np.diff(np.concatenate(times)[:count], prepend=0.0)

    def _burst(self, rng: np.random.Generator, size_z: float, pace_z: float, silence_z: float) -> Floats:
        """The gaps of one burst, its silence first; the `_z` are standard normal."""
        drawn = math.exp(self.burst_size_log_mean + self.burst_size_log_sd * size_z)
        size = int(np.clip(round(drawn), 1, self.burst_size_max))
        pair = rng.random(size) < self.pair_share
        gaps = np.where(
            pair,
            rng.lognormal(self.pair_gap_log_mean, self.pair_gap_log_sd, size),
            rng.lognormal(self.pace_gap_log_mean, self.pace_gap_log_sd, size),
        ) * math.exp(self.pace_spread_log_sd * pace_z)
        gaps[0] = math.exp(self.silence_log_mean + self.silence_log_sd * silence_z)
        return gaps


BLOCK_BURSTS = 12


def _spread_normals(rng: np.random.Generator, count: int) -> Floats:
    """`count` rows of three standard normals by Latin hypercube: each column has one value in each 1/count of its range.

    Bursts are drawn this way so that a run of a dozen of them has its share of large, of fast and of late ones:
    every marginal distribution is what it was, and runs differ less from each other.  (McKay, Beckman and
    Conover 1979.)
    """
    places = np.array([rng.permutation(count) for _ in range(3)]).T
    uniform = (places + rng.random((count, 3))) / count
    inverse = statistics.NormalDist().inv_cdf
    return np.array([[inverse(min(max(u, 1e-12), 1.0 - 1e-12)) for u in row] for row in uniform.tolist()])


class Gamma(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="gamma", forbid_unknown_fields=True
):
    """Independent gamma gaps: `rate` requests a second with inter-arrival CV `cv` (1 = Poisson, 0 = a metronome)."""

    rate: Annotated[float, Meta(gt=0, le=100_000)]
    cv: Annotated[float, Meta(ge=0, le=100)] = 1.0

    def gaps_s(self, rng: np.random.Generator, count: int) -> Floats:
        """`count` inter-arrival gaps in seconds."""
        if self.cv == 0.0:
            return np.full(count, 1.0 / self.rate)
        shape = 1.0 / self.cv**2
        return rng.gamma(shape, 1.0 / (self.rate * shape), count)


Arrivals = OnOff | Gamma
