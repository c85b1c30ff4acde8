"""The accuracy page as Markdown, from its figures.

Rules: every case is shown, the failures first of all; an error stands beside its interval; every table says what its figures are.

Deliberately absent: working anything out (`accuracy_cases`).
"""

from collections.abc import Sequence

import numpy as np

from sits.bench.accuracy import Compared
from sits.bench.accuracy_cases import TINY, Accuracy, Case, by_case
from sits.bench.predictions import DEFINITIONS, METRICS

SHOWN = ("p50", "p99")
BAD = 0.5
SHORT = (
    "Median of |predicted / measured - 1| over the runs predicted, for P50 and P99 of each metric, how many of the measured figures lay in the "
    "stated range (90 % is meant), and how wide that was: its upper end over its lower one, the median. A run predicted is never one fitted to, nor did it widen a range."
)
STEPS = (
    "Median |error| of one step, and mean over runs of the |error| of their sum, each run predicted at level 1 by a law fitted to the other runs; "
    "beside it `a + b * prompt tokens + c * decodes` by least squares, fitted to the same steps."
)


def section(found: Accuracy, command: str) -> str:
    """The part of the page about calibrated engines."""
    return "\n".join(
        [
            "## Calibrated from logs: vLLM on the CPU",
            "",
            f"Written by `{command}`; run it again to reproduce every figure from the recordings in `tests/data/engines/recordings`.",
            "",
            *_read_first(found),
            *_picture(),
            *_summary(found.cases),
            *_yardsticks(found),
            *_drift(found),
            *_cases(found.cases),
            *_definitions(),
        ]
    )


def _read_first(found: Accuracy) -> list[str]:
    worst = sorted((row for case in found.cases for row in case.rows), key=lambda row: -abs(row.error))
    bad = [row for row in worst if abs(row.error) > BAD]
    count = sum(len(case.rows) for case in found.cases)
    left = [row for case in by_case(found.cases, "loads left out") for row in case.rows]
    covered = np.mean([row.covered for row in left])
    tiny = sum(_of_tiny(found, row) for row in bad)
    waits = sum(row.metric == "ttft_ms" and not _of_tiny(found, row) for row in bad)
    said = (
        f"**Read this first.** {len(bad)} of {count} predicted figures are off by more than {BAD:.0%}: {tiny} of them are of `tiny-closed`, "
        f"{waits} are other times to first token, {len(bad) - tiny - waits} neither. `tiny-closed` is an engine whose API server, core and worker "
        "fight for two processor cores: what its callers wait for is the operating system's scheduler, which no step law holds; do not trust such "
        "a calibration. Times to first token near and beyond capacity multiply a few per cent of speed into tens of per cent of waiting (see the "
        "table of levels), and this machine moved by more than that from run to run."
    )
    more = f"A prediction states a range for each figure; of the runs left out, {covered:.0%} of the measured figures lie in it (90 % is meant)."
    trap = (
        "In the closed loops here the prefix cache gave up to two thirds of the prompt tokens, because each load sends the prompts of the lighter "
        "ones again. Predictions are told which (`cached_tokens`), as that belongs to what is asked; the last table shows what not knowing it costs."
    )
    return [said, "", more, "", trap, ""]


def _of_tiny(found: Accuracy, row: Compared) -> bool:
    return any(row is one for case in found.cases if TINY in case.predicted for one in case.rows)


def _picture() -> list[str]:
    return ["![predicted against measured](accuracy.svg)", ""]


def _summary(cases: Sequence[Case]) -> list[str]:
    lines = [
        "### In short",
        "",
        SHORT,
        "",
        "| case | fitted to | predicted | runs | "
        + " | ".join(f"{m[:-3].upper()} {f.upper()}" for m in METRICS for f in SHOWN)
        + " | in range | width |",
        "|---|---|---|---|" + "---|" * (2 * len(METRICS) + 2),
    ]
    for case in cases:
        cells = [f"{_median(case.rows, metric, figure):.0%}" for metric in METRICS for figure in SHOWN]
        runs = len({row.run for row in case.rows})
        inside = np.mean([row.covered for row in case.rows])
        lines.append(
            f"| {case.title} | {case.fitted_to} | {case.predicted} | {runs} | {' | '.join(cells)} | {inside:.0%} | {_width(case.rows):.1f}x |"
        )
    return [*lines, ""]


