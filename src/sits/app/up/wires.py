"""A worker's look at its TCP connections to engines: the kernel's RTT, retransmits and windows as signals of the engine's name.

Rules: off the path of requests, between two flushes; each engine once a second, and not all in one go, so that a look takes the loop a
tenth of a millisecond and not one for each engine.  A request pays nothing: the connections are the ones the engine's client has anyway.

Deliberately absent: what the kernel's numbers mean (`telemetry.host.tcp`).
"""

from collections.abc import Callable, Iterator, Mapping

from sits.core.ports import World
from sits.telemetry.host.tcp import Wires

TICKS = 10
"""Calls of `tick` between two looks at one engine."""

Add = Callable[[str, tuple[int, str, str, float]], None]


class WireWatch:
    """The connections of one worker.

    Args:
        world: the clock.

    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._wires = Wires()
        self._ticks = 0

    def tick(self, engines: Mapping[str, object], add: Add) -> None:
        """Look at those engines whose turn it is; `add` is given table and row."""
        self._ticks += 1
        for place, (name, engine) in enumerate(engines.items()):
            connections = getattr(engine, "connections", None)
            if connections is None or (place - self._ticks) % TICKS:
                continue
            now_ns = self._world.now_ns()
            for signal_name, value in self._wires.look(name, _open(connections), len(connections)):
                add("signals", (now_ns, name, signal_name, value))
        if self._ticks % (TICKS * 60) == 0:
            self._wires.keep(engines)


def _open(connections: tuple[object, ...]) -> Iterator[tuple[int, int]]:
    for connection in connections:
        descriptor = getattr(connection, "descriptor", -1)
        if descriptor >= 0:
            yield id(connection), descriptor
