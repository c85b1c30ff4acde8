"""Who is slow: the requests of a window by engine, model, arm and tenant, and whether one of them has more of the bad ones than its traffic explains.

```
minutes by (model, engine, arm) + rows since ──> Tally of each name ──> share of all, P99, slow, went wrong, share of the bad
newest rows ─────────────────────────────────> the same by tenant, for minutes do not know tenants
```
A request is bad when it took longer than the objective, or went wrong as `policy.outcome` says.  Which name stands out is decided as in the reports
(`diagnose.groups`).

Rules: with a tenant chosen all is counted from its newest `ROWS_MAX` rows, each by its weight.  A name that no request reached (refused before an
engine was chosen) is empty.  Of each kind the `LISTED` worst are told, and how many more there are.

Deliberately absent: why it is slow (the stages say that, with the name chosen).
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from sits.app.board.figures import LONG_NS, closed_ns
from sits.app.board.grid import weights
from sits.app.board.requests import since_for
from sits.app.board.window import Look, Only
from sits.core.fleet import Fleet
from sits.core.units import MS
from sits.diagnose.groups import DEVIATES, deviations
from sits.policy.outcome import is_error
from sits.telemetry.histograms import BUCKETS, buckets_of, quantiles_ns, share_above, summed
from sits.telemetry.store import DuckStore

KINDS = ("engine", "model", "arm", "tenant")
ROWS_MAX = 50_000
TENANT_TIMES = 6
"""Among how many times as many requests those of one tenant are looked for."""

LISTED = 12

Columns = Mapping[str, np.ndarray]


class Tally:
    """What is known of one name: requests, those that went wrong, and a histogram of those that were timed.

    Callers may make up as many names as they like; those have no times, and so no histogram.
    """

    __slots__ = ("n", "timed", "wrong")

    def __init__(self) -> None:
        self.n = 0.0
        self.wrong = 0.0
        self.timed: np.ndarray | None = None

    def add_timed(self, counts: np.ndarray) -> None:
        """Add a histogram."""
        self.timed = counts.astype(np.float64) if self.timed is None else self.timed + counts

    def told(self, name: str, bound_ns: int) -> dict[str, Any]:
        """As data; shares of the whole are added by who knows it."""
        counts = self.timed
        timed = 0.0 if counts is None else float(counts.sum())
        slow = 0.0 if counts is None or not timed else share_above(counts, bound_ns) * timed
        return {
            "name": name,
            "n": self.n,
            "timed": timed,
            "p99_ms": None if counts is None or not timed else quantiles_ns(counts, (0.99,))[0] / MS,
            "slow": slow,
            "wrong": self.wrong,
            "bad": slow + self.wrong,
        }


def groups(store: DuckStore, fleet: Fleet, look: Look, now_ns: int) -> dict[str, Any]:
    """The names of each kind, the worst first, and the one that stands out most.

    Raises:
        StoreError: the store cannot be read.

    """
    window, only = look.window(now_ns), look.only
    metric, bound_ns = fleet.objective.metric, int(fleet.objective.p99)
    tallies: dict[str, dict[str, Tally]] = {kind: {} for kind in KINDS}
    bounds = {"since_wall_ns": window.since_ns, "until_wall_ns": window.until_ns}
    since_ns = since_for(store, look, bounds, ROWS_MAX * (TENANT_TIMES if only.tenant else 1))
    newest = _rows(store, only, since_ns, window.until_ns)
    partial = since_ns > window.since_ns or len(newest["over_wall_ns"]) >= ROWS_MAX
    closed = 0 if only.tenant else closed_ns(store, window.since_ns)
    if closed > window.since_ns:
        of: dict[str, Any] = {"model": only.model or None, "engine": only.engine or None}
        of |= {"since_wall_ns": window.since_ns, "until_wall_ns": min(window.until_ns, closed)}
        _add_minutes(store, tallies, metric, of)
        _add_rows(tallies, _rows(store, only, closed, window.until_ns), metric, KINDS[:3])
        _add_rows(tallies, newest, metric, KINDS[3:])
    else:
        _add_rows(tallies, newest, metric, KINDS)
    told = {kind: _listed(some, bound_ns) for kind, some in tallies.items()}
    return {
        "metric": metric,
        "objective_ms": bound_ns / MS,
        "by": told,
        "rows": len(newest["over_wall_ns"]) if partial else None,
        "from_rows": closed <= window.since_ns,
        "stands_out": _standing_out(told),
    }


def _rows(store: DuckStore, only: Only, since_ns: int, until_ns: int) -> Columns:
    """Requests that were over between two moments, the newest `ROWS_MAX`."""
    found = store.columns(
        "board_group_rows",
        limit=ROWS_MAX,
        since_wall_ns=since_ns - LONG_NS,
        until_wall_ns=until_ns,
        over_wall_ns=since_ns,
        **only.parameters(),
    )
    there = found["over_wall_ns"] < until_ns
    return found if there.all() else {name: values[there] for name, values in found.items()}


def _add_minutes(
    store: DuckStore, tallies: dict[str, dict[str, Tally]], metric: str, of: Mapping[str, Any]
) -> None:
    for cell in store.scan("board_groups", stage=metric, **of):
        timed = summed(cell["histograms"])
        for kind in KINDS[:3]:
            tallies[kind].setdefault(cell[kind] or "", Tally()).add_timed(timed)
    for one in store.scan("board_group_outcomes", **of):
        for kind in KINDS[:3]:
            tally = tallies[kind].setdefault(one[kind] or "", Tally())
            tally.n += one["n"]
            tally.wrong += one["n"] * is_error(one["outcome"], one["status"], "")


def _add_rows(
    tallies: dict[str, dict[str, Tally]], rows: Columns, metric: str, kinds: tuple[str, ...]
) -> None:
    if not len(rows["over_wall_ns"]):
        return
    weight, took = weights(rows), rows[f"{metric}_ns"]
    ended = zip(rows["outcome"].tolist(), rows["status"].tolist(), rows["detail"].tolist(), strict=True)
    wrong = weight * np.array([is_error(*one) for one in ended])
    fine = took >= 0
    buckets = buckets_of(took[fine])
    for kind in kinds:
        names, which = _numbered(rows[kind].tolist())
        n, bad = (np.bincount(which, some, len(names)) for some in (weight, wrong))
        mine = which[fine]
        timed = {
            i: np.bincount(buckets[mine == i], weight[fine][mine == i], BUCKETS) for i in set(mine.tolist())
        }
        for i, name in enumerate(names):
            tally = tallies[kind].setdefault(name, Tally())
            tally.n += float(n[i])
            tally.wrong += float(bad[i])
            if i in timed:
                tally.add_timed(timed[i])


def _numbered(values: list[str]) -> tuple[list[str], np.ndarray]:
    """Distinct texts, and which each is; not as an array of text, in which each is as long as the longest."""
    seen: dict[str, int] = {}
    which = np.array([seen.setdefault(value, len(seen)) for value in values], dtype=np.int64)
    return list(seen), which


def _listed(tallies: Mapping[str, Tally], bound_ns: int) -> dict[str, Any]:
    found = [tally.told(name, bound_ns) for name, tally in tallies.items()]
    n, bad = (sum(one[what] for one in found) for what in ("n", "bad"))
    for one in found:
        one["share"] = one["n"] / n if n else 0.0
        one["bad_share"] = one["bad"] / bad if bad else 0.0
    found.sort(key=lambda one: (-one["bad"], -one["n"], one["name"]))
    return {"names": found[:LISTED], "more": max(0, len(found) - LISTED), "n": n, "bad": bad}


def _standing_out(told: Mapping[str, dict[str, Any]]) -> dict[str, Any] | None:
    """The name with most deviates above what its share of the traffic explains; None where there is none."""
    best, most = None, DEVIATES
    for kind, some in told.items():
        for one in some["names"]:
            off = deviations(one["bad"], some["bad"], one["share"])
            if one["name"] and off > most:
                best, most = {"kind": kind, **one}, off
    return best
