"""What the gateway counts about itself, as a Prometheus page (text format 0.0.4).

Rules: observing costs two bisections and a few additions; label values come from the configuration and from short
fixed lists, and each label set is bounded (the rest is counted under `other`); histograms are per engine; that of TTFT
has the streamed answers only, for others have no first token.

Deliberately absent: quantiles (a board computes them), and per-request facts (the store has them).
"""

from bisect import bisect_left
from collections.abc import Iterable

from sits.core.breakpoints import API_RECV, FIRST_TOKEN, SENT
from sits.core.units import SECOND
from sits.gateway.exchange import Exchange
from sits.gateway.places import Places

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

LABELS_MAX = 256

_BUCKETS_NS = tuple(round(b * SECOND) for b in BUCKETS_S)


class Histogram:
    """Counts per bucket and the sum, of nanoseconds."""

    __slots__ = ("counts", "sum_ns")

    def __init__(self) -> None:
        self.counts = [0] * (len(_BUCKETS_NS) + 1)
        self.sum_ns = 0

    def observe(self, ns: int) -> None:
        """Count one duration."""
        self.counts[bisect_left(_BUCKETS_NS, ns)] += 1
        self.sum_ns += ns


class Metrics:
    """Counters and histograms of the finished requests."""

    def __init__(self) -> None:
        self.requests: dict[tuple[str, str, str], int] = {}
        self.ttft: dict[str, Histogram] = {}
        self.e2e: dict[str, Histogram] = {}
        self.output_tokens = 0

    def observe(self, exchange: Exchange) -> None:
        """Count one finished exchange."""
        engine = exchange.replica.id if exchange.replica is not None else ""
        key = (exchange.outcome, engine, exchange.detail)
        if key not in self.requests and len(self.requests) >= LABELS_MAX:
            key = (exchange.outcome, engine, "other")
        self.requests[key] = self.requests.get(key, 0) + 1
        self.output_tokens += exchange.output_tokens
        if exchange.outcome == "completed":
            self._latency(self.ttft, engine, exchange.timeline.span_ns(API_RECV, FIRST_TOKEN))
            self._latency(self.e2e, engine, exchange.timeline.span_ns(API_RECV, SENT))

    def _latency(self, family: dict[str, Histogram], engine: str, ns: int | None) -> None:
        if ns is None:
            return
        histogram = family.get(engine)
        if histogram is None:
            histogram = family[engine] = Histogram()
        histogram.observe(ns)

    def render(self, places: Places, pending: dict[str, int]) -> bytes:
        """The page; `pending` is how many requests each engine's window holds."""
        lines: list[str] = []
        _family(
            lines,
            "sits_requests_total",
            "counter",
            "Finished requests.",
            (
                (f'outcome="{outcome}",engine="{_escape(engine)}",detail="{_escape(detail)}"', count)
                for (outcome, engine, detail), count in sorted(self.requests.items())
            ),
        )
        _family(lines, "sits_output_tokens_total", "counter", "Generated tokens.", [("", self.output_tokens)])
        _family(
            lines,
            "sits_retries_total",
            "counter",
            "Requests sent to a second engine.",
            [("", places.retries)],
        )
        for name, help_text, field in (
            ("sits_inflight_requests", "Requests sent to an engine and unfinished.", "inflight_requests"),
            ("sits_inflight_tokens", "Their tokens: prompt and allowed output.", "inflight_tokens"),
            ("sits_engine_healthy", "1 while the engine's breaker is closed.", "healthy"),
        ):
            rows = ((f'engine="{_escape(r.id)}"', int(getattr(r, field))) for r in places.replicas)
            _family(lines, name, "gauge", help_text, rows)
        held = ((f'engine="{_escape(name)}"', count) for name, count in sorted(pending.items()))
        _family(lines, "sits_window_pending", "gauge", "Requests held in a batching window.", held)
        _histograms(lines, "sits_ttft_seconds", "First byte in to first token out.", self.ttft)
        _histograms(lines, "sits_e2e_seconds", "First byte in to answer flushed.", self.e2e)
        return "\n".join(lines).encode() + b"\n"


def _family(lines: list[str], name: str, kind: str, help_text: str, rows: Iterable[tuple[str, int]]) -> None:
    lines.append(f"# HELP {name} {help_text}")
    lines.append(f"# TYPE {name} {kind}")
    lines += [f"{name}{{{labels}}} {value}" if labels else f"{name} {value}" for labels, value in rows]


def _histograms(lines: list[str], name: str, help_text: str, family: dict[str, Histogram]) -> None:
    lines.append(f"# HELP {name} {help_text}")
    lines.append(f"# TYPE {name} histogram")
    for engine, histogram in sorted(family.items()):
        label = f'engine="{_escape(engine)}"'
        total = 0
        for bound, count in zip((*map(str, BUCKETS_S), "+Inf"), histogram.counts, strict=True):
            total += count
            lines.append(f'{name}_bucket{{{label},le="{bound}"}} {total}')
        lines.append(f"{name}_sum{{{label}}} {histogram.sum_ns / SECOND!r}")
        lines.append(f"{name}_count{{{label}}} {total}")


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
