"""`sitsctl alerts`: rules, server configurations and dashboards of a fleet, and the delay of an alert measured.

Rules: what is one file goes to standard output unless `-o` says where; nothing is written in part.

Deliberately absent: what is in the files.
"""

from pathlib import Path
from typing import Any

import click

_file = click.Path(exists=True, dir_okay=False, path_type=Path)
_fleet = click.argument("fleet", type=_file)
_out = click.option(
    "-o", "--out", type=click.Path(file_okay=False, path_type=Path), default=None, help="Write the file(s) into this directory."
)  # fmt: skip
RULES, PROOFS = "sits-{name}-rules.yaml", "sits-{name}-rules-test.yaml"


@click.group(short_help="Prometheus rules, Alertmanager, Grafana: made from the objective.")
def alerts() -> None:
    """Make what existing monitoring needs from a fleet.yaml: its objective, its environment, its parts.

    Burn-rate alerts over several windows, one of them fast enough for the environment's `alert_within`; see docs/alerts.md.
    """


@alerts.command(short_help="Recording and alerting rules, and their unit tests.")
@_fleet
@_out
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print the rules and the delays they keep as JSON, and nothing else, on stdout.",
)
def rules(fleet: Path, out: Path | None, as_json: bool) -> int:
    """Recording and alerting rules for Prometheus.

    With -o also their unit tests, for `promtool test rules`.
    """
    from sits.app import output  # noqa: PLC0415
    from sits.app.alerts.proofs import proofs_of  # noqa: PLC0415
    from sits.app.alerts.rules import rules_of  # noqa: PLC0415

    tree = _load(fleet)
    name, made = RULES.format(name=_slug(tree.name)), rules_of(tree)
    if as_json:
        output.print_json({"delays": _delays(tree), **made})
        return 0
    _give(
        out,
        {
            name: _yaml(made, _about(_delays(tree))),
            PROOFS.format(name=_slug(tree.name)): _yaml(proofs_of(tree, name)),
        },
    )
    return 0


@alerts.command(short_help="A Prometheus configuration.")
@_fleet
@_out
@click.option(
    "--target",
    "targets",
    multiple=True,
    metavar="HOST:PORT",
    help="A gateway; several times for several.  [default: where the fleet listens]",
)
@click.option(
    "--alertmanager",
    "managers",
    multiple=True,
    metavar="HOST:PORT",
    default=("127.0.0.1:9093",),
    show_default=True,
)
def prometheus(fleet: Path, out: Path | None, targets: tuple[str, ...], managers: tuple[str, ...]) -> int:
    """A Prometheus configuration that scrapes the gateway and its engines, and knows the rules."""
    from sits.app.alerts.servers import prometheus_of  # noqa: PLC0415

    tree = _load(fleet)
    _give(
        out,
        {
            "prometheus.yml": _yaml(
                prometheus_of(tree, targets, managers, RULES.format(name=_slug(tree.name)))
            )
        },
    )
    return 0


@alerts.command(short_help="An Alertmanager configuration.")
@_fleet
@_out
@click.option(
    "--webhook", "webhooks", multiple=True, metavar="URL", help="Whom to tell; several times for several."
)
def alertmanager(fleet: Path, out: Path | None, webhooks: tuple[str, ...]) -> int:
    """An Alertmanager configuration: pages at once and each for itself, tickets together."""
    from sits.app.alerts.servers import alertmanager_of  # noqa: PLC0415

    _give(out, {"alertmanager.yml": _yaml(alertmanager_of(_load(fleet), webhooks))})
    return 0


@alerts.command(short_help="Grafana dashboards.")
@_fleet
@click.option(
    "-o",
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    help="Write the dashboards into this directory.",
)
def grafana(fleet: Path, out: Path) -> int:
    """Grafana dashboards: promises, latency and engines; the gateway's own health.

    Import them, or let Grafana provision the directory.
    """
    import json  # noqa: PLC0415

    from sits.app.alerts.grafana import dashboards_of  # noqa: PLC0415

    tree = _load(fleet)
    made = dashboards_of(tree)
    _give(
        out,
        {
            f"sits-{_slug(tree.name)}-{kind}.json": json.dumps(data, indent=1) + "\n"
            for kind, data in made.items()
        },
    )
    return 0


