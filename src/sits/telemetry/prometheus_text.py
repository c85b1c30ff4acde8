"""The Prometheus text format, read from real engines: scrape -> series, deltas, quantile estimates.

Knows format 0.0.4 and the text of the OpenMetrics kind that Python and C++ clients send: `# TYPE` lines, labels with
escaped values, `NaN` and infinities, optional timestamps and exemplars (both ignored).  Tolerant where engines are sloppy:
comments, unknown `#` lines, missing TYPE, trailing spaces, CRLF, a missing last newline; strict where a guess would
invent a number: a line that is not a sample is an error with its number.  The last of two equal series wins.

Histograms: a quantile lies somewhere in one bucket, so the estimate carries the bucket as its bounds, linear inside it
(https://prometheus.io/docs/practices/histograms/#errors-of-quantile-estimation).  The mean is `sum / count` and exact.
A counter that went down was reset (the engine restarted): what it shows now is what happened since, and the delta says
so.  Deliberately absent: I/O, and any name of any engine (`core.engine_names`).
"""

import math
import re
from collections.abc import Iterator, Mapping, Set
from itertools import pairwise
from typing import NamedTuple

import msgspec

from sits.core.errors import EngineError

Labels = tuple[tuple[str, str], ...]
"""Label pairs in order of name."""

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL = re.compile(r'\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*(,|(?=\}))')
_ESCAPE = re.compile(r"\\(.)")
_ESCAPES = {"n": "\n", "\\": "\\", '"': '"'}
_COUNTING = frozenset({"counter", "histogram", "summary"})


class Sample(NamedTuple):
    """One series of one scrape."""

    name: str
    labels: Labels
    value: float


class Quantile(NamedTuple):
    """An estimated quantile and the bucket it lies in: `low <= true value <= high`."""

    value: float
    low: float
    high: float


class Histogram(msgspec.Struct, frozen=True):
    """Counts by bucket over some time.

    `bounds` are the buckets' upper bounds, ascending, the last `inf`; `counts` how many fell into each (not cumulated).
    `sum` and `count` are the series' own.
    """

    bounds: tuple[float, ...]
    counts: tuple[float, ...]
    sum: float
    count: float

    @property
    def mean(self) -> float | None:
        """Mean of what was observed, or None when nothing was."""
        return self.sum / self.count if self.count > 0 else None

    def quantile(self, q: float) -> Quantile | None:
        """Estimate of the `q` quantile, `0 <= q <= 1`; None when nothing was observed.

        In the last bucket there is no upper bound, so the estimate is its lower bound and `high` is infinite.
        """
        total = math.fsum(self.counts)
        if total <= 0:
            return None
        rank, before = q * total, 0.0
        low = 0.0 if self.bounds[0] > 0 else -math.inf
        last = max(i for i, count in enumerate(self.counts) if count > 0)
        for i, (high, count) in enumerate(zip(self.bounds, self.counts, strict=True)):
            if count > 0 and (before + count >= rank or i == last):
                if math.isinf(high) or math.isinf(low):
                    return Quantile(low if math.isinf(high) else high, low, high)
                return Quantile(low + (high - low) * max(0.0, min(1.0, (rank - before) / count)), low, high)
            before, low = before + count, high
        raise AssertionError("a positive total has a positive bucket")

    def scaled(self, factor: float) -> "Histogram":
        """The same observations in another unit, `factor` > 0 times as many."""
        bounds = tuple(bound * factor for bound in self.bounds)
        return Histogram(bounds, self.counts, self.sum * factor, self.count)

    def deviation_max(self) -> float:
        """The largest standard deviation that these bucket counts and this sum allow; 0 when nothing was observed.

        In a bucket `[a, b]` the mean square is at most the chord `(a + b) m - a b` of its mean `m`, so the bound puts
        what the sum has beyond all values at their lower ends into the highest buckets first.  Values below 0 are
        taken as 0.  The last bucket ends where a single value would use up the sum.
        """
        if self.count <= 0:
            return 0.0
        lows = (0.0, *(max(0.0, bound) for bound in self.bounds[:-1]))
        left = max(0.0, self.sum - math.fsum(n * low for n, low in zip(self.counts, lows, strict=True)))
        square = 0.0
        for n, low, bound in reversed(list(zip(self.counts, lows, self.bounds, strict=True))):
            high = low + left if math.isinf(bound) else max(low, bound)
            more = min(left, n * (high - low))
            square += (low + high) * (n * low + more) - n * low * high
            left -= more
        return math.sqrt(max(0.0, square / self.count - (self.sum / self.count) ** 2))


