"""Named queries that cut requests into stages, as SQL of either dialect.

A stage of a request counts where both its ends were seen and its time is not negative.  TTFT is `first_token - api_recv`, end to end is
`sent - api_recv`.  What the stages of a request do not explain (points nobody saw merge the stages around them) is `unattributed`, so
the rows of `slow_ttft_stages` add up to the whole.  The slowest are those at or above the quantile `1 - 1 %` of the same model and
engine selection; means add and percentiles do not, so shares are of means.  All of it is about the rows that are kept: where an environment keeps a
share of the ordinary ones (`telemetry.thinning`), the slow are over-represented here, and the figures of minutes speak for all.

Deliberately absent: confidence intervals and which stages were merged (`diagnose.decompose`, over rows).
"""

# ruff: noqa: S608 - the pieces put together are constants of this file

from sits.core.breakpoints import API_RECV, FIRST_TOKEN, NAMES, SENT, STAGES
from sits.telemetry.dialects import Dialect, Field

BOUNDS = """
    ($run_id IS NULL OR run_id = $run_id)
    AND ($since_wall_ns IS NULL OR wall_ns >= $since_wall_ns)
    AND ($until_wall_ns IS NULL OR wall_ns < $until_wall_ns)
    AND ($model IS NULL OR model = $model)
    AND ($engine IS NULL OR engine = $engine)"""

WEIGHT = "CASE WHEN weight > 0 THEN weight ELSE 1 END"
"""SQL of how many requests a row stands for: more than one where the store keeps a share of them, one where a file says nothing."""

LEVELS = (0.50, 0.95, 0.99)

TTFT, E2E = "ttft", "e2e"
SPANS: tuple[tuple[str, int, int], ...] = (
    *((stage, i, i + 1) for i, stage in enumerate(STAGES)),
    (TTFT, API_RECV, FIRST_TOKEN),
    (E2E, API_RECV, SENT),
)
"""Every time that has quantiles: its name, the point it begins at and the point it ends at."""


def seen(point: int) -> str:
    """SQL that says whether the row has this point."""
    return f"substring(exactness, {point + 1}, 1) <> '0'"


def took(start: int, end: int) -> str:
    """SQL of the ns between two points."""
    return f"({NAMES[end]} - {NAMES[start]})"


def both(start: int, end: int) -> str:
    """SQL that says whether the row has this time."""
    return f"{seen(start)} AND {seen(end)} AND {NAMES[end]} >= {NAMES[start]}"


def stage_quantiles(say: Dialect) -> str:
    """Count, mean and exact quantiles of every stage, of TTFT and of the whole, by model and engine."""
    cut = ",\n    ".join(
        f"CASE WHEN {both(start, end)} THEN {took(start, end)} END AS d{i}"
        for i, (_, start, end) in enumerate(SPANS)
    )
    wide = ",\n    ".join(
        f"count(d{i}) AS n{i}, sum(d{i}) AS s{i}, {say.quantiles(f'd{i}', LEVELS)} AS q{i}"
        for i in range(len(SPANS))
    )
    rows = [
        [
            Field("stage", f"'{name}'"),
            Field("position", f"{i}"),
            Field("n", f"n{i}"),
            Field("mean_ms", f"CASE WHEN n{i} > 0 THEN s{i} / n{i} / 1e6 END"),
            *(
                Field(f"p{level * 100:.0f}_ms", f"CASE WHEN n{i} > 0 THEN q{i}[{k}] / 1e6 END")
                for k, level in enumerate(LEVELS, 1)
            ),
        ]
        for i, (name, _, _) in enumerate(SPANS)
    ]
    return f"""
WITH cut AS (SELECT model, engine,
    {cut}
FROM requests WHERE {BOUNDS} AND outcome = 'completed'),
wide AS (SELECT model, engine,
    {wide}
FROM cut GROUP BY model, engine)
SELECT * FROM ({say.spread(rows, ("model", "engine"), "wide")}) AS made WHERE n > 0
ORDER BY model, engine, position"""


