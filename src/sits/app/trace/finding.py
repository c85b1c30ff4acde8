"""All that a store has of one trace: requests, spans and sightings of others, log lines, decisions.

Rules: an id is a request's, a trace's or a span's, whole or its first digits (at least `DIGITS_MIN`), or a whole `traceparent`; what it finds is
always the whole trace, with every request in it.  Several traces that begin alike are an error that names them.  What an engine saw is merged into its
request by `telemetry.joining`, under that module's rule of clocks.

Deliberately absent: drawing it (`screen`), and why it was slow (`sitsctl why`).
"""

import itertools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from sits.bench.explained import Card, explain
from sits.core.breakpoints import API_RECV, FIRST_TOKEN, NAMES, SENT, Exactness
from sits.core.errors import CallerError, SitsError, UnknownError
from sits.core.ports import World
from sits.core.units import MS, SECOND
from sits.diagnose.decompose import stage_between
from sits.telemetry.joining import Source, completed
from sits.telemetry.logs import facts_of, rfc3339
from sits.telemetry.secrets import text_without_secrets, without_secrets
from sits.telemetry.store import DuckStore

DIGITS_MIN, WHOLE = 6, 32
SHOWN = 8
"""Traces named when an id is of several."""

CUT = 64
"""Letters said again of what was asked for."""

DECISIONS_MAX = 20
"""Requests of one trace whose decisions are told."""

AROUND_NS = 10 * SECOND

_PARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})(-[0-9a-f]{2})?")
Row = Mapping[str, Any]


class Stage(msgspec.Struct, frozen=True):
    """One part of a request's time: ms from its first byte, how long, and the least exact of its two ends."""

    name: str
    layer: str
    start_ms: float
    ms: float
    exactness: str


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """One request of the trace.

    Attributes:
        span_id, parent_id: its place among the spans; start_wall_ns: first byte in, ns since the epoch.
        ttft_ms, e2e_ms: None where an end was not seen; stages: they add up to the time between the first and the last point seen.

    """

    id: str
    span_id: str
    parent_id: str
    tenant: str
    model: str
    adapter: str
    engine: str
    arm: str
    outcome: str
    status: int
    detail: str
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    preemptions: int
    start_wall_ns: int
    ttft_ms: float | None
    e2e_ms: float | None
    stages: tuple[Stage, ...]
    decision: Card | None
    undecided: str


class Other(msgspec.Struct, frozen=True, kw_only=True):
    """A span that somebody else sent."""

    span_id: str
    parent_id: str
    service: str
    name: str
    kind: str
    start_wall_ns: int
    ms: float
    status: str
    attributes: Mapping[str, Any]


class Sighting(msgspec.Struct, frozen=True):
    """What an engine or a probe saw, by its own clock: ms from the first of its points; `merged` tells what became of it."""

    source: str
    parent_id: str
    points: tuple[tuple[str, float, str], ...]
    merged: str


class Found(msgspec.Struct, frozen=True):
    """A trace."""

    trace_id: str
    requests: tuple[Asked, ...]
    spans: tuple[Other, ...]
    sightings: tuple[Sighting, ...]
    logs: tuple[Mapping[str, Any], ...]


def find(store: Path, asked: str, world: World) -> Found:
    """The trace that `asked` names.

    Raises:
        CallerError: that is no id; UnknownError: nothing, or more than one trace, begins so.

    """
    with DuckStore(store, world=world) as opened:
        trace_id = _trace_of(opened, store, asked)
        rows = opened.scan("trace", trace_id=trace_id)
        sources: Sequence[Source] = ()
        if (sightings := opened.scan("trace_sightings", trace_id=trace_id)) and rows:
            rows, sources = _merged(opened, rows, trace_id)
        spans = opened.scan("trace_spans", trace_id=trace_id)
        logs = opened.scan("trace_logs", trace_id=trace_id)
    requests = [
        asked_of(row, *_decision(store, str(row["id"]), world, nth < DECISIONS_MAX))
        for nth, row in enumerate(rows)
    ]
    return Found(
        trace_id=trace_id,
        requests=tuple(requests),
        spans=tuple(map(_other, spans)),
        sightings=tuple(_sighting(row, sources) for row in sightings),
        logs=tuple(map(facts_of, logs)),
    )


