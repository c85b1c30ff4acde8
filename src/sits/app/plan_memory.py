"""`sitsctl plan memory`: what sharding plans leave for the KV cache, and what paging it is worth on the same work.

Two tables.  Plans: bytes on the fullest GPU, tokens of KV in the pool, what is exchanged for a token.  Contexts: the same
requests through the same simulated engine with one reservation of the whole context for each, and with blocks.

Deliberately absent: the computing (`sits.predict.sharding`, `sits.bench.sweep_memory`).
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sits.app.engine_options import engine_options, model_named
from sits.app.quantities import GPU_MEMORY, Number, Whole

if TYPE_CHECKING:
    from sits.bench.sweep_memory import Comparison, Side, Work
    from sits.core.fleet import Model
    from sits.predict.paged_pressure import DeviceCheck, Pressure
    from sits.predict.sharding import Sharding

CONTEXTS = (2048, 8192, 32_768, 131_072)
DEFINED = (
    "waste: share of reserved KV room that holds no token, averaged over time; at a time: requests in service, averaged; "
    "tok/s: output tokens a second from the first schedule to the last token, all requests there from the beginning."
)


@click.command(short_help="Sharding plans, and static against paged KV memory on the same work.")
@engine_options("llama-2-7b")
@click.option("--gpu-memory", type=GPU_MEMORY, default="80GiB", show_default=True, help="Memory of one GPU.")
@click.option(
    "--gpus", type=Whole(1, 64), default=None,
    help="GPUs of a replica.  [default: the fewest of 1, 2, 4, 8 that hold one sequence of the longest context]",
)  # fmt: skip
@click.option(
    "--plan",
    "plans",
    multiple=True,
    help="A plan like tensor=4 or layers=2,tensor=2; repeat it.  [default: one of each kind]",
)
@click.option(
    "--context", "contexts", type=Whole(min=16, max=10_000_000), multiple=True, default=CONTEXTS,
    show_default=True, help="Longest sequence allowed, tokens; repeat it.",
)  # fmt: skip
@click.option(
    "--work", type=click.Choice(["conversation", "reasoning", "uniform", "full"]), default="conversation",
    show_default=True, help="What is asked: shapes of prompts and answers.",
)  # fmt: skip
@click.option("--requests", type=Whole(1, 100_000), default=200, show_default=True)
@click.option("--block-size", type=Whole(min=1, max=4096), default=16, show_default=True)
@click.option("--max-num-seqs", type=Whole(min=1, max=65536), default=256, show_default=True)
@click.option("--shared-prefix", type=Whole(min=0, max=10_000_000), default=0, show_default=True,
              help="Tokens all prompts begin with; blocks hold them once.")  # fmt: skip
@click.option("--seed", type=Whole(min=0), default=0, show_default=True)
@click.option(
    "--rate",
    type=Number(0.001, 1e9),
    default=None,
    help="Also say how hard the pool is pressed by the work at so many requests a second (Poisson).",
)
@click.option(
    "--device-memory",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    default=None,
    help="Hold the first plan against a reading of the GPUs: nvidia-smi -q, -q -x, or dcgmi dmon -e 250,252.",
)
@click.option(
    "--pair", default=None, metavar="GB,%,GB,%",
    help="Hold a published pair (static bytes, waste, paged bytes, waste) against itself at the longest context.",
)  # fmt: skip
@click.option(
    "--svg",
    type=click.Path(dir_okay=False, path_type=Path),
    default=None,
    help="Also draw both sides over the contexts, and the plans.",
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print the result as JSON, and nothing else, on stdout."
)
@click.option("-q", "--quiet", is_flag=True, help="No progress on stderr.")
def memory(
    model_name: str,
    fleet: Path | None,
    gpu: str,
    gpu_memory: int,
    gpus: int | None,
    plans: tuple[str, ...],
    contexts: tuple[int, ...],
    work: str,
    requests: int,
    block_size: int,
    max_num_seqs: int,
    shared_prefix: int,
    seed: int,
    rate: float | None,
    device_memory: Path | None,
    pair: str | None,
    svg: Path | None,
    as_json: bool,
    quiet: bool,
) -> int:
    """Say what a sharding plan leaves for the KV cache, and what paging is worth, by simulating the same work both ways.

    Exits with 1 when no context could be simulated.
    """  # fmt: skip
    from sits.app.output import prepare, print_json, write_text  # noqa: PLC0415
    from sits.app.terminal import Progress  # noqa: PLC0415
    from sits.bench.sweep_memory import compare_memory, work_of  # noqa: PLC0415
    from sits.predict.paged import check_pair, pack  # noqa: PLC0415
    from sits.predict.sharding import Sharding, parse_sharding  # noqa: PLC0415

    prepare(svg.absolute().parent if svg else None)
    model = model_named(model_name, fleet)
    ordered = sorted(set(contexts))
    checked = check_pair(*_pair(pair), tokens=ordered[-1], block_size=block_size) if pair else None
    count = gpus or fewest_gpus(model, gpu_memory, ordered[-1], block_size)
    kinds = [parse_sharding(text) for text in plans] or _each_kind(count)
    simulated = next((plan for plan in kinds if plan.ranks == plan.tensor), Sharding(tensor=count))
    rows = [_plan_row(model, plan, gpu_memory, block_size) for plan in kinds]
    checks = _device_checks(device_memory, rows[0]) if device_memory is not None else []
    found: list[dict[str, Any]] = []
    seen: list[Comparison] = []
    with Progress(quiet=quiet) as progress:
        for index, context in enumerate(ordered):
            progress("simulating", index, len(ordered))
            asked = work_of(work, context, requests, seed, shared_prefix)
            result = compare_memory(
                model,
                gpu,
                simulated,
                asked,
                gpu_memory=gpu_memory,
                block_size=block_size,
                max_num_seqs=max_num_seqs,
            )
            row = _context_row(result)
            if result.paged is not None:
                fits = pack(
                    (asked.prompt + asked.output).tolist() * 8,
                    pool_tokens=result.paged.pool_tokens,
                    limit=context,
                    block_size=block_size,
                    shared_prefix=shared_prefix,
                )
                row["fit_static"], row["fit_paged"] = fits.static, fits.paged
            if rate is not None and result.paged is not None:
                row["pressure"] = _pressure(
                    model, gpu, simulated.tensor, gpu_memory, block_size, max_num_seqs, asked, rate, seed
                )
            seen.append(result)
            found.append(row)
        progress("simulating", len(ordered), len(ordered))
    code = 0 if any(result.paged is not None for result in seen) else 1
    document = {
        "model": model.name, "gpu": gpu, "gpu_memory": gpu_memory, "work": work, "requests": requests, "seed": seed,
        "block_size": block_size, "simulated": str(simulated), "plans": rows, "contexts": found, "defined": DEFINED,
    }  # fmt: skip
    if svg is not None:
        from sits.app.memory_chart import drawing  # noqa: PLC0415

        write_text(svg, drawing(document))
        click.echo(f"chart: {svg.absolute()}", err=True)
    if as_json:
        print_json(
            document | ({"pair": checked} if checked else {}) | ({"devices": checks} if checks else {})
        )
        return code
    _print_plans(model, gpu_memory, rows)
    _print_contexts(seen, found, gpu, work, requests, str(simulated), block_size)
    if rate is not None:
        _print_pressure(found, rate)
    for index, check in enumerate(checks):
        click.echo(
            f"\nGPU {index}: {check.used / 2**30:.1f} of {check.total / 2**30:.1f} GiB used, {rows[0]['plan']}: {check.said}"
        )
    if checked is not None:
        from sits.predict.paged import explain_pair  # noqa: PLC0415

        click.echo(f"\npublished pair {pair}, at {ordered[-1]:,} tokens in blocks of {block_size}:")
        for line in explain_pair(checked):
            click.echo(f"  {line}")
    return code


def fewest_gpus(model: "Model", gpu_memory: int, context: int, block_size: int) -> int:
    """The fewest of 1, 2, 4, 8 GPUs whose pool holds one sequence of the context; 8 when none does."""
    from sits.core.errors import ConfigError  # noqa: PLC0415
    from sits.predict.sharding import Sharding, room_of  # noqa: PLC0415

    def pool(count: int) -> int:
        try:
            return room_of(model, Sharding(tensor=count), gpu_memory=gpu_memory, block_size=block_size).tokens
        except ConfigError:
            return 0  # does not fit: no pool at all

    return next((count for count in (1, 2, 4) if pool(count) >= context), 8)


def _each_kind(count: int) -> "list[Sharding]":
    from sits.predict.sharding import Sharding  # noqa: PLC0415

    if count == 1:
        return [Sharding()]
    kinds = [
        Sharding(tensor=count),
        Sharding(layers=count),
        Sharding(heads=count),
        Sharding(vocabulary=count),
    ]
    return kinds + ([Sharding(tensor=count // 2, layers=2)] if count >= 4 and count % 2 == 0 else [])


def _pair(text: str) -> tuple[float, float, float, float]:
    parts = [part.strip().removesuffix("GB").strip() for part in text.split(",")]
    try:
        static, static_waste, paged, paged_waste = (
            float(part.rstrip("%")) / (100 if part.endswith("%") else 1) for part in parts
        )
    except ValueError as error:
        raise click.BadParameter(
            f"{text!r}: write it like 48.2,37%,19.6,8%", param_hint="'--pair'"
        ) from error
    return static, static_waste, paged, paged_waste


def _plan_row(model: "Model", plan: "Sharding", gpu_memory: int, block_size: int) -> dict[str, Any]:
    from sits.core.errors import ConfigError  # noqa: PLC0415
    from sits.predict.sharding import exchanged_bytes, room_of  # noqa: PLC0415

    row: dict[str, Any] = {"plan": str(plan), "gpus": plan.ranks}
    try:
        room = room_of(model, plan, gpu_memory=gpu_memory, block_size=block_size)
    except ConfigError as error:
        return row | {"refused": error.message}
    return row | {
        "weights_bytes": room.tightest.weights,
        "token_bytes": room.tightest.token_bytes,
        "pool_tokens": room.tokens,
        "exchanged_bytes": exchanged_bytes(model, plan),
        "assumed": list(room.assumed),
    }


def _context_row(seen: "Comparison") -> dict[str, Any]:
    row: dict[str, Any] = {"context": seen.context}
    if seen.static is None or seen.paged is None:
        return row | {"refused": seen.refused}

    def shown(side: "Side") -> dict[str, Any]:
        return {
            "pool_tokens": side.pool_tokens,
            "waste": side.memory.waste,
            "sequences": side.memory.sequences,
            "output_per_s": side.output_per_s,
            "span_s": side.span_s,
            "preemptions": side.preemptions,
            "served": side.served,
            "never_fit": side.never_fit,
        }

    return (
        row
        | {
            "static": shown(seen.static),
            "paged": shown(seen.paged),
            "speedup": seen.speedup,
            "step_times": seen.source,
        }
        | ({"shared": shown(seen.shared)} if seen.shared is not None else {})
    )


def _pressure(
    model: "Model", gpu: str, tp: int, gpu_memory: int, block_size: int, max_num_seqs: int, asked: "Work", rate: float, seed: int
) -> "Pressure":  # fmt: skip
    import msgspec  # noqa: PLC0415

    from sits.bench.sweep_memory import pressure_under, tensor_engine  # noqa: PLC0415

    spec = tensor_engine(model, gpu, tp, gpu_memory=gpu_memory, block_size=block_size)
    return pressure_under(msgspec.structs.replace(spec, max_num_seqs=max_num_seqs), asked, rate, seed)


def _device_checks(path: Path, row: dict[str, Any]) -> "list[DeviceCheck]":
    """Each GPU of a reading against the fullest of the plan."""
    from sits.app.output import read_text  # noqa: PLC0415
    from sits.core.errors import ConfigError  # noqa: PLC0415
    from sits.predict.paged_pressure import device_check, read_device_memory  # noqa: PLC0415

    if "refused" in row:
        raise click.UsageError(f"--device-memory needs a plan that fits: {row['refused']}")
    try:
        read = read_device_memory(read_text(path))
    except ConfigError as error:
        error.where = str(path)
        raise
    pool = row["pool_tokens"] * row["token_bytes"]
    return [device_check(used, total, row["weights_bytes"], pool) for used, total in read]


def _print_pressure(found: list[dict[str, Any]], rate: float) -> None:
    from sits.predict.paged_pressure import SAID  # noqa: PLC0415

    click.echo(f"\nthe pool at {rate:g} requests a second (Poisson), blocks:\n")
    click.echo(
        f"{'context':>8}{'use P50':>10}{'P99':>7}{'over 75%':>10}{'contention':>12}{'preempted/s':>13}{'recomputed':>12}"
    )
    for row in found:
        if "pressure" in row:
            seen = row["pressure"]
            click.echo(
                f"{row['context']:>8,}{seen.use_p50:>10.0%}{seen.use_p99:>7.0%}{seen.above_high:>10.0%}{seen.contention:>12.2f}"
                f"{seen.preemptions_per_s:>13.2f}{seen.recomputed:>12.1%}  {seen.verdict}: {SAID[seen.verdict]}"
            )
    click.echo(
        "\nuse: blocks in use / blocks, by time; contention: share of steps in which a request was denied blocks or lost them."
    )


def _print_plans(model: "Model", gpu_memory: int, rows: list[dict[str, Any]]) -> None:
    click.echo(f"{model.name} on GPUs of {gpu_memory / 2**30:.0f} GiB; figures of the fullest GPU\n")
    click.echo(f"{'plan':<22}{'weights':>10}{'KV a token':>13}{'pool':>17}{'exchanged a token':>20}")
    for row in rows:
        if "refused" in row:
            click.echo(f"{row['plan']:<22}{row['refused']}")
            continue
        click.echo(
            f"{row['plan']:<22}{row['weights_bytes'] / 1e9:>7.1f} GB{row['token_bytes'] / 1024:>9.0f} KiB"
            f"{row['pool_tokens']:>10,} tokens{row['exchanged_bytes'] / 1024:>16,.0f} KiB"
        )
    for text in next((row["assumed"] for row in rows if "assumed" in row), ()):
        click.echo(f"  assumed: {text}")


def _print_contexts(
    seen: "list[Comparison]",
    found: list[dict[str, Any]],
    gpu: str,
    work: str,
    requests: int,
    plan: str,
    block: int,
) -> None:
    click.echo(
        f"\n{requests} {work} requests on {gpu}, {plan}: one reservation each, against blocks of {block}\n"
    )
    click.echo(f"{'':<9}{'fit at once':>14}{'waste':>18}{'at a time':>16}{'tok/s':>18}{'gain':>8}")
    sides = ("static", "paged")
    widths = ((8, 7), (9, 9), (9, 7), (9, 9))
    click.echo(
        f"{'context':>8}"
        + "".join(f"{side:>{w}}" for pair in widths for side, w in zip(sides, pair, strict=True))
    )
    preempted = 0
    for result, row in zip(seen, found, strict=True):
        if result.static is None or result.paged is None:
            click.echo(f"{result.context:>8,} {result.refused}")
            continue
        a, b = result.static, result.paged
        gain = f"{result.speedup:.2f}x" if result.speedup else "other work"
        preempted += b.preemptions
        click.echo(
            f"{result.context:>8,} {row['fit_static']:>7,}{row['fit_paged']:>7,} {a.memory.waste:>8.1%}{b.memory.waste:>9.2%}"
            f"{a.memory.sequences:>9.1f}{b.memory.sequences:>7.1f}{a.output_per_s:>9,.0f}{b.output_per_s:>9,.0f}{gain:>8}"
        )
    for result in seen:
        if result.shared is not None and result.paged is not None:
            times = result.shared.output_per_s / result.paged.output_per_s
            click.echo(
                f"  {result.context:,}: with the shared prefix found in a cache {result.shared.output_per_s:,.0f} tok/s, "
                f"{times:.2f}x of blocks alone"
            )
    click.echo(f"\n{DEFINED}")
    for source in dict.fromkeys(result.source for result in seen if result.source):
        click.echo(f"  assumed: step times {source}")
    if preempted:
        click.echo(
            f"Blocks ran out {preempted} times: a request gave up its blocks and began again; its waiting counts as service."
        )
    for side in (result.paged for result in seen if result.paged is not None and result.paged.never_fit):
        click.echo(
            f"{side.never_fit} requests could never fit into {side.pool_tokens:,} tokens and took no part."
        )
