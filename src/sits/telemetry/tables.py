"""The tables of the store: their columns, in order, with their types.

`requests` has one row a request, with the 20 points of `core.breakpoints` as columns (monotonic ns, 0 where
missing) and `exactness` as 20 digits, one a point.  `steps` has one row an engine step.  `signals` has one row a
sampled value.  `decisions` has one record a request, `facts` what was known of the replicas that records refer to
(`core.recorded`, as bytes).  `weight` is how many finished requests a row of `requests` stands for (`policy.sample`); missing or 0, in
files older than it, is 1.  `spans` has one row a span that others sent us, as they sent it; `sightings` one row for each
request and whoever saw it (an engine's spans, a probe), with the points it saw as columns of its own wall clock (ns since the
epoch): they meet the request's row by `trace_id` when somebody asks, because they come later than it; `parent_id` is the span they are
children of, which tells apart the requests of one trace.  In memory a table is `dict[str, numpy.ndarray]`: `object` arrays for text, int64, int32 or float64
for numbers; on disk it is Parquet with the SQL types below.

`minutes` and `outcomes_minutes` have the figures of every minute (`telemetry.sketches`): readers add up rows of equal keys.
`profiles` has one row a process and window, its samples as gzipped pprof (`telemetry.profile`).
`logs` has one row a log line, whole in `line`, with what lines are looked for by (`telemetry.logs`).

Rules: monotonic times only (`wall_ns` is for display and for `--since`; what other processes saw is in their wall clock); units last in a name; columns are only ever
added, at the end, because old Parquet files stay readable.  Deliberately absent: anything that can be computed from
the points (latencies, stages); those are folds in `diagnose`.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from sits.core.breakpoints import NAMES
from sits.core.errors import BugError

Columns = dict[str, np.ndarray]

_TEXT, _INT, _LONG, _REAL, _BYTES = "VARCHAR", "INTEGER", "BIGINT", "DOUBLE", "BLOB"

REQUESTS: Mapping[str, str] = {
    **dict.fromkeys(("run_id", "id", "tenant", "model", "adapter", "engine", "arm", "outcome"), _TEXT),
    "status": _INT,
    "detail": _TEXT,
    **dict.fromkeys(("prompt_tokens", "output_tokens", "cached_tokens", "preemptions"), _INT),
    **dict.fromkeys(NAMES, _LONG),
    "exactness": _TEXT,
    "wall_ns": _LONG,
    **dict.fromkeys(("prompt_hash", "abstraction_layer", "trace_id", "parent_id"), _TEXT),
    "weight": _REAL,
}

STEPS: Mapping[str, str] = {
    **dict.fromkeys(("run_id", "engine"), _TEXT),
    **dict.fromkeys(("t_ns", "duration_ns"), _LONG),
    **dict.fromkeys(
        (
            "running",
            "waiting",
            "prefill_tokens",
            "decode_tokens",
            "kv_used",
            "kv_total",
            "preempted",
            "denied",
            "recomputed_tokens",
        ),
        _INT,
    ),
    **dict.fromkeys(("copy_bytes", "copy_ns"), _LONG),
    **dict.fromkeys(("adapter_loads", "eager"), _INT),
    "prepare_ns": _LONG,
}

SIGNALS: Mapping[str, str] = {"run_id": _TEXT, "t_ns": _LONG, "source": _TEXT, "name": _TEXT, "value": _REAL}

DECISIONS: Mapping[str, str] = {"run_id": _TEXT, "id": _TEXT, "t_ns": _LONG, "record": _BYTES}

SPANS: Mapping[str, str] = {
    **dict.fromkeys(("run_id", "trace_id", "span_id", "parent_id", "service", "name", "kind"), _TEXT),
    **dict.fromkeys(("start_wall_ns", "end_wall_ns"), _LONG),
    **dict.fromkeys(("status", "attributes"), _TEXT),
}

SIGHTINGS: Mapping[str, str] = {
    **dict.fromkeys(("run_id", "trace_id", "source", "scheme"), _TEXT),
    **dict.fromkeys(NAMES, _LONG),
    **dict.fromkeys(("exactness", "parent_id"), _TEXT),
}

FACTS: Mapping[str, str] = {"run_id": _TEXT, "version": _LONG, "t_ns": _LONG, "record": _BYTES}

LOGS: Mapping[str, str] = {
    "run_id": _TEXT,
    "wall_ns": _LONG,
    **dict.fromkeys(("level", "process", "trace_id", "request_id", "event", "line"), _TEXT),
}

MINUTES: Mapping[str, str] = {
    "minute_wall_ns": _LONG,
    **dict.fromkeys(("model", "engine", "arm", "stage"), _TEXT),
    "n": _LONG,
    "sum_ns": _REAL,
    "histogram": _BYTES,
}

OUTCOMES_MINUTES: Mapping[str, str] = {
    "minute_wall_ns": _LONG,
    **dict.fromkeys(("model", "engine", "arm", "outcome"), _TEXT),
    "status": _INT,
    **dict.fromkeys(("n", "prompt_tokens", "output_tokens", "cached_tokens"), _LONG),
}

PROFILES: Mapping[str, str] = {
    "run_id": _TEXT,
    **dict.fromkeys(("wall_ns", "duration_ns"), _LONG),
    "process": _TEXT,
    **dict.fromkeys(("period_ns", "samples", "cpu_ns", "own_ns"), _LONG),
    "profile": _BYTES,
}

TABLES: Mapping[str, Mapping[str, str]] = {
    "requests": REQUESTS,
    "steps": STEPS,
    "signals": SIGNALS,
    "decisions": DECISIONS,
    "facts": FACTS,
    "spans": SPANS,
    "sightings": SIGHTINGS,
    "logs": LOGS,
    "profiles": PROFILES,
    "minutes": MINUTES,
    "outcomes_minutes": OUTCOMES_MINUTES,
}

FIGURES = frozenset({"minutes", "outcomes_minutes"})
"""Tables of figures of many requests, kept for another time than the rows."""

_DTYPES: Mapping[str, Any] = {
    _TEXT: object,
    _BYTES: object,
    _INT: np.int32,
    _LONG: np.int64,
    _REAL: np.float64,
}
_BOUNDS: Mapping[str, tuple[int, int]] = {_INT: (-(2**31), 2**31 - 1), _LONG: (-(2**63), 2**63 - 1)}


def column(sql_type: str, values: Sequence[Any]) -> np.ndarray:
    """`values` as one column; integers out of the type's range are clipped to it.

    A count an engine made up (2^40 prompt tokens) must not cost the rows recorded beside it.
    """
    if sql_type in _BOUNDS:
        low, high = _BOUNDS[sql_type]
        try:
            wide = np.array(values, dtype=np.int64)
        except OverflowError:  # one value is beyond 64 bits: rare, so it alone pays for being looked at
            wide = np.array([min(max(value, low), high) for value in values], dtype=np.int64)
        return np.clip(wide, low, high).astype(_DTYPES[sql_type])
    made = np.empty(len(values), dtype=_DTYPES[sql_type])
    made[:] = values
    return made


def columns_of(schema: Mapping[str, str], rows: Sequence[Sequence[Any]]) -> Columns:
    """Turn rows, each in the order of `schema`, into columns."""
    turned: Iterable[Sequence[Any]] = zip(*rows, strict=True) if rows else [()] * len(schema)
    return {name: column(schema[name], values) for name, values in zip(schema, turned, strict=True)}


def checked(table: str, columns: Mapping[str, Any]) -> Columns:
    """The columns of `table` in their order and types, all of one length.

    Raises:
        BugError: no such table, a missing or unknown column, or columns of different lengths.

    """
    schema = TABLES.get(table)
    if schema is None:
        raise BugError(
            f"there is no table {table!r}", field="table", value=table, hint=f"one of {', '.join(TABLES)}"
        )
    missing, unknown = schema.keys() - columns.keys(), columns.keys() - schema.keys()
    if missing or unknown:
        parts = [f"lacks {', '.join(sorted(missing))}"] * bool(missing)
        parts += [f"has unknown {', '.join(sorted(unknown))}"] * bool(unknown)
        raise BugError(f"a batch for table {table} {' and '.join(parts)}", field=table)
    made = {name: np.asarray(columns[name], dtype=_DTYPES[kind]) for name, kind in schema.items()}
    lengths = {name: len(values) for name, values in made.items()}
    if len(set(lengths.values())) > 1:
        raise BugError(f"columns of table {table} differ in length: {lengths}", field=table)
    return made
