"""Whether a file may follow: has it changed, and can a worker make of it what it must.

Rules: trying costs what it costs once, in the supervisor, where nobody waits; nothing of it is kept.

Deliberately absent: reading and checking the file (app.up.generation).
"""

from pathlib import Path

from sits.app.up.generation import Generation
from sits.core.fleet import EmulatedEngine
from sits.core.ports import World
from sits.gateway.pipeline import Gateway
from sits.wire import build_engine


def tried_out(new: Generation, world: World) -> None:
    """Make once what a worker will make of it, and throw it away.

    Raises:
        SitsError: that cannot be made.

    """
    remote = (engine for engine in new.fleet.engines if not isinstance(engine, EmulatedEngine))
    Gateway(world, new.fleet, {engine.name: build_engine(new.fleet, engine, world) for engine in remote})


def signature(path: Path) -> tuple[int, int, int]:
    """What changes when a file is written or replaced; zeros while there is none."""
    try:
        found = path.stat()
    except OSError:
        return (0, 0, 0)
    return (found.st_mtime_ns, found.st_ino, found.st_size)
