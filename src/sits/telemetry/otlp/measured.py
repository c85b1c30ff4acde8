"""The metrics of the conventions, folded from rows: histograms with the bounds the conventions ask for.

| metric | of | from, to |
|---|---|---|
| `gen_ai.server.request.duration` | every finished request | first byte in, answer flushed |
| `gen_ai.server.time_to_first_token` | completed, streamed | first byte in, first token out |
| `gen_ai.server.time_per_output_token` | completed, two tokens or more | (last token - first token) / (output tokens - 1) |
| the caller's duration and tokens, named by version | requests sent to an engine | request written, last token |

Rules: a row counts as many times as it stands for (`weight`), so metrics are those of all requests although rows are thinned; sums are of the
rows' own values times that.  Times are cumulative since the fold began.  Sets of attributes are bounded by `SETS_MAX`, the rest is counted
under `other`.

Source: semantic conventions, `gen-ai-metrics`; opentelemetry-proto `metrics.proto`.

Deliberately absent: exponential histograms (the conventions give bounds), and exemplars.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from sits.core import otel_names as names
from sits.core.breakpoints import API_RECV, DISPATCHED, FIRST_TOKEN, LAST_TOKEN, SENT
from sits.telemetry.otlp.emitted import Row, rows_of
from sits.telemetry.otlp.protobuf import Messages, write_attributes
from sits.telemetry.tables import Columns

SETS_MAX = 256
_CUMULATIVE = 2
_DESCRIPTIONS: Mapping[str, tuple[str, str]] = {
    names.SERVER_DURATION: ("s", "From the first byte of the request to the answer's last."),
    names.SERVER_TTFT: ("s", "From the first byte of the request to the first token."),
    names.SERVER_TPOT: ("s", "For each token after the first."),
}

Attributes = tuple[tuple[str, Any], ...]


class Histogram:
    """Counts by bucket, of values each of some weight."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = np.asarray(bounds, dtype=np.float64)
        self.counts = np.zeros(len(bounds) + 1)
        self.sum = 0.0

    def add(self, values: np.ndarray, weights: np.ndarray) -> None:
        """Count `values`; a value on a bound belongs to the bucket below it."""
        which = np.searchsorted(self.bounds, values, side="left")
        self.counts += np.bincount(which, weights, len(self.counts))
        self.sum += float(values @ weights)

    @property
    def rounded(self) -> list[int]:
        """The counts as whole numbers."""
        return [round(count) for count in self.counts.tolist()]


