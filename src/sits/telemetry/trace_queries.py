"""The named queries of single traces and of what went wrong downstream of what: pieces of `telemetry.queries`.

`upstream_failures` puts side by side what callers got (a 502, 503 or 504 of ours, a span of a service that ended in an error) and the engine
failure behind it.  The failure is looked for in the same trace first; an answer that only says that no engine is up has none there, because
the breaker was open: then it is the failure at an engine of the same model that ended last before it, within `BEFORE_NS`, and `how`
says `breaker` instead of `trace`.  What opened a breaker may be a first try that was made good at another engine: no row has it, a line
of the log does (`logs.ATTEMPT`), and `how` says `mended`.  An answer that is its own failure says `itself`.

Deliberately absent: running them.
"""

# ruff: noqa: S608 - the pieces put together are constants of this file

from collections.abc import Mapping

from sits.core.units import SECOND
from sits.telemetry.logs import ATTEMPT

BEFORE_NS = 60 * SECOND
"""How much older the failure may be that an open breaker is put down to."""

FOUND_MAX = 200

AROUND_MAX = 5000
"""Requests near a trace that clocks are compared over."""

_FAILED = "(outcome = 'failed' AND starts_with(detail, 'engine'))"
_ENDED = "wall_ns + CASE WHEN api_recv > 0 AND sent > api_recv THEN sent - api_recv ELSE 0 END"
_TRACE = "CASE WHEN coalesce(trace_id, '') = '' THEN id ELSE trace_id END AS trace_id"


def _window(at: str) -> str:
    return f"($since_wall_ns IS NULL OR {at} >= $since_wall_ns) AND ($until_wall_ns IS NULL OR {at} < $until_wall_ns)"


TRACE_QUERIES: Mapping[str, str] = {
    "ids_like": f"""
SELECT DISTINCT trace_id FROM (
    SELECT {_TRACE} FROM requests WHERE starts_with(id, $prefix) OR starts_with(trace_id, $prefix)
    UNION ALL SELECT trace_id FROM spans WHERE starts_with(trace_id, $prefix) OR starts_with(span_id, $prefix)
    UNION ALL SELECT trace_id FROM logs WHERE starts_with(trace_id, $prefix) OR starts_with(request_id, $prefix)
) WHERE trace_id <> '' ORDER BY trace_id LIMIT {FOUND_MAX}""",
    "trace_logs": """
SELECT * FROM logs WHERE trace_id = $trace_id
    OR (request_id <> '' AND request_id IN (SELECT id FROM requests WHERE trace_id = $trace_id OR id = $trace_id))
ORDER BY wall_ns, line""",
    "logs_window": f"""
SELECT * FROM (
    SELECT * FROM logs WHERE {_window("wall_ns")}
        AND ($trace_id IS NULL OR trace_id = $trace_id) AND ($process IS NULL OR process = $process)
        AND ($levels IS NULL OR list_contains(string_split($levels, ','), level))
    ORDER BY wall_ns DESC, line LIMIT coalesce($limit, 1000)
) ORDER BY wall_ns, line""",
    "requests_around": f"""
SELECT * FROM requests WHERE {_window("wall_ns")}
ORDER BY (coalesce(trace_id, '') = $trace_id OR id = $trace_id) DESC, abs(wall_ns - $at_wall_ns), id LIMIT {AROUND_MAX}""",
    "store_window": """
SELECT count(*) AS requests, count(DISTINCT trace_id) AS traces, min(wall_ns) AS first_wall_ns, max(wall_ns) AS last_wall_ns
FROM requests HAVING count(*) > 0""",
    "upstream_failures": f"""
WITH failures AS (
    SELECT *, row_number() OVER (PARTITION BY trace_id ORDER BY wall_ns, id) AS nth
    FROM (SELECT id, {_TRACE}, wall_ns, {_ENDED} AS ended_wall_ns, engine, model, detail FROM requests WHERE {_FAILED})
),
tries AS (
    SELECT id, trace_id, ended_wall_ns, engine, model, detail, 'breaker' AS how FROM failures
    UNION ALL
    SELECT request_id, trace_id, wall_ns, line ->> '$.engine', line ->> '$.model', substr(event, {len(ATTEMPT) + 1}), 'mended' FROM logs
    WHERE starts_with(event, '{ATTEMPT}') AND json_valid(line)
        AND ($since_wall_ns IS NULL OR wall_ns >= $since_wall_ns - {BEFORE_NS}) AND ($until_wall_ns IS NULL OR wall_ns < $until_wall_ns)
),
answers AS (
    SELECT 'gateway' AS service, id, {_TRACE}, wall_ns, status::VARCHAR AS got, detail, model, {_FAILED} AS failed
    FROM requests WHERE status IN (502, 503, 504) AND {_window("wall_ns")}
    UNION ALL
    SELECT service, span_id, trace_id, end_wall_ns, status, name, '', false FROM spans
    WHERE starts_with(status, 'ERROR') AND {_window("end_wall_ns")}
),
own AS (
    SELECT a.*, f.id AS cause_id, f.trace_id AS cause_trace_id, f.engine, f.detail AS cause,
        CASE WHEN f.id = a.id THEN 'itself' ELSE 'trace' END AS how
    FROM answers a JOIN failures f ON a.trace_id = f.trace_id
    WHERE f.id = a.id OR (f.nth = 1 AND NOT a.failed)
),
closed AS (
    SELECT a.*, f.id AS cause_id, f.trace_id AS cause_trace_id, f.engine, f.detail AS cause, f.how
    FROM (SELECT * FROM answers WHERE detail = 'no_healthy_engine') a ASOF JOIN tries f
        ON a.model = f.model AND a.wall_ns >= f.ended_wall_ns
    WHERE a.wall_ns - f.ended_wall_ns <= {BEFORE_NS} AND a.id NOT IN (SELECT id FROM own)
)
SELECT * FROM (SELECT * FROM own UNION ALL SELECT * FROM closed)
WHERE ($engine IS NULL OR engine = $engine)
ORDER BY wall_ns, trace_id, service, id""",
}
