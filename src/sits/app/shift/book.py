"""The book of a shift: how far it has come, what was seen, what happened, on disk beside the store.

```
shift.json        the book; written by the keeper alone, each time it has watched, by rename, so that it is always whole
shift-order.json  the last order of a person (`sitsctl shift ...`); written by the command alone, obeyed once
```
One writer a file, so nobody locks anything.  A gateway's weights are those of its file as the book changes them (`overlaid`): read
again, restarted or killed, it comes back to the same ones.

Rules: the book belongs to one plan; when the file's plan is another one, the book changes nothing any more.
A curve of at most `POINTS_MAX` points is kept of the evidence; when it is full, every second one goes.

Deliberately absent: judging (`policy.shift`) and watching (`app.shift.controller`).
"""

import hashlib
import os
from pathlib import Path
from typing import Literal, TypeVar

import msgspec

from sits.core.errors import ConfigError
from sits.core.fleet import Fleet
from sits.core.route_rules import arms_of
from sits.policy.shift import Plan, State, plan_of, with_share

T = TypeVar("T", bound=msgspec.Struct)

BOOK, ORDER = "shift.json", "shift-order.json"
POINTS_MAX = 240
EVENTS_MAX = 200

Verb = Literal["start", "halt", "rollback"]


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened: when, what, the arm's share after it, and why."""

    wall_ns: int
    what: str
    share: float
    why: str = ""


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What a person wants; `number` tells a new order from the one obeyed last."""

    number: int
    verb: Verb
    wall_ns: int


class Book(msgspec.Struct, kw_only=True):
    """A shift from its start to now.

    Attributes:
        plan: name of the plan it carries out, empty when no shift was ever started; obeyed: number of the last order.
        watched_ns, seen_wall_ns: watched in all, and when last.
        curve: points `(watched seconds, step, evidence of each test in the plan's order)`; every `stride`-th look is one.

    """

    plan: str
    state: State
    obeyed: int = 0
    watched_ns: int = 0
    seen_wall_ns: int = 0
    looks: int = 0
    stride: int = 1
    history: list[Event] = []
    curve: list[tuple[float, ...]] = []

    def note(self, event: Event) -> None:
        """Keep an event; the oldest after the start go first."""
        self.history.append(event)
        if len(self.history) > EVENTS_MAX:
            del self.history[1]

    def draw(self, point: tuple[float, ...]) -> None:
        """Keep a point of the curve, at equal distances."""
        if self.looks % self.stride == 0:
            self.curve.append(point)
            if len(self.curve) > POINTS_MAX:
                self.curve = self.curve[::2]
                self.stride *= 2
        self.looks += 1


def plan_name(fleet: Fleet) -> str:
    """What a plan is known by: the shift and the arms it is about, as the file has them; empty when there is none."""
    shift = fleet.shift
    if shift is None:
        return ""
    said = msgspec.json.encode((shift, arms_of(fleet, shift), fleet.objective), order="sorted")
    return hashlib.sha256(said).hexdigest()[:16]


def share_now(plan: Plan, state: State) -> float:
    """The arm's share: that of its step, and none once it was taken back."""
    return 0.0 if state.status == "rolled_back" else plan.steps[state.step]


def overlaid(fleet: Fleet, book: Book | None) -> Fleet:
    """The fleet with the weights its shift has come to; the fleet itself when no book is about its plan."""
    plan, shift = plan_of(fleet), fleet.shift
    if book is None or plan is None or shift is None or book.plan != plan_name(fleet):
        return fleet
    if book.state.status == "superseded":
        return fleet
    share = share_now(plan, book.state)
    if shift.route:
        routes = tuple(
            msgspec.structs.replace(rule, arms=with_share(rule.arms, shift.arm, share))
            if rule.name == shift.route
            else rule
            for rule in fleet.routes
        )
        return msgspec.structs.replace(fleet, routes=routes)
    policy = fleet.policy
    if shift.model:
        releases = tuple(
            msgspec.structs.replace(one, arms=with_share(one.arms, shift.arm, share))
            if one.model == shift.model
            else one
            for one in policy.releases
        )
        policy = msgspec.structs.replace(policy, releases=releases)
    else:
        release = msgspec.structs.replace(
            policy.release, arms=with_share(policy.release.arms, shift.arm, share)
        )
        policy = msgspec.structs.replace(policy, release=release)
    return msgspec.structs.replace(fleet, policy=policy)


def read_book(store: Path) -> Book | None:
    """The book in `store`; None when there is none.

    Raises:
        ConfigError: what is there is no book.

    """
    return _read(store / BOOK, Book)


def read_order(store: Path) -> Order | None:
    """The last order; None when there is none."""
    return _read(store / ORDER, Order)


def write(store: Path, what: Book | Order) -> None:
    """Put a book or an order in its place, whole or not at all."""
    path = store / (BOOK if isinstance(what, Book) else ORDER)
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    temporary.write_bytes(msgspec.json.encode(what))
    temporary.replace(path)


def _read(path: Path, kind: type[T]) -> T | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        return None
    except msgspec.DecodeError as error:
        raise ConfigError(
            f"is not of a shift: {error}",
            where=str(path),
            hint="move the file away; the shift then has to be started again",
        ) from error
