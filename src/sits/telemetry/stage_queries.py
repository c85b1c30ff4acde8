"""Named queries that cut requests into stages, as SQL of either dialect.

A stage of a request counts where both its ends were seen and its time is not negative.  TTFT is `first_token - api_recv`, end to end is
`sent - api_recv`.  What the stages of a request do not explain (points nobody saw merge the stages around them) is `unattributed`, so
the rows of `slow_ttft_stages` add up to the whole.  The slowest are those at or above the quantile `1 - 1 %` of the same model and
engine selection; means add and percentiles do not, so shares are of means.  Where an environment keeps
a share of the ordinary rows (`telemetry.thinning`), each counts for as many as it stands for: a quantile is then the least time up to which that share
of the weight lies (ClickHouse's `quantileExactWeighted`), over weights in thousandths; where all rows stand for one, it lies between its two
neighbours, as DuckDB's `quantile_cont` has it.  In DuckDB these are two queries (`telemetry.weighted_queries`), of which the store asks the right one.

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

THOUSANDTHS = f"greatest(CAST(1 AS BIGINT), CAST(floor(({WEIGHT}) * 1000 + 0.5) AS BIGINT))"
"""The same as a whole number, in thousandths: sums of those are the same in any order and any database."""

WHOLE = 1000

LEVELS = (0.50, 0.95, 0.99)

SLOW_LEVEL = 0.99

MORE = 1e-13
"""Added to that level where weights count: the slow begin where more than 99 % of the weight lie, so that of a thousand requests ten are slow and not eleven.
Less than what sums of weights differ by, up to a hundred million requests."""

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
    done = f"{BOUNDS} AND outcome = 'completed'"
    heaviest = heaviest_of(done)
    weight = f"{THOUSANDTHS} AS w,\n    " if say.weighs else ""
    wide = ",\n    ".join(
        f"{_count(say, f'd{i}')} AS n{i}, {_mean(say, f'd{i}')} AS m{i}, {say.quantiles(f'd{i}', LEVELS, 'w', heaviest)} AS q{i}"
        for i in range(len(SPANS))
    )
    rows = [
        [
            Field("stage", f"'{name}'"),
            Field("position", f"{i}"),
            Field("n", f"n{i}"),
            Field("mean_ms", f"CASE WHEN n{i} > 0 THEN m{i} / 1e6 END"),
            *(
                Field(f"p{level * 100:.0f}_ms", f"CASE WHEN n{i} > 0 THEN q{i}[{k}] / 1e6 END")
                for k, level in enumerate(LEVELS, 1)
            ),
        ]
        for i, (name, _, _) in enumerate(SPANS)
    ]
    return f"""
WITH cut AS (SELECT model, engine,
    {weight}{cut}
FROM requests WHERE {done}),
wide AS (SELECT model, engine,
    {wide}
FROM cut GROUP BY model, engine)
SELECT * FROM ({say.spread(rows, ("model", "engine"), "wide")}) AS made WHERE n > 0
ORDER BY model, engine, position"""


def slow_stages(say: Dialect, metric: str, *, weighted: bool = False) -> str:
    """Mean time of each stage in the slowest 1 % of requests and in all others, and each one's share of the whole.

    `weighted` counts each row as the requests it stands for, in a database that has it in another query.
    """
    by_weight = weighted or say.weighs
    end = {TTFT: FIRST_TOKEN, E2E: SENT}[metric]
    stages = range(end)
    cut = ", ".join(f"CASE WHEN {both(i, i + 1)} THEN {took(i, i + 1)} ELSE 0 END AS d{i}" for i in stages)
    whole = f"{took(API_RECV, end)}"
    where = f"{BOUNDS} AND outcome = 'completed' AND {both(API_RECV, end)}"
    rest = "total - (" + " + ".join(f"d{i}" for i in stages) + ")"
    sums = ", ".join(
        f"{_summed(sql, 'slow', by_weight)} AS slow{i}, {_summed(sql, 'NOT slow', by_weight)} AS rest{i}"
        for i, sql in enumerate([*(f"d{i}" for i in stages), rest])
    )
    names = [*STAGES[:end], "unattributed"]
    rows = [
        [
            Field("stage", f"'{name}'"),
            Field("position", f"{i}"),
            Field("slow_n", "CAST(floor(slow_w + 0.5) AS BIGINT)"),
            Field("rest_n", "CAST(floor(rest_w + 0.5) AS BIGINT)"),
            *(
                Field(f"{side}_{what}", f"CASE WHEN {side}_w > 0 THEN {side}{i} / {of}{unit} END")
                for side in ("slow", "rest")
                for what, of, unit in (("mean_ms", f"{side}_w", " / 1e6"), ("share", f"{side}_total", ""))
            ),
        ]
        for i, name in enumerate(names)
    ]
    bound = f"SELECT {say.quantiles(whole, (SLOW_LEVEL,), THOUSANDTHS, heaviest_of(where), MORE)} AS q FROM requests WHERE {where}"
    if weighted:
        bound = f"""SELECT [min(t)] AS q FROM (
    SELECT t, sum(w) OVER (ORDER BY t) AS upto, sum(w) OVER () AS n
    FROM (SELECT {whole} AS t, sum({THOUSANDTHS}) AS w FROM requests WHERE {where} GROUP BY t) AS each
) AS ranked WHERE upto >= {share_of("n", SLOW_LEVEL + MORE)}"""
    counts = ", ".join(
        f"{_summed('1', which, by_weight)} AS {name}_w"
        for name, which in (("slow", "slow"), ("rest", "NOT slow"))
    )
    return f"""
