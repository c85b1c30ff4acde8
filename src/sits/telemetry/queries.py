"""The named queries: everything anybody asks of the store, in one place.

A query names its tables (`requests`, `steps`, `signals`, ...) and its parameters (`$name`); a parameter left out is NULL
and then does not restrict.  Bounds are half open: `since <= x < until`.  `*_wall_ns` are wall-clock ns since the epoch
(display clock), `start_ns` and `end_ns` monotonic ns of the run.  Latency quantiles are over completed requests whose
two points were both seen.  Quantiles, counts and sums are of all requests, each row counted for as many as it stands for (`weight`).  A request that came without a trace has its own id as `trace_id`, also where a file from before
traces says nothing.

`FLEET` names those that ask of requests and spans alone: they have the same answer in ClickHouse (`telemetry.clickhouse`).

Deliberately absent: SQL anywhere else.
"""

# ruff: noqa: S608 - the pieces put together are constants of this file

import re
from collections.abc import Mapping

from sits.core.breakpoints import FIRST_TOKEN, LAST_TOKEN
from sits.core.errors import BugError
from sits.telemetry.board_queries import BOARD_QUERIES
from sits.telemetry.dialects import PARAMETER, Dialect, DuckDialect
from sits.telemetry.profile_queries import PROFILE_QUERIES
from sits.telemetry.stage_queries import (
    BOUNDS,
    E2E,
    TTFT,
    WEIGHT,
    latency_by_minute,
    point_quantiles,
    slow_stages,
    stage_quantiles,
)
from sits.telemetry.tables import TABLES
from sits.telemetry.trace_queries import TRACE_QUERIES
from sits.telemetry.weighted_queries import SUFFIX, THINNED, weighted_queries

_REQUEST_BOUNDS = """
    ($run_id IS NULL OR run_id = $run_id)
    AND ($since_wall_ns IS NULL OR wall_ns >= $since_wall_ns)
    AND ($until_wall_ns IS NULL OR wall_ns < $until_wall_ns)"""

_SAMPLE_BOUNDS = """
    ($run_id IS NULL OR run_id = $run_id)
    AND ($start_ns IS NULL OR t_ns >= $start_ns)
    AND ($end_ns IS NULL OR t_ns < $end_ns)"""

_SPAN_BOUNDS = """
    ($since_wall_ns IS NULL OR start_wall_ns >= $since_wall_ns)
    AND ($until_wall_ns IS NULL OR start_wall_ns < $until_wall_ns)"""

_MINUTE_BOUNDS = """
    ($since_wall_ns IS NULL OR minute_wall_ns >= $since_wall_ns)
    AND ($until_wall_ns IS NULL OR minute_wall_ns < $until_wall_ns)
    AND ($model IS NULL OR model = $model)
    AND ($engine IS NULL OR engine = $engine)
    AND ($arm IS NULL OR arm = $arm)"""

_TRACE = "(trace_id = $trace_id OR (coalesce(trace_id, '') = '' AND id = $trace_id))"


def _stood_for(what: str) -> str:
    """SQL of a sum over requests, each row counted for as many as it stands for."""
    return f"CAST(floor(sum(({what}) * ({WEIGHT})) + 0.5) AS BIGINT)"  # `round` rounds halves in two ways in two databases


def _load(by: str) -> str:
    sums = ", ".join(
        f"{_stood_for(name)} AS {name}"
        for name in ("prompt_tokens", "cached_tokens", "output_tokens", "preemptions")
    )
    completed = _stood_for("CASE WHEN outcome = 'completed' THEN 1 ELSE 0 END")
    return f"""
SELECT {by}, {_stood_for("1")} AS n, {completed} AS completed, {sums}
FROM requests WHERE {BOUNDS} GROUP BY {by} ORDER BY n DESC, {by}"""


