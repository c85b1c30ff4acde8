"""How a mistake on the command line is shown, and where the store is for who gave a fleet's file to a command that reads a store.

`check`, `up` and `reload` take the file; `why`, `logs`, `trace` and others take what `up` wrote.  Whoever mixes them up is told the whole line to
type, with `gateway.store` of the file where it can be read.

Deliberately absent: reading the store of a file instead: two ways to say the same would be one too many.
"""

import re
import shlex
from pathlib import Path

import click

_GIVEN = re.compile(r"unexpected extra arguments? \((.*?)(?: |\))")


def show(error: click.ClickException) -> int:
    """Say what was wrong in click's words, below them where the store is if that was the mistake; the exit code."""
    error.show()
    _show_store(error)
    return error.exit_code


def _show_store(error: click.ClickException) -> None:
    context = error.ctx if isinstance(error, click.UsageError) else None
    given = _GIVEN.search(error.message)
    if context is None or given is None or not any("--store" in one.opts for one in context.command.params):
        return
    store = shlex.quote(_store_of(Path(given[1])))
    click.echo(f"It reads a store, not a fleet's file: {context.command_path} --store {store}", err=True)


def _store_of(file: Path) -> str:
    """`gateway.store` of a fleet's file; a word for it where that cannot be read."""
    from sits.core.config import load_fleet  # noqa: PLC0415  # not for every command
    from sits.core.errors import SitsError  # noqa: PLC0415

    try:
        return load_fleet(file.read_text("utf-8"), str(file)).gateway.store
    except (SitsError, OSError, UnicodeDecodeError):
        return "DIRECTORY"
