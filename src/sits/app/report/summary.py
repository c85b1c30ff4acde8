"""The report in a terminal: what an engineer needs before opening the page, on about one screen.

Plain text of at most `width` columns; figures are aligned on the right.  `colour` adds ANSI escapes and changes
no character besides: a log file and a terminal read the same.  Control characters in a report's own texts are
shown, not sent to the terminal.
"""

from collections.abc import Iterable, Sequence
from textwrap import wrap

from sits.app.report import numbers, stages
from sits.app.report.ablation import kind, ranked
from sits.app.report.data import check_finite
from sits.app.report.page import ranked_findings
from sits.app.report.tail import FOLDED_SHARE, columns
from sits.app.report.verdict import METRICS, account, verdict
from sits.app.report.who import bad_of, who
from sits.core.finding import Finding, Interval
from sits.core.report import Report

TOP_STAGES = 5
ESCAPES = {"bold": "1", "dim": "2", "before": "33", "after": "36", "good": "32", "bad": "31"}
STATE_STYLE = {"met": "good", "missed": "bad", "unproven": "before"}


def summary_text(report: Report, *, colour: bool = False, width: int = 100) -> str:
    """The summary, ending in a newline.

    Raises:
        BugError: a figure is NaN or infinite.

    """
    check_finite(report)
    paint = _Paint(colour=colour)
    blocks = [
        _head(report, paint, width),
        _causes(report, paint, width),
        _fixes(report, paint, width),
        _tail(report, paint),
        _who(report, paint, width),
        _accounts(report, paint),
    ]
    text = "\n".join("\n".join(block) + "\n" for block in blocks if block)
    return text.replace(numbers.NO_BREAK, " ")


class _Paint:
    def __init__(self, *, colour: bool) -> None:
        self.colour = colour

    def __call__(self, style: str, content: str) -> str:
        return f"\x1b[{ESCAPES[style]}m{content}\x1b[0m" if self.colour and content else content


def printable(content: str) -> str:
    r"""Text without control characters: they could move the cursor or rewrite what was printed.

    >>> printable("a\x1b[2Jb")
    'a?[2Jb'

    Spaces of another width or that do not break are spaces here.

    >>> printable("1\u202f% of 9\xa0ms")
    '1 % of 9 ms'
    """
    return "".join(
        letter if letter.isprintable() else " " if letter in "\xa0\u2009\u202f" else "?" for letter in content
    )


def _head(report: Report, paint: _Paint, width: int) -> list[str]:
    view = verdict(report)
    objective = numbers.number(report.objective_ms)
    label = max(len(one.label) for one in view.figures)
    value = max(len(one.value) for one in view.figures)
    lines = [paint("dim", printable(report.title))]
    lines += [paint("bold", line) for line in wrap(printable(report.headline), width)]
    lines += ["", f"  P99 {view.metric}, objective {objective} ms"]
    for one in view.figures:
        figure = paint(one.colour, f"{one.value:>{value}} ms") if one.measured else f"{one.value:>{value}}"
        known = f"  {one.interval} ({one.level})" if one.measured else ""
        lines.append(f"  {printable(one.label):<{label}}  {figure}{known}  {one.n}")
    lines += ["", *(paint(STATE_STYLE[view.state], line) for line in wrap(view.sentence, width))]
    return lines


def _causes(report: Report, paint: _Paint, width: int) -> list[str]:
    ranked = ranked_findings(report)
    if not ranked:
        return []
    rows = [_cause(one) for one in ranked]
    effects, wide = max(len(row[0]) for row in rows), max(len(row[1]) for row in rows)
    before = effects + wide + 6
    effect_on = "effect, ms" if "stages_columns" in report.facts else "effect on the tail, ms"
    lines = [
        paint("bold", "Findings") + paint("dim", f"  {effect_on}; effects overlap, so they do not add up")
    ]
    for effect, interval, claim in rows:
        room = max(20, width - before)
        first, *more = wrap(claim, room) or [""]
        lines.append(f"  {effect:>{effects}}  {interval:<{wide}}  {first}")
        lines += [" " * before + line for line in more]
    return lines