def request_of(store: Path, asked: str, world: World) -> str:
    """The id of the one request that `asked` names, in any way that `find` knows.

    Raises:
        CallerError: that is no id; UnknownError: nothing begins so, or more than one request.

    """
    with DuckStore(store, world=world) as opened:
        ids = [str(row["id"]) for row in opened.scan("trace", trace_id=_trace_of(opened, store, asked))]
        if not ids:
            raise _none(opened, store, asked)
    prefix = prefix_of(asked)
    meant = [one for one in ids if one.startswith(prefix)] or ids
    if len(meant) > 1:
        raise _several(asked, meant, "requests")
    return meant[0]


def trace_of(store: Path, asked: str, world: World) -> str:
    """The id of the trace that `asked` names; a whole one is itself, whether or not it is there yet.

    Raises:
        CallerError: that is no id; UnknownError: nothing, or more than one trace, begins so.

    """
    prefix = prefix_of(asked)
    if len(prefix) == WHOLE:
        return prefix
    with DuckStore(store, world=world) as opened:
        return _trace_of(opened, store, asked)


def _trace_of(opened: DuckStore, store: Path, asked: str) -> str:
    traces = [str(row["trace_id"]) for row in opened.scan("ids_like", prefix=prefix_of(asked))]
    if len(traces) != 1:
        raise _none(opened, store, asked) if not traces else _several(asked, traces)
    return traces[0]


def prefix_of(asked: str) -> str:
    """The digits that an id, its beginning, or a `traceparent` is looked for by.

    >>> prefix_of("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"), prefix_of(" 4BF92F ")
    ('4bf92f3577b34da6a3ce929d0e0e4736', '4bf92f')
    """
    text = asked.strip().lower()
    if (whole := _PARENT.fullmatch(text)) is not None:
        return whole[1]
    digits = text.replace("-", "")
    if not re.fullmatch(rf"[0-9a-f]{{{DIGITS_MIN},32}}", digits):
        raise CallerError(
            f"{asked[:CUT]!r} is no id of a request or a trace",
            field="id",
            value=asked,
            hint=f"{DIGITS_MIN} to 32 hex digits: what answers carry as x-sits-decision-id, or the trace of your own logs",
        )
    return digits


def asked_of(row: Row, decision: Card | None, undecided: str) -> Asked:
    """One row of table `requests`, with its time cut into stages."""
    how = str(row["exactness"])
    seen = [i for i in range(len(NAMES)) if how[i : i + 1] not in ("", "0")]
    at = {i: int(row[NAMES[i]]) for i in seen}
    start = at[seen[0]] if seen else 0
    stages = tuple(
        Stage(
            *stage_between(a, b),
            start_ms=(at[a] - start) / MS,
            ms=(at[b] - at[a]) / MS,
            exactness=Exactness(min(int(how[a]), int(how[b]))).name.lower(),
        )
        for a, b in itertools.pairwise(seen)
    )
    texts: Row = {
        name: text_without_secrets(row[name] or "")
        for name in ("id", "tenant", "model", "adapter", "engine", "arm", "outcome", "detail")
    }
    counts: Row = {
        name: int(row[name] or 0)
        for name in ("status", "prompt_tokens", "cached_tokens", "output_tokens", "preemptions")
    }
    return Asked(
        **texts,
        **counts,
        span_id=texts["id"][16:],
        parent_id=str(row["parent_id"] or ""),
        start_wall_ns=int(row["wall_ns"]),
        ttft_ms=_between(at, API_RECV, FIRST_TOKEN),
        e2e_ms=_between(at, API_RECV, SENT),
        stages=stages,
        decision=decision,
        undecided=undecided,
    )


def _between(at: Mapping[int, int], start: int, end: int) -> float | None:
    return (at[end] - at[start]) / MS if start in at and end in at else None


def _decision(store: Path, request_id: str, world: World, wanted: bool) -> tuple[Card | None, str]:
    """What was decided, or why that is not told."""
    if not wanted:
        return None, f"`sitsctl explain {request_id}` tells"
    try:
        return explain(store, request_id, world), ""
    except SitsError as error:
        return None, error.message


