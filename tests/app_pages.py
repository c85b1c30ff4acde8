"""What tests of the page share: a parser that notices unbalanced tags, and reports made to break it."""

from html.parser import HTMLParser
from typing import Any

import msgspec

from app_synthetic import empty_report, synthetic_report, why_report
from profile_programs import PROFILE, slow_and_others
from sits.app.profiles.section import cpu_of
from sits.core.finding import Interval
from sits.core.report import Report
from sits.telemetry.profile.profile import merged

VOID = {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"}
FETCHING = {"src", "href", "srcset", "action", "formaction", "poster", "data", "xlink:href", "background"}
CODED = {"fleet", "kind", "objective_metric"}
"""Keys whose values are words of a closed list: not texts."""


class Page(HTMLParser):
    """A parsed page: `problems` of its structure, every `tags` name, every `(tag, name, value)` attribute, its text."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.problems: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.texts: list[str] = []
        self._open: list[str] = []
        self.feed(html)
        self.close()
        self.problems += [f"<{tag}> is never closed" for tag in self._open]

    def handle_starttag(self, tag, attrs):
        self.handle_startendtag(tag, attrs)
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_endtag(self, tag):
        if not self._open or self._open[-1] != tag:
            self.problems.append(f"</{tag}> closes {self._open[-1:]} at {self.getpos()}")
        else:
            self._open.pop()

    def handle_data(self, data):
        self.texts.append(data)

    @property
    def text(self) -> str:
        """All text outside of tags."""
        return " ".join("".join(self.texts).split())


def hostile(report: Report, attack: str = "\"'><script>alert(1)</script>&{{{{7*7}}}}{}") -> Report:
    """`report` with every free text replaced by an attack; equal texts stay equal, so references still hold."""
    known: dict[str, str] = {}

    def attacked(text: str) -> str:
        return known.setdefault(text, attack.format(len(known)))

    def walk(node: Any, key: str = "") -> Any:
        if isinstance(node, str) and node:
            return attacked(node)
        if isinstance(node, dict):
            closed = node.get("version") is not None
            return {k: v if k in CODED and (closed or k == "fleet") else walk(v, k) for k, v in node.items()}
        if isinstance(node, (list, tuple)):
            return [walk(one) for one in node]
        return node

    return msgspec.convert(walk(msgspec.to_builtins(report)), Report)


def scaled(report: Report, factor: float) -> Report:
    """`report` with every float multiplied: figures far outside of the usual."""

    def walk(node: Any, key: str = "") -> Any:
        if isinstance(node, float) and key not in {"level", "t_s", "x_edges", "y_edges"}:
            return node * factor
        if isinstance(node, dict):
            return {k: v if k == "fleet" else walk(v, k) for k, v in node.items()}
        if isinstance(node, (list, tuple)):
            return [walk(one, key) for one in node]
        return node

    return msgspec.convert(walk(msgspec.to_builtins(report)), Report)


def hopeless() -> Report:
    """An interval across everything, one waterfall only, no effect known."""
    whole = synthetic_report()
    latency = msgspec.structs.replace(whole.before.latency, p99=Interval(900.0, 20.0, 9_000.0))
    return synthetic_report(
        before=msgspec.structs.replace(whole.before, latency=latency),
        after=None,
        verified=None,
        waterfalls=whole.waterfalls[:1],
        findings=tuple(msgspec.structs.replace(one, effect_ms=None) for one in whole.findings),
    )


def sampled_report() -> Report:
    """Processes were sampled meanwhile: layers of their own, and slow requests that differ."""
    profile = merged([msgspec.structs.replace(PROFILE, process="worker-0, keeper"), slow_and_others()])
    slow = {sample.labels.trace: sample.labels.trace[0] == "s" for sample in slow_and_others().samples}
    return msgspec.structs.replace(why_report(), cpu=cpu_of(profile, slow))


def every_report() -> dict[str, Report]:
    """All reports the page must stand."""
    return {
        "full": synthetic_report(),
        "why": why_report(),
        "sampled": sampled_report(),
        "hostile sampled": hostile(sampled_report()),
        "empty": empty_report(),
        "hopeless": hopeless(),
        "hostile": hostile(synthetic_report()),
        "long words": hostile(synthetic_report(), attack="w" * 90 + "{}"),
        "huge": scaled(synthetic_report(), 1e9),
        "tiny": scaled(synthetic_report(), 1e-7),
        "zero": scaled(synthetic_report(), 0.0),
        "negative": scaled(why_report(), -1.0),
    }
