"""`sitsctl import`: another gateway's configuration as a fleet.yaml, with an account of every field.

Exit codes: 0 everything means the same here; 1 something is different or lost, as the account says; 2 it cannot be read, or nothing
of it can be served.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from sits.app.importing.made import Made

LOSSLESS, LOSSY = 0, 1
SIGNS = {"mapped": "=", "differs": "~", "lost": "-"}

_file = click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
_out = click.option(
    "-o",
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    default=None,
    help="Where the fleet.yaml goes.  [default: stdout]",
)
_all = click.option("--all", "every", is_flag=True, help="Tell of what is mapped as well.")
_json = click.option(
    "--json", "as_json", is_flag=True, help="Print the account, and the fleet, as JSON on stdout."
)
_engine = click.option(
    "--engine",
    "engines",
    multiple=True,
    metavar="NAME=URL",
    help="Where a pool or model server is; several times for several replicas.",
)


@click.group("import", short_help="Read another gateway's configuration into a fleet.yaml.")
def importing() -> None:
    """Read another gateway's configuration into a fleet.yaml, and say what became of every field."""


@importing.command()
@_file
@_out
@_all
@_json
def litellm(file: Path, out: Path | None, every: bool, as_json: bool) -> int:
    """Read a LiteLLM proxy's config.yaml."""
    from sits.app.importing.litellm import read_litellm  # noqa: PLC0415

    return _run(read_litellm, file, out, every=every, as_json=as_json)


@importing.command("gateway-api")
@_file
@_engine
@_out
@_all
@_json
def gateway_api(file: Path, engines: tuple[str, ...], out: Path | None, every: bool, as_json: bool) -> int:
    """Read InferencePool, InferenceModelRewrite, InferenceModel and HTTPRoute objects."""
    from sits.app.importing.gateway_api import read_gateway_api  # noqa: PLC0415

    given = _given(engines)
    return _run(
        lambda text, name: read_gateway_api(text, name, given), file, out, every=every, as_json=as_json
    )


@importing.command()
@_file
@_engine
@_out
@_all
@_json
def kthena(file: Path, engines: tuple[str, ...], out: Path | None, every: bool, as_json: bool) -> int:
    """Read Kthena's ModelRoute, ModelServer and ExternalModelProvider objects."""
    from sits.app.importing.kthena import read_kthena  # noqa: PLC0415

    given = _given(engines)
    return _run(lambda text, name: read_kthena(text, name, given), file, out, every=every, as_json=as_json)


def _given(engines: tuple[str, ...]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for entry in engines:
        name, sign, url = entry.partition("=")
        if not sign or not name or not url.startswith(("http://", "https://")):
            raise click.BadParameter(f"{entry!r} is not NAME=URL", param_hint="'--engine'")
        found.setdefault(name, []).append(url)
    return found


def _run(
    read: Callable[[str, str], "Made"], file: Path, out: Path | None, *, every: bool, as_json: bool
) -> int:
    from sits.app.output import print_json, read_text  # noqa: PLC0415

    made = read(read_text(file), str(file))
    if out is not None:
        out.write_text(made.yaml, "utf-8")
    if as_json:
        print_json({"lossless": made.lossless, "fields": made.fates, "fleet": made.yaml})
    else:
        _tell(made, file, every=every)
        if out is None:
            click.echo(made.yaml, nl=False)
    return LOSSLESS if made.lossless else LOSSY


def _tell(made: "Made", file: Path, *, every: bool) -> None:
    """The account, on standard error: what differs, and what is lost."""
    for fate in made.fates:
        if every or fate.verdict != "mapped":
            to = f" -> {fate.to}" if fate.to else ""
            note = f": {fate.note}" if fate.note else ""
            click.echo(f"{file}:{fate.line}: {SIGNS[fate.verdict]} {fate.path}{to}{note}", err=True)
    counts = {verdict: sum(fate.verdict == verdict for fate in made.fates) for verdict in SIGNS}
    click.echo(
        f"{file}: {counts['mapped']} fields mapped (=), {counts['differs']} different (~), {counts['lost']} lost (-)",
        err=True,
    )
