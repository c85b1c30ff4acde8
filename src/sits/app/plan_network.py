"""`sitsctl plan network`: what all-reduces cost, in a node and between nodes, and where more nodes stop helping.

For a GPU somebody measured: NCCL, and vLLM's own kernel in a captured graph and launched eagerly.  With several nodes two levels are
predicted, over RDMA and over TCP, from the card's line rate.  `--scaling` fits throughput over node counts.

Rules: a bandwidth has its unit: "400Gb/s" and "50GB/s" are accepted, 400 is not.  What is assumed is said.

Deliberately absent: congestion, and overlap with computation.
"""

import math
from pathlib import Path
from typing import Any

import click

from sits.app.quantities import BYTES, Whole

DEFINITIONS = {
    "all-reduce": "every rank gets the sum of all; time from the last rank's call to the last rank's result",
    "start-up": "what an empty message would cost: no bandwidth changes it",
    "bus": "bus bandwidth, bytes / time x 2 (n - 1) / n: what one link carries",
    "step": "all-reduces of one decoding step: two a layer of tokens x hidden x 2 bytes",
    "peak": "node count beyond which throughput falls (Universal Scalability Law)",
}
KERNELS = ("nccl", "custom graph", "custom eager")


@click.command(short_help="What all-reduces cost; RDMA against TCP; scaling over nodes.")
@click.option("--gpu", default="H100", show_default=True, help="A100, H100 or H200.")
@click.option(
    "--ranks",
    type=click.Choice(["2", "4", "8"]),
    default="8",
    show_default=True,
    help="GPUs of a node that reduce together.",
)
@click.option(
    "--size",
    type=BYTES,
    metavar="SIZE",
    default=None,
    help="Bytes of one all-reduce, like 1MiB.  [default: tokens x hidden x 2]",
)
@click.option("--layers", type=Whole(min=1), default=80, show_default=True)
@click.option("--hidden", type=Whole(min=1), default=8192, show_default=True)
@click.option("--tokens", type=Whole(min=1), default=64, show_default=True, help="Tokens of a step.")
@click.option("--nodes", type=Whole(min=1), default=1, show_default=True, help="Nodes of --ranks GPUs each.")
@click.option(
    "--card",
    default="400Gb/s",
    show_default=True,
    help="Network of one GPU, with its unit: 400Gb/s or 50GB/s.",
)
@click.option(
    "--scaling",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    default=None,
    help="A CSV of nodes,throughput: fit it instead.",
)
@click.option(
    "--seed",
    type=Whole(min=0),
    default=0,
    show_default=True,
    help="With --scaling: of the bootstrap.",
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print the result as JSON, and nothing else, on stdout."
)
def network(**asked: Any) -> int:
    """Predict all-reduces of tensor-parallel inference, or fit throughput over node counts (--scaling).

    Exits with 1 when no peak can be told from --scaling.
    """  # fmt: skip
    from sits.app.output import print_json  # noqa: PLC0415

    found, lines = _scaling(asked) if asked["scaling"] is not None else _reduces(asked)
    found["definitions"] = DEFINITIONS
    if asked["as_json"]:
        print_json(found)
    else:
        named = [
            f"{name}: {text}" for name, text in DEFINITIONS.items() if any(name in line for line in lines)
        ]
        click.echo("\n".join([*lines, "", *named]))
    return 1 if found.get("refusal") else 0


