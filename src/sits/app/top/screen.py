"""The live board: the parts of `text` on a screen that redraws itself, with engines to sort, filter and open.

Keys: ? helps, q and Ctrl-C quit, p pauses (the numbers stay, the gateway is asked no more), s sorts by the next column, / filters engines by name, enter opens one, escape goes back.

Rules: it fits 80 x 24, and has more columns where there is room; what matters stands in words, colour repeats it (and goes with `NO_COLOR`); numbers of
a gateway that does not answer stay, dimmed, under a line that says since when.

Deliberately absent: numbers (`frame`), and their form (`text`).
"""

import asyncio
import signal
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar

from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import DataTable, Footer, Input, Static

from sits.app.top import text
from sits.app.top.frame import EngineLine, Frame
from sits.policy.burn_rate import P99_BUDGET

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.text import Text

FIRST_TO_GO = (3, 7, 12, 9, 11, 5, 2)
"""Columns in the order in which they make room: tokens in flight, P95, waiting, e2e, KV, failures, in flight."""

GAP = 2
SILENT_S = 3.0
"""How long an answer may be under way before the board says so; its own wait ends when nothing comes for two seconds."""

HELP = """\
q quit    p pause    s sort by the next column    / filter by name
enter all of one engine    escape back    ? this

late      share of answers over the objective; 1 % is allowed
burn      that share over 1 %: 1.0x spends the budget of late answers
P50..P99  the two bounds of the bucket it lies in, ms
fail/s    failures at this engine; errors/s has refusals, too
tokens    of the requests in flight: prompt and allowed output
DOWN      its breaker is open: nothing is sent there
trying    the next request tries it; no answer since it was down
KV, wait  the engine's own: share of KV blocks in use, requests waiting
-         not known; never zero"""
STATES = {
    "DOWN": "DOWN: its breaker is open, nothing is sent there",
    "trying": "trying: the next request tries it, nothing has answered since it was down",
    "-": "not told",
}
RED = "bold #ff7b72"
SPARK = 40
ENDED = 128 + signal.SIGTERM
SORTS: tuple[tuple[str, "Callable[[EngineLine], Any]"], ...] = (
    ("name", lambda one: one.name),
    ("P99 TTFT", lambda one: -_worst(one)),
    ("req/s", lambda one: -one.req_s),
    ("fail/s", lambda one: -one.error_s),
    ("in flight", lambda one: -one.inflight),
    ("late", lambda one: -(one.missed or 0.0)),
)


def _worst(engine: EngineLine) -> float:
    if len(engine.ttft) < 3:
        return 0.0
    high = engine.ttft[2].high_ms
    return float("inf") if high is None else high


class Detail(ModalScreen[None]):
    """One engine, all that is known of it."""

    CSS = "Detail { align: center middle; } Detail > Static { width: 76; height: auto; border: round $primary; padding: 1 2; background: $surface; }"
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,enter,q", "dismiss", "back")]

    def __init__(self, engine: EngineLine) -> None:
        super().__init__()
        self._engine = engine

    def compose(self) -> ComposeResult:
        """Its lines."""
        yield Static(detail(self._engine), markup=False)


class Help(ModalScreen[None]):
    """Keys, and what the columns are."""

    CSS = "Help { align: center middle; } Help > Static { width: 76; height: auto; border: round $primary; padding: 0 2; background: $surface; }"
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,enter,q,question_mark", "dismiss", "back")]

    def compose(self) -> ComposeResult:
        """Its lines."""
        yield Static(HELP, markup=False)


def detail(engine: EngineLine) -> str:
    """An engine as lines."""
    levels = ("P50", "P95", "P99")
    lines = [
        f"{engine.name}   {STATES.get(engine.state, engine.state)}",
        "",
        f"in flight   {engine.inflight:,} requests, {engine.inflight_tokens:,} tokens",
        f"rate        {engine.req_s:,.2f} requests/s, {engine.error_s:,.2f} failed/s",
        "late        "
        + ("nothing to judge" if engine.missed is None else f"{engine.missed:.2%} over the objective"),
        "KV use      " + ("not told" if engine.kv_use is None else f"{engine.kv_use:.1%}"),
        "waiting     " + ("not told" if engine.waiting is None else f"{engine.waiting:,.0f} requests"),
        "",
        "TTFT        " + "   ".join(f"{name} {text.ms(engine.ttft, i)} ms" for i, name in enumerate(levels)),
        "end to end  " + "   ".join(f"{name} {text.ms(engine.e2e, i)} ms" for i, name in enumerate(levels)),
        "            each percentile lies between the two bounds of its bucket",
    ]
    if engine.outcomes:
        lines += ["", *(f"{rate:9,.2f}/s  {name}" for name, rate in engine.outcomes.items())]
    return "\n".join(lines)


