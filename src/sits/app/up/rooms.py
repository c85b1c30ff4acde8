"""The rooms of the admin process: what it hosts beside each other, each with paths and a life of its own.

```
House: the configuration in use, the store, the clock, the keeper's answers      Room: routes, start, adopt, close
```
A room is made once, started, told every generation, and closed.  `rooms_of` is the list of them: another room is one more line, and
imports what it needs when it is called, so that whoever lists rooms loads none of their libraries.

Rules: a room reads the store as anybody may, while the keeper writes it; what it adds it writes as a writer of its own.  A room that cannot
start is named and left out, the others go on.  `guarded` rooms are behind the door (`app.up.door`); the others see to that themselves.

Deliberately absent: what rooms do, and the server they share.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sits.app.up.generation import Generation
from sits.app.up.link import AwayError, Link
from sits.core.ports import World
from sits.gateway.shared import Shared

if TYPE_CHECKING:
    from starlette.routing import BaseRoute

ANSWER_S = 2.0
"""How long the keeper may take to answer; while it is being started again it does not."""


class House:
    """What all rooms have in common.

    Attributes:
        generation: the configuration in use; store: where its rows are; shared: what workers count together.
        gateway, address: where requests are served, and where we are, as host:port.

    """

    def __init__(
        self,
        generation: Generation,
        world: World,
        shared: Shared,
        keeper: Link,
        addresses: tuple[str, str],
        say: Callable[[str], None],
    ) -> None:
        self.generation = generation
        self.world = world
        self.store = Path(generation.fleet.gateway.store)
        self.shared = shared
        self.gateway, self.address = addresses
        self.say = say
        self._keeper = keeper

    def tell(self, vitals: Mapping[str, Mapping[str, float]]) -> None:
        """Tell the keeper what is counted here, for the metrics page of the whole gateway."""
        self._keeper.send("vitals", vitals)

    async def ask(self, what: str) -> bytes:
        """The keeper's `page` (metrics of the whole gateway, Prometheus text) or `board` (of the shift, JSON).

        Raises:
            AwayError: it does not answer now.

        """
        try:
            answer: bytes = await asyncio.wait_for(self._keeper.ask(what), ANSWER_S)
        except TimeoutError:
            raise AwayError(
                f"the keeper has not answered for {ANSWER_S:g} s; it is being started again, or busy",
                code="keeper_silent",
                hint="look again in some seconds",
            ) from None
        return answer


class Room:
    """One of them; what it does not need to do it need not write."""

    name: str = ""
    guarded: bool = True

    def __init__(self, house: House) -> None:
        self.house = house

    def routes(self) -> "Sequence[BaseRoute]":
        """Its paths; asked for once, before the start."""
        return ()

    async def start(self) -> None:
        """Open what it needs.

        Raises:
            SitsError: it cannot; the others go on without it.

        """

    def adopt(self, new: Generation) -> Any:
        """Another configuration is in use; the house has it already."""

    def vitals(self) -> dict[str, dict[str, float]]:
        """What it counts, as the metrics page of the whole gateway has it; asked again and again."""
        return {}

    async def close(self) -> None:
        """Let go, within a few seconds; streams end now."""


def rooms_of(house: House) -> list[Room]:
    """Every room there is, in the order their paths are tried."""
    from sits.app.board.room import BoardRoom  # noqa: PLC0415  (the list; libraries come with the rooms)
    from sits.app.otlp.room import OtlpRoom  # noqa: PLC0415
    from sits.app.profiles.room import ProfileRoom  # noqa: PLC0415
    from sits.app.up.metrics_room import MetricsRoom  # noqa: PLC0415

    return [BoardRoom(house), OtlpRoom(house), ProfileRoom(house), MetricsRoom(house)]
