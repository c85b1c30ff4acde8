"""`sitsctl plan persist`: what writing the KV cache to a disk costs, with this machine's disk measured for real.

Three parts: the disk (measured by `--measure DIR`, read from `--figures`, or stated by `--disk`), what one prompt's cache takes to
write, and a simulated service under each way of writing.

Deliberately absent: the computing (`sits.bench.disk`, `sits.predict.persist`, `sits.bench.disk_flow`).
"""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sits.app.engine_options import engine_options, model_named
from sits.app.quantities import BANDWIDTH, BYTES, DURATION, GPU_MEMORY, Number, Whole

if TYPE_CHECKING:
    from sits.bench.disk import Measured
    from sits.core.finding import Interval
    from sits.predict.persist import Disk
    from sits.predict.persist_fit import DiskFit

CONTEXTS = (1024, 4096, 16_384, 65_536)
DEFINED = (
    "durable when sent: a token that went out is on the disk; lag: from the end of a step to the disk, P99; held: share of the run "
    "in which the engine waited for writes; e2e: arrival to last token; disk: share of the run the disk was writing."
)


@click.command(
    short_help="Writing the KV cache to disk: measure the disk, predict the writes, simulate the service."
)
@click.option(
    "--measure",
    type=click.Path(path_type=Path),
    default=None,
    help="Measure the disk this directory lies on, past the page cache.",
)
@click.option(
    "--figures",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    default=None,
    help="Figures a --save wrote.",
)
@click.option("--disk", type=BANDWIDTH, default=None, help="State the bandwidth of the disk, like 2GB/s.")
@click.option(
    "--disk-fixed",
    type=DURATION,
    default="100us",
    show_default=True,
    help="With --disk: what a write takes besides.",
)
@click.option(
    "--rounds",
    type=Whole(3, 1000),
    default=12,
    show_default=True,
    help="Times each size is measured.",
)
@click.option(
    "--limit",
    type=DURATION,
    default="60s",
    show_default=True,
    help="Time after which measuring stops with what there is.",
)
@click.option(
    "--sync/--no-sync",
    default=True,
    show_default=True,
    help="Wait for the drive's own cache at each write (fdatasync).",
)
@click.option(
    "--save",
    type=click.Path(dir_okay=False, path_type=Path),
    default=None,
    help="Write the measured figures to a file.",
)
@click.option(
    "--pcie",
    type=BANDWIDTH,
    default="28GB/s",
    show_default=True,
    help="From a GPU to the host; PCIe 4.0 x16 gives about that.",
)
@engine_options("llama-3-8b")
@click.option("--gpu-memory", type=GPU_MEMORY, default="80GiB", show_default=True, help="Memory of one GPU.")
@click.option(
    "--gpus",
    type=Whole(1, 8),
    default=1,
    show_default=True,
    help="Tensor-parallel GPUs of the engine.",
)
@click.option(
    "--context",
    "contexts",
    type=Whole(16, 10_000_000),
    multiple=True,
    default=CONTEXTS,
    show_default=True,
    help="Prompt lengths to look at; repeat it.",
)
@click.option(
    "--rate",
    type=Number(0.001, 1e9),
    default=2.0,
    show_default=True,
    help="Requests a second of the simulated service (Poisson).",
)
@click.option("--requests", type=Whole(1, 100_000), default=300, show_default=True)
@click.option(
    "--flush-tokens",
    type=Whole(min=1),
    default=256,
    show_default=True,
    help="New tokens that are worth a write.",
)
@click.option(
    "--buffer", type=BYTES, default="4GiB", show_default=True, help="Host memory that stages writes."
)
@click.option("--seed", type=Whole(min=0), default=0, show_default=True)
@click.option(
    "--json", "as_json", is_flag=True, help="Print the result as JSON, and nothing else, on stdout."
)
@click.option("-q", "--quiet", is_flag=True, help="No progress on stderr.")
def persist(
    measure: Path | None,
    figures: Path | None,
    disk: float | None,
    disk_fixed: int,
    rounds: int,
    limit: int,
    sync: bool,
    save: Path | None,
    pcie: float,
    model_name: str,
    fleet: Path | None,
    gpu: str,
    gpu_memory: int,
    gpus: int,
    contexts: tuple[int, ...],
    rate: float,
    requests: int,
    flush_tokens: int,
    buffer: int,
    seed: int,
    as_json: bool,
    quiet: bool,
) -> int:
    """Say what writing the KV cache away costs a service: one prompt's write, and all of them under load.

    --measure writes and reads a nameless file of about 128 MB in DIR with direct I/O and leaves nothing behind; it is
    refused, with the reason, where that would measure memory (tmpfs) or the page cache.
    """  # fmt: skip
    from sits.app import output  # noqa: PLC0415
    from sits.app.terminal import Progress  # noqa: PLC0415
    from sits.bench.disk_service import one_prompt, service  # noqa: PLC0415

    if sum(given is not None for given in (measure, figures, disk)) != 1:
        raise click.UsageError(
            "say where the disk's figures come from: --measure DIR, --figures FILE or --disk 2GB/s"
        )
    output.prepare(save.parent if save else None)
    model = model_named(model_name, fleet)
    measured: Measured | None = None
    fits: dict[str, DiskFit] = {}
    with Progress(quiet=quiet) as progress:
        if measure is not None:
            measured, fits = _measure(measure, rounds, sync, limit, seed, progress)
        used = _disk(measure, figures, disk, disk_fixed, fits)
        prompts = [one_prompt(model, gpu, gpus, tokens, used, pcie) for tokens in sorted(set(contexts))]
        served = service(
            model, gpu, gpus, used, pcie, gpu_memory=gpu_memory, rate=rate, requests=requests,
            flush_tokens=flush_tokens, buffer_bytes=buffer, seed=seed, progress=progress,
        )  # fmt: skip
    document: dict[str, Any] = {
        "disk": used, "pcie": pcie, "measured": measured, "fit": fits or None, "model": model.name, "gpu": gpu, "gpus": gpus,
        "prompts": prompts, "rate_per_s": rate, "requests": requests, "modes": served.modes, "device": served.device, "assumed": served.assumed, "defined": DEFINED,
    }  # fmt: skip
    if save is not None:
        import msgspec  # noqa: PLC0415

        if not fits:
            raise click.UsageError("--save keeps what --measure found")
        output.write_text(save, msgspec.json.format(msgspec.json.encode(fits)).decode() + "\n")
    if as_json:
        output.print_json(document | {"measured": _with_text_keys(measured)})
        return 0
    if measured is not None:
        _print_measured(measured, fits)
    _print(document)
    return 0


