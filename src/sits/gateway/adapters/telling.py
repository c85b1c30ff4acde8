"""From seats to what the desks are told: which adapters answer where, and why the others do not.

Deliberately absent: state; a view is a function of the seats.
"""

from collections.abc import Mapping

import msgspec

from sits.core.fleet_adapters import RuntimeAdapter
from sits.gateway.adapters.view import View, Why
from sits.policy.adapters import (
    ABSENT,
    LEAVING,
    LOADED,
    LOADING,
    PROVING,
    READY,
    REASONS,
    UNKNOWN,
    UNLOADING,
    Seat,
)

SHOWN = 3
"""Engines named in one explanation."""

DETAIL_CHARACTERS = 160

_DOING = {
    LOADING: "it is being loaded",
    LOADED: "it is loaded and not proven yet",
    PROVING: "it is being proven",
    UNLOADING: "it is being unloaded",
    LEAVING: "it is being unloaded",
}

Seats = Mapping[str, Mapping[str, Seat]]


def view_of(
    seats: Seats, adapters: Mapping[str, RuntimeAdapter], unknown: Mapping[str, tuple[str, str]], before: View
) -> View:
    """The view of `seats`, or `before` when nothing differs.

    `unknown` has the reason and the detail of engines that do not tell what they have.
    """
    ready = {engine: _in_state(mine, READY) for engine, mine in seats.items()}
    leaving = {engine: gone for engine, mine in seats.items() if (gone := _in_state(mine, LEAVING))}
    routable = {name for names in ready.values() for name in names}
    why = {
        name: _why([mine[name] for mine in seats.values() if name in mine], adapter, unknown)
        for name, adapter in adapters.items()
        if name not in routable
    }
    crowded = any(seat.reason == "no_room" for mine in seats.values() for seat in mine.values())
    view = View(before.life, before.generation, ready, leaving, why, crowded)
    return before if view == before else msgspec.structs.replace(view, generation=before.generation + 1)


def _in_state(mine: Mapping[str, Seat], state: str) -> tuple[str, ...]:
    return tuple(name for name, seat in mine.items() if seat.state == state)


def _why(seats: list[Seat], adapter: RuntimeAdapter, unknown: Mapping[str, tuple[str, str]]) -> Why:
    text = "; ".join(f"{seat.engine}: {words(seat)}" for seat in seats[:SHOWN])
    if len(seats) > SHOWN:
        text += f"; and {len(seats) - SHOWN} more engines"
    first = min(
        seats, key=lambda seat: (not seat.failures, seat.reason != "no_room", seat.engine), default=None
    )
    tried = [seat for seat in seats if seat.failures and seat.state in (ABSENT, LOADED)]
    over = [seat for seat in seats if seat.state == ABSENT and not adapter.path]
    down = [seat for seat in seats if seat.state == UNKNOWN and seat.engine in unknown]
    hopeless = bool(tried or over) and len({id(seat) for seat in (*tried, *over, *down)}) == len(seats)
    retry_ns = min((seat.retry_ns for seat in tried), default=0) if hopeless else 0
    return Why(first.reason if first else "not_loaded", text, retry_ns, hopeless)


def words(seat: Seat) -> str:
    """Why a seat is not READY, for people."""
    doing = _DOING.get(seat.state, "")
    text = REASONS.get(seat.reason, REASONS["not_loaded"])
    if seat.detail:
        text = f"{text} ({seat.detail[:DETAIL_CHARACTERS]})"
    if doing and seat.failures:
        return f"{doing} once more, after: {text}"
    return doing or text
