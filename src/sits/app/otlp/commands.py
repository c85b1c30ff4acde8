"""`sitsctl otel`: what goes with OpenTelemetry and is no gateway.

Exit codes: 0 done; 2 the fleet cannot be read.
"""

import json
from pathlib import Path

import click

_file = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.group(short_help="Work with OpenTelemetry: a Collector's configuration.")
def otel() -> None:
    """Work with OpenTelemetry."""


@otel.command()
@click.argument("fleet", type=_file)
@click.option(
    "--clickhouse", default="tcp://127.0.0.1:9000", show_default=True, help="ClickHouse; empty leaves it out."
)
@click.option(
    "--jaeger",
    default="127.0.0.1:4417",
    show_default=True,
    help="Jaeger's OTLP over gRPC, host:port; empty leaves it out.",
)
@click.option(
    "--sample", type=click.FloatRange(0, 100), default=10.0, show_default=True,
    help="Percent of the traces that are neither failed nor slow nor of an incident.",
)  # fmt: skip
@click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path), help="Write it to a file, not to stdout."
)
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON, which a Collector reads as well.")
def collector(
    fleet: Path, clickhouse: str, jaeger: str, sample: float, out: Path | None, as_json: bool
) -> int:
    """Print a configuration of the OpenTelemetry Collector for FLEET."""
    from sits.app.otlp.collector import collector as made  # noqa: PLC0415
    from sits.app.otlp.collector import written  # noqa: PLC0415
    from sits.core.config import load_fleet  # noqa: PLC0415

    tree = load_fleet(fleet.read_text(encoding="utf-8"), str(fleet))
    told = made(tree, clickhouse=clickhouse, jaeger=jaeger, sample_percent=sample)
    text = json.dumps(told, indent=2) + "\n" if as_json else written(tree, told)
    if out is None:
        click.echo(text, nl=False)
    else:
        out.write_text(text, encoding="utf-8")
        click.echo(f"wrote {out}", err=True)
    return 0
