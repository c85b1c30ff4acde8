"""What the rows of a run say: medians with their range, the bars, and where each gateway is better than ours.

A ratio is taken within a repeat and then the median of the repeats, so that both sides saw the same minutes.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

OURS = "sits"
Keys = tuple[str, ...]


def value(row: dict, keys: Keys):
    """One figure of a row, or None."""
    found = row
    for key in keys:
        found = found.get(key) if isinstance(found, dict) else None
    return found


def values(rows: Sequence[dict], peer: str, keys: Keys) -> list[float]:
    """A figure in every repeat of a gateway."""
    return [v for row in rows if row["peer"] == peer and (v := value(row, keys)) is not None]


def median(rows: Sequence[dict], peer: str, keys: Keys) -> float | None:
    """Its median."""
    found = values(rows, peer, keys)
    return statistics.median(found) if found else None


def short(number: float) -> str:
    """Three digits, no exponent: 12.3, 1,234, 0.56."""
    if number == 0:
        return "0"
    size = abs(number)
    return f"{number:,.0f}" if size >= 100 else f"{number:.1f}" if size >= 10 else f"{number:.2f}"


def spread(found: Sequence[float], scale: float = 1.0) -> str:
    """`median [least-most]`, or a dash."""
    if not found:
        return "–"
    scaled = [v * scale for v in found]
    middle = short(statistics.median(scaled))
    return middle if len(scaled) == 1 else f"{middle} [{short(min(scaled))}–{short(max(scaled))}]"


@dataclass(frozen=True)
class Figure:
    """One column: less is better."""

    name: str
    keys: Keys
    scale: float = 1.0


REQUEST = Figure("CPU µs a request", ("sat", "cpu_us_per_request"))
CHUNK = Figure("CPU µs a chunk, one by one", ("credit", "cpu_us_per_chunk"))
FLOOD = Figure("CPU µs a chunk, engine floods", ("flood", "cpu_us_per_chunk"))
ADDED = Figure("added P50 at 200 req/s, µs", ("rate", "added_p50_us"))
TTFT = Figure("added TTFT P50 at 50 streams/s, µs", ("ttft", "added_p50_us"))
MANY = Figure("CPU µs a chunk, 2,000 streams", ("many", "cpu_us_per_chunk"))
LARGE = Figure("20 MB body, CPU µs a MB", ("large", "20000000", "us_per_mb"))
PROMPT = Figure("100k-token prompt, CPU µs", ("large", "400000", "cpu_us"))
START = Figure("start to first answer, s", ("start_s",))
IDLE = Figure("RSS idle, MB", ("rss_idle_mb",))
LOADED = Figure("RSS loaded, MB", ("rss_loaded_mb",))
COMPARED = (REQUEST, CHUNK, FLOOD, ADDED, TTFT, MANY, LARGE, PROMPT, START, IDLE, LOADED)
CANCELS = (
    ("plain", "before the first byte"),
    ("token", "before the first token"),
    ("middle", "in mid-stream"),
)


@dataclass(frozen=True)
class Bar:
    """What was promised and what was found."""

    name: str
    found: str
    limit: str
    passed: bool | None
    goal: str = ""


def _at_most(rows, figure: Figure, limit: float, goal: float | None = None, name: str = "") -> Bar:
    found = values(rows, OURS, figure.keys)
    middle = statistics.median(found) if found else None
    reached = "" if goal is None or middle is None else f"{goal:g}: {'yes' if middle <= goal else 'no'}"
    passed = None if middle is None else middle <= limit
    return Bar(name or figure.name, spread(found), f"≤ {limit:g}", passed, reached)


def _ratio(rows, figure: Figure, peer: str, limit: float) -> Bar:
    pairs = []
    for repeat in {row["repeat"] for row in rows}:
        same = [row for row in rows if row["repeat"] == repeat]
        ours, theirs = values(same, OURS, figure.keys), values(same, peer, figure.keys)
        pairs += [a / b for a, b in zip(ours, theirs, strict=False)]
    passed = statistics.median(pairs) <= limit if pairs else None
    return Bar(f"{figure.name}: times {peer}", spread(pairs), f"≤ {limit:g}", passed)


def _none_lost(rows) -> Bar:
    phases = ("sat", "credit", "flood", "rate", "ttft", "many")
    lost = [
        sum((value(row, (p, "errors")) or 0) + (value(row, (p, "unfinished")) or 0) for p in phases)
        for row in rows
        if row["peer"] == OURS
    ]
    return Bar("requests and streams lost in all loads", spread(lost), "0", not any(lost) if lost else None)


def _cancel(rows, mode: str, words: str) -> Bar:
    found = values(rows, OURS, ("cancel", mode, "delay_us", "max"))
    seen = values(rows, OURS, ("cancel", mode, "seen"))
    passed = None if not seen else bool(found) and max(found) <= 50_000 and min(seen) == 20
    return Bar(f"cancel {words}, slowest of 20, ms", spread(found, 1e-3), "≤ 50", passed)


def _linear(rows) -> Bar:
    pairs = []
    for row in rows:
        small, large = (
            value(row, ("large", "5000000", "us_per_mb")),
            value(row, ("large", "20000000", "us_per_mb")),
        )
        if row["peer"] == OURS and small and large:
            pairs.append(large / small)
    passed = statistics.median(pairs) <= 1.3 if pairs else None
    return Bar("20 MB body: CPU a MB, times that of 5 MB", spread(pairs), "≤ 1.3", passed)


def _drift(rows) -> Bar:
    """Judged only when a million were really served; fewer are shown."""
    found, served = values(rows, OURS, ("hostile", "drift")), values(rows, OURS, ("hostile", "served"))
    shown = f"{spread(found, 100)} ({max(served):,.0f} requests)" if found else "–"
    million = [one for one, count in zip(found, served, strict=True) if count >= 800_000]
    passed = max(million) <= 0.05 if million else None
    return Bar("RSS drift over 1,000,000 hostile requests, %", shown, "≤ 5", passed)


def bars(rows: Sequence[dict]) -> list[Bar]:
    """Every bar of the gateway."""
    worker = "RSS of the worker {}, MB"
    return [
        _at_most(rows, REQUEST, 60, 45, "CPU µs a request, features on"),
        _ratio(rows, REQUEST, "nginx", 4),
        _ratio(rows, REQUEST, "vllm-router-rr", 0.6),
        _at_most(rows, CHUNK, 9, 8),
        _ratio(rows, CHUNK, "nginx", 1.8),
        _at_most(rows, FLOOD, 3),
        _at_most(rows, ADDED, 500, 300),
        _at_most(rows, TTFT, 800),
        _none_lost(rows),
        *(_cancel(rows, mode, words) for mode, words in CANCELS),
        _linear(rows),
        _at_most(rows, Figure(worker.format("idle"), ("worker_idle_mb",)), 45),
        _at_most(rows, Figure(worker.format("loaded"), ("worker_loaded_mb",)), 60),
        _at_most(rows, START, 0.5),
        _drift(rows),
        _at_most(rows, Figure("good requests that failed among hostile ones", ("hostile", "good_failed")), 0),
    ]


def better_than_ours(rows: Sequence[dict], peer: str) -> list[str]:
    """In words, every figure in which a gateway's median beats ours by more than 5 %."""
    found = []
    for figure in COMPARED:
        ours, theirs = median(rows, OURS, figure.keys), median(rows, peer, figure.keys)
        if ours is not None and theirs is not None and theirs < 0.95 * ours:
            found.append(f"{figure.name} {short(theirs)} against {short(ours)}")
    return found
