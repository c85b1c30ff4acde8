"""What spans say about requests: from received spans to rows of table `sightings`.

```
spans of one trace and one source ── sits.bp.* ──> scheme sits
                                  ── a name in core.otel_aliases ──> scheme of that program ──> a row for each subtree of them
```
Rules: a sighting is what one source told of one request, in its own wall clock.  Where several spans tell one point, what was measured
goes before what was derived, and then the earliest (for the last token: the latest).  `parent_id` is the parent of the topmost span, which is our
own span to the engine when the context came through.  Spans that say nothing about a request make no row.

Deliberately absent: our clock, and our rows (`telemetry.joining`).
"""

import math
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sits.core.breakpoints import NAMES, POINT_COUNT
from sits.core.otel_aliases import SITS, Alias, Told, alias_of
from sits.core.otel_names import EXACTNESS, breakpoint_of, exactness_of
from sits.telemetry.otlp.received import Received
from sits.telemetry.tables import SIGHTINGS, Columns, columns_of

_DURATION_MAX_NS = 24 * 3600 * 10**9
"""A duration an engine tells that is longer is no duration."""
_LAST_NS = 2**63 - 1


class _Seen:
    """The points one source told of one request so far."""

    def __init__(self) -> None:
        self.at = [0] * POINT_COUNT
        self.how = [0] * POINT_COUNT

    def tell(self, point: int, wall_ns: int, how: int, *, last: bool = False) -> None:
        if not 0 < wall_ns <= _LAST_NS:
            return
        known = self.how[point]
        later = wall_ns > self.at[point]
        if how > known or (how == known and later == last):
            self.at[point], self.how[point] = wall_ns, how


def sighting_columns(run_id: str, spans: Sequence[Received]) -> Columns:
    """Columns of table `sightings`: a row for each trace, source, scheme and topmost span that told a point."""
    traces: dict[tuple[str, str], list[Received]] = defaultdict(list)
    for one in spans:
        traces[one.span.trace_id, one.source].append(one)
    rows: list[tuple[Any, ...]] = []
    for (trace_id, source), some in traces.items():
        for (scheme, parent_id), seen in _sightings(some).items():
            if any(seen.how):
                exactness = "".join(map(str, seen.how))
                rows.append((run_id, trace_id, source, scheme, *seen.at, exactness, parent_id))
    return columns_of(SIGHTINGS, rows)


def _sightings(spans: Sequence[Received]) -> Mapping[tuple[str, str], _Seen]:
    """By scheme and parent: what the spans of one trace and one source tell."""
    rules = [alias_of(one.span.name) for one in spans]
    sure = {rule.scheme for rule in rules if rule is not None and not rule.common}
    points = [_own_points(one.span.attributes) for one in spans]
    telling = [
        (one, own, rule if rule is not None and _is_meant(rule, one, sure) else None)
        for one, own, rule in zip(spans, points, rules, strict=True)
    ]
    parents = {one.span.span_id: one.span.parent_id for one in spans}
    tells = {one.span.span_id for one, own, rule in telling if own or rule is not None}
    found: dict[tuple[str, str], _Seen] = defaultdict(_Seen)
    for one, own, rule in telling:
        if not own and rule is None:
            continue
        above = _above(one.span.span_id, parents, tells)
        for point, wall_ns, how in own:
            found[SITS, above].tell(point, wall_ns, how)
        if rule is None:
            continue
        for told in rule.tells:
            if (at_ns := _time(told, one)) is not None:
                found[rule.scheme, above].tell(told.point, at_ns, told.how, last=told.last)
    return found


def _is_meant(rule: Alias, one: Received, sure: set[str]) -> bool:
    return not rule.common or rule.scheme in sure or rule.scheme in f"{one.scope} {one.service}".lower()


def _above(span_id: str, parents: Mapping[str, str], tells: Collection[str]) -> str:
    """The parent of the topmost of a span's ancestors here that tells something, itself included."""
    above = parents[span_id]
    for _ in range(len(parents)):  # a circle of parents ends as well
        parent_id = parents.get(span_id, "")
        if parent_id not in parents:
            break
        span_id = parent_id
        if span_id in tells:
            above = parents[span_id]
    return above


def _own_points(attributes: Mapping[str, Any]) -> Sequence[tuple[int, int, int]]:
    points: list[tuple[int, int, int]] = []
    for key, value in attributes.items():
        point = breakpoint_of(key)
        if point is not None and isinstance(value, int) and not isinstance(value, bool):
            points.append((point, value, exactness_of(attributes.get(EXACTNESS + NAMES[point]))))
    return points


def _time(told: Told, one: Received) -> int | None:
    """When a point was, as a span tells it; None when it lacks what that takes."""
    at = one.span.start_ns if told.edge == "start" else one.span.end_ns
    for term in told.terms:
        value = one.span.attributes.get(term.attribute)
        if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
            return None
        ns = value * term.ns
        if value < 0 or abs(ns) > _DURATION_MAX_NS:
            return None
        at += round(ns)
    return at
