"""Write docs/accuracy.md and docs/accuracy.svg: how far predictions were off, every case, failures included.

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
HEAD = """# Accuracy

How far the predictors were off on recordings they were not fitted to.  Figures of step times of GPUs are in
[accuracy-steptime.md](accuracy-steptime.md), of made-up workloads in [accuracy-workload.md](accuracy-workload.md).
How to calibrate a model of your own engine, and what it says of its own error, is in [calibrate.md](calibrate.md).
"""


def main() -> None:
    """Work everything out and write both files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--passes", type=int, default=12)
    parser.add_argument("--docs", type=Path, default=ROOT / "docs")
    arguments = parser.parse_args()
    with Progress() as progress:
        found = examine(RECORDINGS, arguments.passes, progress)
    page = f"{HEAD}\n{section(found, 'make accuracy')}"
    (arguments.docs / "accuracy.md").write_text(page, encoding="utf-8")
    (arguments.docs / "accuracy.svg").write_text(
        chart(by_case(found.cases, "loads left out")), encoding="utf-8"
    )


if __name__ == "__main__":
    main()
