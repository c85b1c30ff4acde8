"""`sitsctl plan batch`: which batching window and which batch size, before an engine that batches by call.

Every cell (window, batch) of a grid is predicted for Poisson arrivals, or replayed on a trace, and set in a table: P99 and how busy
the engine is.  Marked are the cells on the front (no other is better in both) and the size-bound ones, in which the
batch fills before the window ends, so that the window's length is irrelevant.

Deliberately absent: continuous-batching engines.  A window in front of one only adds itself (`sitsctl check` says how much).
"""

import math
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sits.app.quantities import DURATION, Number, Whole

if TYPE_CHECKING:
    from sits.predict.front import Cell

WINDOWS = ("0ms", "5ms", "10ms", "20ms", "50ms", "100ms")
BATCHES = (4, 8, 16, 32, 64)
CELLS_MOST = 400
WIDTH_PIPED, WIDTH_MOST = 80, 120
MARKS = {"on_front": "*", "size": "=", "saturated": "-"}


@click.command(short_help="Which batching window and batch size.")
@click.option(
    "--rate",
    type=Number(min=0, min_open=True),
    default=None,
    help="Requests a second.  [required without --trace; with it, the trace is superposed to about that]",
)
@click.option(
    "--service-fixed", type=DURATION, required=True, help="Time of a call that does not depend on its size."
)
@click.option("--service-item", type=DURATION, required=True, help="Time each request adds to its call.")
@click.option(
    "--window", "windows", type=DURATION, multiple=True, default=WINDOWS, show_default=True,
    help="A window to look at; repeat it.",
)  # fmt: skip
@click.option(
    "--max-batch", "batches", type=Whole(1, 4096), multiple=True, default=BATCHES, show_default=True,
    help="A batch size to look at; repeat it.",
)  # fmt: skip
@click.option("--slo", type=DURATION, default=None, help="P99 that must be met, from arrival to answer.")
@click.option(
    "--trace",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    default=None,
    help="Replay these arrivals (Azure, Mooncake or BurstGPT format) instead of assuming Poisson ones.",
)
@click.option(
    "--html", type=click.Path(dir_okay=False, path_type=Path), default=None, help="Also write a page."
)
@click.option(
    "--svg", type=click.Path(dir_okay=False, path_type=Path), default=None, help="Also write the chart."
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print the result as JSON, and nothing else, on stdout."
)
def batch(
    rate: float | None,
    service_fixed: int,
    service_item: int,
    windows: tuple[int, ...],
    batches: tuple[int, ...],
    slo: int | None,
    trace: Path | None,
    html: Path | None,
    svg: Path | None,
    as_json: bool,
) -> int:
    """Say what a batching window costs and buys, for an engine whose call of k requests takes fixed + item x k.

    Exits with 1 when --slo is given and no cell meets it.
    """  # fmt: skip
    from sits.app import output  # noqa: PLC0415
    from sits.app.front_chart import page_html, standalone_svg  # noqa: PLC0415
    from sits.app.terminal import Progress  # noqa: PLC0415
    from sits.predict.front import front  # noqa: PLC0415

    rows: list[int | None] = [None, *sorted(set(windows))]
    columns = sorted(set(batches))
    if len(rows) * len(columns) > CELLS_MOST:
        raise click.UsageError(f"{len(rows)} windows by {len(columns)} batches are over {CELLS_MOST} cells")
    output.prepare(html.parent if html else None)
    output.prepare(svg.parent if svg else None)
    expect, rate, named = _expectation(rate, service_fixed, service_item, trace)
    with Progress(quiet=not sys.stderr.isatty()) as progress:
        done = iter(range(len(rows) * len(columns)))

        def told(window_ns: int | None, size: int) -> Any:
            progress("predicting", next(done), len(rows) * len(columns))
            return expect(window_ns, size)

        cells = front(rows, columns, told)
    title = _title(rate, service_fixed, service_item, named)
    if html is not None:
        output.write_text(html, page_html(title, cells, slo, *_advice(cells, slo)))
    if svg is not None:
        output.write_text(svg, standalone_svg(title, cells, slo))
    if as_json:
        output.print_json(_document(cells, rate, service_fixed, service_item, named, slo))
    else:
        _print(title, cells, slo)
        for path in filter(None, (html, svg)):
            click.echo(f"written: {path.absolute()}")
    return 0 if slo is None or any(_meets(cell, slo) for cell in cells) else 1


def _expectation(
    rate: float | None, fixed_ns: int, item_ns: int, trace: Path | None
) -> tuple[Any, float, str]:
    """What becomes of a cell, the rate, and what arrivals were taken."""
    from sits.predict.calls import check_call  # noqa: PLC0415

    check_call(fixed_ns, item_ns)
    if trace is None:
        if rate is None:
            raise click.UsageError("give --rate, or --trace")
        from sits.predict.front import poisson_expectation  # noqa: PLC0415

        return poisson_expectation(rate, fixed_ns, item_ns), rate, "Poisson arrivals"
    from sits.bench.traces import read_trace  # noqa: PLC0415
    from sits.bench.windows import at_rate, rate_of, replayed_expectation  # noqa: PLC0415

    arrivals = at_rate(read_trace(trace).arrival_s, rate or 0.0)
    return replayed_expectation(arrivals, fixed_ns, item_ns), rate_of(arrivals), f"replay of {trace.name}"


