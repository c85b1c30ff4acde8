"""Sixteen engines that say the same thing, said once: changes and observations folded by what they share.

A path like `engines[a0].cpu_numa` names one engine; where several engines change the same value for the same
reason, they are one line, with the names behind each pair of values.  Observations named `a0.copy_gbytes_per_s`
fold the same way: the middle figure stands for all, and the range says how far they lie apart.

Deliberately absent: folding what differs in unit, reference or reason.  Those are different statements.
"""

import re
from collections.abc import Iterable, Sequence
from itertools import groupby
from statistics import median_low

import msgspec

from sits.app.report import numbers, stages
from sits.core.finding import Change, Evidence
from sits.core.report import Report

MOST_NAMES, NAMES_BESIDE = 12, 4
ONE_ENGINE = re.compile(r"engines(?:\[|\.)\{?([^\].*{}]+)\}?\]?\.(.+)")
ALL_ENGINES = re.compile(r"engines(?:\[\*\]|\.\*)\.")
RATES = {"1/s": "per s", "1/request": "per request", "share": ""}


class Values(msgspec.Struct, frozen=True):
    """One pair of values and where it applies; `names` is empty for a value that exists once."""

    old: str
    new: str
    names: str


class ChangeView(msgspec.Struct, frozen=True):
    """Changes of one value for one reason.  `made` says whether the run after had it."""

    path: str
    values: tuple[Values, ...]
    why: str
    made: bool


class EvidenceView(msgspec.Struct, frozen=True):
    """An observation as read: what, what it means, the figure with its unit, the reference it is compared to."""

    signal: str
    note: str
    observed: str
    reference: str


def changes(found: Sequence[Change], report: Report) -> tuple[ChangeView, ...]:
    """`found` folded over engines, in the order of their first appearance."""
    groups: dict[tuple[str, str], list[tuple[str, Change]]] = {}
    for change in found:
        name, path = _engine(change.path)
        groups.setdefault((path, change.why), []).append((name, change))
    applied = {_place(change) for change in report.changes}
    return tuple(
        ChangeView(
            path,
            _values(members),
            why,
            report.after is not None and {_place(c) for _, c in members} <= applied,
        )
        for (path, why), members in groups.items()
    )


def _engine(path: str) -> tuple[str, str]:
    """The engine a path names (empty for none or all), and the path without that name."""
    if ALL_ENGINES.match(path):
        return "", ALL_ENGINES.sub("engines[*].", path)
    found = ONE_ENGINE.fullmatch(path)
    return (found[1], f"engines[*].{found[2]}") if found else ("", path)


def _place(change: Change) -> tuple[str, str]:
    """Where a change applies and to what: both ways of writing "all engines" are one."""
    return ALL_ENGINES.sub("engines[*].", change.path), change.new


def _values(members: Sequence[tuple[str, Change]]) -> tuple[Values, ...]:
    pairs: dict[tuple[str, str], list[str]] = {}
    for name, change in members:
        pairs.setdefault((change.old, change.new), []).append(name)
    return tuple(Values(old, new, listed(names)) for (old, new), names in pairs.items())


def listed(names: Iterable[str], most: int = MOST_NAMES) -> str:
    """Names in one line, cut where nobody would read on.

    >>> listed(["a0", "b0"]), listed(f"n{i}" for i in range(20))
    ('a0, b0', 'n0, n1, n2, n3, n4, n5, n6, n7, n8, n9, n10, n11 and 8 more')
    """
    known = [name for name in names if name]
    more = len(known) - most
    return ", ".join(known[:most]) + (f" and {more} more" if more > 0 else "")


def evidence(found: Sequence[Evidence]) -> tuple[EvidenceView, ...]:
    """Observations, those of several sources with one signal, unit and reference folded."""
    keyed = [(_source(one), one) for one in found]
    views: list[EvidenceView] = []
    for _, run in groupby(
        keyed, key=lambda pair: (bool(pair[0][0]), pair[0][1], pair[1].unit, pair[1].reference)
    ):
        members = list(run)
        if not members[0][0][0] or len(members) == 1:
            views += [_single(one) for _, one in members]
        else:
            views.append(_folded([name for (name, _), _ in members], [one for _, one in members]))
    return tuple(views)


def _source(one: Evidence) -> tuple[str, str]:
    name, dot, signal = one.signal.partition(".")
    return (name, signal) if dot and signal.replace("_", "").isalnum() else ("", one.signal)


def _single(one: Evidence) -> EvidenceView:
    return EvidenceView(
        _words(one.signal, one.unit), one.note, figure(one.observed, one.unit), _reference(one)
    )


def _folded(names: Sequence[str], ones: Sequence[Evidence]) -> EvidenceView:
    first = ones[0]
    shown = [figure(one.observed, first.unit) for one in ones]
    middle = figure(median_low(one.observed for one in ones), first.unit)
    low, high = (figure(pick(one.observed for one in ones), first.unit) for pick in (min, max))
    spread = f"{low} {numbers.EN_DASH} {high}; " if len(set(shown)) > 1 else ""
    said = [one.note.split("; ") for one in ones]
    same = "; ".join(part for part in said[0] if all(part in parts for parts in said))
    note = f"{same}{'; ' if same else ''}{spread}on each of {len(names)}: {listed(names, NAMES_BESIDE)}"
    return EvidenceView(_words(_source(first)[1], first.unit), note, middle, _reference(first))


def _words(signal: str, unit: str) -> str:
    """The signal in words, without the unit that the figure says already.

    >>> _words("engine_queue_ms_p99_worst", "ms"), _words("copy_gbytes_per_s", "GB/s"), _words("kv_usage_p95", "share")
    ('engine queue P99 worst', 'copy', 'KV usage P95')
    """
    said = {
        "ms": "_ms",
        "GB/s": "_gbytes_per_s",
        "share": "_share",
        "1/s": "_per_s",
        "1/request": "_per_request",
    }
    return stages.words(signal.replace(said[unit], "", 1) if unit in said else signal) or signal


def figure(value: float, unit: str) -> str:
    """A figure with its unit.

    >>> figure(0.5, "share").replace(numbers.NO_BREAK, " "), figure(0.29, "1/request"), figure(3.0, "ms")
    ('50 %', '0.29 per request', '3 ms')
    """
    if unit == "share":
        return numbers.percent(value)
    return " ".join(part for part in (numbers.number(value), RATES.get(unit, unit)) if part)


def _reference(one: Evidence) -> str:
    """What the observation is compared to; zero goes without saying."""
    return figure(one.reference, one.unit) if one.reference else ""
