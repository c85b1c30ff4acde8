"""The same questions of a fleet's ClickHouse: our rows as spans in `otel_traces`, and each named query in that dialect.

`TABLE` is the table that the OpenTelemetry Collector's ClickHouse exporter makes (opentelemetry-collector-contrib,
exporter/clickhouseexporter, `traces_table.sql`): one row a span, attributes as text.  A request of ours is one span, known by its
attribute `sits.request_id`:

```
TraceId, ParentSpanId    trace_id, parent_id          Timestamp             wall_ns          Duration, SpanKind        whole request, Server
gen_ai.request.model     model                        http.response.status_code  status      sits.<column>             every other column
sits.bp.<point>          Unix ns of the point         sits.exactness.<point>  derived | sampled; left out: measured
```
What is left out is empty or 0, and 1 for `sits.weight`.  `telemetry.otlp.emitted` writes these spans; those it writes below them are known by the resource's `sits.run_id`
and are no rows.  All other spans are rows of `spans`; their attributes are text there, whatever they were.  Points are wall-clock ns there and monotonic ns in the store: what is computed from them is equal.

Rules: `SOURCE` gives `requests` and `spans` the columns of `telemetry.tables`, so the queries are those of `telemetry.queries`.
Steps, signals, decisions, facts and sightings are no spans: their queries have no answer there.

Deliberately absent: a client (any that takes `{name:Type}` parameters does), and sending spans.
"""

# ruff: noqa: S608 - the pieces put together are constants of this file

from collections.abc import Mapping

from sits.core.breakpoints import NAMES, Exactness
from sits.core.errors import ConfigError
from sits.core.otel_names import HOST, INSTANCE, RUN
from sits.telemetry.dialects import ClickDialect
from sits.telemetry.queries import QUERIES, fleet_queries, parameters_of
from sits.telemetry.tables import REQUESTS

REQUEST_MARK = "sits.request_id"
POINT, EXACTNESS = "sits.bp.", "sits.exactness."

ATTRIBUTES: Mapping[str, str] = {
    "id": REQUEST_MARK,
    "model": "gen_ai.request.model",
    "status": "http.response.status_code",
}
"""Columns of `requests` whose attribute is not `sits.<column>`."""

_ELSEWHERE = {*NAMES, "exactness", "wall_ns", "trace_id", "parent_id"}

_ZSTD, _BLOOM = "CODEC(ZSTD(1))", "TYPE bloom_filter"
_MAP = "Map(LowCardinality(String), String)"
_COLUMNS = {
    "Timestamp": "DateTime64(9) CODEC(Delta, ZSTD(1))",
    **dict.fromkeys(("TraceId", "SpanId", "ParentSpanId", "TraceState"), f"String {_ZSTD}"),
    **dict.fromkeys(("SpanName", "SpanKind", "ServiceName"), f"LowCardinality(String) {_ZSTD}"),
    "ResourceAttributes": f"{_MAP} {_ZSTD}",
    **dict.fromkeys(("ScopeName", "ScopeVersion"), f"String {_ZSTD}"),
    "SpanAttributes": f"{_MAP} {_ZSTD}",
    "Duration": f"UInt64 {_ZSTD}",
    "StatusCode": f"LowCardinality(String) {_ZSTD}",
    "StatusMessage": f"String {_ZSTD}",
    "Events": f"Nested (Timestamp DateTime64(9), Name LowCardinality(String), Attributes {_MAP}) {_ZSTD}",
    "Links": f"Nested (TraceId String, SpanId String, TraceState String, Attributes {_MAP}) {_ZSTD}",
}
_INDEXES = {
    "idx_trace_id": f"TraceId {_BLOOM}(0.001)",
    "idx_res_attr_key": f"mapKeys(ResourceAttributes) {_BLOOM}(0.01)",
    "idx_res_attr_value": f"mapValues(ResourceAttributes) {_BLOOM}(0.01)",
    "idx_span_attr_key": f"mapKeys(SpanAttributes) {_BLOOM}(0.01)",
    "idx_span_attr_value": f"mapValues(SpanAttributes) {_BLOOM}(0.01)",
    "idx_duration": "Duration TYPE minmax",
}

TABLE = "CREATE TABLE IF NOT EXISTS otel_traces (\n    {}\n) ENGINE = MergeTree\n{}".format(
    ",\n    ".join(
        [f"{name} {kind}" for name, kind in _COLUMNS.items()]
        + [f"INDEX {name} {what} GRANULARITY 1" for name, what in _INDEXES.items()]
    ),
    "PARTITION BY toDate(Timestamp) ORDER BY (ServiceName, SpanName, toDateTime(Timestamp))\n"
    "SETTINGS index_granularity = 8192, ttl_only_drop_parts = 1",
)


