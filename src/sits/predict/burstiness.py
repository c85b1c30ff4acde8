"""Burstiness of arrivals, and whether a formula that assumes Poisson arrivals may be believed.

Two measures, both 1 for Poisson arrivals:

    CV      = standard deviation / mean of the gaps between arrivals         sees neighbours only
    IDC(w)  = Var[N] / E[N], N = arrivals in a window of w seconds           sees everything up to w

A curve of IDC over windows is needed because one number hides the scale: Azure's conversation trace has a CV of
1.09 and an IDC(60 s) of 16, since its rate wanders; a queue near saturation remembers minutes and feels the 16.

The test: with m disjoint windows and Poisson arrivals (m - 1) * IDC is chi-square with m - 1 degrees of freedom
(Fisher's dispersion test; quantiles by Wilson and Hilferty 1931), and the CV of n gaps is normal around 1 with standard
deviation 1 / sqrt(n).  `BAND` of each measure is what Poisson arrivals show in 99 % of series, all windows taken
together (Bonferroni).  Long series leave the band by amounts that no queue feels, so a verdict against Poisson
also needs an effect: IDC or CV outside 0.8 .. 1.25.

Recorded times are often rounded (a trace in steps of 3 s); all requests of a step then look simultaneous, and short windows
show the rounding instead of bursts.  The share of arrivals whose time is that of another is told, and said.

Rules: windows follow 1-2-5; each holds one arrival on average or more, and the series holds `WINDOWS_LEAST` of it or
more, because a variance of a dozen numbers is none.  Times are sorted first; only their differences matter.

Deliberately absent: what to do about bursts (policies), the detection of one burst (`policy.burst`), and models
that generate such arrivals (`bench.arrivals`).
"""

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from sits.core.errors import ConfigError

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

GAPS_LEAST = 100
WINDOWS_LEAST = 20
FALSE_SHARE = 0.01
"""Poisson series that leave their bands by chance."""

FELT = (0.8, 1.25)
"""Dispersion outside this moves the wait of a busy queue by more than about a tenth."""

TIED_SAID = 0.05

_DEFINITIONS = (
    "CV: standard deviation / mean of the gaps between arrivals; IDC(w): variance / mean of the number of arrivals "
    "in disjoint windows of w seconds; both are 1 for Poisson arrivals. Poisson range: where 99 % of Poisson series "
    "of this length lie, all rows together."
)


class Dispersion(msgspec.Struct, frozen=True):
    """IDC at one window, and the range Poisson arrivals would show there.

    >>> Dispersion(window_s=60.0, windows=58, idc=16.1, poisson_low=0.4, poisson_high=1.9).beyond
    1
    """

    window_s: float
    windows: int
    idc: float
    poisson_low: float
    poisson_high: float

    @property
    def beyond(self) -> int:
        """+1 more variable than Poisson arrivals, -1 less, 0 neither: by the test and by the effect."""
        return _beyond(self.idc, self.poisson_low, self.poisson_high)


