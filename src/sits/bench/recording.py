"""A recording: what an engine did under load, a folder of four files, and the runs in it.

    runs.jsonl          a line a run: `run`, `mode` (closed, poisson, ...), `concurrency`, `t0_unix`, `wall_s`
    requests.jsonl[.gz] a line a request: `run`, `sent` (s), `prompt_tokens`, `output_tokens`, and what is known of: `headers`, `end` (s),
                        `ttft_ms`, `e2e_ms`, `tpot_ms`, `chunks` ([[ms since sent, tokens so far], ...]), `cached_tokens`,
                        `server_metrics` (`queue_time_ms`, `time_to_first_token_ms`: from being scheduled, so prefill; `generation_time_ms`)
    steps.csv[.gz]      a row an engine step: `run`, `ctx_reqs`, `ctx_tokens`, `gen_reqs`, `elapsed_ms`, and where known `gen_tokens`, `kv_pct`;
                        or engine.log[.gz]: vLLM's log with `Iteration(n)` lines (`sits.bench.recording_steps`)
    scrapes.csv[.gz]    optional, a row a scrape of the engine's metrics: `run`, `num_requests_running`, `num_requests_waiting`, `kv_cache_usage_perc`

Requests that failed are counted and left out; so is, in print, a run without a step or without a request that worked.

Two traps, kept apart here: `time_to_first_token_ms` of vLLM's response starts when the request is scheduled; and prefix hits
(`cached_tokens`) were up to two thirds of the prompt tokens in runs that sent the same prompts again.

Deliberately absent: what is fitted to it.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from sits.bench.lines import MS_MOST, found, number, objects, rows, whole
from sits.bench.recording_steps import read_steps
from sits.core.errors import ConfigError
from sits.predict.fit_steps import StepLog

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
NAN = float("nan")
SECONDS_MOST = 1e11


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One run: what was asked and when, what came of it, and the engine's steps.  Times in ms from the run's start or from `sent_ms`.

    Measured columns are NaN where the recording does not hold them.  `users` is the concurrency of a closed loop, 0 for open arrivals.
    """

    name: str
    mode: str
    users: int
    start_s: float
    failed: int
    foreign_cores: float
    ids: tuple[str, ...]
    sent_ms: Floats
    prompt_tokens: Ints
    output_tokens: Ints
    cached_tokens: Ints
    headers_ms: Floats
    first_ms: Floats
    last_ms: Floats
    end_ms: Floats
    tpot_ms: Floats
    queue_ms: Floats
    prefill_ms: Floats
    generation_ms: Floats
    steps: StepLog
    kv_used: Floats

    def __len__(self) -> int:
        return len(self.sent_ms)


class Scrapes(msgspec.Struct, frozen=True, kw_only=True):
    """Scrapes of the engine's metrics, of all runs: running, waiting, and KV usage from 0 to 1."""

    running: Floats
    waiting: Floats
    usage: Floats


class Recording(msgspec.Struct, frozen=True, kw_only=True):
    """The runs of one folder in order of time, and its scrapes; `left_out` are sentences on runs that could not be used."""

    source: str
    runs: tuple[Run, ...]
    scrapes: Scrapes
    left_out: tuple[str, ...] = ()

    def only(self, names: set[str]) -> "Recording":
        """The recording with these runs only."""
        return msgspec.structs.replace(self, runs=tuple(run for run in self.runs if run.name in names))


def read_recording(folder: Path) -> Recording:
    """Read a folder.

    Raises:
        ConfigError: a file is missing, empty or not what it should be; names file, line, column and value.

    """
    if not folder.is_dir():
        raise ConfigError(
            f"no directory {folder}",
            value=str(folder),
            hint="give the folder that holds requests.jsonl and steps.csv",
        )
    heads = _heads(folder)
    requests = _requests(folder, heads)
    steps = read_steps(folder, {name: head for name, head in heads.items() if name in requests})
    runs, left_out = [], []
    for name, lines in requests.items():
        worked = [(where, line) for where, line in lines if _worked(line)]
        if not worked:
            left_out.append(f"run {name} is left out: all {len(lines)} requests failed")
        elif name not in steps:
            left_out.append(f"run {name} is left out: it has {len(lines)} requests and not one engine step")
        else:
            runs.append(_run(name, heads[name], worked, len(lines) - len(worked), *steps[name]))
    if not runs:
        raise ConfigError(
            f"{folder} has no run that can be fitted: {'; '.join(left_out)}",
            field="run",
            hint="start vLLM with --enable-logging-iteration-details and keep the steps of every run",
        )
    runs.sort(key=lambda run: run.start_s)
    return Recording(
        source=folder.resolve().name, runs=tuple(runs), scrapes=_scrapes(folder), left_out=tuple(left_out)
    )


def _heads(folder: Path) -> dict[str, dict[str, Any]]:
    path = found(folder, "runs.jsonl")
    if path is None:
        raise ConfigError(
            f"{folder} has no runs.jsonl",
            field="runs.jsonl",
            value=str(folder),
            hint="one line a run: run, mode, t0_unix, wall_s",
        )
    heads: dict[str, dict[str, Any]] = {}
    for where, head in objects(path):
        name = str(head.get("run", ""))
        if not name or name in heads:
            raise ConfigError(
                f"{where}: run {name!r} is {'named twice' if name else 'not named'}",
                field="run",
                hint="every run has a name of its own",
            )
        for field in ("t0_unix", "wall_s"):
            if number(where, head, field, least=0, default=0.0) > SECONDS_MOST:
                raise ConfigError(
                    f"{where}: {field} is {head[field]!r}", field=field, value=head[field], hint="seconds"
                )
        if isinstance(head.get("concurrency"), int | float):
            whole(where, head, "concurrency")
        heads[name] = head
    if not heads:
        raise ConfigError(f"{path} holds no run", field="run", value=str(path), hint="is it the right file?")
    return heads


