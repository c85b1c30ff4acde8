"""The named queries of boards: a window cut into steps, all at once, and what few rows a page shows of single requests.

`board_minutes` gives, for each step and stage, the histograms of its minutes (`telemetry.histograms`), to be summed by the reader.
`board_rows` gives the points of the newest requests, at most `limit`: what minutes do not have yet, and what they do not tell apart (tenants).
`board_groups` and the two after it tell the same by model, engine and arm, over all steps.

`board_changes` gives the lines of the log that tell of the gateway and its engines, not of requests.

Deliberately absent: running them, and figures (`app.board`).
"""

# ruff: noqa: S608 - the pieces put together are constants of this file

from collections.abc import Mapping

from sits.core.breakpoints import NAMES
from sits.policy.outcome import QUOTA, SERVER_ERROR, TOO_MANY
from sits.telemetry.dialects import DuckDialect
from sits.telemetry.stage_queries import BOUNDS, E2E, TTFT, slow_stages

_MINUTES = """
    minute_wall_ns >= $since_wall_ns AND minute_wall_ns < $until_wall_ns
    AND ($model IS NULL OR model = $model) AND ($engine IS NULL OR engine = $engine)"""
_STEP = "((minute_wall_ns - $since_wall_ns) // $step_ns)::INTEGER AS step"
_ROWS = f"{BOUNDS}\n    AND ($tenant IS NULL OR tenant = $tenant)"
_OVER = (
    f"wall_ns + CASE WHEN api_recv > 0 THEN greatest(0, greatest({', '.join(NAMES)}) - api_recv) ELSE 0 END"
)


def _took(end: str) -> str:
    """Nanoseconds from a completed request's arrival to a point, where both were seen; -1 else."""
    seen = " AND ".join(
        f"substr(exactness, {NAMES.index(name) + 1}, 1) IN ('1', '2', '3')" for name in ("api_recv", end)
    )
    return f"CASE WHEN outcome = 'completed' AND {seen} THEN {end} - api_recv ELSE -1 END"


_LISTED = "id, trace_id, tenant, model, engine, outcome, status, detail, wall_ns, api_recv, first_token, last_token, sent, exactness, prompt_tokens, output_tokens"

BOARD_QUERIES: Mapping[str, str] = {
    "board_minutes": f"""
SELECT {_STEP}, stage, sum(n)::BIGINT AS n, sum(sum_ns) AS sum_ns, list(histogram) AS histograms
FROM minutes WHERE {_MINUTES} AND ($stage IS NULL OR stage = $stage) GROUP BY step, stage ORDER BY step, stage""",
    "board_outcomes": f"""
SELECT {_STEP}, outcome, status, sum(n)::BIGINT AS n, sum(output_tokens)::BIGINT AS output_tokens
FROM outcomes_minutes WHERE {_MINUTES} GROUP BY step, outcome, status ORDER BY step, outcome, status""",
    "board_newest_minute": """
SELECT max(minute_wall_ns) AS minute_wall_ns FROM outcomes_minutes WHERE minute_wall_ns >= $since_wall_ns
HAVING count(*) > 0""",
    "board_rows": f"""
SELECT wall_ns, outcome, status, detail, output_tokens, weight, {", ".join(NAMES)}, exactness
FROM requests WHERE {_ROWS} AND ($over_wall_ns IS NULL OR {_OVER} >= $over_wall_ns)
ORDER BY wall_ns DESC LIMIT $limit""",
    "board_groups": f"""
SELECT model, engine, arm, list(histogram) AS histograms FROM minutes WHERE {_MINUTES} AND stage = $stage
GROUP BY model, engine, arm ORDER BY model, engine, arm""",
    "board_group_outcomes": f"""
SELECT model, engine, arm, outcome, status, sum(n)::BIGINT AS n FROM outcomes_minutes WHERE {_MINUTES}
GROUP BY model, engine, arm, outcome, status ORDER BY model, engine, arm, outcome, status""",
    "board_group_rows": f"""
SELECT model, engine, arm, tenant, outcome, status, detail, weight, {_OVER} AS over_wall_ns,
    {_took("first_token")} AS ttft_ns, {_took("sent")} AS e2e_ns
FROM requests WHERE {_ROWS} AND ($over_wall_ns IS NULL OR {_OVER} >= $over_wall_ns)
ORDER BY wall_ns DESC LIMIT $limit""",
    "board_changes": """
SELECT wall_ns, level, event, line FROM logs
WHERE wall_ns >= $since_wall_ns AND wall_ns < $until_wall_ns AND request_id = '' AND NOT starts_with(event, ' ')
    AND (process = 'supervisor' OR starts_with(event, 'breaker ') OR starts_with(event, 'shift: '))
ORDER BY wall_ns DESC, event LIMIT $limit""",
    "board_names": """
SELECT 'tenant' AS kind, tenant AS name, count(*) AS n FROM requests WHERE wall_ns >= $since_wall_ns GROUP BY tenant
ORDER BY n DESC, name LIMIT 200""",
    "board_newest": """
SELECT max(wall_ns) AS wall_ns FROM requests
WHERE ($since_wall_ns IS NULL OR wall_ns >= $since_wall_ns) AND ($until_wall_ns IS NULL OR wall_ns < $until_wall_ns) HAVING count(*) > 0""",
    "board_first": """
SELECT min(wall_ns) AS wall_ns FROM requests WHERE wall_ns >= $since_wall_ns AND wall_ns < $until_wall_ns HAVING count(*) > 0""",
    "board_slowest": f"""
SELECT {_LISTED} FROM requests WHERE {_ROWS} AND outcome = 'completed'
ORDER BY CASE WHEN $metric = 'ttft' THEN first_token ELSE sent END - api_recv DESC, wall_ns, id LIMIT $limit""",
    "board_failed": f"""
SELECT {_LISTED} FROM requests WHERE {_ROWS} AND (outcome = 'failed'
    OR (outcome = 'refused' AND (status >= {SERVER_ERROR} OR (status = {TOO_MANY} AND NOT starts_with(detail, '{QUOTA}')))))
ORDER BY wall_ns DESC, id LIMIT $limit""",
    "board_tail_ttft": slow_stages(DuckDialect(), TTFT).replace(BOUNDS, _ROWS),
    "board_tail_e2e": slow_stages(DuckDialect(), E2E).replace(BOUNDS, _ROWS),
    "board_tail_ttft_weighted": slow_stages(DuckDialect(), TTFT, weighted=True).replace(BOUNDS, _ROWS),
    "board_tail_e2e_weighted": slow_stages(DuckDialect(), E2E, weighted=True).replace(BOUNDS, _ROWS),
    "board_thinned": f"""
SELECT coalesce(max(weight) > 1, false) AS thinned FROM requests WHERE {_ROWS} HAVING count(*) > 0""",
    "board_request": f"""
SELECT * FROM requests WHERE {BOUNDS} AND (id = $id OR trace_id = $id) ORDER BY wall_ns DESC, id LIMIT 20""",
    "board_ids": """
SELECT id, wall_ns FROM requests WHERE starts_with(id, $prefix) OR starts_with(trace_id, $prefix) ORDER BY wall_ns DESC, id LIMIT 20""",
    "board_signals": """
SELECT source, name, max_by(value, t_ns) AS value, max(t_ns) AS t_ns FROM signals
WHERE t_ns >= $start_ns AND list_contains(string_split($names, ','), name) GROUP BY source, name""",
    "board_matrix_requests": f"""
SELECT * FROM requests WHERE {_ROWS} AND outcome = 'completed'""",
}
