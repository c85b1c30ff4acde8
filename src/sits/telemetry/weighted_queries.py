"""The named queries of quantiles where rows stand for different numbers of requests, for DuckDB, which has no weighted quantiles.

Each is named after the one it stands in for (`stage_quantiles_weighted`), has its parameters and columns, and is asked by the store in its place where a
row that is asked for stands for several requests: values of a group are put in order, weights added up, and the quantile is the first value at which
the sum reaches its share.  That costs several times what `quantile_cont` does; indexes (`telemetry.indexed`) answer without either.

Deliberately absent: the definition (`telemetry.stage_queries`).
"""

# ruff: noqa: S608 - the pieces put together are constants of this file

from collections.abc import Mapping, Sequence

from sits.core.breakpoints import API_RECV, FIRST_TOKEN, LAST_TOKEN, SENT
from sits.telemetry.dialects import Dialect
from sits.telemetry.stage_queries import (
    BOUNDS,
    E2E,
    LEVELS,
    SPANS,
    THOUSANDTHS,
    TTFT,
    WHOLE,
    both,
    seen,
    share_of,
    slow_stages,
    took,
)

SUFFIX = "_weighted"

THINNED = f"""
SELECT coalesce(max(weight) > 1, false) AS thinned FROM requests WHERE {BOUNDS} AND outcome = 'completed' HAVING count(*) > 0"""


def weighted_queries(say: Dialect) -> Mapping[str, str]:
    """The queries by name."""
    found = {
        "stage_quantiles": _stage_quantiles(),
        "ttft_quantiles": _point_quantiles(FIRST_TOKEN),
        "e2e_quantiles": _point_quantiles(LAST_TOKEN),
        "latency_by_minute": _latency_by_minute(say),
        "slow_ttft_stages": slow_stages(say, TTFT, weighted=True),
        "slow_e2e_stages": slow_stages(say, E2E, weighted=True),
    }
    return {f"{name}{SUFFIX}": sql for name, sql in found.items()}


def _ranked(keys: Sequence[str], long: str) -> str:
    """For each of `keys`: weight, mean and quantiles in ns of `d` weighted by `w`, as the select `long` has them."""
    by = ", ".join(keys)
    quantiles = ", ".join(
        f"min(CASE WHEN upto >= {share_of('total', level)} THEN d END) / 1e6 AS p{level * 100:.0f}_ms"
        for level in LEVELS
    )
    return f"""
SELECT {by}, CAST(floor(max(total) / {WHOLE} + 0.5) AS BIGINT) AS n, sum(CAST(d AS DOUBLE) * w) / max(total) / 1e6 AS mean_ms, {quantiles},
    max(d) / 1e6 AS max_ms
FROM (SELECT {by}, d, w, sum(w) OVER (PARTITION BY {by} ORDER BY d) AS upto, sum(w) OVER (PARTITION BY {by}) AS total
    FROM (SELECT {by}, d, sum(w) AS w FROM ({long}) AS long WHERE d IS NOT NULL GROUP BY {by}, d) AS each) AS ranked
GROUP BY {by}"""


def _stage_quantiles() -> str:
    cut = ", ".join(
        f"{{'stage': '{name}', 'position': {i}, 'd': CASE WHEN {both(start, end)} THEN {took(start, end)} END}}"
        for i, (name, start, end) in enumerate(SPANS)
    )
    long = f"SELECT model, engine, {THOUSANDTHS} AS w, unnest([{cut}], recursive := true) FROM requests WHERE {BOUNDS} AND outcome = 'completed'"
    keys = ("model", "engine", "stage", "position")
    return (
        f"""SELECT * EXCLUDE (max_ms) FROM ({_ranked(keys, long)}) AS made ORDER BY model, engine, position"""
    )


def _point_quantiles(point: int) -> str:
    where = f"{BOUNDS} AND outcome = 'completed' AND {seen(API_RECV)} AND {seen(point)}"
    long = (
        f"SELECT model, engine, {THOUSANDTHS} AS w, {took(API_RECV, point)} AS d FROM requests WHERE {where}"
    )
    return f"SELECT * FROM ({_ranked(('model', 'engine'), long)}) AS made ORDER BY model, engine"


def _latency_by_minute(say: Dialect) -> str:
    where = f"{BOUNDS} AND outcome = 'completed' AND {both(API_RECV, FIRST_TOKEN)} AND {both(API_RECV, SENT)}"
    keys = ("minute_wall_ns", "model", "engine")
    ends = {TTFT: FIRST_TOKEN, E2E: SENT}
    made = {
        name: _ranked(
            keys,
            f"SELECT {say.minute('wall_ns')} AS minute_wall_ns, model, engine, {THOUSANDTHS} AS w, {took(API_RECV, end)} AS d FROM requests WHERE {where}",
        )
        for name, end in ends.items()
    }
    picked = ", ".join(
        f"{name}.p{level * 100:.0f}_ms AS {name}_p{level * 100:.0f}_ms" for name in made for level in LEVELS
    )
    return f"""SELECT minute_wall_ns, model, engine, {TTFT}.n, {picked}
FROM ({made[TTFT]}) AS {TTFT} JOIN ({made[E2E]}) AS {E2E} USING (minute_wall_ns, model, engine) ORDER BY minute_wall_ns, model, engine"""
