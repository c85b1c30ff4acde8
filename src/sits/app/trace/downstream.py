"""What callers got, beside the engine failure it came from: `sitsctl logs timeouts`.

Rules: the join is the store's named query `upstream_failures`; here its rows are counted by engine, failure and what was got, the most
frequent first, each with when it was first and last and with traces to look at.

A first try that was made good elsewhere is no answer, but may have closed the engine that later answers lacked; then it is told as such.
In a pipe a row is one line, however long; on a screen too narrow for the table each row is a block of lines, so that no id is broken in two.

Deliberately absent: failures that nobody downstream noticed (a retry that went well and closed nothing).
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from sits.app import output
from sits.core.ports import World
from sits.telemetry.logs import rfc3339
from sits.telemetry.secrets import text_without_secrets
from sits.telemetry.store import DuckStore

if TYPE_CHECKING:
    from rich.console import Console

EXAMPLES = 3
NAMES = ("engine", "failure", "at", "got", "because", "n", "first", "last", "traces")
GAP = 2
WORDS = frozenset({"got", "because", "traces"})
"""Columns of several words."""

_WORDS = {
    "itself": "the answer itself",
    "trace": "same trace",
    "breaker": "engine closed after it",
    "mended": "engine closed after a retried try",
}


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """Something a caller got; `cause_trace_id` is the failure's trace, another one where a breaker stood between them."""

    wall_ns: int
    trace_id: str
    service: str
    got: str
    what: str
    engine: str
    cause: str
    how: str
    cause_id: str
    cause_trace_id: str


class Counted(msgspec.Struct, frozen=True, kw_only=True):
    """Answers alike: how many, when, and traces of the newest."""

    engine: str
    cause: str
    service: str
    got: str
    how: str
    count: int
    first_wall_ns: int
    last_wall_ns: int
    traces: tuple[str, ...]


class Looked(msgspec.Struct, frozen=True):
    """What there is."""

    counts: tuple[Counted, ...]
    answers: tuple[Answer, ...]


def looked(store: Path, world: World, since_ns: int, engine: str | None) -> Looked:
    """Ask the store of the last `since_ns`."""
    with DuckStore(store, world=world) as opened:
        rows = opened.scan("upstream_failures", since_wall_ns=world.wall_ns() - since_ns, engine=engine)
    answers = tuple(
        Answer(
            what=text_without_secrets(row["detail"]),
            wall_ns=int(row["wall_ns"]),
            **{
                name: text_without_secrets(row[name])
                for name in (
                    "trace_id",
                    "service",
                    "got",
                    "engine",
                    "cause",
                    "how",
                    "cause_id",
                    "cause_trace_id",
                )
            },
        )
        for row in rows
    )
    groups: dict[tuple[str, ...], list[Answer]] = {}
    for one in answers:
        groups.setdefault((one.engine, one.cause, one.service, one.got, one.how), []).append(one)
    counts = [_counted(group) for group in groups.values()]
    return Looked(tuple(sorted(counts, key=lambda one: (-one.count, one.engine, one.cause))), answers)


def _counted(group: Sequence[Answer]) -> Counted:
    one = group[0]
    traces = dict.fromkeys(answer.trace_id for answer in reversed(group))
    return Counted(
        engine=one.engine,
        cause=one.cause,
        service=one.service,
        got=one.got,
        how=one.how,
        count=len(group),
        first_wall_ns=min(answer.wall_ns for answer in group),
        last_wall_ns=max(answer.wall_ns for answer in group),
        traces=tuple(list(traces)[:EXAMPLES]),
    )


def show(found: Looked, *, every: bool) -> None:
    """Print it as a table."""
    from rich.table import Table  # noqa: PLC0415

    console = output.console()
    if not found.answers:
        console.print("no answer of that time came from an engine failure")
        return
    rows = [_cells(one) for one in found.counts]
    if (widths := _widths(rows, console.width)) is None:
        for nth, row in enumerate(rows):
            _as_block(row, console, first=not nth)
    else:
        table = Table(box=None, pad_edge=False, header_style="dim")
        for name, width in zip(NAMES, widths, strict=True):
            table.add_column(name, justify="right" if name == "n" else "left", width=width, overflow="fold")
        for row in rows:
            table.add_row(*row)
        console.print(table)
    if every:
        console.print()
        for answer in found.answers:
            console.print(output.shown(_line(answer)), soft_wrap=True)
    else:
        console.print("\n`sitsctl trace` shows one of the traces; times are UTC")


def _cells(one: Counted) -> tuple[str, ...]:
    """A row of the table, in the order of `NAMES`."""
    made = (one.engine, one.cause, one.service, one.got)
    return (
        *map(output.shown, made),
        _WORDS.get(one.how, one.how),
        f"{one.count:,}",
        _clock(one.first_wall_ns),
        _clock(one.last_wall_ns),
        " ".join(output.shown(trace[:12]) for trace in one.traces),
    )


def _widths(rows: Sequence[tuple[str, ...]], room: int) -> list[int] | None:
    """What each column gets, so that lines are broken between words only, and there only where words are; None where that cannot be."""
    from rich.cells import cell_len  # noqa: PLC0415

    columns = [(name, *column) for name, column in zip(NAMES, zip(*rows, strict=True), strict=True)]
    most = [max(map(cell_len, column)) for column in columns]
    widths = [
        max(cell_len(word) for cell in column for word in (cell.split() if column[0] in WORDS else [cell]))
        for column in columns
    ]
    left = room - sum(widths) - GAP * len(widths)
    if left < 0:
        return None
    for i, full in enumerate(most):
        more = min(left, full - widths[i])
        widths[i], left = widths[i] + more, left - more
    return widths


def _as_block(row: tuple[str, ...], console: "Console", *, first: bool) -> None:
    """A row where the table has no room: a cell a line, none of them cut where it could be copied."""
    if not first:
        console.print()
    wide = max(map(len, NAMES))
    for name, cell in zip(NAMES, row, strict=True):
        console.print(f"{name:<{wide}}  {cell}", soft_wrap=True)


def _line(one: Answer) -> str:
    because = f" of trace {one.cause_trace_id}" if one.cause_trace_id != one.trace_id else ""
    mended = ", retried elsewhere" if one.how == "mended" else ""
    return (
        f"{rfc3339(one.wall_ns)}  {one.trace_id}  {one.service} got {one.got} ({one.what})"
        f"  <- {one.engine} {one.cause}{mended}{because}"
    )


def _clock(wall_ns: int) -> str:
    return rfc3339(wall_ns)[5:19].replace("T", " ")
