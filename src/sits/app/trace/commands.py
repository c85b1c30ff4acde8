"""`sitsctl trace`, `sitsctl logs` and `sitsctl logs timeouts`.

Rules: all three read a store, no gateway needs to run; lines of a log come out oldest first, as JSON with `--json`, and `--follow` ends with Ctrl-C.

Deliberately absent: looking for things in the text of lines; that is what `grep`, `jq` and Loki are for.
"""

import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import click

from sits.app.quantities import DURATION, Whole

FOLLOW_S = 0.5
LEVELS = ("debug", "info", "warning", "error", "critical")

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


@click.command(short_help="Everything known of one request or trace, on one screen.")
@click.argument("id")
@click.option("--all", "every", is_flag=True, help="Each stage on a line of its own, however short.")
@_store
@_json
def trace(id: str, every: bool, store: Path, as_json: bool) -> int:  # noqa: A002  (the answer's header calls it that)
    """Show all that is known of request or trace ID: its time stage by stage, the spans of other services around it, log lines, decisions.

    ID is what the answer carried as x-sits-decision-id, the trace id of your own logs, a span's id, a traceparent, or the first six or more
    digits of one.  All requests of the trace are shown.
    """
    from sits.app import output  # noqa: PLC0415
    from sits.app.trace.finding import find  # noqa: PLC0415
    from sits.world import RealWorld  # noqa: PLC0415

    output.require_store(store)
    found = find(store, id, RealWorld())
    if as_json:
        output.print_json(found)
        return 0
    from sits.app.trace.screen import show  # noqa: PLC0415

    show(found, output.console(output.WIDTH_PIPED), every=every)
    return 0


@click.group(invoke_without_command=True, short_help="What a gateway said; which failures answers came from.")
@click.option(
    "--trace",
    "trace_id",
    default=None,
    help="Only lines of this trace: its id, a traceparent, or first digits.",
)
@click.option(
    "--level", type=click.Choice(LEVELS), default="info", show_default=True, help="This level and above."
)
@click.option("--process", default=None, help="Only lines of this process, like keeper or worker-0.")
@click.option(
    "--since", type=DURATION, default="24h", show_default=True, help="How far back, like 15m or 24h."
)
@click.option(
    "--limit", type=Whole(min=1), default=1000, show_default=True, help="At most so many lines, the newest."
)
@click.option("-f", "--follow", is_flag=True, help="Go on with what comes, until Ctrl-C.")
@_store
@_json
@click.pass_context
def logs(
    ctx: click.Context,
    trace_id: str | None,
    level: str,
    process: str | None,
    since: int,
    limit: int,
    follow: bool,
    store: Path,
    as_json: bool,
) -> int:
    """Print the log lines that a gateway has put into its store, oldest first.

    With --json a line is the JSON object that `sitsctl up` wrote to stderr.
    """
    if ctx.invoked_subcommand is not None:
        return 0
    from sits.app import output  # noqa: PLC0415
    from sits.app.trace.finding import trace_of  # noqa: PLC0415
    from sits.telemetry.store import DuckStore  # noqa: PLC0415
    from sits.telemetry.tail import Tail  # noqa: PLC0415
    from sits.world import RealWorld  # noqa: PLC0415

    output.require_store(store)
    world, levels = RealWorld(), LEVELS[LEVELS.index(level) :]
    trace_id = None if trace_id is None else trace_of(store, trace_id, world)
    tail = Tail(store, "logs", world=world) if follow else None
    asked = {"trace_id": trace_id, "process": process, "levels": ",".join(levels), "limit": limit}
    with DuckStore(store, world=world) as opened:
        rows = opened.scan("logs_window", since_wall_ns=world.wall_ns() - since, **asked)
    if not (rows or follow or as_json):
        _tell_covered(store, "no such line in that time")
    _print(rows, as_json)
    pause = threading.Event()
    while tail is not None:
        pause.wait(FOLLOW_S)
        if output.reader_left():  # `| grep -m1` has what it wanted, and the next line may be hours away
            raise BrokenPipeError
        new = tail.look()
        fresh = [
            {name: values[i] for name, values in new.items()}
            for i in range(len(new["line"]))
            if new["level"][i] in levels
            and trace_id in (None, new["trace_id"][i])
            and process in (None, new["process"][i])
        ]
        _print(fresh, as_json)
    return 0


@logs.command(short_help="Which engine failures the 502s, 503s and 504s of callers came from.")
@click.option(
    "--since", type=DURATION, default="24h", show_default=True, help="How far back, like 15m or 24h."
)
@click.option("--engine", default=None, help="Only failures of this engine.")
@click.option("--all", "every", is_flag=True, help="One line an answer, not only counts.")
@_store
@_json
def timeouts(since: int, engine: str | None, every: bool, store: Path, as_json: bool) -> int:
    """Join what callers got (our 502, 503 and 504 answers, spans of services that ended in an error) with the engine failure behind it.

    The failure is one of the same trace; a 503 because no engine was up is put down to the last failure of an engine of that model,
    in whatever trace, also one whose request was made good by another engine.  Exits with 1 when there is any.
    """
    from sits.app import output  # noqa: PLC0415
    from sits.app.trace.downstream import looked, show  # noqa: PLC0415
    from sits.world import RealWorld  # noqa: PLC0415

    output.require_store(store)
    found = looked(store, RealWorld(), since, engine)
    if as_json:
        output.print_json(found)
    else:
        show(found, every=every)
    if not (found.answers or as_json):
        _tell_covered(store, "nothing in that time")
    return 1 if found.answers else 0


def _tell_covered(store: Path, nothing: str) -> None:
    """Say on stderr what there is instead: who looks in the wrong place must not take silence for good news."""
    from sits.app.trace.finding import covers  # noqa: PLC0415
    from sits.core.plain_text import plain  # noqa: PLC0415
    from sits.telemetry.store import DuckStore  # noqa: PLC0415
    from sits.world import RealWorld  # noqa: PLC0415

    with DuckStore(store, world=RealWorld()) as opened:
        click.echo(f"sitsctl: {nothing}; {plain(covers(opened, store))}", err=True)


def _print(rows: Iterable[Mapping[str, Any]], as_json: bool) -> None:
    from sits.app.letters import document  # noqa: PLC0415
    from sits.core.plain_text import plain  # noqa: PLC0415
    from sits.telemetry.logs import as_text, facts_of, json_of  # noqa: PLC0415

    for row in rows:
        if as_json:
            click.echo(document(json_of(row)))
        else:
            facts = facts_of(row)
            head = plain(f"{facts['time']}  {facts.get('process', '')!s:<10}")
            click.echo(f"{head}  {as_text(facts)}")
