"""`sitsctl adapters`: what engines have loaded of a fleet's runtime adapters, and loading, unloading, fingerprinting by hand.

Works straight at the engines, with or without a gateway running; one that runs notices within a second.

Exit codes: 0 as configured; 1 something is wrong, or an engine does not tell.
"""

from collections.abc import Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from sits.core.fleet_adapters import AdapterEngine, RuntimeAdapter
    from sits.gateway.adapters.by_hand import Finding, Hands

GOOD, BAD = 0, 1

_file = click.Path(exists=True, dir_okay=False, path_type=Path)
_json = click.option(
    "--json", "as_json", is_flag=True, help="Print the result as JSON, and nothing else, on stdout."
)
_engine = click.option("--engine", default="", metavar="NAME", help="Which engine.  [default: the only one]")


@click.group(short_help="Runtime adapters: status, load, unload, fingerprint.")
def adapters() -> None:
    """See and change which LoRA adapters the engines of a fleet have loaded."""


@adapters.command()
@click.argument("fleet", type=_file)
@click.option("--probe", is_flag=True, help="Ask what is loaded, too: a few tokens each.")
@_json
def status(fleet: Path, probe: bool, as_json: bool) -> int:
    """Say of every adapter of FLEET whether each engine has it, and why not."""
    return _print(_run(_hands(fleet).status(probe=probe)), as_json)


@adapters.command()
@click.argument("fleet", type=_file)
@click.argument("adapter")
@_engine
@_json
def load(fleet: Path, adapter: str, engine: str, as_json: bool) -> int:
    """Load ADAPTER into an engine and prove that it answers."""
    hands = _hands(fleet)
    return _print([_run(hands.load(*_one(hands, adapter, engine)))], as_json)


@adapters.command()
@click.argument("fleet", type=_file)
@click.argument("adapter")
@_engine
@_json
def unload(fleet: Path, adapter: str, engine: str, as_json: bool) -> int:
    """Unload ADAPTER from an engine.  A gateway that keeps copies of it loads it again."""
    hands = _hands(fleet)
    return _print([_run(hands.unload(*_one(hands, adapter, engine)))], as_json)


@adapters.command()
@click.argument("fleet", type=_file)
@click.argument("adapter")
@_engine
@_json
def fingerprint(fleet: Path, adapter: str, engine: str, as_json: bool) -> int:
    """Print digest and fingerprint of ADAPTER as loaded, to be pasted into FLEET.

    Exits with 1 when the fingerprint does not tell it from its base model.
    """
    from sits.app.output import print_json  # noqa: PLC0415

    hands = _hands(fleet)
    taken = _run(hands.fingerprint(*_one(hands, adapter, engine)))
    far = f"{taken.from_base:.3f} nats from its base, {taken.repeated:.3f} between two probes, tolerance {taken.tolerance:g}"
    if as_json:
        import msgspec  # noqa: PLC0415

        print_json({**msgspec.to_builtins(taken), "tells": taken.tells})
    else:
        if taken.digest:
            click.echo(f"digest: {taken.digest}")
        click.echo(f"fingerprint: {taken.fingerprint}")
        click.echo(f"{taken.adapter} at {taken.engine}: {far}", err=True)
    if not taken.tells:
        way = "give it a 'prompt' from its own field, or a smaller 'tolerance'"
        click.echo(f"this fingerprint does not tell it from its base: {way}", err=True)
    return GOOD if taken.tells else BAD


def _hands(path: Path) -> "Hands":
    from sits.app.output import read_text  # noqa: PLC0415
    from sits.core.config import load_fleet  # noqa: PLC0415
    from sits.core.errors import ConfigError  # noqa: PLC0415
    from sits.gateway.adapters.by_hand import Hands  # noqa: PLC0415
    from sits.world import RealWorld  # noqa: PLC0415

    fleet = load_fleet(read_text(path), str(path))
    if not fleet.runtime_adapters.adapters:
        raise ConfigError("has no runtime adapters", where=str(path), field="runtime_adapters.adapters")
    return Hands(fleet, RealWorld())


def _one(hands: "Hands", name: str, engine: str) -> "tuple[RuntimeAdapter, AdapterEngine]":
    """The adapter and the one engine that is meant."""
    adapter = hands.adapter(name)
    entries = hands.engines(adapter, engine)
    if len(entries) > 1:
        known = ", ".join(entry.engine for entry in entries)
        raise click.UsageError(f"{name!r} can be at several engines; say which: --engine ({known})")
    return adapter, entries[0]


def _run(work: Coroutine[Any, Any, Any]) -> Any:
    import asyncio  # noqa: PLC0415

    return asyncio.run(work)


def _print(findings: "list[Finding]", as_json: bool) -> int:
    if as_json:
        import msgspec  # noqa: PLC0415

        from sits.app.output import print_json  # noqa: PLC0415

        print_json(msgspec.to_builtins(findings))
    else:
        from sits.core.plain_text import plain  # noqa: PLC0415

        width = max((len(one.adapter) for one in findings), default=0)
        place = max((len(one.engine) for one in findings), default=0)
        for one in findings:
            took = f" in {one.took_ms:.0f} ms" if one.took_ms else ""
            line = f"{one.adapter:{width}}  {one.engine:{place}}  {one.state}{took}"
            click.echo(plain(f"{line:{width + place + 12}}  {one.words()}".rstrip()))
    return BAD if any(one.state in ("wrong", "unknown") for one in findings) else GOOD
