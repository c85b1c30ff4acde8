"""The commands `sitsctl store info`, `sitsctl store sql` and `sitsctl store tend`.

Exit codes: 0 done; 2 there is no such store, query or dialect; 3 a file of the store cannot be read.
"""

from pathlib import Path

import click

_json = click.option(
    "--json", "as_json", is_flag=True, help="Print the result as JSON, and nothing else, on stdout."
)
_path = click.argument("path", type=click.Path(path_type=Path), default=Path("sits-store"))


@click.group(short_help="What a store holds, its queries as SQL, and hours that are over.")
def store() -> None:
    """Look at the store of a gateway; it may be running."""


@store.command(short_help="Tables, hours, rows and bytes.")
@_path
@_json
def info(path: Path, as_json: bool) -> int:
    """Say what the store in PATH (sits-store when left out) holds: tables, hours (UTC), rows, bytes."""
    from sits.app.output import print_json, require_store  # noqa: PLC0415
    from sits.app.storing.told import told  # noqa: PLC0415

    require_store(path)
    tables = told(path)
    if as_json:
        print_json({"store": str(path), "tables": tables})
        return 0
    click.echo(
        f"{'table':18}{'rows':>14}{'MB':>10}{'hours':>7}{'files':>7}{'indexes':>9}  oldest and newest hour (UTC)"
    )
    for table in tables:
        click.echo(
            f"{table['table']:18}{table['rows']:>14,}{table['bytes'] / 1e6:>10,.1f}{table['hours']:>7}{table['files']:>7}"
            f"{table['indexes']:>9}  {_hour(table['oldest_hour_utc'])} to {_hour(table['newest_hour_utc'])}"
        )
    return 0


@store.command(short_help="A named query as text, for DuckDB or ClickHouse.")
@click.argument("name", required=False)
@click.option(
    "--dialect",
    default="duckdb",
    show_default=True,
    help="duckdb: over the store's tables; clickhouse: over otel_traces.",
)
def sql(name: str | None, dialect: str) -> int:
    """Print the named query NAME, to be pasted elsewhere; without NAME, the names.  A parameter that is NULL does not restrict.

    Where only a share of the rows is kept (telemetry.sampling), a row stands for `weight` requests, and the named queries count it for so many, in
    quantiles too.  A query of your own over kept rows must do the same: all errors and all slow requests are among them.
    """
    from sits.core.errors import ConfigError  # noqa: PLC0415
    from sits.telemetry.clickhouse import FLEET as fleet  # noqa: PLC0415, N811
    from sits.telemetry.clickhouse import query  # noqa: PLC0415
    from sits.telemetry.queries import QUERIES, parameters_of  # noqa: PLC0415

    if name is None:
        for known in QUERIES:
            also = "duckdb, clickhouse" if known in fleet else "duckdb"
            click.echo(f"{known:26}{also:20}{', '.join(sorted(parameters_of(known)))}")
        return 0
    if name not in QUERIES:
        raise ConfigError(
            f"there is no query named {name!r}",
            field="name",
            value=name,
            hint="`sitsctl store sql` lists them",
        )
    click.echo(query(name, dialect) + ";")
    return 0


@store.command(short_help="Merge and index the hours that are over.")
@_path
@click.option(
    "--fleet",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    default=None,
    help="The gateway's fleet file: spans and sightings are merged too, thinned to its telemetry.sampling.",
)
@_json
def tend(path: Path, fleet: Path | None, as_json: bool) -> int:
    """Merge the files of hours that are over in the store in PATH (sits-store when left out), and index requests; a running gateway does it each hour.

    Safe at any time, also twice at once.  Answers stay the same and come sooner.  Without --fleet nothing is thinned: what share of traces is kept is not known
    then, and the files of spans and sightings stay as they are for who knows it.
    """
    from sits.app.output import print_json, read_text, require_store  # noqa: PLC0415
    from sits.core.config import load_fleet  # noqa: PLC0415
    from sits.core.fleet_environment import profile_of  # noqa: PLC0415
    from sits.telemetry.tending import tend as done  # noqa: PLC0415

    require_store(path)
    share = None
    if fleet is not None:
        share = float(profile_of(load_fleet(read_text(fleet), str(fleet)).telemetry).sampling)
    tended = done(path, share=share)
    if as_json:
        print_json(tended._asdict())
    else:
        click.echo(f"{tended.merged} files merged, {tended.indexed} indexes made")
        for trouble in tended.troubles:
            click.echo(trouble, err=True)
    return 3 if tended.troubles else 0


def _hour(name: str) -> str:
    return f"{name[:4]}-{name[4:6]}-{name[6:8]} {name[8:]}h"
