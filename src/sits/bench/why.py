"""Why was it slow?  The last minutes of a live store, decomposed and explained.

Rules: only measured requests, read from what `sitsctl up` recorded; the objective is that of the configuration
that was served (kept beside the tables).  Too few requests for a tail is said, not papered over: an upper bound of
P99 needs `P99_REQUESTS_MIN` of them, and with fewer nothing is called met.  TTFT is that of streamed answers, the only
ones with a first token; where there are too few, the report is about the end-to-end time and judges no TTFT by it.

Answers that are quick do not make up for those that never came: where more went wrong than the objective's availability allows, it is missed.

A window may hold several configurations; the figures are of all requests in it (`bench.recorded_window`), and it says so.

Where only a share of the rows was kept, each counts as often as it stands for.

Deliberately absent: proposals that were not tried.  A live store has no second run; `reproduce` has.
"""

import math
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import numpy as np

from sits.bench.assemble import DEFINITIONS, anatomy, other_latencies
from sits.bench.recorded_window import Recorded, recorded
from sits.core.errors import UnknownError
from sits.core.ports import World
from sits.core.report import P99_REQUESTS_MIN, Availability, LatencySummary, Note, Report, Side
from sits.core.units import MS, SECOND, show_duration
from sits.diagnose.decompose import account, decompose, latency_summary, left_out
from sits.diagnose.outcomes import availability
from sits.diagnose.spectrum import series
from sits.telemetry import joining
from sits.telemetry.store import DuckStore
from sits.telemetry.tables import Columns
from sits.telemetry.thinning import standing_for
from sits.world import stream_generator

LEAST_COMPLETED = 2
METRICS = {"ttft": "time to first token", "e2e": "end-to-end time"}


def why(store: Path, since_ns: int, world: World) -> Report:
    """Report on the requests of the last `since_ns` (wall clock) in a store.

    Raises:
        UnknownError: nothing was recorded in that time, or nothing completed.

    """
    with DuckStore(store, world=world) as opened:
        found = recorded(opened, store, world.wall_ns() - since_ns)
    kept, run_id, joined, fleet = found.tables, found.run_id, found.joined, found.fleet
    tables = msgspec.structs.replace(kept, requests=standing_for(kept.requests))
    promised = fleet.objective.metric if fleet else "ttft"
    objective_ms = (fleet.objective.p99 if fleet else 1_200 * MS) / MS
    done = int(np.sum(tables.requests["outcome"] == "completed")) if tables.requests else 0
    if done < LEAST_COMPLETED:
        raise UnknownError(
            f"{done} completed requests in the last {_span(since_ns)} of {store}{_instead(tables.requests)}",
            field="since",
            value=since_ns,
            hint=_way_out(tables.requests, store),
        )
    streamed = len(decompose(tables.requests, "ttft").rows)
    metric = promised if streamed >= LEAST_COMPLETED else "e2e"
    rng = stream_generator(0, "why")
    parts = anatomy(tables, fleet, metric, objective_ms if metric == promised else math.inf, rng)
    latency = latency_summary(tables.requests, metric, rng)
    side = Side(
        "measured",
        latency=latency,
        others=other_latencies(tables.requests, metric, rng) if streamed >= LEAST_COMPLETED else (),
        account=account(tables.requests),
        series=series(tables.requests, tables.steps, tables.signals, metric),
        fleet=fleet,
        config_digest=run_id.rsplit("-", 1)[-1],
    )
    answered = availability(tables.requests, fleet.objective.availability) if fleet else None
    missed = answered is not None and answered.missed
    judged = _verified(latency, objective_ms) if metric == promised else None
    return Report(
        kind="why",
        title=f"{fleet.name if fleet else run_id}: the last {_span(since_ns)}{_newest_since(found)}",
        headline=_headline(latency, promised, objective_ms) + _went_wrong(answered),
        objective_metric=metric,
        objective_ms=objective_ms,
        seed=0,
        repetitions=1,
        before=side,
        verified=False if missed else judged,
        availability=answered,
        stages=parts.stages,
        who=parts.who,
        waterfalls=parts.waterfalls,
        matrix=parts.matrix,
        spectrum=parts.spectrum,
        findings=parts.findings,
        notes=(
            *DEFINITIONS,
            Note(
                "Source",
                "Requests as measured at the gateway; engine points 5 to 16 are missing where neither an engine nor its spans nor a probe tell them, and show as unattributed.",
            ),
            *_several(found),
            *(Note("What others saw", text) for text in joining.notes(joined)),
            *_sampled(len(kept.requests["outcome"]), len(tables.requests["outcome"])),
            *left_out(tables.requests, metric),
            *_not_streamed(done, streamed, promised, metric),
        ),
    )


