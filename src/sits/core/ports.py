"""The ports: what stands between rooms and can be exchanged, and the world.

Policies, predictors and detectors are shapes, not types: pure functions that take the numbers they need and give a
Decision, an expectation or a Finding.  A common signature would only hide which numbers each of them needs, so there
is none; `make check` holds that they know no clock, no socket and no dice.
The World is the only source of time and randomness, injected where it is needed.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from sits.core.request import Chunk, Request
from sits.core.timeline import Timeline

if TYPE_CHECKING:
    import numpy as np


@runtime_checkable
class World(Protocol):
    """Clock and dice."""

    def now_ns(self) -> int:
        """Monotonic nanoseconds; the only time latencies are computed from."""

    def wall_ns(self) -> int:
        """Wall-clock nanoseconds since the epoch: for display, and for windows people see; never for latencies."""

    def rng(self, stream: str) -> "np.random.Generator":
        """The named random stream; drawing more in one stream does not move another."""

    def nonce(self) -> int:
        """64 bits that no other process draws, for identities."""


@runtime_checkable
class Engine(Protocol):
    """A place that can answer requests."""

    name: str

    def generate(self, request: Request, timeline: Timeline) -> AsyncIterator[Chunk]:
        """Answer `request` chunk by chunk, marking on `timeline` the points 5..16 it can see.

        Closing the iterator early cancels the work in the engine.

        Raises:
            EngineError: the engine failed or died; chunks already yielded stay valid.
            CapacityError: the engine refused the request for lack of room.

        """

    async def close(self) -> None:
        """Release connections; unfinished answers are cancelled."""


class Store(Protocol):
    """Where records go and come back from."""

    def append(self, table: str, columns: Mapping[str, Any]) -> None:
        """Append rows given as equally long columns."""

    def scan(self, query: str, **parameters: Any) -> Sequence[Mapping[str, Any]]:
        """Run a *named* query and return its rows."""
