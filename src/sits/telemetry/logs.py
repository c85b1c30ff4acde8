"""Log lines: one JSON object a line for machines, one plain line for people, and the row of table `logs` for `sitsctl trace`.

```
log("generation 2 serves", generation=2) ─> steps: what is known, time, secrets ─┬─> stderr, as JSON or text
                                                                                └─> keep(row) -> store
```
A line begins with `time` (RFC 3339, ms, UTC), `level`, `event` and `logger`; then come what selects lines (`app`, `environment`, `process`:
few values, made to be labels of Loki), and what does not (`generation`, `trace_id`, `span_id`, `request_id`, all else).

Rules: the event is a text of few kinds, and what varies is a field beside it; a line is written with one call, so lines of several
processes do not mix; a stderr that nobody reads costs the line, never the process; secrets are taken out last, whoever put them in
(`telemetry.secrets`).  Steps have the shape of structlog's processors: who has structlog loaded adds them to its chain (`steps`); the
supervisor and the workers it forks do without, for it drags in rich and 0.3 s.

Deliberately absent: files and their rotation (stderr goes to journald, the container's log, or where the shell says), and lines about
requests that went well: each has its row.
"""

import logging
import re
import select
import sys
from collections.abc import Callable, Mapping, MutableMapping
from datetime import UTC, datetime
from typing import Any, Literal, Protocol

import msgspec

from sits.core.plain_text import plain, plain_json, plain_lines
from sits.core.ports import World
from sits.core.units import SECOND
from sits.telemetry.log_bounds import Bounds, Suppressed
from sits.telemetry.secrets import TEXT_MAX, without_secrets

Form = Literal["json", "text"]
Level = Literal["debug", "info", "warning", "error", "critical"]
Facts = MutableMapping[str, Any]
Step = Callable[[Any, str, Facts], Facts]

FIRST = ("time", "level", "event", "logger", "app", "environment", "process", "generation")
IDS = ("trace_id", "span_id", "request_id")
ALWAYS = (*FIRST, *IDS)
"""Fields with a meaning of their own, in the order they are written."""

ATTEMPT = "attempt failed: "
"""How the event begins that tells of a first try which failed and was made good elsewhere; the failure's code follows."""

_REQUEST = re.compile(r"\brequest ([0-9a-f]{32})\b")

WAIT_MS = 20

Row = tuple[Any, ...]


class Say(Protocol):
    """What a process says: a text, how serious it is, and the facts beside it."""

    def __call__(self, event: str, level: Level = "info", **facts: Any) -> None:
        """Say it."""