def _span(ns: int) -> str:
    """A window as people say it.

    >>> _span(900 * SECOND), _span(45 * SECOND), _span(36 * 3600 * SECOND)
    ('15 min', '45 s', '36 h')
    """
    for unit, size in (("h", 3600 * SECOND), ("min", 60 * SECOND)):
        if ns >= size and ns % size == 0:
            return f"{ns // size} {unit}"
    return show_duration(ns)


def _instead(requests: Columns) -> str:
    """What became of the requests when (nearly) none was completed."""
    outcomes = [one for one in requests["outcome"].tolist() if one != "completed"] if requests else []
    counts = [f"{outcomes.count(one)} {one}" for one in dict.fromkeys(outcomes)]
    return f": {', '.join(counts)}" if counts else ""


def _way_out(requests: Columns, store: Path) -> str:
    if _instead(requests):
        return f"whose failures these were: sitsctl logs timeouts --store {store}; each as a line: sitsctl logs --store {store}"
    return "look further back with --since, or send some traffic first"


def _several(found: Recorded) -> tuple[Note, ...]:
    """Say which configurations served in the window, where it was not one, and what could not be laid beside them."""
    told = []
    if len(found.served) > 1:
        parts = ", ".join(
            f"{one.digest} from {_clock(one.first_wall_ns)} ({one.n:,} requests)" for one in found.served
        )
        told.append(
            Note(
                "Configurations",
                f"{len(found.served)} times a configuration began to serve in this window: {parts}, UTC. The figures are of all of them; the objective and settings are the newest one's.",
            )
        )
    if found.left_out:
        text = f"{found.left_out:,} requests of other machines, or from before the machine started, are not in the figures: their clock is another one."
        told.append(Note("Left out", text))
    return tuple(told)


def _newest_since(found: Recorded) -> str:
    """For the title: that it was not one configuration all the time."""
    if len(found.served) < 2:
        return ""
    newest = found.served[-1]
    return f", {len(found.served)} configurations (the newest, {newest.digest}, since {_clock(newest.first_wall_ns)} UTC)"


def _clock(wall_ns: int) -> str:
    return datetime.fromtimestamp(wall_ns / SECOND, UTC).strftime("%H:%M:%S")


def _sampled(rows: int, requests: int) -> tuple[Note, ...]:
    """Say that rows stand for several requests, where they do."""
    if rows == requests:
        return ()
    text = (
        f"{rows:,} rows were kept of about {requests:,} requests: all that failed or were slow, and a share of the others, each of which "
        "stands for as many as were not kept. Counts and quantiles are of all requests; the slowest are not estimated, for all of them were kept."
    )
    return (Note("Sampled", text),)


def _verified(latency: LatencySummary, objective_ms: float) -> bool | None:
    """Whether the objective is met; None when the requests are too few to say that it is."""
    if latency.p99.high > objective_ms:
        return False
    return True if latency.n >= P99_REQUESTS_MIN else None


def _headline(latency: LatencySummary, promised: str, objective_ms: float) -> str:
    p99 = f"P99 {METRICS[latency.metric]} is {show_duration(latency.p99.value * MS)}"
    objective = f"the objective of {show_duration(objective_ms * MS)}"
    if latency.metric != promised:
        return f"{p99}; {objective} is for the {METRICS[promised]}, which answers that are not streamed do not have."
    if latency.p99.low > objective_ms:
        return f"{p99}, over {objective}."
    verified = _verified(latency, objective_ms)
    if verified is None:
        return f"{p99}, not proven under {objective}: {latency.n} requests are not enough, an upper bound of P99 needs {P99_REQUESTS_MIN}."
    return f"{p99}, {'under' if verified else 'not proven under'} {objective}."


def _went_wrong(answered: Availability | None) -> str:
    """For the headline: that more went wrong than may; empty where it did not."""
    if answered is None or not answered.missed:
        return ""
    return f" {answered.wrong:,} of {answered.of:,} requests went wrong, {100 * answered.wrong / answered.of:.3g} %, and the objective allows {100 * answered.allowed:.3g} %."


def _not_streamed(done: int, streamed: int, promised: str, metric: str) -> tuple[Note, ...]:
    """Say which completed requests are not in TTFT, and what the report is about where it cannot be about that."""
    if done == streamed:
        return ()
    text = f"{done - streamed} of {done} completed requests have no first token, for their answers were not streamed (or were empty); they are in no TTFT."
    if metric != promised:
        text += " The objective is for TTFT, but too few requests have one: this report is about their end-to-end time, and the objective is not judged by it."
    return (Note("Not streamed", text),)