class Measures:
    """The histograms of all rows seen since `start_ns` (wall clock)."""

    def __init__(
        self, start_ns: int, convention: names.Convention, providers: Mapping[str, str]
    ) -> None:  # fmt: skip
        self.start_ns = start_ns
        self._convention = convention
        self._providers = providers
        self._sets: dict[str, dict[Attributes, Histogram]] = {}

    def fold(self, requests: Columns) -> None:
        """Count the rows of `requests`."""
        rows = rows_of(requests)
        found: dict[tuple[str, Attributes], tuple[list[float], list[float]]] = {}
        for row in rows:
            weight = float(row.told.get("weight") or 1.0)
            for metric, value, attributes in self._of(row):
                values, weights = found.setdefault((metric, attributes), ([], []))
                values.append(value)
                weights.append(weight)
        for (metric, attributes), (values, weights) in found.items():
            self._histogram(metric, attributes).add(np.array(values), np.array(weights))

    def _of(self, row: Row) -> Iterable[tuple[str, float, Attributes]]:
        told, at = row.told, row.at
        provider = self._providers.get(told["engine"], "openai")
        base: Attributes = (
            (names.OPERATION, row.operation),
            (names.PROVIDER, provider),
            *(((names.REQUEST_MODEL, told["model"]),) if told["model"] else ()),
        )
        failed = told["outcome"] == "failed" or told["status"] >= 400
        error: Attributes = ((names.ERROR_TYPE, told["detail"] or str(told["status"])),) if failed else ()
        done = told["outcome"] == "completed"
        if row.has(API_RECV, SENT):
            yield names.SERVER_DURATION, (at[SENT] - at[API_RECV]) / 1e9, base + error
        if done and row.has(API_RECV, FIRST_TOKEN):
            yield names.SERVER_TTFT, (at[FIRST_TOKEN] - at[API_RECV]) / 1e9, base
        if done and row.has(FIRST_TOKEN, LAST_TOKEN) and told["output_tokens"] > 1:
            spent = at[LAST_TOKEN] - at[FIRST_TOKEN]
            yield names.SERVER_TPOT, spent / 1e9 / (told["output_tokens"] - 1), base
        if row.has(DISPATCHED, LAST_TOKEN):
            yield self._convention.duration, (at[LAST_TOKEN] - at[DISPATCHED]) / 1e9, base + error
            if row.has(FIRST_TOKEN):
                yield self._convention.first_chunk, (at[FIRST_TOKEN] - at[DISPATCHED]) / 1e9, base
        if done and row.has(DISPATCHED):
            yield from self._tokens(told, base)

    def _tokens(self, told: Mapping[str, Any], base: Attributes) -> Iterable[tuple[str, float, Attributes]]:
        by_type = self._convention.token_usage
        for kind, metric, count in (
            ("input", self._convention.input_tokens, told["prompt_tokens"]),
            ("output", self._convention.output_tokens, told["output_tokens"]),
        ):
            if by_type:
                yield by_type, float(count), (*base, ("gen_ai.token.type", kind))
            else:
                yield metric, float(count), base

    def _histogram(self, metric: str, attributes: Attributes) -> Histogram:
        sets = self._sets.setdefault(metric, {})
        found = sets.get(attributes)
        if found is None and len(sets) >= SETS_MAX:
            attributes = ((names.OPERATION, "other"), (names.PROVIDER, "other"))
            found = sets.get(attributes)
        if found is None:
            found = sets[attributes] = Histogram(self._bounds(metric))
        return found

    def _bounds(self, metric: str) -> Sequence[float]:
        if self._unit(metric) == "{token}":
            return names.TOKEN_BUCKETS
        short = {names.SERVER_TTFT: names.TTFT_BUCKETS, names.SERVER_TPOT: names.TPOT_BUCKETS}
        return short.get(metric, names.SECONDS_BUCKETS)

    def _unit(self, metric: str) -> str:
        one = self._convention
        return "{token}" if metric in (one.token_usage, one.input_tokens, one.output_tokens) else "s"

    def histograms(self, metric: str) -> Mapping[Attributes, Histogram]:
        """What is counted of one metric, by attributes."""
        return self._sets.get(metric, {})

    def request(self, now_ns: int, resource: Mapping[str, Any], known: Messages) -> Any:
        """An `ExportMetricsServiceRequest` of all of it as of `now_ns` (wall clock)."""
        request = known.metrics.ExportMetricsServiceRequest()
        group = request.resource_metrics.add()
        write_attributes(group.resource.attributes, resource)
        some = group.scope_metrics.add()
        some.scope.name, some.schema_url = "sits", self._convention.schema_url
        for metric, sets in sorted(self._sets.items()):
            unit, description = _DESCRIPTIONS.get(metric, (self._unit(metric), "Calls to engines."))
            made = some.metrics.add(name=metric, unit=unit, description=description)
            made.histogram.aggregation_temporality = _CUMULATIVE
            for attributes, histogram in sets.items():
                counts = histogram.rounded
                point = made.histogram.data_points.add(
                    start_time_unix_nano=self.start_ns,
                    time_unix_nano=now_ns,
                    count=sum(counts),
                    sum=histogram.sum,
                    bucket_counts=counts,
                    explicit_bounds=histogram.bounds.tolist(),
                )
                write_attributes(point.attributes, dict(attributes))
        return request
