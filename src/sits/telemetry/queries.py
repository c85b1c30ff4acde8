"""The named queries: everything anybody asks of the store, in one place.

A query names its tables (`requests`, `steps`, `signals`) and its parameters (`$name`); a parameter left out is NULL
and then does not restrict.  Bounds are half open: `since <= x < until`.  `*_wall_ns` are wall-clock ns since the epoch
(display clock), `start_ns` and `end_ns` monotonic ns of the run.  Latency quantiles are over completed requests whose
two points were both seen.

Deliberately absent: SQL anywhere else.
"""

# ruff: noqa: S608 - the pieces put together are constants of this file

import re
from collections.abc import Mapping

from sits.core.breakpoints import API_RECV, FIRST_TOKEN, LAST_TOKEN
from sits.core.errors import BugError

_REQUEST_BOUNDS = """
    ($run_id IS NULL OR run_id = $run_id)
    AND ($since_wall_ns IS NULL OR wall_ns >= $since_wall_ns)
    AND ($until_wall_ns IS NULL OR wall_ns < $until_wall_ns)"""

_SAMPLE_BOUNDS = """
    ($run_id IS NULL OR run_id = $run_id)
    AND ($start_ns IS NULL OR t_ns >= $start_ns)
    AND ($end_ns IS NULL OR t_ns < $end_ns)"""


def _quantiles(point: int, column: str) -> str:
    took = f"({column} - api_recv) / 1e6"
    return f"""
SELECT model, engine, count(*) AS n, avg({took}) AS mean_ms,
    quantile_cont({took}, 0.50) AS p50_ms, quantile_cont({took}, 0.95) AS p95_ms,
    quantile_cont({took}, 0.99) AS p99_ms, max({took}) AS max_ms
FROM requests
WHERE {_REQUEST_BOUNDS}
    AND outcome = 'completed' AND exactness[{API_RECV + 1}] <> '0' AND exactness[{point + 1}] <> '0'
GROUP BY model, engine ORDER BY model, engine"""


QUERIES: Mapping[str, str] = {
    "runs": """
SELECT run_id, count(*) AS requests, min(wall_ns) AS first_wall_ns, max(wall_ns) AS last_wall_ns,
    min(CASE WHEN api_recv > 0 THEN api_recv END) AS start_ns,
    max(greatest(api_recv, first_token, last_token, sent)) AS end_ns
FROM requests GROUP BY run_id ORDER BY first_wall_ns, run_id""",
    "requests_window": f"SELECT * FROM requests WHERE {_REQUEST_BOUNDS} ORDER BY wall_ns, run_id, id",
    "steps_window": f"""
SELECT * FROM steps WHERE {_SAMPLE_BOUNDS}
    AND ($engine IS NULL OR engine = $engine)
ORDER BY t_ns, run_id, engine""",
    "signals_window": f"""
SELECT * FROM signals WHERE {_SAMPLE_BOUNDS}
    AND ($source IS NULL OR source = $source) AND ($name IS NULL OR name = $name)
ORDER BY t_ns, run_id, source, name""",
    "decisions_window": f"""
SELECT d.record, r.engine, r.dispatched, r.sent, r.last_token, r.api_recv, r.first_token, r.exactness, r.wall_ns
FROM decisions d JOIN requests r ON d.id = r.id AND d.run_id = r.run_id
WHERE {_REQUEST_BOUNDS.replace("run_id", "r.run_id").replace("$r.run_id", "$run_id")}
ORDER BY r.wall_ns, r.id""",
    "facts_all": "SELECT record FROM facts WHERE ($run_id IS NULL OR run_id = $run_id) ORDER BY t_ns, version",
    "decision": "SELECT run_id, record FROM decisions WHERE id = $id",
    "facts_of": "SELECT record FROM facts WHERE ($version IS NULL OR version = $version)",
    "request": "SELECT * FROM requests WHERE id = $id",
    "outcomes": f"""
SELECT outcome, status, detail, count(*) AS n FROM requests WHERE {_REQUEST_BOUNDS}
GROUP BY outcome, status, detail ORDER BY n DESC, outcome, status, detail""",
    "ttft_quantiles": _quantiles(FIRST_TOKEN, "first_token"),
    "e2e_quantiles": _quantiles(LAST_TOKEN, "last_token"),
}

_PARAMETER = re.compile(r"\$([a-z_]+)")


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
    return frozenset(_PARAMETER.findall(QUERIES[query]))
