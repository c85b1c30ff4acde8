"""One trace on one screen: its requests, their time as bars on one scale, the spans of others around them, what was logged and decided.

```
the trace      user service span        ██████████████████  1,204.1     <- one scale: first moment to last, by the wall clock
                 request at engine a      ████████████████    998.4
                   engine's own span        ███████████       901.0
each request   route                    ▏                      0.1     <- its own scale, its own monotonic times
               unattributed (a..b)       █████████████████    997.2     <- named, not hidden
```
Rules: a trace of one request and nothing else is only that request.  A bar is never shorter than one mark, so nothing that happened is invisible;
stages in a row that together stay below `SHORT` of the whole are one line that says how many, unless all are asked for.  Exactness is told where
it is not `measured`.  No colour carries anything that the words do not.  On a narrow screen notes stand below the picture, and the bar goes last of
all but names and numbers.

Deliberately absent: finding it (`finding`).
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from sits.app.output import shown
from sits.app.trace.finding import Asked, Found, Other, Sighting, Stage
from sits.core.plain_text import plain
from sits.core.units import MS
from sits.telemetry.logs import ALWAYS, rfc3339

if TYPE_CHECKING:
    from rich.console import Console

BAR_MIN, BAR_MAX, NAME_MAX, NOTE_MAX = 12, 60, 44, 32
NAME_FEW, NAME_LEAST = 24, 12
"""Columns that names keep where notes want a column; below the least the bar goes."""

GAP = 2
NUMBERS = ("at ms", "took ms")
LINES_MAX, REQUESTS_MAX, DEPTH_MAX = 200, 20, 16
"""Lines of the tree and of the log, requests by themselves, and steps to the right, unless all is asked for."""
SHORT, FEWEST = 0.01, 3
LAYERS = {
    "http": "cyan",
    "scheduler": "yellow",
    "device": "magenta",
    "result": "green",
    "unattributed": "bright_black",
}
_ENDS = {"completed": "green", "failed": "bold red", "refused": "red", "cancelled": "yellow"}


class Line(NamedTuple):
    """One row of a picture: times are ms from its first moment."""

    name: str
    depth: int
    start_ms: float
    ms: float
    note: str
    style: str


def show(found: Found, console: "Console", *, every: bool = False) -> None:
    """Print it; `every` stage by itself."""
    from rich.text import Text  # noqa: PLC0415

    spans = f", {len(found.spans)} spans of others" if found.spans else ""
    count = len(found.requests)
    counted = f"  {count} request{'' if count == 1 else 's'}{spans}"
    console.print(Text.assemble("trace ", (shown(found.trace_id), "bold"), counted))
    if len(tree := lines_of(found)) > 1:
        some = tree if every else tree[:LINES_MAX]
        _picture(some, console)
        if len(tree) > len(some):
            console.print(f"  and {len(tree) - len(some):,} more; --all shows them")
    for asked in found.requests[: None if every else REQUESTS_MAX]:
        _header(asked, console)
        _picture(stage_lines(asked, every=every), console)
    if len(found.requests) > REQUESTS_MAX and not every:
        console.print(f"\nand {len(found.requests) - REQUESTS_MAX:,} more requests; --all shows them")
    for sighting in found.sightings[: None if every else REQUESTS_MAX]:
        _sighted(sighting, console)
    if len(found.sightings) > REQUESTS_MAX and not every:
        console.print(f"\nand {len(found.sightings) - REQUESTS_MAX:,} more sightings; --all shows them")
    if found.logs:
        console.print("\nlog", style="bold")
        for line in found.logs[: None if every else LINES_MAX]:
            console.print(Text(plain(f"  {line.get('time', '')}  {line.get('level', '')!s:<8}{_said(line)}")))
        if len(found.logs) > LINES_MAX and not every:
            console.print(f"  and {len(found.logs) - LINES_MAX:,} more lines; --all shows them")
    for asked in found.requests[: None if every else REQUESTS_MAX]:
        _decided(asked, console, several=count > 1)


def _header(asked: Asked, console: "Console") -> None:
    from rich.text import Text  # noqa: PLC0415

    end = Text.assemble(
        ("request ", ""),
        (shown(asked.id), "bold"),
        "  ",
        (shown(f"{asked.outcome} {asked.status}"), _ENDS.get(asked.outcome, "")),
        f"  {shown(asked.detail)}" if asked.detail else "",
    )
    console.print(end)
    who = [asked.tenant or "anonymous", f"asked {asked.model}"]
    who += [f"adapter {asked.adapter}"] * bool(asked.adapter)
    who += [f"engine {asked.engine}" if asked.engine else "no engine"]
    who += [f"arm {asked.arm}"] * bool(asked.arm)
    console.print(Text(f"  {rfc3339(asked.start_wall_ns)}  {' · '.join(map(shown, who))}"))
    tokens = [f"{asked.prompt_tokens:,} prompt tokens ({asked.cached_tokens:,} cached)"]
    tokens += [f"{asked.output_tokens:,} output tokens"]
    tokens += [f"preempted {asked.preemptions} times"] * bool(asked.preemptions)
    console.print(
        Text(f"  TTFT {_ms(asked.ttft_ms)} · end to end {_ms(asked.e2e_ms)} · {' · '.join(tokens)}")
    )


def lines_of(found: Found) -> list[Line]:
    """The rows of the picture, parents before their children, siblings as they began."""
    every: list[Asked | Other] = [*found.spans, *found.requests]
    if not every:
        return []
    every.sort(key=lambda one: one.start_wall_ns)
    zero = every[0].start_wall_ns
    nodes = {one.span_id: one for one in every}
    children: dict[str, list[Asked | Other]] = {}
    for one in every:
        parent = one.parent_id if one.parent_id in nodes and one.parent_id != one.span_id else ""
        children.setdefault(parent, []).append(one)
    drawn: set[int] = set()
    made = list(_walk(children, children.get("", []), zero, drawn))
    for one in every:  # parents in a circle: drawn once, at the top
        if id(one) not in drawn:
            made += _walk(children, [one], zero, drawn)
    return made


def _walk(
    children: Mapping[str, list[Asked | Other]], tops: Sequence[Asked | Other], zero: int, drawn: set[int]
) -> Iterator[Line]:
    """Depth first, without recursion: a chain of calls may be longer than Python's stack."""
    waiting = [(one, 0) for one in reversed(tops)]
    while waiting:
        one, depth = waiting.pop()
        if id(one) in drawn:
            continue
        drawn.add(id(one))
        yield _line(one, min(depth, DEPTH_MAX), (one.start_wall_ns - zero) / MS)
        waiting += [(child, depth + 1) for child in reversed(children.get(one.span_id, ()))]