def slow_stages(say: Dialect, metric: str, *, weighted: bool = False) -> str:
    """Mean time of each stage in the slowest 1 % of requests and in all others, and each one's share of the whole.

    `weighted` counts each row as the requests it stands for; the bound is then the least time with more than 99 % of them up to it (DuckDB only).
    """
    end = {TTFT: FIRST_TOKEN, E2E: SENT}[metric]
    stages = range(end)
    cut = ", ".join(f"CASE WHEN {both(i, i + 1)} THEN {took(i, i + 1)} ELSE 0 END AS d{i}" for i in stages)
    whole = f"{took(API_RECV, end)}"
    where = f"{BOUNDS} AND outcome = 'completed' AND {both(API_RECV, end)}"
    rest = "total - (" + " + ".join(f"d{i}" for i in stages) + ")"
    times = " * w" if weighted else ""
    sums = ", ".join(
        f"sum(CASE WHEN slow THEN {sql} ELSE 0 END) AS slow{i}, sum(CASE WHEN slow THEN 0 ELSE {sql} END) AS rest{i}"
        for i, sql in enumerate(
            f"({part}){times}" if weighted else part for part in [*(f"d{i}" for i in stages), rest]
        )
    )
    names = [*STAGES[:end], "unattributed"]
    rows = [
        [
            Field("stage", f"'{name}'"),
            Field("position", f"{i}"),
            Field("slow_n", "slow_n"),
            Field("rest_n", "rest_n"),
            *(
                Field(f"{side}_{what}", f"CASE WHEN {side}_n > 0 THEN {side}{i} / {of}{unit} END")
                for side in ("slow", "rest")
                for what, of, unit in (("mean_ms", f"{side}_n", " / 1e6"), ("share", f"{side}_total", ""))
            ),
        ]
        for i, name in enumerate(names)
    ]
    bound = f"SELECT {say.quantiles(whole, (0.99,))} AS q FROM requests WHERE {where}"
    counts = (
        "count(CASE WHEN slow THEN 1 END) AS slow_n, count(CASE WHEN slow THEN NULL ELSE 1 END) AS rest_n"
    )
    if weighted:
        cut = f"{WEIGHT} AS w, {cut}"
        bound = f"""SELECT [min(t)] AS q FROM (
    SELECT {whole} AS t, sum({WEIGHT}) OVER (ORDER BY {whole}) AS upto, sum({WEIGHT}) OVER () AS n FROM requests WHERE {where}
) AS ranked WHERE upto > 0.99 * n"""
        counts = (
            "sum(CASE WHEN slow THEN w ELSE 0 END) AS slow_n, sum(CASE WHEN slow THEN 0 ELSE w END) AS rest_n"
        )
    return f"""
WITH bound AS ({bound}),
kept AS (SELECT {whole} AS total, {whole} >= q[1] AS slow, {cut} FROM requests, bound WHERE {where}),
sums AS (SELECT {counts},
    sum(CASE WHEN slow THEN total{times} ELSE 0 END) AS slow_total, sum(CASE WHEN slow THEN 0 ELSE total{times} END) AS rest_total, {sums}
FROM kept WHERE {rest} >= 0)
SELECT * FROM ({say.spread(rows, (), "sums")}) AS made WHERE slow_n > 0 ORDER BY position"""


def latency_by_minute(say: Dialect) -> str:
    """TTFT and end-to-end quantiles of every minute, by model and engine."""
    minute = say.minute("wall_ns")
    return f"""
SELECT {minute} AS minute_wall_ns, model, engine, count(*) AS n,
    {_picked(say, FIRST_TOKEN, TTFT)}, {_picked(say, SENT, E2E)}
FROM requests WHERE {BOUNDS} AND outcome = 'completed' AND {both(API_RECV, FIRST_TOKEN)} AND {both(API_RECV, SENT)}
GROUP BY minute_wall_ns, model, engine ORDER BY minute_wall_ns, model, engine"""


def point_quantiles(say: Dialect, point: int) -> str:
    """Count, mean, exact quantiles and maximum of the time from arrival to a point, by model and engine."""
    span = took(API_RECV, point)
    levels = say.quantiles(span, LEVELS)
    return f"""
SELECT model, engine, n, mean_ms, q[1] / 1e6 AS p50_ms, q[2] / 1e6 AS p95_ms, q[3] / 1e6 AS p99_ms, max_ms
FROM (SELECT model, engine, count(*) AS n, avg({span} / 1e6) AS mean_ms, {levels} AS q, max({span} / 1e6) AS max_ms
FROM requests WHERE {BOUNDS} AND outcome = 'completed' AND {seen(API_RECV)} AND {seen(point)}
GROUP BY model, engine) AS made ORDER BY model, engine"""


def _picked(say: Dialect, end: int, name: str) -> str:
    return ", ".join(
        f"{say.quantiles(took(API_RECV, end), (level,))}[1] / 1e6 AS {name}_p{level * 100:.0f}_ms"
        for level in LEVELS
    )
