"""What the gateway counts about itself, as a Prometheus page (text format 0.0.4).

```
finished rows --fold--> counters and histograms ─┐
vitals of each worker (a dict) ----------------> sum ─> page
```
What a row says is counted from the row, off the path of requests; the rest are numbers somebody keeps anyway ("vitals"), by family and
labels.  Both are plain numbers that add up over workers, so one page speaks for the whole gateway.

Rules: label values come from the configuration and from short fixed lists, and each label set is bounded (the rest is counted under
`other`); histograms are per engine; that of TTFT has the streamed answers only, for others have no first token.

Deliberately absent: quantiles (a board computes them), and per-request facts (the store has them).
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from sits.core.breakpoints import API_RECV, FIRST_TOKEN, POINT_COUNT, SENT
from sits.core.units import SECOND
from sits.gateway.liveness import TRYING, UP, engine_state
from sits.gateway.shared import Shared
from sits.policy.outcome import is_error
from sits.telemetry.packing import KIND, Packed
from sits.telemetry.recorder import NUMBERS

BUCKETS_S = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    1.2,
    2.5,
    5.0,
    10.0,
    30.0,
    60.0,
    120.0,
)
"""Upper bounds of the latency histograms, seconds; 1.2 s is the default objective."""

PAUSE_BUCKETS_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)
"""Upper bounds of the histogram of garbage collections, seconds."""

LABELS_MAX = 256

Vitals = dict[str, dict[str, float]]
"""Numbers by name of the sample and label text (`engine="a"`)."""

FAMILIES: Mapping[str, tuple[str, str]] = {
    "sits_build_info": ("gauge", "1, with the environment and the version as labels."),
    "sits_requests_total": ("counter", "Finished requests."),
    "sits_errors_total": ("counter", "Those that failed, or were refused for want of capacity."),
    "sits_objective_requests_total": ("counter", "Answers that the objective judges."),
    "sits_objective_missed_total": ("counter", "Those that took longer than it."),
    "sits_preemptions_total": ("counter", "Preemptions of requests, as far as engines tell them."),
    "sits_output_tokens_total": ("counter", "Generated tokens."),
    "sits_retries_total": ("counter", "Requests sent to a second engine."),
    "sits_bad_requests_total": ("counter", "What came in and was no HTTP."),
    "sits_request_bytes": (
        "gauge",
        "Bytes of requests held: arriving, waiting, or large and being answered.",
    ),
    "sits_requests_without_room_total": ("counter", "Requests there was no room for."),
    "sits_inflight_requests": ("gauge", "Requests sent to an engine and unfinished."),
    "sits_inflight_tokens": ("gauge", "Their tokens: prompt and allowed output."),
    "sits_engine_healthy": ("gauge", "0 from when the engine's breaker opened until it has answered again."),
    "sits_engine_trying": ("gauge", "1 of these while the next request tries it: nothing has answered yet."),
    "sits_engine_kv_usage": ("gauge", "Share of its KV blocks in use, as the engine tells it."),
    "sits_engine_requests_running": ("gauge", "Requests it is working on, as the engine tells it."),
    "sits_engine_requests_waiting": ("gauge", "Requests in its queue, as the engine tells it."),
    "sits_engine_state_age_seconds": (
        "gauge",
        "How old what it told is; an engine silent for 10 s has none of these.",
    ),
    "sits_window_pending": ("gauge", "Requests held in a batching window."),
    "sits_window_calls_total": ("counter", "Times a batching window was sent."),
    "sits_window_requests_total": (
        "counter",
        "Requests sent by batching windows; over calls, the mean batch.",
    ),
    "sits_window_apart_total": (
        "counter",
        "Calls of several requests that had to be sent one by one after all.",
    ),
    "sits_cache_requests_total": ("counter", "Requests by what the response cache did for them."),
    "sits_cache_answers": ("gauge", "Answers kept."),
    "sits_cache_bytes": ("gauge", "What they cost of the cache's memory."),
    "sits_cache_removed_total": ("counter", "Answers let go, by why."),
    "sits_adapter_state": (
        "gauge",
        "Runtime adapters by engine, with their state and the reason when not ready.",
    ),
    "sits_adapter_loads_total": ("counter", "Loads of runtime adapters that were begun."),
    "sits_adapter_loads_succeeded_total": ("counter", "Loads that ended proven and routable."),
    "sits_adapter_loads_failed_total": ("counter", "Loads that did not, by why."),
    "sits_adapter_withdrawn_total": ("counter", "Adapters taken out of the routes, by why."),
    "sits_adapter_evicted_total": ("counter", "Adapters unloaded to make room."),
    "sits_adapter_base_mixed_total": ("counter", "Probes of a base model that an adapter answered."),
    "sits_adapter_refused_total": ("counter", "Requests refused because their adapter was not ready."),
    "sits_ledger_reserved": ("gauge", "Requests whose quotas are reserved and not yet settled."),
    "sits_ledger_waits_total": ("counter", "Requests that waited for a lease."),
    "sits_ledger_down": ("gauge", "Processes whose quota ledger does not answer."),
    "sits_ledger_outages_total": ("counter", "Times it stopped answering one."),
    "sits_ledger_opened_total": ("counter", "Requests let in without a lease meanwhile."),
    "sits_ledger_expired_total": ("counter", "Reservations that nobody settled."),
    "sits_ledger_over_use_total": ("counter", "Use above what was reserved, in units of the quotas."),
    "sits_ledger_questions_total": ("counter", "Questions that the ledger was asked."),
    "sits_ledger_down_total": ("counter", "Those it could not answer."),
    "sits_connections": ("gauge", "Open client connections."),
    "sits_ttft_seconds": ("histogram", "First byte in to first token out."),
    "sits_e2e_seconds": ("histogram", "First byte in to answer flushed."),
    "gen_ai_server_request_duration_seconds": (
        "histogram",
        "First byte in to answer flushed, of every request.",
    ),
    "gen_ai_server_time_to_first_token_seconds": ("histogram", "First byte in to first token out."),
    "gen_ai_server_time_per_output_token_seconds": ("histogram", "For each token after the first."),
    "sits_gc_pause_seconds": ("histogram", "Garbage collections, in which nothing else runs."),
    "sits_rows_dropped_total": ("counter", "Requests answered but not recorded: somebody was behind."),
    "sits_profiles_pushed_total": ("counter", "Profiles by what became of pushing them."),
    "sits_rows_kept_total": ("counter", "Rows of requests kept, by why: the share, or whatever the share."),
    "sits_rows_thinned_total": ("counter", "Rows of requests not kept, for the share is below 100 %."),
    "sits_rows_stored_total": ("counter", "Rows made durable in the store."),
    "sits_otlp_spans_total": ("counter", "Spans over OTLP, by what became of them."),
    "sits_otlp_retries_total": ("counter", "Batches of spans that were sent once more."),
    "sits_otlp_requests_refused_total": (
        "counter",
        "Requests with others' spans that there was no room for.",
    ),
    "sits_store_failures_total": ("counter", "Times the store could not be written."),
    "sits_store_tending_failures_total": (
        "counter",
        "Times that hours of the store that are over could not be merged and indexed; sitsctl store tend says why.",
    ),
    "sits_board_streams": ("gauge", "Browsers that look at the board."),
    "sits_board_streams_total": ("counter", "Streams of the board: opened, refused, dropped."),
    "sits_workers": ("gauge", "Processes that serve."),
    "sits_restarts_total": ("counter", "Processes started again after they died."),
    "sits_generation": ("gauge", "The configuration in use: how many there have been."),
    "sits_reloads_total": ("counter", "Configurations read while serving, by what became of them."),
    "sits_resident_memory_bytes": ("gauge", "Resident memory of each process."),
}
"""Every family of the page, in its order: kind and help."""

_BUCKETS_NS = tuple(round(b * SECOND) for b in BUCKETS_S)
_OUTCOME, _ENGINE, _DETAIL, _STATUS = map(KIND.index, ("outcome", "engine", "detail", "status"))
_TOKENS, _PREEMPTIONS = NUMBERS.index("output_tokens"), NUMBERS.index("preemptions")
OBJECTIVE_POINTS = {"ttft": FIRST_TOKEN, "e2e": SENT}


class Histogram:
    """Counts per bucket and the sum, of nanoseconds."""

    __slots__ = ("_bounds_ns", "bounds_s", "counts", "sum_ns")

    def __init__(self, bounds_s: Sequence[float] = BUCKETS_S) -> None:
        self.bounds_s = bounds_s
        self._bounds_ns = _BUCKETS_NS if bounds_s is BUCKETS_S else tuple(round(b * SECOND) for b in bounds_s)
        self.counts = [0] * (len(bounds_s) + 1)
        self.sum_ns = 0

    def observe(self, ns: int) -> None:
        """Count one duration."""
        self.counts[bisect_left(self._bounds_ns, ns)] += 1
        self.sum_ns += ns

    def add(self, counts: Sequence[int], sum_ns: int) -> None:
        """Count many that were counted elsewhere."""
        self.counts = [mine + more for mine, more in zip(self.counts, counts, strict=True)]
        self.sum_ns += sum_ns

    def put(self, vitals: Vitals, name: str, labels: str = "") -> None:
        """Add its samples to `vitals`."""
        comma, total = "," if labels else "", 0
        buckets = vitals.setdefault(f"{name}_bucket", {})
        for bound, count in zip((*map(str, self.bounds_s), "+Inf"), self.counts, strict=True):
            total += count
            buckets[f'{labels}{comma}le="{bound}"'] = total
        vitals.setdefault(f"{name}_sum", {})[labels] = self.sum_ns / SECOND
        vitals.setdefault(f"{name}_count", {})[labels] = total


class Finished(NamedTuple):
    """Requests of several packets as arrays: the few kinds there are, and of each request which it is, its points, how they came to be, its output tokens."""

    about: Sequence[tuple[Any, ...]]
    which: Any
    at: Any
    how: Any
    tokens: Any


def _finished(parts: Sequence[Packed]) -> Finished:
    import numpy as np  # noqa: PLC0415  (where rows of all workers arrive; a worker counts nothing)

    first, which, tokens = 0, [], []
    for part in parts:
        which.append(np.array(part.kind, dtype=np.int64) + first)
        tokens.append(np.array(part.numbers[_TOKENS], dtype=np.int64))
        first += len(part.kinds)
    return Finished(
        [kind for part in parts for kind in part.kinds],
        np.concatenate(which),
        np.frombuffer(b"".join([part.at for part in parts]), dtype=np.int64).reshape(-1, POINT_COUNT),
        np.frombuffer(b"".join([part.how for part in parts]), dtype=np.uint8).reshape(-1, POINT_COUNT),
        np.concatenate(tokens),
    )


class Metrics:
    """Counters and histograms of the finished requests: a fold over their rows."""

    def __init__(self) -> None:
        self.requests: dict[tuple[str, str, str], int] = {}
        self.ttft: dict[str, Histogram] = {}
        self.e2e: dict[str, Histogram] = {}
        self.output_tokens = self.errors = self.preemptions = 0
        self.judged: dict[str, int] = {}
        self.missed: dict[str, int] = {}
        self._objective = (FIRST_TOKEN, 0)

    def judge(self, metric: str, objective_ns: int, engines: Iterable[str]) -> None:
        """Judge answers by this objective from now on; engines begin at 0, so that the first misses are an increase."""
        self._objective = (OBJECTIVE_POINTS[metric], objective_ns)
        for engine in engines:
            self.judged.setdefault(engine, 0)
            self.missed.setdefault(engine, 0)

    def fold(self, parts: Sequence[Packed]) -> "Finished | None":
        """Count finished requests, given as their packed rows; the more at once, the less each costs.

        Returns what was counted, for others who count the same; None when there was nothing.
        """
        for part in parts:
            kinds = Counter(part.kind)
            for kind, times in kinds.items():
                about = part.kinds[kind]
                self._times((about[_OUTCOME], about[_ENGINE], about[_DETAIL]), times)
                if is_error(about[_OUTCOME], about[_STATUS], about[_DETAIL]):
                    self.errors += times
            self.output_tokens += sum(part.numbers[_TOKENS])
            self.preemptions += sum(part.numbers[_PREEMPTIONS])
        if not any(map(len, parts)):
            return None
        batch = _finished(parts)
        self._time(batch)
        return batch

    def _time(self, batch: "Finished") -> None:
        import numpy as np  # noqa: PLC0415  (where rows of all workers arrive; a worker counts nothing)

        about, at, how = batch.about, batch.at, batch.how
        engines = sorted({kind[_ENGINE] for kind in about})
        codes = [engines.index(kind[_ENGINE]) if kind[_OUTCOME] == "completed" else -1 for kind in about]
        code = np.array(codes, dtype=np.int64)[batch.which]
        judged_point, objective_ns = self._objective
        began = (code >= 0) & (how[:, API_RECV] > 0)
        for family, point in ((self.ttft, FIRST_TOKEN), (self.e2e, SENT)):
            seen = began & (how[:, point] > 0)
            ns, whose = at[seen, point] - at[seen, API_RECV], code[seen]
            if point == judged_point and objective_ns:
                judged, missed = np.bincount(whose), np.bincount(whose[ns > objective_ns])
                for i in np.flatnonzero(judged).tolist():
                    self._judged(engines[i], int(judged[i]), int(missed[i]) if i < len(missed) else 0)
            bucket = np.searchsorted(_BUCKETS_NS, ns)
            width = len(_BUCKETS_NS) + 1
            counts = np.bincount(whose * width + bucket, minlength=width * len(engines))
            for i in np.unique(whose).tolist():
                mine = counts[i * width : (i + 1) * width].tolist()
                _histogram(family, engines[i]).add(mine, int(ns[whose == i].sum()))

    def count(
        self,
        outcome: str,
        engine: str,
        detail: str,
        output_tokens: int,
        ttft_ns: int | None,
        e2e_ns: int | None,
        status: int = 0,
    ) -> None:
        """Count one finished request; what was not seen of it is None."""
        self._times((outcome, engine, detail), 1)
        self.output_tokens += output_tokens
        self.errors += is_error(outcome, status, detail)
        if outcome == "completed":
            point, objective_ns = self._objective
            took_ns = ttft_ns if point == FIRST_TOKEN else e2e_ns
            if objective_ns and took_ns is not None:
                self._judged(engine, 1, int(took_ns > objective_ns))
            if ttft_ns is not None:
                _histogram(self.ttft, engine).observe(ttft_ns)
            if e2e_ns is not None:
                _histogram(self.e2e, engine).observe(e2e_ns)

    def _judged(self, engine: str, answers: int, missed: int) -> None:
        self.judged[engine] = self.judged.get(engine, 0) + answers
        self.missed[engine] = self.missed.get(engine, 0) + missed

    def _times(self, key: tuple[str, str, str], times: int) -> None:
        requests = self.requests
        known = requests.get(key)
        if known is None and len(requests) >= LABELS_MAX:
            key = (key[0], key[1], "other")
            known = requests.get(key)
        requests[key] = times if known is None else known + times

    @property
    def completed(self) -> int:
        """Requests answered."""
        return sum(count for (outcome, _, _), count in self.requests.items() if outcome == "completed")

    def vitals(self) -> Vitals:
        """All of it."""
        found: Vitals = {
            "sits_requests_total": {
                f'outcome="{outcome}",{engine_label(engine)},detail="{escaped(detail)}"': count
                for (outcome, engine, detail), count in sorted(self.requests.items())
            },
            "sits_errors_total": {"": self.errors},
            "sits_objective_requests_total": {engine_label(e): n for e, n in sorted(self.judged.items())},
            "sits_objective_missed_total": {engine_label(e): n for e, n in sorted(self.missed.items())},
            "sits_preemptions_total": {"": self.preemptions},
            "sits_output_tokens_total": {"": self.output_tokens},
        }
        for name, family in (("sits_ttft_seconds", self.ttft), ("sits_e2e_seconds", self.e2e)):
            for engine, histogram in sorted(family.items()):
                histogram.put(found, name, engine_label(engine))
        return found


def engine_vitals(shared: Shared, slots: Mapping[str, int], now_ns: int) -> Vitals:
    """What the table of all workers says of the engines."""
    names = sorted(slots)
    inflight = [shared.inflight(slots[name]) for name in names]
    states = [engine_state(shared, slots[name], now_ns) for name in names]
    labels = [engine_label(name) for name in names]
    return {
        "sits_inflight_requests": {at: requests for at, (requests, _) in zip(labels, inflight, strict=True)},
        "sits_inflight_tokens": {at: tokens for at, (_, tokens) in zip(labels, inflight, strict=True)},
        "sits_engine_healthy": {at: int(state == UP) for at, state in zip(labels, states, strict=True)},
        "sits_engine_trying": {at: int(state == TRYING) for at, state in zip(labels, states, strict=True)},
    }


def added(parts: Iterable[Vitals]) -> Vitals:
    """The sum of several parts, sample by sample."""
    total: Vitals = {}
    for part in parts:
        for name, samples in part.items():
            into = total.setdefault(name, {})
            for labels, value in samples.items():
                into[labels] = into.get(labels, 0) + value
    return total


def page(vitals: Vitals) -> bytes:
    """The Prometheus page."""
    lines: list[str] = []
    for family, (kind, help_text) in FAMILIES.items():
        names = (
            [f"{family}_{part}" for part in ("bucket", "sum", "count")] if kind == "histogram" else [family]
        )
        lines += (f"# HELP {family} {help_text}", f"# TYPE {family} {kind}")
        for name in names:
            lines += [_line(name, labels, value) for labels, value in vitals.get(name, {}).items()]
    return "\n".join(lines).encode() + b"\n"


def engine_label(engine: str) -> str:
    """The label of an engine."""
    return f'engine="{escaped(engine)}"'


def escaped(text: str) -> str:
    """A label's value as the format wants it."""
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _line(name: str, labels: str, value: float) -> str:
    shown = repr(value) if isinstance(value, float) else str(value)
    return f"{name}{{{labels}}} {shown}" if labels else f"{name} {shown}"


def _histogram(family: dict[str, Histogram], engine: str) -> Histogram:
    found = family.get(engine)
    if found is None:
        found = family[engine] = Histogram()
    return found