class Scrape(msgspec.Struct, frozen=True):
    """One page: every series, and the declared type of each family."""

    series: dict[tuple[str, Labels], float]
    types: dict[str, str] = {}
    by_name: dict[str, list[Sample]] = {}
    """The series again, by name: filled when first asked for, so that looking up many signals costs one pass."""

    @property
    def names(self) -> Set[str]:
        """Names of all series."""
        return self._named().keys()

    def _named(self) -> dict[str, list[Sample]]:
        if not self.by_name and self.series:
            for (name, labels), value in self.series.items():
                self.by_name.setdefault(name, []).append(Sample(name, labels, value))
        return self.by_name

    def samples(self, name: str, where: Mapping[str, str] | None = None) -> Iterator[Sample]:
        """The series called `name` whose labels include `where`."""
        wanted = set((where or {}).items())
        for sample in self._named().get(name, ()):
            if not wanted or wanted <= set(sample.labels):
                yield sample

    def total(self, name: str, where: Mapping[str, str] | None = None) -> float | None:
        """Sum over all series called `name` (replicas, label values); None when there is none."""
        values = [sample.value for sample in self.samples(name, where)]
        return math.fsum(values) if values else None

    def mean(self, name: str, where: Mapping[str, str] | None = None) -> float | None:
        """Mean over all series called `name`, for shares; None when there is none."""
        values = [sample.value for sample in self.samples(name, where)]
        return math.fsum(values) / len(values) if values else None

    def histogram(self, name: str, where: Mapping[str, str] | None = None) -> Histogram | None:
        """The histogram `name` summed over its series; None when there is none.

        Raises:
            EngineError: its cumulative buckets decrease, so it is no histogram.

        """
        cumulated: dict[float, float] = {}
        for sample in self.samples(f"{name}_bucket", where):
            bound = dict(sample.labels).get("le")
            if bound is not None:
                high = _number(bound)
                cumulated[high] = cumulated.get(high, 0.0) + sample.value
        count = self.total(f"{name}_count", where)
        if not cumulated or count is None:
            return None
        cumulated[math.inf] = max(cumulated.get(math.inf, 0.0), count)
        bounds = sorted(cumulated)
        counts = [cumulated[bounds[0]]]
        counts += [cumulated[high] - cumulated[low] for low, high in pairwise(bounds)]
        if min(counts) < 0:
            raise EngineError(
                f"the buckets of {name} decrease", field=name, hint="is this page from one engine?"
            )
        return Histogram(tuple(bounds), tuple(counts), self.total(f"{name}_sum", where) or 0.0, count)


class Delta(msgspec.Struct, frozen=True):
    """What happened between two scrapes: counting series as differences, all others as they stand at the end.

    `resets` are the families that went down in between: for them the difference is a lower bound.
    """

    scrape: Scrape
    resets: tuple[str, ...] = ()


def parse(text: str) -> Scrape:
    """Read one page.

    Raises:
        EngineError: a line is neither a comment nor a sample; says which.

    """
    series: dict[tuple[str, Labels], float] = {}
    types: dict[str, str] = {}
    for number, line in enumerate(text.split("\n"), start=1):
        line = line.strip()  # noqa: PLW2901
        if line.startswith("#"):
            words = line.split(None, 3)
            if len(words) == 4 and words[1] == "TYPE":
                types[words[2]] = words[3].strip().lower()
        elif line:
            sample = _sample(line, number)
            series[sample.name, sample.labels] = sample.value
    return Scrape(series, types)


def family(name: str, types: Mapping[str, str]) -> str:
    """The family a series belongs to: `x_bucket`, `x_sum`, `x_count` belong to histogram `x`."""
    if name in types:
        return name
    for suffix in ("_bucket", "_sum", "_count", "_total"):
        if name.endswith(suffix) and name.removesuffix(suffix) in types:
            return name.removesuffix(suffix)
    return name


def between(before: Scrape, after: Scrape) -> Delta:
    """What happened between two scrapes of one page.

    A histogram (or summary) of which any series went down was reset as a whole; when `process_start_time_seconds`
    moved, everything was.  A series that is new started at 0.
    """
    families = {name: family(name, after.types) for name in after.names}
    counting = {name for name, of in families.items() if _counts(name, after.types.get(of, ""))}
    started = [scrape.total("process_start_time_seconds") for scrape in (before, after)]
    restarted = None not in started and started[0] != started[1]
    resets = {
        families[name]
        for (name, labels), value in after.series.items()
        if name in counting
        and (restarted or (value < before.series.get((name, labels), 0.0) and not name.endswith("_sum")))
    }
    changed: dict[tuple[str, Labels], float] = {}
    for (name, labels), value in after.series.items():
        if name in counting and families[name] not in resets:
            changed[name, labels] = value - before.series.get((name, labels), 0.0)
        else:
            changed[name, labels] = value
    return Delta(Scrape(changed, after.types), tuple(sorted(resets)))


def _counts(name: str, kind: str) -> bool:
    """Whether a series only grows: by its declared type, by its suffix where none is declared."""
    return kind in _COUNTING or (not kind and name.endswith(("_total", "_bucket", "_count", "_sum")))


def _sample(line: str, number: int) -> Sample:
    name = _NAME.match(line)
    if name is None:
        raise _error(line, number, "no metric name")
    labels: dict[str, str] = {}
    at = name.end()
    rest = line[at:].lstrip()
    if rest.startswith("{"):
        at = len(line) - len(rest) + 1
        while line[at : at + 1] != "}":
            pair = _LABEL.match(line, at)
            if pair is None:
                if line[at:].strip().startswith("}"):
                    at = line.index("}", at)
                    break
                raise _error(line, number, "labels that do not end")
            labels[pair[1]] = _ESCAPE.sub(lambda m: _ESCAPES.get(m[1], m[0]), pair[2])
            at = pair.end()
        rest = line[at + 1 :]
    words = rest.split()
    if not words:
        raise _error(line, number, "no value")
    try:
        value = _number(words[0])
    except ValueError:
        raise _error(line, number, f"{words[0]!r} is not a number") from None
    return Sample(name[0], tuple(sorted(labels.items())), value)


def _number(text: str) -> float:
    if "_" in text:  # Python reads 1_000, Prometheus does not
        raise ValueError(text)
    return float(text)


def _error(line: str, number: int, why: str) -> EngineError:
    shown = line if len(line) <= 80 else line[:77] + "..."
    return EngineError(
        f"line {number} of the metrics page is not a sample: {why}: {shown!r}",
        field="metrics",
        hint="does the URL point to a Prometheus text page?",
    )