def _line(one: Asked | Other, depth: int, start_ms: float) -> Line:
    if isinstance(one, Asked):
        ms = sum(stage.ms for stage in one.stages)
        end = "" if one.outcome == "completed" else f"{one.outcome}: {one.detail}"
        name = f"request at {one.engine or 'no engine'}"
        return Line(name, depth, start_ms, ms, end, _ENDS.get(one.outcome, ""))
    bad = one.status.startswith("ERROR")
    service = one.service.partition("@")[0]  # its process is in the JSON
    name = f"{one.name} ({service})" if service else one.name
    return Line(name, depth, start_ms, one.ms, one.status if bad else "", "bold red" if bad else "blue")


def stage_lines(asked: Asked, *, every: bool) -> list[Line]:
    """The stages of a request; runs of short ones as one line."""
    whole = sum(stage.ms for stage in asked.stages)
    made: list[Line] = []
    short: list[Stage] = []

    def told() -> None:
        if len(short) >= FEWEST:
            name = f"{short[0].name} .. {short[-1].name} ({len(short)} short stages)"
            ms = sum(stage.ms for stage in short)
            made.append(Line(name, 0, short[0].start_ms, ms, _exactness(short), "dim"))
        else:
            made.extend(
                Line(one.name, 0, one.start_ms, one.ms, _exactness([one]), LAYERS[one.layer]) for one in short
            )
        short.clear()

    for stage in asked.stages:
        if short and sum(one.ms for one in short) + stage.ms > SHORT * whole:
            told()
        if not every and stage.ms <= SHORT * whole:
            short.append(stage)
        else:
            told()
            made.append(
                Line(stage.name, 0, stage.start_ms, stage.ms, _exactness([stage]), LAYERS[stage.layer])
            )
    told()
    return made


def _exactness(stages: Sequence[Stage]) -> str:
    """What is not measured among these, told once each."""
    return ", ".join(dict.fromkeys(stage.exactness for stage in stages if stage.exactness != "measured"))


class _Widths(NamedTuple):
    """Columns of a picture; a bar or a note of 0 has no column."""

    name: int
    bar: int
    note: int


