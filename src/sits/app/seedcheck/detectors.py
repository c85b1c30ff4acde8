"""Detectors of bursts and drift: E22 to E26, each run on arrivals drawn here.

Deliberately absent: the detectors of the product (`sits.policy.burst`), but for the one that is compared with.
"""

import math
from statistics import NormalDist

from sits.app.seedcheck.entry import Check, Derived, Entry, near

HOURS = 4
RATE = 5.5


def _counts(hours: int = HOURS) -> list[int]:
    """Poisson counts of one second each."""
    from sits.world import stream_generator  # noqa: PLC0415

    return [int(n) for n in stream_generator(7, "seedcheck").poisson(RATE, hours * 3600)]


def _as_published(counts: list[int], z: float = 2.5, share: float = 0.2, memory: int = 60) -> int:
    """Alarms of a moving average that is updated first and compared afterwards, with the deviation of the last minute."""
    mean, alarms = float(counts[0]), 0
    for i in range(memory, len(counts)):
        mean += share * (counts[i] - mean)
        window = counts[i - memory : i]
        middle = sum(window) / memory
        deviation = math.sqrt(sum((n - middle) ** 2 for n in window) / memory)
        alarms += deviation > 0 and abs(counts[i] - mean) / deviation > z
    return alarms


def _e22() -> Derived:
    share, mean, seen, sd = 0.2, 10.0, 20.0, 3.0
    before = seen - mean
    mean += share * before
    after = seen - mean
    acts = 2.5 * before / after
    return Derived(
        f"compare, then update; updated first, a limit of 2.5 acts as {acts:.3f}",
        (
            f"20 where 10 was expected: the innovation is {before:g}, after the update only {after:g} is left",
            f"in standard deviations of {sd:g}: {before / sd:.2f} becomes {after / sd:.2f}",
        ),
        (
            Check("what is left is 1 - alpha of the innovation", near(after / before, 1 - share, 1e-9)),
            Check("the limit is silently raised by a quarter", near(acts, 3.125, 1e-9)),
        ),
    )


def _e23() -> Derived:
    counts = _counts(1)
    zero = sum(abs(n - RATE) > 2.5 * 0.0 for n in counts) / len(counts)
    quiet = math.sqrt(1.0)  # the deviation measured when one request a second came
    stale = sum(abs(n - RATE) > 2.5 * quiet for n in counts) / len(counts)
    fresh = sum(abs(n - RATE) > 2.5 * math.sqrt(RATE) for n in counts) / len(counts)
    return Derived(
        f"sqrt(mean x IDC) follows the rate: {fresh:.1%} alarms, against {stale:.0%} with a stale deviation",
        (
            f"standard deviation left at 0: {zero:.0%} of the seconds alarm",
            f"that of 1 request a second, at {RATE} a second: {stale:.0%}; that of the present rate: {fresh:.1%}",
        ),
        (
            Check("at 0 every count alarms", zero > 0.99),
            Check("a stale one alarms in more than a tenth of all seconds", stale > 0.1),
            Check("one that is kept up to date hardly ever", fresh < 0.03),
        ),
    )


def _e24() -> Derived:
    normal = NormalDist()
    inside = 2 * normal.cdf(2.5) - 1
    each_hour, acting = (3600 * 2 * (1 - normal.cdf(z)) for z in (2.5, 3.125))
    seen = _as_published(_counts()) / HOURS
    return Derived(
        f"{inside:.2%} two-sided (99 % is {normal.inv_cdf(0.995):.3f}): {each_hour:.1f} false alarms an hour",
        (
            f"one test a second: {each_hour:.1f} an hour if counts were normal, {acting:.1f} at the limit it acts with (E22)",
            f"run on Poisson counts of {RATE} a second: {seen:.0f} an hour, for counts are skewed and a minute's deviation is uncertain",
        ),
        (
            Check("2.5 is not 99 %", near(inside, 0.9876, 1e-4)),
            Check("44.7 alarms an hour, none of them a burst", near(each_hour, 44.7)),
            Check("in fact more than at its effective limit, every hour", seen > 2 * acting),
        ),
    )


