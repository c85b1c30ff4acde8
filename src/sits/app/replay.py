"""`sitsctl explain` and `sitsctl replay`: why one request was decided so, and how yesterday's would be by another file.

Both read the decision records that `sitsctl up` keeps in its store, and decide them again by the code that decided them.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from sits.bench.explained import Card
    from sits.bench.redecided import P99, Replayed

_store = click.option(
    "--store",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("sits-store"),
    show_default=True,
    help="Where `sitsctl up` records to.",
)
_json = click.option(
    "--json", "as_json", is_flag=True, help="Print the result as JSON, and nothing else, on stdout."
)


@click.command(short_help="Explain the decisions of one request.")
@click.argument("id")
@_store
@_json
def explain(id: str, store: Path, as_json: bool) -> int:  # noqa: A002  (the answer's header calls it that)
    """Explain how request ID was decided: who asked, which arm, which engine and why not another, and where its time went.

    ID is what the answer carried as x-sits-decision-id, or whatever else `sitsctl trace` takes, where it names one request: a trace id, a
    traceparent, the first six or more digits.  Exits with 1 when it is decided otherwise now than it was.
    """
    from sits.app import output  # noqa: PLC0415

    output.require_store(store)
    card = _card(store, id.strip())
    if as_json:
        output.print_json(card)
    else:
        _show_card(card)
    return 0 if card.identical is not False else 1


def _card(store: Path, asked: str) -> "Card":
    from sits.app.trace.finding import prefix_of, request_of  # noqa: PLC0415
    from sits.bench.explained import explain as look  # noqa: PLC0415
    from sits.core.errors import CallerError, UnknownError  # noqa: PLC0415
    from sits.core.plain_text import plain  # noqa: PLC0415
    from sits.world import RealWorld  # noqa: PLC0415

    world = RealWorld()
    try:
        return look(store, plain(asked), world)
    except UnknownError as unknown:
        try:
            prefix_of(asked)
        except CallerError:
            raise unknown from None
        return look(store, request_of(store, asked, world), world)


@click.command(short_help="Decide recorded traffic again, by this or another configuration.")
@click.option("--since", default="24h", show_default=True, help="How far back, like 15m or 24h.")
@click.option(
    "--candidate",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The fleet.yaml to decide by; without it, only the proof that records decide as they did.",
)
@_store
@_json
@click.option("-q", "--quiet", is_flag=True, help="No progress on stderr.")
def replay(since: str, candidate: Path | None, store: Path, as_json: bool, quiet: bool) -> int:
    """Decide recorded traffic again: what would move, who would be refused, and what P99 would be.

    Exits with 1 when a record is decided otherwise by its own configuration, or the candidate's P99 is not proven under its
    objective.
    """
    from sits.app import output  # noqa: PLC0415
    from sits.app.terminal import Progress  # noqa: PLC0415
    from sits.bench.redecided import History  # noqa: PLC0415
    from sits.bench.redecided import replay as decide  # noqa: PLC0415
    from sits.core.config import load_fleet  # noqa: PLC0415
    from sits.core.units import parse_duration  # noqa: PLC0415
    from sits.world import RealWorld  # noqa: PLC0415

    output.require_store(store)
    world = RealWorld()
    fleet = load_fleet(output.read_text(candidate), str(candidate)) if candidate else None
    metric = fleet.objective.metric if fleet else "ttft"
    with Progress(quiet=quiet) as progress:
        found = decide(History(store, parse_duration(since), world, metric), fleet, world, progress)
    if as_json:
        output.print_json(found)
    else:
        _show(found, fleet is not None)
    good = found.identical == found.records and not (
        found.candidate is not None and found.candidate.high_ms > found.objective_ms
    )
    return 0 if good else 1


def _show(found: "Replayed", compared: bool) -> None:
    from rich.table import Table  # noqa: PLC0415

    from sits.app.output import console, shown  # noqa: PLC0415

    out = console()
    out.print(f"{found.identical:,} of {found.records:,} decisions come out as they were")
    if found.unknown:
        out.print(f"{found.unknown:,} more were made by a configuration the store does not have")
    for name in found.different:
        out.print(f"  decided otherwise: {shown(name)}")
    if not compared:
        return
    moved = sum(move.requests for move in found.moves)
    out.print(f"\nby the candidate, {found.stay:,} stay where they were and {moved:,} move")
    table = Table("requests", "went to", "would go to", box=None, pad_edge=False)
    for move in found.moves:
        table.add_row(f"{move.requests:,}", shown(move.before), shown(move.after))
    if found.moves:
        out.print(table)
    for reason, count in found.refused:
        out.print(f"refused that were not: {count:,} ({shown(reason)})")
    out.print(f"\nP99 {found.metric.upper()} as it was   {_p99(found.now)}")
    out.print(
        f"P99 {found.metric.upper()} predicted   {_p99(found.candidate) if not found.why_not else shown(found.why_not)}"
    )
    out.print(
        f"objective {found.objective_ms:,.0f} ms.  Who moves takes the time of a like request that the new engine answered;"
        " that it answers more as fast is assumed."
    )


def _p99(value: "P99 | None") -> str:
    if value is None:
        return "not known"
    return f"{value.ms:,.0f} ms [{value.low_ms:,.0f}, {value.high_ms:,.0f}] of {value.requests:,} requests"


def _show_card(card: "Card") -> None:
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    from sits.app.output import console, shown  # noqa: PLC0415

    out = console()
    end = f"  {card.outcome} {card.status}  {card.detail}".rstrip()
    out.print(Text.assemble((shown(card.id), "bold"), shown(end)))
    facts = Table(box=None, show_header=False, pad_edge=False)
    for name, value in card.facts:
        facts.add_row(name, shown(value))
    out.print(facts)
    for decision in card.decisions:
        decided = f"  {decision.outcome}  {decision.choice}".rstrip()
        out.print(Text.assemble("\n", (shown(decision.policy), "bold"), shown(decided)))
        rows: list[dict[str, Any]] = list(decision.reasons.get("candidates", ()))
        if rows:
            names = list(dict.fromkeys(name for row in rows for name in row))
            table = Table(*map(shown, names), box=None, pad_edge=False)
            for row in rows:
                table.add_row(*(shown(_cell(row.get(name))) for name in names))
            out.print(table)
        for name, value in decision.reasons.items():
            if name != "candidates" and value not in ({}, ()):
                out.print(f"  {shown(name)}: {shown(_cell(value))}")
    if card.stages:
        out.print("\ntime", style="bold")
        table = Table("stage", "ms", box=None, pad_edge=False)
        for stage in card.stages:
            table.add_row(stage.name, f"{stage.ms:,.2f}")
        out.print(table)
    out.print(f"\n{shown(card.verdict)}")


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3f}".rstrip("0").rstrip(".")
    if isinstance(value, dict):
        return ", ".join(f"{name}={_cell(one)}" for name, one in value.items())
    return "" if value is None else str(value)