def _measure(
    directory: Path, rounds: int, sync: bool, limit_ns: int, seed: int, progress: Any
) -> "tuple[Measured, dict[str, DiskFit]]":
    from sits.bench.disk import measure  # noqa: PLC0415
    from sits.predict.persist_fit import fit_disk  # noqa: PLC0415
    from sits.world import RealWorld  # noqa: PLC0415

    world = RealWorld(seed)
    measured = measure(directory, world, rounds=rounds, sync=sync, limit_ns=limit_ns, progress=progress)
    return measured, {
        "write": fit_disk(measured.writes_ns, world.rng("fit-writes")),
        "read": fit_disk(measured.reads_ns, world.rng("fit-reads")),
    }


def _disk(
    measured: Path | None,
    figures: Path | None,
    stated: float | None,
    fixed_ns: int,
    fits: "dict[str, DiskFit]",
) -> "Disk":
    """The figures used, from whichever source was given."""
    import msgspec  # noqa: PLC0415

    from sits.core.errors import ConfigError  # noqa: PLC0415
    from sits.predict.persist import Disk  # noqa: PLC0415
    from sits.predict.persist_fit import DiskFit  # noqa: PLC0415

    if measured is not None:
        return fits["write"].disk(f"measured in {measured}")
    if figures is not None:
        try:
            kept = msgspec.json.decode(figures.read_bytes(), type=dict[str, DiskFit])
            return kept["write"].disk(f"measured before ({figures.name})")
        except (msgspec.DecodeError, RecursionError, KeyError) as error:
            raise ConfigError(
                f"no figures of a disk: {_said(error)}",
                where=str(figures),
                hint="give a file that --save wrote",
            ) from error
    assert stated is not None
    return Disk(fixed_ns=float(fixed_ns), bytes_per_s=stated)


def _said(error: Exception) -> str:
    return f"it has no {error}" if isinstance(error, KeyError) else str(error)


def _with_text_keys(measured: "Measured | None") -> dict[str, Any] | None:
    """Measured times with sizes and depths as text, for a JSON object has no other keys."""
    if measured is None:
        return None
    fields = {name: getattr(measured, name) for name in measured.__struct_fields__}
    return {
        name: {str(key): kept for key, kept in value.items()} if isinstance(value, dict) else value
        for name, value in fields.items()
    }


