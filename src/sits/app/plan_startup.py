"""`sitsctl plan startup`: where the time before the first answer goes: of a command started here, of a log, or of spans.

Deliberately absent: the computing (`sits.bench.procstart`, `sits.predict.startup`, `sits.predict.startup_log`).
"""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sits.app.quantities import BANDWIDTH, BYTES, DURATION, Whole

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sits.bench.procstart import Start
    from sits.predict.startup import Advice, Startup

MEANS = {
    "image": "pulling the image",
    "container": "making the container",
    "exec": "starting the program",
    "imports": "loading code",
    "configuration": "reading configuration, setting up",
    "device": "device and distributed set-up",
    "compile": "compiling kernels",
    "weights": "building the model, loading weights",
    "memory": "KV cache and warm-up",
    "graphs": "capturing graphs",
    "listen": "front end, until it listens",
    "answer": "from listening to the first answer",
    "unattributed": "nobody says",
}
BAR = 24


@click.command(
    short_help="Where a start's time goes: run a command, or read a log.",
    context_settings={"allow_interspersed_args": False},
)
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "--url",
    default=None,
    help="The start is over when this answers with a 2xx.  [default: when it listens, or ends]",
)
@click.option(
    "--repeat",
    type=Whole(1, 100),
    default=1,
    show_default=True,
    help="Starts; the first is told apart.",
)
@click.option(
    "--limit", type=DURATION, default="10min", show_default=True, help="A start that takes longer has failed."
)
@click.option("--imports", is_flag=True, help="Python: which packages the importing goes to.")
@click.option("--log", "logs", type=click.Path(exists=True, dir_okay=False, path_type=Path), multiple=True,
              help="Read a start from a log of vLLM, llama.cpp or a container runtime (.gz too).")  # fmt: skip
@click.option("--spans", type=click.Path(exists=True, dir_okay=False, path_type=Path), default=None,
              help="Read a start from spans, one JSON object a line (.gz too).")  # fmt: skip
@click.option(
    "--weights",
    "weights_bytes",
    type=BYTES,
    default=0,
    help="Size of the weights, to judge how fast they come.",
)
@click.option(
    "--disk", type=BANDWIDTH, default=0.0, help="What the disk gives (`sitsctl plan persist --measure`)."
)
@click.option(
    "--device", default=None, metavar="sm_90", help="Say whether the driver must compile for this GPU."
)
@click.option(
    "--shipped", default="", metavar="sm_80,sm_86,compute_86", help="With --device: what the library ships."
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print the result as JSON, and nothing else, on stdout."
)
@click.option("-q", "--quiet", is_flag=True, help="No progress on stderr.")
def startup(
    command: "Sequence[str]",
    url: str | None,
    repeat: int,
    limit: int,
    imports: bool,
    logs: tuple[Path, ...],
    spans: Path | None,
    weights_bytes: int,
    disk: float,
    device: str | None,
    shipped: str,
    as_json: bool,
    quiet: bool,
) -> int:
    """Say where the time before the first answer goes, and what would shorten it.

    \b
    sitsctl plan startup --url http://127.0.0.1:8000/health -- vllm serve MODEL
    sitsctl plan startup --log engine.log
    """  # noqa: D301  # \b keeps the two lines apart
    from sits.app.output import print_json  # noqa: PLC0415
    from sits.predict.startup import advise, jit_needed  # noqa: PLC0415

    if not (command or logs or spans or device):
        raise click.UsageError("give a command after --, or --log, or --spans, or --device")
    found: list[dict[str, Any]] = []
    starts = _watched(command, url, repeat, limit, imports, quiet) if command else []
    told: list[tuple[str, Startup]] = [*_read(logs, spans)]
    for name, seen in told:
        tips = advise(seen, {}, weights_bytes=weights_bytes, disk_bytes_per_s=disk)
        found.append(_document(name, seen, tips))
    for index, start in enumerate(starts):
        tips = advise(
            start.startup, os.environ, weights_bytes=weights_bytes, disk_bytes_per_s=disk, repeated=index > 0
        )
        found.append(
            _document("first start" if index == 0 else f"start {index + 1}", start.startup, tips, start)
        )
    compiles = jit_needed(device, [word for word in shipped.split(",") if word]) if device else None
    if as_json:
        print_json({"starts": found, "jit_needed": compiles})
        return 0
    for row in found:
        _print(row)
    if len(starts) > 2:
        _print_repeated(found[-len(starts) :])
    if compiles is not None:
        verdict = "must be compiled by the driver at first use" if compiles else "run as they are shipped"
        click.echo(f"{device}: kernels {verdict}")
    return 0