def _width(rows: Sequence[Compared]) -> float:
    return float(np.median([row.range_high / row.range_low for row in rows if row.range_low > 0.0]))


def _median(rows: Sequence[Compared], metric: str, figure: str) -> float:
    return float(np.median([abs(row.error) for row in rows if row.metric == metric and row.figure == figure]))


def _yardsticks(found: Accuracy) -> list[str]:
    lines = [
        "### What the engine varies by itself",
        "",
        f"The same closed loop of 16 users on the same running engine, {found.repeated[0].runs} times within three minutes:",
        "",
        "| figure | lowest | middle | highest | half the range, of the middle |",
        "|---|---|---|---|---|",
    ]
    for one in found.repeated:
        half = (one.high - one.low) / 2 / one.middle
        lines.append(
            f"| `{one.figure}` | {one.low:,.1f} | {one.middle:,.1f} | {one.high:,.1f} | ±{half:.0%} |"
        )
    lines += [
        "",
        "No prediction can be nearer to one run than runs are to each other. Later the same day the same loop gave a quarter of that.",
        "",
        "### Steps of runs left out",
        "",
        STEPS,
        "",
        "| recording | step, law | step, three parameters | sum, law | sum, three parameters |",
        "|---|---|---|---|---|",
    ]
    for one_step in found.steps:
        lines.append(
            f"| {one_step.recording} | {one_step.law_median:.0%} | {one_step.plain_median:.0%} | {one_step.law_total:.0%} | {one_step.plain_total:.0%} |"
        )
    return [*lines, ""]


def _drift(found: Accuracy) -> list[str]:
    lines = [
        "### What a tenth of speed does",
        "",
        "TTFT P50 in ms of the Poisson runs, measured, and predicted with the machine a tenth quicker, as fitted, and a tenth slower:",
        "",
        "| run | measured | level 0.9 | level 1 | level 1.1 |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| {name} | " + " | ".join(f"{value:,.0f}" for value in values) + " |"
        for name, *values in found.drift
    ]
    return [*lines, ""]


def _cases(cases: Sequence[Case]) -> list[str]:
    lines = []
    for title in dict.fromkeys(case.title for case in cases):
        lines += [
            f"### {title[0].upper()}{title[1:]}",
            "",
            "Predicted / measured in ms, then the error and its 90 % interval when the measured requests are resampled.",
            "",
        ]
        for case in by_case(cases, title):
            lines += [f"Fitted to {case.fitted_to}, predicted {case.predicted}:", ""]
            lines += _rows(case)
            lines += _single(case)
    return lines


def _rows(case: Case) -> list[str]:
    heads = [f"{metric[:-3].upper()} {figure.upper()}" for metric in METRICS for figure in SHOWN]
    lines = ["| run | requests | " + " | ".join(heads) + " |", "|---|---|" + "---|" * len(heads)]
    for run in dict.fromkeys(row.run for row in case.rows):
        mine = {(row.metric, row.figure): row for row in case.rows if row.run == run}
        cells = [_cell(mine.get((metric, figure))) for metric in METRICS for figure in SHOWN]
        lines.append(f"| {run} | {next(iter(mine.values())).requests} | {' | '.join(cells)} |")
    return [*lines, ""]


def _cell(row: Compared | None) -> str:
    if row is None:
        return "-"
    return f"{row.predicted:,.0f} / {row.measured:,.0f}: {row.error:+.0%} ({row.error_low:+.0%} to {row.error_high:+.0%})"


def _single(case: Case) -> list[str]:
    if not case.requests:
        return []
    parts = []
    for metric in METRICS:
        errors = [one for one in case.requests if one.metric == metric]
        off = np.median([one.median_error for one in errors])
        ranks = np.median([one.correlation for one in errors if np.isfinite(one.correlation)])
        parts.append(f"{metric[:-3].upper()} {off:.0%} and {ranks:.2f}")
    return [
        f"Single requests, median over runs of the median |error| and of the rank correlation: {'; '.join(parts)}.",
        "",
    ]


def _definitions() -> list[str]:
    return ["### Definitions", "", *(f"- `{name}`: {text}." for name, text in DEFINITIONS.items()), ""]
