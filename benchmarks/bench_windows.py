"""Reactions of a batching window, compared by replay before an engine that batches by call.

    benchmarks/bench_windows.py [--traces FOLDER] [--markdown]

The engine runs one call after the other; a call of k requests takes 8 ms + 1 ms x k (embeddings on a GPU), 16 at most: 667 a
second when full, 111 one by one.  The objective is 100 ms at P99.  Arrivals: Poisson, the on-off bursts of `bench.arrivals`
(superposed), and two Azure traces (superposed; skipped where they are not there).  Times are ms; `busy` is the share of the time
in which the engine works; the last table is of an engine that gathers what it is sent.

Rows: no window; a fixed one of 5, 20 and 100 ms; `burst` (x1.5 on a rise, x0.7 on a fall, back after three quiet checks) with either
detector; `fill` (max_batch / lambda, and `low` where that is beyond `high`); the same without that clause, as it is
usually written; `slack`; `free`.  All adaptive ones get the P99 of the last five seconds.
"""

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np

from sits.bench.arrivals import OnOff
from sits.bench.traces import read_trace
from sits.bench.windows import at_rate
from sits.core.fleet_window import Window
from sits.core.units import MS, SECOND
from sits.policy.pace import Pace
from sits.sim.calls import Kind, Replayed, replay
from sits.world import stream_generator

FOLDER = Path(__file__).parents[2] / "shared" / "data" / "traces"
FIXED, ITEM, BATCH, OBJECTIVE = 8 * MS, 1 * MS, 16, 100 * MS
SECONDS = 120


class FillToTheBound(Pace):
    """`fill` as it is usually written: min(high, max_batch / lambda), also where no batch fills by then."""

    @property
    def length_ns(self) -> int:
        rate = self.rate_per_s
        return round(min(self.config.high, BATCH / rate * SECOND)) if rate else self.config.base


def adaptive(reaction: str, **more) -> Window:
    return Window(kind="adaptive", reaction=reaction, max_batch=BATCH, objective=OBJECTIVE, **more)


ROWS: dict[str, tuple[Window, Callable[[Window, int], Pace]]] = {
    "none": (Window(max_batch=BATCH), Pace),
    "fixed 5 ms": (Window(kind="fixed", base=5 * MS, max_batch=BATCH), Pace),
    "fixed 20 ms": (Window(kind="fixed", max_batch=BATCH), Pace),
    "fixed 100 ms": (Window(kind="fixed", base=100 * MS, max_batch=BATCH), Pace),
    "burst, cusum": (adaptive("burst"), Pace),
    "burst, ewma": (adaptive("burst", detector="ewma"), Pace),
    "fill to the bound": (adaptive("fill"), FillToTheBound),
    "fill": (adaptive("fill"), Pace),
    "slack": (adaptive("slack"), Pace),
    "free": (adaptive("free"), Pace),
}


def poisson(rate: float) -> list[int]:
    gaps = stream_generator(7, f"poisson {rate}").exponential(SECOND / rate, int(rate * SECONDS))
    return np.rint(np.cumsum(gaps)).astype(np.int64).tolist()


def on_off(copies: int) -> list[int]:
    """Independent on-off sources over each other, each begun long before."""
    times = [np.cumsum(OnOff().gaps_s(stream_generator(7, f"on-off {i}"), 4000)) for i in range(copies)]
    whole = np.sort(np.concatenate([one - 600.0 for one in times]))
    kept = whole[(whole > 0) & (whole < SECONDS)]
    return np.rint(kept * SECOND).astype(np.int64).tolist()


def loads(folder: Path) -> dict[str, list[int]]:
    found = {f"Poisson, {rate:g}/s": poisson(rate) for rate in (20, 100, 200, 400, 600)}
    found |= {f"on-off bursts of {copies} sources": on_off(copies) for copies in (20, 80)}
    for name, title, rates in (("conv", "Azure conversation", (50, 200)), ("code", "Azure code", (3, 50))):
        path = folder / f"azure_llm_2023_{name}.parquet"
        if not path.is_file():
            print(f"{title}: skipped, there is no {path.name} (give its folder with --traces)")
            continue
        found |= {f"{title}, about {rate}/s": at_rate(read_trace(path).arrival_s, rate) for rate in rates}
    return found


def row(name: str, seen: Replayed, markdown: bool) -> str:
    met = float(np.mean(seen.latency_ns <= OBJECTIVE))
    cells = (
        f"{seen.latency(0.5) / MS:,.1f}", f"{seen.latency(0.99) / MS:,.1f}", f"{met:.1%}", f"{seen.per_s:,.0f}",
        f"{seen.batch_mean:.2f}", f"{seen.busy:.0%}",
    )  # fmt: skip
    if markdown:
        return f"| {name} | " + " | ".join(cells) + " |"
    return f"  {name:18s}" + "".join(f"{cell:>11s}" for cell in cells)


def table(title: str, arrivals: list[int], kind: Kind, markdown: bool) -> None:
    offered = len(arrivals) * SECOND / (arrivals[-1] - arrivals[0])
    heads = ("P50", "P99", "in 100 ms", "answers/s", "batch", "busy")
    if markdown:
        print(
            f"\n### {title} ({offered:.0f}/s offered)\n\n| window | "
            + " | ".join(heads)
            + " |\n|---|"
            + "---:|" * 6
        )
    else:
        print(f"\n{title} ({offered:.0f}/s offered)\n  {'':18s}" + "".join(f"{head:>11s}" for head in heads))
    for name, (window, make) in ROWS.items():
        pace = make(window, OBJECTIVE)
        seen = replay(
            arrivals, window, fixed_ns=FIXED, item_ns=ITEM, objective_ns=OBJECTIVE, kind=kind, pace=pace
        )
        print(row(name, seen, markdown), flush=True)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--traces", type=Path, default=FOLDER, help="where the Azure traces lie")
    parser.add_argument("--markdown", action="store_true")
    asked = parser.parse_args()
    for title, arrivals in loads(asked.traces).items():
        table(title, arrivals, "by_call", asked.markdown)
    table("Poisson, 200/s, an engine that gathers", poisson(200), "gathers", asked.markdown)


if __name__ == "__main__":
    main()
