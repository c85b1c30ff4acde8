"""The options that say which model runs on which GPU, alike for all plans that simulate an engine, and the model they name.

Deliberately absent: the engine (`sits.bench.sweep_engines`).
"""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from sits.core.fleet import Model


def engine_options(model: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """`--model` (by default `model`), `--fleet` and `--gpu`, as arguments `model_name`, `fleet` and `gpu`."""
    options = (
        click.option(
            "--model",
            "model_name",
            default=model,
            show_default=True,
            help="A known model, or one of --fleet.",
        ),
        click.option(
            "--fleet",
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            default=None,
            help="A fleet file that has the model.",
        ),
        click.option("--gpu", default="A100-SXM4-80GB", show_default=True, help="GPU type, for step times."),
    )

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def model_named(name: str, fleet: Path | None) -> "Model":
    """A known model, or one of a fleet file."""
    from sits.app.output import read_text  # noqa: PLC0415
    from sits.core.config import load_fleet  # noqa: PLC0415
    from sits.predict.sharding_models import find_model  # noqa: PLC0415

    more = load_fleet(read_text(fleet), str(fleet)).models if fleet is not None else ()
    return find_model(name, tuple(more))
