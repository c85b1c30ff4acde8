"""The commands `sitsctl signals` and `sitsctl gpu`.

Exit codes: 0 read; 2 it is nothing that can be read; 3 nothing answers there, or there is no GPU.
"""

import sys
from pathlib import Path
from typing import Any

import click

TEXT_MAX = 32 * 2**20

_json = click.option(
    "--json", "as_json", is_flag=True, help="Print the result as JSON, and nothing else, on stdout."
)


@click.command(short_help="What an engine's page or a GPU tool's output says, in our names.")
@click.argument("source")
@click.option("--model", default="", help="Only this model, where a page has several.")
@click.option(
    "--api-key-env",
    default=None,
    metavar="NAME",
    help="Environment variable that holds the key of a page behind one.",
)
@_json
def signals(source: str, model: str, api_key_env: str | None, as_json: bool) -> int:
    """Read SOURCE and print its signals with units, and what it lacks.

    SOURCE is a URL (an engine, its metrics page, its /slots, a dcgm-exporter), a file, or - for standard input: a metrics page, or what
    nvidia-smi, dcgmi, lspci, dmesg, NCCL or lstopo wrote.
    """  # fmt: skip
    from sits.app.key_sent import key_for  # noqa: PLC0415
    from sits.app.signals.shown import engine_lines, gpu_lines, table, value_text  # noqa: PLC0415
    from sits.app.signals.told import told_by  # noqa: PLC0415
    from sits.core.plain_text import plain  # noqa: PLC0415

    said = {"source": source} | (
        _from_url(source, model, key_for(source, api_key_env, ""))
        if source.startswith(("http://", "https://"))
        else told_by(_from_file(source), model)
    )
    if as_json:
        _print_json(said)
        return 0
    if said["kind"] == "engine":
        lines = list(engine_lines(said))
    elif "devices" in said:
        lines = list(gpu_lines(said))
    else:
        rows = [(row["signal"], value_text(row["value"], row["unit"])) for row in said["signals"]]
        lines = [said["kind"], *table(rows)]
    click.echo("\n".join(map(plain, lines)))
    return 0


@click.command(short_help="The GPUs of this machine: memory, load, power, links.")
@_json
def gpu(as_json: bool) -> int:
    """Ask this machine's driver (NVML) for all GPUs: values with units, and how they reach each other.

    Exits with 3 when there is no GPU to ask, and says why.
    """  # fmt: skip
    from sits.app.signals.shown import gpu_lines  # noqa: PLC0415
    from sits.app.signals.told import of_report  # noqa: PLC0415
    from sits.core.plain_text import plain  # noqa: PLC0415
    from sits.telemetry.gpu.nvml import NoDeviceError, Nvml  # noqa: PLC0415
    from sits.world import RealWorld  # noqa: PLC0415

    try:
        nvml = Nvml(RealWorld())
        try:
            said = of_report(nvml.look(links=True))
        finally:
            nvml.close()
    except NoDeviceError as error:
        if as_json:
            _print_json({"kind": "NVML", "devices": [], "reason": str(error)})
        else:
            click.echo(f"no device: {plain(str(error))}")
        return 3
    if as_json:
        _print_json(said)
    else:
        click.echo("\n".join(map(plain, gpu_lines(said))))
    return 0


def _print_json(said: dict[str, Any]) -> None:
    from sits.app.output import print_json  # noqa: PLC0415

    print_json(said)


def _from_file(source: str) -> str:
    from sits.core.errors import CallerError  # noqa: PLC0415

    if source == "-":
        if sys.stdin is None:  # it was closed before we began
            raise CallerError("standard input is closed", field="source", hint="name a file, or pipe one in")
        data = sys.stdin.buffer.read(TEXT_MAX + 1)
    else:
        try:
            with Path(source).open("rb") as file:
                data = file.read(TEXT_MAX + 1)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            hint = "a URL begins with http:// or https://"
            raise CallerError(f"{source}: {reason}", field="source", hint=hint) from None
    if len(data) > TEXT_MAX:
        raise CallerError(f"{source} is longer than {TEXT_MAX} bytes", field="source")
    return data.decode("utf-8", "replace")


def _from_url(url: str, model: str, api_key: str) -> dict[str, Any]:
    """The page at `url`; where that is only a server, the first of the places where engines have their metrics."""
    from urllib.parse import urlsplit  # noqa: PLC0415

    from sits.app.signals.told import told_by  # noqa: PLC0415
    from sits.bench.target import fetch  # noqa: PLC0415
    from sits.core.errors import SitsError  # noqa: PLC0415
    from sits.core.http_address import http_address  # noqa: PLC0415

    http_address(url, "source")
    base = url.rstrip("/").removesuffix("/v1")
    if urlsplit(base).path.strip("/"):
        return told_by(fetch(url, api_key=api_key), model)
    failures: list[SitsError] = []
    for path in ("/metrics", "/prometheus/metrics"):
        try:
            return told_by(fetch(base + path, api_key=api_key), model) | {"page": base + path}
        except SitsError as error:
            failures.append(error)
    raise failures[0]
