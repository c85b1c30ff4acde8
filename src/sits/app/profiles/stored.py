"""Profiles of a gateway's store, of a window; and which requests in it were the slow ones.

Rules: slow is the slowest `SLOW` of completed requests, by time from the first byte in to the last byte out; where only some rows were kept
(`policy.sample`), each counts for what it stands for.  A store that is written at the moment is read like any other.

Deliberately absent: comparing (telemetry.profile.compare), drawing.
"""

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from sits.core.errors import UnknownError
from sits.core.ports import World
from sits.telemetry.profile.compare import Comparison, compare
from sits.telemetry.profile.kept import in_window, joined
from sits.telemetry.profile.profile import Profile
from sits.telemetry.store import DuckStore

SLOW = 0.01


def profiles_in(
    store: Path,
    world: World,
    *,
    since_wall_ns: int,
    until_wall_ns: int | None = None,
    process: str = "",
    digest: str | None = None,
) -> list[Profile]:
    """The profiles of a window, of one process or of all; with `digest` those of the newest run, if it served that configuration."""
    until = world.wall_ns() if until_wall_ns is None else until_wall_ns
    with DuckStore(store, world=world) as opened:
        rows = list(
            opened.scan(
                "profiles_window", since_wall_ns=since_wall_ns, until_wall_ns=until, process=process or None
            )
        )
    if digest is not None and rows:
        newest = max(rows, key=lambda row: int(row["wall_ns"]))["run_id"]
        if not newest.endswith(digest):
            return []
        rows = [row for row in rows if row["run_id"] == newest]
    return list(in_window(rows, since_wall_ns, until))


def profile_in(
    store: Path, world: World, *, since_wall_ns: int, process: str = "", others: Iterable[Profile] = ()
) -> Profile:
    """All of a window as one profile, with those of `others` (an engine's) that are of the same time.

    Raises:
        UnknownError: there is none.

    """
    found = profiles_in(store, world, since_wall_ns=since_wall_ns, process=process)
    if not found:
        raise UnknownError(
            f"no profiles{' of ' + process if process else ''} in that time in {store}",
            field="since",
            hint="`sitsctl profile gateway` takes one now; `telemetry: {profile: {hz: 100}}` takes them always",
        )
    return joined(found, others)


def slow_traces(store: Path, world: World, *, since_wall_ns: int) -> dict[str, bool]:
    """Of each completed request of the window, by trace: whether it is one of the slow."""
    with DuckStore(store, world=world) as opened:
        found = opened.columns("request_spans", since_wall_ns=since_wall_ns)
    traces, spans, weights = found["trace"], found["span_ns"], found["weight"]
    if not len(traces):
        return {}
    order = np.argsort(spans, kind="stable")[::-1]
    before = np.cumsum(weights[order]) - weights[order]
    slow = np.zeros(len(traces), dtype=bool)
    slow[order] = before < SLOW * weights.sum()
    made: dict[str, bool] = {}
    for trace, is_slow in zip(traces.tolist(), slow.tolist(), strict=True):
        made[trace] = made.get(trace, False) or is_slow  # requests of one trace: a slow one makes it slow
    return made


def compared_in(store: Path, world: World, profile: Profile, *, since_wall_ns: int) -> Comparison:
    """The slow requests' samples of a profile against the others'."""
    slow = slow_traces(store, world, since_wall_ns=since_wall_ns)
    return compare(profile, slow.get)
