"""What a store recorded in a window, as one set of tables: of all configurations that served in it, as far as they share a clock.

A reload begins a run of its own, and so does a restart; whoever asks about the last quarter of an hour means all of it, the more so
when somebody has just rolled back.  Runs are laid together when the offset of their wall clock to their monotonic clock, which is
the machine's, agrees with the newest run's within `SAME_CLOCK_NS`; they then count as one.  Runs of another machine, or from before the
machine started, are left out and named.

Beside the points stands `injected_ns`: how long a fault that the run's own configuration put in on purpose held a request.  It is found
again, not recorded: the share is drawn from the request's id, and the request waited that long before it was routed.  The first
injection that fits what a row knows (model or adapter asked for, tenant) is taken.

Deliberately absent: what the figures mean.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from sits.bench.assemble import Tables
from sits.core.config import load_fleet
from sits.core.errors import UnknownError
from sits.core.fleet import Fleet
from sits.core.units import MS, SECOND
from sits.policy.inject import drawn
from sits.telemetry import joining
from sits.telemetry.joining import Joined
from sits.telemetry.store import DuckStore
from sits.telemetry.tables import Columns

SAME_CLOCK_NS = 1 * SECOND
EARLY_NS = 2 * MS
"""Timers of an event loop fire up to a millisecond early."""


class Served(msgspec.Struct, frozen=True):
    """One configuration's time in the window: `digest` names it, `n` rows are of it, the first came at `first_wall_ns`."""

    digest: str
    n: int
    first_wall_ns: int


class Recorded(msgspec.Struct, frozen=True):
    """The tables, the newest run and its configuration, who served, and how many rows of other clocks were left out."""

    tables: Tables
    run_id: str
    fleet: Fleet | None
    joined: Joined
    served: tuple[Served, ...]
    left_out: int


def recorded(store: DuckStore, path: Path, since_wall_ns: int) -> Recorded:
    """All that was recorded from `since_wall_ns` on, on the clock of the newest run.

    Raises:
        UnknownError: nothing was.

    """
    runs = [run for run in store.scan("runs") if run["last_wall_ns"] >= since_wall_ns]
    if not runs:
        raise UnknownError(
            "nothing was recorded in that time",
            field="since",
            value=since_wall_ns,
            hint="look further back with --since",
        )
    newest = max(runs, key=lambda run: (run["last_wall_ns"], run["run_id"]))
    ours = {run["run_id"] for run in runs if _same_clock(run, newest)}
    every: Columns = store.columns("requests_window", since_wall_ns=since_wall_ns)
    mine = np.array([run in ours for run in every["run_id"].tolist()], dtype=bool)
    requests = {name: column[mine] for name, column in every.items()}
    fleets = {run: fleet_served(path, run) for run in sorted(ours)}
    requests["injected_ns"] = injected_ns(requests, fleets)
    joined = joining.completed(requests, store.columns("sightings_window", since_wall_ns=since_wall_ns))
    arrived = requests["api_recv"][requests["api_recv"] > 0]
    start_ns = int(arrived.min()) if len(arrived) else None
    steps, signals = (
        _of(store.columns(table, start_ns=start_ns), ours, newest["run_id"])
        for table in ("steps_window", "signals_window")
    )
    return Recorded(
        Tables(_of(joined.requests, ours, newest["run_id"]), steps, signals),
        newest["run_id"],
        fleets[newest["run_id"]],
        joined,
        _served(requests),
        int((~mine).sum()),
    )


def fleet_served(store: Path, run_id: str) -> Fleet | None:
    """The configuration a run was served with, when its file is still beside the tables."""
    file = store / f"fleet-{_digest(run_id)}.yaml"
    return load_fleet(file.read_text(), file.name) if file.is_file() else None


def injected_ns(requests: Columns, fleets: Mapping[str, Fleet | None]) -> np.ndarray:
    """(n,) ns each request was held by an injected delay of the configuration that served it; 0 where none."""
    held = np.zeros(len(requests["id"]), dtype=np.int64)
    whose = requests["run_id"].astype(str)
    waited = np.maximum(requests["routed"] - requests["authorized"], 0)
    for run, fleet in fleets.items():
        delays = [one for one in fleet.injections if one.delay] if fleet else []
        for row in np.flatnonzero(whose == run) if delays else ():
            draw = drawn(requests["id"][row])
            for one in delays:
                if (
                    draw < one.share
                    and waited[row] >= one.delay - EARLY_NS
                    and _fits(one.match, requests, row)
                ):
                    held[row] = min(one.delay, waited[row])
                    break
    return held


def _fits(match: Any, requests: Columns, row: Any) -> bool:
    names = (requests["model"][row], requests["adapter"][row])
    return match.tenant in ("", requests["tenant"][row]) and (not match.model or match.model in names)


def _same_clock(run: Mapping[str, Any], newest: Mapping[str, Any]) -> bool:
    if run is newest:
        return True
    if (
        run["start_ns"] is None or newest["start_ns"] is None
    ):  # a run whose requests all lack their first point
        return False
    offsets = [one["first_wall_ns"] - one["start_ns"] for one in (run, newest)]
    return bool(abs(offsets[0] - offsets[1]) <= SAME_CLOCK_NS)


def _of(columns: Columns, ours: set[str], name: str) -> Columns:
    """Rows of these runs, as of one run."""
    if "run_id" not in columns or not len(columns["run_id"]):
        return columns
    mine = np.array([run in ours for run in columns["run_id"].tolist()], dtype=bool)
    found = {key: column[mine] for key, column in columns.items()}
    found["run_id"] = np.full(int(mine.sum()), name, dtype=object)
    return found


def _served(requests: Columns) -> tuple[Served, ...]:
    """Which configurations the requests met, in order of time."""
    runs = requests["run_id"].astype(str)
    found = []
    for run in dict.fromkeys(runs.tolist()):
        some = runs == run
        found.append(Served(_digest(run), int(some.sum()), int(requests["wall_ns"][some].min())))
    return tuple(sorted(found, key=lambda one: one.first_wall_ns))


def _digest(run_id: str) -> str:
    return run_id.rsplit("-", 1)[-1]
