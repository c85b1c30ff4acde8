"""The report as one HTML page: self-contained, no script, no fetch, readable at 390 px and on paper.

Python makes views (figures already formatted, drawings already markup), the template only places them.  All text
of a report is escaped by the template; only drawings, which `svg` escapes, are passed through.  A section whose
data are absent is not there at all.
"""

from functools import cache
from typing import Any

from sits.app.report import numbers, stages
from sits.app.report.ablation import ablation
from sits.app.report.data import check_finite
from sits.app.report.matrix import matrix
from sits.app.report.spectrum import spectrum
from sits.app.report.tail import tail
from sits.app.report.timeline import timeline
from sits.app.report.verdict import METRICS, verdict
from sits.app.report.waterfall import pairs
from sits.app.topology import topology_svg
from sits.core.finding import Evidence, Finding
from sits.core.report import Report, Side

SEVERITIES = {"alarm": 0, "warning": 1, "info": 2}
TOP_CAUSES = 6


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
    environment.filters |= {"num": numbers.number, "fig": evidence_figure, "words": stages.words}
    return environment.get_template("report.html.j2")


def _context(report: Report) -> dict[str, Any]:
    ranked = ranked_findings(report)
    return {
        "report": report,
        "verdict": verdict(report),
        "pairs": pairs(report),
        "tail": tail(report),
        "matrix": matrix(report.matrix),
        "spectrum": spectrum(report.spectrum),
        "findings": ranked,
        "causes": _causes(ranked),
        "ablation": ablation(report),
        "timeline": timeline(report),
        "topologies": _topologies(report),
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


def _causes(ranked: list[Finding]) -> list[dict[str, str]]:
    """The short list at the head of the page: causes with an effect, and a bar of its size."""
    sized = [(one, one.effect_ms) for one in ranked if one.effect_ms and not one.inconclusive][:TOP_CAUSES]
    largest = max((abs(effect.value) for _, effect in sized), default=0.0) or 1.0
    return [
        {
            "id": one.id,
            "name": stages.words(one.id),
            "effect": numbers.fixed(effect.value, 0 if largest >= 10 else 2),
            "width": f"{max(0.0, effect.value) / largest * 100:.1f}%",
        }
        for one, effect in sized
    ]


def evidence_figure(evidence: Evidence) -> dict[str, str]:
    """An observation as read: figure, unit, and the reference it is compared to."""
    if evidence.unit == "share":
        reference = "" if evidence.reference is None else numbers.percent(evidence.reference)
        return {"observed": numbers.percent(evidence.observed), "reference": reference}
    unit = f" {evidence.unit}" if evidence.unit else ""
    reference = "" if evidence.reference is None else f"{numbers.number(evidence.reference)}{unit}"
    return {"observed": f"{numbers.number(evidence.observed)}{unit}", "reference": reference}


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
