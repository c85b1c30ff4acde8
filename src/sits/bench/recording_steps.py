"""The engine's steps of a recording: `steps.csv[.gz]`, or vLLM's own log with its `Iteration(n)` lines.

vLLM writes one line a step when started with `--enable-logging-iteration-details`; its times have whole seconds and no year, so a
step belongs to the run in whose seconds it fell.  KV usage is a percentage with one decimal.

Deliberately absent: fitting.
"""

import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sits.bench.lines import MS_MOST, found, number, rows, text_of
from sits.core.errors import ConfigError
from sits.predict.fit_steps import StepLog

Floats = NDArray[np.float64]
_COLUMNS = ("ctx_reqs", "ctx_tokens", "gen_reqs", "elapsed_ms")
_ITERATION = re.compile(
    r"(\d\d)-(\d\d) (\d\d):(\d\d):(\d\d) .*Iteration\(\d+\): (\d+) context requests, (\d+) context tokens, (\d+) generation "
    r"requests, \d+ generation tokens, iteration elapsed time: ([\d.]+) ms(?:.*KV cache usage: ([\d.]+)%)?"
)
_Row = tuple[float, float, float, float, float]


def read_steps(folder: Path, heads: Mapping[str, Mapping[str, Any]]) -> dict[str, tuple[StepLog, Floats]]:
    """The steps of each run, and the KV usage (0..1, NaN when not told) at each.

    Raises:
        ConfigError: neither file is there, or one holds no step.

    """
    path = found(folder, "steps.csv")
    if path is not None:
        by_run = _table(path, heads)
    else:
        log = found(folder, "engine.log")
        if log is None:
            raise ConfigError(
                f"{folder} has neither steps.csv[.gz] nor engine.log[.gz]", field="steps.csv", value=str(folder),
                hint="a step-time law needs the engine's steps: start vLLM with --enable-logging-iteration-details and keep its log there",
            )  # fmt: skip
        path, by_run = log, _log(log, heads)
    if not by_run:
        raise ConfigError(
            f"{path} holds no engine step of these runs",
            field="steps",
            value=str(path),
            hint="is it the right file?",
        )
    return {name: _made(name, steps) for name, steps in by_run.items()}


def _made(name: str, steps: list[_Row]) -> tuple[StepLog, Floats]:
    table = np.array(steps)
    log = StepLog(
        run=name,
        chunks=table[:, 0],
        prompt_tokens=table[:, 1],
        decodes=table[:, 2],
        elapsed_ms=table[:, 3],
        kv_tokens=np.full(len(table), np.nan),
    )
    return log, table[:, 4] / 100


def _table(path: Path, heads: Mapping[str, Any]) -> dict[str, list[_Row]]:
    by_run: dict[str, list[_Row]] = {}
    for where, row in rows(path, ("run", *_COLUMNS)):
        if row["run"] not in heads:
            continue
        values = [number(where, row, name, least=0, most=MS_MOST) for name in _COLUMNS]
        if values[3] <= 0:
            raise ConfigError(
                f"{where}: a step of {values[3]:g} ms",
                field="elapsed_ms",
                value=values[3],
                hint="steps take time",
            )
        kv = number(where, row, "kv_pct", least=0, default=float("nan"))
        by_run.setdefault(row["run"], []).append((*values, kv))  # type: ignore[arg-type]
    return by_run


def _log(path: Path, heads: Mapping[str, Mapping[str, Any]]) -> dict[str, list[_Row]]:
    spans = sorted(
        (
            int(float(head.get("t0_unix") or 0)),
            float(head.get("t0_unix") or 0) + float(head.get("wall_s") or 0),
            name,
        )
        for name, head in heads.items()
    )
    if not spans or spans[0][0] == 0:
        raise ConfigError(
            "runs.jsonl does not tell when its runs were",
            field="t0_unix",
            hint="t0_unix and wall_s place the log's lines",
        )
    year = time.localtime(spans[0][0]).tm_year
    by_run: dict[str, list[_Row]] = {}
    for match in _ITERATION.finditer(text_of(path)):
        month, day, hour, minute, second = (int(part) for part in match.groups()[:5])
        at = time.mktime((year, month, day, hour, minute, second, 0, 0, -1))
        name = next((name for start, end, name in spans if start <= at <= end + 0.5), None)
        if name is not None and float(match[9]) > 0:
            kv = float(match[10]) if match[10] else float("nan")
            by_run.setdefault(name, []).append(
                (float(match[6]), float(match[7]), float(match[8]), float(match[9]), kv)
            )
    return by_run