def _watched(
    command: "Sequence[str]", url: str | None, repeat: int, limit: int, imports: bool, quiet: bool
) -> "list[Start]":
    from sits.app.terminal import Progress  # noqa: PLC0415
    from sits.bench.procstart import watch  # noqa: PLC0415
    from sits.world import RealWorld  # noqa: PLC0415

    starts = []
    with Progress(quiet=quiet) as progress:
        for index in range(repeat):
            progress("starting", index, repeat)
            starts.append(watch(command, RealWorld(), url=url, limit_ns=limit, import_times=imports))
        progress("starting", repeat, repeat)
    return starts


def _read(logs: tuple[Path, ...], spans: Path | None) -> "list[tuple[str, Startup]]":
    from sits.bench.lines import objects  # noqa: PLC0415
    from sits.core.errors import ConfigError  # noqa: PLC0415
    from sits.predict.startup_log import read_log, read_spans  # noqa: PLC0415

    found = []
    for path in logs:
        try:
            found.append((path.name, read_log(_lines(path))))
        except ConfigError as error:
            error.where = str(path)
            raise
    if spans is not None:
        rows = [row for _, row in objects(spans)]
        try:
            found.append((spans.name, read_spans(rows)))
        except ConfigError as error:
            error.where = str(spans)
            raise
    return found


def _lines(path: Path) -> list[str]:
    from sits.bench.lines import bytes_of  # noqa: PLC0415

    return bytes_of(path).decode(errors="replace").splitlines()


def _document(
    name: str, seen: "Startup", tips: "Sequence[Advice]", start: "Start | None" = None
) -> dict[str, Any]:
    row: dict[str, Any] = {
        "name": name,
        "total_ns": seen.total_ns,
        "exact_ns": seen.exact_ns,
        "stages_ns": seen.stages_ns,
        "said_by": seen.of,
        "advice": tips,
    }
    if start is not None:
        row |= {
            "used": start.used, "listening_ns": start.listening_ns, "answered_ns": start.answered_ns, "exit_code": start.exit_code,
            "processes": start.processes, "imports_us": dict(list(start.imports_us.items())[:12]),
        }  # fmt: skip
    return row


def _print(row: dict[str, Any]) -> None:
    from sits.core.units import show_duration  # noqa: PLC0415

    total, used = row["total_ns"], row.get("used", {})
    processes = (
        f", {row['processes']} process{'es' if row['processes'] != 1 else ''}" if "processes" in row else ""
    )
    click.echo(
        f"{row['name']}: {show_duration(total)} (moments exact to {show_duration(row['exact_ns'])}{processes})\n"
    )
    for stage, took in row["stages_ns"].items():
        bar = "█" * round(BAR * took / max(total, 1))
        text = f"  {MEANS[stage]:<38}{show_duration(took):>9}{took / max(total, 1):>6.0%}  {bar:<{BAR}}"
        if stage in used:
            text += f" CPU {show_duration(used[stage].cpu_ns)}, {used[stage].read_bytes / 1e6:,.1f} MB read"
        click.echo(text.rstrip())
    if row.get("imports_us"):
        click.echo(
            "\n  imports, by package: "
            + ", ".join(f"{name} {us / 1000:,.0f} ms" for name, us in row["imports_us"].items())
        )
    for tip in row["advice"]:
        click.echo(f"\n  {show_duration(tip.stake_ns)} at stake, {MEANS[tip.stage]}: {tip.text}")
    click.echo()


def _print_repeated(rows: list[dict[str, Any]]) -> None:
    from sits.core.units import show_duration  # noqa: PLC0415

    later = sorted(row["total_ns"] for row in rows[1:])
    click.echo(
        f"{len(later)} later starts: {show_duration(later[0])} to {show_duration(later[-1])}, median "
        f"{show_duration(later[len(later) // 2])}; the first {show_duration(rows[0]['total_ns'])}"
    )
