"""Real traces: arrival, prompt and output lengths from the formats the field publishes.

| format | how it is recognised | columns |
|---|---|---|
| Azure LLM inference | CSV or Parquet | `TIMESTAMP`/`t_s`, `ContextTokens`/`input_tokens`, `GeneratedTokens`/`output_tokens` |
| BurstGPT | CSV | `Timestamp` (s), `Request tokens`, `Response tokens` (failed requests, 0 response tokens, are left out) |
| Mooncake, Bailian | JSONL or Parquet | `timestamp`/`t_ms` (ms), `input_length`/`input_tokens`, `output_length`/`output_tokens` |

Rules: rows are sorted by time, the first arrives at 0; lengths keep their request (arrival process and lengths
of a trace belong together); a file that fits no format is an error that says which columns were found.
"""

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from sits.bench.lines import WHOLE_MOST
from sits.core.errors import ConfigError

_TIME = {"t_s": 1.0, "t_ms": 1e-3, "Timestamp": 1.0, "timestamp": 1e-3}
_PROMPT = ("ContextTokens", "input_tokens", "Request tokens", "input_length")
_OUTPUT = ("GeneratedTokens", "output_tokens", "Response tokens", "output_length")

_READERS = {
    ".csv": "SELECT * FROM read_csv_auto(?)",
    ".parquet": "SELECT * FROM read_parquet(?)",
    ".jsonl": "SELECT * FROM read_json_auto(?)",
    ".json": "SELECT * FROM read_json_auto(?)",
}


class Trace(msgspec.Struct, frozen=True):
    """Columns of a trace, all of length n: seconds from the first request, and tokens."""

    arrival_s: NDArray[np.float64]
    prompt_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]


SPAN_MOST_S = 1e9
"""Thirty years: simulated time is counted in ns of 64 bits."""


def read_trace(path: str | Path) -> Trace:
    """Read a trace file of any format of the table above.

    Raises:
        ConfigError: the file is missing, empty, or has other columns.

    """
    path = Path(path)
    if not path.is_file():
        raise ConfigError(f"no trace at {path}", value=str(path), hint="give a .csv, .jsonl or .parquet file")
    columns = _columns(path)
    time_name = next((name for name in ("TIMESTAMP", *_TIME) if name in columns), None)
    prompt_name = next((name for name in _PROMPT if name in columns), None)
    output_name = next((name for name in _OUTPUT if name in columns), None)
    if time_name is None or prompt_name is None or output_name is None:
        raise ConfigError(
            f"{path.name} is no trace we know: it has {', '.join(map(str, columns)) or 'no columns'}",
            value=str(path),
            hint="Azure, BurstGPT, Mooncake and Bailian formats are read",
        )
    raw_time = np.asarray(columns[time_name])
    if time_name == "TIMESTAMP":
        _complete(path, time_name, columns[time_name])
        try:
            seconds = raw_time.astype("datetime64[us]").astype(np.int64) * 1e-6
        except ValueError as error:
            raise ConfigError(f"{path.name}: {error}", field=time_name, hint="dates, or seconds") from error
    else:
        seconds = _numbers(path, time_name, columns[time_name]) * _TIME[time_name]
    prompt = _counts(path, prompt_name, columns[prompt_name])
    output = _counts(path, output_name, columns[output_name])
    kept = output > 0
    order = np.argsort(seconds[kept], kind="stable")
    if not len(order):
        raise ConfigError(
            f"{path.name} holds no request with an answer", value=str(path), hint="is it the right file?"
        )
    ordered = seconds[kept][order]
    if ordered[-1] - ordered[0] > SPAN_MOST_S:
        raise ConfigError(
            f"{path.name} spans {ordered[-1] - ordered[0]:.3g} s", field=time_name, value=str(path),
            hint=f"at most {SPAN_MOST_S:.0e} s: are its times in another unit?",
        )  # fmt: skip
    return Trace(ordered - ordered[0], prompt[kept][order], output[kept][order])


def _complete(path: Path, name: str, column: Any) -> None:
    empty = np.flatnonzero(np.ma.getmaskarray(column) if np.ma.isMaskedArray(column) else np.zeros(0, bool))
    if len(empty):
        raise ConfigError(
            f"{path.name}: row {empty[0] + 1} has no {name}",
            field=name,
            value=str(path),
            hint="every row needs it; leave the row out",
        )


def _numbers(path: Path, name: str, column: Any) -> NDArray[np.float64]:
    _complete(path, name, column)
    try:
        got = np.asarray(column).astype(np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise ConfigError(f"{path.name}: {name}: {error}", field=name, hint="numbers only") from error
    odd = np.flatnonzero(~np.isfinite(got))
    if len(odd):
        raise ConfigError(
            f"{path.name}: row {odd[0] + 1}: {name} is {got[odd[0]]}", field=name, hint="a finite number"
        )
    return got


def _counts(path: Path, name: str, column: Any) -> NDArray[np.int64]:
    got = _numbers(path, name, column)
    odd = np.flatnonzero((got < 0) | (got > WHOLE_MOST))
    if len(odd):
        raise ConfigError(
            f"{path.name}: row {odd[0] + 1}: {name} is {got[odd[0]]:g}",
            field=name,
            hint=f"tokens, from 0 to {WHOLE_MOST:,}",
        )
    return got.astype(np.int64)


def _columns(path: Path) -> dict[str, Any]:
    import duckdb  # noqa: PLC0415  (heavy; only a trace needs it)

    suffixes = [s for s in path.suffixes if s != ".gz"]
    reader = _READERS.get(suffixes[-1] if suffixes else "")
    if reader is None:
        raise ConfigError(
            f"{path.name}: unknown kind of file", value=str(path), hint="give a .csv, .jsonl or .parquet file"
        )
    try:
        with duckdb.connect() as connection:
            columns: dict[str, Any] = connection.execute(reader, [str(path)]).fetchnumpy()
    except duckdb.Error as error:
        reason = str(error).strip().split("\n", 1)[0]
        raise ConfigError(
            f"{path.name} cannot be read: {reason}",
            value=str(path),
            hint="is it a trace, and does its name say what kind (.csv, .jsonl, .parquet)?",
        ) from error
    return columns
