"""Fit the bursty arrival process and the length quantiles to the Azure 2023 traces.

Reads `azure_llm_2023_code.parquet` (arrivals) and `azure_llm_2023_conv.parquet` (lengths) from a folder, prints
the figures that `sits.bench.arrivals.OnOff` and `sits.bench.lengths` carry, and writes the residuals (trace
against 20 simulated hours) to `docs/accuracy-workload.md`.

Method: a gap above one second is a silence; silences and burst sizes are fitted as log-normals by their log
moments; gaps inside a burst as a two-component log-normal mixture by EM; the spread of pace between bursts by
matching IDC(1 s).  Usage: python tools/fit_workload.py TRACES_FOLDER
"""

import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from sits.bench.arrivals import OnOff
from sits.bench.lengths import LEVELS
from sits.bench.traces import read_trace
from sits.predict.burstiness import burstiness
from sits.world import stream_generator

SILENCE_S = 1.0
WINDOWS_S = (1.0, 5.0, 10.0, 60.0)
Floats = NDArray[np.float64]


def fit(gaps_s: Floats) -> OnOff:
    """The OnOff process nearest to a series of gaps."""
    gaps_s = np.maximum(gaps_s, 1e-4)
    silent = gaps_s > SILENCE_S
    sizes = np.bincount(np.cumsum(np.r_[True, silent]))[1:]
    share, means, sds = _two_lognormals(np.log(gaps_s[~silent]))
    base = OnOff(
        burst_size_log_mean=float(np.log(sizes).mean()),
        burst_size_log_sd=float(np.log(sizes).std()),
        burst_size_max=int(sizes.max()),
        pair_share=share,
        pair_gap_log_mean=float(means[0]),
        pair_gap_log_sd=float(sds[0]),
        pace_gap_log_mean=float(means[1]),
        pace_gap_log_sd=float(sds[1]),
        silence_log_mean=float(np.log(gaps_s[silent]).mean()),
        silence_log_sd=float(np.log(gaps_s[silent]).std()),
    )
    target = _seen(gaps_s)["idc"][1.0]
    spreads = np.arange(0.3, 1.01, 0.1)
    errors = [
        abs(simulated(msgspec.structs.replace(base, pace_spread_log_sd=float(s)))["idc"][1.0] - target)
        for s in spreads
    ]
    return msgspec.structs.replace(base, pace_spread_log_sd=float(spreads[int(np.argmin(errors))]))


def _two_lognormals(logs: Floats) -> tuple[float, Floats, Floats]:
    means, sds, weights = np.quantile(logs, [0.2, 0.7]), np.array([1.5, 0.7]), np.array([0.4, 0.6])
    for _ in range(500):
        density = weights / sds * np.exp(-0.5 * ((logs[:, None] - means) / sds) ** 2)
        share = density / density.sum(axis=1, keepdims=True)
        mass = share.sum(axis=0)
        weights = mass / len(logs)
        means = (share * logs[:, None]).sum(axis=0) / mass
        sds = np.sqrt((share * (logs[:, None] - means) ** 2).sum(axis=0) / mass)
    return float(weights[0]), means, sds


def _seen(gaps_s: Floats) -> dict[str, Any]:
    found = burstiness(np.cumsum(gaps_s), windows_s=WINDOWS_S)
    return {
        "rate_per_s": found.rate_per_s,
        "cv": found.cv,
        "idc": {row.window_s: row.idc for row in found.idc},
    }


def simulated(process: OnOff, runs: int = 20, count: int = 9_000) -> dict[str, Any]:
    """Median burstiness of `runs` drawn hours."""
    rows = [_seen(process.gaps_s(stream_generator(seed, "fit"), count)) for seed in range(runs)]
    return {
        "rate_per_s": float(np.median([r["rate_per_s"] for r in rows])),
        "cv": float(np.median([r["cv"] for r in rows])),
        "cv_all": sorted(round(r["cv"], 1) for r in rows),
        "idc": {w: float(np.median([r["idc"][w] for r in rows])) for w in WINDOWS_S},
    }


def main(folder: Path) -> None:
    gaps_s = np.diff(read_trace(folder / "azure_llm_2023_code.parquet").arrival_s)
    process = fit(gaps_s)
    shipped, trace, drawn = OnOff(), _seen(gaps_s), simulated(OnOff())
    for name, value in msgspec.structs.asdict(process).items():
        print(f"{name} = {value:.3f}   (shipped {getattr(shipped, name)})")
    conversation = read_trace(folder / "azure_llm_2023_conv.parquet")
    for name, column in (("prompt", conversation.prompt_tokens), ("answer", conversation.output_tokens)):
        print(name, tuple(int(q) for q in np.quantile(column, LEVELS)))
    rows = [
        ("requests a second", trace["rate_per_s"], drawn["rate_per_s"]),
        ("inter-arrival CV", trace["cv"], drawn["cv"]),
    ]
    rows += [(f"IDC({w:g} s)", trace["idc"][w], drawn["idc"][w]) for w in trace["idc"]]
    table = "\n".join(f"| {name} | {a:.2f} | {b:.2f} | {(b / a - 1) * 100:+.0f} % |" for name, a, b in rows)
    spread = ", ".join(map(str, drawn["cv_all"]))
    Path("docs/accuracy-workload.md").write_text(
        f"{HEAD}{table}\n\n{TAIL}\nCV of the 20 drawn hours: {spread}.\n"
    )


HEAD = """# How well the drawn arrivals match a real trace

The arrival process of the scenarios (`sits.bench.arrivals.OnOff`) is fitted to the Azure 2023 "code" trace
(8,819 requests in 57 minutes, CC-BY-4.0, Patel et al., Splitwise, ISCA'24) by `tools/fit_workload.py`.
The trace is one hour; the process is judged by the median of 20 drawn hours of 9,000 requests.

| figure | trace | drawn | difference |
|---|---|---|---|
"""
TAIL = """The drawn traffic is as clumped within a second as the trace and less so over a minute, and its inter-arrival CV
varies between hours, as a heavy tail must.
CV and IDC are those of `sits.predict.burstiness`.
A Poisson process has CV 1 and IDC 1 in every row."""

if __name__ == "__main__":
    main(Path(sys.argv[1]))
