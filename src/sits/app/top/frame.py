"""What the board shows at one moment, from the metrics pages it has seen: a fold, without a clock and without a screen.

```
page ─> Past: the pages of the last `window_ns` ─between─> Frame: rates, percentiles, objective, engines
```
Rules:
- Rates are over the window, from the oldest page in it to the newest; the window's real length is told.
- A percentile is known as well as its bucket: its two bounds are what is shown.
- Counters that went down began anew (a process was started again): what was before is forgotten, and the frame says so.
- The objective is judged by the gateway's own counts of answers that took longer than it (`sits_objective_missed_total`), which are exact; burn is the share
  missed over the share allowed.  Nothing is allowed to miss but 1 %, for objectives are about P99.
- A page that cannot be had leaves the last numbers where they are, and the frame says since when.

Deliberately absent: fetching pages (`source`), drawing (`text`, `screen`).
"""

import math
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from sits.core.plain_text import plain
from sits.core.units import SECOND
from sits.policy.burn_rate import P99_BUDGET
from sits.telemetry.prometheus_text import Histogram, Scrape, between

LEVELS = (0.50, 0.95, 0.99)
BURNS_NS = (300 * SECOND, 3600 * SECOND)
UP = "up"
HISTORY = 120
"""Points of each history: one a page."""

COUNTS_MAX = 4096
"""Pages whose counts are kept for burn: an hour at one a second."""


class Span(msgspec.Struct, frozen=True):
    """A percentile: it lies between these, ms; `high_ms` is None where the last bucket has no end."""

    low_ms: float
    high_ms: float | None


class Burn(msgspec.Struct, frozen=True):
    """`rate` is the share missed over the share allowed, None without answers; over `seen_s`, for it began no earlier."""

    window_s: float
    seen_s: float
    rate: float | None


class EngineLine(msgspec.Struct, frozen=True, kw_only=True):
    """One engine.  Rates a second; `kv_use` and `waiting` are what the engine told the gateway, None where it tells nothing or is silent."""

    name: str
    healthy: bool
    state: str
    inflight: int
    inflight_tokens: int
    req_s: float
    error_s: float
    missed: float | None
    ttft: tuple[Span, ...]
    e2e: tuple[Span, ...]
    kv_use: float | None
    waiting: float | None
    outcomes: Mapping[str, float]


class Frame(msgspec.Struct, frozen=True, kw_only=True):
    """Everything on the board.

    Attributes:
        state: `waiting` (one page only), `live`, or `lost`; trouble: why, in words; lost_s: for how long.
        window_s: what rates and percentiles are over; restarted: counters began anew in the window.
        missed: share of answers over the objective, None without any; outcomes: requests a second, by outcome and detail.
        other: lines about parts that not every gateway has (quotas, cache, windows, adapters), by name.

    """

    address: str
    state: str
    trouble: str
    lost_s: float
    window_s: float
    restarted: bool
    generation: str
    workers: int
    connections: int
    req_s: float
    token_s: float
    error_s: float
    dropped: int
    missed: float | None
    judged: int
    burns: tuple[Burn, ...]
    ttft: tuple[Span, ...]
    e2e: tuple[Span, ...]
    engines: tuple[EngineLine, ...]
    outcomes: Mapping[str, float]
    other: Mapping[str, str]
    req_history: tuple[float, ...]
    missed_history: tuple[float, ...]


