"""How the two databases that answer our named queries say the same thing differently.

DuckDB reads the store's own tables.  ClickHouse reads `otel_traces` (`telemetry.clickhouse`), of which a common table expression makes
the relation `requests` with the same columns, so that only what is here differs: parameters, exact quantiles, several rows from one.
Both interpolate quantiles linearly between neighbours (DuckDB's `quantile_cont`, ClickHouse's `quantilesExactInclusive`).

Deliberately absent: the queries.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple, Protocol

PARAMETER = re.compile(r"\$([a-z_]+)")


class Field(NamedTuple):
    """A column of a spread row: the SQL of its value."""

    name: str
    sql: str


class Dialect(Protocol):
    """What a query needs said in the database's own way.

    Attributes:
        weighs: whether quantiles count rows for as many as they stand for, where any row of the query does; elsewhere that is another query.

    """

    weighs: bool

    def quantiles(
        self, value: str, levels: Sequence[float], weight: str, heaviest: str, more: float = 0.0
    ) -> str:
        """An array of exact quantiles of `value` over the rows where it is not NULL.

        `weight` is SQL of a row's weight as a whole number in thousandths, `heaviest` a select of the greatest there is; `more` is added to the
        levels where weights count.
        """

    def spread(self, rows: Sequence[Sequence[Field]], keys: Sequence[str], source: str) -> str:
        """A select of one row for each of `rows` from each row of `source`, with the columns `keys` before."""

    def minute(self, wall_ns: str) -> str:
        """The first ns of the minute of a wall-clock time."""

    def finished(self, sql: str) -> str:
        """`sql` as the database takes it."""


class DuckDialect:
    """DuckDB, over the tables of the store.  It has no weighted quantiles: see `weighted_queries`."""

    weighs = False

    def quantiles(  # noqa: D102 - see the protocol
        self, value: str, levels: Sequence[float], weight: str, heaviest: str, more: float = 0.0
    ) -> str:
        return f"quantile_cont({value}, [{', '.join(map(str, levels))}])"

    def spread(self, rows: Sequence[Sequence[Field]], keys: Sequence[str], source: str) -> str:  # noqa: D102
        made = ", ".join("{" + ", ".join(f"'{name}': {sql}" for name, sql in row) + "}" for row in rows)
        before = "".join(f"{key}, " for key in keys)
        return f"SELECT {before}unnest(row) FROM (SELECT {before}unnest([{made}]) AS row FROM {source})"  # noqa: S608

    def minute(self, wall_ns: str) -> str:  # noqa: D102
        return f"({wall_ns} - {wall_ns} % 60000000000)"

    def finished(self, sql: str) -> str:  # noqa: D102
        return sql


class ClickDialect:
    """ClickHouse, over `requests`, a relation that `source` (the text of a CTE) makes of `otel_traces`."""

    weighs = True

    def __init__(self, source: str) -> None:
        self._source = source

    def quantiles(  # noqa: D102
        self, value: str, levels: Sequence[float], weight: str, heaviest: str, more: float = 0.0
    ) -> str:
        asked = ", ".join(map(str, levels))
        steps = f"quantilesExactWeighted({', '.join(str(level + more) for level in levels)})({value}, toUInt64({weight}))"
        between = f"quantilesExactInclusive({asked})({value})"
        return f"arrayMap(x -> toFloat64(x), if(({heaviest}) > 1000, arrayMap(x -> toFloat64(x), {steps}), {between}))"

    def spread(self, rows: Sequence[Sequence[Field]], keys: Sequence[str], source: str) -> str:  # noqa: D102
        made = ", ".join("tuple(" + ", ".join(sql for _, sql in row) + ")" for row in rows)
        before = "".join(f"{key}, " for key in keys)
        named = ", ".join(f"spread.{i} AS {field.name}" for i, field in enumerate(rows[0], 1))
        return f"SELECT {before}{named} FROM (SELECT {before}arrayJoin([{made}]) AS spread FROM {source})"  # noqa: S608

    def minute(self, wall_ns: str) -> str:  # noqa: D102
        return f"({wall_ns} - {wall_ns} % 60000000000)"

    def finished(self, sql: str) -> str:  # noqa: D102
        typed = PARAMETER.sub(lambda m: f"{{{m[1]}:Nullable({_type(m[1])})}}", sql)
        body = typed.strip()
        begun = body.removeprefix("WITH ")
        return f"WITH {self._source}{', ' if begun != body else ' '}{begun}"


def _type(parameter: str) -> str:
    return "Int64" if parameter.endswith("_ns") or parameter in {"limit", "version"} else "String"
