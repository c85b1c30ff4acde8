"""The head of the page: P99 before and after, with intervals, against the objective.

One scale holds both, so that the distance to the objective is seen before it is read.  `Verdict.state` is the
one word that decides the colour: `met`, `missed` or `unproven` (the interval reaches over the objective, the
requests are too few for an upper bound of P99, or the objective is for another metric than was measured).  It is missed, too, when more
requests went wrong than the objective's availability allows.
"""

import msgspec

from sits.app.report import numbers, svg
from sits.core.report import P99_REQUESTS_MIN, Account, Report, Side

METRICS = {"ttft": "time to first token", "e2e": "end-to-end latency", "tpot": "time per output token"}


class Figure(msgspec.Struct, frozen=True):
    """One big figure: label, value, interval and how many requests stand behind it."""

    kind: str
    colour: str
    measured: bool
    label: str
    value: str
    interval: str
    level: str
    n: str
    lane: str


class Verdict(msgspec.Struct, frozen=True):
    """The head of the page."""

    metric: str
    figures: tuple[Figure, ...]
    axis: str
    state: str
    sentence: str
    saved: str
    paired: str
    doubt: str
    accounts: tuple[str, ...]


def verdict(report: Report) -> Verdict:
    """The head of the page for any report."""
    sides = [("before", report.before)] + ([("after", report.after)] if report.after else [])
    judged = state(report)
    scale = svg.covering(
        [edge for _, side in sides for edge in (side.latency.p99.high, side.latency.p99.value)]
        + [report.objective_ms],
        margin=0.04,
    )
    return Verdict(
        metric=METRICS.get(report.objective_metric, report.objective_metric),
        figures=tuple(_figure(kind, side, scale, report) for kind, side in sides),
        axis=svg.axis(
            scale,
            about=0,
            marked=[(report.objective_ms, f"{numbers.number(report.objective_ms)} ms objective")],
        ),
        state=judged,
        sentence=_sentence(judged, report),
        saved=_saved(report),
        paired=_paired(report),
        doubt=_doubt(report),
        accounts=tuple(f"{side.label}: {account(side.account)}" for _, side in sides),
    )


def account(counted: Account) -> str:
    """Conservation of requests in one line; outcomes that did not occur are left out.

    >>> account(Account(20, 18, 0, 0, 2, 0))
    '20 offered = 18 completed + 2 refused'
    """
    parts = [
        (counted.completed, "completed"),
        (counted.failed, "failed"),
        (counted.cancelled, "cancelled"),
        (counted.refused, "refused"),
        (counted.in_flight, "in flight"),
    ]
    shown = [f"{numbers.count(n)} {name}" for n, name in parts if n or name == "completed"]
    off = counted.offered - sum(n for n, _ in parts)
    doubt = f" ({numbers.count(off)} unaccounted for)" if off else ""
    return f"{numbers.count(counted.offered)} offered = {' + '.join(shown)}{doubt}"


def _figure(kind: str, side: Side, scale: svg.Scale, report: Report) -> Figure:
    p99, colour = side.latency.p99, _colour(kind, report)
    decimals = 0 if p99.value >= 100 else numbers.decimals_for([p99.value])
    marks = [
        svg.element(
            "rect", x=0, y=11, height=4, width=scale.width(scale.low, p99.value), class_=f"stem {colour}"
        ),
        svg.whisker(scale, p99.low, p99.high, 13, colour, half=6),
        svg.element("circle", cx=scale.at(p99.value), cy=13, r=5.5, class_=f"dot {colour}"),
    ]
    return Figure(
        kind=kind,
        colour=colour,
        measured=side.latency.n > 0,
        label=side.label,
        value=numbers.fixed(p99.value, decimals) if side.latency.n else numbers.EN_DASH,
        interval=numbers.interval(p99, decimals),
        level=numbers.level(p99),
        n=numbers.many(side.latency.n, "request"),
        lane=svg.element(
            "svg",
            svg.element(
                "line",
                x1=scale.at(report.objective_ms),
                x2=scale.at(report.objective_ms),
                y1=0,
                y2="100%",
                class_="objective",
            ),
            *(marks if side.latency.n else ()),
            class_="lane",
            width="100%",
            height=26,
            aria_hidden="true",
        ),
    )