def _requests(folder: Path, heads: Mapping[str, Any]) -> dict[str, list[tuple[str, dict[str, Any]]]]:
    path = found(folder, "requests.jsonl")
    if path is None:
        raise ConfigError(
            f"{folder} has no requests.jsonl or requests.jsonl.gz", field="requests.jsonl", value=str(folder),
            hint="one line a request: run, sent, prompt_tokens, output_tokens, ttft_ms, e2e_ms",
        )  # fmt: skip
    requests: dict[str, list[tuple[str, dict[str, Any]]]] = {}
    for where, line in objects(path):
        name = str(line.get("run", ""))
        if name not in heads:
            raise ConfigError(
                f"{where}: run {name!r} is not in runs.jsonl",
                field="run",
                value=name,
                hint=f"runs: {', '.join(heads)}",
            )
        requests.setdefault(name, []).append((where, line))
    if not requests:
        raise ConfigError(
            f"{path} holds no request", field="requests", value=str(path), hint="is it the right file?"
        )
    return requests


def _worked(line: Mapping[str, Any]) -> bool:
    return line.get("status", 200) == 200 and not line.get("error") and bool(line.get("output_tokens"))


def _run(
    name: str,
    head: Mapping[str, Any],
    good: list[tuple[str, dict[str, Any]]],
    failed: int,
    steps: StepLog,
    kv_used: Floats,
) -> Run:
    table = [_measured(where, line) for where, line in good]
    order = np.argsort([row[0] for row in table], kind="stable")
    columns = np.array(table, dtype=np.float64)[order]
    tokens = columns[:, 1:4].astype(np.int64)
    users = head.get("concurrency")
    return Run(
        name=name,
        mode=str(head.get("mode") or "open"),
        users=int(users) if isinstance(users, int | float) and users > 0 else 0,
        start_s=float(head.get("t0_unix") or 0.0),
        failed=failed,
        foreign_cores=float(head["foreign"]) if isinstance(head.get("foreign"), int | float) else NAN,
        ids=tuple(str(good[i][1].get("id", i)) for i in order),
        sent_ms=columns[:, 0],
        prompt_tokens=tokens[:, 0],
        output_tokens=tokens[:, 1],
        cached_tokens=tokens[:, 2],
        headers_ms=columns[:, 4],
        first_ms=columns[:, 5],
        last_ms=columns[:, 6],
        end_ms=columns[:, 7],
        tpot_ms=columns[:, 8],
        queue_ms=columns[:, 9],
        prefill_ms=columns[:, 10],
        generation_ms=columns[:, 11],
        steps=steps,
        kv_used=kv_used,
    )


def _measured(where: str, line: Mapping[str, Any]) -> tuple[float, ...]:
    sent = number(where, line, "sent", least=-SECONDS_MOST, most=SECONDS_MOST)
    prompt = whole(where, line, "prompt_tokens", least=1)
    output = whole(where, line, "output_tokens", least=1)
    cached = number(where, line, "cached_tokens", least=0, default=0.0)
    if cached >= prompt:
        raise ConfigError(
            f"{where}: {cached:g} of {prompt} prompt tokens are cached",
            field="cached_tokens", value=cached, hint="the last prompt token is always computed",
        )  # fmt: skip
    headers = number(where, line, "headers", least=-SECONDS_MOST, most=SECONDS_MOST, default=NAN)
    first = number(where, line, "ttft_ms", least=0, most=MS_MOST, default=NAN)
    end = number(where, line, "e2e_ms", least=0, most=MS_MOST, default=NAN)
    chunks = line.get("chunks")
    last = _last(where, chunks) if isinstance(chunks, list) and chunks else end
    metrics = line.get("server_metrics")
    engine = metrics if isinstance(metrics, dict) else {}
    told = [
        number(where, engine, name, least=0, most=MS_MOST, default=NAN)
        for name in ("queue_time_ms", "time_to_first_token_ms", "generation_time_ms")
    ]
    if output == 1 and math.isnan(told[2]):
        told[2] = 0.0
    tpot = number(where, line, "tpot_ms", least=0, most=MS_MOST, default=NAN)
    return (sent * 1e3, prompt, output, cached, (headers - sent) * 1e3, first, last, end, tpot, *told)


def _last(where: str, chunks: list[Any]) -> float:
    pair = chunks[-1]
    return number(
        where,
        {"chunks": pair[0] if isinstance(pair, list) and pair else str(pair)},
        "chunks",
        least=0,
        most=MS_MOST,
    )


def _scrapes(folder: Path) -> Scrapes:
    path = found(folder, "scrapes.csv")
    columns: list[list[float]] = [[], [], []]
    if path is not None:
        names = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
        for where, row in rows(path, names):
            for name, column in zip(names, columns, strict=True):
                column.append(number(where, row, name, least=0, default=0.0))
    return Scrapes(**{n: np.array(c) for n, c in zip(("running", "waiting", "usage"), columns, strict=True)})
