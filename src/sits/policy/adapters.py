"""Runtime adapters: what to load where, what to prove again, what to evict, and what an answer proves.

A `Seat` is one adapter at one engine.  Its states:

```
UNKNOWN --listed--> LOADED --prove--> PROVING --proven--> READY --leave--> LEAVING --idle--> UNLOADING --> ABSENT
   |                  ^                  |                                                                   |
   +--not listed--> ABSENT --load--> LOADING                     any --engine restarted, silent--> UNKNOWN <-+
```
Only READY answers requests.  UNKNOWN is not ABSENT: of an engine that does not tell what it has, nothing may be assumed.

`next_step` looks at one engine and one moment, and says the one thing to do there, or why nothing: an engine does one thing at a
time, because a load stalls its batch.  In this order:

1. prove what is loaded and not proven; ask again what is READY and was proven longer than `every` ago;
2. load the adapter that is wanted most: asked for longest ago first, then those short of `copies` or lost with an engine.  An adapter is loaded where
   there is a free slot before where one must be evicted, and at the less busy engine; so an engine leaves it to a better one;
3. make room for it: leave the seat used longest ago (LRU) that has no request in flight, is not asked for, and is not one of
   the `copies` that must stay.

After a failure a seat waits `backoff x 2^(failures - 1)`, at most `backoff_max`, times 0.5..1 by the draw handed in.

`judge` says what an answer proves: it must lie within `tolerance` of the registered fingerprint, and outside of it of the base
model's; an engine that quietly answers with its base passes every other test.

Deliberately absent: the loading itself (gateway.adapters), clocks, dice.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from sits.core.decision import Decision
from sits.core.fingerprint import Fingerprint, distance
from sits.core.fleet_adapters import RuntimeAdapter, RuntimeAdapters

State = Literal["unknown", "absent", "loading", "loaded", "proving", "ready", "leaving", "unloading"]
UNKNOWN: State = "unknown"
ABSENT: State = "absent"
LOADING: State = "loading"
LOADED: State = "loaded"
PROVING: State = "proving"
READY: State = "ready"
LEAVING: State = "leaving"
UNLOADING: State = "unloading"

HOLDING = frozenset({LOADING, LOADED, PROVING, READY, LEAVING, UNLOADING})
"""States in which a seat takes one of the engine's slots."""

AT_WORK = frozenset({LOADING, PROVING, UNLOADING})

REASONS: Mapping[str, str] = {
    "starting": "the engine has not been asked yet",
    "not_loaded": "it is not loaded",
    "evicted": "it was unloaded to make room",
    "no_room": "all slots are taken by adapters that are busy, asked for or kept",
    "engine_unreachable": "the engine cannot be reached",
    "engine_silent": "the engine does not say what it has loaded",
    "engine_restarted": "the connection to the engine broke: it may have restarted",
    "engine_error": "the engine failed",
    "engine_timeout": "the engine did not answer in time",
    "lora_disabled": "the engine takes no adapters at run time (vLLM: VLLM_ALLOW_RUNTIME_LORA_UPDATING=True, --enable-lora)",
    "path_not_found": "the engine finds no adapter at its path",
    "refused": "the engine refuses it",
    "files_missing": "its files are not there",
    "files_changed": "its files changed while it was loaded or proven",
    "digest_mismatch": "its files have another digest than the configuration says",
    "path_reused": "its files changed under the same path, for which the engine keeps KV blocks of the old ones",
    "not_listed": "the engine took it and does not list it",
    "other_path": "the engine has it from another path",
    "vanished": "the engine no longer lists it",
    "denied": "the engine denied having it when asked by a request",
    "names_base": "the answer says it is another model's",
    "answers_as_base": "it answers as the base model does",
    "base_unsteady": "the base model's answer is not steady enough to tell it from",
    "fingerprint_mismatch": "it answers unlike its registered fingerprint",
    "probe_failed": "the probe got no usable answer",
}
"""Why a seat is not READY: the word that is counted, and its meaning for people.  The set is closed, so counters are bounded."""

UNPROVEN = frozenset(
    {
        "not_listed",
        "other_path",
        "names_base",
        "answers_as_base",
        "fingerprint_mismatch",
        "files_changed",
        "digest_mismatch",
    }
)
"""Reasons that speak against what is loaded: it is unloaded, so that it takes no slot and can be loaded again."""


