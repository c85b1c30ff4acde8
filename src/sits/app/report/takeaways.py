"""One line over each section: what its figures say, computed from them.

A line states what is largest, how much of the whole it is, and whether the data can tell; it never states a
cause.  Where the data do not carry a sentence, there is none.
"""

from collections.abc import Sequence
from itertools import accumulate

from sits.app.report import numbers, stages
from sits.app.report.tail import columns
from sits.app.report.verdict import METRICS
from sits.app.report.waterfall import drawn_bars, end_ms
from sits.core.finding import Finding
from sits.core.report import Ablation, HeatMap, Matrix, Report, Series, Waterfall

LEADING, MOST_NAMED = 0.1, 2
ALIKE = 0.15


def time(value: float) -> str:
    """Milliseconds, or seconds where there are many; figure and unit stay on one line.

    >>> tuple(time(value).replace(numbers.NO_BREAK, " ") for value in (868.1, 5049.2, 0.4))
    ('868 ms', '5.05 s', '0.4 ms')
    """
    figure, unit = (value / 1000, "s") if abs(value) >= 1000 else (value, "ms")
    return f"{numbers.number(figure)}{numbers.NO_BREAK}{unit}"


def tail(report: Report) -> str:
    """Which stages carry the excess of the tail."""
    total = sum(one.excess.value for one in report.stages)
    if total <= 0:
        return ""
    ranked = sorted(report.stages, key=lambda one: -one.excess.value)
    large = [one for one in ranked if one.excess.value >= LEADING * total][:MOST_NAMED]
    rest, slow, _ = columns(report)
    whole = f"On average {time(total)} more in {slow} than in {rest}"
    if not large:
        return f"{whole}, spread over many stages."
    parts = [
        f"{time(one.excess.value)} ({numbers.percent(one.excess.value / total)}) {stages.meaning(one.stage)}"
        for one in large
    ]
    return f"{whole}: {joined(parts)}."


def joined(parts: Sequence[str]) -> str:
    """Parts as a list in prose.

    >>> joined(["a"]), joined(["a", "b"]), joined(["a", "b", "c"])
    ('a', 'a and b', 'a, b and c')
    """
    return f"{', '.join(parts[:-1])} and {parts[-1]}" if len(parts) > 1 else "".join(parts)


def request(falls: Sequence[Waterfall], report: Report) -> str:
    """Where the first request's time went, and what the second one spent there."""
    slow = falls[0]
    whole = end_ms(slow, report)
    if whole <= 0:
        return ""
    spent = _by_stage(slow, report)
    named = sorted(spent, key=lambda stage: -spent[stage])[:MOST_NAMED]
    named = [stage for stage in named if spent[stage] >= LEADING * whole]
    if not named:
        return ""
    said = joined([f"{time(spent[stage])} {stages.meaning(stage)}" for stage in named])
    share = sum(spent[stage] for stage in named) / whole
    line = f"{capital(slow.label)}: {time(whole)}, of which {said} ({numbers.percent(share)})."
    if len(falls) > 1:
        normal = _by_stage(falls[1], report)
        line += (
            f" {capital(falls[1].label)}: {joined([time(normal.get(stage, 0.0)) for stage in named])} there."
        )
    return line


def capital(label: str) -> str:
    """A label at the head of a sentence."""
    return label[:1].upper() + label[1:]


def _by_stage(fall: Waterfall, report: Report) -> dict[str, float]:
    spent: dict[str, float] = {}
    for bar in drawn_bars(fall, report):
        spent[bar.stage] = spent.get(bar.stage, 0.0) + bar.duration_ms
    return spent


def matrix(data: Matrix | None) -> str:
    """Which plane answers for the slowest band, beside its part in the fastest."""
    if data is None or not data.bands or not data.cells:
        return ""
    slowest, fastest = data.bands[-1].name, data.bands[0].name
    top = max(
        (cell for cell in data.cells if cell.band == slowest), key=lambda c: c.share.value, default=None
    )
    if top is None or top.share.value <= 0:
        return ""
    base = next((c for c in data.cells if c.band == fastest and c.plane == top.plane), None)
    line = f"Among the slowest requests the {top.plane} answers for {numbers.percent(top.share.value)} of the time"
    if base is None or fastest == slowest:
        return f"{line}."
    return f"{line}; among the fastest for {numbers.percent(base.share.value)}."