class Top(App[None]):
    """The board over `look`, which blocks and is called in a thread every `period_s`."""

    TITLE = "sitsctl top"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    Static { height: auto; padding: 0 1; }
    #title { background: $primary; color: $text; text-style: bold; }
    #title.lost { background: $error; }
    #rows { height: 1fr; background: transparent; }
    .lost #rows, .lost #totals, .lost #slo, .lost #sparks { opacity: 60%; }
    #filter { display: none; height: 3; }
    #filter.open { display: block; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "quit"),
        Binding("ctrl+c", "quit", "quit", show=False, priority=True),
        Binding("p", "pause", "pause"),
        Binding("s", "sort", "sort"),
        Binding("slash", "filter", "filter"),
        Binding("o", "open", "engine", key_display="enter"),
        Binding("question_mark", "help", "help"),
        Binding("escape", "close_filter", "clear", show=False),
    ]

    def __init__(self, look: "Callable[[], Frame]", period_s: float, objective: str = "") -> None:
        super().__init__()
        self._look = look
        self._period_s = period_s
        self._objective = objective
        self.frame: Frame | None = None
        self.paused = False
        self.sort = 0
        self.wanted = ""
        self._waited = 0
        self._order: list[EngineLine] = []

    def compose(self) -> ComposeResult:
        """From top to bottom."""
        yield Static("asking", id="title", markup=False)
        with Vertical(id="body"):
            yield Static("", id="slo", markup=False)
            yield Static("", id="totals", markup=False)
            yield Static("", id="sparks", markup=False)
            yield DataTable(id="rows", cursor_type="row", zebra_stripes=False)
            yield Static("", id="more", markup=False)
        yield Input(placeholder="engines whose name has this; enter keeps it, escape clears it", id="filter")
        yield Footer()

    def on_mount(self) -> None:
        """Begin; whoever ends the process gets the terminal back as it was."""
        with suppress(
            RuntimeError, ValueError
        ):  # signals are the main thread's, and a board may be in another one
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self.exit, None, ENDED)
        self.query_one("#rows").focus()
        self.set_interval(self._period_s, self.refresh_numbers)
        self.refresh_numbers()

    def refresh_numbers(self) -> None:
        """Ask, unless it is paused or an answer is still out."""
        if self.paused:
            return
        if any(worker.is_running for worker in self.workers):
            self._waited += 1
            if (waited_s := self._waited * self._period_s) >= SILENT_S:
                self.query_one("#title", Static).set_class(True, "lost")
                self.query_one("#body").set_class(True, "lost")
                self.query_one("#title", Static).update(
                    f"the gateway has been answering for {waited_s:.0f} s"
                )
            return
        self._waited = 0
        self.run_worker(self._ask, thread=True, exit_on_error=True)

    def _ask(self) -> None:
        frame = self._look()
        self.call_from_thread(self.show, frame)

    def show(self, frame: Frame) -> None:
        """Draw a frame."""
        self.frame = frame
        lost = frame.state == "lost"
        self.query_one("#title", Static).set_class(lost, "lost")
        self.query_one("#body").set_class(lost, "lost")
        self.query_one("#title", Static).update(("PAUSED  " if self.paused else "") + text.title(frame))
        missed = frame.missed is not None and frame.missed > P99_BUDGET
        style = RED if missed else "green" if frame.missed is not None else ""
        self.query_one("#slo", Static).update(_styled(text.slo(frame, self._objective), style))
        self.query_one("#totals", Static).update(_styled(text.totals(frame)))
        self.query_one("#sparks", Static).update(_sparks(frame, self.size.width))
        self._draw_rows(frame)
        more = [f"outcomes  {text.outcomes(frame)}"] if frame.outcomes else []
        more += [f"{name:<9} {told}" for name, told in frame.other.items()]
        self.query_one("#more", Static).update(_styled("\n".join(more)))

    def on_resize(self) -> None:
        """Columns follow the width."""
        if self.frame is not None:
            self.show(self.frame)

    def _draw_rows(self, frame: Frame) -> None:
        table = self.query_one("#rows", DataTable)
        self._order = sorted(
            (one for one in frame.engines if self.wanted.lower() in one.name.lower()), key=SORTS[self.sort][1]
        )
        names = [name + " *" * (name == _sorted_by(self.sort)) for name in text.COLUMNS]
        columns = _fitting([names, *map(text.cells, frame.engines)], self.size.width)
        at = table.cursor_row
        table.clear(columns=True)
        for i in columns:
            table.add_column(_styled(names[i], right=i >= 2))
        for one in self._order:
            cells = text.cells(one)
            style = RED if one.state in ("DOWN", "trying") else ""
            table.add_row(*(_styled(cells[i], style, right=i >= 2) for i in columns))
        table.move_cursor(row=min(at, max(0, len(self._order) - 1)))

    def action_help(self) -> None:
        """What the keys and columns are."""
        self.push_screen(Help())

    def action_pause(self) -> None:
        """Stop asking, or go on."""
        self.paused = not self.paused
        if self.frame is not None:
            self.show(self.frame)

    def action_sort(self) -> None:
        """By the next column."""
        self.sort = (self.sort + 1) % len(SORTS)
        self.notify(f"sorted by {SORTS[self.sort][0]}", timeout=2)
        if self.frame is not None:
            self.show(self.frame)

    def action_filter(self) -> None:
        """Ask for a part of a name."""
        box = self.query_one("#filter", Input)
        box.add_class("open")
        box.focus()

    def action_close_filter(self) -> None:
        """All engines again."""
        self.query_one("#filter", Input).value = ""
        self._filter_done()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filter while it is written."""
        self.wanted = event.value
        if self.frame is not None:
            self.show(self.frame)

    def on_input_submitted(self) -> None:
        """Keep it."""
        self._filter_done()

    def _filter_done(self) -> None:
        self.query_one("#filter", Input).remove_class("open")
        self.query_one("#rows").focus()

    def on_data_table_row_selected(self) -> None:
        """Enter."""
        self.action_open()

    def action_open(self) -> None:
        """Open the engine under the cursor."""
        at = self.query_one("#rows", DataTable).cursor_row
        if at < len(self._order):
            self.push_screen(Detail(self._order[at]))


def _fitting(rows: "Sequence[Sequence[str]]", width: int) -> list[int]:
    """The columns there is room for, in their order."""
    widths = [max(len(row[i]) for row in rows) + GAP for i in range(len(text.COLUMNS))]
    kept = list(range(len(widths)))
    for i in FIRST_TO_GO:
        if sum(widths[k] for k in kept) <= width:
            break
        kept.remove(i)
    return kept


def _sorted_by(sort: int) -> str:
    """The heading of the column it is sorted by."""
    return {"name": "engine", "P99 TTFT": "P99"}.get(SORTS[sort][0], SORTS[sort][0])


def _styled(said: str, style: str = "", *, right: bool = False) -> "Text":
    """Text that is no markup, whatever is in it."""
    from rich.text import Text  # noqa: PLC0415

    return Text(said, style=style, justify="right" if right else "left")


def _sparks(frame: Frame, width: int) -> "Text":
    """The last minutes: requests a second, and the share late."""
    from rich.text import Text  # noqa: PLC0415

    room = max(10, min(SPARK, (width - 40) // 2))
    now = frame.req_history[-1] if frame.req_history else 0.0
    late = frame.missed_history[-1] if frame.missed_history else 0.0
    return Text.assemble(
        ("req/s ", "dim"),
        text.spark(frame.req_history, room),
        f" {now:,.1f}   ",
        ("late ", "dim"),
        text.spark(frame.missed_history, room),
        f" {late:.1%}",
    )
