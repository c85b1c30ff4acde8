"""What was asked, for a prediction: arrival, prompt and output tokens of each request, read from JSONL or CSV, plain or gzipped.

    arrival   `arrival_s`, `arrival_ms`, `arrival`, `arrival_time`, `sent`, `due`, `timestamp`: seconds (but `arrival_ms`), any origin; the first of them in a line counts
    prompt    `prompt_tokens`, `input_tokens`, `input_length`, `input_toks`, `num_prompt_tokens`
    output    `output_tokens`, `max_tokens`, `output_length`, `output_toks`, `num_output_tokens`
    optional  `cached_tokens` (found in the prefix cache), `run` (each run is predicted alone), `id` or `request_id`

A recording's own requests.jsonl can be read as it is.  In a recording, a request without
`cached_tokens` had none; in a file that never heard of them nobody knows (None).

A request without an output token is counted with the failed ones and left out, as in a calibration.

Rule: nothing measured is looked at.  `first`, `end`, `ttft_ms`, `e2e_ms`, `chunks` and
`server_metrics` never reach a prediction, because the columns above are the only ones kept.

Deliberately absent: traces of other formats (`bench.traces`).
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from sits.bench.lines import number, records, whole
from sits.core.errors import ConfigError

ARRIVAL = {
    "arrival_s": 1e3,
    "arrival_ms": 1.0,
    "arrival": 1e3,
    "arrival_time": 1e3,
    "sent": 1e3,
    "due": 1e3,
    "timestamp": 1e3,
}
PROMPT = ("prompt_tokens", "input_tokens", "input_length", "input_toks", "num_prompt_tokens")
OUTPUT = ("output_tokens", "max_tokens", "output_length", "output_toks", "num_output_tokens")

RECORDED = frozenset({"cached_tokens", "server_metrics", "chunks"})
"""Who writes one of these writes `cached_tokens` too, wherever there are any."""


SPAN_MOST_MS = 1e12
"""Thirty-two years; simulated time is counted in ns of 64 bits."""


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """The requests of one run in order of arrival; `places` are their places in the file.

    `cached_tokens` is None where the file tells none; `failed` requests were marked so (`status`, `error`) or have no output token, and are left out.
    """

    run: str
    ids: tuple[str, ...]
    places: NDArray[np.int64]
    arrival_ms: NDArray[np.float64]
    prompt_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]
    cached_tokens: NDArray[np.int64] | None = None
    failed: int = 0

    def __len__(self) -> int:
        return len(self.arrival_ms)


def read_asked(path: Path, *, arrivals: bool = True) -> list[Asked]:
    """The requests of a file, run by run; without `arrivals` (a closed loop makes its own) lines need none.

    Raises:
        ConfigError: no request, a field that is missing or no number, an id twice; names line, field, value and way out.

    """
    runs: dict[str, dict[str, tuple[float, int, int, float, int]]] = {}
    failed: dict[str, int] = {}
    told, place = False, 0
    for where, line in records(path):
        group = str(line.get("run", ""))
        if str(line.get("status", 200)) != "200" or line.get("error"):
            failed[group] = failed.get(group, 0) + 1
            continue
        run = runs.setdefault(group, {})
        name = str(line.get("id", line.get("request_id", len(run))))
        if name in run:
            raise ConfigError(
                f"{where}: id {name!r} was there before",
                field="id",
                value=name,
                hint="every request has an id of its own",
            )
        arrival = _arrival(where, line) if arrivals else 0.0
        prompt = whole(where, line, _name(where, line, PROMPT), least=1)
        output = whole(where, line, _name(where, line, OUTPUT))
        if not output:
            failed[group] = failed.get(group, 0) + 1
            continue
        cached = number(where, line, "cached_tokens", least=0, default=0.0)
        told = told or not RECORDED.isdisjoint(line)
        run[name] = (arrival, prompt, output, min(cached, prompt - 1.0), place)
        place += 1
    if not any(runs.values()):
        raise ConfigError(
            f"{path} holds no request",
            field="requests",
            value=str(path),
            hint="one JSON object a line: arrival, prompt_tokens, output_tokens",
        )
    made = [_made(name, lines, told) for name, lines in runs.items() if lines]
    return [msgspec.structs.replace(one, failed=failed.get(one.run, 0)) for one in made]


def _made(run: str, lines: Mapping[str, tuple[float, int, int, float, int]], told: bool) -> Asked:
    table = np.array(list(lines.values()))
    order = np.argsort(table[:, 0], kind="stable")
    span_ms = float(table[order[-1], 0] - table[order[0], 0])
    if span_ms > SPAN_MOST_MS:
        raise ConfigError(
            f"arrivals{f' of run {run!r}' if run else ''} span {span_ms / 1e3:.3g} s",
            field="arrival_s",
            value=span_ms / 1e3,
            hint=f"seconds (arrival_ms for milliseconds), at most {SPAN_MOST_MS / 1e3:,.0f} of them: are these in another unit?",
        )
    names = list(lines)
    whole_columns = table[order, 1:].astype(np.int64)
    return Asked(
        run=run,
        ids=tuple(names[i] for i in order),
        places=whole_columns[:, 3],
        arrival_ms=table[order, 0] - table[order[0], 0],
        prompt_tokens=whole_columns[:, 0],
        output_tokens=whole_columns[:, 1],
        cached_tokens=whole_columns[:, 2] if told else None,
    )


def _arrival(where: str, line: Mapping[str, Any]) -> float:
    for name, unit in ARRIVAL.items():
        if line.get(name) is not None:
            return number(where, line, name) * unit
    raise ConfigError(
        f"{where}: no arrival; it has {', '.join(line) or 'nothing'}",
        field="arrival_s",
        hint=f"give one of {', '.join(ARRIVAL)} (seconds, but arrival_ms), or --users N for a closed loop",
    )


def _name(where: str, line: Mapping[str, Any], names: tuple[str, ...]) -> str:
    for name in names:
        if line.get(name) is not None:
            return name
    raise ConfigError(
        f"{where}: no {names[0]}; it has {', '.join(line) or 'nothing'}",
        field=names[0],
        hint=f"give one of {', '.join(names)}",
    )