class Seat(msgspec.Struct, kw_only=True):
    """One adapter at one engine.

    Attributes:
        reason: why it is not READY; detail: in the engine's own words.
        failures: in a row; retry_ns: nothing is tried before.
        proven_ns: when it was last proven; since_ns: when this state began.
        inflight: requests it is answering; used_ns: when the last one came.
        lost: it was READY and nobody wished it gone; until the adapter is READY again somewhere, it is wanted for that.

    """

    engine: str
    adapter: str
    state: State = UNKNOWN
    reason: str = "starting"
    detail: str = ""
    failures: int = 0
    retry_ns: int = 0
    since_ns: int = 0
    proven_ns: int = 0
    inflight: int = 0
    used_ns: int = 0
    lost: bool = False


class Berth(msgspec.Struct, kw_only=True):
    """One engine, as far as adapters go.

    Attributes:
        foreign: adapters it has that the configuration does not name; they take slots.
        known: it has told what it has loaded.
        busy: tokens in flight there.

    """

    engine: str
    models: tuple[str, ...]
    slots: int
    foreign: int = 0
    known: bool = False
    busy: int = 0


def next_step(
    berth: Berth,
    berths: Sequence[Berth],
    seats: Mapping[str, Mapping[str, Seat]],
    control: RuntimeAdapters,
    demand_ns: Mapping[str, int],
    now_ns: int,
) -> Decision:
    """The one thing to do at `berth`, which is one of `berths`.

    `seats` are by engine and adapter, at every engine that serves the adapter's model; `demand_ns` says which adapters are
    asked for, and since when.

    Outcomes: `prove`, `prove_again`, `load`, `evict` (choice = the adapter); `busy`, `unknown`, `enough`, `no_room`.

    """
    mine = seats[berth.engine]
    if not berth.known:
        return _decide(berth, "unknown")
    if at_work := [seat.adapter for seat in mine.values() if seat.state in AT_WORK]:
        return _decide(berth, "busy", adapters=at_work)
    unproven = [seat for seat in mine.values() if seat.state == LOADED and seat.retry_ns <= now_ns]
    if unproven:
        first = min(unproven, key=lambda seat: (demand_ns.get(seat.adapter, now_ns), seat.adapter))
        return _decide(berth, "prove", first.adapter, failures=first.failures)
    starved = ""
    for adapter in _wanted(control, seats, demand_ns):
        if _best(adapter, berths, seats, control, demand_ns, now_ns) != berth.engine:
            continue
        if _free(berth, mine) > 0:
            return _decide(berth, "load", adapter.name, free=_free(berth, mine))
        if leaving := [seat.adapter for seat in mine.values() if seat.state == LEAVING]:
            return _decide(berth, "busy", adapters=leaving)
        victim = _victim(mine, seats, control, demand_ns)
        if victim is not None:
            return _decide(berth, "evict", victim.adapter, for_adapter=adapter.name, used_ns=victim.used_ns)
        starved = starved or adapter.name
    if again := _due(mine, control.probe.every, now_ns):
        return _decide(berth, "prove_again", again.adapter, proven_ns=again.proven_ns)
    if starved:
        return _decide(berth, "no_room", starved, slots=berth.slots, foreign=berth.foreign)
    return _decide(berth, "enough")


def _decide(berth: Berth, outcome: str, choice: str = "", **reasons: object) -> Decision:
    return Decision(
        policy="adapters", outcome=outcome, choice=choice, reasons={"engine": berth.engine, **reasons}
    )


def _wanted(
    control: RuntimeAdapters, seats: Mapping[str, Mapping[str, Seat]], demand_ns: Mapping[str, int]
) -> list[RuntimeAdapter]:
    """The adapters short of seats, the one wanted most first."""
    short = []
    for adapter in control.adapters:
        lost = any(mine[adapter.name].lost for mine in seats.values() if adapter.name in mine)
        need = max(adapter.copies, 1 if lost or adapter.name in demand_ns else 0)
        if adapter.path and need > _had(adapter.name, seats):
            short.append(adapter)
    return sorted(short, key=lambda a: (a.name not in demand_ns, demand_ns.get(a.name, 0), a.name))


def _had(adapter: str, seats: Mapping[str, Mapping[str, Seat]]) -> int:
    """Seats that answer for it or are on the way there; what failed its proof is not."""
    count = 0
    for at_engine in seats.values():
        seat = at_engine.get(adapter)
        if seat is not None and (
            seat.state in (LOADING, PROVING, READY) or (seat.state == LOADED and not seat.failures)
        ):
            count += 1
    return count


