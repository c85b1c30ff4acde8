"""What the keeper and the desks tell each other about adapters.

The keeper alone knows the engines; a desk alone knows the requests.  A `View` says which adapters answer where, and why the others
do not; a `Report` says what is asked for, what is in flight, and which view the desk goes by.  Both are whole states, so one that is
lost or repeated does no harm.

Rules: an adapter is routable where a view lists it under `ready`, and nowhere else.  One that is to be unloaded leaves `ready`
first; it is unloaded when every desk has reported on that view or a later one, with nothing of it in flight.

Deliberately absent: how they travel (`gateway.adapters.service`).
"""

import msgspec


class Why(msgspec.Struct, frozen=True, array_like=True):
    """Why an adapter is not ready anywhere.

    `text` names each engine and its reason; `reason` is the one word to count by.  `retry_ns` is when it will be tried again
    at the earliest (0: now, or unknown).  `hopeless`: nothing is under way or may begin before then, so nobody need wait.
    """

    reason: str
    text: str
    retry_ns: int
    hopeless: bool


class View(msgspec.Struct, frozen=True, array_like=True):
    """Which adapters answer where, by engine; and of those that answer nowhere, why.

    `crowded`: somewhere an adapter waits for another to be idle.
    `life` names the keeper's process: generations of two lives cannot be compared.
    """

    life: int = 0
    generation: int = 0
    ready: dict[str, tuple[str, ...]] = {}
    leaving: dict[str, tuple[str, ...]] = {}
    why: dict[str, Why] = {}
    crowded: bool = False


class Use(msgspec.Struct, array_like=True):
    """What one desk has in flight of an adapter at an engine, and when it last sent something there."""

    engine: str
    adapter: str
    inflight: int
    used_ns: int


class Denied(msgspec.Struct, frozen=True, array_like=True):
    """An engine that answered a request as if it had not the adapter."""

    engine: str
    adapter: str
    reason: str
    detail: str


class Report(msgspec.Struct, array_like=True):
    """One desk's side: the view it goes by, what is asked for, what is in use, and what was denied.

    `number` counts a desk's reports; what was denied is said again until a `Reply` shows that it was heard.
    """

    number: int = 0
    life: int = 0
    generation: int = 0
    wanted: tuple[str, ...] = ()
    uses: tuple[Use, ...] = ()
    denied: tuple[Denied, ...] = ()
    doubted: tuple[str, ...] = ()


class Reply(msgspec.Struct, frozen=True, array_like=True):
    """A view made after the desk's report of that number was heard."""

    view: View
    heard: int
