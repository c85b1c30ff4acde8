"""The five ports and the world.  Everything that varies stands behind one of these Protocols.

Policies and predictors are pure functions or callables over numbers: they know no clock, no socket, no dice.
The World is the only source of time and randomness, injected where it is needed.
"""

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

from sits.core.decision import Decision
from sits.core.finding import Finding
from sits.core.request import Chunk, Request
from sits.core.run import Run
from sits.core.timeline import Timeline


@runtime_checkable
class World(Protocol):
    """Clock and dice."""

    def now_ns(self) -> int:
        """Monotonic nanoseconds; the only time latencies are computed from."""

    def wall_ns(self) -> int:
        """Wall-clock nanoseconds since the epoch, for display only."""

    def rng(self, stream: str) -> np.random.Generator:
        """The named random stream; drawing more in one stream does not move another."""


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


class Policy(Protocol):
    """Pure `(request, state, now_ns) -> Decision`."""

    def __call__(self, request: Request, state: Any, now_ns: int) -> Decision:
        """Decide about one request from numbers alone."""


class Predictor(Protocol):
    """Pure `(configuration, load) -> expected time or capacity`, with an error."""

    def __call__(self, config: Any, load: Any) -> Any:
        """Predict from numbers alone."""


class Store(Protocol):
    """Where records go and come back from."""

    def append(self, table: str, columns: Mapping[str, Any]) -> None:
        """Append rows given as equally long columns."""

    def scan(self, query: str, **parameters: Any) -> Sequence[Mapping[str, Any]]:
        """Run a *named* query and return its rows."""


class Detector(Protocol):
    """Reads a run from a store and states Findings about it."""

    def __call__(self, store: Store, run: Run) -> Iterable[Finding]:
        """Findings of this detector about `run`."""
