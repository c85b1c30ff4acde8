"""Holding requests for a batching window, one holder an engine; `policy.window` decides, this waits.

A held request has a `Seat`.  Requests that are sent together are one `Call`; those for embeddings are merged into one request of the
engine's (`gateway.joint`), others are sent side by side, for an engine that gathers what comes at one time.

Rules: seats of one window are sent together, in the order they came; a full batch goes at once; nobody waits longer than the
window; one timer a holder at most; a request whose client leaves drops out of the window at once; what is under way is what
was sent and has not ended, whatever became of it.

Deliberately absent: the window's length (policy), and a bound on how many wait (admission has it).
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Mapping
from typing import TYPE_CHECKING, Final

from sits.core.fleet import Fleet, batches_of
from sits.core.fleet_window import ENDPOINTS, Window, holds
from sits.core.ports import Engine, World
from sits.core.request import Chunk, Request
from sits.core.timeline import Timeline
from sits.core.units import SECOND
from sits.engine.waiter import Waiter
from sits.gateway.joint import Joint, joined
from sits.gateway.metrics import Vitals, engine_label
from sits.policy.pace import Pace
from sits.policy.window import FEEDBACK_NS

if TYPE_CHECKING:
    from sits.gateway.exchange import Exchange
    from sits.gateway.pipeline import Gateway

SEEN_MOST: Final = 512
"""Answers whose P99 is looked at, the first of each five seconds; so many tell a P99 within a third."""

REFUSALS_MOST, PAUSE_NS = 3, 60 * SECOND
"""After so many merged calls in a row that had to be taken apart, an engine is spared them for a minute."""


def hold_in_window(gateway: "Gateway", exchange: "Exchange") -> Awaitable[None] | None:
    """Wait for company; for engines that batch by call."""
    replica, request = exchange.replica, exchange.request
    assert replica is not None
    holder = gateway.holders.get(replica.id)
    if holder is None or request.endpoint not in holder.endpoints:
        return None
    seat = exchange.seat = holder.hold(request)
    return seat if seat.call is None else None


def holders_of(
    fleet: Fleet, world: World, before: "Mapping[str, Holder] | None" = None
) -> "dict[str, Holder]":
    """A holder for each engine that the configuration holds requests for; what those of the generation before learnt goes on."""
    window, made = fleet.policy.window, {}
    for engine in fleet.engines:
        endpoints = frozenset(path for path in ENDPOINTS if holds(window, batches_of(engine), path))
        if not endpoints:
            continue
        holder = made[engine.name] = Holder(window, world, fleet.objective.p99, endpoints)
        old = (before or {}).get(engine.name)
        if old is None:
            continue
        holder.calls, holder.requests, holder.apart = old.calls, old.requests, old.apart
        if (old.config, old.pace.objective_ns) == (window, holder.pace.objective_ns):
            holder.pace = old.pace
    return made


def vitals_of(holders: "Mapping[str, Holder]") -> Vitals:
    """What windows count."""
    by_label = {engine_label(name): holder for name, holder in holders.items()}
    return {
        "sits_window_pending": {label: holder.pending for label, holder in by_label.items()},
        "sits_window_calls_total": {label: holder.calls for label, holder in by_label.items()},
        "sits_window_requests_total": {label: holder.requests for label, holder in by_label.items()},
        "sits_window_apart_total": {label: holder.apart for label, holder in by_label.items()},
    }


class Call:
    """Seats that were sent together; `alone` tells that no other call was under way."""

    __slots__ = ("alone", "left", "sent_ns", "size")

    def __init__(self, size: int, sent_ns: int, alone: bool) -> None:
        self.size = self.left = size
        self.sent_ns = sent_ns
        self.alone = alone


class Seat(Waiter):
    """One held request; awaited until it is sent, `call` is None before.  `joint` is the merged request it goes by, if any."""

    __slots__ = ("arrived_ns", "call", "holder", "joint", "place", "request")

    def __init__(self, holder: "Holder", request: Request, arrived_ns: int) -> None:
        super().__init__()
        self.holder = holder
        self.request = request
        self.arrived_ns = arrived_ns
        self.call: Call | None = None
        self.joint: Joint | None = None
        self.place = 0

    def answer(
        self, engine: Engine, request: Request, timeline: Timeline, *, again: bool
    ) -> AsyncIterator[Chunk]:
        """The engine's answer: its share of a joint one, unless it is tried again."""
        if self.joint is None or again:
            return engine.generate(request, timeline)
        return self.joint.part(self.place, engine, request, timeline)

    def leave(self) -> None:
        """Its request is over; call it once."""
        self.holder.left(self)