def _other(row: Row) -> Other:
    return Other(
        span_id=str(row["span_id"]),
        parent_id=str(row["parent_id"] or ""),
        service=text_without_secrets(row["service"] or ""),
        name=text_without_secrets(row["name"]),
        kind=str(row["kind"] or "").lower(),
        start_wall_ns=int(row["start_wall_ns"]),
        ms=(int(row["end_wall_ns"]) - int(row["start_wall_ns"])) / MS,
        status=text_without_secrets(row["status"] or ""),
        attributes=without_secrets("", _attributes(row["attributes"])),
    )


def _attributes(said: str | None) -> Mapping[str, Any]:
    """Attributes as they were stored; what is no object is one text."""
    try:
        found = msgspec.json.decode(said or "{}")
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        found = None
    return found if isinstance(found, dict) else {"attributes": said}


def _merged(opened: DuckStore, rows: Sequence[Row], trace_id: str) -> tuple[Sequence[Row], Sequence[Source]]:
    """The rows with what others saw; clocks are compared over the requests nearest to them, of the seconds around."""
    times = [int(row["wall_ns"]) for row in rows]
    window = {"since_wall_ns": min(times) - AROUND_NS, "until_wall_ns": max(times) + AROUND_NS}
    at_wall_ns = (min(times) + max(times)) // 2
    known = opened.columns("requests_around", **window, trace_id=trace_id, at_wall_ns=at_wall_ns)
    joined = completed(known, opened.columns("sightings_window", **window))
    wanted = {(str(row["run_id"]), str(row["id"])) for row in rows}
    at = [i for i, key in enumerate(zip(known["run_id"], known["id"], strict=True)) if key in wanted]
    return [{name: values[i] for name, values in joined.requests.items()} for i in at], joined.sources


def _became(row: Row, sources: Sequence[Source]) -> str:
    for one in sources:
        if (one.source, one.scheme) == (row["source"], row["scheme"]):
            if not one.comparable:
                return "not merged: its clock and ours cannot be compared"
            moved = f", moved by {-one.shift_ns / MS:+,.3f} ms" if one.shift_ns else ", clocks taken as one"
            return f"merged into the request's time{moved}"
    return "not merged: it tells of no request in particular"


def _sighting(row: Row, sources: Sequence[Source]) -> Sighting:
    how = str(row["exactness"])
    seen = [i for i in range(len(NAMES)) if how[i : i + 1] not in ("", "0")]
    first = min((int(row[NAMES[i]]) for i in seen), default=0)
    points = tuple(
        (NAMES[i], (int(row[NAMES[i]]) - first) / MS, Exactness(int(how[i])).name.lower()) for i in seen
    )
    return Sighting(str(row["source"]), str(row.get("parent_id") or ""), points, _became(row, sources))


def _none(opened: DuckStore, store: Path, asked: str) -> UnknownError:
    return UnknownError(
        f"nothing of {asked[:CUT]!r} is recorded; {covers(opened, store)}",
        field="id",
        value=asked,
        hint="rows reach the store within seconds, and may be sampled (telemetry.sampling); --store names another store",
    )


def covers(opened: DuckStore, store: Path) -> str:
    """What a store has, in words: for whoever finds nothing in it."""
    known = opened.scan("store_window")
    if not known:
        return f"{store} has no request yet"
    first, last = rfc3339(int(known[0]["first_wall_ns"])), rfc3339(int(known[0]["last_wall_ns"]))
    count = int(known[0]["requests"])
    return f"{store} has {count:,} request{'' if count == 1 else 's'} from {first} to {last}"


def _several(asked: str, traces: Sequence[str], what: str = "traces") -> UnknownError:
    more = f" and {len(traces) - SHOWN} more" if len(traces) > SHOWN else ""
    return UnknownError(
        f"{asked[:CUT]!r} names {len(traces)} {what}: {', '.join(traces[:SHOWN])}{more}",
        field="id",
        value=asked,
        hint="give more digits" if what == "traces" else "name one of them",
    )
