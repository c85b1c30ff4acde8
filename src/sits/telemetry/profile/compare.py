"""Where slow requests spend CPU time that others do not: shares of the two, their difference, and whether it can be told from chance.

A share is that of a group's sampled CPU time.  Samples of one request are no independent witnesses, so requests are the units: the share is a
ratio of sums over requests, its variance that of the linearised ratio

    p = sum x_i / sum n_i        var p = m / (m - 1) * sum (x_i - p n_i)^2 / (sum n_i)^2

(Cochran, Sampling Techniques, 3rd ed., section 2.11; x_i: the request's CPU ns in the function, n_i: all of its CPU ns, m requests with a
sample).  Where a function was seen in none of a group or in nothing else, that of m yes-or-no answers with one of each added stands in
for it (Laplace): never seen is not never there.  The interval is the normal one, so wide that all functions' intervals together hold with 95 %
(Bonferroni, over the functions seen `SEEN_MIN` times): of a hundred functions five would differ by chance alone.

Rules: samples without a trace belong to no group; below `REQUESTS_MIN` sampled requests a group says nothing, and that is said.

Deliberately absent: causes.  A function may be large because its requests are slow for another reason.
"""

from collections.abc import Callable, Mapping
from math import sqrt
from statistics import NormalDist

import msgspec

from sits.telemetry.profile.profile import Frame, Profile
from sits.telemetry.profile.tree import Node, functions

REQUESTS_MIN = 20
"""Sampled requests a group needs; below, the normal interval is no approximation."""

SEEN_MIN = 5
"""Sightings a function needs to be counted among those that are compared."""

Z95 = 1.959963984540054


class Group(msgspec.Struct, frozen=True):
    """CPU ns by request of all the group's samples, how often they were seen."""

    traces: Mapping[str, int]
    count: int

    @property
    def ns(self) -> int:
        """Sampled CPU time."""
        return sum(self.traces.values())


class Difference(msgspec.Struct, frozen=True):
    """One function or node: its shares, 0..1, and their difference with an interval; sightings behind each."""

    frame: Frame
    slow: float
    rest: float
    low: float
    high: float
    slow_count: int
    rest_count: int

    @property
    def value(self) -> float:
        """Slow less rest."""
        return self.slow - self.rest

    @property
    def told(self) -> bool:
        """Whether it can be told from chance."""
        return self.low > 0 or self.high < 0


class Comparison(msgspec.Struct, frozen=True):
    """Both groups, as profiles; differences by function, the largest first; `why_not` says why there are none; `z`: width of the intervals."""

    slow: Profile
    rest: Profile
    differences: tuple[Difference, ...] = ()
    why_not: str = ""
    z: float = Z95


def compare(profile: Profile, is_slow: Callable[[str], bool | None]) -> Comparison:
    """The slow requests' samples against the others'; `is_slow` tells of a trace, None for one of neither."""
    slow = profile.only(lambda sample: bool(sample.labels.trace) and is_slow(sample.labels.trace) is True)
    rest = profile.only(lambda sample: bool(sample.labels.trace) and is_slow(sample.labels.trace) is False)
    groups = group_of(slow), group_of(rest)
    for name, group in zip(("slow", "other"), groups, strict=True):
        if len(group.traces) < REQUESTS_MIN:
            said = (
                f"{len(group.traces)} {name} request{' was' if len(group.traces) == 1 else 's were'} sampled ({group.count} samples); "
                f"telling them apart needs {REQUESTS_MIN}: look at a longer window or sample faster"
            )
            return Comparison(slow, rest, (), said)
    in_slow, in_rest = functions(slow), functions(rest)
    z = together(
        sum(_seen(in_slow.get(frame)) + _seen(in_rest.get(frame)) >= SEEN_MIN for frame in in_slow | in_rest)
    )
    found = [
        difference(frame, in_slow.get(frame), in_rest.get(frame), *groups, z) for frame in in_slow | in_rest
    ]
    found.sort(key=lambda one: (not one.told, -abs(one.value), one.frame))
    return Comparison(slow, rest, tuple(found), z=z)


def together(count: int) -> float:
    """Half width of an interval, in standard deviations, of which `count` hold together with 95 %.

    >>> round(together(1), 2), round(together(100), 2)
    (1.96, 3.48)
    """
    return NormalDist().inv_cdf(1 - 0.025 / max(1, count))


def _seen(node: Node | None) -> int:
    return 0 if node is None else node.count


def group_of(profile: Profile) -> Group:
    """All requests of a profile."""
    traces: dict[str, int] = {}
    for sample in profile.samples:
        traces[sample.labels.trace] = traces.get(sample.labels.trace, 0) + sample.ns
    return Group(traces, profile.count)


def difference(
    frame: Frame, slow: Node | None, rest: Node | None, slows: Group, rests: Group, z: float = Z95
) -> Difference:
    """Of one node, in the one tree, in the other, or in both."""
    p, p_var, p_count = _share(slow, slows)
    q, q_var, q_count = _share(rest, rests)
    half = z * sqrt(p_var + q_var)
    return Difference(frame, p, q, p - q - half, p - q + half, p_count, q_count)


def _share(node: Node | None, group: Group) -> tuple[float, float, int]:
    """Share, its variance, sightings."""
    parts = {} if node is None else node.traces
    total, m = group.ns, len(group.traces)
    p = sum(parts.values()) / total
    squares = p * p * sum(n * n for n in group.traces.values())
    for trace, x in parts.items():
        n = group.traces[trace]
        squares += (x - p * n) ** 2 - (p * n) ** 2
    spread = m / (m - 1) * max(0.0, squares) / total**2
    plain = (len(parts) + 1) / (m + 2)
    return (
        p,
        max(spread, plain * (1 - plain) / m if p in (0.0, 1.0) else 0.0),
        0 if node is None else node.count,
    )