def _reduces(asked: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    from sits.core.units import parse_bandwidth, show_duration  # noqa: PLC0415
    from sits.predict.bandwidth import Gbps, gigabytes  # noqa: PLC0415
    from sits.predict.collective import (  # noqa: PLC0415
        RDMA_ALPHA_NS,
        RDMA_SHARE,
        TCP_ALPHA_NS,
        TCP_MOST,
        TCP_SHARE,
        between_ns,
        bus_bandwidth,
        measured_ns,
        rdma,
        step_calls,
        tcp,
    )  # fmt: skip
    from sits.predict.collective_figures import find_measured  # noqa: PLC0415

    ranks, nodes = int(asked["ranks"]), asked["nodes"]
    calls, size = step_calls(asked["layers"], asked["hidden"], asked["tokens"])
    size = asked["size"] or size
    card = Gbps(parse_bandwidth(asked["card"]) / 125e6)
    lines = [f"all-reduce of {size:,} bytes, {calls} in a step of {asked['layers']} layers", ""]
    rows: list[dict[str, Any]] = []
    sources: list[str] = []
    for kernel in KERNELS:
        figures = find_measured(asked["gpu"], ranks, kernel)
        if kernel != "nccl" and size > figures.to_bytes:
            sources.append(f"{kernel}: not beyond {figures.to_bytes / 2**20:.0f} MiB, where engines use NCCL")
            continue
        inside, empty = measured_ns(figures, size), measured_ns(figures, 0)
        outside = size > figures.to_bytes
        rows.append(
            {
                "where": f"{figures.gpu} x{ranks}",
                "way": kernel,
                "all_reduce_ns": inside,
                "startup_ns": empty,
                "bus_gigabytes_per_s": gigabytes(bus_bandwidth(ranks, size, inside)),
                "step_ns": calls * inside,
                "error": figures.mape,
                "beyond_measured_sizes": outside,
            }
        )
        sources.append(
            f"{kernel}: fitted to a published table of {figures.from_bytes:.0f} .. {figures.to_bytes:.0f} bytes, mean error "
            f"{figures.mape:.1%}" + (", asked for is beyond it" if outside else "")
        )
    rows += _two_nodes(asked["gpu"], nodes * ranks, size, calls, sources) if nodes == 2 else []
    if nodes > 1:
        base = find_measured(asked["gpu"], ranks)
        for way, link in (("RDMA", rdma(card)), ("TCP", tcp(card))):
            # In a node, reduce-scatter and all-gather together are an all-reduce; between nodes each GPU reduces its part.
            whole = measured_ns(base, size) + between_ns(nodes, size / ranks, link)
            empty = measured_ns(base, 0) + between_ns(nodes, 0, link)
            rows.append(
                {
                    "where": f"{nodes} nodes of {ranks}",
                    "way": way,
                    "all_reduce_ns": whole,
                    "startup_ns": empty,
                    "bus_gigabytes_per_s": gigabytes(bus_bandwidth(nodes * ranks, size, whole)),
                    "step_ns": calls * whole,
                    "error": None,
                    "beyond_measured_sizes": False,
                }
            )
        sources.append(
            f"between nodes, assumed: RDMA starts in {RDMA_ALPHA_NS / 1e3:.0f} us and reaches {RDMA_SHARE:.0%} of {gigabytes(card.bytes()):.3g} "
            f"GB/s ({card.value:.0f} Gb/s); TCP {TCP_ALPHA_NS / 1e3:.0f} us, {TCP_SHARE:.0%}, {gigabytes(TCP_MOST):.0f} GB/s at most"
        )
    lines.append(f"{'where':<22}{'way':<14}{'all-reduce':>12}{'start-up':>11}{'bus GB/s':>10}{'step':>11}")
    lines += [
        f"{row['where']:<22}{row['way']:<14}{show_duration(row['all_reduce_ns']):>12}{show_duration(row['startup_ns']):>11}"
        f"{row['bus_gigabytes_per_s']:>10.1f}{show_duration(row['step_ns']):>11}"
        for row in rows
    ]
    return {"size_bytes": size, "calls": calls, "rows": rows, "sources": sources}, [*lines, "", *sources]


def _two_nodes(gpu: str, ranks: int, size: int, calls: int, sources: list[str]) -> list[dict[str, Any]]:
    """Two nodes as somebody measured them, where somebody did: what the assumed links have to be compared with."""
    from sits.predict.bandwidth import gigabytes  # noqa: PLC0415
    from sits.predict.collective import bus_bandwidth, measured_ns  # noqa: PLC0415
    from sits.predict.collective_figures import FIGURES  # noqa: PLC0415

    rows = []
    for figures in FIGURES:
        if figures.kernel == "two nodes" and figures.ranks == ranks and gpu.lower() in figures.gpu.lower():
            whole = measured_ns(figures, size)
            rows.append(
                {
                    "where": f"2 nodes of {ranks // 2}",
                    "way": "measured",
                    "all_reduce_ns": whole,
                    "startup_ns": measured_ns(figures, 0),
                    "bus_gigabytes_per_s": gigabytes(bus_bandwidth(ranks, size, whole)),
                    "step_ns": calls * whole,
                    "error": figures.mape,
                    "beyond_measured_sizes": size > figures.to_bytes,
                }
            )
            sources.append(
                f"measured: a pair of {figures.gpu} nodes in 2023, mean error {figures.mape:.1%}; yours may differ by factors"
            )
    return rows


def _scaling(asked: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    import msgspec  # noqa: PLC0415

    from sits.app.number_rows import read_rows  # noqa: PLC0415
    from sits.predict.usl import fit_scaling  # noqa: PLC0415
    from sits.world import stream_generator  # noqa: PLC0415

    rows = read_rows(asked["scaling"], (2,), "nodes,throughput")
    nodes, throughput = [row[0] for row in rows], [row[1] for row in rows]
    seen = fit_scaling(nodes, throughput, stream_generator(asked["seed"], "scaling"))
    lines = [f"{len(nodes)} points at {len(set(nodes))} node counts"]
    if not math.isnan(seen.one):
        lines.append(
            f"one node {seen.one:.4g}, serial share {seen.serial:.2%}, cost of a pair {seen.pairs:.3g}; at {max(nodes):g} nodes "
            f"{seen.efficiency:.0%} of what as many single nodes would do; {seen.misfit:.1%} off on average (rms)"
        )
    if seen.peak is not None:
        lines.append(
            f"peak at {seen.peak.value:.3g} nodes, 95 % interval {seen.peak.low:.3g} .. {seen.peak.high:.3g}"
        )
    else:
        lines.append(f"no peak: {seen.refusal}")
    document = {key: None if _nan(value) else value for key, value in msgspec.to_builtins(seen).items()}
    return document, lines


def _nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)
