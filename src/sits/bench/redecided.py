"""Yesterday's traffic decided again: as it was, and as another configuration would have it.

First the proof: every record is decided again by the configuration that made it, and must come out the same.  Then the
candidate: what would have gone elsewhere, who would have been refused, and what P99 would have been.

P99 of the candidate: a request that stays where it was keeps its own time.  One that moves to engine X takes the time of a request
of like size that X did answer, drawn anew in each bootstrap replicate among the `NEIGHBOURS` nearest by tokens counted with;
one that is refused takes none.  A row that stands for several requests, of a store that keeps a share of them, counts for so many.  The interval is the 2.5 % and 97.5 % quantile over `DRAWS` replicates, requests resampled too.
It assumes that X answers more requests as fast as it answered those it had; the report says how many more they would be.  When
fewer than `LEAST` requests were answered by an engine that others would move to, nothing is predicted.

Deliberately absent: a model of how engines slow down under more load (`sitsctl reproduce` and the simulator have one).
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec
import numpy as np

from sits.core.breakpoints import API_RECV, FIRST_TOKEN, LAST_TOKEN
from sits.core.config import load_fleet
from sits.core.errors import UnknownError
from sits.core.fleet import Fleet
from sits.core.ports import World
from sits.core.recorded import Facts, Recorded, facts, recorded
from sits.core.units import MS, show_duration
from sits.gateway.redecide import Redecider, Verdict, as_recorded
from sits.telemetry.store import DuckStore

T = TypeVar("T")

NEIGHBOURS, LEAST, DRAWS, SHOWN = 20, 30, 500, 20


class Past(msgspec.Struct, frozen=True):
    """One recorded request: its record, how long it took (ms; 0 = it has no such time), and how many requests it stands for."""

    record: Recorded
    took_ms: float
    weight: float = 1.0


class Move(msgspec.Struct, frozen=True):
    """So many requests that went to `before` would go to `after`: `arm on engine`, or why they were refused."""

    before: str
    after: str
    requests: int


class P99(msgspec.Struct, frozen=True):
    """A P99 with its 95 % interval, ms, of `requests` requests."""

    ms: float
    low_ms: float
    high_ms: float
    requests: int


class Replayed(msgspec.Struct, frozen=True, kw_only=True):
    """What was found.

    Attributes:
        records, identical: decided again, and how many came out the same; different: ids of others (the first ones).
        unknown: records whose configuration is not in the store; undecidable without it.
        stay, moves, refused: of the candidate; `refused` by reason.
        now, candidate: P99 as it was and as it would be; None where too little is known, and `why_not` says what.

    """

    records: int
    identical: int
    different: tuple[str, ...] = ()
    unknown: int = 0
    metric: str = "ttft"
    objective_ms: float = 0.0
    stay: int = 0
    moves: tuple[Move, ...] = ()
    refused: tuple[tuple[str, int], ...] = ()
    now: P99 | None = None
    candidate: P99 | None = None
    why_not: str = ""


class History:
    """What a store knows of the decisions of a time.

    Attributes:
        past: the requests, in the order they came; facts: by version; fleets: by generation.

    """

    def __init__(self, store: Path, since_ns: int, world: World, metric: str = "ttft") -> None:
        with DuckStore(store, world=world) as opened:
            rows = opened.scan("decisions_window", since_wall_ns=world.wall_ns() - since_ns)
            seen = [facts(row["record"]) for row in opened.scan("facts_all")]
        self.facts: dict[int, Facts] = {one.version: one for one in seen}
        self.past = [Past(recorded(row["record"]), _took_ms(row, metric), row["weight"]) for row in rows]
        self.fleets = _fleets(store, {one.record.generation for one in self.past})
        if not self.past:
            raise UnknownError(
                f"no decisions were recorded in the last {show_duration(since_ns)} in {store}",
                field="since",
                value=since_ns,
                hint="look further back with --since, or send some traffic through `sitsctl up` first",
            )


def replay(
    history: History,
    candidate: Fleet | None,
    world: World,
    tell: Callable[[str, int, int], None] = lambda *_: None,
) -> Replayed:
    """Decide the history again, and by `candidate` if there is one; `tell(what, done, total)` hears of progress."""
    makers = {name: Redecider(fleet, world) for name, fleet in history.fleets.items()}
    known = [one for one in history.past if one.record.generation in makers]
    before = [as_recorded(one.record) for one in known]
    again = _decide(known, lambda one: makers[one.record.generation], history.facts, tell, "deciding again")
    different = [one.record.id for one, was, now in zip(known, before, again, strict=True) if was != now]
    found = Replayed(
        records=len(known),
        identical=len(known) - len(different),
        different=tuple(different[:SHOWN]),
        unknown=len(history.past) - len(known),
    )
    if candidate is None:
        return found
    other = Redecider(candidate, world)
    after = _decide(known, lambda _: other, history.facts, tell, "deciding by the candidate")
    return _compared(found, known, before, after, candidate, world)


def _decide(
    past: Sequence[Past],
    by: Callable[[Past], Redecider],
    known: Mapping[int, Facts],
    tell: Callable[[str, int, int], None],
    what: str,
) -> list[Verdict]:
    verdicts = []
    for i, one in enumerate(past):
        if not i % 1000:
            tell(what, i, len(past))
        verdicts.append(by(one).decide(one.record, known))
    return verdicts


def _compared(
    found: Replayed,
    past: Sequence[Past],
    before: Sequence[Verdict],
    after: Sequence[Verdict],
    candidate: Fleet,
    world: World,
) -> Replayed:
    places = [(_place(was), _place(now)) for was, now in zip(before, after, strict=True)]
    moves: dict[tuple[str, str], float] = defaultdict(float)
    refused: dict[str, float] = defaultdict(float)
    for one, pair, was, now in zip(past, places, before, after, strict=True):
        if pair[0] != pair[1]:
            moves[pair] += one.weight
        if now.end and not was.end:
            refused[now.end] += one.weight
    stay = sum(one.weight for one in past) - sum(moves.values())
    now_ms, then_ms, why_not = _predict(past, before, after, world.rng("replay"))
    return msgspec.structs.replace(
        found,
        metric=candidate.objective.metric,
        objective_ms=candidate.objective.p99 / MS,
        stay=round(stay),
        moves=tuple(Move(a, b, round(n)) for (a, b), n in _most(moves)[:SHOWN]),
        refused=tuple((name, round(n)) for name, n in _most(refused)),
        now=now_ms,
        candidate=then_ms,
        why_not=why_not,
    )


def _most(counts: Mapping[T, float]) -> list[tuple[T, float]]:
    return sorted(counts.items(), key=lambda one: -one[1])


def _place(verdict: Verdict) -> str:
    if verdict.end:
        return f"refused: {verdict.end}"
    return f"{verdict.arm} on {verdict.engine}" if verdict.engine else f"{verdict.arm}, no engine asked"


def _predict(
    past: Sequence[Past], before: Sequence[Verdict], after: Sequence[Verdict], rng: np.random.Generator
) -> tuple[P99 | None, P99 | None, str]:
    """P99 as it was and by the candidate."""
    timed = [i for i, one in enumerate(past) if one.took_ms > 0.0]
    if len(timed) < LEAST:
        return None, None, f"{len(timed)} requests have a time; {LEAST} are needed"
    took = np.array([past[i].took_ms for i in timed])
    weights = np.array([past[i].weight for i in timed])
    now = _p99(rng, np.tile(took, (1, 1)), weights)
    donors: dict[str, list[int]] = {}
    for at, i in enumerate(timed):
        donors.setdefault(before[i].engine, []).append(at)
    tokens = np.array([past[i].record.need_tokens for i in timed], dtype=float)
    stays = [at for at, i in enumerate(timed) if after[i].engine == before[i].engine and not after[i].end]
    goes: dict[str, list[int]] = {}
    for at, i in enumerate(timed):
        if not after[i].end and after[i].engine != before[i].engine:
            goes.setdefault(after[i].engine, []).append(at)
    thin = [name for name in goes if len(donors.get(name, ())) < LEAST]
    if thin:
        few = ", ".join(f"{name} ({len(donors.get(name, ()))})" for name in sorted(thin))
        return now, None, f"too few recorded answers of engines that requests would move to: {few}"
    columns, whose = [np.tile(took[stays], (DRAWS, 1))], [weights[stays]]
    for name, moved in goes.items():
        there = np.array(donors[name])
        near = np.argsort(np.abs(tokens[moved][:, None] - tokens[there][None, :]), axis=1)[:, :NEIGHBOURS]
        drawn = rng.integers(near.shape[1], size=(DRAWS, len(moved)))
        columns.append(took[there[near[np.arange(len(moved)), drawn]]])
        whose.append(weights[moved])
    return now, _p99(rng, np.concatenate(columns, axis=1), np.concatenate(whose)), ""


def _p99(rng: np.random.Generator, times: np.ndarray, weights: np.ndarray) -> P99 | None:
    """P99 of rows of times, requests resampled; `times` has one row, or one a replicate; each column stands for `weights` requests."""
    count = times.shape[1]
    if not count:
        return None
    values = np.empty(DRAWS)
    for draw in range(DRAWS):
        row = times[draw % len(times)]
        picked = rng.integers(count, size=count)
        values[draw] = _quantile(row[picked], weights[picked], 0.99)
    low, high = np.quantile(values, [0.025, 0.975])
    middle = np.median([_quantile(row, weights, 0.99) for row in times])
    return P99(float(middle), float(low), float(high), round(float(weights.sum())))


def _quantile(values: np.ndarray, weights: np.ndarray, level: float) -> float:
    """The quantile of values that stand for `weights` each; linear between neighbours where all stand for one."""
    if (weights == 1.0).all():
        return float(np.quantile(values, level))
    order = np.argsort(values)
    reached = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(reached, level * reached[-1])])


def _took_ms(row: Mapping[str, object], metric: str) -> float:
    seen = str(row["exactness"])
    end = FIRST_TOKEN if metric == "ttft" else LAST_TOKEN
    name = "first_token" if metric == "ttft" else "last_token"
    if seen[API_RECV] == "0" or seen[end] == "0":
        return 0.0
    return (int(str(row[name])) - int(str(row["api_recv"]))) / MS


def _fleets(store: Path, generations: set[str]) -> dict[str, Fleet]:
    """The configurations of those generations that the store has kept."""
    found = {}
    for name in generations:
        path = store / f"fleet-{name}.yaml"
        if path.is_file():
            found[name] = load_fleet(path.read_text(), str(path))
    return found
