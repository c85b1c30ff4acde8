"""Progress of long work on standard error: a live line on a terminal, sparse lines anywhere else.

A `Progress` is what long-running functions call: `progress("replaying", 12, 140)` or only `progress("text")`.
In a log file a counted phase prints at its start, at each quarter and at its end, so that a run of a thousand
steps leaves five lines.

Deliberately absent: results.  They go to standard output, from the command itself.
"""

import sys
from typing import Any, Self, TextIO

QUARTERS = 4


class Progress:
    """Progress on `stream`; silent when `quiet`.  Use as a context manager: leaving it clears the live line."""

    def __init__(self, stream: TextIO | None = None, *, quiet: bool = False) -> None:
        self._stream = stream if stream is not None else sys.stderr
        self._quiet = quiet
        self._live: Any = None
        self._task: Any = None
        self._said = ("", -1)

    def __enter__(self) -> Self:
        if not self._quiet and self._stream.isatty():
            self._live = _live_line(self._stream)
            self._live.start()
        return self

    def __exit__(self, *_error: object) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def __call__(self, text: str, done: int | None = None, total: int | None = None) -> None:
        """Say what is being done, and how much of it where that is known."""
        if self._quiet:
            return
        if self._live is not None:
            if self._task is None:
                self._task = self._live.add_task(text, total=total)
            self._live.update(self._task, description=text, completed=done or 0, total=total)
            return
        self._line(text, done, total)

    def _line(self, text: str, done: int | None, total: int | None) -> None:
        quarter = done * QUARTERS // total if done is not None and total else 0
        said = ("", quarter) if total else (text, 0)
        if said == self._said:
            return
        self._said = said
        counted = f" {done}/{total}" if done is not None and total else ""
        self._stream.write(f"{text}{counted}\n")
        self._stream.flush()


def _live_line(stream: TextIO) -> Any:
    from rich.console import Console  # noqa: PLC0415  # rich loads only where there is a terminal to draw on
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn  # noqa: PLC0415

    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(file=stream),
        transient=True,
    )
