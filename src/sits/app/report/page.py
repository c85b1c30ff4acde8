"""The report as one HTML page: self-contained, no script, no fetch, readable at 390 px and on paper.

Python makes views (figures already formatted, drawings already markup), the template only places them.  All text
of a report is escaped by the template; only drawings, which `svg` escapes, are passed through.  A section whose
data are absent is not there at all.
"""

import re
from functools import cache
from typing import Any

from sits.app.report import grouping, numbers, stages, takeaways
from sits.app.report.ablation import ablation
from sits.app.report.cpu import cpu
from sits.app.report.data import check_finite
from sits.app.report.matrix import matrix
from sits.app.report.spectrum import spectrum
from sits.app.report.tail import tail
from sits.app.report.takeaways import capital
from sits.app.report.timeline import timeline
from sits.app.report.verdict import METRICS, verdict
from sits.app.report.waterfall import pairs
from sits.app.report.who import takeaway, who
from sits.app.topology import topology_svg
from sits.core.finding import Finding
from sits.core.report import Report, Side

SEVERITIES = {"alarm": 0, "warning": 1, "info": 2}
TOP_CAUSES = 6
CLAUSE_MOST = 90
OBSERVATIONS = 3
"""Of a finding, shown before one unfolds the rest; a rest of one is shown too."""
STORY = (
    ("Where the time goes", "tail", "tail"),
    ("Who is slow", "who", "who"),
    ("Which fix matters", "fixes", "ablation"),
    ("Which requests are slow", "lengths", "spectrum"),
)
"""What the head of the page says of its sections: title, anchor, takeaway."""


def render_html(report: Report) -> str:
    """The page of a report.

    Raises:
        BugError: a figure is NaN or infinite; nothing is rendered.

    """
    check_finite(report)
    return str(_template().render(**_context(report)))


@cache
def _template() -> Any:
    """The compiled template: compiling takes longer than rendering."""
    from jinja2 import Environment, PackageLoader, StrictUndefined  # noqa: PLC0415  # heavy; only a page needs it

    environment = Environment(
        loader=PackageLoader("sits.app.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"num": numbers.number, "bound": numbers.bound}
    return environment.get_template("report.html.j2")


def _context(report: Report) -> dict[str, Any]:
    ranked = ranked_findings(report)
    says = _says(report, ranked)
    return {
        "report": report,
        "verdict": verdict(report),
        "pairs": [(pair, takeaways.request(pair.requests, report)) for pair in pairs(report)],
        "tail": tail(report),
        "who": who(report),
        "matrix": matrix(report.matrix),
        "spectrum": spectrum(report.spectrum),
        "findings": [
            (one, grouping.evidence(one.evidence), grouping.changes(one.changes, report)) for one in ranked
        ],
        "causes": _causes(ranked),
        "ablation": ablation(report),
        "timeline": timeline(report),
        "topologies": _topologies(report),
        "cpu": cpu(report.cpu),
        "changes": grouping.changes(report.changes, report),
        "says": says,
        "observations": OBSERVATIONS,
        "of_tail": "stages_columns" not in report.facts,
        "story": [(title, anchor, says[key]) for title, anchor, key in STORY if says[key]],
        "latencies": _latencies(report),
        "layers": stages.LAYERS,
        "facts": [
            (stages.words(key), _fact(value)) for key, value in report.facts.items() if _is_plain(value)
        ],
    }


def ranked_findings(report: Report) -> list[Finding]:
    """Claims first, the largest effect first; what could not be decided comes last."""

    def rank(finding: Finding) -> tuple[bool, float, int]:
        effect = finding.effect_ms.value if finding.effect_ms else 0.0
        return bool(finding.inconclusive), -effect, SEVERITIES.get(finding.severity, len(SEVERITIES))

    return sorted(report.findings, key=rank)


def clause(claim: str) -> str:
    """The claim without its figures: what comes before a semicolon, a colon or a comma with "and".

    >>> clause("The KV pool is too small; a tail request loses 1,447 ms."), clause("Bursts.")
    ('The KV pool is too small', 'Bursts')
    """
    first = re.split(r"[;:] |, and ", claim, maxsplit=1)[0].rstrip(".")
    return first if len(first) <= CLAUSE_MOST else first[: CLAUSE_MOST - 1].rstrip() + "…"


def _says(report: Report, ranked: list[Finding]) -> dict[str, str]:
    """The line over each section."""
    return {
        "tail": takeaways.tail(report),
        "who": takeaway(report),
        "matrix": takeaways.matrix(report.matrix),
        "spectrum": takeaways.spectrum(report.spectrum),
        "findings": takeaways.findings(ranked),
        "ablation": takeaways.ablation(report.ablation, report.left_out),
        "timeline": takeaways.timeline(report),
        "latencies": takeaways.latencies(report),
    }


def _causes(ranked: list[Finding]) -> list[dict[str, str]]:
    """The short list at the head of the page: causes with an effect, and a bar of its size."""
    sized = [(one, one.effect_ms) for one in ranked if one.effect_ms and not one.inconclusive][:TOP_CAUSES]
    largest = max((abs(effect.value) for _, effect in sized), default=0.0) or 1.0
    return [
        {
            "id": one.id,
            "name": capital(clause(one.claim)),
            "interval": numbers.interval(effect, 0 if largest >= 10 else 2),
            "effect": numbers.fixed(effect.value, 0 if largest >= 10 else 2),
            "width": f"{max(0.0, effect.value) / largest * 100:.1f}%",
        }
        for one, effect in sized
    ]


def _topologies(report: Report) -> list[dict[str, str]]:
    before = report.before.fleet
    after = report.after.fleet if report.after else None
    pairs_ = [("before", report.before, before, after), ("after", report.after, after, before)]
    return [
        {"kind": kind, "label": side.label, "digest": side.config_digest, "svg": topology_svg(fleet, other)}
        for kind, side, fleet, other in pairs_
        if side is not None and fleet is not None
    ]


def _latencies(report: Report) -> list[dict[str, str]]:
    sides: list[tuple[str, Side]] = [("before", report.before)]
    sides += [("after", report.after)] if report.after else []
    every = [(kind, side.label, one) for kind, side in sides for one in (side.latency, *side.others)]
    order = list(dict.fromkeys(one.metric for _, _, one in every))
    every.sort(key=lambda row: order.index(row[2].metric))
    return [
        {
            "kind": kind,
            "label": label,
            "metric": METRICS.get(one.metric, stages.words(one.metric)),
            "n": numbers.count(one.n),
            "mean": numbers.fixed(one.mean_ms, 0 if one.p99.value >= 100 else 2),
            "p50": numbers.fixed(one.p50_ms, 0 if one.p99.value >= 100 else 2),
            "p95": numbers.fixed(one.p95_ms, 0 if one.p99.value >= 100 else 2),
            "p99": numbers.fixed(one.p99.value, 0 if one.p99.value >= 100 else 2),
            "interval": numbers.interval(one.p99, 0 if one.p99.value >= 100 else 2),
            "max": numbers.fixed(one.max_ms, 0 if one.p99.value >= 100 else 2),
        }
        for kind, label, one in every
        if one.n
    ]


def _is_plain(value: Any) -> bool:
    return isinstance(value, (str, int, float)) and value != ""


def _fact(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return numbers.count(value) if isinstance(value, int) else numbers.number(value) if isinstance(value, float) else str(value)  # fmt: skip
