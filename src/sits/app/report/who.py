"""Who is slow: the names that have more of the bad requests than their traffic explains, as text.

Rules: a name stands in the words of its kind; names of other kinds that are the very same requests stand behind it.

Deliberately absent: which names these are (`diagnose.groups`).
"""

import msgspec

from sits.app.report import numbers
from sits.core.report import Group, Report

KIND_WORDS = {"arm": "release arm"}


class WhoRow(msgspec.Struct, frozen=True):
    """One name and its figures."""

    words: str
    bad: str
    share: str
    p99: str
    others: str


def who(report: Report) -> tuple[WhoRow, ...]:
    """A row for each name that stands out, the clearest first."""
    return tuple(
        WhoRow(
            words=words(group),
            bad=f"{numbers.count(group.bad)} of {numbers.count(group.of_bad)}",
            share=numbers.percent(group.n / group.of_n),
            p99=_ms(group.p99_ms),
            others=_ms(group.others_p99_ms),
        )
        for group in report.who
    )


def words(group: Group) -> str:
    """The name with its kind.

    >>> words(Group("engine", "v0", 2, 9, 1, 0, 1, None, None, {"model": "tiny"})), words(Group("arm", "new", 2, 9, 1, 0, 1, None, None))
    ('engine v0 (the same requests as model tiny)', 'release arm new')
    """
    first, *others = (
        f"{KIND_WORDS.get(kind, kind)} {name}"
        for kind, name in [(group.kind, group.name), *group.same.items()]
    )
    return f"{first} (the same requests as {', '.join(others)})" if others else first


def bad_of(report: Report) -> str:
    """What was counted.

    Raises:
        IndexError: nobody stands out.

    """
    group = report.who[0]
    objective = f"{numbers.number(report.objective_ms)}{numbers.NO_BREAK}ms"
    return f"{numbers.count(group.of_bad)} of {numbers.count(group.of_n)} requests took more than {objective} or went wrong"


def takeaway(report: Report) -> str:
    """The line over the section; empty where nobody stands out."""
    if not report.who:
        return ""
    group = report.who[0]
    share, traffic = (numbers.percent(part) for part in (group.bad / group.of_bad, group.n / group.of_n))
    return f"{bad_of(report)}: {share} of them were of {words(group)}, which had {traffic} of the traffic."


def _ms(value: float | None) -> str:
    return numbers.EN_DASH if value is None else f"{numbers.number(value)}{numbers.NO_BREAK}ms"