def _colour(kind: str, report: Report) -> str:
    """Warm before, cool after; a run alone is only warm where it missed its objective."""
    return "calm" if report.after is None and state(report) != "missed" else kind


def state(report: Report) -> str:
    """`met`, `missed`, or `unproven`: what the interval of P99 says about the objective.

    The run judged is `after` where there is one.  A report that says it is not verified is never `met`, nor is one
    of fewer than `P99_REQUESTS_MIN` requests.
    """
    side = report.after or report.before
    p99 = side.latency.p99
    if _unavailable(report):
        return "missed"
    if side.latency.n == 0 or _promised(side) not in ("", report.objective_metric):
        return "unproven"
    if p99.low > report.objective_ms:
        return "missed"
    # A changed run must have been verified; a run that was only looked at is judged by its interval.
    verified = report.verified is not False if report.after is None else report.verified is True
    proven = p99.high <= report.objective_ms and verified
    return "met" if proven and side.latency.n >= P99_REQUESTS_MIN else "unproven"


def _unavailable(report: Report) -> bool:
    return report.availability is not None and report.availability.missed


def _promised(side: Side) -> str:
    """The metric the fleet's objective is for; empty where no fleet is known."""
    return side.fleet.objective.metric if side.fleet is not None else ""


def _sentence(judged: str, report: Report) -> str:
    objective = f"{numbers.number(report.objective_ms)} ms"
    side = report.after or report.before
    if _unavailable(report):
        return _too_many_wrong(report, objective)
    if side.latency.n == 0:
        return "No request was measured: nothing can be said about the objective."
    p99, promised = side.latency.p99, _promised(side)
    if promised not in ("", report.objective_metric):
        return f"Not judged: the objective of {objective} is for the {METRICS.get(promised, promised)}."
    if judged == "met":
        return f"Objective met: even the upper bound, {numbers.number(p99.high)} ms, is under {objective}."
    if judged == "missed":
        return f"Objective missed: the lower bound, {numbers.number(p99.low)} ms, is over {objective}."
    if p99.high <= report.objective_ms and side.latency.n < P99_REQUESTS_MIN:
        return (
            f"Not proven: an upper bound of P99 needs {P99_REQUESTS_MIN} requests or more, "
            f"and these are {numbers.many(side.latency.n, 'request')}."
        )
    if p99.high <= report.objective_ms and report.verified is None:
        return "Not proven: one repetition says nothing about how much runs differ."
    if p99.high <= report.objective_ms:
        return "Not verified: too many requests got no answer."
    return f"Not proven: the interval reaches across the objective of {objective}."


def _too_many_wrong(report: Report, objective: str) -> str:
    """That more went wrong than may, and what the times of the others say."""
    found = report.availability
    assert found is not None
    share, low, allowed = (numbers.percent(one) for one in (found.wrong / found.of, found.low, found.allowed))
    p99 = report.before.latency.p99
    slow = (
        f"; the lower bound of P99, {numbers.number(p99.low)} ms, is over {objective}, too"
        if p99.low > report.objective_ms
        else ""
    )
    return f"Objective missed: {share} of the requests went wrong (at least {low}), and it allows {allowed}{slow}."


def _paired(report: Report) -> str:
    """The interval of the paired difference of the two runs."""
    saved = report.saved
    if saved is None or report.after is None:
        return ""
    return (
        f"paired {numbers.level(saved)} interval {numbers.interval(saved, 0 if saved.value >= 100 else 1)} ms"
    )


def _doubt(report: Report) -> str:
    """That the run before may itself have met the objective, where its interval says so."""
    p99 = report.before.latency.p99
    if report.after is None or not report.before.latency.n or not p99.low <= report.objective_ms <= p99.high:
        return ""
    return (
        f"Before, the interval of P99 reaches across the objective too ({numbers.interval(p99, 0)} ms): "
        "judge by the paired difference."
    )


def _saved(report: Report) -> str:
    if report.after is None or report.before.latency.p99.value <= 0:
        return ""
    before, after = report.before.latency.p99.value, report.after.latency.p99.value
    change = (after - before) / before
    word = "less" if change < 0 else "more"
    return f"{numbers.number(abs(after - before))} ms {word} ({numbers.percent(abs(change))})"
