"""`sitsctl plan capacity`: how many replicas of how many GPUs, with which window and limits, a load needs.

A grid is simulated point by point, here or on Ray; results are kept in a file as they come, and a sweep that was stopped goes on
where it was.  The result is a table, a page with the front of GPUs against P99, and the cheapest point that meets the objectives.

Deliberately absent: the computing (`sits.bench.sweep` and its neighbours).
"""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sits.app.engine_options import engine_options, model_named
from sits.app.quantities import DURATION, GPU_MEMORY, OBJECTIVE, SHARE, Number, Whole

if TYPE_CHECKING:
    from sits.bench.sweep import Point, Result, Sweep

    Outcome = tuple[Point, Result]

POINTS_MOST = 5000


@click.command(short_help="Replicas, GPUs each, window and limits a load needs, by simulation.")
@engine_options("llama-3-8b")
@click.option("--gpu-memory", type=GPU_MEMORY, default="80GiB", show_default=True, help="Memory of one GPU.")
@click.option(
    "--kv-blocks",
    "told",
    multiple=True,
    metavar="TP=BLOCKS",
    help="Blocks the engine told at a degree; repeat it.  [default: by formula]",
)
@click.option(
    "--rate",
    type=Number(0.001, 1e9),
    default=None,
    help="Requests a second.  [required without --trace]",
)
@click.option(
    "--cv",
    type=Number(min=0, max=100),
    default=1.0,
    show_default=True,
    help="CV of the gaps between requests; 1 = Poisson.",
)
@click.option(
    "--trace",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    default=None,
    help="Arrivals and lengths of a trace (Azure, Mooncake or BurstGPT format).",
)
@click.option(
    "--requests",
    type=Whole(10, 1_000_000),
    default=2000,
    show_default=True,
    help="Requests of a run.",
)
@click.option("--seeds", type=Whole(1, 100), default=3, show_default=True, help="Runs of a point.")
@click.option("--seed", type=Whole(min=0), default=0, show_default=True)
@click.option("--replicas", type=Whole(1, 1024), multiple=True, default=(1, 2, 4), show_default=True)
@click.option(
    "--tp",
    "tps",
    type=Whole(1, 64),
    multiple=True,
    default=(1, 2),
    show_default=True,
    help="GPUs of one engine.",
)
@click.option(
    "--window",
    "windows",
    type=DURATION,
    multiple=True,
    default=("0ms",),
    show_default=True,
    help="Batching window in front of an engine.",
)
@click.option(
    "--max-num-seqs", "seqs", type=Whole(1, 65536), multiple=True, default=(128,), show_default=True
)
@click.option(
    "--max-num-batched-tokens",
    "tokens",
    type=Whole(1, 1_000_000),
    multiple=True,
    default=(2048,),
    show_default=True,
)
@click.option("--slo-ttft", type=OBJECTIVE, default=0, help="Objective of a request's time to first token.")
@click.option("--slo-tpot", type=OBJECTIVE, default=0, help="Objective of a request's time per output token.")
@click.option(
    "--share",
    type=SHARE,
    default="99%",
    show_default=True,
    help="Share of requests that must be within the objectives.",
)
@click.option(
    "--metric",
    type=click.Choice(["ttft", "tpot", "e2e"]),
    default="ttft",
    show_default=True,
    help="Whose P99 the front is about.",
)
@click.option(
    "--engine",
    type=click.Choice(["local", "ray"]),
    default="local",
    show_default=True,
    help="Where points run.",
)
@click.option("--ray-address", default="", help="A Ray cluster to join.  [default: one is started here]")
@click.option("--jobs", type=Whole(1, 1024), default=None, help="Processes to use.  [default: all CPUs]")
@click.option(
    "-o",
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("out/capacity"),
    show_default=True,
    help="Where results and the page go.",
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print the result as JSON, and nothing else, on stdout."
)
@click.option("-q", "--quiet", is_flag=True, help="No progress on stderr.")
def capacity(
    model_name: str,
    fleet: Path | None,
    gpu: str,
    gpu_memory: int,
    told: tuple[str, ...],
    rate: float | None,
    cv: float,
    trace: Path | None,
    requests: int,
    seeds: int,
    seed: int,
    replicas: tuple[int, ...],
    tps: tuple[int, ...],
    windows: tuple[int, ...],
    seqs: tuple[int, ...],
    tokens: tuple[int, ...],
    slo_ttft: int,
    slo_tpot: int,
    share: float,
    metric: str,
    engine: str,
    ray_address: str,
    jobs: int | None,
    out: Path,
    as_json: bool,
    quiet: bool,
) -> int:
    """Simulate a load on every combination of replicas, GPUs each, window and limits, and say which are worth having.

    A sweep that was stopped, however it was, goes on where it was when the same command is given again.  Exits with 1 when
    objectives are given and no combination meets them, or when none can be simulated.
    """  # fmt: skip
    import msgspec  # noqa: PLC0415

    from sits.app import output  # noqa: PLC0415
    from sits.app.capacity_chart import page_html  # noqa: PLC0415
    from sits.app.capacity_table import DEFINED, arrivals_text, print_table  # noqa: PLC0415
    from sits.bench.sweep import Sweep, arrivals_of, grid  # noqa: PLC0415
    from sits.bench.sweep_front import cheapest, front  # noqa: PLC0415
    from sits.predict.burstiness import burstiness  # noqa: PLC0415

    if rate is None and trace is None:
        raise click.UsageError("give --rate, or --trace")
    points = grid(replicas, tps, windows, seqs, tokens)
    if len(points) > POINTS_MOST:
        raise click.UsageError(f"{len(points)} points are over {POINTS_MOST}")
    output.prepare(out)
    sweep = Sweep(
        model=model_named(model_name, fleet),
        gpu=gpu,
        gpu_memory=gpu_memory,
        kv_blocks=dict(_told(text) for text in told),
        rate=rate or 0.0,
        cv=cv,
        trace=str(trace.resolve()) if trace else "",
        requests=requests,
        seeds=seeds,
        seed=seed,
        ttft_slo_ns=slo_ttft,
        tpot_slo_ns=slo_tpot,
    )
    burst = burstiness(
        arrivals_of(sweep)
    )  # before anything is written: a trace that is none leaves nothing behind
    outcomes = _computed(
        sweep, points, out / "results.jsonl", engine, ray_address, jobs or os.cpu_count() or 1, quiet
    )
    best = cheapest(outcomes, share, metric) if slo_ttft or slo_tpot else None
    title = _title(sweep, trace)
    said = _said(outcomes, best, share, bool(slo_ttft or slo_tpot))
    slo = {"ttft": slo_ttft, "tpot": slo_tpot, "e2e": 0}[metric]
    page = output.write_text(
        out / "capacity.html",
        page_html(
            title,
            said,
            outcomes,
            metric=metric,
            slo_ns=slo,
            good_share=share,
            best=best,
            notes=_notes(outcomes),
        ),
    )
    if as_json:
        output.print_json({
            "title": title, "burstiness": msgspec.to_builtins(burst), "said": said, "defined": DEFINED, "page": str(page.absolute()),
            "points": [_document(point, result) for point, result in outcomes],
            "front": [point.key for point, _ in front(outcomes, metric)],
            "cheapest": best[0].key if best else None,
        })  # fmt: skip
    else:
        click.echo(arrivals_text(sweep, burst) + "\n")
        print_table(title, said, outcomes, front(outcomes, metric), best, share)
        click.echo(f"\npage: {page.absolute()}")
    if all(result.refused for _, result in outcomes):
        return 1
    return 1 if (slo_ttft or slo_tpot) and best is None else 0