def _widths(names: Sequence[str], notes: Sequence[str], numbers: int, console_width: int) -> _Widths:
    """What the columns get.  Numbers always have their room, then names, then notes (whole, or not at all), and the bar has what is left."""
    from rich.cells import cell_len  # noqa: PLC0415

    room = console_width - numbers
    name = min(NAME_MAX, max(map(cell_len, names)))
    note = min(NOTE_MAX, max(map(cell_len, notes)))
    note += GAP * bool(note)
    if room < min(name, NAME_FEW) + GAP + BAR_MIN + note:
        note = 0
    name = min(name, room - note - GAP - BAR_MIN if room - note - GAP - BAR_MIN >= NAME_LEAST else room)
    bar = min(BAR_MAX, room - note - GAP - name)
    return _Widths(max(1, name), bar if bar >= BAR_MIN else 0, max(0, note - GAP))


def _picture(lines: list[Line], console: "Console") -> None:
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    if not lines:
        return
    whole = max(1e-6, *(line.start_ms + line.ms for line in lines))
    names = [shown(_name(line)) for line in lines]
    notes = [shown(line.note) for line in lines]
    rows = [(f"{line.start_ms:,.1f}", f"{line.ms:,.2f}") for line in lines]
    numbers = sum(
        max(len(head), *map(len, column)) + GAP
        for head, column in zip(NUMBERS, zip(*rows, strict=True), strict=True)
    )
    widths = _widths(names, notes, numbers, console.width)
    table = Table(box=None, pad_edge=False, show_header=True, header_style="dim")
    table.add_column("", width=widths.name, no_wrap=True, overflow="ellipsis")
    if widths.bar:
        table.add_column("", width=widths.bar, no_wrap=True)
    for head in NUMBERS:
        table.add_column(head, justify="right", no_wrap=True)
    if widths.note:
        table.add_column("", width=widths.note, overflow="fold")
    for line, name, note, row in zip(lines, names, notes, rows, strict=True):
        bar = Text(drawn(line.start_ms, line.ms, whole, widths.bar), style=line.style) if widths.bar else None
        cells = [Text(name), bar, *row, Text(note) if widths.note else None]
        table.add_row(*(cell for cell in cells if cell is not None))
    console.print()
    console.print(table)
    if not widths.note:
        for name, note in zip(names, notes, strict=True):
            if note:
                console.print(Text(f"  {name.strip()}: {note}"))


def drawn(start: float, length: float, whole: float, width: int) -> str:
    """A bar on a scale of `width` marks.

    >>> drawn(0, 10, 10, 4), drawn(5, 2.5, 10, 4), drawn(10, 0, 10, 4)
    ('████', '  █', '   ▏')
    """
    first = min(width - 1, int(start / whole * width))
    last = min(width, round((start + length) / whole * width))
    return " " * first + ("█" * (last - first) if last > first else "▏")


def _name(line: Line) -> str:
    return "  " * line.depth + line.name


def _sighted(sighting: Sighting, console: "Console") -> None:
    from rich.text import Text  # noqa: PLC0415

    points = ", ".join(
        f"{name} +{ms:,.2f}" + ("" if how == "measured" else f" ({how})") for name, ms, how in sighting.points
    )
    console.print(
        Text(f"\nseen by {plain(sighting.source)} ({sighting.merged}), ms from the first: {points}")
    )


def _decided(asked: Asked, console: "Console", *, several: bool) -> None:
    from rich.text import Text  # noqa: PLC0415

    console.print(Text.assemble("\n", ("decided", "bold"), f"  {shown(asked.id)}" if several else ""))
    card = asked.decision
    if card is None:
        console.print(Text(shown(f"  {asked.undecided}")))
        return
    for name, value in card.facts:
        if name in ("route", "arm", "unit", "cache", "quota", "configuration"):
            console.print(Text(f"  {name}: {shown(value)}"))
    for decision in card.decisions:
        console.print(Text(shown(f"  {decision.policy}: {decision.outcome} {decision.choice}").rstrip()))
    console.print(Text(shown(f"  {card.verdict}")))


def _said(line: Mapping[str, Any]) -> str:
    more = "  ".join(f"{name}={value}" for name, value in line.items() if name not in ALWAYS)
    return f"{line.get('event', '')}  {more}".rstrip()


def _ms(value: float | None) -> str:
    return "not seen" if value is None else f"{value:,.1f} ms"