def spectrum(data: HeatMap | None) -> str:
    """The length that separates slow requests best: largest distance of the two cumulative shares."""
    if data is None or not any(map(any, data.slow)) or not any(map(any, data.rest)):
        return ""
    across = (data.x_name, data.x_edges, _sums(data.slow), _sums(data.rest))
    up = (data.y_name, data.y_edges, _sums(_turned(data.slow)), _sums(_turned(data.rest)))
    distance, name, edge, slow, rest = max(
        (abs(slow - rest), name, edges[at], slow, rest)
        for name, edges, mine, others in (across, up)
        for at, (slow, rest) in enumerate(zip(_from(mine), _from(others), strict=True))
    )
    if distance < ALIKE:
        return (
            "Slow requests have about the lengths of all others: length alone does not make a request slow."
        )
    least = numbers.count(edge)
    if slow > rest:
        return f"{numbers.percent(slow)} of the slow requests have {least} {name} or more; of the others {numbers.percent(rest)}."
    return f"{numbers.percent(1 - slow)} of the slow requests have fewer than {least} {name}; of the others {numbers.percent(1 - rest)}."


Counts = Sequence[Sequence[float]]


def _sums(counts: Counts) -> list[float]:
    return [sum(line) for line in counts]


def _turned(counts: Counts) -> Counts:
    return list(zip(*counts, strict=True))


def _from(counts: Sequence[float]) -> list[float]:
    """The share of requests in each bin and all above it."""
    total = sum(counts)
    return [share / total for share in reversed(list(accumulate(reversed(counts))))]


def findings(ranked: Sequence[Finding]) -> str:
    """How many causes have an effect that is told apart from zero, and how many have no figure."""
    sized = [one.effect_ms for one in ranked if one.effect_ms and not one.inconclusive]
    if not sized:
        return ""
    sure = sum(effect.low > 0 for effect in sized)
    more = len(ranked) - len(sized)
    told = f"{sure} of {len(sized)} quantified causes have an interval above zero."
    return f"{told} {numbers.many(more, 'more finding')} without a figure." if more else told


def ablation(rows: Sequence[Ablation], left_out: Sequence[str] = ()) -> str:
    """The fix that saves most alone, how many are proven to help, how many to harm, and which are not proposed."""
    singles = [row for row in rows if row.id not in {"none", "all"} and row.saved is not None]
    if not singles:
        return ""
    saved = {row.title: row.saved for row in singles if row.saved}
    best = max(saved, key=lambda title: saved[title].value)
    if saved[best].value <= 0:
        return "No fix saves anything alone."
    doubt = "" if saved[best].low > 0 else ", though its interval reaches zero"
    line = f"{best} saves most alone: {time(saved[best].value)}{doubt}."
    effects = [[one for one in (row.saved, row.needed) if one is not None] for row in singles]
    helping = sum(any(one.low > 0 for one in both) for both in effects)
    harming = sum(any(one.high < 0 for one in both) for both in effects)
    verb = "is" if helping == 1 else "are"
    line += f" {helping} of {len(singles)} fixes {verb} proven to help, alone or among the others"
    line = f"{line}; {harming} to cost time." if harming else f"{line}."
    dropped = [row.title for row in singles if row.id in left_out]
    return f"{line} Left out of the proposal: {', '.join(dropped)}." if dropped else line


def timeline(report: Report) -> str:
    """For how much of each run the moving P99 was over the objective."""
    name = f"{report.objective_metric}_p99"
    over = [_over(side.series, name, report.objective_ms) for side in (report.before, report.after) if side]
    known = [share for share in over if share is not None]
    if not known or len(known) < len(over):
        return ""
    after = f"; after, {numbers.percent(known[1])}" if len(known) > 1 else ""
    when = "before, it" if len(known) > 1 else "it"
    metric = METRICS.get(report.objective_metric, report.objective_metric)
    return f"The moving P99 {metric} of the run drawn here: {when} was over the objective {numbers.percent(known[0])} of the time{after}."


def _over(series: Sequence[Series], name: str, objective: float) -> float | None:
    one = next((one for one in series if one.name == name and one.value), None)
    return sum(value > objective for value in one.value) / len(one.value) if one else None


def latencies(report: Report) -> str:
    """The median before and after: a fix of the tail may have a price elsewhere."""
    if report.after is None or not report.before.latency.n or not report.after.latency.n:
        return ""
    before, after = report.before.latency.p50_ms, report.after.latency.p50_ms
    word = "fell" if after < before else "rose" if after > before else "stayed"
    return f"The median {word} too: {time(before)} to {time(after)}." if word == "fell" else (
        f"The median {word}: {time(before)} to {time(after)}."
    )  # fmt: skip
