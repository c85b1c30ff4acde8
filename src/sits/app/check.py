"""`sitsctl check`: every problem of a fleet.yaml, and what is allowed but most likely not meant.

Deliberately absent: the checks (core.config), and the warnings (policy.shadow, app.window_warnings).
"""

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from sits.core.fleet import Fleet

DONE, USAGE = 0, 2


@click.command(short_help="Check a fleet.yaml and name every problem.")
@click.argument("fleet", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--json", "as_json", is_flag=True, help="Print the result as JSON, and nothing else, on stdout."
)
def check(fleet: Path, as_json: bool) -> int:
    """Check FLEET (a fleet.yaml) and name every problem, one a line.  Exits with 2 when there is one.

    Routes that never get a request, injections that never fire, and windows that only cost time, are told as warnings.
    """
    from sits.app import output  # noqa: PLC0415
    from sits.app.window_warnings import window_warnings  # noqa: PLC0415
    from sits.core.config import digest, load_fleet  # noqa: PLC0415
    from sits.core.errors import ConfigError, ConfigErrors  # noqa: PLC0415
    from sits.core.fleet_environment import profile_of, values  # noqa: PLC0415
    from sits.policy.shadow import warnings  # noqa: PLC0415

    try:
        tree = load_fleet(output.read_text(fleet), str(fleet))
    except ConfigError as error:
        problems = error.errors if isinstance(error, ConfigErrors) else (error,)
        if as_json:
            output.print_json({"ok": False, "problems": [output.problem(one) for one in problems]})
        else:
            for one in problems:
                click.echo(str(one), err=True)
        return USAGE
    name, told = digest(tree), [*warnings(tree), *window_warnings(tree), *_injected(tree)]
    holds = profile_of(tree.telemetry)
    if as_json:
        output.print_json(
            {
                "ok": True,
                "name": tree.name,
                "digest": name,
                "engines": len(tree.engines),
                "environment": values(holds),
                "warnings": told,
            }
        )
    else:
        for line in told:
            click.echo(f"{fleet}: warning: {line}", err=True)
        click.echo(f"{fleet}: good; {len(tree.engines)} engines, configuration {name[:12]}")
        shown = values(holds)
        click.echo(
            f"environment {shown['name']}: rows of {_kept(shown['sampling'])}, kept "
            f"{shown['traces_kept']}; figures per minute {shown['metrics_kept']}; alerts within {shown['alert_within']}"
        )
    return DONE


def _kept(sampling: str) -> str:
    """Which rows, in words.

    >>> _kept("100%"), _kept("10%")
    ('all requests', 'all that failed or were slow and 10% of the others')
    """
    return (
        "all requests" if sampling == "100%" else f"all that failed or were slow and {sampling} of the others"
    )


def _injected(fleet: "Fleet") -> list[str]:
    """A line for each fault that is put into live traffic on purpose: nobody should find it at night."""
    from sits.core.units import show_duration  # noqa: PLC0415

    return [
        f"injections[{i}] {one.name!r} puts a fault into {100 * one.share:.3g}% of the matching requests, on purpose: "
        + " and then ".join(
            [f"a wait of {show_duration(one.delay)}"] * bool(one.delay)
            + [f"status {one.abort}"] * bool(one.abort)
        )
        for i, one in enumerate(fleet.injections)
    ]
