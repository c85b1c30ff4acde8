"""Write docs/accuracy.svg and its part of docs/accuracy.md: how far predictions were off, every case, failures included.

What stands in the page outside of this part's marks is left as it is.

Usage: python tools/accuracy.py [--passes N] [--docs FOLDER]
"""

import argparse
from pathlib import Path

from sits.app.terminal import Progress
from sits.bench.accuracy_cases import by_case, examine
from sits.bench.accuracy_chart import chart
from sits.bench.accuracy_page import section

ROOT = Path(__file__).parents[1]
RECORDINGS = ROOT / "tests" / "data" / "engines" / "recordings"
BEGIN, END = "<!-- calibrated from logs -->", "<!-- end: calibrated from logs -->"
HEAD = """# Accuracy

How far the predictors were off on recordings they were not fitted to, failures included.

| what | against what | page |
|---|---|---|
| a model calibrated from an engine's own logs | vLLM on a CPU: loads, lengths and arrivals left out of the fit | below |
| layer tables of a GPU in the simulator, one figure fitted | vLLM 0.19 on an RTX PRO 6000 and on an RTX 4090 short of KV blocks | [accuracy-gpu.md](accuracy-gpu.md) |
| step times derived from kernel measurements | whole generations on A100 and H100 | [accuracy-steptime.md](accuracy-steptime.md) |
| formulas for queues, and the knee | an independent simulator | [queueing.md](queueing.md) |
| made-up workloads | Azure traces | [accuracy-workload.md](accuracy-workload.md) |

How to calibrate a model of your own engine, and what it says of its own error, is in [calibrate.md](calibrate.md).
"""


def written(page: str, part: str) -> str:
    """The page with this part renewed, or put at its end."""
    part = f"{BEGIN}\n{part.strip()}\n{END}\n"
    if BEGIN in page and END in page:
        before, _, rest = page.partition(BEGIN)
        return before + part + rest.partition(END)[2].lstrip("\n")
    return f"{page.rstrip()}\n\n{part}"


def main() -> None:
    """Work everything out and write both files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--passes", type=int, default=12)
    parser.add_argument("--docs", type=Path, default=ROOT / "docs")
    arguments = parser.parse_args()
    with Progress() as progress:
        found = examine(RECORDINGS, arguments.passes, progress)
    page = arguments.docs / "accuracy.md"
    before = page.read_text(encoding="utf-8") if page.exists() else HEAD
    page.write_text(written(before, section(found, "make accuracy")), encoding="utf-8")
    (arguments.docs / "accuracy.svg").write_text(
        chart(by_case(found.cases, "loads left out")), encoding="utf-8"
    )


if __name__ == "__main__":
    main()
