"""Detectors of a change in the rate of arrivals: signed, on counts of equal spans of time.

Each takes one count a check and says +1 (a rise), -1 (a fall) or 0.

`Cusum` (the default) adds up the log-likelihood ratio of "the rate is now r times what it was" against "it is what it was",
for Poisson counts, and starts again at zero whenever the sum is below (Page 1954; Lucas 1985 for counts).  With n arrivals in
a span that used to bring mu, over-dispersion D and r = RATIO:

    up   = max(0, up   + (  n ln r - (r - 1)   mu) / D)          alarm at THRESHOLD
    down = max(0, down + (- n ln r + (1 - 1/r) mu) / D)

D = max(1, Var / mean) is the index of dispersion of the counts themselves: real arrivals are burstier than Poisson, and the
same excess says less there.  mu and D are means over the last MEMORY spans that *exclude* the newest LAG: a reference that
contains what it judges follows every burst half way.  After an alarm both begin again from the spans since the
sum left zero, which is when the change most likely began.

`EwmaZ` is the reference of the field: |n - mean| against Z standard deviations, exponentially weighted, compared *before*
the newest count enters either.  Compared after, a deviation shows only its (1 - SHARE)th part, and Z = 2.5 acts as 3.1.

`Checks` makes counts of arrival times, in spans of CHECK_NS that begin at the first arrival, so that only differences of times
matter.

Judged at equal false-alarm rates by `benchmarks/bench_detectors.py`.

Deliberately absent: what to do about a change (`policy.pace`), and seasons: a detector that knows the time of day needs weeks.
"""

from collections import deque
from math import log, sqrt
from typing import Protocol

from sits.core.units import SECOND

CHECK_NS = SECOND
"""A check a second, the span the figures of this module were measured with."""

RATIO = 1.75
"""The step the sum is most sensitive to; others from 1.35 up are found as well, only later."""

THRESHOLD = 10.0
"""About one false alarm a day of Poisson arrivals, at any rate (0.01 to 0.06 an hour, measured)."""

LAG, MEMORY = 10, 240
LEARN_SPANS, LEARN_ARRIVALS = 20, 100
"""A reference of fewer spans or arrivals is too uncertain to judge by: 100 arrivals know their rate to 10 %."""

SILENCE_SPANS = 120
"""After so long without anybody, what was known of the rate is forgotten."""

SHARE, Z = 0.2, 2.5
EWMA_LEARN_SPANS = 10


class Detector(Protocol):
    """Judges one count after the other."""

    def step(self, count: int) -> int:
        """+1 for a rise, -1 for a fall, 0 for neither."""


class Cusum:
    """Signed CUSUM on counts, with its own reference and over-dispersion.

    >>> detector = Cusum()
    >>> calm = [detector.step(count) for count in (9, 11, 10, 12, 8) * 8]
    >>> any(calm), [detector.step(20) for _ in range(4)], [detector.step(count) for count in (9, 11, 10)]
    (False, [0, 0, 1, 0], [0, 0, 0])
    """

    def __init__(self, ratio: float = RATIO, threshold: float = THRESHOLD) -> None:
        self.threshold = threshold
        self._log = log(ratio)
        self._rise, self._fall = ratio - 1.0, 1.0 - 1.0 / ratio
        self.up = self.down = 0.0
        self._since_up = self._since_down = 0
        self.mean = self.variance = 0.0
        self._spans = self._arrivals = 0
        self._recent: deque[int] = deque()

    @property
    def dispersion(self) -> float:
        """Variance over mean of the counts, at least 1."""
        return max(1.0, self.variance / self.mean) if self.mean else 1.0

    def step(self, count: int) -> int:
        """Judge one count, then let the one LAG spans ago into the reference."""
        recent = self._recent
        recent.append(count)
        alarm = 0
        if self._spans >= LEARN_SPANS and self._arrivals >= LEARN_ARRIVALS:
            alarm = self._judge(count)
            if alarm:
                self._begin_again(self._since_up if alarm > 0 else self._since_down)
                return alarm
        if len(recent) > LAG:
            self._learn(recent.popleft())
        return alarm

    def _judge(self, count: int) -> int:
        said, over = count * self._log, self.dispersion
        self.up = max(0.0, self.up + (said - self._rise * self.mean) / over)
        self.down = max(0.0, self.down + (self._fall * self.mean - said) / over)
        self._since_up = self._since_up + 1 if self.up else 0
        self._since_down = self._since_down + 1 if self.down else 0
        return 1 if self.up >= self.threshold else -1 if self.down >= self.threshold else 0

    def _learn(self, count: int) -> None:
        self._spans += 1
        self._arrivals += count
        share = 1.0 / min(self._spans, MEMORY)
        off = count - self.mean
        self.variance = (1.0 - share) * (self.variance + share * off * off)
        self.mean += share * off

    def _begin_again(self, spans: int) -> None:
        """The reference becomes the `spans` newest counts, over-dispersed as before."""
        over = self.dispersion
        since = list(self._recent)[-spans:]
        self._recent.clear()
        self._spans, self._arrivals = len(since), sum(since)
        self.mean = self._arrivals / len(since)
        self.variance = over * self.mean
        self.up = self.down = 0.0
        self._since_up = self._since_down = 0


class EwmaZ:
    """Exponentially weighted mean and variance, and a limit in standard deviations.

    >>> detector = EwmaZ()
    >>> calm = [detector.step(count) for count in (9, 11, 10, 12, 8) * 8]
    >>> any(calm), detector.step(20), detector.step(1)
    (False, 1, -1)
    """

    def __init__(self, limit: float = Z, share: float = SHARE) -> None:
        self.limit = limit
        self._share = share
        self.mean = self.variance = 0.0
        self._spans = 0

    def score(self, count: int) -> float:
        """How many standard deviations `count` is off the mean before it; 0 while that is being learnt."""
        if self._spans < EWMA_LEARN_SPANS:
            return 0.0
        off = count - self.mean
        return off / sqrt(self.variance) if self.variance else 0.0

    def step(self, count: int) -> int:
        """Judge one count, then let it in."""
        score = self.score(count)
        self._spans += 1
        share = max(self._share, 1.0 / self._spans)
        off = count - self.mean
        self.variance = (1.0 - share) * (self.variance + share * off * off)
        self.mean += share * off
        return 1 if score > self.limit else -1 if score < -self.limit else 0


DETECTORS: dict[str, type[Cusum] | type[EwmaZ]] = {"cusum": Cusum, "ewma": EwmaZ}


class Checks:
    """Arrival times made into counts for a detector.

    >>> checks = Checks(Cusum)
    >>> [checks.arrived(i * 100_000_000) for i in range(12)]
    [None, None, None, None, None, None, None, None, None, None, (0,), None]
    """

    def __init__(self, make: type[Cusum] | type[EwmaZ]) -> None:
        self._make = make
        self.detector: Detector = make()
        self._ends_ns = self._count = 0

    def arrived(self, now_ns: int) -> tuple[int, ...] | None:
        """Count an arrival; the verdicts on the spans that ended before it, None where none did."""
        if now_ns < self._ends_ns:
            self._count += 1
            return None
        if not self._ends_ns:
            self._ends_ns, self._count = now_ns + CHECK_NS, 1
            return None
        ended = 1 + (now_ns - self._ends_ns) // CHECK_NS
        self._ends_ns += ended * CHECK_NS
        step = self.detector.step
        said = (step(self._count), *(step(0) for _ in range(min(ended, SILENCE_SPANS) - 1)))
        if ended > SILENCE_SPANS:
            self.detector = self._make()
        self._count = 1
        return said
