"""What a command leaves behind: lines on standard output, files in a directory, an exit code.

Rules: `--json` prints one document on standard output and nothing else there; the path of a written report then
goes to standard error.  Colour only where standard output is a terminal and `NO_COLOR` is not set.
"""

import errno
import os
import select
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from sits.app.letters import document
from sits.app.report import render_html, report_json, summary_text
from sits.app.report.verdict import state
from sits.core.config import dump_fleet
from sits.core.errors import ConfigError
from sits.core.plain_text import plain, plain_json
from sits.core.report import Report
from sits.telemetry.secrets import text_without_secrets

if TYPE_CHECKING:
    from rich.console import Console

WIDTH_PIPED, WIDTH_MOST = 100, 120
ONE_LINE = 10_000
"""Columns of a pipe whose reader wants each row on a line of its own: `grep` and `awk` find no half rows."""


def console(piped: int = ONE_LINE) -> "Console":
    """Where tables are printed: as wide as the terminal, or `piped` columns where there is none; texts are no markup and no emoji."""
    from rich.console import Console  # noqa: PLC0415  # rich is heavy; only tables need it

    width = None if sys.stdout.isatty() else piped
    return Console(highlight=False, markup=False, emoji=False, width=width)


def shown(text: object) -> str:
    r"""A text that others made up, as it may stand on a screen: one line that drives no terminal, and without what looks like a key.

    >>> shown("m\x1b[2J\nsk-0123456789abcdef")
    'm\\x1b[2J\\n[redacted]'
    """
    return plain(text_without_secrets(text))


def show(report: Report, *, as_json: bool, written: Path | None) -> None:
    """Print the report, and last of all where its page lies: an absolute path, for terminals open those."""
    if as_json:
        click.echo(document(plain_json(report_json(report).decode())), nl=False)
    else:
        on_terminal = sys.stdout.isatty()
        colour = on_terminal and not os.environ.get("NO_COLOR")
        width = min(WIDTH_MOST, shutil.get_terminal_size().columns) if on_terminal else WIDTH_PIPED
        click.echo(summary_text(report, colour=colour, width=width), nl=False, color=colour)
    if written is not None:
        path = written.absolute()
        click.echo(f"report: {path}" if as_json else f"\nreport: {path}", err=as_json)


def proven(report: Report) -> bool:
    """Whether the run judged (`after` where there is one) is proven to meet the objective."""
    return state(report) == "met"


def reader_left() -> bool:
    """Whether nobody can read standard output any more: a pipe whose other end is closed, a terminal that is gone."""
    try:
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)
        return bool(poll.poll(0))
    except (OSError, ValueError):  # no file of the system's
        return False


def require_store(store: Path) -> None:
    """Refuse a store that is not there, saying who makes one.

    Raises:
        click.BadParameter: no such directory.

    """
    if not store.is_dir():
        raise click.BadParameter(
            f"no directory {str(store)!r}; `sitsctl up` writes one where its fleet.yaml says (gateway.store)",
            param_hint="'--store'",
        )


def prepare(out: Path | None) -> None:
    """Look whether the directory `out`, if any, can be made, before minutes of work; a bad one is told at once.

    Nothing is made yet: work that fails leaves no empty directory behind.

    Raises:
        OSError: it cannot be made or written to.

    """
    if out is None:
        return
    place = next(path for path in (out, *out.absolute().parents) if os.path.lexists(path))
    if not place.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(out))
    if not os.access(place, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(out))


def write_page(report: Report, path: Path) -> Path:
    """Write the HTML page."""
    return _write(path, render_html(report).encode())


def write_report(report: Report, out: Path) -> Path:
    """Write report.html, report.json and, of a reproduction, both configurations; the path of the page."""
    _write(out / "report.json", report_json(report))
    for name, side in (("before", report.before), ("after", report.after)):
        if report.kind == "reproduce" and side is not None and side.fleet is not None:
            _write(out / f"fleet.{name}.yaml", dump_fleet(side.fleet).encode())
    return write_page(report, out / "report.html")


def print_json(value: Any) -> None:
    """Print one JSON document with sorted keys, which says what it says and drives no terminal."""
    click.echo(document(plain_json(msgspec.json.encode(value, order="deterministic").decode())))


def problem(error: ConfigError) -> dict[str, Any]:
    """A configuration error as data."""
    return {"where": error.where, "field": error.field, "message": error.message, "hint": error.hint}


def read_text(path: Path) -> str:
    """A text file.

    Raises:
        ConfigError: it is not UTF-8.

    """
    try:
        return path.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"byte {error.start} is not UTF-8", where=str(path), hint="save the file as UTF-8 text"
        ) from error


def write_text(path: Path, content: str) -> Path:
    """Write a file, and the directories it needs."""
    return _write(path, content.encode())


def write_bytes(path: Path, content: bytes) -> Path:
    """The same with bytes."""
    return _write(path, content)


def _write(path: Path, content: bytes) -> Path:
    """Write all of a file or nothing: beside it first, then in its place; what is no plain file (a pipe, /dev/stdout) is written to."""
    path.parent.mkdir(parents=True, exist_ok=True)
    place = path.resolve()
    if place.exists() and not place.is_file():
        path.write_bytes(content)
        return path
    if place.exists() and not os.access(place, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
    beside = place.with_name(f".{place.name[:200]}.{os.getpid()}")
    try:
        beside.write_bytes(content)
        if place.exists():
            shutil.copymode(place, beside)
        beside.replace(place)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    return path