def _told(text: str) -> tuple[int, int]:
    tp, _, blocks = text.partition("=")
    if not (tp.isdecimal() and blocks.isdecimal() and int(tp) and int(blocks)):
        raise click.BadParameter(f"{text!r}: write it like 4=27186", param_hint="'--kv-blocks'")
    return int(tp), int(blocks)


def _computed(
    sweep: "Sweep", points: "Sequence[Point]", path: Path, engine: str, address: str, jobs: int, quiet: bool
) -> "list[Outcome]":
    """All points' results, those of the file and those computed now."""
    from sits.app.terminal import Progress  # noqa: PLC0415
    from sits.bench.sweep_engines import run_here, run_on_ray  # noqa: PLC0415
    from sits.bench.sweep_store import Results  # noqa: PLC0415

    with Results(path, sweep) as results, Progress(quiet=quiet) as progress:
        left = [point for point in points if point.key not in results.done]
        done = len(points) - len(left)
        if done and left and not quiet:
            progress(f"{done} of {len(points)} points are in {path.name} already")
        found: Iterator[Outcome] = (
            run_on_ray(sweep, left, jobs, address)
            if engine == "ray" and left
            else run_here(sweep, left, jobs)
        )
        progress("simulating", done, len(points))
        try:
            for point, result in found:
                results.keep(point, result)
                done += 1
                progress("simulating", done, len(points))
        except KeyboardInterrupt:
            click.echo(
                f"{done} of {len(points)} points are kept in {path}: the same command goes on", err=True
            )
            raise
        return [results.done[point.key] for point in points]