def fleet_queries(say: Dialect) -> Mapping[str, str]:
    """The queries that both databases answer."""
    return {
        "runs": """
SELECT run_id, count(*) AS requests, min(wall_ns) AS first_wall_ns, max(wall_ns) AS last_wall_ns,
    min(CASE WHEN api_recv > 0 THEN api_recv END) AS start_ns,
    max(greatest(api_recv, first_token, last_token, sent)) AS end_ns
FROM requests GROUP BY run_id ORDER BY first_wall_ns, run_id""",
        "requests_window": f"SELECT * FROM requests WHERE {_REQUEST_BOUNDS} ORDER BY wall_ns, run_id, id",
        "request": "SELECT * FROM requests WHERE id = $id",
        "trace": f"SELECT * FROM requests WHERE {_TRACE} ORDER BY wall_ns, id",
        "trace_spans": "SELECT * FROM spans WHERE trace_id = $trace_id ORDER BY start_wall_ns, span_id",
        "spans_window": f"""
SELECT * FROM spans WHERE {_SPAN_BOUNDS} AND ($service IS NULL OR service = $service) ORDER BY start_wall_ns, span_id""",
        "outcomes": f"""
SELECT outcome, status, detail, {_stood_for("1")} AS n FROM requests WHERE {_REQUEST_BOUNDS}
GROUP BY outcome, status, detail ORDER BY n DESC, outcome, status, detail""",
        "outcomes_by_minute": f"""
SELECT {say.minute("wall_ns")} AS minute_wall_ns, model, engine, outcome, status, {_stood_for("1")} AS n FROM requests WHERE {BOUNDS}
GROUP BY minute_wall_ns, model, engine, outcome, status ORDER BY minute_wall_ns, model, engine, outcome, status""",
        "load_by_engine": _load("engine"),
        "load_by_model": _load("model"),
        "load_by_tenant": _load("tenant"),
        "load_by_arm": _load("arm"),
        "slowest": f"""
SELECT * FROM requests WHERE {BOUNDS} AND outcome = 'completed'
ORDER BY sent - api_recv DESC, wall_ns, id LIMIT coalesce($limit, 100)""",
        "troubled": f"""
SELECT * FROM requests WHERE {BOUNDS} AND outcome <> 'completed' ORDER BY wall_ns DESC, id LIMIT coalesce($limit, 100)""",
        "ttft_quantiles": point_quantiles(say, FIRST_TOKEN),
        "e2e_quantiles": point_quantiles(say, LAST_TOKEN),
        "latency_by_minute": latency_by_minute(say),
        "stage_quantiles": stage_quantiles(say),
        "slow_ttft_stages": slow_stages(say, TTFT),
        "slow_e2e_stages": slow_stages(say, E2E),
    }


FLEET: Mapping[str, str] = fleet_queries(DuckDialect())

WEIGHTED: Mapping[str, str] = weighted_queries(DuckDialect())

QUERIES: Mapping[str, str] = {
    **FLEET,
    **WEIGHTED,
    "thinned": THINNED,
    **TRACE_QUERIES,
    **PROFILE_QUERIES,
    **BOARD_QUERIES,
    "steps_window": f"""
SELECT * FROM steps WHERE {_SAMPLE_BOUNDS}
    AND ($engine IS NULL OR engine = $engine)
ORDER BY t_ns, run_id, engine""",
    "signals_window": f"""
SELECT * FROM signals WHERE {_SAMPLE_BOUNDS}
    AND ($source IS NULL OR source = $source) AND ($name IS NULL OR name = $name)
ORDER BY t_ns, run_id, source, name""",
    "decisions_window": f"""
SELECT d.record, r.engine, r.dispatched, r.sent, r.last_token, r.api_recv, r.first_token, r.exactness, r.wall_ns,
    {WEIGHT.replace("weight", "r.weight")} AS weight
FROM decisions d JOIN requests r ON d.id = r.id AND d.run_id = r.run_id
WHERE {_REQUEST_BOUNDS.replace("run_id", "r.run_id").replace("$r.run_id", "$run_id")}
ORDER BY r.wall_ns, r.id""",
    "facts_all": "SELECT record FROM facts WHERE ($run_id IS NULL OR run_id = $run_id) ORDER BY t_ns, version",
    "decision": "SELECT run_id, record FROM decisions WHERE id = $id",
    "facts_of": "SELECT record FROM facts WHERE ($version IS NULL OR version = $version)",
    "minutes_window": f"""
SELECT * FROM minutes WHERE {_MINUTE_BOUNDS} AND ($stage IS NULL OR stage = $stage)
ORDER BY minute_wall_ns, model, engine, arm, stage""",
    "outcomes_minutes_window": f"""
SELECT minute_wall_ns, model, engine, arm, outcome, status, sum(n)::BIGINT AS n, sum(prompt_tokens)::BIGINT AS prompt_tokens,
    sum(output_tokens)::BIGINT AS output_tokens, sum(cached_tokens)::BIGINT AS cached_tokens
FROM outcomes_minutes WHERE {_MINUTE_BOUNDS}
GROUP BY ALL ORDER BY minute_wall_ns, model, engine, arm, outcome, status""",
    "trace_sightings": "SELECT * FROM sightings WHERE trace_id = $trace_id ORDER BY source",
    "sightings_window": f"""
SELECT * FROM sightings WHERE trace_id IN (SELECT trace_id FROM requests WHERE {_REQUEST_BOUNDS}) ORDER BY trace_id, source""",
}


_WORD = re.compile(r"[a-z_]+")


def weighted_of(query: str) -> str:
    """The query to ask instead where rows stand for several requests; '' when it is the same."""
    name = query + SUFFIX
    return name if name in WEIGHTED else ""


def parameters_of(query: str) -> frozenset[str]:
    """Names of the parameters of a named query.

    Raises:
        BugError: there is no query of that name.

    """
    if query not in QUERIES:
        raise BugError(
            f"there is no query named {query!r}",
            field="query",
            value=query,
            hint=f"one of {', '.join(QUERIES)}",
        )
    return frozenset(PARAMETER.findall(QUERIES[query]))


def tables_of(query: str) -> list[str]:
    """Names of the tables a named query is about."""
    words = set(_WORD.findall(QUERIES[query]))
    return [table for table in TABLES if table in words]