def _e25() -> Derived:
    import numpy as np  # noqa: PLC0415

    from sits.bench.arrivals import OnOff  # noqa: PLC0415
    from sits.policy.burst import Cusum  # noqa: PLC0415
    from sits.predict.burstiness import burstiness  # noqa: PLC0415
    from sits.world import stream_generator  # noqa: PLC0415

    times = np.cumsum(OnOff().gaps_s(stream_generator(2, "seedcheck"), 9_000))
    counts = np.bincount(times.astype(np.int64)).tolist()
    hours = len(counts) / 3600
    published = _as_published(counts) / hours
    detector = Cusum()
    ours = sum(detector.step(n) != 0 for n in counts) / hours
    calm = Cusum()
    quiet = sum(calm.step(n) != 0 for n in _counts()) / HOURS
    idc = burstiness(times, windows_s=[1.0]).idc[0].idc
    return Derived(
        f"a CUSUM with over-dispersion: {quiet:.1f} alarms an hour on Poisson; |x - mean| had {_as_published(_counts()) / HOURS:.0f}",
        (
            f"IDC(1 s) of bursty traffic is {idc:.0f}, so counts deviate {math.sqrt(idc):.1f} times as far as assumed",
            f"alarms an hour on it: {published:.0f} by |x - mean|, {ours:.0f} by the CUSUM",
        ),
        (
            Check("counts are over-dispersed", idc > 4),
            Check("it alarms at least twice as often as the CUSUM on bursty traffic", published > 2 * ours),
            Check("and on traffic without any burst the CUSUM is quiet", quiet < 1.0),
        ),
    )


def _e26() -> Derived:
    def most(n: int, sample: bool) -> float:
        """|z| of one enormous value among n - 1 zeros, which is the largest there can be."""
        values = [0.0] * (n - 1) + [1e9]
        mean = sum(values) / n
        spread = math.sqrt(sum((v - mean) ** 2 for v in values) / (n - sample))
        return (values[-1] - mean) / spread

    silent = {sample: max(n for n in range(2, 60) if most(n, sample) < 2.5) for sample in (True, False)}
    bounds = {n: (n - 1) / math.sqrt(n) for n in (5, 8)}
    return Derived(
        f"it can never fire in windows of up to {silent[True]} values ({silent[False]} with the population's deviation)",
        (
            f"a value inside its own window has |z| <= (n - 1) / sqrt(n): {bounds[5]:.2f} for 5, {bounds[8]:.2f} for 8",
            f"tried with a value of 10^9 among zeros: {most(5, True):.2f} and {most(8, True):.2f}",
        ),
        (
            Check("the bound is reached and not passed", near(most(8, True), bounds[8], 1e-6)),
            Check(
                "at 2.5, eight values cannot alarm and nine can", silent[True] == 8 and most(9, True) > 2.5
            ),
        ),
    )


ENTRIES = (
    Entry("E22", "update, then compare", "The average takes in the new value, then the deviation from it is tested against 2.5.",
          "arithmetic", _e22),
    Entry("E23", "a fixed deviation", "The standard deviation is passed in once and stays.", "Poisson counts drawn here", _e23),
    Entry("E24", "2.5 is 99 %", "A limit of Z = 2.5 means 99 % confidence.", "normal distribution; Poisson counts drawn here", _e24),
    Entry("E25", "deviations of counts", "A burst is when |x - mean| of requests a second is large.",
          "sits.policy.burst.Cusum, sits.bench.arrivals.OnOff", _e25),
    Entry("E26", "drift within the window", "Drift is when the z-score of the last value in its window exceeds 2.5.",
          "arithmetic", _e26),
)  # fmt: skip
