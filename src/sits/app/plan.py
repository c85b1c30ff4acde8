"""`sitsctl plan`: predictors asked from the command line.

`plan kv` answers two questions: how much memory the KV cache of a batch takes, for a shape given by options, and
how many KV blocks each emulated engine of a fleet has, with what was assumed for the figure.  `plan batch` is in a file of its own.
"""

from pathlib import Path
from typing import Any

import click

from sits.app.plan_batch import batch as plan_batch
from sits.app.plan_capacity import capacity as plan_capacity
from sits.app.plan_memory import memory as plan_memory
from sits.app.plan_network import network as plan_network
from sits.app.plan_persist import persist as plan_persist
from sits.app.plan_queue import queue as plan_queue
from sits.app.plan_startup import startup as plan_startup


@click.group(short_help="Ask a predictor what to expect: memory, queues, networks, windows.")
def plan() -> None:
    """Ask a predictor what to expect, before anything runs."""


plan.add_command(plan_batch)
plan.add_command(plan_capacity)
plan.add_command(plan_network)
plan.add_command(plan_queue)
plan.add_command(plan_memory)
plan.add_command(plan_persist)
plan.add_command(plan_startup)


@plan.command()
@click.argument("fleet", required=False, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--batch", type=click.IntRange(min=1), default=8, show_default=True, help="Sequences.")
@click.option("--tokens", type=click.IntRange(min=1), default=2048, show_default=True, help="Tokens of each.")
@click.option("--layers", type=click.IntRange(min=1), default=32, show_default=True)
@click.option(
    "--kv-heads",
    type=click.IntRange(min=1),
    default=32,
    show_default=True,
    help="KV heads, not query heads: they differ with grouped-query attention.",
)
@click.option("--head-dim", type=click.IntRange(min=1), default=128, show_default=True)
@click.option("--dtype", type=click.Choice(["fp16", "bf16", "fp8"]), default="fp16", show_default=True)
@click.option("--tp", type=click.IntRange(min=1), default=1, show_default=True, help="Tensor-parallel ranks.")
@click.option("--block-size", type=click.IntRange(min=1), default=16, show_default=True)
@click.option(
    "--json", "as_json", is_flag=True, help="Print the result as JSON, and nothing else, on stdout."
)
def kv(
    fleet: Path | None,
    batch: int,
    tokens: int,
    layers: int,
    kv_heads: int,
    head_dim: int,
    dtype: str,
    tp: int,
    block_size: int,
    as_json: bool,
) -> int:
    """KV memory of a batch; or, with FLEET, the KV pool of every emulated engine and what it assumes."""
    if fleet is not None:
        return _pools(fleet, as_json)
    from sits.app.output import print_json  # noqa: PLC0415
    from sits.predict.kv import KvShape, kv_bytes  # noqa: PLC0415

    shape = KvShape(
        layers=layers, kv_heads=kv_heads, head_dim=head_dim, element_bytes=1 if dtype == "fp8" else 2
    )
    size = kv_bytes(shape, [tokens] * batch, block_size=block_size, tp=tp)
    if as_json:
        print_json({"bytes": size, "gib": size / 2**30, "ranks": tp, "per_rank": True})
    else:
        each = f" on each of {tp} ranks" if tp > 1 else ""
        click.echo(
            f"{size / 2**30:.2f} GiB{each} ({size:,} bytes): {batch} x {tokens} tokens, {layers} layers, "
            f"{kv_heads} KV heads of {head_dim}, {dtype}, blocks of {block_size}"
        )
    return 0


def _pools(path: Path, as_json: bool) -> int:
    from sits.app.output import print_json, read_text  # noqa: PLC0415
    from sits.core.config import load_fleet  # noqa: PLC0415
    from sits.core.fleet import EmulatedEngine  # noqa: PLC0415
    from sits.wire import emulation  # noqa: PLC0415

    fleet = load_fleet(read_text(path), str(path))
    found: list[dict[str, Any]] = []
    for engine in fleet.engines:
        if not isinstance(engine, EmulatedEngine):
            continue
        made = emulation(fleet, engine, {})
        blocks, size = made.spec.blocks, made.spec.block_size
        found.append(
            {"engine": engine.name, "blocks": blocks, "tokens": blocks * size, "assumed": list(made.assumed)}
        )
    if as_json:
        print_json(found)
        return 0
    for row in found:
        click.echo(f"{row['engine']}: {row['blocks']:,} blocks, {row['tokens']:,} tokens")
        for text in row["assumed"]:
            click.echo(f"  assumed: {text}")
    if not found:
        click.echo(f"{path}: no emulated engine; a real engine tells its own number of blocks (/metrics)")
    return 0