def attribute_of(column: str) -> str:
    """The span attribute that holds a column of `requests`.

    >>> attribute_of("model"), attribute_of("tenant")
    ('gen_ai.request.model', 'sits.tenant')
    """
    return ATTRIBUTES.get(column, f"sits.{column}")


_READ = {
    "VARCHAR": "{}",
    "BIGINT": "toInt64OrZero({})",
    "INTEGER": "toInt32OrZero({})",
    "DOUBLE": "toFloat64OrZero({})",
}


def _column(name: str, kind: str) -> str:
    if name == "trace_id":
        return "TraceId AS trace_id"
    if name == "parent_id":
        return "ParentSpanId AS parent_id"
    if name == "wall_ns":
        return "toUnixTimestamp64Nano(Timestamp) AS wall_ns"
    if name == "exactness":
        return f"{_DIGITS} AS exactness"
    key = POINT + name if name in NAMES else attribute_of(name)
    value = f"SpanAttributes['{key}']"
    if name == "weight":
        return f"if(mapContains(SpanAttributes, '{key}'), toFloat64OrZero({value}), 1) AS weight"
    return f"{_READ[kind].format(value)} AS {name}"


_TOLD = [how for how in Exactness if how]
_WORDS = ", ".join(f"'{how.name.lower()}'" for how in _TOLD)
_NUMBERS = ", ".join(f"'{int(how)}'" for how in _TOLD)
_DIGITS = "concat({})".format(
    ", ".join(
        f"if(mapContains(SpanAttributes, '{POINT}{point}'), "
        f"transform(SpanAttributes['{EXACTNESS}{point}'], [{_WORDS}], [{_NUMBERS}], '{int(Exactness.MEASURED)}'), '0')"
        for point in NAMES
    )
)

_INSTANCE = "coalesce({}, '')".format(
    ", ".join(f"nullIf(ResourceAttributes['{key}'], '')" for key in (INSTANCE, HOST))
)
_SOURCE = f"concat(if(ServiceName = '', 'unknown_service', ServiceName), if({_INSTANCE} = '', '', concat('@', {_INSTANCE})))"
"""Who sent a span, as `otlp.received.whose` names it."""

SOURCE = f"""requests AS (SELECT {", ".join(_column(name, kind) for name, kind in REQUESTS.items())}
FROM otel_traces WHERE mapContains(SpanAttributes, '{REQUEST_MARK}')),
spans AS (SELECT '' AS run_id, TraceId AS trace_id, SpanId AS span_id, ParentSpanId AS parent_id, {_SOURCE} AS service,
    SpanName AS name, upper(replaceOne(SpanKind, 'SPAN_KIND_', '')) AS kind, toUnixTimestamp64Nano(Timestamp) AS start_wall_ns,
    toUnixTimestamp64Nano(Timestamp) + toInt64(Duration) AS end_wall_ns,
    concat(upper(replaceOne(StatusCode, 'STATUS_CODE_', '')), if(StatusMessage = '', '', concat(': ', StatusMessage))) AS status,
    toJSONString(SpanAttributes) AS attributes
FROM otel_traces WHERE NOT mapContains(SpanAttributes, '{REQUEST_MARK}') AND NOT mapContains(ResourceAttributes, '{RUN}'))"""
"""Common table expressions that make our relations of `otel_traces`."""

_CLICK = ClickDialect(SOURCE)

FLEET: Mapping[str, str] = {name: _CLICK.finished(sql) for name, sql in fleet_queries(_CLICK).items()}


def query(name: str, dialect: str) -> str:
    """The text of a named query in `duckdb` or `clickhouse`, for pasting elsewhere.

    Raises:
        ConfigError: no such dialect, or no answer in it.
        BugError: no such query.

    """
    parameters_of(name)
    if dialect == "duckdb":
        return QUERIES[name].strip()
    if dialect != "clickhouse":
        raise ConfigError(
            f"there is no dialect {dialect!r}", field="dialect", value=dialect, hint="duckdb or clickhouse"
        )
    if name not in FLEET:
        raise ConfigError(
            f"query {name} asks of more than requests and spans, and otel_traces holds no more",
            field="query",
            value=name,
            hint=f"there are {', '.join(FLEET)}",
        )
    return FLEET[name]