def _title(rate: float, fixed_ns: int, item_ns: int, named: str) -> str:
    from sits.core.units import show_duration  # noqa: PLC0415

    return (
        f"{rate:.4g} requests a second ({named}), a call of k takes "
        f"{show_duration(fixed_ns)} + {show_duration(item_ns)} x k"
    )


def _meets(cell: "Cell", slo: int) -> bool:
    return cell.expected.p99_ns <= slo


def _advice(cells: Sequence["Cell"], slo: int | None) -> tuple[str, ...]:
    """The two ends of the front, in words: the least latency, and the least engine time that still meets the objective."""
    kept = [cell for cell in cells if cell.on_front]
    if not kept:
        return ("No cell keeps up with this rate: raise the batch size, or add engines.",)
    best = min(kept, key=lambda cell: (_about(cell.expected.p99_ns), cell.max_batch))
    said = [f"Least P99: {_words(best)}."]
    within = [cell for cell in kept if slo is None or _meets(cell, slo)]
    if not within:
        return (*said, f"No cell meets {_ms(slo or 0)} ms at P99.")
    thrifty = min(within, key=lambda cell: (-_about(cell.expected.per_engine_s), cell.max_batch))
    if thrifty is not best:
        share = thrifty.expected.per_engine_s / best.expected.per_engine_s
        limit = "" if slo is None else f" within {_ms(slo)} ms"
        said.append(
            f"Least engine time{limit}: {_words(thrifty)}, {share:.1f} times the answers of an engine second."
        )
    return tuple(said)


def _about(value: float) -> int:
    """Values within about a percent are one."""
    return round(100 * math.log(value))


def _words(cell: "Cell") -> str:
    window = "send when the engine is free" if cell.window_ns is None else f"a window of {cell.name}"
    seen = cell.expected
    return (
        f"{window}, at most {cell.max_batch} a call: P99 {_ms(seen.p99_ns)} ms, engine {seen.busy:.0%} busy"
    )


def _ms(ns: float) -> str:
    ms = ns / 1e6
    return f"{ms:,.0f}" if ms >= 100 else f"{ms:.1f}" if ms >= 10 else f"{ms:.2f}"


def _document(
    cells: Sequence["Cell"], rate: float, fixed_ns: int, item_ns: int, named: str, slo: int | None
) -> dict[str, Any]:
    def shown(cell: "Cell") -> dict[str, Any]:
        seen, kept = cell.expected, cell.bound != "saturated"
        return {
            "window": "free" if cell.window_ns is None else "timed",
            "window_ns": cell.window_ns,
            "max_batch": cell.max_batch,
            "bound": cell.bound,
            "on_front": cell.on_front,
            "meets_slo": None if slo is None else _meets(cell, slo),
            "p50_ns": round(seen.p50_ns) if kept else None,
            "p99_ns": round(seen.p99_ns) if kept else None,
            "busy": seen.busy,
            "batch_mean": seen.batch_mean,
            "per_engine_s": seen.per_engine_s,
        }

    return {
        "rate_per_s": rate,
        "service_fixed_ns": fixed_ns,
        "service_item_ns": item_ns,
        "slo_ns": slo,
        "arrivals": named,
        "advice": _advice(cells, slo),
        "cells": [shown(cell) for cell in cells],
    }


def _print(title: str, cells: Sequence["Cell"], slo: int | None) -> None:
    """The table on standard output, in colours where that is a terminal."""
    from rich.console import Console  # noqa: PLC0415  # rich is heavy; only this table needs it
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    from sits.app.front_chart import LEGEND, kinds  # noqa: PLC0415

    terminal = sys.stdout.isatty()
    width = min(WIDTH_MOST, shutil.get_terminal_size().columns) if terminal else WIDTH_PIPED
    console = Console(width=width, no_color=not terminal or bool(os.environ.get("NO_COLOR")), highlight=False)
    batches = sorted({cell.max_batch for cell in cells})
    table = Table(box=None, padding=(0, 1), header_style="dim")
    table.add_column("window")
    for size in batches:
        table.add_column(f"at most {size}", justify="right")
    for start in range(0, len(cells), len(batches)):
        row = cells[start : start + len(batches)]
        table.add_row(row[0].name, *(Text(*_cell(cell, slo)) for cell in row))
    console.print(Text(title, style="bold"))
    console.print(
        Text(
            "P99 in ms, and how busy the engine is" + (f"; objective {_ms(slo)} ms" if slo else ""),
            style="dim",
        )
    )
    console.print()
    console.print(table)
    console.print()
    there = kinds(cells)
    for kind, mark in MARKS.items():
        if kind in there:
            console.print(Text(f"{mark} {LEGEND[kind]}"))
    console.print()
    for line in _advice(cells, slo):
        console.print(Text(line))


def _cell(cell: "Cell", slo: int | None) -> tuple[str, str]:
    """A cell's text and style."""
    if cell.bound == "saturated":
        return f"{MARKS['saturated']}  ", "dim"
    mark = (MARKS["size"] if cell.bound == "size" else " ") + (MARKS["on_front"] if cell.on_front else " ")
    text = f"{_ms(cell.expected.p99_ns)} {cell.expected.busy:>4.0%}{mark}"
    if slo is not None and not _meets(cell, slo):
        return text, "red"
    return text, "bold green" if cell.on_front else ""