class Burstiness(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a series of arrivals before anything is assumed about it.

    Attributes:
        arrivals, span_s, rate_per_s: how many, over what time, and gaps divided by that time.
        cv, cv_poisson_low, cv_poisson_high: CV of the gaps, and its range for Poisson arrivals.
        tied: share of arrivals with exactly the time of the one before: a rounded clock.
        idc: the IDC curve, by window; empty when the series is too short for any.
        verdict: `poisson`, `bursty`, `regular` or `unknown` (too few arrivals).
        reason: the verdict as one sentence with its number, and what follows for a prediction.

    """

    arrivals: int
    span_s: float
    rate_per_s: float
    cv: float
    cv_poisson_low: float
    cv_poisson_high: float
    tied: float
    idc: tuple[Dispersion, ...]
    verdict: str
    reason: str

    @property
    def poisson(self) -> bool:
        """Whether a formula for Poisson arrivals may be used without a warning."""
        return self.verdict == "poisson"

    def idc_at(self, window_s: float) -> float:
        """IDC at any window, linear in log(window) between measured ones, constant outside; CV^2 when there is no curve."""
        if not self.idc:
            return self.cv**2
        logs = [math.log(row.window_s) for row in self.idc]
        return float(np.interp(math.log(max(window_s, 1e-12)), logs, [row.idc for row in self.idc]))


def burstiness(arrivals_s: "ArrayLike", windows_s: Sequence[float] | None = None) -> Burstiness:
    """Measure arrivals given as times in seconds (any origin, any order).

    >>> import numpy as np
    >>> dice = np.random.Generator(np.random.PCG64(7))
    >>> burstiness(np.cumsum(dice.exponential(0.2, 20_000))).verdict
    'poisson'
    >>> b = burstiness(np.cumsum(dice.gamma(0.25, 0.8, 20_000)))             # the same rate, CV 2
    >>> b.verdict, round(b.rate_per_s, 1), round(b.cv, 1), round(b.idc_at(10.0), 1)
    ('bursty', 5.0, 2.0, 4.2)
    >>> burstiness(np.arange(2_000) / 5.0).verdict
    'regular'

    Raises:
        ConfigError: a time that is no finite number, or a window that is not above zero.

    """
    times = _checked(arrivals_s)
    gaps = np.diff(times)
    span = float(times[-1] - times[0]) if len(times) else 0.0
    if len(gaps) < GAPS_LEAST or span <= 0.0:
        return _too_few(len(times), span, gaps)
    rate = len(gaps) / span
    windows = _windows(span, rate) if windows_s is None else _asked(windows_s, span)
    sure = NormalDist().inv_cdf(1.0 - FALSE_SHARE / (len(windows) + 1) / 2.0)
    curve = tuple(_dispersion(times, window, sure) for window in windows)
    cv = float(gaps.std(ddof=1) / gaps.mean())
    half = sure / math.sqrt(len(gaps))
    verdict, reason = _verdict(cv, half, curve)
    return Burstiness(
        arrivals=len(times),
        span_s=span,
        rate_per_s=rate,
        cv=cv,
        cv_poisson_low=1.0 - half,
        cv_poisson_high=1.0 + half,
        tied=float((gaps == 0.0).mean()),
        idc=curve,
        verdict=verdict,
        reason=reason,
    )


def burstiness_text(found: Burstiness) -> str:
    """The report people read: definitions, the curve, and the verdict.

    >>> import numpy as np
    >>> print(burstiness_text(burstiness(np.arange(500) / 5.0)).splitlines()[0])
    arrivals  500 in 99.8 s, 5 a second
    """
    lines = [
        f"arrivals  {found.arrivals:,} in {found.span_s:,.6g} s, {found.rate_per_s:.4g} a second",
        f"{'measure':<14}{'value':>9}   {'Poisson range':<16}{'windows':>8}",
        f"{'CV of gaps':<14}{found.cv:>9.3g}   {_range(found.cv_poisson_low, found.cv_poisson_high):<16}{'':>8}",
    ]
    lines += [
        f"{f'IDC({row.window_s:g} s)':<14}{row.idc:>9.3g}   {_range(row.poisson_low, row.poisson_high):<16}"
        f"{row.windows:>8,}" + {1: "  above", -1: "  below", 0: ""}[row.beyond]
        for row in found.idc
    ]
    if found.tied > TIED_SAID:
        lines.append(
            f"note      {found.tied:.0%} of arrivals have the same time as the one before: a rounded clock, or batches; "
            "short windows show it"
        )
    return "\n".join([*lines, f"verdict   {found.verdict}: {found.reason}", _DEFINITIONS])


def _range(low: float, high: float) -> str:
    return f"{low:.2f} .. {high:.2f}" if math.isfinite(low) else "-"


def _checked(arrivals_s: "ArrayLike") -> "NDArray[np.float64]":
    times = np.sort(np.asarray(arrivals_s, np.float64).ravel())
    if len(times) and not np.isfinite(times).all():
        raise ConfigError(
            f"{int((~np.isfinite(times)).sum())} arrival times are no finite numbers",
            field="arrivals_s",
            hint="give seconds; leave out requests without an arrival time",
        )
    return times


def _asked(windows_s: Sequence[float], span: float) -> list[float]:
    for window in windows_s:
        if not (window > 0.0 and math.isfinite(window)):
            raise ConfigError(
                f"a window of {window!r} s", field="windows_s", value=window, hint="give seconds above zero"
            )
    return sorted({float(window) for window in windows_s if span >= WINDOWS_LEAST * window})


def _windows(span: float, rate: float) -> list[float]:
    """1-2-5 from the mean gap up to a `WINDOWS_LEAST`-th of the series."""
    low, high = 1.0 / rate, span / WINDOWS_LEAST
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(max(high, low))) + 1)
    # Products of a power of ten are rounded so that 0.2 is 0.2 and not 0.20000000000000001.
    steps = [float(f"{step * 10.0**power:.6g}") for power in powers for step in (1, 2, 5)]
    return [window for window in steps if low <= window <= high]


def _dispersion(times: "NDArray[np.float64]", window: float, sure: float) -> Dispersion:
    whole = int((times[-1] - times[0]) / window)  # the last, partial window is left out
    index = ((times[1:] - times[0]) / window).astype(np.int64)
    counts = np.bincount(index[index < whole], minlength=whole)
    freedom = whole - 1
    mean = float(counts.mean())
    # An arrival on the very end of the last whole window may leave none inside.
    idc = float(counts.var(ddof=1)) / mean if mean > 0.0 else 0.0
    low, high = (_chi2(freedom, z) / freedom for z in (-sure, sure))
    return Dispersion(window_s=window, windows=whole, idc=idc, poisson_low=low, poisson_high=high)


def _chi2(freedom: int, z: float) -> float:
    """The chi-square quantile whose normal score is `z` (Wilson and Hilferty: within 1 % from 20 degrees of freedom)."""
    part = 2.0 / (9.0 * freedom)
    return float(freedom * max(0.0, 1.0 - part + z * math.sqrt(part)) ** 3)


def _beyond(value: float, low: float, high: float) -> int:
    return 1 if value > max(high, FELT[1]) else -1 if value < min(low, FELT[0]) else 0


def _verdict(cv: float, half: float, curve: Sequence[Dispersion]) -> tuple[str, str]:
    over = [row for row in curve if row.beyond > 0]
    under = [row for row in curve if row.beyond < 0]
    gaps = _beyond(cv, 1.0 - half, 1.0 + half)
    if over or gaps > 0:
        most = max(over, key=lambda row: row.idc, default=None)
        seen = f"IDC({most.window_s:g} s) is {most.idc:.3g}" if most else f"the CV of gaps is {cv:.3g}"
        first = f", from windows of {over[0].window_s:g} s up" if over and gaps <= 0 else ""
        return "bursty", (
            f"{seen} where Poisson arrivals have 1{first}: a queue predicted for Poisson arrivals at this rate has too "
            "short a tail; replay these arrivals, or use their IDC"
        )
    if under or gaps < 0:
        least = min(under, key=lambda row: row.idc, default=None)
        seen = f"IDC({least.window_s:g} s) is {least.idc:.3g}" if least else f"the CV of gaps is {cv:.3g}"
        return "regular", (
            f"{seen} where Poisson arrivals have 1: steadier than Poisson, whose queue is an upper bound; a load generator "
            "with fixed gaps or a closed loop looks like this"
        )
    if not curve:
        return "unknown", "the series is too short for any window; record more, and assume nothing"
    return "poisson", (
        f"no window up to {curve[-1].window_s:g} s tells these arrivals from Poisson; slower changes of the rate are not seen"
    )


def _too_few(arrivals: int, span: float, gaps: "NDArray[np.float64]") -> Burstiness:
    mean = float(gaps.mean()) if len(gaps) else 0.0
    return Burstiness(
        arrivals=arrivals,
        span_s=span,
        rate_per_s=len(gaps) / span if span > 0.0 else 0.0,
        cv=float(gaps.std() / mean) if mean > 0.0 else 0.0,
        cv_poisson_low=-math.inf,
        cv_poisson_high=math.inf,
        tied=float((gaps == 0.0).mean()) if len(gaps) else 0.0,
        idc=(),
        verdict="unknown",
        reason=f"{arrivals} arrivals are too few to know: {GAPS_LEAST + 1} spread over time are needed; assume nothing",
    )
