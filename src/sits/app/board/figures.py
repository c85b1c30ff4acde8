"""The figures of a board: one look at a window, as plain data ready to be drawn.

```
minutes + rows since ──> grid ──> latency by step, stages, the objective      outcomes ──> rate, errors      three days ──> burn
```
Rules: every figure says of how many requests it is; a quantile comes with bounds (99 %, from the order statistics, and the 1 % of a
histogram's bucket); an objective is met or missed when the bounds are on one side of it, and unproven else.  Where minutes do not tell (one
tenant) the newest `ROWS_MAX` rows do, and `from_rows` says so.

Deliberately absent: single requests (`app.board.requests`), and drawing.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from sits.app.board.burn import LONGEST_MINUTES, burns, slow_by_minute
from sits.app.board.grid import LEVELS, STAGE_NAMES, Columns, Grid, exactness, over_ns, weights
from sits.app.board.window import MINUTE_NS, Look, Only, Window
from sits.core.breakpoints import BREAKPOINTS
from sits.core.fleet import Fleet
from sits.core.units import MS
from sits.policy.outcome import is_error
from sits.telemetry.histograms import ERROR, quantiles_ns, share_above
from sits.telemetry.minute_parts import MinuteParts
from sits.telemetry.store import DuckStore

ROWS_MAX = 300_000
SAMPLE_ROWS, SAMPLE_NS = 3_000, 15 * MINUTE_NS
"""Rows that tell how times came to be, and how old they may be when the newest comes."""

KEPT_NS = 25 * 60 * MINUTE_NS
"""Windows up to this are told from the minutes in memory."""

LONG_NS = 10 * MINUTE_NS
"""A request that was over in a minute began at most so long before; one that took longer is in its minute, later."""

WEEK_NS = 7 * 24 * 60 * MINUTE_NS

Z = 2.576
"""Standard normal deviate of a two-sided 99 % interval."""

LAYERS = {point.stage: point.layer for point in BREAKPOINTS[1:]}


def overview(
    store: DuckStore, fleet: Fleet, look: Look, now_ns: int, kept: MinuteParts | None = None
) -> dict[str, Any]:
    """Everything of a window that is drawn first; of minutes that are `kept` in memory nothing is read again.

    Raises:
        StoreError: the store cannot be read.

    """
    window = look.window(now_ns)
    grid, counts, rows, from_rows = _read(store, look.only, window, kept)
    metric, bound_ns = fleet.objective.metric, int(fleet.objective.p99)
    found = {
        "now_ms": now_ns // MS,
        "window": {
            "name": look.name,
            "live": look.live,
            "since_ms": window.since_ns // MS,
            "until_ms": window.until_ns // MS,
            "first_ms": _first_ms(store, window, counts.n),
            "step_s": window.step_ns // 10**9,
            "steps": window.steps,
        },
        "from_rows": from_rows,
        "objective": {"metric": metric, "p99_ms": bound_ns / MS},
        "requests": counts.told(),
        "latency": {name: grid.series(name) for name in ("ttft", "e2e")},
        "slo": _slo(grid.total(metric), bound_ns, counts),
        "stages": _stages(grid, exactness(rows)),
        "newest_ms": _newest_of(rows, look, now_ns) or _newest_ms(store, now_ns),
    }
    found["state"] = "empty" if not counts.n.any() else "ok"
    return found


class Counts:
    """Requests by step: all, those that went wrong, tokens; and by how they ended."""

    def __init__(self, steps: int) -> None:
        self.n = np.zeros(steps)
        self.bad = np.zeros(steps)
        self.tokens = np.zeros(steps)
        self.outcomes: dict[tuple[str, int], float] = {}

    def add(self, step: int, outcome: str, status: int, n: float, tokens: float, detail: str = "") -> None:
        """Count so many that ended alike in one step."""
        if 0 <= step < len(self.n):
            self.n[step] += n
            self.bad[step] += n * is_error(outcome, status, detail)
            self.tokens[step] += tokens
            key = (outcome, status)
            self.outcomes[key] = self.outcomes.get(key, 0.0) + n

    def told(self) -> dict[str, Any]:
        """As data."""
        return {
            "n": self.n.tolist(),
            "bad": self.bad.tolist(),
            "tokens": self.tokens.tolist(),
            "total": float(self.n.sum()),
            "total_bad": float(self.bad.sum()),
            "total_tokens": float(self.tokens.sum()),
            "outcomes": [
                {"outcome": outcome, "status": status, "n": n}
                for (outcome, status), n in sorted(self.outcomes.items(), key=lambda one: -one[1])
            ],
        }


def _read(
    store: DuckStore, only: Only, window: Window, kept: MinuteParts | None
) -> tuple[Grid, Counts, Columns, bool]:
    """What the window holds; the rows that were looked at tell how exact times are.

    How far minutes go is asked first: a minute that is written while we read is told from its rows, and only from them.
    """
    grid, counts = Grid(window.steps), Counts(window.steps)
    ends = {"since_wall_ns": window.since_ns, "until_wall_ns": window.until_ns}
    since_ns = window.since_ns
    closed = 0 if only.tenant else closed_ns(store, since_ns)
    if closed > since_ns:
        since_ns = closed
        of = {"model": only.model or None, "engine": only.engine or None, "step_ns": window.step_ns}
        of |= ends | {"until_wall_ns": min(window.until_ns, closed)}
        grid = _minutes(store, only, window, of, kept)
        for told in store.scan("board_outcomes", **of):
            counts.add(told["step"], told["outcome"], told["status"], told["n"], told["output_tokens"])
    rows = _rows_over(store, only, since_ns, window.until_ns)
    if len(rows["wall_ns"]):
        step = (over_ns(rows) - window.since_ns) // window.step_ns
        grid.add_rows(rows, step)
        _count_rows(counts, rows, step)
    else:
        newest_ns = min(window.until_ns, 1 + MS * _newest_ms(store, window.until_ns))
        ends["since_wall_ns"] = max(window.since_ns, newest_ns - SAMPLE_NS)
        rows = store.columns("board_rows", limit=SAMPLE_ROWS, **only.parameters(), **ends)
    return grid, counts, rows, since_ns == window.since_ns


def _minutes(
    store: DuckStore, only: Only, window: Window, of: Mapping[str, Any], kept: MinuteParts | None
) -> Grid:
    """What the minutes of a window hold, from memory where it is short enough to be there."""
    if kept is not None and window.until_ns - window.since_ns <= KEPT_NS:
        ends = window.since_ns, of["until_wall_ns"], window.step_ns, window.steps
        return Grid(window.steps, kept.counts(*ends, model=only.model, engine=only.engine))
    grid = Grid(window.steps)
    for cell in store.scan("board_minutes", **of):
        grid.add(cell["step"], cell["stage"], cell["histograms"])
    return grid


def _rows_over(store: DuckStore, only: Only, since_ns: int, until_ns: int) -> Columns:
    """Requests that were over since then; one that took longer than ten minutes is in its minute, later."""
    began_ns = since_ns - LONG_NS
    found = store.columns(
        "board_rows",
        limit=ROWS_MAX,
        since_wall_ns=began_ns,
        until_wall_ns=until_ns,
        over_wall_ns=since_ns,
        **only.parameters(),
    )
    late = over_ns(found) >= since_ns
    return {name: values[late] for name, values in found.items()}


def _count_rows(counts: Counts, rows: Columns, step: np.ndarray) -> None:
    weight = weights(rows)
    keys: dict[tuple[int, str, int, str], list[float]] = {}
    told = zip(
        step.tolist(),
        rows["outcome"].tolist(),
        rows["status"].tolist(),
        rows["detail"].tolist(),
        weight.tolist(),
        (weight * rows["output_tokens"]).tolist(),
        strict=True,
    )
    for where, outcome, status, detail, n, tokens in told:
        sums = keys.setdefault((where, outcome, status, detail if outcome == "refused" else ""), [0.0, 0.0])
        sums[0] += n
        sums[1] += tokens
    for (where, outcome, status, detail), (n, tokens) in keys.items():
        counts.add(where, outcome, status, n, tokens, detail)


def closed_ns(store: DuckStore, since_ns: int) -> int:
    """The end of the newest minute the store has figures of; 0 if it has none since then."""
    told = store.scan("board_newest_minute", since_wall_ns=since_ns)
    return int(told[0]["minute_wall_ns"]) + MINUTE_NS if told else 0


def _newest_of(rows: Columns, look: Look, now_ns: int) -> int:
    """The same as `_newest_ms`, by the rows that were looked at; 0 where they do not tell: all that came in the last minutes are among them."""
    if not look.live or look.only != Only() or not len(rows["wall_ns"]):
        return 0
    newest_ns = int(rows["wall_ns"].max())
    return -(-newest_ns // MS) if now_ns - 2 * MINUTE_NS < newest_ns < now_ns else 0


def _newest_ms(store: DuckStore, until_ns: int) -> int:
    """When the newest request before a moment came, ms, rounded up; 0 if there is none.

    Most often it came a moment before; then figures per minute tell the minute; only then all rows are asked.
    """
    for since_ns in (until_ns - SAMPLE_NS, None):
        told = store.scan("board_newest", since_wall_ns=since_ns, until_wall_ns=until_ns)
        if told:
            return -(-int(told[0]["wall_ns"]) // MS)
        if 0 < (closed := closed_ns(store, until_ns - WEEK_NS)) <= until_ns:
            return closed // MS
    return 0


def _first_ms(store: DuckStore, window: Window, n: np.ndarray) -> int | None:
    """When the first request that the store knows came, ms, if that is within the window: rates are of the time since then.  None where it
    has older ones, or none.
    """
    there = np.flatnonzero(n)
    if not len(there) or there[0] == 0 or _newest_ms(store, window.since_ns):
        return None
    step_ns = window.since_ns + int(there[0]) * window.step_ns
    told = store.scan("board_first", since_wall_ns=window.since_ns, until_wall_ns=window.until_ns)
    row_ns = int(told[0]["wall_ns"]) if told else window.until_ns
    return (row_ns if row_ns < step_ns + window.step_ns else step_ns) // MS


def _slo(counts: np.ndarray, bound_ns: int, requests: Counts) -> dict[str, Any]:
    n = int(counts.sum())
    if not n:
        return {"state": "unknown", "n": 0}
    low, middle, high = quantile_bounds(counts, 0.99)
    state = "met" if high <= bound_ns else "missed" if low > bound_ns else "unproven"
    slow = share_above(counts, bound_ns) * n
    bad = float(requests.bad.sum())
    return {
        "state": state,
        "n": n,
        "p99_ms": middle / MS,
        "low_ms": low / MS,
        "high_ms": high / MS,
        "p50_ms": quantiles_ns(counts, (0.5,))[0] / MS,
        "slow_share": slow / n,
        "bad_share": (slow + bad) / (n + bad),
    }


def quantile_bounds(counts: np.ndarray, level: float) -> tuple[float, float, float]:
    """Low, middle and high of a quantile, ns: the order statistics that hold it in 99 of 100 cases (binomial, normal approximation), widened
    by a bucket's error.
    """
    n = float(counts.sum())
    half = Z * math.sqrt(level * (1.0 - level) / n)
    low, middle, high = quantiles_ns(counts, (max(1e-12, level - half), level, min(1.0, level + half)))
    return low * (1.0 - ERROR), middle, high * (1.0 + ERROR)


def _stages(grid: Grid, exact: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    found = []
    for stage in STAGE_NAMES:
        counts = grid.total(stage)
        if stage in ("ttft", "e2e") or not counts.sum():
            continue
        values = quantiles_ns(counts, LEVELS)
        found.append(
            {
                "stage": stage,
                "layer": LAYERS[stage],
                "n": int(counts.sum()),
                **{f"p{level * 100:.0f}_ms": value / MS for level, value in zip(LEVELS, values, strict=True)},
                "p99": grid.series(stage)["p99"],
                "exactness": exact.get(stage, {"kind": "missing", "shares": {}, "seen": 0.0}),
            }
        )
    return found


def burn(store: DuckStore, fleet: Fleet, only: Only, now_ns: int) -> dict[str, Any]:
    """How fast the budget is spent, over windows that end with the last whole minute; of all tenants, for minutes tell no more.

    `until_ms`: the end of the newest minute that has figures, ms since the epoch; None where there is none.

    Raises:
        StoreError: the store cannot be read.

    """
    until_ns = now_ns // MINUTE_NS * MINUTE_NS
    since_ns = until_ns - LONGEST_MINUTES * MINUTE_NS
    of: dict[str, Any] = {"since_wall_ns": since_ns, "until_wall_ns": now_ns, "step_ns": MINUTE_NS}
    of |= {"model": only.model or None, "engine": only.engine or None}
    cells = store.scan("board_minutes", stage=fleet.objective.metric, **of)
    told = [(cell["step"], cell["histograms"]) for cell in cells]
    timed, slow = slow_by_minute(LONGEST_MINUTES, told, int(fleet.objective.p99))
    counts = Counts(LONGEST_MINUTES)
    newest = max((step for step, _ in told), default=-1)
    for one in store.scan("board_outcomes", **of):
        counts.add(one["step"], one["outcome"], one["status"], one["n"], 0.0)
        newest = max(newest, one["step"])
    until_ms = (since_ns + (newest + 1) * MINUTE_NS) // MS if newest >= 0 else None
    return {"pairs": burns(timed + counts.bad, slow + counts.bad), "until_ms": until_ms}
