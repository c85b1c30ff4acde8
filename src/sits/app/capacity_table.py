"""The outcome of a capacity sweep on a terminal: one line a configuration, the front marked, what was assumed at the end.

Deliberately absent: latencies of configurations whose queue grew.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from sits.app.capacity_chart import figure

if TYPE_CHECKING:
    from sits.bench.sweep import Point, Result, Sweep
    from sits.predict.burstiness import Burstiness

    Outcome = tuple[Point, Result]

DEFINED = (
    "TTFT: from arrival at the gateway (windows included) to the first token; TPOT: (last - first token) / (output tokens - 1) of a "
    "request; E2E: from arrival to the last token; P99 of all seeds pooled; over seeds: the least and most of single seeds; within: "
    "share of requests within all objectives; good/s: those a second; GPU h/M: GPU hours for a million output tokens; a point keeps "
    "up when its queue all but emptied at some moment of the last fifth of the run."
)


def arrivals_text(sweep: "Sweep", burst: "Burstiness") -> str:
    """What is known of the arrivals before anything is said about them."""
    from sits.predict.burstiness import burstiness_text  # noqa: PLC0415

    if sweep.trace or sweep.cv != 1.0:
        return burstiness_text(burst)
    return "assumed: Poisson arrivals; real ones come in bursts more often than not, --trace and --cv show what that costs"


def print_table(
    title: str,
    said: Sequence[str],
    outcomes: "Sequence[Outcome]",
    on: "Sequence[Outcome]",
    best: "Outcome | None",
    share: float,
) -> None:
    """The table on standard output: the front marked, what does not keep up said so."""
    click.echo(f"{title}\n")
    click.echo(
        f"  {'GPUs':>4} {'replicas':>9} {'window':>7} {'seqs':>5} {'tokens':>6} {'TTFT P50':>9} {'P99':>8} {'over seeds':>19} "
        f"{'TPOT P99':>9} {'E2E P99':>8} {'within':>7} {'good/s':>7} {'GPU h/M':>8}"
    )
    keys = {point.key for point, _ in on}
    for point, result in sorted(outcomes, key=lambda outcome: (outcome[0].gpus, outcome[0])):
        mark = "*" if point.key in keys else " "
        mark = "#" if best is not None and point.key == best[0].key else mark
        window = f"{point.window_ns / 1e6:g} ms" if point.window_ns else "-"
        head = f"{mark} {point.gpus:>4} {point.replicas:>5} x {point.tp:<2}{window:>7} {point.max_num_seqs:>5} {point.max_num_batched_tokens:>6}"
        if result.refused:
            click.echo(f"{head}  cannot be: {result.refused[:70]}")
            continue
        if not result.keeps_up:
            click.echo(f"{head}  does not keep up: {result.output_per_s:,.0f} output tokens a second at most")
            continue
        low, high = (figure(value) for value in result.ttft_range)
        between = f"[{low}, {high}]"
        click.echo(
            f"{head} {figure(result.ttft_ns[0]):>9} {figure(result.ttft_ns[1]):>8} {between:>19} {figure(result.tpot_ns[1]):>9} {figure(result.e2e_ns[1]):>8} "
            f"{result.good:>7.1%} {result.good_per_s:>7.2f} {result.gpu_hours_per_million:>8.2f}"
        )
    click.echo(
        "\n* on the front of GPUs against the P99 of --metric"
        + (f"   # the fewest GPUs with {share:.0%} within" if best else "")
        + "\n"
    )
    for line in said:
        click.echo(line)
    click.echo(f"\n{DEFINED}")
    for note in dict.fromkeys(
        f"{point.tp} GPU{'s' if point.tp > 1 else ''} an engine: {text}"
        for point, result in outcomes
        for text in result.assumed
        if "KV blocks" in text
    ):
        click.echo(f"  assumed: {note}")
    click.echo("The page names all that was assumed.")