@alerts.command(short_help="Measure how long an alert takes, with real servers.")
@_fleet
@click.option(
    "--times", type=click.IntRange(1, 100), default=5, show_default=True, help="Breaches, one after another."
)
@click.option(
    "--share",
    type=click.FloatRange(0.15, 1.0),
    default=1.0,
    show_default=True,
    help="Share of the answers that turn slow.",
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print the result as JSON, and nothing else, on stdout."
)
@click.option("-q", "--quiet", is_flag=True, help="No progress on stderr.")
def measure(fleet: Path, times: int, share: float, as_json: bool, quiet: bool) -> int:
    """Measure how long an alert takes, on this machine, with real Prometheus and Alertmanager.

    A gateway of its own serves FLEET's objective and environment with an emulated engine; answers turn slow, and a webhook waits.
    Nothing of the fleet is touched.  Exits with 1 when an alert came later than the environment promises.
    """
    import msgspec  # noqa: PLC0415

    from sits.app import output  # noqa: PLC0415
    from sits.app.alerts.measure import measure as run  # noqa: PLC0415
    from sits.app.alerts.measure import table  # noqa: PLC0415
    from sits.world import RealWorld  # noqa: PLC0415

    def say(text: str) -> None:
        if not quiet:
            click.echo(text, err=True)

    found = run(_load(fleet), times, RealWorld(), say, share)
    if as_json:
        output.print_json(msgspec.to_builtins(found))
    else:
        click.echo(table(found), nl=False)
    return 0 if found.longest_s <= found.within_s else 1


def _load(fleet: Path) -> Any:
    from sits.app import output  # noqa: PLC0415
    from sits.core.config import load_fleet  # noqa: PLC0415

    return load_fleet(output.read_text(fleet), str(fleet))


def _delays(tree: Any) -> dict[str, float]:
    """The lengths of which a delay is made, s, and the longest delay when as many answers as the fast rule needs are bad, or all."""
    from sits.app.alerts.delays import DELIVERY_S, delays  # noqa: PLC0415
    from sits.app.alerts.rules import FAST_BURN  # noqa: PLC0415
    from sits.core.fleet_environment import profile_of  # noqa: PLC0415
    from sits.policy.burn_rate import P99_BUDGET  # noqa: PLC0415

    found, limit = delays(profile_of(tree.telemetry).alert_within), FAST_BURN * P99_BUDGET
    return {
        "within_s": found.within_s,
        "scrape_s": found.step_s,
        "window_s": found.window_s,
        "evaluation_s": found.step_s,
        "for_s": found.step_s,
        "group_s": found.step_s,
        "delivery_s": DELIVERY_S,
        "threshold": round(limit, 6),
        "worst_s": found.worst_s(limit, limit),
        "worst_all_bad_s": round(found.worst_s(limit), 1),
    }


def _about(d: dict[str, float]) -> str:
    """The delay that the rules keep, as a comment."""
    return (
        f"# Made by `sitsctl alerts rules`.  Told within {d['within_s']} s: scrape {d['scrape_s']} + window {d['window_s']} + evaluation "
        f"{d['evaluation_s']} + for {d['for_s']} + group {d['group_s']} + delivery {d['delivery_s']} = {d['worst_s']:.0f} s at the worst,\n"
        f"# which is when {d['threshold']:.1%} of the answers turn bad; {d['worst_all_bad_s']:.0f} s when all do.\n"
    )


def _slug(name: str) -> str:
    from sits.app.alerts.objectives import slug  # noqa: PLC0415

    return slug(name)


def _yaml(data: Any, comment: str = "") -> str:
    import yaml  # noqa: PLC0415

    return comment + yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=10**6)


def _give(out: Path | None, files: dict[str, str]) -> None:
    """Write the files into `out`, or print the first."""
    if out is None:
        click.echo(next(iter(files.values())), nl=False)
        return
    out.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        half = out / f".{name}.new"
        half.write_text(text, encoding="utf-8")
        half.replace(out / name)
        click.echo(out / name)