WITH bound AS ({bound}),
kept AS (SELECT {whole} AS total, {whole} >= q[1] AS slow, {THOUSANDTHS} AS w, {cut} FROM requests, bound WHERE {where}),
sums AS (SELECT {counts},
    {_summed("total", "slow", by_weight)} AS slow_total, {_summed("total", "NOT slow", by_weight)} AS rest_total, {sums}
FROM kept WHERE {rest} >= 0)
SELECT * FROM ({say.spread(rows, (), "sums")}) AS made WHERE slow_n > 0 ORDER BY position"""


def heaviest_of(where: str) -> str:
    """A select of the greatest weight, in thousandths."""
    return f"SELECT max({THOUSANDTHS}) FROM requests WHERE {where}"


def share_of(weight: str, level: float) -> str:
    """SQL of the weight that a quantile is reached with: in double precision, as all others here have it."""
    return f"ceil(CAST({weight} AS DOUBLE) * CAST({level} AS DOUBLE))"


def _summed(what: str, which: str, by_weight: bool) -> str:
    if by_weight:
        return f"sum(CASE WHEN {which} THEN ({what}) * (w / 1000) ELSE 0 END)"
    return f"sum(CASE WHEN {which} THEN {what} ELSE 0 END)"


def _count(say: Dialect, value: str) -> str:
    """SQL of how many requests have the value."""
    if say.weighs:
        return f"CAST(floor(sum(CASE WHEN {value} IS NULL THEN 0 ELSE w END) / 1000 + 0.5) AS BIGINT)"
    return f"count({value})"


def _mean(say: Dialect, value: str) -> str:
    if say.weighs:
        return f"sum({value} * (w / 1000)) / sum(CASE WHEN {value} IS NULL THEN 0 ELSE w / 1000 END)"
    return f"sum({value}) / count({value})"


def latency_by_minute(say: Dialect) -> str:
    """TTFT and end-to-end quantiles of every minute, by model and engine."""
    where = f"{BOUNDS} AND outcome = 'completed' AND {both(API_RECV, FIRST_TOKEN)} AND {both(API_RECV, SENT)}"
    heaviest = heaviest_of(where)
    picked = ", ".join(
        f"{say.quantiles(name, (level,), 'w', heaviest)}[1] / 1e6 AS {name}_p{level * 100:.0f}_ms"
        for name in (TTFT, E2E)
        for level in LEVELS
    )
    return f"""
SELECT minute_wall_ns, model, engine, {_count(say, TTFT)} AS n, {picked}
FROM (SELECT {say.minute("wall_ns")} AS minute_wall_ns, model, engine, {THOUSANDTHS} AS w,
    {took(API_RECV, FIRST_TOKEN)} AS {TTFT}, {took(API_RECV, SENT)} AS {E2E} FROM requests WHERE {where}) AS cut
GROUP BY minute_wall_ns, model, engine ORDER BY minute_wall_ns, model, engine"""


def point_quantiles(say: Dialect, point: int) -> str:
    """Count, mean, exact quantiles and maximum of the time from arrival to a point, by model and engine."""
    where = f"{BOUNDS} AND outcome = 'completed' AND {seen(API_RECV)} AND {seen(point)}"
    return f"""
SELECT model, engine, n, mean_ms, q[1] / 1e6 AS p50_ms, q[2] / 1e6 AS p95_ms, q[3] / 1e6 AS p99_ms, max_ms
FROM (SELECT model, engine, {_count(say, "d")} AS n, {_mean(say, "d / 1e6")} AS mean_ms,
    {say.quantiles("d", LEVELS, "w", heaviest_of(where))} AS q, max(d / 1e6) AS max_ms
FROM (SELECT model, engine, {THOUSANDTHS} AS w, {took(API_RECV, point)} AS d FROM requests WHERE {where}) AS cut
GROUP BY model, engine) AS made ORDER BY model, engine"""