def _title(sweep: "Sweep", trace: Path | None) -> str:
    named = f"trace {trace.name}" if trace else ("Poisson" if sweep.cv == 1.0 else f"gaps of CV {sweep.cv:g}")
    rate = f"{sweep.rate:g} requests a second, " if sweep.rate else ""
    return f"{sweep.model.name} on {sweep.gpu}: {rate}{named}"


def _said(outcomes: "Sequence[Outcome]", best: "Outcome | None", share: float, judged: bool) -> list[str]:
    """The outcome in a few sentences."""
    from sits.app.capacity_chart import figure, name_of  # noqa: PLC0415

    refused = sum(1 for _, result in outcomes if result.refused)
    behind = sum(1 for _, result in outcomes if not result.refused and not result.keeps_up)
    said = []
    if best is not None:
        point, result = best
        said.append(
            f"Fewest GPUs with {share:.0%} of requests within the objectives: {point.gpus}, as {name_of(point)} (P99 TTFT "
            f"{figure(result.ttft_ns[1])}, TPOT {figure(result.tpot_ns[1])}, {result.good:.1%} within)."
        )
    elif judged:
        said.append(f"No configuration has {share:.0%} of requests within the objectives.")
    counts = [f"{len(outcomes)} configurations"]
    counts += [f"{behind} do not keep up"] if behind else []
    counts += [f"{refused} cannot be"] if refused else []
    return [*said, ", ".join(counts) + "."]


def _notes(outcomes: "Sequence[Outcome]") -> list[str]:
    from sits.app.capacity_table import DEFINED  # noqa: PLC0415

    notes = [
        DEFINED,
        "A name is replicas × GPUs of one engine · window · max-num-seqs · max-num-batched-tokens.",
    ]
    for tp in sorted({point.tp for point, _ in outcomes}):
        texts = dict.fromkeys(
            text
            for point, result in outcomes
            if point.tp == tp
            for text in ((f"cannot be: {result.refused}",) if result.refused else result.assumed)
        )
        notes.append(f"{tp} GPU{'s' if tp > 1 else ''} an engine: " + "; ".join(texts))
    return notes


def _document(point: "Point", result: "Result") -> dict[str, Any]:
    row: dict[str, Any] = {"key": point.key, "gpus": point.gpus}
    row |= {name: getattr(point, name) for name in point.__struct_fields__}
    return row | {name: getattr(result, name) for name in result.__struct_fields__}