class Holder:
    """The window in front of one engine."""

    def __init__(
        self,
        config: Window,
        world: World,
        objective_ns: int = SECOND,
        endpoints: frozenset[str] = frozenset(ENDPOINTS),
    ) -> None:
        self.config = config
        self.endpoints = endpoints
        self.pace = Pace(config, objective_ns)
        self.calls = self.requests = self.apart = 0
        self._now_ns = world.now_ns
        self._waiting: list[Seat] = []
        self._under_way = 0
        self._length_ns = 0
        self._timer: asyncio.TimerHandle | None = None
        self._due_ns = 0
        self._due_is_set = config.kind != "adaptive" or config.reaction != "slack"
        self._seen: list[tuple[int, int]] = []
        self._look_ns = 0
        self._refusals = 0
        self._merge_from_ns = 0

    @property
    def pending(self) -> int:
        """Requests held right now."""
        return len(self._waiting)

    @property
    def under_way(self) -> int:
        """Requests sent and not ended."""
        return self._under_way

    def hold(self, request: Request) -> Seat:
        """A seat for `request`: to be awaited, unless its call is set already."""
        now_ns, pace, waiting = self._now_ns(), self.pace, self._waiting
        if not waiting:
            self._length_ns = pace.length_ns
        if pace.learns_arrivals:
            pace.arrived(now_ns)
        seat = Seat(self, request, now_ns)
        waiting.append(seat)
        if self._due_is_set and 1 < len(waiting) < self.config.max_batch:
            return seat
        self._send_or_wait(now_ns)
        return seat

    def left(self, seat: Seat) -> None:
        """A seat's request is over: answered, failed, or its client gone."""
        call = seat.call
        if call is None:
            self._waiting.remove(seat)
            if not self._waiting:
                self._disarm()
            return
        now_ns = self._now_ns()
        self._under_way -= 1
        call.left -= 1
        if not call.left and call.alone:
            self.pace.call.took(call.size, now_ns - call.sent_ns)
        if self.pace.takes_feedback:
            if len(self._seen) < SEEN_MOST:
                self._seen.append((now_ns - seat.arrived_ns, call.sent_ns - seat.arrived_ns))
            if now_ns >= self._look_ns:
                self._look(now_ns)
        if self._waiting:
            self._send_or_wait(now_ns)

    def told(self, *, apart: bool) -> None:
        """Whether the engine's answer to a merged request could be shared out."""
        self.apart += apart
        self._refusals = self._refusals + 1 if apart else 0
        if self._refusals >= REFUSALS_MOST:
            self._refusals, self._merge_from_ns = 0, self._now_ns() + PAUSE_NS

    def _until_ns(self) -> int:
        oldest = self._waiting[0]
        return self.pace.until_ns(
            self._length_ns,
            len(self._waiting),
            oldest.arrived_ns,
            self._under_way,
            oldest.request.deadline_ns,
        )

    def _send_or_wait(self, now_ns: int) -> None:
        until_ns = self._until_ns()
        if until_ns <= now_ns:
            self._send(now_ns)
        elif self._timer is None or until_ns < self._due_ns:
            self._arm(until_ns, now_ns)

    def _send(self, now_ns: int) -> None:
        self._disarm()
        seats, self._waiting = self._waiting, []
        size = len(seats)
        call = Call(size, now_ns, not self._under_way)
        self._under_way += size
        self.calls += 1
        self.requests += size
        if size > 1 and now_ns >= self._merge_from_ns:
            for seat, joint, place in joined(self, seats):
                seat.joint, seat.place = joint, place
        for seat in seats:
            seat.call = call
        for seat in seats:
            seat.wake()

    def _look(self, now_ns: int) -> None:
        """Tell the pace of the recent P99; the first time, only begin to collect."""
        if self._look_ns:
            whole, waited = zip(*self._seen, strict=True)
            at = int(0.99 * (len(whole) - 1))
            self.pace.saw_p99(sorted(whole)[at], sorted(waited)[at])
            self._seen = []
        self._look_ns = now_ns + FEEDBACK_NS

    def _arm(self, due_ns: int, now_ns: int) -> None:
        self._disarm()
        self._due_ns = due_ns
        self._timer = asyncio.get_running_loop().call_later((due_ns - now_ns) / SECOND, self._timeout)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _timeout(self) -> None:
        self._timer = None
        now_ns = self._now_ns()
        if self._due_is_set:  # also where the loop's clock, which counts in milliseconds, is a little early
            self._send(now_ns)
        else:
            self._send_or_wait(now_ns)
