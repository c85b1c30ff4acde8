"""The server's times under the names OpenTelemetry's conventions for generative AI give them, for the gateway's Prometheus page.

| family | of | from, to |
|---|---|---|
| `gen_ai_server_request_duration_seconds` | every finished request | first byte in, answer flushed |
| `gen_ai_server_time_to_first_token_seconds` | completed, streamed | first byte in, first token out |
| `gen_ai_server_time_per_output_token_seconds` | completed, two tokens or more | (last token - first token) / (output tokens - 1) |

Rules: the names are those of `core.otel_names` as Prometheus spells them (dots become underscores, the unit is last), the bounds those the conventions
ask for, the labels operation, provider, model, and `error_type` of a duration that ended in an error.  A model is told where an engine was chosen for it: what else
callers ask for is no label.  Sets of labels are bounded by `SETS_MAX`, the rest is counted under `other`.

Source: semantic conventions `gen-ai-metrics`; OpenTelemetry's Prometheus and OpenMetrics compatibility.

Deliberately absent: the same over OTLP (`telemetry.otlp.measured`), and the caller's side.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from sits.core import otel_names as names
from sits.core.breakpoints import API_RECV, FIRST_TOKEN, LAST_TOKEN, SENT
from sits.gateway.metrics import Finished, Histogram, Vitals, escaped
from sits.telemetry.packing import KIND

SETS_MAX = 128
DURATION, TTFT, TPOT = (
    f"{name.replace('.', '_')}_seconds" for name in (names.SERVER_DURATION, names.SERVER_TTFT, names.SERVER_TPOT)
)  # fmt: skip
_BOUNDS: Mapping[str, Sequence[float]] = {
    DURATION: names.SECONDS_BUCKETS,
    TTFT: names.TTFT_BUCKETS,
    TPOT: names.TPOT_BUCKETS,
}
_OTHER = 'gen_ai_operation_name="other",gen_ai_provider_name="other"'
_MODEL, _ENGINE, _OUTCOME, _STATUS, _DETAIL, _LAYER = map(
    KIND.index, ("model", "engine", "outcome", "status", "detail", "abstraction_layer")
)


class Conventional:
    """The histograms of all requests since the process began; `providers` says who made what answers, by engine."""

    def __init__(self) -> None:
        self.providers: Mapping[str, str] = {}
        self._sets: dict[str, dict[str, Histogram]] = {DURATION: {}, TTFT: {}, TPOT: {}}

    def fold(self, batch: Finished) -> None:
        """Count finished requests."""
        import numpy as np  # noqa: PLC0415  (where rows of all workers arrive; a worker counts nothing)

        plain = [self._labels(kind) for kind in batch.about]
        failed = [_error(kind) for kind in batch.about]
        done = np.array([kind[_OUTCOME] == "completed" for kind in batch.about])[batch.which]
        at, how = batch.at, batch.how
        began = how[:, API_RECV] > 0
        rows = np.flatnonzero(began & (how[:, SENT] > 0))
        sets = [one + error for one, error in zip(plain, failed, strict=True)]
        self._count(DURATION, sets, batch.which[rows], at[rows, SENT] - at[rows, API_RECV])
        first = done & (how[:, FIRST_TOKEN] > 0)
        rows = np.flatnonzero(first & began)
        self._count(TTFT, plain, batch.which[rows], at[rows, FIRST_TOKEN] - at[rows, API_RECV])
        rows = np.flatnonzero(first & (how[:, LAST_TOKEN] > 0) & (batch.tokens > 1))
        each = (at[rows, LAST_TOKEN] - at[rows, FIRST_TOKEN]) // (batch.tokens[rows] - 1)
        self._count(TPOT, plain, batch.which[rows], each)

    def vitals(self) -> Vitals:
        """All of it."""
        found: Vitals = {}
        for family, sets in self._sets.items():
            for labels, histogram in sorted(sets.items()):
                histogram.put(found, family, labels)
        return found

    def _count(self, family: str, labels: Sequence[str], which: Any, ns: Any) -> None:
        """Count `ns` of rows whose labels are `labels[which]`."""
        import numpy as np  # noqa: PLC0415  (see above)

        known = sorted(set(labels))
        code = np.array([known.index(one) for one in labels])[which]
        bounds = _BOUNDS[family]
        width = len(bounds) + 1
        bucket = np.searchsorted(np.array(bounds) * 1e9, ns)
        counts = np.bincount(code * width + bucket, minlength=width * len(known)).reshape(-1, width)
        sums = np.bincount(code, ns, len(known))
        for i in np.flatnonzero(counts.any(axis=1)).tolist():
            self._histogram(family, known[i]).add(counts[i].tolist(), round(sums[i]))

    def _histogram(self, family: str, labels: str) -> Histogram:
        sets = self._sets[family]
        if labels not in sets and len(sets) >= SETS_MAX:
            labels = _OTHER
        return sets.setdefault(labels, Histogram(_BOUNDS[family]))

    def _labels(self, kind: Sequence[Any]) -> str:
        engine = kind[_ENGINE]
        operation = names.OPERATIONS.get(kind[_LAYER].partition(" ")[2], "chat")
        told = f'gen_ai_operation_name="{operation}",gen_ai_provider_name="{self.providers.get(engine, "openai")}"'
        model = kind[_MODEL] if engine else ""
        return f'{told},gen_ai_request_model="{escaped(model)}"' if model else told


def _error(kind: Sequence[Any]) -> str:
    if kind[_OUTCOME] != "failed" and kind[_STATUS] < 400:
        return ""
    return f',error_type="{escaped(kind[_DETAIL] or str(kind[_STATUS]))}"'
