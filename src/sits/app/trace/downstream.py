"""What callers got, beside the engine failure it came from: `sitsctl logs timeouts`.

Rules: the join is the store's named query `upstream_failures`; here its rows are counted by engine, failure and what was got, the most
frequent first, each with when it was first and last and with traces to look at.

A first try that was made good elsewhere is no answer, but may have closed the engine that later answers lacked; then it is told as such.
In a pipe a row is one line, however long.

Deliberately absent: failures that nobody downstream noticed (a retry that went well and closed nothing).
"""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from sits.app import output
from sits.core.ports import World
from sits.telemetry.logs import rfc3339
from sits.telemetry.secrets import text_without_secrets
from sits.telemetry.store import DuckStore

EXAMPLES = 3
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
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("engine", "failure", "at", "got", "because", "n", "first", "last", "traces"):
        table.add_column(name, justify="right" if name == "n" else "left", overflow="fold")
    for one in found.counts:
        table.add_row(
            output.shown(one.engine),
            output.shown(one.cause),
            output.shown(one.service),
            output.shown(one.got),
            _WORDS.get(one.how, one.how),
            f"{one.count:,}",
            _clock(one.first_wall_ns),
            _clock(one.last_wall_ns),
            " ".join(output.shown(trace[:12]) for trace in one.traces),
        )
    console.print(table)
    if every:
        console.print()
        for answer in found.answers:
            console.print(output.shown(_line(answer)), soft_wrap=True)
    else:
        console.print("\n`sitsctl trace` shows one of the traces; times are UTC")


def _line(one: Answer) -> str:
    because = f" of trace {one.cause_trace_id}" if one.cause_trace_id != one.trace_id else ""
    mended = ", retried elsewhere" if one.how == "mended" else ""
    return (
        f"{rfc3339(one.wall_ns)}  {one.trace_id}  {one.service} got {one.got} ({one.what})"
        f"  <- {one.engine} {one.cause}{mended}{because}"
    )


def _clock(wall_ns: int) -> str:
    return rfc3339(wall_ns)[5:19].replace("T", " ")
