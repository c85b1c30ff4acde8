"""Fit all-reduce times of published NCCL and vLLM tables; print how good the fits are and write the figures.

Usage: `python tools/fit_collectives.py [DATA]`, where DATA is a folder with the published measurements (default
`../shared/data/measurements` beside the repository).  Writes `src/sits/predict/collective_figures.py`; the published files themselves do
not enter the project.
"""

import statistics
import sys
from bisect import bisect_left
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from sits.predict.collective import Measured, measured_ns
from sits.predict.collective_fit import fit_segments
from sits.predict.gpu import Segment

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT.parent / "shared" / "data" / "measurements"
FIGURES = ROOT / "src" / "sits" / "predict" / "collective_figures.py"
TABLES = {
    "A100-SXM4-80GB": ("a100_sxm__nccl2.27.3", "a100_sxm__vllm0.14.0"),
    "H100-SXM5-80GB": ("h100_sxm__nccl2.29.2", "h100_sxm__vllm0.14.0"),
    "H200-SXM": ("h200_sxm__nccl2.29.2", "h200_sxm__vllm0.14.0"),
}
CUSTOM_TO = 8 << 20
"""vLLM's own all-reduce is used for messages up to some MiB; larger rows of its table are NCCL again."""

BEGIN = "FIGURES = (\n"


def rows_of(path: Path, keep: Callable[[dict[str, Any]], bool]) -> dict[int, list[tuple[int, float]]]:
    """(bytes, us) by rank count."""
    found: dict[int, dict[int, float]] = {}
    for row in pq.read_table(path).to_pylist():
        if keep(row):
            found.setdefault(row["num_gpus"], {})[row["message_size"] * 2] = row["latency"] * 1e3
    return {ranks: sorted(rows.items()) for ranks, rows in sorted(found.items())}


def two_nodes(data: Path) -> str:
    """16 A100 on two nodes: medians of single sizes scatter by a third, so medians of nine neighbours at 40 sizes are fitted."""
    rows = [
        (row["size"], row["time_stats.all_reduce.median"] * 1e3)
        for row in pq.read_table(data / "vidur_profiles" / "a100_dgx__all_reduce.parquet").to_pylist()
        if (row["num_workers"], row["devices_per_node"]) == (16, 8)
    ]
    rows.sort()
    places = sorted(
        {
            min(len(rows) - 1, bisect_left(rows, (rows[0][0] * (rows[-1][0] / rows[0][0]) ** (k / 39),)))
            for k in range(40)
        }
    )
    sizes = [rows[i][0] for i in places]
    times = [statistics.median(us for _, us in rows[max(0, i - 4) : i + 5]) for i in places]
    kept = [i for i in range(len(sizes)) if i == 0 or sizes[i] > sizes[i - 1]]
    segments, error = fit_segments([sizes[i] for i in kept], [times[i] for i in kept], 3)
    print(f"A100 x16 on two nodes: 3 segments {error:.1%}")
    return line("A100-SXM4-80GB", 16, "two nodes", segments, error, sizes[0], sizes[-1])


def line(
    gpu: str, ranks: int, kernel: str, segments: tuple[Segment, ...], error: float, first: float, last: float
) -> str:
    """One row of the figures as source."""
    shown = ", ".join(f"Segment({s.to_bytes:.1f}, {s.alpha_us:.6g}, {s.us_per_byte:.6g})" for s in segments)
    return (
        f'    Measured(gpu="{gpu}", ranks={ranks}, kernel="{kernel}", mape={error:.3g}, from_bytes={first:.1f}, '
        f"to_bytes={last:.1f}, segments=({shown},)),\n"
    )


def main(data: Path) -> None:
    folder = data / "aic_kernel_profiles"
    lines = []
    for gpu, (nccl, custom) in TABLES.items():
        kinds = {
            "nccl": (nccl + "__nccl_perf", lambda r: r["op_name"] == "all_reduce" and r["nccl_dtype"] == "half", 3),
            "custom graph": (custom + "__custom_allreduce_perf", lambda r: r["backend"] == "vllm_graph" and r["message_size"] * 2 <= CUSTOM_TO, 3),
            "custom eager": (custom + "__custom_allreduce_perf", lambda r: r["backend"] == "vllm_eager" and r["message_size"] * 2 <= CUSTOM_TO, 1),
        }  # fmt: skip
        for kernel, (name, keep, count) in kinds.items():
            for ranks, rows in rows_of(folder / f"{name}.parquet", keep).items():
                sizes, times = zip(*rows, strict=True)
                segments, _ = fit_segments(sizes, times, count)
                shipped = Measured(
                    gpu=gpu,
                    ranks=ranks,
                    kernel=kernel,
                    segments=segments,
                    mape=0.0,
                    from_bytes=0.0,
                    to_bytes=0.0,
                )
                error = sum(abs(measured_ns(shipped, s) / 1e3 / t - 1) for s, t in rows) / len(rows)
                _, one = fit_segments(sizes, times, 1)
                print(f"{gpu} x{ranks} {kernel}: one line {one:.1%}, {count} segment(s) {error:.1%}")
                lines.append(line(gpu, ranks, kernel, segments, error, sizes[0], sizes[-1]))
    lines.append(two_nodes(data))
    head = FIGURES.read_text(encoding="utf-8").partition(BEGIN)[0]
    FIGURES.write_text(head + BEGIN + "".join(lines) + ")  # fmt: skip\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else DATA)