class Past:
    """The pages seen, as far as they are needed."""

    def __init__(self, address: str, window_ns: int) -> None:
        self._address = address
        self._window_ns = window_ns
        self._pages: deque[tuple[int, Scrape]] = deque()
        self._counts: deque[tuple[int, float, float]] = deque(maxlen=COUNTS_MAX)
        self._rates: deque[float] = deque(maxlen=HISTORY)
        self._misses: deque[float] = deque(maxlen=HISTORY)
        self._restarted_ns = -(2**62)
        self._lost_ns: int | None = None
        self._trouble = ""

    def add(self, now_ns: int, page: Scrape) -> None:
        """A page that was had at `now_ns`."""
        page = _finite(page)
        self._lost_ns, self._trouble = None, ""
        if self._pages:
            before_ns, before = self._pages[-1]
            delta = between(before, page)
            if delta.resets:
                self._pages.clear()
                self._counts.clear()
                self._restarted_ns = now_ns
            elif now_ns > before_ns:
                seconds = (now_ns - before_ns) / SECOND
                self._rates.append((delta.scrape.total("sits_requests_total") or 0.0) / seconds)
                judged = delta.scrape.total("sits_objective_requests_total") or 0.0
                missed = delta.scrape.total("sits_objective_missed_total") or 0.0
                self._misses.append(missed / judged if judged else 0.0)
        self._pages.append((now_ns, page))
        while len(self._pages) > 2 and self._pages[1][0] <= now_ns - self._window_ns:
            self._pages.popleft()
        judged = page.total("sits_objective_requests_total") or 0.0
        self._counts.append((now_ns, judged, page.total("sits_objective_missed_total") or 0.0))

    def lose(self, now_ns: int, why: str) -> None:
        """No page could be had."""
        self._lost_ns = now_ns if self._lost_ns is None else self._lost_ns
        self._trouble = plain(why)

    def frame(self, now_ns: int) -> Frame:
        """What is to be shown now."""
        first_ns, first = self._pages[0] if self._pages else (now_ns, Scrape({}))
        last_ns, last = self._pages[-1] if self._pages else (now_ns, Scrape({}))
        seconds = (last_ns - first_ns) / SECOND
        delta = between(first, last).scrape if seconds else Scrape({})
        state = "lost" if self._lost_ns is not None else "live" if seconds else "waiting"
        judged = delta.total("sits_objective_requests_total") or 0.0
        missed = delta.total("sits_objective_missed_total") or 0.0
        return Frame(
            address=self._address,
            state=state,
            trouble=self._trouble,
            lost_s=0.0 if self._lost_ns is None else (now_ns - self._lost_ns) / SECOND,
            window_s=seconds,
            restarted=now_ns - self._restarted_ns < self._window_ns,
            generation=_generation(last),
            workers=_whole(last, "sits_workers"),
            connections=_whole(last, "sits_connections"),
            req_s=_rate(delta, "sits_requests_total", seconds),
            token_s=_rate(delta, "sits_output_tokens_total", seconds),
            error_s=_rate(delta, "sits_errors_total", seconds),
            dropped=_whole(last, "sits_rows_dropped_total"),
            missed=missed / judged if judged else None,
            judged=int(judged),
            burns=tuple(self._burn(window, last_ns) for window in BURNS_NS),
            ttft=_spans(delta.histogram("sits_ttft_seconds")),
            e2e=_spans(delta.histogram("sits_e2e_seconds")),
            engines=tuple(_engines(last, delta, seconds)),
            outcomes=_outcomes(delta, seconds),
            other=_other(last, delta, seconds),
            req_history=tuple(self._rates),
            missed_history=tuple(self._misses),
        )

    def _burn(self, window_ns: int, now_ns: int) -> Burn:
        inside = [count for count in self._counts if count[0] >= now_ns - window_ns]
        if len(inside) < 2:
            return Burn(window_ns / SECOND, 0.0, None)
        (start_ns, judged, missed), (end_ns, judged_now, missed_now) = inside[0], inside[-1]
        n = judged_now - judged
        rate = (missed_now - missed) / n / P99_BUDGET if n else None
        return Burn(window_ns / SECOND, (end_ns - start_ns) / SECOND, rate)


def _rate(delta: Scrape, name: str, seconds: float, where: Mapping[str, str] | None = None) -> float:
    return (delta.total(name, where) or 0.0) / seconds if seconds else 0.0


def _spans(histogram: Histogram | None) -> tuple[Span, ...]:
    """The levels' buckets; nothing without observations."""
    if histogram is None or not sum(histogram.counts):
        return ()
    found = [histogram.quantile(level) for level in LEVELS]
    return tuple(
        Span(max(0.0, one.low) * 1e3, None if math.isinf(one.high) else one.high * 1e3)
        for one in found
        if one is not None
    )


