"""`sitsctl up` and `sitsctl reload`: a gateway begins to serve, and is told that its file has changed.

Rules: this module loads nothing but click, for workers inherit what the command has loaded before it forks them.

Deliberately absent: the processes (app.up).
"""

import os
import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from sits.app.up.notice import Notice

WAIT_S, LOOK_S = 15.0, 0.05
"""How long `reload` waits for the gateway's answer, and how often it looks."""

_file = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command(short_help="Serve a fleet until Ctrl-C; every request is timed.")
@click.argument("fleet", type=_file)
@click.option(
    "--workers",
    type=click.IntRange(1, 256),
    default=None,
    help="Processes that serve on the one port.  [default: the fleet's]",
)
@click.option(
    "--log-format",
    type=click.Choice(("auto", "text", "json")),
    default="auto",
    show_default=True,
    help="Lines on stderr: text for people, JSON for machines; auto is text on a terminal.",
)
@click.option("-q", "--quiet", is_flag=True, help="Nothing on stderr; `sitsctl logs` has it all the same.")
def up(fleet: Path, workers: int | None, log_format: str, quiet: bool) -> int:
    """Serve FLEET (a fleet.yaml) until Ctrl-C, then drain.

    Every request is timed and kept in the fleet's store; `sitsctl why` explains it.  `sitsctl reload` (or SIGHUP) makes
    it read FLEET again; a file that is wrong changes nothing.
    """
    from sits.app.serve import up as serve  # noqa: PLC0415
    from sits.telemetry.logs import Log, form_of, to_stderr  # noqa: PLC0415
    from sits.world import RealWorld  # noqa: PLC0415

    log = Log(RealWorld(), None if quiet else to_stderr, form_of(log_format))
    serve(fleet, log.of("supervisor"), workers)
    return 0


@click.command(short_help="Make a running gateway read its file again.")
@click.argument("fleet", type=_file)
def reload(fleet: Path) -> int:
    """Make the gateway that serves FLEET read it again.

    The file is checked here first; what runs then ends on the old configuration, what comes begins on the new one.
    Exits with 2 when the file is refused, and nothing has changed then.
    """
    from sits.app.up.generation import read  # noqa: PLC0415
    from sits.app.up.notice import notice_of  # noqa: PLC0415
    from sits.core.errors import BugError  # noqa: PLC0415

    store = Path(read(fleet).gateway.store)
    before = notice_of(store, fleet)
    os.kill(before.pid, signal.SIGHUP)
    pause, after = threading.Event(), before
    for _ in range(round(WAIT_S / LOOK_S)):
        after = notice_of(store, fleet)
        if after.reloads != before.reloads:
            return _tell(before, after)
        pause.wait(LOOK_S)
    raise BugError(f"process {before.pid} did not say what became of it in {WAIT_S:.0f} s")


def _tell(before: "Notice", after: "Notice") -> int:
    if after.reloads["refused"] > before.reloads["refused"]:
        for problem in after.problems:
            click.echo(problem, err=True)
        return 2
    click.echo(f"generation {after.generation} ({after.name}) serves on {after.address}")
    return 0