def _best(
    adapter: RuntimeAdapter,
    berths: Sequence[Berth],
    seats: Mapping[str, Mapping[str, Seat]],
    control: RuntimeAdapters,
    demand_ns: Mapping[str, int],
    now_ns: int,
) -> str:
    """Of all engines that could load it now the one that should: idle, with room, little to do; empty when there is none."""
    best, best_rank = "", (False, 0, 0, "")
    for berth in berths:
        mine = seats[berth.engine]
        seat = mine.get(adapter.name)
        if seat is None or not berth.known or seat.state != ABSENT or seat.retry_ns > now_ns:
            continue
        if _free(berth, mine) > 0:
            room = 0
        else:
            leaving = any(other.state == LEAVING for other in mine.values())
            room = 1 if leaving or _victim(mine, seats, control, demand_ns) is not None else 2
        at_work = any(other.state in AT_WORK for other in mine.values())
        rank = (at_work, room, berth.busy, berth.engine)
        if not best or rank < best_rank:
            best, best_rank = berth.engine, rank
    return best


def _free(berth: Berth, mine: Mapping[str, Seat]) -> int:
    return berth.slots - berth.foreign - sum(seat.state in HOLDING for seat in mine.values())


def _victim(
    mine: Mapping[str, Seat],
    seats: Mapping[str, Mapping[str, Seat]],
    control: RuntimeAdapters,
    demand_ns: Mapping[str, int],
) -> Seat | None:
    """The seat to give up: idle, asked for by nobody, not needed for its `copies`; used longest ago."""
    copies = {adapter.name: adapter.copies for adapter in control.adapters if adapter.path}
    idle = [
        seat
        for seat in mine.values()
        if seat.state in (READY, LOADED)
        and not seat.inflight
        and seat.adapter in copies
        and seat.adapter not in demand_ns
        and (seat.failures or _had(seat.adapter, seats) > copies[seat.adapter])
    ]
    return min(idle, key=lambda seat: (not seat.failures, seat.used_ns, seat.adapter), default=None)


def _due(mine: Mapping[str, Seat], every_ns: int, now_ns: int) -> Seat | None:
    """The READY seat whose proof is oldest, when it is older than `every_ns` and not being waited for."""
    due = [
        seat
        for seat in mine.values()
        if every_ns and seat.state == READY and now_ns >= max(seat.proven_ns + every_ns, seat.retry_ns)
    ]
    return min(due, key=lambda seat: (seat.proven_ns, seat.adapter), default=None)


def next_change_ns(mine: Iterable[Seat], every_ns: int) -> int:
    """When, without any event, the next step at an engine may become another one; 0 = never."""
    times = []
    for seat in mine:
        if seat.state in (ABSENT, LOADED) and seat.retry_ns:
            times.append(seat.retry_ns)
        elif seat.state == READY and every_ns:
            times.append(max(seat.proven_ns + every_ns, seat.retry_ns))
    return min(times, default=0)


def pause_ns(failures: int, backoff_ns: int, most_ns: int, draw: float) -> int:
    """How long to wait after so many failures in a row; `draw` is uniform in 0..1.

    >>> [pause_ns(n, 500, 60_000, 1.0) for n in (1, 2, 3, 99)]
    [500, 1000, 2000, 60000]
    """
    whole = min(most_ns, backoff_ns << min(failures - 1, 32))
    return round(whole * (0.5 + 0.5 * draw))


def judge(
    answer: Fingerprint,
    bases: Sequence[Fingerprint],
    expected: Fingerprint | None,
    tolerance: float,
) -> Decision:
    """What an adapter's answer proves.

    Args:
        answer: what it answered.
        bases: what the base model answers; several when they are known to differ.
        expected: the registered fingerprint; None when this proof is to record it.
        tolerance: how far two answers of the same weights may lie apart, nats.

    Outcomes: `proven`, `answers_as_base`, `fingerprint_mismatch`, `probe_failed` (an answer that cannot be compared).

    """
    from_base = min((distance(answer, base) for base in bases), default=float("inf"))
    from_expected = 0.0 if expected is None else distance(answer, expected)
    if not math.isfinite(from_base):
        outcome = "probe_failed"  # no base to tell it from
    elif expected is not None and from_expected > tolerance:
        # Both may hold; what it answers *as* is the better name for what is wrong.
        outcome = "answers_as_base" if from_base <= tolerance else "fingerprint_mismatch"
    elif from_base <= tolerance:
        outcome = "answers_as_base"
    else:
        outcome = "proven"
    return Decision(
        policy="adapters",
        outcome=outcome,
        reasons={"from_base": from_base, "from_expected": from_expected, "tolerance": tolerance},
    )