def _engines(last: Scrape, delta: Scrape, seconds: float) -> Iterator[EngineLine]:
    now, since = _by_engine(last), _by_engine(delta)
    names = {
        dict(sample.labels).get("engine", "")
        for family in ("sits_engine_healthy", "sits_inflight_requests", "sits_requests_total")
        for sample in last.samples(family)
    }
    for name in sorted(names - {""}):
        page, change = now.get(name, Scrape({})), since.get(name, Scrape({}))
        judged = change.total("sits_objective_requests_total") or 0.0
        missed = change.total("sits_objective_missed_total") or 0.0
        yield EngineLine(
            name=plain(name),
            healthy=_state(page) == UP,
            state=_state(page),
            inflight=_whole(page, "sits_inflight_requests"),
            inflight_tokens=_whole(page, "sits_inflight_tokens"),
            req_s=_rate(change, "sits_requests_total", seconds),
            error_s=_rate(change, "sits_requests_total", seconds, {"outcome": "failed"}),
            missed=missed / judged if judged else None,
            ttft=_spans(change.histogram("sits_ttft_seconds")),
            e2e=_spans(change.histogram("sits_e2e_seconds")),
            kv_use=page.total("sits_engine_kv_usage"),
            waiting=page.total("sits_engine_requests_waiting"),
            outcomes=_outcomes(change, seconds),
        )


def _state(engine: Scrape) -> str:
    """`up`, `trying`, `DOWN` (`gateway.liveness`); `-` where the page does not tell."""
    healthy = engine.total("sits_engine_healthy")
    if healthy is None:
        return "-"
    return UP if healthy else "trying" if engine.total("sits_engine_trying") else "DOWN"


def _by_engine(page: Scrape) -> dict[str, Scrape]:
    """The page once for each engine: looking for each one's series in all of them would cost the square of their number."""
    series: dict[str, dict[Any, float]] = {}
    for key, value in page.series.items():
        if engine := dict(key[1]).get("engine"):
            series.setdefault(engine, {})[key] = value
    return {engine: Scrape(own, page.types) for engine, own in series.items()}


def _finite(page: Scrape) -> Scrape:
    """The page without what is no number."""
    return Scrape({key: value for key, value in page.series.items() if math.isfinite(value)}, page.types)


def _whole(page: Scrape, name: str) -> int:
    return int(page.total(name) or 0)


def _outcomes(delta: Scrape, seconds: float) -> dict[str, float]:
    """Requests a second by outcome and detail, the most frequent first; what did not happen is not there."""
    found: dict[str, float] = {}
    for sample in delta.samples("sits_requests_total"):
        labels = dict(sample.labels)
        name = f"{labels.get('outcome', '')} {labels.get('detail', '')}".strip()
        name = plain(name)
        if sample.value and seconds:
            found[name] = found.get(name, 0.0) + sample.value / seconds
    return dict(sorted(found.items(), key=lambda pair: (-pair[1], pair[0])))


def _generation(page: Scrape) -> str:
    for sample in page.samples("sits_generation"):
        return plain(f"{sample.value:.0f} ({dict(sample.labels).get('name', '')})")
    return ""


def _other(last: Scrape, delta: Scrape, seconds: float) -> dict[str, str]:
    """Parts that are only told where the gateway has them."""
    found: dict[str, str] = {}
    asked = {
        dict(sample.labels).get("verdict", ""): sample.value
        for sample in delta.samples("sits_cache_requests_total")
    }
    if total := sum(asked.values()):
        hits = sum(value for result, value in asked.items() if result.startswith("hit"))
        found["cache"] = (
            f"{hits / total:.0%} of {total:,.0f} hit, {last.total('sits_cache_answers') or 0:,.0f} kept"
        )
    if (reserved := last.total("sits_ledger_reserved")) is not None:
        down = last.total("sits_ledger_down") or 0
        found["quotas"] = f"{reserved:,.0f} reserved" + (", LEDGER DOWN" if down else "")
    if (pending := last.total("sits_window_pending")) is not None:
        calls = delta.total("sits_window_calls_total") or 0.0
        mean = (delta.total("sits_window_requests_total") or 0.0) / calls if calls else 0.0
        found["windows"] = f"{pending:,.0f} held, {mean:.1f} a batch"
    if retries := delta.total("sits_retries_total"):
        found["retries"] = f"{retries / seconds:.2f} a second" if seconds else ""
    if restarts := last.total("sits_restarts_total"):
        found["restarts"] = f"{restarts:,.0f} processes died and were started again"
    return found
