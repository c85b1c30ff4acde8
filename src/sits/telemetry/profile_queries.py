"""Named queries of profiles: those of a window, and how long each request took, by trace (part of `telemetry.queries`).

Deliberately absent: what is inside a profile; SQL does not look into pprof.
"""

from collections.abc import Mapping

from sits.core.breakpoints import API_RECV, SENT

PROFILE_QUERIES: Mapping[str, str] = {
    "profiles_window": """
SELECT * FROM profiles
WHERE ($run_id IS NULL OR run_id = $run_id) AND ($process IS NULL OR process = $process)
    AND ($since_wall_ns IS NULL OR wall_ns + duration_ns > $since_wall_ns)
    AND ($until_wall_ns IS NULL OR wall_ns < $until_wall_ns)
ORDER BY wall_ns, process""",
    "request_spans": f"""
SELECT CASE WHEN trace_id IS NULL OR trace_id = '' THEN id ELSE trace_id END AS trace, sent - api_recv AS span_ns,
    CASE WHEN weight > 0 THEN weight ELSE 1.0 END AS weight
FROM requests
WHERE ($run_id IS NULL OR run_id = $run_id) AND ($since_wall_ns IS NULL OR wall_ns >= $since_wall_ns)
    AND ($until_wall_ns IS NULL OR wall_ns < $until_wall_ns)
    AND outcome = 'completed' AND exactness[{API_RECV + 1}] <> '0' AND exactness[{SENT + 1}] <> '0'""",  # noqa: S608
}
"""`weight`: how many finished requests a row stands for (`policy.sample`)."""