def _print_measured(measured: "Measured", fits: "dict[str, DiskFit]") -> None:
    import numpy as np  # noqa: PLC0415

    from sits.core.units import show_duration  # noqa: PLC0415

    how = "direct I/O, fdatasync each" if measured.synced else "direct I/O, no fdatasync"
    click.echo(f"{measured.directory}: {measured.filesystem} on {measured.device}, {how}\n")
    click.echo(f"{'size':>10}{'write P50':>12}{'P10 to P90':>22}{'read P50':>12}{'times':>7}")
    for size, times in sorted(measured.writes_ns.items()):
        low, middle, high = np.quantile(times, [0.1, 0.5, 0.9])
        read = float(np.median(measured.reads_ns[size]))
        between = f"{show_duration(low)} to {show_duration(high)}"
        click.echo(
            f"{size / 1024:>6,.0f} KiB{show_duration(middle):>12}{between:>22}{show_duration(read):>12}{len(times):>7}"
        )
    for name, fit in fits.items():
        fixed = _between(fit.fixed_ns, show_duration)
        rate = _between(fit.bytes_per_s, lambda value: f"{value / 1e9:.3g} GB/s")
        click.echo(
            f"\n{name}: {fixed} + bytes / {rate}"
            f"\n  exponent {_between(fit.exponent, lambda value: f'{value:.2f}')} (1 = proportional), error of the line {fit.mape:.1%}, "
            f"spread of the times {fit.spread:.0%} (P10 to P90), {fit.sizes} sizes, {fit.times} times"
        )
    shown = ", ".join(f"{depth}: {rate / 1e9:.2f}" for depth, rate in measured.depths.items())
    click.echo(f"\nwrites of 1 MiB outstanding: GB/s  {shown}\n")


def _between(value: "Interval", shown: Callable[[float], str]) -> str:
    """A figure and its interval."""
    return f"{shown(value.value)} [{shown(value.low)}, {shown(value.high)}]"


def _print(document: dict[str, Any]) -> None:
    from sits.core.units import show_duration  # noqa: PLC0415

    disk = document["disk"]
    click.echo(
        f"disk: {show_duration(disk.fixed_ns)} + bytes / {disk.bytes_per_s / 1e9:.3g} GB/s ({disk.source}); "
        f"PCIe {document['pcie'] / 1e9:.3g} GB/s a GPU"
    )
    click.echo(f"{document['model']} on {document['gpus']} x {document['gpu']}, one prompt, alone:\n")
    click.echo(
        f"{'tokens':>8}{'KV':>10}{'computing':>12}{'whole write':>13}{'64 new':>10}{'felt sync':>12}{'layerwise':>11}"
    )
    for row in document["prompts"]:
        times = [
            show_duration(row[f"{name}_ns"])
            for name in ("compute", "write", "turn", "felt_sync", "felt_layerwise")
        ]
        widths = (12, 13, 10, 12, 11)
        click.echo(
            f"{row['tokens']:>8,}{row['kv_bytes'] / 1e9:>7.2f} GB"
            + "".join(f"{t:>{w}}" for t, w in zip(times, widths, strict=True))
        )
    click.echo(
        f"\n{document['requests']} conversation requests at {document['rate_per_s']:g} a second (Poisson), simulated:\n"
    )
    click.echo(f"{'writes':<13}{'durable':>8}{'TTFT P50':>10}{'P99':>9}{'e2e mean':>10}{'P99':>9}{'held':>7}{'lag P99':>10}{'disk':>6}{'staged':>9}")  # fmt: skip
    for row in document["modes"]:
        durable = "-" if row["mode"] == "none" else "yes" if row["durable_when_sent"] else "later"
        times = [
            show_duration(row[f"{name}_ms"] * 1e6) for name in ("ttft_p50", "ttft_p99", "e2e_mean", "e2e_p99")
        ]
        click.echo(
            f"{row['mode']:<13}{durable:>8}{times[0]:>10}{times[1]:>9}{times[2]:>10}{times[3]:>9}"
            f"{row['held_s'] / row['span_s']:>7.1%}{show_duration(row['lag_p99_ms'] * 1e6):>10}{row['device_busy']:>6.0%}{row['staged_gb']:>6.2f} GB"
        )
    device = document["device"]
    if device["wait_ns"] is None:
        click.echo(f"\nEach request's cache as one write at that rate: {device['said']}.")
    else:
        click.echo(
            f"\nEach request's cache as one write at that rate, at random: the disk is {device['busy']:.0%} busy, and a write waits "
            f"{show_duration(device['wait_ns'])} for it on average (Pollaczek and Khinchine)."
        )
    click.echo(f"\n{DEFINED}")
    for text in document["assumed"]:
        click.echo(f"  assumed: {text}")