def _cause(one: Finding) -> tuple[str, str, str]:
    if one.inconclusive:
        return "?", "inconclusive", printable(f"{one.claim} ({one.inconclusive})")
    if one.effect_ms is None:
        return numbers.EN_DASH, printable(one.severity), printable(one.claim)
    return numbers.number(one.effect_ms.value), _range(one.effect_ms), printable(one.claim)


def _range(figure: Interval) -> str:
    return f"{numbers.number(figure.low)} {numbers.EN_DASH} {numbers.number(figure.high)}"


def _fixes(report: Report, paint: _Paint, width: int) -> list[str]:
    if not report.ablation:
        return []
    rows = [
        (
            _cut(printable(one.title), max(24, width - 64)),
            numbers.number(one.p99.value),
            _proven(one.saved),
            _range(one.saved) if one.saved else "",
            _proven(one.needed),
            kind(one),
        )
        for one in ranked(report.ablation)
    ]
    name, wide = max(len(row[0]) for row in rows), max(len(row[3]) for row in rows)
    head = f"  {'':<{name}}  {'P99':>7}  {'alone ':>8}  {'':<{wide}}  {'lost without it ':>16}"
    lines = [
        paint("bold", "What each fix buys") + paint("dim", "  ms; * interval above zero"),
        paint("dim", head.rstrip()),
    ]
    for title, p99, saved, spread, needed, which in rows:
        line = f"  {title:<{name}}  {p99:>7}  {saved:>8}  {spread:<{wide}}  {needed:>16}".rstrip()
        lines.append(paint({"none": "before", "all": "after"}[which], line) if which != "single" else line)
    return lines


def _proven(effect: Interval | None) -> str:
    return "" if effect is None else f"{numbers.number(effect.value)}{'*' if effect.low > 0 else ' '}"


def _cut(content: str, most: int) -> str:
    return content if len(content) <= most else content[: most - 1] + "…"


def _tail(report: Report, paint: _Paint) -> list[str]:
    ranked = sorted(report.stages, key=lambda share: -share.excess.value)[:TOP_STAGES]
    ranked = [one for one in ranked if one.excess.value > FOLDED_SHARE * ranked[0].excess.value]
    if not ranked:
        return []
    name = max(len(stages.words(one.stage)) for one in ranked)
    rest, slow, title = columns(report)
    lines = [
        paint("bold", printable(title)) + paint("dim", printable(f"  mean of {slow} less mean of {rest}, ms"))
    ]
    lines += _aligned(
        (f"  {printable(stages.words(one.stage)):<{name}}", numbers.signed(one.excess.value, 1), _range(one.excess), printable(one.layer))
        for one in ranked
    )  # fmt: skip
    return lines


def _who(report: Report, paint: _Paint, width: int) -> list[str]:
    rows = who(report)
    if not rows:
        return []
    bad, share = (max(len(getattr(row, of)) for row in rows) for of in ("bad", "share"))
    lines = [paint("bold", "Who is slow") + paint("dim", printable(f"  {bad_of(report)}"))]
    for row in rows:
        figures = f"  {row.bad:>{bad}}, with {row.share:>{share}} of the traffic  "
        first, *more = wrap(
            printable(f"{row.words}: P99 {row.p99}, of the others {row.others}"),
            max(20, width - len(figures)),
        )
        lines += [printable(figures) + first, *(" " * len(figures) + line for line in more)]
    return lines


def _aligned(rows: Iterable[Sequence[str]]) -> list[str]:
    every = list(rows)
    figure = max(len(row[1]) for row in every)
    spread = max(len(row[2]) for row in every)
    return [f"{row[0]}  {row[1]:>{figure}}  {row[2]:<{spread}}  {row[3]}" for row in every]


def _accounts(report: Report, paint: _Paint) -> list[str]:
    sides = [report.before, *([report.after] if report.after else [])]
    what = METRICS.get(report.objective_metric, report.objective_metric)
    lines = [paint("dim", f"{printable(side.label)}: {printable(account(side.account))}") for side in sides]
    times = f"{report.repetitions} repetition{'' if report.repetitions == 1 else 's'}"
    return [*lines, paint("dim", f"seed {report.seed}, {times}, metric: {what}")]