def rfc3339(wall_ns: int) -> str:
    """A time of the wall clock, in UTC with milliseconds.

    >>> rfc3339(1_700_000_000_123_999_999)
    '2023-11-14T22:13:20.123Z'
    """
    seconds, ns = divmod(wall_ns, 1_000_000_000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{ns // 1_000_000:03}Z"


def steps(known: Mapping[str, Any], world: World) -> tuple[Step, ...]:
    """What is done to each line, as processors of structlog: known facts, level, time, secrets, order."""

    def add_known(_: Any, level: str, facts: Facts) -> Facts:
        return {**known, "level": level, "time": rfc3339(world.wall_ns()), **facts}

    def clean(_: Any, __: str, facts: Facts) -> Facts:
        return {
            name: without_secrets(name, value) for name, value in facts.items() if value not in (None, "")
        }

    def order(_: Any, __: str, facts: Facts) -> Facts:
        first = {name: facts[name] for name in ALWAYS if name in facts}
        return {**first, **{name: value for name, value in facts.items() if name not in first}}

    return add_known, clean, order


def facts_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """What a row of table `logs` says; what its line lacks is the row's own, and a line that is no object is the event."""
    said = _object(row)
    own = {
        name: row[name] for name in ("level", "process", "trace_id", "request_id", "event") if row.get(name)
    }
    own = {"level": "info", "event": str(row["line"]), "time": rfc3339(int(row["wall_ns"])), **own}
    return {**own, **said} if said is not None else own


def json_of(row: Mapping[str, Any]) -> str:
    """The line of a row of table `logs` as it was written; a JSON object in any case."""
    return plain_json(row["line"]) if _object(row) is not None else as_json(facts_of(row))


def _object(row: Mapping[str, Any]) -> dict[str, Any] | None:
    try:
        said = msgspec.json.decode(row["line"] or "")
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    return said if isinstance(said, dict) else None


def as_json(facts: Mapping[str, Any]) -> str:
    """One line of JSON, which also prints on a terminal as what it is."""
    return plain_json(msgspec.json.encode({name: _plain(value) for name, value in facts.items()}).decode())


def as_text(facts: Mapping[str, Any]) -> str:
    """One line for people: the event, then what belongs to it; a stack follows on lines of its own, indented: no text can forge a line."""
    more = {name: facts[name] for name in facts if name not in FIRST and name != "stack"}
    event = _indented(str(facts["event"]))
    said = "  ".join([event, *(f"{plain(name)}={_shown(value)}" for name, value in more.items())])
    said = f"{said}\n  {_indented(str(facts['stack']))}" if "stack" in facts else said
    return (
        said if facts["level"] in ("info", "debug") or said.startswith(" ") else f"{facts['level']}: {said}"
    )


class Log:
    """Says what a process has to say: to `write` (None: nobody), and to `keep`, where there is one, as rows of table `logs`."""

    def __init__(
        self, world: World, write: Callable[[str], None] | None, form: Form = "json", **known: Any
    ) -> None:
        self.keep: Callable[[Row], None] | None = None
        self._world = world
        self._write = write
        self._form: Form = form
        self._known = {"app": "sits", **known}
        self._steps = steps(self._known, world)
        self._busy = False

    def __call__(self, event: str, level: Level = "info", **facts: Any) -> None:
        """Say it."""
        self._told(event, level, facts, aloud=True)

    def quietly(self, event: str, level: Level = "debug", **facts: Any) -> None:
        """The same for the store alone."""
        if self.keep is not None:
            self._told(event, level, facts, aloud=False)

    def _told(self, event: str, level: Level, facts: Facts, *, aloud: bool) -> None:
        made: Facts = {"event": event, **facts}
        for step in self._steps:
            made = step(None, level, made)
        line = as_json(made)
        if aloud and self._write is not None:
            self._write(line if self._form == "json" else as_text(made))
        if self.keep is not None and not self._busy:
            self._busy = True  # who keeps lines may have something to say about that
            try:
                self.keep(self._row(made, line))
            finally:
                self._busy = False

    def know(self, **known: Any) -> None:
        """From now on each line says this too."""
        self._known.update(known)

    def of(self, process: str) -> "Log":
        """The same for another process: what it says is kept by nobody yet."""
        known = {**self._known, "process": process, "logger": f"sits.{process.partition('-')[0]}"}
        return Log(self._world, self._write, self._form, **known)

    def _row(self, facts: Mapping[str, Any], line: str) -> Row:
        texts = [str(facts.get(name, "")) for name in ("level", "process", "trace_id", "request_id", "event")]
        return (self._world.wall_ns(), *texts, line)


class Stderr:
    """Writes lines to stderr; who reads it may have gone, or stopped reading (Ctrl-S, a pipe that is full): that costs lines, never the process.

    A stderr that takes nothing is waited for once, `WAIT_MS`; from then on lines are lost, and counted, until it takes some again.
    """

    def __init__(self) -> None:
        self.lost = 0

    def __call__(self, line: str) -> None:
        """Write one."""
        try:
            if not self._takes():
                self.lost += 1
                return
            if self.lost:
                line, self.lost = f"{self.lost} lines lost: nobody read stderr\n{line}", 0
            sys.stderr.write(line + "\n")
            sys.stderr.flush()
        except (OSError, ValueError):
            return

    def _takes(self) -> bool:
        """Whether a line of usual length would not block; what is no file of the system never does."""
        try:
            poll = select.poll()
            poll.register(sys.stderr.fileno(), select.POLLOUT)
        except (OSError, ValueError, AttributeError):
            return True
        return bool(poll.poll(0 if self.lost else WAIT_MS))


to_stderr = Stderr()


def form_of(asked: str) -> Form:
    """`json` or `text` as asked; `auto` is text on a terminal, JSON anywhere else."""
    if asked == "auto":
        return "text" if sys.stderr.isatty() else "json"
    return "json" if asked == "json" else "text"


class Bridge(logging.Handler):
    """Lines of Python's own logging (asyncio, uvicorn, ...) become lines of ours, a stack as one field.

    From one place in the code, with one kind of exception, come `log_bounds.BURST` lines a minute; how many more there were is told with the next line.
    """

    def __init__(self, log: Say, level: int = logging.WARNING) -> None:
        super().__init__(level)
        self._log = log
        self._bounds = Bounds()

    def emit(self, record: logging.LogRecord) -> None:
        """Say it."""
        try:
            now_ns = int(record.created * SECOND)
            for one in self._bounds.over(now_ns):
                self._suppressed(one)
            kind = type(record.exc_info[1]).__name__ if record.exc_info else ""
            if not self._bounds.allows((record.name, f"{record.module}:{record.lineno}", kind), now_ns):
                return
            stack = ""
            if record.exc_info:
                stack = logging.Formatter().formatException(record.exc_info)
            level: Level = "error" if record.levelno >= logging.ERROR else "warning"
            level = level if record.levelno >= logging.WARNING else "info"
            said = record.getMessage().strip()
            named = _REQUEST.search(said)
            self._log(said, level, logger=record.name, request_id=named[1] if named else "", stack=stack)
        except Exception:  # noqa: BLE001  # a line that cannot be written must not raise where it was said
            self.handleError(record)

    def _suppressed(self, one: Suppressed) -> None:
        self._log(
            "lines suppressed", "warning", logger=one.kind[0], kind=" ".join(one.kind), suppressed=one.lines
        )


def bridge(log: Say, level: int = logging.WARNING) -> None:
    """From now on this process says everything through `log`."""
    root = logging.getLogger()
    root.handlers[:] = [Bridge(log, level)]
    root.setLevel(level)


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        text = value[:TEXT_MAX]
        return text if text.isascii() else text.encode("utf-8", "replace").decode()
    return value if isinstance(value, int | float | bool) else str(value)[:TEXT_MAX]


def _shown(value: Any) -> str:
    text = str(value)
    return repr(text) if " " in text else plain(text)


def _indented(text: str) -> str:
    return plain_lines(text).replace("\n", "\n  ")
